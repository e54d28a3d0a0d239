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

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::{
    bind_count::BindError, completion_counter::CompletionCounter, counter::Counter,
    transport::Provider,
};

/// When a triggered operation is posted. Reference: fi_trigger(3), `struct fi_trigger_threshold`.
pub struct Threshold<P: Provider> {
    /// The event counter to check.
    pub counter: Arc<CompletionCounter<P>>,
    /// How many successes it has to count.
    pub value: u64,
}

/// What is done once a counter has reached a threshold.
pub(crate) trait Work: Send {
    /// Does it. This waits for nobody.
    fn start(self: Box<Self>);
    /// Reports that it is not done any more.
    fn cancel(self: Box<Self>);
}

/// Work that waits for a counter.
pub(crate) struct Deferred {
    /// Who has deferred it.
    pub owner: Arc<Deferrals>,
    /// The operation's.
    pub context: u64,
    /// What is done then.
    pub work: Box<dyn Work>,
}

/// What waits for one counter.
pub(crate) struct Triggers {
    waiting: Mutex<Waiting>,
    counter: Weak<Counter>,
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
    pub fn new(counter: Weak<Counter>) -> Self {
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
    fn start_due(&self, counter: &Counter) {
        if std::mem::replace(&mut self.lock().is_starting, true) {
            return;
        }
        while let Some(deferred) = self.next_due(counter) {
            counter.let_go();
            deferred.work.start();
        }
    }

    /// The first that is due. None: then nobody starts any more, and who changes the counter from
    /// now on finds that out.
    fn next_due(&self, counter: &Counter) -> Option<Deferred> {
        let mut waiting = self.lock();
        let (value, _) = counter.now();
        let first = waiting.deferred.first_entry().filter(|first| first.key().0 <= value);
        let due = first.map(|first| first.remove());
        waiting.is_starting = due.is_some();
        due
    }

    /// Takes the first that is meant.
    fn take(&self, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        let mut waiting = self.lock();
        let place = waiting.deferred.iter().find(|(_, deferred)| is_meant(deferred))?.0;
        let place = *place;
        waiting.deferred.remove(&place)
    }
}

thread_local! {
    /// Counters whose turn comes when this thread has started what it is at.
    static TURNS: RefCell<VecDeque<Arc<Counter>>> = const { RefCell::new(VecDeque::new()) };
    static IS_STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Starts what is due at `counter`; from within a start, when that is over.
fn in_turn(counter: Arc<Counter>) {
    TURNS.with_borrow_mut(|turns| turns.push_back(counter));
    if IS_STARTING.replace(true) {
        return;
    }
    while let Some(counter) = TURNS.with_borrow_mut(VecDeque::pop_front) {
        if let Some(triggers) = counter.triggers() {
            triggers.start_due(&counter);
        }
    }
    IS_STARTING.set(false);
}

/// What one owner has deferred: an endpoint's operations go with it.
#[derive(Default)]
pub(crate) struct Deferrals {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Those that something of the owner's may wait for.
    counters: Vec<Weak<Counter>>,
    is_closed: bool,
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
        counter: &Arc<Counter>,
        threshold: u64,
        context: u64,
        work: impl FnOnce() -> Box<dyn Work>,
    ) -> Result<(), BindError> {
        let mut known = self.lock();
        if known.is_closed {
            return Err(BindError::Closed);
        }
        let triggers = counter.hold()?;
        known.counters.retain(|known| known.strong_count() > 0);
        if !known.counters.iter().any(|known| known.as_ptr() == Arc::as_ptr(counter)) {
            known.counters.push(Arc::downgrade(counter));
        }
        let (owner, work) = (self.clone(), work());
        triggers.insert(threshold, Deferred { owner, context, work });
        drop(known);
        triggers.fire();
        Ok(())
    }

    /// Takes the owner's first that is meant, from any counter.
    fn take(self: &Arc<Self>, is_meant: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        let counters: Vec<Arc<Counter>> =
            self.lock().counters.iter().filter_map(Weak::upgrade).collect();
        let is_meant =
            |deferred: &Deferred| Arc::ptr_eq(&deferred.owner, self) && is_meant(deferred);
        counters.iter().find_map(|counter| {
            let taken = counter.triggers()?.take(is_meant)?;
            counter.let_go();
            Some(taken)
        })
    }

    /// Cancels the first that has this context; false if none has. Reference: fi_endpoint(3),
    /// `fi_cancel`.
    pub fn cancel(self: &Arc<Self>, context: u64) -> bool {
        let found = self.take(|deferred| deferred.context == context);
        let is_found = found.is_some();
        if let Some(deferred) = found {
            deferred.work.cancel();
        }
        is_found
    }

    /// Drops all that is deferred, from now on.
    pub fn close(self: &Arc<Self>) {
        self.lock().is_closed = true;
        while self.take(|_| true).is_some() {}
    }
}
