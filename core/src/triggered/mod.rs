//! Triggered operations: what is deferred until a counter reaches a threshold.
//! Reference: fi_trigger(3).
//!
//! A counter keeps what waits for it in order: "Threshold operations are triggered in the order
//! of the threshold values. This is true even if the counter increments by a value greater than 1.
//! If two triggered operations have the same threshold, they will be triggered in the order in
//! which they were submitted".
//!
//! Who changes the counter starts what is due, wherever that is: maybe in the middle of an
//! engine's poll. So starting waits for nobody (`Unit::submit_due`), and what it changes in turn
//! is left for the outermost of the thread's calls, however long a chain is.

#[cfg(all(test, loom))]
mod loom_models;
mod work;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    fmt,
    mem::ManuallyDrop,
    sync::{Arc, PoisonError, Weak},
};

use rustc_hash::FxHashSet;

use crate::{
    bind_count::BindError, completion_counter::CompletionCounter, contained::contained,
    counter::CounterCell, flags::Flags, transport::Provider,
};

pub(crate) use work::Tally;
pub use work::{Change, Work};

/// When a triggered operation is posted. Reference: fi_trigger(3), `struct fi_trigger_threshold`.
pub struct Threshold<P: Provider> {
    /// The event counter to check.
    pub counter: Arc<CompletionCounter<P>>,
    /// What it has to reach: of successes; work counts errors as well.
    pub value: u64,
    /// Says that the operation is deferred work.
    pub work: Option<Work<P>>,
}

impl<P: Provider> fmt::Debug for Threshold<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threshold")
            .field("counter", &self.counter)
            .field("value", &self.value)
            .field("work", &self.work)
            .finish()
    }
}

impl<P: Provider> Threshold<P> {
    /// Flags that the endpoint adds: to an operation of its own. "Posted work requests do not
    /// generate any completions at the endpoint by default".
    pub(crate) fn of_operations(&self, added: Flags) -> Flags {
        if self.work.is_none() { added } else { Flags::empty() }
    }
}

/// What is done once a counter has reached a threshold.
pub(crate) trait Startable: Send {
    /// Does it. This waits for nobody.
    fn start(self: Box<Self>);
    /// Reports that it is not done any more.
    fn cancel(self: Box<Self>);
}

/// What is canceled by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// An operation, by its context.
    Operation(u64),
    /// Deferred work, by its id.
    Work(u64),
}

/// What waits for a counter.
pub(crate) struct Deferred {
    /// Who has deferred it.
    owner: Arc<Deferrals>,
    key: Key,
    /// What is done then.
    work: Box<dyn Startable>,
}

impl Deferred {
    /// Work waits "until the triggering counter (success plus error counter values) has reached
    /// the indicated threshold", other operations for successes.
    fn is_due(&self, threshold: u64, (value, errors): (u64, u64)) -> bool {
        match self.key {
            Key::Operation(_) => value >= threshold,
            Key::Work(_) => value.saturating_add(errors) >= threshold,
        }
    }
}

/// What waits for one counter.
pub(crate) struct Triggers {
    waiting: Mutex<Waiting>,
    counter: Weak<CounterCell>,
}

#[derive(Default)]
struct Waiting {
    /// By threshold, and in the order of submission among equals.
    deferred: BTreeMap<(u64, u64), Deferred>,
    submitted: u64,
    /// Somebody starts what is due, and looks again after each.
    is_starting: bool,
}

impl Triggers {
    pub fn new(counter: Weak<CounterCell>) -> Self {
        Triggers { waiting: Mutex::default(), counter }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that is done under it panics half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, threshold: u64, deferred: Deferred) {
        let mut waiting = self.lock();
        waiting.submitted += 1;
        let place = (threshold, waiting.submitted);
        waiting.deferred.insert(place, deferred);
    }

    /// Starts what is due, in order.
    #[cold]
    pub fn fire(&self) {
        if let Some(counter) = self.counter.upgrade() {
            in_turn(counter);
        }
    }

    /// Starts what is due at `counter`, whose these are, unless somebody is at it.
    fn start_due(&self, counter: &CounterCell) {
        if std::mem::replace(&mut self.lock().is_starting, true) {
            return;
        }
        while let Some(deferred) = self.next_due(counter) {
            counter.let_go();
            // A bug closes the endpoint that it is met in, and not the one whose completion has led here.
            contained("what was deferred", || deferred.work.start());
        }
    }

    /// The first that is due. None: then nobody starts any more, and who changes the counter from
    /// now on finds that out.
    fn next_due(&self, counter: &CounterCell) -> Option<Deferred> {
        let mut waiting = self.lock();
        let now = counter.now();
        let mut reached = waiting.deferred.range(..=(now.0.saturating_add(now.1), u64::MAX));
        let due = reached.find(|(place, deferred)| deferred.is_due(place.0, now));
        let due = due.map(|(&place, _)| place);
        waiting.is_starting = due.is_some();
        due.and_then(|place| waiting.deferred.remove(&place))
    }

    /// Takes the first that is meant.
    fn take(&self, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        let mut waiting = self.lock();
        let place = waiting.deferred.iter().find(|(_, deferred)| is_meant(deferred))?.0;
        let place = *place;
        waiting.deferred.remove(&place)
    }
}

/// What a thread starts, and what it has to start afterwards. Nothing in it is dropped with the thread:
/// handlers of `atexit` run when what is dropped then is gone, and may close what defers operations.
#[derive(Default)]
struct Turns {
    /// Counters whose turn comes when this thread has started what it is at: none, and no memory for
    /// any, when it starts nothing.
    counters: ManuallyDrop<RefCell<VecDeque<Arc<CounterCell>>>>,
    is_starting: Cell<bool>,
}

#[cfg(not(loom))]
thread_local! {
    static TURNS: Turns = Turns::default();
}
#[cfg(loom)]
loom::thread_local! {
    static TURNS: Turns = Turns::default();
}

/// Starts what is due at `counter`; from within a start, when that is over.
fn in_turn(counter: Arc<CounterCell>) {
    if TURNS.with(|turns| turns.is_starting.replace(true)) {
        return TURNS.with(|turns| turns.counters.borrow_mut().push_back(counter));
    }
    let mut turn = Some(counter);
    while let Some(counter) = turn {
        if let Some(triggers) = counter.triggers() {
            triggers.start_due(&counter);
        }
        turn = TURNS.with(|turns| turns.counters.borrow_mut().pop_front());
    }
    TURNS.with(|turns| {
        drop(turns.counters.take());
        turns.is_starting.set(false);
    });
}

/// What one owner has deferred: an endpoint's operations go with it.
#[derive(Default)]
pub(crate) struct Deferrals {
    known: Mutex<Known>,
}

/// Counters that are kept without a look at which of them are gone.
const FEW: usize = 64;

#[derive(Default)]
struct Known {
    /// Those that something of the owner's may wait for, in the order in which they were learned.
    counters: Vec<Weak<CounterCell>>,
    /// Their addresses. No other counter has one while it is known here, even if it is gone.
    addresses: FxHashSet<usize>,
    /// With fewer there is no look.
    look_at: usize,
    is_closed: bool,
}

impl Known {
    fn learn(&mut self, counter: &Arc<CounterCell>) {
        if !self.addresses.insert(Arc::as_ptr(counter).addr()) {
            return;
        }
        if self.counters.len() >= self.look_at.max(FEW) {
            self.forget_gone();
            self.look_at = 2 * self.counters.len();
        }
        self.counters.push(Arc::downgrade(counter));
    }

    fn forget_gone(&mut self) {
        let Known { counters, addresses, .. } = self;
        counters.retain(|known| {
            let stays = known.strong_count() > 0;
            if !stays {
                addresses.remove(&known.as_ptr().addr());
            }
            stays
        });
    }
}

/// Takes the first that is meant of what waits for `counter`.
fn take_from(counter: &CounterCell, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
    let taken = counter.triggers()?.take(is_meant)?;
    counter.let_go();
    Some(taken)
}

impl Deferrals {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing that is done under it panics half-way.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `work` done once `counter` has reached `threshold`: at once, if it has.
    ///
    /// # Errors
    /// The counter or the owner is closed.
    pub fn defer(
        self: &Arc<Self>,
        counter: &Arc<CounterCell>,
        threshold: u64,
        key: Key,
        work: impl FnOnce() -> Box<dyn Startable>,
    ) -> Result<(), BindError> {
        let mut known = self.lock();
        if known.is_closed {
            return Err(BindError::Closed);
        }
        let triggers = counter.hold()?;
        known.learn(counter);
        let (owner, work) = (self.clone(), work());
        triggers.insert(threshold, Deferred { owner, key, work });
        drop(known);
        triggers.fire();
        Ok(())
    }

    /// Has what waits for `counter` be found here, whoever has deferred it.
    pub fn learn(&self, counter: &Arc<CounterCell>) {
        self.lock().learn(counter);
    }

    /// Takes the first that is meant, from any of the counters.
    fn take(&self, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        let counters: Vec<Arc<CounterCell>> =
            self.lock().counters.iter().filter_map(Weak::upgrade).collect();
        counters.iter().find_map(|counter| take_from(counter, &is_meant))
    }

    fn take_own(self: &Arc<Self>, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        self.take(|deferred| Arc::ptr_eq(&deferred.owner, self) && is_meant(deferred))
    }

    /// Cancels the first that has this context; false if none has. Reference: fi_endpoint(3),
    /// `fi_cancel`.
    pub fn cancel(self: &Arc<Self>, context: u64) -> bool {
        let found = self.take_own(|deferred| deferred.key == Key::Operation(context));
        let is_found = found.is_some();
        if let Some(deferred) = found {
            deferred.work.cancel();
        }
        is_found
    }

    /// Cancels all operations that are deferred.
    pub fn cancel_all(self: &Arc<Self>) {
        let is_operation = |deferred: &Deferred| matches!(deferred.key, Key::Operation(_));
        while let Some(deferred) = self.take_own(is_operation) {
            deferred.work.cancel();
        }
    }

    /// Whether the owner has closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Drops all that is deferred, from now on.
    pub fn close(self: &Arc<Self>) {
        self.lock().is_closed = true;
        while self.take_own(|_| true).is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::*;

    struct Noted(Arc<AtomicUsize>);

    impl Startable for Noted {
        fn start(self: Box<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn cancel(self: Box<Self>) {}
    }

    struct Panics;

    impl Startable for Panics {
        fn start(self: Box<Self>) {
            panic!("in the middle of a start");
        }

        fn cancel(self: Box<Self>) {}
    }

    /// Nor does it keep what waits here, or at counters that the thread changes later, from its turn.
    #[test]
    fn a_start_that_panics_ends_no_other_work() {
        let started = Arc::new(AtomicUsize::new(0));
        let deferrals = Arc::<Deferrals>::default();
        for _ in 0..2 {
            let counter = Arc::<CounterCell>::default();
            let noted = || -> Box<dyn Startable> { Box::new(Noted(started.clone())) };
            deferrals.defer(&counter, 1, Key::Work(1), || Box::new(Panics)).unwrap();
            deferrals.defer(&counter, 1, Key::Work(2), noted).unwrap();
            counter.add(1);
        }
        assert_eq!(started.load(Ordering::SeqCst), 2);
    }

    /// Changes a counter when its thread ends.
    #[derive(Default)]
    struct Last(RefCell<Option<Arc<CounterCell>>>);

    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(counter) = self.0.take() {
                counter.add(1);
            }
        }
    }

    thread_local! {
        static LAST: Last = Last::default();
    }

    #[test]
    fn counters_that_are_gone_are_forgotten_in_time() {
        let kept: Vec<_> = (0..10).map(|_| Arc::<CounterCell>::default()).collect();
        let mut known = Known::default();
        for nth in 0..10_000 {
            known.learn(&Arc::default());
            known.learn(&kept[nth % kept.len()]);
        }
        assert!((10..200).contains(&known.counters.len()), "{} are kept", known.counters.len());
        assert_eq!(known.addresses.len(), known.counters.len());
        let left = known.counters.iter().filter_map(Weak::upgrade);
        let left: Vec<_> = left.map(|counter| Arc::as_ptr(&counter)).collect();
        assert!(left.into_iter().eq(kept.iter().map(Arc::as_ptr)), "once, and in their order");
    }

    /// What a thread had for itself is gone, as a main thread's is in the handlers of `atexit`.
    #[test]
    fn a_thread_that_ends_starts_what_is_due() {
        let started = Arc::new(AtomicUsize::new(0));
        let (counter, deferrals) = (Arc::<CounterCell>::default(), Arc::<Deferrals>::default());
        for threshold in [1, 2] {
            let work = || -> Box<dyn Startable> { Box::new(Noted(started.clone())) };
            deferrals.defer(&counter, threshold, Key::Work(threshold), work).unwrap();
        }
        thread::spawn(move || {
            // What comes to be first goes last.
            LAST.with(|last| last.0.replace(Some(counter.clone())));
            counter.add(1);
        })
        .join()
        .unwrap();
        assert_eq!(started.load(Ordering::SeqCst), 2);
    }
}
