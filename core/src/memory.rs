//! Memory that belongs to somebody else for a while: the application's buffers
//! between post and completion, and packets that lie in shared memory.
//!
//! The promise that makes such memory usable is given once, where a value is
//! made (`unsafe fn new`), and stands until the operation completes or the
//! packet is consumed. So the protocol above needs no unsafe code.

use std::{
    ptr,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};

/// One contiguous piece of an application's buffer: a scatter-gather entry.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    start: *mut u8,
    length: usize,
}

// SAFETY: a piece is an address and a length; whoever made it promised that the
// memory may be used by the engine until completion, on whichever thread that runs.
unsafe impl Send for Piece {}
// SAFETY: as above: a shared piece only hands out copies of itself.
unsafe impl Sync for Piece {}

impl Piece {
    /// A piece of no bytes.
    pub const EMPTY: Piece = Piece { start: ptr::null_mut(), length: 0 };

    /// # Safety
    /// `start` is valid for `length` bytes until the operation that it is posted
    /// with completes: for reads if it is sent, for writes if it is received
    /// into, and nobody else writes to it meanwhile. It may be null if `length`
    /// is 0. Afterwards nobody uses the piece any more, nor a copy or a part of it.
    #[inline(always)]
    pub const unsafe fn new(start: *mut u8, length: usize) -> Piece {
        Piece { start, length }
    }

    /// Units: bytes.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.length
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Where it starts.
    #[inline(always)]
    pub const fn as_ptr(self) -> *mut u8 {
        self.start
    }

    /// Whether all bytes of `other` are among these.
    pub(crate) fn contains(self, other: Piece) -> bool {
        let offset = (other.as_ptr().addr()).wrapping_sub(self.as_ptr().addr());
        offset <= self.len() && other.len() <= self.len() - offset
    }

    /// At most `length` bytes from `offset` on.
    #[inline(always)]
    pub fn part(self, offset: usize, length: usize) -> Piece {
        let offset = offset.min(self.length);
        Piece { start: self.start.wrapping_add(offset), length: length.min(self.length - offset) }
    }

    /// Copies bytes of `words`, from byte `offset` on, over the whole piece.
    /// Panics if `words` is too short.
    #[inline(always)]
    pub fn fill_from_words(self, words: &[u64], offset: usize) {
        assert!(offset + self.length <= size_of_val(words));
        // SAFETY: the source was just checked; the target is this piece.
        unsafe { copy_tiny(words.as_ptr().cast::<u8>().add(offset), self.start, self.length) }
    }

    /// Writes one word over the whole piece. Panics unless it has 8 bytes.
    #[inline(always)]
    pub fn write_word(self, word: u64) {
        assert!(self.length == 8);
        // SAFETY: the piece is valid for writes of its 8 bytes.
        unsafe { self.start.cast::<u64>().write_unaligned(word) }
    }

    /// The whole piece as one word. Panics unless it has 8 bytes.
    #[inline(always)]
    pub fn read_word(self) -> u64 {
        assert!(self.length == 8);
        // SAFETY: the piece is valid for reads of its 8 bytes.
        unsafe { self.start.cast::<u64>().read_unaligned() }
    }

    /// Copies the whole piece over bytes of `words`, from byte `offset` on.
    /// Panics if `words` is too short.
    #[inline(always)]
    pub fn copy_to_words(self, words: &mut [u64], offset: usize) {
        assert!(offset + self.length <= size_of_val(words));
        // SAFETY: the target was just checked; the source is this piece.
        unsafe { copy_tiny(self.start, words.as_mut_ptr().cast::<u8>().add(offset), self.length) }
    }

    /// Copies as much as both pieces hold.
    pub fn copy_to(self, to: Piece) {
        // SAFETY: both pieces are valid for the lesser length; they may overlap,
        // since an application may post the same memory twice.
        unsafe { ptr::copy(self.start, to.start, self.length.min(to.length)) };
    }

    /// Copies as much as both pieces hold, from the first byte to the last: whoever loads a byte of
    /// it with acquire order finds those before it, and whatever this thread stored before. Copies
    /// of the C library and of the processor promise none of that. The two do not overlap.
    pub fn copy_in_order_to(self, to: Piece) {
        let (length, mut at) = (self.length.min(to.length), 0);
        while at < length {
            let (from, to) = (self.start.wrapping_add(at), to.start.wrapping_add(at));
            if length - at >= 8 && to.cast::<u64>().is_aligned() {
                // SAFETY: 8 bytes are left in both, and those of the target are aligned. Who looks
                // at them meanwhile uses atomic loads.
                unsafe {
                    let word = from.cast::<u64>().read_unaligned();
                    AtomicU64::from_ptr(to.cast()).store(word, Ordering::Release);
                }
                at += 8;
            } else {
                // SAFETY: a byte is left in both; as above.
                unsafe { AtomicU8::from_ptr(to).store(from.read(), Ordering::Release) };
                at += 1;
            }
        }
    }

    /// Copies `bytes` to the start of the piece, as many as fit.
    pub fn fill(self, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.length);
        // SAFETY: `length` is within both.
        unsafe { ptr::copy(bytes.as_ptr(), self.start, length) };
        length
    }

    /// Appends the whole piece to `bytes`.
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        if self.length > 0 {
            // SAFETY: the piece is valid for reads of its length.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start, self.length) });
        }
    }

    /// The piece that covers `bytes`.
    ///
    /// # Safety
    /// The piece does not borrow them: they live, and nobody else writes to them, while it or a
    /// copy or a part of it is used, and what [`new`](Self::new) asks for holds.
    pub const unsafe fn of(bytes: &mut [u8]) -> Piece {
        Piece { start: bytes.as_mut_ptr(), length: bytes.len() }
    }

    /// The piece that covers bytes which the engine itself owns, and keeps while it uses the piece.
    pub(crate) fn of_owned(bytes: &mut [u8]) -> Piece {
        Piece { start: bytes.as_mut_ptr(), length: bytes.len() }
    }
}

/// Copies up to 48 bytes without a call: two overlapping moves of a power of two.
///
/// # Safety
/// Both sides are valid for `length` bytes and do not overlap.
#[inline(always)]
unsafe fn copy_tiny(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: every access below stays within `length` bytes of both sides.
    unsafe {
        if length >= 8 {
            if length > 16 {
                ptr::copy_nonoverlapping(from, to, length);
                return;
            }
            let first = from.cast::<u64>().read_unaligned();
            let last = from.add(length - 8).cast::<u64>().read_unaligned();
            to.cast::<u64>().write_unaligned(first);
            to.add(length - 8).cast::<u64>().write_unaligned(last);
        } else {
            for index in 0..length {
                *to.add(index) = *from.add(index);
            }
        }
    }
}

/// Where the bytes of a message lie: one piece, or several.
///
/// A view of a caller's array; what must outlive the call is copied into the
/// operation's record.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'a> {
    /// One contiguous buffer.
    One(Piece),
    /// A scatter-gather list.
    Many(&'a [Piece]),
}

impl Pieces<'_> {
    /// Bytes in all pieces.
    #[inline(always)]
    pub fn total(&self) -> usize {
        match self {
            Pieces::One(piece) => piece.len(),
            Pieces::Many(pieces) => {
                pieces.iter().fold(0, |total: usize, piece| total.saturating_add(piece.len()))
            }
        }
    }

    /// The longest contiguous part that starts at byte `offset`, at most `length`.
    #[inline(always)]
    pub fn contiguous(&self, offset: usize, length: usize) -> Piece {
        match self {
            Pieces::One(piece) => piece.part(offset, length),
            Pieces::Many(pieces) => contiguous_of_many(pieces, offset, length),
        }
    }

    /// Where the first piece is; if that is nowhere, where the first byte is.
    pub fn start(&self) -> *const u8 {
        let first = match self {
            Pieces::One(piece) => *piece,
            Pieces::Many(pieces) => pieces.first().copied().unwrap_or(Piece::EMPTY),
        };
        let first = first.as_ptr();
        if first.is_null() { self.contiguous(0, usize::MAX).as_ptr() } else { first }
    }

    /// Calls `visit` for each contiguous part of `length` bytes from `offset` on, with how many
    /// of these bytes lie before it.
    #[inline(always)]
    pub fn for_each_part(&self, offset: usize, length: usize, mut visit: impl FnMut(usize, Piece)) {
        let mut done = 0;
        while done < length {
            let part = self.contiguous(offset + done, length - done);
            if part.is_empty() {
                return;
            }
            visit(done, part);
            done += part.len();
        }
    }
}

#[cold]
#[inline(never)]
fn contiguous_of_many(pieces: &[Piece], mut offset: usize, length: usize) -> Piece {
    for piece in pieces {
        if offset < piece.len() {
            return piece.part(offset, length);
        }
        offset -= piece.len();
    }
    Piece::EMPTY
}

impl Piece {
    /// The piece that covers words which the engine itself owns, and keeps while it uses the piece.
    pub(crate) fn of_words(words: &mut [u64]) -> Piece {
        Piece { start: words.as_mut_ptr().cast(), length: size_of_val(words) }
    }

    /// The bytes, for the engine's own memory.
    ///
    /// # Safety
    /// Nobody writes to the piece while the slice lives.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the piece is valid for its length, and the caller promised the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Piece;

    #[test]
    fn a_copy_in_order_is_a_copy() {
        let mut source: Vec<u8> = (1..=40).collect();
        let source = Piece::of_owned(&mut source);
        for (length, from, at) in (0..30).flat_map(|length| [(length, 3, 1), (length, 0, 8)]) {
            let mut target = [0; 64];
            source.part(from, length).copy_in_order_to(Piece::of_owned(&mut target).part(at, 40));
            let end = at + length;
            assert!(
                target[at..end].iter().copied().eq((from + 1) as u8..(from + 1 + length) as u8)
            );
            assert!(target[..at].iter().chain(&target[end..]).all(|&byte| byte == 0));
        }
        // No more than there is room for.
        let mut target = [0; 16];
        source.copy_in_order_to(Piece::of_owned(&mut target).part(2, 9));
        assert_eq!(target, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0]);
    }
}
