//! Memory that a device reads and writes beside us: page-aligned, zeroed, bounds-checked.
//!
//! Whose turn it is follows from the protocol, not from references: a send buffer is the
//! device's from its posting to its completion, a receive buffer likewise, and a credit line is
//! the peer's to write for as long as the connection lives. So no reference into such memory is
//! ever made: bytes are copied, and words that a peer may write meanwhile are atomic loads.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use kestrel_core::memory::Piece;

/// What devices, and the kernel, take memory by.
pub const PAGE_BYTES: usize = 4096;

/// A stretch of memory that lives as long as the value.
pub struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is an allocation of its own; who touches which bytes when is settled as the module
// says, and what two sides touch at once is atomic.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` zeroes, rounded up to whole pages; none if there is no memory.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).ok()?;
        // SAFETY: the layout has a size of at least a page.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Memory { start: NonNull::new(start)?, layout })
    }

    /// Units: bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Whether there is nothing in it: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it starts.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// All of it, for registering.
    pub(crate) fn whole(&self) -> Piece {
        // SAFETY: an allocation of that length; who uses the piece keeps the value.
        unsafe { Piece::new(self.start.as_ptr(), self.len()) }
    }

    /// The address of a byte, as work requests have it.
    #[inline(always)]
    pub fn address(&self, offset: usize) -> u64 {
        self.start.as_ptr().addr() as u64 + offset as u64
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.layout.size());
        assert!(fits, "{length} bytes at {offset} of {}", self.layout.size());
        // SAFETY: the offset was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Copies the piece to `offset`.
    #[inline(always)]
    pub fn copy_in(&self, offset: usize, from: Piece) {
        let to = self.at(offset, from.len());
        if !from.is_empty() {
            // SAFETY: both are valid for the length: the piece by its promise, `to` as checked.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
        }
    }

    /// Copies from `offset` over the whole piece.
    #[inline(always)]
    pub fn copy_out(&self, offset: usize, to: Piece) {
        let from = self.at(offset, to.len());
        if !to.is_empty() {
            // SAFETY: both are valid for the length: the piece by its promise, `from` as checked.
            unsafe { ptr::copy_nonoverlapping(from, to.as_ptr(), to.len()) }
        }
    }

    /// The word at `offset`, which is a multiple of 8.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> u64 {
        self.atomic(offset).load(Ordering::Acquire)
    }

    /// Sets the word at `offset`, which is a multiple of 8.
    #[inline(always)]
    pub fn set_word(&self, offset: usize, word: u64) {
        self.atomic(offset).store(word, Ordering::Release);
    }

    #[inline(always)]
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: within the allocation, aligned, and words are only touched as atomics while
        // the other side may touch them.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_words_go_in_and_out() {
        let memory = Memory::zeroed(100).unwrap();
        assert_eq!((memory.len(), memory.address(8) % 4096), (4096, 8));
        memory.set_word(16, 0x0807_0605_0403_0201);
        let mut bytes = [0; 4];
        // SAFETY: the bytes outlive the copy.
        memory.copy_out(17, unsafe { Piece::of(&mut bytes) });
        assert_eq!(bytes, [2, 3, 4, 5]);
        let mut bytes = [9; 8];
        // SAFETY: the bytes outlive the copy.
        memory.copy_in(4088, unsafe { Piece::of(&mut bytes) });
        assert_eq!(memory.word(4088), 0x0909_0909_0909_0909);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn nothing_lies_beyond_the_end() {
        // SAFETY: the bytes outlive the copy.
        Memory::zeroed(1).unwrap().copy_in(4095, unsafe { Piece::of(&mut [1; 2]) });
    }
}
