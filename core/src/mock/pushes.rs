//! What others push to an endpoint: how much finds no room, how much would be shown, and how it is taken.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::wire::Head;

/// Pushes to one endpoint.
#[derive(Default)]
pub(super) struct Pushes {
    /// How many will find no room.
    blocked: AtomicUsize,
    shown: AtomicUsize,
    /// Bytes that were copied out at once, at most.
    largest_copy: AtomicUsize,
}

impl Pushes {
    /// The next `count` find no room.
    pub fn block(&self, count: usize) {
        self.blocked.store(count, Ordering::Relaxed);
    }

    /// Whether this one finds the way blocked.
    pub fn blocks(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.blocked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// A packet with that head and so many bytes of payload is on its way.
    pub fn note(&self, head: Head, length: usize) {
        let is_shown = length > 0 && head.is_shown();
        self.shown.fetch_add(usize::from(is_shown), Ordering::Relaxed);
    }

    /// So many bytes of one are copied out at once.
    pub fn note_copy(&self, length: usize) {
        self.largest_copy.fetch_max(length, Ordering::Relaxed);
    }

    /// Bytes that were copied out at once, at most.
    pub fn largest_copy(&self) -> usize {
        self.largest_copy.load(Ordering::Relaxed)
    }

    /// Packets whose payload the receiver could see come.
    pub fn shown(&self) -> usize {
        self.shown.load(Ordering::Relaxed)
    }
}
