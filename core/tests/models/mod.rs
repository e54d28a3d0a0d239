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
