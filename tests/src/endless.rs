//! Memory that is mapped and has no pages: more of it than there is.

use kestrel_core::memory::Piece;

/// As many zeroes as were asked for, which nobody has to hold.
pub struct Endless {
    start: *mut libc::c_void,
    length: usize,
}

impl Endless {
    /// None if the kernel does not map so much.
    pub fn map(length: usize) -> Option<Endless> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a mapping of its own, wherever the kernel puts it.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Endless { start, length })
    }

    /// All of it, to be sent.
    pub fn piece(&self) -> Piece {
        // SAFETY: it is mapped for reading until it is dropped, which cases do last.
        unsafe { Piece::new(self.start.cast(), self.length) }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody sends it any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
}
