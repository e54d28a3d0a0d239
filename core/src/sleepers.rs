//! Threads that sleep on one bell, and a call that each of them has to hear.
//!
//! A bell is an eventfd: the first sleeper to wake silences it for all of them. So a call counts
//! those whom it is for, and whoever wakes rings again as long as one of them has not answered.
//! Who fell asleep since the call is none of them: it looked behind what it was called for, and its
//! own look says nothing of what the others have seen.

use crate::primitive::{AtomicU64, Ordering};

/// As many as a system has threads.
const COUNT_BITS: u32 = 22;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// Above how many sleep: how many of them have not answered, and then how often they were called.
const OWED_SHIFT: u32 = COUNT_BITS;
const CALLS_SHIFT: u32 = 2 * COUNT_BITS;

fn owed_of(state: u64) -> u64 {
    state >> OWED_SHIFT & COUNT_MASK
}

/// How many threads sleep on a bell, and how many of them a call is still to reach.
#[derive(Debug, Default)]
pub struct Sleepers {
    /// All in one word: who enters is counted by a call, or sees it, and never both.
    state: AtomicU64,
}

/// How often there had been a call when a sleeper entered. It wraps around after a million; who sleeps
/// through just so many is taken for one that was not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered(u64);

impl Sleepers {
    /// Whether anybody sleeps.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COUNT_MASK != 0
    }

    /// Whether somebody sleeps who was called and has not answered.
    pub fn owe(&self) -> bool {
        // N4: pairs with N2 in `call`, whose ring may be the one that was silenced.
        owed_of(self.state.load(Ordering::SeqCst)) > 0
    }

    /// Announces a sleeper, who looks once more before it sleeps.
    pub fn enter(&self) -> Entered {
        // N1: pairs with N2 in `call`: what a call is about that does not count it is seen behind this.
        Entered(self.state.fetch_add(1, Ordering::SeqCst) >> CALLS_SHIFT)
    }

    /// Has everyone answer who sleeps now. Whether the bell is to be rung after this: not if all of them
    /// have yet to answer an earlier call, whose ring they will find with this.
    pub fn call(&self) -> bool {
        let called = |state: u64| {
            let (count, calls) = (state & COUNT_MASK, (state >> CALLS_SHIFT).wrapping_add(1));
            Some(calls << CALLS_SHIFT | count << OWED_SHIFT | count)
        };
        // N2: pairs with N1, N3 and N4. It never answers none, so it succeeds.
        let before = self.state.fetch_update(Ordering::SeqCst, Ordering::Relaxed, called);
        before.is_ok_and(|before| owed_of(before) != before & COUNT_MASK)
    }

    /// A sleeper is awake, and has silenced the bell. Whether somebody is to be rung for again, who
    /// was called and has not answered.
    pub fn leave(&self, entered: Entered) -> bool {
        let left = |state: u64| {
            let owes = state >> CALLS_SHIFT != entered.0;
            let left = state - 1 - (u64::from(owes) << OWED_SHIFT);
            // Who slept through so many calls that their number came round owes one, and does not know.
            let beyond = owed_of(left).saturating_sub(left & COUNT_MASK);
            Some(left - (beyond << OWED_SHIFT))
        };
        // N3: pairs with N2 in `call`, whose ring may be the one that was silenced.
        let before = self.state.fetch_update(Ordering::SeqCst, Ordering::Relaxed, left);
        before.ok().and_then(left).is_some_and(|after| owed_of(after) > 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_was_called_is_rung_for_until_it_answers() {
        let sleepers = Sleepers::default();
        let (first, second) = (sleepers.enter(), sleepers.enter());
        assert!(sleepers.call());
        assert!(!sleepers.call(), "they will hear of both");
        assert!(sleepers.leave(first), "the second has not answered");
        let again = sleepers.enter();
        assert!(sleepers.leave(again), "who comes later does not answer for it");
        assert!(sleepers.owe());
        assert!(!sleepers.leave(second));
        assert!(!sleepers.any() && !sleepers.owe());
    }

    #[test]
    fn who_was_not_called_is_not_rung_for() {
        let sleepers = Sleepers::default();
        assert!(!sleepers.call());
        let (first, second) = (sleepers.enter(), sleepers.enter());
        assert!(!sleepers.leave(first), "nobody was called");
        assert!(!sleepers.leave(second));
    }

    #[test]
    fn a_second_call_is_answered_once() {
        let sleepers = Sleepers::default();
        let first = sleepers.enter();
        sleepers.call();
        let second = sleepers.enter();
        assert!(sleepers.call(), "the second does not know of the first call");
        assert!(sleepers.leave(first), "the second was called, too");
        assert!(!sleepers.leave(second));
    }

    #[test]
    fn who_sleeps_through_all_numbers_leaves_nothing_owed() {
        let sleepers = Sleepers::default();
        let first = sleepers.enter();
        sleepers.call();
        // A million calls but one.
        sleepers.state.fetch_sub(1 << CALLS_SHIFT, Ordering::Relaxed);
        assert!(!sleepers.leave(first));
        assert!(!sleepers.owe());
        let second = sleepers.enter();
        assert!(sleepers.call(), "it is to be rung for");
        assert!(!sleepers.leave(second));
    }

    #[test]
    fn calls_wrap_around() {
        let sleepers = Sleepers::default();
        sleepers.state.fetch_or(u64::MAX << CALLS_SHIFT, Ordering::Relaxed);
        let (first, second) = (sleepers.enter(), sleepers.enter());
        sleepers.call();
        assert!(sleepers.leave(first));
        assert!(!sleepers.leave(second));
        assert!(!sleepers.any());
    }
}
