//! What an endpoint does to the memory of others: how much it may, and how much it did.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies of one kind: reads, or writes.
pub(super) struct Copies {
    /// Until they are refused.
    left: AtomicUsize,
    bytes: AtomicUsize,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { left: AtomicUsize::new(usize::MAX), bytes: AtomicUsize::new(0) }
    }
}

impl Copies {
    /// After `count` more, all are refused.
    pub fn forbid_after(&self, count: usize) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// Whether a copy of `bytes` is permitted; it is counted then.
    pub fn permit(&self, bytes: usize) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let permitted = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        if permitted.is_ok() {
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        permitted.is_ok()
    }

    /// Bytes that were copied.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}
