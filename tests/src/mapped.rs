//! Memory that is mapped anew, or discarded, between one operation and the next: what lies there since is
//! what the next one is about.

use std::{ffi::c_void, ptr::NonNull};

use kestrel_core::memory::{Piece, Pieces};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::bed::pattern;

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What becomes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// New pages are mapped in its place.
    MappedOver,
    /// Its pages are discarded, and come again when they are touched.
    Discarded,
    /// It stays.
    None,
}

/// Pages of our own at a place that stays the same.
pub struct Mapped {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapped {
    /// `length` zeroes.
    pub fn zeroed(length: usize) -> Mapped {
        Mapped::with(length, MapFlags::PRIVATE)
    }

    /// The same, of memory that other processes may have, too.
    pub fn shared(length: usize) -> Mapped {
        Mapped::with(length, MapFlags::SHARED)
    }

    fn with(length: usize, flags: MapFlags) -> Mapped {
        // SAFETY: nothing is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, PROTECTION, flags) };
        Mapped { start: NonNull::new(start.unwrap()).expect("a place"), length }
    }

    /// Changes it, and fills it with a pattern. No operation on it is under way.
    pub fn change(&self, change: Change, seed: u64) {
        let (start, length) = (self.start.as_ptr(), self.length);
        match change {
            Change::MappedOver => {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                // SAFETY: the place is ours, and nobody uses what is there.
                let over = unsafe { mmap_anonymous(start, length, PROTECTION, flags) };
                assert_eq!(over.unwrap(), start);
            }
            Change::Discarded => self.discard(0),
            Change::None => {}
        }
        self.piece().fill(&pattern(seed, length));
    }

    /// Discards all behind the first bytes, whole pages: it is zeroes.
    pub fn discard(&self, from: usize) {
        let start = self.start.as_ptr().wrapping_byte_add(from);
        // SAFETY: it lies within, and nobody uses what is there.
        unsafe { madvise(start, self.length - from, Advice::LinuxDontNeed) }.unwrap();
    }

    /// All of it.
    pub fn piece(&self) -> Piece {
        // SAFETY: the memory outlives the world that it is posted in.
        unsafe { Piece::new(self.start.as_ptr().cast(), self.length) }
    }

    /// All of it, as one.
    pub fn all(&self) -> Pieces<'static> {
        Pieces::One(self.piece())
    }

    /// What is in it now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.piece().append_to(&mut bytes);
        bytes
    }
}

// SAFETY: it is memory of its own, and no thread's.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is ours, and goes once.
        unsafe { munmap(self.start.as_ptr(), self.length) }.unwrap();
    }
}
