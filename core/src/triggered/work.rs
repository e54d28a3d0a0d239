//! Deferred work: triggered operations that are posted to a domain, and that a counter of their
//! own counts. Reference: fi_trigger(3), "DEFERRED WORK QUEUES".
//!
//! It waits for a counter as other triggered operations do; "the deferred work queue is a
//! conceptual construct". What is different is how it completes: "posted work requests do not
//! generate any completions at the endpoint by default".

use std::fmt;
use std::sync::Arc;

use super::{Key, Startable, Threshold};
use crate::{
    completion_counter::CompletionCounter, counter::CounterCell, domain::Domain,
    endpoint::PostError, transport::Provider,
};

/// What makes a triggered operation deferred work.
pub struct Work<P: Provider> {
    /// What it is canceled by.
    pub id: u64,
    /// "On the completion of a deferred data transfer, the specified completion counter will be
    /// incremented by one."
    pub completion: Option<Arc<CompletionCounter<P>>>,
}

impl<P: Provider> fmt::Debug for Work<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("id", &self.id).field("completion", &self.completion).finish()
    }
}

impl<P: Provider> Work<P> {
    /// What an operation of it carries until it completes.
    pub(crate) fn tally(&self) -> Tally {
        // Whoever reads the counter waits for endpoints that it is not bound to.
        let counted = |counter: &Arc<CompletionCounter<P>>| {
            counter.drive_domain();
            counter.counter().clone()
        };
        Tally(self.completion.as_ref().map(counted))
    }
}

/// What counts an operation of deferred work, instead of its endpoint's counters.
#[derive(Debug)]
pub(crate) struct Tally(Option<Arc<CounterCell>>);

impl Tally {
    #[cold]
    pub fn succeed(&self) {
        if let Some(counter) = &self.0 {
            counter.add(1);
        }
    }

    #[cold]
    pub fn fail(&self) {
        if let Some(counter) = &self.0 {
            counter.add_error(1);
        }
    }
}

/// What a deferred counter operation does. Reference: fi_trigger(3), `struct fi_op_cntr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has this value then.
    Set(u64),
    /// It has so much more then.
    Add(u64),
}

struct CounterWork {
    target: Arc<CounterCell>,
    change: Change,
}

impl Startable for CounterWork {
    fn start(self: Box<Self>) {
        match self.change {
            Change::Set(value) => self.target.set(value),
            Change::Add(value) => self.target.add(value),
        }
    }

    /// Work that is canceled reports nothing.
    fn cancel(self: Box<Self>) {}
}

impl<P: Provider> Domain<P> {
    /// Changes `target` once `when` has come.
    ///
    /// # Errors
    /// It is no work, or has a completion counter: "the completion_cntr field must be NULL for
    /// counter operations"; a counter is closed, or of another domain.
    pub fn defer_change(
        &self,
        target: &Arc<CompletionCounter<P>>,
        change: Change,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        let Some(Work { id, completion: None }) = when.work else {
            return Err(PostError::CountedChange);
        };
        for counter in [target, &when.counter] {
            if !std::ptr::eq(&raw const **counter.domain(), self) {
                return Err(PostError::OtherDomain { object: "counter" });
            }
        }
        target.drive_domain();
        let work = || {
            Box::new(CounterWork { target: target.counter().clone(), change }) as Box<dyn Startable>
        };
        self.works()
            .defer(when.counter.counter(), when.value, Key::Work(id), work)
            .map_err(|_| PostError::TriggerClosed)
    }

    /// Cancels work that still waits; false if none does.
    pub fn cancel_work(&self, id: u64) -> bool {
        self.works().take(|deferred| deferred.key == Key::Work(id)).is_some()
    }

    /// Cancels all work that still waits, or what waits for one counter.
    pub fn flush_work(&self, counter: Option<&Arc<CompletionCounter<P>>>) {
        let is_work = |deferred: &super::Deferred| matches!(deferred.key, Key::Work(_));
        match counter {
            Some(counter) => while super::take_from(counter.counter(), is_work).is_some() {},
            None => while self.works().take(is_work).is_some() {},
        }
    }
}
