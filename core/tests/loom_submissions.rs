//! Loom models of what threads leave for the owner of an engine and what is never refused: all of
//! it is taken, once and in order, whoever owns the engine.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_submissions`
#![cfg(loom)]

mod models;

use kestrel_core::{engine::ownership::Ownership, ring::submissions::Submissions};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use models::explore;

/// What has an owner look, and is nothing else.
const MARK: u32 = 0;

/// An engine that writes down what it is told, with the ownership and the submissions of `Unit`. The
/// cell is loom's: two owners at once are a race, and it says so.
struct Unit {
    ownership: Ownership<1, 4>,
    submissions: Submissions<u32>,
    engine: UnsafeCell<Vec<u32>>,
}

impl Unit {
    fn new(capacity: usize) -> Arc<Unit> {
        Arc::new(Unit {
            ownership: Ownership::new(),
            submissions: Submissions::new(capacity),
            engine: UnsafeCell::new(Vec::with_capacity(8)),
        })
    }

    fn take(&self, submission: u32) {
        if submission != MARK {
            // SAFETY: called by the owner only, which is what the model checks.
            self.engine.with_mut(|taken| unsafe { (*taken).push(submission) });
        }
    }

    /// `Unit::drain`.
    fn drain(&self) {
        if !self.submissions.is_empty() {
            self.submissions.drain(|submission| self.take(submission));
        }
    }

    fn release(&self) {
        self.ownership.release(|| self.submissions.is_ready(), || self.drain());
    }

    /// `Unit::submit_due`.
    fn submit_due(&self, submission: u32) {
        self.submissions.push_always(submission, MARK);
        if self.ownership.submitted_from_within() {
            self.drain();
            self.release();
        }
    }

    /// `Unit::progress`, of an engine that has nothing else to do.
    fn progress(&self) {
        if self.ownership.try_acquire() {
            self.drain();
            self.release();
        }
    }

    fn taken(&self) -> Vec<u32> {
        // SAFETY: all others are joined.
        self.engine.with(|taken| unsafe { (*taken).clone() })
    }
}

/// A ring with room for two of five: what overflows is not stranded, and overtakes nothing.
#[test]
fn what_overflows_is_taken_once_and_in_order() {
    explore("overflow", 3, || {
        let unit = Unit::new(2);
        let submitting = {
            let unit = unit.clone();
            thread::spawn(move || (1..=3).for_each(|n| unit.submit_due(n)))
        };
        (11..=12).for_each(|n| unit.submit_due(n));
        submitting.join().unwrap();
        let taken = unit.taken();
        let of = |tens: u32| taken.iter().copied().filter(move |n| n / 10 == tens);
        assert!(of(0).eq(1..=3) && of(1).eq(11..=12), "{taken:?}");
    });
}

/// The owner is busy until everything is submitted, and its release finds what overflowed.
#[test]
fn a_busy_owner_finds_what_overflowed() {
    explore("overflow behind a busy owner", 3, || {
        let unit = Unit::new(2);
        assert!(unit.ownership.try_acquire());
        let submitting = {
            let unit = unit.clone();
            thread::spawn(move || (1..=4).for_each(|n| unit.submit_due(n)))
        };
        unit.drain();
        unit.release();
        submitting.join().unwrap();
        assert_eq!(unit.taken(), [1, 2, 3, 4]);
    });
}

/// The same beside one who polls.
#[test]
fn whoever_polls_takes_what_overflowed() {
    explore("overflow beside a poller", 2, || {
        let unit = Unit::new(2);
        let polling = {
            let unit = unit.clone();
            thread::spawn(move || {
                unit.progress();
                unit.progress();
            })
        };
        (1..=4).for_each(|n| unit.submit_due(n));
        polling.join().unwrap();
        assert_eq!(unit.taken(), [1, 2, 3, 4]);
    });
}
