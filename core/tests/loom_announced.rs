//! Loom models of an announced queue: its reader misses nothing by looking at the count alone.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_announced`
#![cfg(loom)]

mod models;

use kestrel_core::ring::announced::Announced;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::explore;

/// Two threads push, one takes: all of it once, and in each one's order.
#[test]
fn everything_is_taken_once() {
    explore("two push", 3, || {
        let queue = Arc::new(Announced::default());
        let pushing = {
            let queue = queue.clone();
            thread::spawn(move || (1..=2).for_each(|n| queue.push(n)))
        };
        let mut taken = Vec::new();
        queue.push(11);
        for _ in 0..2 {
            if queue.is_pending() {
                taken.extend(queue.pop());
            }
        }
        pushing.join().unwrap();
        while queue.is_pending() {
            taken.push(queue.pop().expect("what is pushed is there"));
        }
        assert_eq!(taken.len(), 3, "{taken:?}");
        assert!(taken.iter().filter(|&&n| n < 10).eq(&[1, 2]), "{taken:?}");
        assert!(taken.contains(&11) && queue.pop().is_none());
    });
}

/// A bell rings behind the push: who hears it finds the event by the count.
#[test]
fn who_hears_of_an_event_finds_it_pending() {
    explore("an event and its bell", 4, || {
        let (queue, bell) = (Arc::new(Announced::default()), Arc::new(AtomicUsize::new(0)));
        let pushing = {
            let (queue, bell) = (queue.clone(), bell.clone());
            thread::spawn(move || {
                queue.push(1);
                bell.store(1, Ordering::Release);
            })
        };
        if bell.load(Ordering::Acquire) == 1 {
            assert!(queue.is_pending(), "the event is not announced");
            assert_eq!(queue.pop(), Some(1));
        }
        pushing.join().unwrap();
    });
}
