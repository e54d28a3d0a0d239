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
//!    write and its read. A push that is still under way is its pusher's affair.
//! 3. Nothing overtakes: an owner drains before it does its own work, and if it
//!    cannot drain all, since a push is under way, its work goes behind the rest.
//! 4. Nobody is captured: after [`ROUNDS_MAX`] rounds for others the owner says
//!    so (`TIRED`), drains a last time and leaves; who pushes meanwhile waits
//!    for that moment and takes over.
//! 5. Nobody waits for a thread that does not run: whoever has waited [`PATIENCE`]
//!    times leaves its operation to the tired owner after all, who goes on.

use crate::primitive::{AtomicU32, Ordering, fence, spin_loop, yield_now};

const FREE: u32 = 0;
const OWNED: u32 = 1;
const TIRED: u32 = 2;

/// Rounds that an owner drains for others before it hands over.
pub const ROUNDS_MAX: usize = 4;
/// Times that a pusher gives its core away for a tired owner to leave.
pub const PATIENCE: usize = 64;

/// The ownership of one engine. Models have fewer rounds and less patience.
#[derive(Debug)]
pub struct Ownership<const ROUNDS: usize = ROUNDS_MAX, const WAITS: usize = PATIENCE> {
    state: AtomicU32,
}

impl<const ROUNDS: usize, const WAITS: usize> Default for Ownership<ROUNDS, WAITS> {
    fn default() -> Self {
        Ownership::new()
    }
}

impl<const ROUNDS: usize, const WAITS: usize> Ownership<ROUNDS, WAITS> {
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

    /// Gives ownership up. `has_work` says whether something that was submitted
    /// can be drained, and `drain` takes all that can.
    #[inline(always)]
    pub fn release(&self, has_work: impl Fn() -> bool, mut drain: impl FnMut()) {
        loop {
            for _ in 0..ROUNDS {
                // R3: pairs with A3 and A4, in `try_acquire` and `submitted`.
                self.state.store(FREE, Ordering::Release);
                // F5: pairs with F6 in `submitted` (invariant 2).
                fence(Ordering::SeqCst);
                if !has_work() || !self.try_acquire() {
                    return;
                }
                drain();
            }
            if self.hand_over(&mut drain) {
                return;
            }
        }
    }

    /// Gives ownership up where nothing is left to own: what was submitted waits for nobody.
    #[cold]
    pub fn abandon(&self) {
        // R3: as in `release`.
        self.state.store(FREE, Ordering::Release);
    }

    /// Leaves, whoever comes. False if somebody lost patience: then we stay owner.
    #[cold]
    #[inline(never)]
    fn hand_over(&self, drain: &mut impl FnMut()) -> bool {
        self.state.store(TIRED, Ordering::Relaxed);
        // F7: pairs with F6 in `submitted`: who still saw `OWNED` had pushed before
        // this drain; who sees `TIRED` waits for the release below, or undoes it.
        fence(Ordering::SeqCst);
        drain();
        // R4: pairs with A3 and A4, in `try_acquire` and `submitted`.
        self.state.compare_exchange(TIRED, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// To be called after every push to the submissions. Returns whether the
    /// caller is now the owner, and so must drain and release.
    #[inline(always)]
    pub fn submitted(&self) -> bool {
        self.submitted_with(WAITS)
    }

    /// As [`Self::submitted`], for who may be the owner: a tired one has to stay, since waiting for
    /// oneself is in vain.
    pub fn submitted_from_within(&self) -> bool {
        self.submitted_with(0)
    }

    #[inline(always)]
    fn submitted_with(&self, patience: usize) -> bool {
        // F6: pairs with F5 and F7, in `release` and `hand_over` (invariant 2).
        fence(Ordering::SeqCst);
        let mut waited = 0;
        loop {
            // A4: pairs with R3 and R4, in `release` and `hand_over`.
            let exchanged =
                self.state.compare_exchange(FREE, OWNED, Ordering::Acquire, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return true,
                Err(TIRED) if waited < patience => {
                    waited += 1;
                    yield_now();
                }
                Err(TIRED) if self.insist() => return false,
                Err(TIRED) => {}
                Err(_) => return false,
            }
        }
    }

    /// Has a tired owner stay, who seems to be off its core: it finds that out
    /// when it is back, and looks for our push after F5.
    #[cold]
    fn insist(&self) -> bool {
        self.state.compare_exchange(TIRED, OWNED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
