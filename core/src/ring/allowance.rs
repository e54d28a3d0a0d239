//! An allowance: how much of something is there to take, for threads that take several at a time.
//!
//! Who takes finds done what was done before it was put: the memory is there, the buffers are posted.
//! Nobody takes what is not there, and nothing that was put is lost.
//!
//! `core/tests/loom_allowance.rs` has the model.

use crate::primitive::{AtomicU64, Ordering};

/// So much may be taken.
#[derive(Debug, Default)]
pub struct Allowance(AtomicU64);

impl Allowance {
    /// Puts some there.
    pub fn put(&self, count: u32) {
        // P1: pairs with P2 in `take`.
        self.0.fetch_add(count.into(), Ordering::Release);
    }

    /// Takes some, if there is so much.
    pub fn take(&self, count: u32) -> bool {
        let take = |left: u64| left.checked_sub(count.into());
        // P2: pairs with P1 in `put`.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).is_ok()
    }

    /// How much there is, at some moment.
    pub fn left(&self) -> u32 {
        u32::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }
}
