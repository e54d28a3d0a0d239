//! Loom models of counters: whoever falls asleep is woken by the change that it waits for.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_counter`
#![cfg(loom)]

mod models;

use kestrel_core::{counter::CounterCell, sleepers::Entered, transport::Bell};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::explore;

/// A bell that rings until it is silenced, as an eventfd does. It is a system call in life, so its
/// order is not in question.
#[derive(Clone)]
struct Eventfd(Arc<AtomicUsize>);

impl Bell for Eventfd {
    fn ring(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    fn drain(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn fd(&self) -> std::os::fd::RawFd {
        -1
    }
}

/// A counter that has its bell.
struct Counted {
    counter: CounterCell,
    bell: Eventfd,
}

fn counted() -> Arc<Counted> {
    let bell = Eventfd(Arc::new(AtomicUsize::new(0)));
    let counted = Counted { counter: CounterCell::new(), bell };
    // The first sleeper made the bell, and is awake.
    let first = counted.announce();
    counted.counter.leave_sleep(first);
    Arc::new(counted)
}

impl Counted {
    fn announce(&self) -> Entered {
        let bell = self.bell.clone();
        let make = || Ok::<Box<dyn Bell>, ()>(Box::new(bell));
        let (bell, entered) = self.counter.enter_sleep(make);
        assert!(bell.is_some());
        entered
    }

    fn rings(&self) -> bool {
        self.bell.0.load(Ordering::SeqCst) == 1
    }
}

fn is_woken_by(name: &str, change: fn(&CounterCell)) {
    explore(name, 4, move || {
        let counted = counted();
        let changing = {
            let counted = counted.clone();
            thread::spawn(move || change(&counted.counter))
        };
        counted.announce();
        let sleeps = counted.counter.now() == (0, 0);
        changing.join().unwrap();
        assert!(!sleeps || counted.rings(), "asleep for ever");
    });
}

#[test]
fn a_sleeper_is_woken_by_a_success() {
    is_woken_by("a success", |counter| counter.add(1));
}

#[test]
fn a_sleeper_is_woken_by_an_error() {
    is_woken_by("an error", |counter| counter.add_error(1));
}

#[test]
fn a_sleeper_is_woken_by_a_set() {
    is_woken_by("a set", |counter| counter.set(5));
}

/// What must go wrong.
#[test]
#[should_panic(expected = "asleep for ever")]
fn who_looks_before_it_announces_itself_may_sleep_for_ever() {
    explore("a late announcement", 4, || {
        let counted = counted();
        let adding = {
            let counted = counted.clone();
            thread::spawn(move || counted.counter.add(1))
        };
        let sleeps = counted.counter.now() == (0, 0);
        counted.announce();
        adding.join().unwrap();
        assert!(!sleeps || counted.rings(), "asleep for ever");
    });
}

/// One that wakes, if only since its time is over, silences the bell, and rings it for the other.
#[test]
fn who_wakes_does_not_put_another_to_rest() {
    explore("two sleepers", 3, || {
        let counted = counted();
        let leaver = counted.announce();
        let other = {
            let counted = counted.clone();
            thread::spawn(move || counted.counter.leave_sleep(leaver))
        };
        let adding = {
            let counted = counted.clone();
            thread::spawn(move || counted.counter.add(1))
        };
        counted.announce();
        let sleeps = counted.counter.now() == (0, 0);
        other.join().unwrap();
        adding.join().unwrap();
        assert!(!sleeps || counted.rings(), "asleep for ever");
        assert_eq!(counted.counter.read(), 1);
    });
}

/// One that waits for more falls asleep again behind the change, and gives up, before the one that
/// waits for just that has its core: its own look found nothing new.
#[test]
fn who_falls_asleep_again_does_not_silence_what_another_is_called_for() {
    explore("a sleeper that enters twice", 3, || {
        let counted = counted();
        let (_sleeps_on, first) = (counted.announce(), counted.announce());
        let adding = {
            let counted = counted.clone();
            thread::spawn(move || counted.counter.add(1))
        };
        counted.counter.leave_sleep(first);
        let again = counted.announce();
        counted.counter.leave_sleep(again);
        adding.join().unwrap();
        assert!(counted.rings(), "asleep for ever");
    });
}

/// The same of one who sleeps for the first time, beside the leaving of one who was called.
#[test]
fn who_falls_asleep_behind_a_change_does_not_answer_it() {
    explore("a sleeper that enters behind a change", 3, || {
        let counted = counted();
        let (_sleeps_on, called) = (counted.announce(), counted.announce());
        counted.counter.add(1);
        let fresh = {
            let counted = counted.clone();
            thread::spawn(move || {
                let fresh = counted.announce();
                counted.counter.leave_sleep(fresh);
            })
        };
        counted.counter.leave_sleep(called);
        fresh.join().unwrap();
        assert!(counted.rings(), "asleep for ever");
    });
}

/// Who has answered is not rung for again: sleepers would keep each other awake.
#[test]
fn nobody_is_rung_for_twice() {
    explore("sleepers that have all answered", 3, || {
        let counted = counted();
        let (first, second) = (counted.announce(), counted.announce());
        counted.counter.add(1);
        let other = {
            let counted = counted.clone();
            thread::spawn(move || {
                counted.counter.leave_sleep(first);
                counted.announce()
            })
        };
        counted.counter.leave_sleep(second);
        let (again, other) = (counted.announce(), other.join().unwrap());
        counted.counter.leave_sleep(again);
        assert!(!counted.rings(), "awake for ever");
        counted.counter.leave_sleep(other);
        assert_eq!(counted.counter.read(), 1);
    });
}

/// Who sees a count sees what the operations wrote.
#[test]
fn a_count_brings_what_was_written() {
    explore("a count", 4, || {
        let (counted, written) = (counted(), Arc::new(AtomicUsize::new(0)));
        let adding = {
            let (counted, written) = (counted.clone(), written.clone());
            thread::spawn(move || {
                written.store(7, Ordering::Relaxed);
                counted.counter.add(1);
            })
        };
        if counted.counter.read() == 1 {
            assert_eq!(written.load(Ordering::Relaxed), 7);
        }
        adding.join().unwrap();
    });
}
