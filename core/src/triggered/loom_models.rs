//! Loom models of what waits for a counter: it is started once, by whoever comes last.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --lib loom`

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::{Deferrals, Key, Startable};
use crate::counter::CounterCell;

/// Notes that it was started, or canceled.
struct Noted {
    started: loom::sync::Arc<AtomicUsize>,
    canceled: loom::sync::Arc<AtomicUsize>,
}

impl Startable for Noted {
    fn start(self: Box<Self>) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    fn cancel(self: Box<Self>) {
        self.canceled.fetch_add(1, Ordering::Relaxed);
    }
}

/// A counter, who defers operations until it changes, and what became of them.
struct Waiting {
    counter: Arc<CounterCell>,
    deferrals: Arc<Deferrals>,
    started: loom::sync::Arc<AtomicUsize>,
    canceled: loom::sync::Arc<AtomicUsize>,
}

impl Waiting {
    fn new() -> Waiting {
        Waiting {
            counter: Arc::default(),
            deferrals: Arc::default(),
            started: loom::sync::Arc::new(AtomicUsize::new(0)),
            canceled: loom::sync::Arc::new(AtomicUsize::new(0)),
        }
    }

    fn defer(&self, threshold: u64, context: u64) {
        let (started, canceled) = (self.started.clone(), self.canceled.clone());
        let work = || -> Box<dyn Startable> { Box::new(Noted { started, canceled }) };
        self.deferrals.defer(&self.counter, threshold, Key::Operation(context), work).unwrap();
    }

    fn add(&self) -> thread::JoinHandle<()> {
        let counter = self.counter.clone();
        thread::spawn(move || counter.add(1))
    }

    /// How many were started, and how many canceled, when all threads are joined.
    fn ended(&self) -> (usize, usize) {
        (self.started.load(Ordering::Relaxed), self.canceled.load(Ordering::Relaxed))
    }
}

/// Runs `model` under all schedules with so many preemptions at most, of which there are several.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    let counted = executions.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("loom: {executions} executions explored");
    assert!(executions > 1);
}

/// Either the change finds what waits, or who defers it finds the change.
#[test]
fn what_is_deferred_beside_a_change_is_started_once() {
    explore(3, || {
        let waiting = Waiting::new();
        let adding = waiting.add();
        waiting.defer(1, 1);
        adding.join().unwrap();
        assert_eq!(waiting.ended(), (1, 0));
    });
}

/// Two changes, of which the second makes it due: whoever of the two looks last starts it.
#[test]
fn two_changes_start_what_waits_for_both_once() {
    explore(2, || {
        let waiting = Waiting::new();
        waiting.defer(2, 1);
        waiting.defer(1, 2);
        let adding = waiting.add();
        waiting.counter.add(1);
        adding.join().unwrap();
        assert_eq!(waiting.ended(), (2, 0));
    });
}

#[test]
fn what_is_canceled_beside_a_change_is_one_or_the_other() {
    explore(3, || {
        let waiting = Waiting::new();
        waiting.defer(1, 1);
        let adding = waiting.add();
        let canceled = waiting.deferrals.cancel(1);
        adding.join().unwrap();
        assert_eq!(waiting.ended(), (usize::from(!canceled), usize::from(canceled)));
    });
}
