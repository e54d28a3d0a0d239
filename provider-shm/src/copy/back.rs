//! Lines that go back: what was read of a shared chunk is written to, with what is there.
//!
//! A core overwrites a line slowly that the other has but read since it was written, on AMD's processors at
//! least. One that the other has written to comes from there as fast as any (docs/performance.md).

use kestrel_core::prefetch::LINE_BYTES;

use super::CopyFunction;

/// Copies `len` bytes from `source` to `destination`, which do not overlap, and writes to each line of
/// the source.
///
/// # Safety
/// As [`CopyFunction`]; `source` is writable, too.
pub(super) type CopyBackFunction = unsafe fn(destination: *mut u8, source: *mut u8, len: usize);

/// What is copied before its lines are handed back, where that is not done line by line: it is in the
/// first-level cache still. Units: bytes.
const AT_ONCE: usize = 4 << 10;

/// Copies by `copy`, piece by piece, and hands back the lines of each.
///
/// # Safety
/// As [`CopyBackFunction`], with what `copy` needs.
pub(super) unsafe fn in_pieces(
    copy: CopyFunction,
    destination: *mut u8,
    source: *mut u8,
    len: usize,
) {
    for done in (0..len).step_by(AT_ONCE) {
        let piece = (len - done).min(AT_ONCE);
        // SAFETY: the caller vouches for both ranges, of which these are pieces.
        unsafe {
            copy(destination.add(done), source.add(done), piece);
            hand_back(source.add(done), piece);
        }
    }
}

/// Writes to each line of what was read, what is there.
///
/// # Safety
/// `len` bytes from `source` on are readable and writable.
#[inline(always)]
pub(super) unsafe fn hand_back(source: *mut u8, len: usize) {
    let lead = source.align_offset(LINE_BYTES);
    // SAFETY: the caller vouches for the range, and the line's start is looked for in it.
    unsafe {
        if len > 0 && lead > 0 {
            touch(source);
        }
        hand_back_from(source, lead, len);
    }
}

/// The same of the lines that start at `from`, a line after the other, and before `len`.
///
/// # Safety
/// As [`hand_back`]; `source + from` is the start of a line.
#[inline(always)]
pub(super) unsafe fn hand_back_from(source: *mut u8, from: usize, len: usize) {
    for at in (from..len).step_by(LINE_BYTES) {
        // SAFETY: less than `len`.
        unsafe { touch(source.add(at)) };
    }
}

/// Writes a byte, as it is.
///
/// # Safety
/// It is readable and writable.
#[inline(always)]
pub(super) unsafe fn touch(byte: *mut u8) {
    // SAFETY: the caller vouches for it. Volatile, since the other side writes there, too: parts that
    // are on their way still, but none of the bytes that were read.
    unsafe { byte.write_volatile(byte.read_volatile()) };
}
