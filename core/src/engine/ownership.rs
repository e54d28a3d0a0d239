//! Who drives an engine: one thread at a time, without a lock.
//!
//! A caller that finds the engine owned leaves its operation in a bounded ring
//! (the submissions) and goes on. The protocol, as two rules:
//!
//! - The owner: acquire, drain, do its own work, release, fence, look at the
//!   ring again, and acquire again if something came.
//! - The submitter: push, fence, try to acquire; if that succeeds it is the
//!   owner, and drains.
//!
//! Invariants (`core/tests/loom_ownership.rs` has a model of each):
//! 1. At most one owner.
//! 2. Nothing is stranded: of a push and a release, either the releaser sees the
//!    push or the pusher sees the release, since each has a fence between its
//!    write and its read.
//! 3. Nothing overtakes: an owner drains before it does its own work.
//! 4. Nobody is captured: after [`ROUNDS_MAX`] rounds for others the owner says
//!    so (`TIRED`), drains a last time and leaves; who pushes meanwhile waits
//!    for that moment and takes over.

use crate::primitive::{AtomicU32, Ordering, fence, spin_loop, yield_now};

const FREE: u32 = 0;
const OWNED: u32 = 1;
const TIRED: u32 = 2;

/// Rounds that an owner drains for others before it hands over.
pub const ROUNDS_MAX: usize = 4;

/// The ownership of one engine.
#[derive(Debug)]
pub struct Ownership {
    state: AtomicU32,
}

impl Default for Ownership {
    fn default() -> Self {
        Ownership::new()
    }
}

impl Ownership {
    /// Free.
    pub fn new() -> Self {
        Ownership { state: AtomicU32::new(FREE) }
    }

    /// Becomes owner if nobody is.
    #[inline(always)]
    pub fn try_acquire(&self) -> bool {
        // A3: pairs with R3 and R4, in `release` and `hand_over`.
        self.state.compare_exchange(FREE, OWNED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Becomes owner, however long the present one takes: for cold calls only.
    pub fn acquire(&self) {
        let mut spins = 0u32;
        while !self.try_acquire() {
            spins += 1;
            if spins.is_multiple_of(64) { yield_now() } else { spin_loop() }
        }
    }

    /// Gives ownership up. `has_work` says whether something was submitted, and
    /// `drain` takes all of it.
    #[inline(always)]
    pub fn release(&self, has_work: impl Fn() -> bool, mut drain: impl FnMut()) {
        for _ in 0..ROUNDS_MAX {
            // R3: pairs with A3 in `try_acquire`.
            self.state.store(FREE, Ordering::Release);
            // F5: pairs with F6 in `submitted` (invariant 2).
            fence(Ordering::SeqCst);
            if !has_work() || !self.try_acquire() {
                return;
            }
            drain();
        }
        self.hand_over(drain);
    }

    #[cold]
    fn hand_over(&self, mut drain: impl FnMut()) {
        self.state.store(TIRED, Ordering::SeqCst);
        // F7: pairs with F6 in `submitted`. Who still saw `OWNED` had pushed before
        // this drain; who sees `TIRED` waits for the release below.
        fence(Ordering::SeqCst);
        drain();
        // R4: pairs with A3 in `try_acquire`.
        self.state.store(FREE, Ordering::Release);
    }

    /// To be called after every push to the submissions. Returns whether the
    /// caller is now the owner, and so must drain and release.
    #[inline(always)]
    pub fn submitted(&self) -> bool {
        // F6: pairs with F5 and F7, in `release` and `hand_over` (invariant 2).
        fence(Ordering::SeqCst);
        loop {
            let exchanged =
                self.state.compare_exchange(FREE, OWNED, Ordering::Acquire, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return true,
                Err(TIRED) => yield_now(),
                Err(_) => return false,
            }
        }
    }
}
