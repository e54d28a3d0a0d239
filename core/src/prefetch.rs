//! Lines asked for ahead of time.
//!
//! A prefetch never faults, changes nothing that a program can see, and costs an instruction.
//! Elsewhere than on x86-64, and in models, these do nothing.

/// The step between lines. Units: bytes.
pub const LINE_BYTES: usize = 64;

/// Asks for the line at `line`, to read it.
#[inline(always)]
pub fn to_read<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(line.cast(), _MM_HINT_T0);
    }
    let _ = line;
}

/// Asks for the line at `line` as its owner, to write to it: whoever else has a copy loses it.
#[inline(always)]
pub fn to_write<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch never faults, and processors without this one take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    let _ = line;
}
