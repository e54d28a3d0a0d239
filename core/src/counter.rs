//! Counters: how many operations completed, and how many failed. Reference: fi_cntr(3).
//!
//! Lock-free: an engine adds on its data path while any thread reads. A thread that
//! sleeps until there is more says so first, and then each change rings its bell. Operations that
//! wait for a change ([`crate::triggered`]) are watchers like that thread.

use crossbeam_utils::CachePadded;

use std::sync::{Arc, OnceLock};

use crate::bind_count::{BindCount, BindError};
use crate::primitive::{AtomicU64, Ordering, fence};
use crate::sleepers::{Entered, Sleepers};
use crate::transport::Bell;
use crate::triggered::Triggers;

/// A count of completions, and one of errors.
///
/// Each has a cache line of its own: the first is written for every
/// completion, the second hardly ever, and waiters read both.
#[derive(Default)]
pub struct CounterCell {
    value: CachePadded<AtomicU64>,
    rare: CachePadded<Rare>,
    binds: BindCount,
}

/// What hardly ever changes.
#[derive(Default)]
struct Rare {
    errors: AtomicU64,
    /// How often either count was set: it may be what it was before, and has changed all the same.
    sets: AtomicU64,
    /// Who wants to hear of changes: sleepers, and [`DEFERRED`] for each operation that waits.
    watchers: AtomicU64,
    /// Which of the sleepers the last change is still to reach.
    sleepers: Sleepers,
    /// Made by the first sleeper.
    bell: OnceLock<Box<dyn Bell>>,
    /// Made by the first operation that is deferred.
    triggers: OnceLock<Triggers>,
}

/// One deferred operation among a counter's watchers; what is below counts sleepers.
const DEFERRED: u64 = 1 << 32;

fn sleepers_of(watchers: u64) -> u64 {
    watchers & (DEFERRED - 1)
}

/// What the sequentially consistent accesses before and after it are to each other. Loom takes them
/// for acquire and release, and has to be told.
#[inline(always)]
fn in_one_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

impl std::fmt::Debug for CounterCell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (value, errors) = (self.read(), self.read_error());
        formatter
            .debug_struct("CounterCell")
            .field("value", &value)
            .field("errors", &errors)
            .finish()
    }
}

impl CounterCell {
    /// A counter at 0.
    pub fn new() -> Self {
        CounterCell::default()
    }

    /// How many operations completed. Who sees a count sees what those
    /// operations wrote.
    pub fn read(&self) -> u64 {
        self.value.load(Ordering::Acquire) // C1: pairs with C2
    }

    /// How many operations failed.
    pub fn read_error(&self) -> u64 {
        self.rare.errors.load(Ordering::Acquire) // C1: pairs with C2
    }

    /// How often a count was set.
    pub fn sets(&self) -> u64 {
        self.rare.sets.load(Ordering::Acquire) // C1: pairs with C2
    }

    /// Adds to the count, wrapping around. Cost: one atomic instruction and a load; no lock,
    /// and no system call unless somebody sleeps.
    #[inline(always)]
    pub fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::SeqCst); // C2: pairs with C1
        self.tell_watchers();
    }

    /// Adds to the error count.
    pub fn add_error(&self, value: u64) {
        self.rare.errors.fetch_add(value, Ordering::SeqCst); // C2: pairs with C1
        self.tell_watchers();
    }

    /// Sets the count. What is added meanwhile may be lost: "applications
    /// should ensure that the value of a counter is stable".
    pub fn set(&self, value: u64) {
        self.rare.sets.fetch_add(1, Ordering::SeqCst); // C2: pairs with C1
        self.value.swap(value, Ordering::SeqCst); // C2: pairs with C1
        self.tell_watchers();
    }

    /// Sets the error count, with the same warning.
    pub fn set_error(&self, value: u64) {
        self.rare.sets.fetch_add(1, Ordering::SeqCst); // C2: pairs with C1
        self.rare.errors.swap(value, Ordering::SeqCst); // C2: pairs with C1
        self.tell_watchers();
    }

    /// Wakes those who sleep, since whoever reads the counter drives more endpoints than before.
    pub(crate) fn tell_of_units(&self) {
        // F9: pairs with F8 in `enter_sleep`: either the sleeper arms the new units or we see the
        // sleeper.
        fence(Ordering::SeqCst);
        self.tell_watchers();
    }

    /// Starts what waits for the change and wakes those who sleep, after something changed for them.
    ///
    /// The change and this load, and a watcher's announcement and its look, are all
    /// sequentially consistent: either the watcher sees the change or we see the watcher.
    #[inline(always)]
    pub fn tell_watchers(&self) {
        in_one_order();
        // C3: pairs with C4, in `enter_sleep`, `hold` and `now`.
        let watchers = self.rare.watchers.load(Ordering::SeqCst);
        if watchers != 0 {
            self.tell(watchers);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, watchers: u64) {
        if let (Some(triggers), true) = (self.rare.triggers.get(), watchers >= DEFERRED) {
            triggers.fire();
        }
        if sleepers_of(watchers) > 0 {
            self.ring();
        }
    }

    /// What waits for it, if anything ever did.
    pub(crate) fn triggers(&self) -> Option<&Triggers> {
        self.rare.triggers.get()
    }

    /// Counts an operation that will wait for it, which looks with [`Triggers::fire`] once it does.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<&Triggers, BindError> {
        self.binds.bind()?;
        self.rare.watchers.fetch_add(DEFERRED, Ordering::SeqCst); // C4: pairs with C3
        Ok(self.rare.triggers.get_or_init(|| Triggers::new(Arc::downgrade(self))))
    }

    /// An operation waits no more.
    pub(crate) fn let_go(&self) {
        self.rare.watchers.fetch_sub(DEFERRED, Ordering::SeqCst); // C4: pairs with C3
        // Counted when it was held, so this cannot fail.
        let _ = self.binds.unbind();
    }

    #[cold]
    fn ring(&self) {
        if self.rare.sleepers.call()
            && let Some(bell) = self.rare.bell.get()
        {
            bell.ring();
        }
    }

    /// Announces a sleeper, who looks with [`Self::now`] before it sleeps, and answers the
    /// bell that will wake it, beside what [`Self::leave_sleep`] wants to know. `make` makes the
    /// bell for the first sleeper; none if it cannot.
    pub fn enter_sleep<E>(
        &self,
        make: impl FnOnce() -> Result<Box<dyn Bell>, E>,
    ) -> (Option<&dyn Bell>, Entered) {
        if self.rare.bell.get().is_none() {
            // Another thread may be faster: then its bell is as good.
            let _ = make().map(|bell| self.rare.bell.set(bell));
        }
        self.rare.watchers.fetch_add(1, Ordering::SeqCst); // C4: pairs with C3
        // Behind that: a change that is not told to it comes before it looks.
        let entered = self.rare.sleepers.enter();
        // F8: pairs with F9 in `tell_of_units`.
        fence(Ordering::SeqCst);
        (self.rare.bell.get().map(|bell| &**bell), entered)
    }

    /// Value and error count, for who has announced that it sleeps.
    pub fn now(&self) -> (u64, u64) {
        in_one_order();
        // C4: pairs with C3.
        (self.value.load(Ordering::SeqCst), self.rare.errors.load(Ordering::SeqCst))
    }

    /// A sleeper is awake. The bell falls silent, unless it rang for others, too, who have not
    /// answered: what this one has seen says nothing of them.
    pub fn leave_sleep(&self, entered: Entered) {
        let bell = self.rare.bell.get();
        if let Some(bell) = bell {
            bell.drain();
        }
        self.rare.watchers.fetch_sub(1, Ordering::SeqCst); // C4: pairs with C3
        if let (true, Some(bell)) = (self.rare.sleepers.leave(entered), bell) {
            bell.ring();
        }
    }

    /// The endpoints and memory regions bound to it, and what waits for it: they count themselves in and out here.
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`BindError::Busy`] while something is bound.
    pub fn close(&self) -> Result<(), BindError> {
        self.binds.close()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::{Errno, HasErrno};

    #[test]
    fn values_and_errors_are_counted_apart() {
        let counter = CounterCell::new();
        counter.add(3);
        counter.add(4);
        counter.add_error(2);
        assert_eq!((counter.read(), counter.read_error()), (7, 2));
        counter.set(100);
        counter.set_error(0);
        assert_eq!((counter.read(), counter.read_error()), (100, 0));
    }

    /// Counts how often it was rung and silenced.
    #[derive(Default)]
    struct Counted {
        rung: AtomicU64,
        drained: AtomicU64,
    }

    impl Bell for Arc<Counted> {
        fn ring(&self) {
            self.rung.fetch_add(1, Ordering::Relaxed);
        }
        fn drain(&self) {
            self.drained.fetch_add(1, Ordering::Relaxed);
        }
        fn fd(&self) -> std::os::fd::RawFd {
            7
        }
    }

    #[test]
    fn changes_ring_for_sleepers_only() {
        let (counter, bell) = (CounterCell::new(), Arc::new(Counted::default()));
        let rung = || bell.rung.load(Ordering::Relaxed);
        let make = || Ok::<Box<dyn Bell>, ()>(Box::new(bell.clone()));
        counter.add(1);
        let (sleeper, entered) = counter.enter_sleep(make);
        assert_eq!(sleeper.map(Bell::fd), Some(7));
        assert_eq!((counter.now(), rung()), ((1, 0), 0));
        counter.add(1);
        counter.add_error(1);
        counter.set(9);
        counter.set_error(0);
        assert_eq!(rung(), 1, "it will see all of them");
        counter.leave_sleep(entered);
        assert_eq!((rung(), bell.drained.load(Ordering::Relaxed)), (1, 1));
        counter.add(1);
        assert_eq!(rung(), 1, "nobody sleeps any more");
        let (_, entered) = counter.enter_sleep(make);
        counter.add(1);
        counter.leave_sleep(entered);
        assert_eq!(rung(), 2);
    }

    #[test]
    fn who_silences_the_bell_rings_it_for_the_others() {
        let (counter, bell) = (CounterCell::new(), Arc::new(Counted::default()));
        let rung = || bell.rung.load(Ordering::Relaxed);
        let enter = || counter.enter_sleep(|| Ok::<Box<dyn Bell>, ()>(Box::new(bell.clone()))).1;
        let (first, second) = (enter(), enter());
        counter.leave_sleep(first);
        assert_eq!(rung(), 0, "nothing has changed");
        let first = enter();
        counter.add(1);
        counter.leave_sleep(first);
        assert_eq!(rung(), 2);
        // One that sleeps for more.
        let first = enter();
        counter.leave_sleep(first);
        assert_eq!(rung(), 3, "the second has not heard of the change");
        counter.leave_sleep(second);
        assert_eq!(rung(), 3, "nobody else sleeps");
    }

    #[test]
    fn a_counter_without_a_bell_still_counts() {
        let counter = CounterCell::new();
        let (bell, entered) = counter.enter_sleep(|| Err(()));
        assert!(bell.is_none());
        counter.add(1);
        counter.leave_sleep(entered);
        assert_eq!(counter.read(), 1);
    }

    #[test]
    fn no_addition_is_lost_between_threads() {
        let counter = CounterCell::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        counter.add(1);
                        counter.add_error(2);
                    }
                });
            }
        });
        assert_eq!((counter.read(), counter.read_error()), (40_000, 80_000));
    }

    #[test]
    fn a_bound_counter_does_not_close() {
        let counter = CounterCell::new();
        counter.binds().bind().unwrap();
        assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
        counter.binds().unbind().unwrap();
        counter.close().unwrap();
    }
}
