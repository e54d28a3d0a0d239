//! Loom models of where completions wait: producers, readers and sleepers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_completion_store`
#![cfg(loom)]

mod models;

use std::os::fd::RawFd;

use kestrel_core::{
    completion_queue::{
        Entry, ErrorEntry,
        store::{CompletionStore, Head},
    },
    error::Errno,
    flags::Flags,
    sleepers::Entered,
    transport::Bell,
};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::{Turns, explore};

/// A bell that counts. It is a system call in life, so its order is not in question.
#[derive(Clone)]
struct Counting(Arc<AtomicUsize>);

impl Counting {
    fn rings(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Bell for Counting {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn drain(&self) {
        self.0.swap(0, Ordering::SeqCst);
    }

    fn fd(&self) -> RawFd {
        unreachable!("a model sleeps on no descriptor")
    }
}

/// A store whose ring has two places.
struct Store {
    store: CompletionStore,
    turns: Turns,
}

impl Store {
    fn new() -> (Arc<Store>, Counting) {
        let bell = Counting(Arc::new(AtomicUsize::new(0)));
        let store = CompletionStore::shared(2, Box::new(bell.clone()));
        (Arc::new(Store { store, turns: Turns::new() }), bell)
    }

    fn push(&self, context: u64) {
        self.turns.take();
        let mut entry = Entry::default();
        entry.context = context;
        self.store.push(entry);
    }

    fn push_error(&self, context: u64) {
        self.turns.take();
        let error = ErrorEntry::new(context, Flags::SEND, Errno::TRUNC, String::new());
        self.store.push_error(error);
    }

    /// Reads once, one entry: its context, or that of an error.
    fn read(&self) -> Option<u64> {
        self.turns.take();
        let mut entries = [Entry::default()];
        match self.store.pop(&mut entries) {
            Head::Taken(_) => Some(entries[0].context),
            Head::Empty => None,
            Head::Error => Some(self.store.pop_error()?.context),
        }
    }

    /// What a few reads find.
    fn reads(&self, count: usize) -> Vec<u64> {
        (0..count).filter_map(|_| self.read()).collect()
    }

    /// Announces a sleeper, who looks once more. Whether it sleeps.
    fn falls_asleep(&self) -> (bool, Entered) {
        let entered = self.store.enter_sleep();
        self.turns.take();
        (self.store.is_empty(), entered)
    }
}

#[test]
fn a_producer_keeps_its_order_over_the_overflow() {
    explore("a producer that overflows", 3, || {
        let (store, _) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || (1..=5).for_each(|n| other.push(n)));
        let mut taken = store.reads(4);
        pushing.join().unwrap();
        taken.extend(store.reads(5));
        assert_eq!(taken, [1, 2, 3, 4, 5]);
        assert!(store.store.is_empty());
    });
}

#[test]
fn two_producers_keep_their_orders() {
    explore("two producers that overflow", 2, || {
        let (store, _) = Store::new();
        let start = |contexts: [u64; 2]| {
            let store = store.clone();
            thread::spawn(move || contexts.map(|context| store.push(context)))
        };
        let producers = [start([10, 11]), start([20, 21])];
        let mut taken = store.reads(3);
        for producer in producers {
            producer.join().unwrap();
        }
        taken.extend(store.reads(4));
        taken.sort_by_key(|context| context / 10);
        assert_eq!(taken, [10, 11, 20, 21]);
    });
}

#[test]
fn the_overflow_waits_for_a_push_under_way() {
    explore("a push under way and an overflow", 4, || {
        let (store, _) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || other.push(20));
        store.push(10);
        store.push(11);
        let mut taken = store.reads(2);
        pushing.join().unwrap();
        taken.extend(store.reads(3));
        taken.sort_by_key(|context| context / 10);
        assert_eq!(taken, [10, 11, 20]);
    });
}

#[test]
fn two_readers_take_each_entry_once() {
    explore("two readers", 2, || {
        let (store, _) = Store::new();
        store.push(1);
        let other = store.clone();
        let reading = thread::spawn(move || other.reads(2));
        store.push(2);
        store.push(3);
        let mut taken = store.reads(1);
        taken.extend(reading.join().unwrap());
        taken.extend(store.reads(3));
        taken.sort();
        assert_eq!(taken, [1, 2, 3]);
    });
}

#[test]
fn errors_keep_their_places() {
    explore("errors among successes", 4, || {
        let (store, _) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || {
            other.push_error(1);
            other.push(2);
            other.push_error(3);
        });
        let mut taken = store.reads(3);
        pushing.join().unwrap();
        taken.extend(store.reads(3));
        assert_eq!(taken, [1, 2, 3]);
        assert!(store.store.is_empty());
    });
}

#[test]
fn two_readers_take_each_error_once() {
    explore("two readers of errors", 2, || {
        let (store, _) = Store::new();
        store.push_error(1);
        let other = store.clone();
        let reading = thread::spawn(move || other.reads(2));
        store.push_error(2);
        let mut taken = store.reads(2);
        taken.extend(reading.join().unwrap());
        taken.extend(store.reads(2));
        taken.sort();
        assert_eq!(taken, [1, 2], "an error was lost, or read twice");
        assert!(store.store.is_empty());
    });
}

#[test]
fn an_error_that_one_reader_met_can_be_taken_by_another() {
    explore("an error met by one reader", 3, || {
        let (store, _) = Store::new();
        let other = store.clone();
        let taking = thread::spawn(move || {
            other.turns.take();
            other.store.pop_error().map(|error| error.context)
        });
        let other = store.clone();
        let pushing = thread::spawn(move || other.push_error(1));
        store.turns.take();
        assert!(matches!(store.store.pop(&mut [Entry::default()]), Head::Error | Head::Empty));
        let mut taken: Vec<u64> = taking.join().unwrap().into_iter().collect();
        pushing.join().unwrap();
        taken.extend(store.reads(2));
        assert_eq!(taken, [1], "an error was lost, or read twice");
    });
}

#[test]
fn an_error_that_nobody_met_is_taken_once() {
    explore("an error that is taken before its mark", 2, || {
        let (store, _) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || {
            other.push(1);
            other.push_error(2);
            other.push(3);
        });
        store.turns.take();
        let early = store.store.pop_error().map(|error| error.context);
        let mut taken = store.reads(2);
        pushing.join().unwrap();
        taken.extend(store.reads(4));
        let whole = if early.is_some() { [1, 3].as_slice() } else { &[1, 2, 3] };
        assert_eq!((early.unwrap_or(2), &*taken), (2, whole));
        assert!(store.store.is_empty());
        // The next one stops a reader as ever.
        store.push_error(4);
        assert!(matches!(store.store.pop(&mut [Entry::default()]), Head::Error));
        assert_eq!((store.read(), store.store.is_empty()), (Some(4), true));
    });
}

#[test]
fn who_falls_asleep_sees_the_entry_or_is_seen() {
    explore("a sleeper beside a push", 5, || {
        let (store, bell) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || other.push(1));
        let (sleeps, entered) = store.falls_asleep();
        pushing.join().unwrap();
        assert!(!sleeps || bell.rings() > 0, "asleep for ever");
        store.store.leave_sleep(entered);
        assert_eq!(store.read(), Some(1));
    });
}

#[test]
fn who_silences_the_bell_rings_it_for_the_others() {
    explore("a sleeper that leaves beside a push", 3, || {
        let (store, bell) = Store::new();
        let leaver = store.store.enter_sleep();
        let (sleeps, _) = store.falls_asleep();
        let other = store.clone();
        let pushing = thread::spawn(move || other.push(1));
        store.store.leave_sleep(leaver);
        pushing.join().unwrap();
        assert!(sleeps && bell.rings() > 0, "asleep for ever");
    });
}

#[test]
fn who_falls_asleep_beside_two_producers_is_seen() {
    explore("a sleeper beside two pushes", 2, || {
        let (store, bell) = Store::new();
        let start = |context| {
            let store = store.clone();
            thread::spawn(move || store.push(context))
        };
        let producers = [start(1), start(2)];
        store.read();
        let (sleeps, _) = store.falls_asleep();
        for producer in producers {
            producer.join().unwrap();
        }
        let rings = bell.rings();
        assert!(!sleeps || store.store.is_empty() || rings > 0, "asleep for ever");
    });
}

#[test]
#[should_panic(expected = "asleep for ever")]
fn a_sleeper_that_does_not_look_once_more_is_lost() {
    explore("a sleeper that does not look again", 3, || {
        let (store, bell) = Store::new();
        let other = store.clone();
        let pushing = thread::spawn(move || other.push(1));
        let sleeps = store.store.is_empty();
        store.turns.take();
        store.store.enter_sleep();
        pushing.join().unwrap();
        assert!(!sleeps || bell.rings() > 0, "asleep for ever");
    });
}

/// One that hears of an endpoint more, and falls asleep again before the other has heard of it.
#[test]
fn a_fresh_sleeper_does_not_silence_what_another_is_called_for() {
    explore("a sleeper that enters behind an endpoint more", 3, || {
        let (store, bell) = Store::new();
        let (_sleeps_on, first) = (store.store.enter_sleep(), store.store.enter_sleep());
        let other = store.clone();
        let telling = thread::spawn(move || other.store.tell_of_unit());
        store.store.leave_sleep(first);
        let (_, again) = store.falls_asleep();
        store.store.leave_sleep(again);
        telling.join().unwrap();
        assert!(bell.rings() > 0, "asleep for ever");
    });
}
