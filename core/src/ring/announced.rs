//! An announced queue: one without a bound, whose reader is told by one load that nothing is there.
//!
//! Each item is announced before it is there, so that the count never falls below zero, and who sees
//! the count at zero has taken whatever was pushed before. Who looks in between finds nothing, and
//! looks again.
//!
//! `core/tests/loom_announced.rs` has the model.

use crossbeam_utils::CachePadded;

use crate::primitive::{AtomicUsize, Ordering, SegQueue};

/// A queue, and how much is in it or about to be.
pub struct Announced<T> {
    /// Alone on its line: a reader looks at it all the time.
    pending: CachePadded<AtomicUsize>,
    items: SegQueue<T>,
}

impl<T> Default for Announced<T> {
    fn default() -> Self {
        Announced { pending: CachePadded::new(AtomicUsize::new(0)), items: SegQueue::new() }
    }
}

impl<T> Announced<T> {
    /// Adds an item.
    pub fn push(&self, item: T) {
        self.announce();
        self.items.push(item);
    }

    /// Takes the oldest.
    pub fn pop(&self) -> Option<T> {
        let item = self.items.pop()?;
        self.settle();
        Some(item)
    }

    /// Whether a look is worth a call. Cost: one load.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        // E2: pairs with E1 in `announce`.
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Announces what lies elsewhere.
    pub fn announce(&self) {
        // E1: pairs with E2 in `is_pending`.
        self.pending.fetch_add(1, Ordering::Release);
    }

    /// What was announced was taken.
    pub fn settle(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
