//! Loom models of who drives an engine: `Ownership` and a ring of submissions,
//! put together as `Unit` does.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_ownership`
#![cfg(loom)]

mod models;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kestrel_core::{
    engine::ownership::Ownership,
    ring::mpmc::{Popped, Ring},
};
use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic::AtomicU32},
    thread,
};
use models::explore;

/// What decides who owns.
trait Owning: Send + Sync + 'static {
    fn new() -> Self;
    fn try_acquire(&self) -> bool;
    fn release(&self, has_work: impl Fn() -> bool, drain: impl FnMut());
    fn submitted(&self) -> bool;
}

/// An owner that is tired after one round, and pushers who wait for it.
type Waiting = Ownership<1, 4>;
/// The same, and pushers who have no patience at all.
type Insisting = Ownership<1, 0>;

impl<const ROUNDS: usize, const WAITS: usize> Owning for Ownership<ROUNDS, WAITS> {
    fn new() -> Self {
        Ownership::new()
    }

    fn try_acquire(&self) -> bool {
        Ownership::try_acquire(self)
    }

    fn release(&self, has_work: impl Fn() -> bool, drain: impl FnMut()) {
        Ownership::release(self, has_work, drain);
    }

    fn submitted(&self) -> bool {
        Ownership::submitted(self)
    }
}

/// The same without its fences: what must go wrong.
struct Careless(AtomicU32);

impl Owning for Careless {
    fn new() -> Self {
        Careless(AtomicU32::new(0))
    }

    fn try_acquire(&self) -> bool {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    fn release(&self, has_work: impl Fn() -> bool, mut drain: impl FnMut()) {
        self.0.store(0, std::sync::atomic::Ordering::Release);
        while has_work() && self.try_acquire() {
            drain();
            self.0.store(0, std::sync::atomic::Ordering::Release);
        }
    }

    fn submitted(&self) -> bool {
        self.try_acquire()
    }
}

/// What was done, until it is closed.
struct Engine {
    done: Vec<u32>,
    is_closed: bool,
}

/// A unit whose engine writes down what it is asked to do. The cell is loom's: two
/// owners at once are a race, and it says so.
struct Unit<O> {
    ownership: O,
    submissions: Ring<u32>,
    engine: UnsafeCell<Engine>,
    /// The most drains that one release took.
    drains_most: &'static AtomicUsize,
}

/// Where nobody looks at the drains.
static IGNORED: AtomicUsize = AtomicUsize::new(0);

impl<O: Owning> Unit<O> {
    fn new(submissions: usize) -> Arc<Self> {
        Self::counting(submissions, &IGNORED)
    }

    fn counting(submissions: usize, drains_most: &'static AtomicUsize) -> Arc<Self> {
        let engine = UnsafeCell::new(Engine { done: Vec::with_capacity(8), is_closed: false });
        let submissions = Ring::new(submissions);
        Arc::new(Unit { ownership: O::new(), submissions, engine, drains_most })
    }

    fn execute(&self, operation: u32) {
        self.engine.with_mut(|engine| {
            // SAFETY: called by the owner only, which is what the model checks.
            let engine = unsafe { &mut *engine };
            if !engine.is_closed {
                engine.done.push(operation);
            }
        });
    }

    /// `Unit::drain`.
    fn drain(&self) -> bool {
        if self.submissions.is_empty() {
            return true;
        }
        for _ in 0..2 {
            match self.submissions.pop() {
                Popped::Item(operation) => self.execute(operation),
                Popped::Empty => return true,
                Popped::Pending => return false,
            }
        }
        true
    }

    /// `Unit::release`.
    fn release(&self) {
        let mut drains = 0;
        let drain = || {
            drains += 1;
            self.drain();
        };
        self.ownership.release(|| self.submissions.is_ready(), drain);
        self.drains_most.fetch_max(drains, SeqCst);
    }

    /// `Unit::submit`. Whether it was accepted.
    fn submit(&self, operation: u32) -> bool {
        if self.submissions.push(operation).is_err() {
            return false;
        }
        if self.ownership.submitted() {
            self.drain();
            self.release();
        }
        true
    }

    /// `Unit::send`. Whether it was accepted.
    fn post(&self, operation: u32) -> bool {
        if !self.ownership.try_acquire() {
            return self.submit(operation);
        }
        if !self.drain() {
            self.release();
            return self.submit(operation);
        }
        self.execute(operation);
        self.release();
        true
    }

    /// What was done, once all threads are gone.
    fn done(&self) -> Vec<u32> {
        assert!(self.submissions.is_empty(), "stranded");
        // SAFETY: nobody else is left.
        self.engine.with(|engine| unsafe { (*engine).done.clone() })
    }
}

impl Unit<Waiting> {
    /// `Unit::close`, by who `drains` what was left, or does not.
    fn close(&self, drains: bool) {
        self.ownership.acquire();
        while drains && !self.drain() {
            thread::yield_now();
        }
        // SAFETY: called by the owner only.
        self.engine.with_mut(|engine| unsafe { (*engine).is_closed = true });
        self.release();
    }
}

/// One posts to an engine that another owns, and closes it.
fn close_beside_an_owner(drains: bool) {
    let unit = Unit::<Waiting>::new(2);
    assert!(unit.ownership.try_acquire());
    let other = unit.clone();
    let closing = thread::spawn(move || {
        assert!(other.post(10));
        other.close(drains);
    });
    unit.execute(1);
    unit.release();
    closing.join().unwrap();
    assert_eq!(unit.done(), [1, 10], "lost");
}

#[test]
fn what_was_posted_is_done_before_a_close() {
    explore("a close beside an owner", 3, || close_beside_an_owner(true));
}

#[test]
#[should_panic(expected = "lost")]
fn a_close_that_does_not_drain_loses_what_was_posted() {
    explore("a hasty close", 3, || close_beside_an_owner(false));
}

/// Threads that post their operations; the last of these are posted here. Answers
/// what was done, after checking that it is each thread's in its order.
fn run<O: Owning>(unit: &Arc<Unit<O>>, posts: &[&'static [u32]]) {
    let (here, elsewhere) = posts.split_last().unwrap();
    let start = |&posts: &&'static [u32]| {
        let unit = unit.clone();
        thread::spawn(move || posts.iter().filter(|&&n| unit.post(n)).copied().collect::<Vec<_>>())
    };
    let threads: Vec<_> = elsewhere.iter().map(start).collect();
    let mut accepted = vec![here.iter().filter(|&&n| unit.post(n)).copied().collect::<Vec<_>>()];
    accepted.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    let done = unit.done();
    assert_eq!(done.len(), accepted.iter().map(Vec::len).sum(), "lost, or done twice: {done:?}");
    for operations in accepted {
        let places = operations.iter().map(|operation| {
            done.iter().position(|done| done == operation).expect("what was accepted is done")
        });
        assert!(places.is_sorted(), "overtaken: {done:?}");
    }
}

#[test]
fn nothing_is_stranded_or_overtaken_between_two_threads() {
    explore("two threads", 5, || {
        run(&Unit::<Waiting>::new(2), &[&[10, 11], &[20, 21]]);
    });
}

#[test]
fn nothing_is_stranded_or_overtaken_among_three_threads() {
    explore("three threads", 2, || {
        run(&Unit::<Waiting>::new(4), &[&[10], &[20, 21], &[30]]);
    });
}

#[test]
fn two_threads_that_submit_to_an_owner_leave_nothing_behind() {
    explore("two submitters and an owner", 3, || {
        let unit = Unit::<Waiting>::new(4);
        assert!(unit.ownership.try_acquire());
        let start = |operation| {
            let unit = unit.clone();
            thread::spawn(move || assert!(unit.post(operation)))
        };
        let threads = [start(10), start(20)];
        unit.execute(1);
        unit.release();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut done = unit.done();
        done.sort();
        assert_eq!(done, [1, 10, 20]);
    });
}

#[test]
fn a_full_ring_refuses_without_side_effect() {
    explore("a full ring", 2, || {
        let unit = Unit::<Waiting>::new(2);
        assert!(unit.ownership.try_acquire());
        assert!(unit.submit(1));
        assert!(unit.submit(2));
        assert!(!unit.submit(3), "no room for a third");
        let other = unit.clone();
        let posting = thread::spawn(move || other.post(10));
        unit.execute(4);
        unit.release();
        let accepted = posting.join().unwrap();
        let done = unit.done();
        assert_eq!(done.iter().filter(|&&n| n == 10).count(), usize::from(accepted));
        assert_eq!(done.iter().copied().filter(|&n| n != 10).collect::<Vec<_>>(), [4, 1, 2]);
    });
}

#[test]
fn an_owner_is_not_captured_and_what_it_leaves_is_done() {
    static DRAINS: AtomicUsize = AtomicUsize::new(0);
    explore("a tired owner", 3, || {
        let unit = Unit::<Waiting>::counting(4, &DRAINS);
        run(&unit, &[&[10, 11], &[20], &[30]]);
    });
    // One in a round, one tired.
    assert!(DRAINS.load(SeqCst) >= 2, "no owner was ever tired");
}

#[test]
fn a_tired_owner_that_does_not_run_holds_nobody_up() {
    static DRAINS: AtomicUsize = AtomicUsize::new(0);
    explore("a tired owner off its core", 3, || {
        let unit = Unit::<Insisting>::counting(4, &DRAINS);
        run(&unit, &[&[10, 11], &[20], &[30]]);
    });
    // One in a round, one tired, one after who had no patience.
    assert!(DRAINS.load(SeqCst) >= 3, "nobody ever lost patience");
}

#[test]
#[should_panic(expected = "stranded")]
fn without_fences_an_operation_is_stranded() {
    explore("no fences", 3, || {
        run(&Unit::<Careless>::new(2), &[&[10], &[20]]);
    });
}

#[test]
#[should_panic(expected = "overtaken")]
fn an_owner_that_does_not_wait_for_a_push_under_way_is_overtaken() {
    explore("a push under way ignored", 3, || {
        let unit = Unit::<Waiting>::new(4);
        assert!(unit.ownership.try_acquire());
        let other = unit.clone();
        let pushing = thread::spawn(move || assert!(other.submit(10)));
        assert!(unit.submissions.push(20).is_ok());
        unit.release();
        if unit.ownership.try_acquire() {
            unit.drain();
            unit.execute(21);
            unit.release();
        }
        pushing.join().unwrap();
        let done = unit.done();
        let place = |operation| done.iter().position(|&done| done == operation);
        assert!(place(21).is_none() || place(20) < place(21), "overtaken: {done:?}");
    });
}
