//! Loom models of the bounded ring for many producers and consumers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_mpmc`
#![cfg(loom)]

mod models;

use kestrel_core::ring::mpmc::{Popped, Ring};
use loom::{sync::Arc, thread};
use models::explore;

/// A ring of `size` slots whose next push goes to the last of them. Items are
/// boxed, so that one taken twice, or torn, is noticed.
fn ring(size: usize) -> Arc<Ring<Box<u32>>> {
    let ring = Ring::new(size);
    for _ in 1..size {
        ring.push(Box::new(0)).unwrap();
        ring.pop();
    }
    Arc::new(ring)
}

/// What a few pops find.
fn pops(ring: &Ring<Box<u32>>, count: usize) -> Vec<u32> {
    let item = |_| match ring.pop() {
        Popped::Item(item) => Some(*item),
        Popped::Empty | Popped::Pending => None,
    };
    (0..count).filter_map(item).collect()
}

#[test]
fn two_producers_keep_their_order_around_the_end() {
    explore("two producers, one consumer", 3, || {
        let ring = ring(2);
        ring.push(Box::new(1)).unwrap();
        let start = |items: &'static [u32]| {
            let ring = ring.clone();
            let push = move |n: &&u32| ring.push(Box::new(**n)).is_ok();
            thread::spawn(move || items.iter().filter(push).copied().collect::<Vec<_>>())
        };
        let producers = [start(&[10, 11]), start(&[20])];
        let mut taken = pops(&ring, 2);
        let accepted = producers.map(|producer| producer.join().unwrap());
        taken.extend(pops(&ring, 3));
        assert!(ring.is_empty());
        assert_eq!(taken.remove(0), 1);
        taken.sort_by_key(|n| n / 10);
        assert_eq!(taken, accepted.concat());
    });
}

#[test]
fn two_consumers_take_each_item_once() {
    explore("one producer, two consumers", 3, || {
        let ring = ring(2);
        ring.push(Box::new(1)).unwrap();
        let start = |count| {
            let ring = ring.clone();
            thread::spawn(move || pops(&ring, count))
        };
        let consumers = [start(2), start(1)];
        let pushed = [2, 3].into_iter().filter(|&n| ring.push(Box::new(n)).is_ok());
        let pushed = 1 + pushed.count();
        let taken = consumers.map(|consumer| consumer.join().unwrap());
        assert!(taken.iter().all(|taken| taken.is_sorted()), "out of order: {taken:?}");
        let mut all = taken.concat();
        all.extend(pops(&ring, 3));
        assert_eq!(all.len(), pushed, "lost, or taken twice: {all:?}");
        assert_eq!(all.iter().filter(|&&n| n == 1).count(), 1);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_push_under_way_hides_what_comes_after_it_and_nothing_else() {
    explore("a push under way", 3, || {
        let ring = Arc::new(Ring::new(4));
        let other = ring.clone();
        let pushing = thread::spawn(move || other.push(1).unwrap());
        ring.push(2).unwrap();
        // Ours is in: it is first, or waits behind the other.
        let first = ring.pop();
        assert_ne!(first, Popped::Empty);
        pushing.join().unwrap();
        let mut taken = Vec::new();
        if let Popped::Item(n) = first {
            taken.push(n);
        }
        while let Popped::Item(n) = ring.pop() {
            taken.push(n);
        }
        taken.sort();
        assert_eq!(taken, [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn ready_means_that_a_pop_finds_something() {
    explore("ready beside a push and a pop", 3, || {
        let ring = Arc::new(Ring::new(2));
        ring.push(1).unwrap();
        let (pushing, popping) = (ring.clone(), ring.clone());
        let pushing = thread::spawn(move || pushing.push(2).unwrap());
        let popping = thread::spawn(move || popping.pop());
        if !ring.is_ready() {
            // Then the first is gone, and the second was not there.
            assert_ne!(ring.pop(), Popped::Item(1));
        }
        pushing.join().unwrap();
        assert_ne!(popping.join().unwrap(), Popped::Empty);
    });
}
