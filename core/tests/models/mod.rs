//! How a loom model is run, and what models have in common.

// Not every model has everything.
#![allow(dead_code)]

pub mod lane;

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `model` under all schedules with at most `preemptions` involuntary
/// switches, and reports how many there were. Fails if it was only one, so that a
/// run that models nothing cannot pass unseen.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
    EXECUTIONS.store(0, Ordering::SeqCst);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        EXECUTIONS.fetch_add(1, Ordering::SeqCst);
        model();
    });
    let executions = EXECUTIONS.load(Ordering::SeqCst);
    println!("loom: {name}: {executions} executions explored");
    assert!(executions > 1, "{name} explored one schedule only");
}

/// What makes loom try all orders of the operations of a model.
///
/// Loom switches threads where two accesses conflict, but remembers only the last
/// access to an atomic: a load by one thread is forgotten once another thread loads
/// before it stores, and the order with that store first is never tried. So each
/// operation takes a turn first, which conflicts with every other turn. Being
/// relaxed, it orders nothing else.
pub struct Turns(loom::sync::atomic::AtomicUsize);

impl Turns {
    pub fn new() -> Turns {
        Turns(loom::sync::atomic::AtomicUsize::new(0))
    }

    pub fn take(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
