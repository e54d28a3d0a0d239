//! Loom models of the bounded ring for many producers and consumers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_mpmc`
#![cfg(loom)]

mod models;

use kestrel_core::ring::mpmc::{Popped, Ring};
use loom::{sync::Arc, thread};
use models::{Turns, explore};

/// A ring of boxed items, so that one taken twice, or torn, is noticed.
struct Boxes {
    ring: Ring<Box<u32>>,
    turns: Turns,
}

impl Boxes {
    /// A ring of `size` slots whose next push goes to the last of them.
    fn new(size: usize) -> Arc<Boxes> {
        let ring = Ring::new(size);
        for _ in 1..size {
            ring.push(Box::new(0)).unwrap();
            ring.pop();
        }
        Arc::new(Boxes { ring, turns: Turns::new() })
    }

    /// Whether there was a free slot.
    fn push(&self, n: u32) -> bool {
        self.turns.take();
        self.ring.push(Box::new(n)).is_ok()
    }

    fn pop(&self) -> Popped<u32> {
        self.turns.take();
        match self.ring.pop() {
            Popped::Item(item) => Popped::Item(*item),
            Popped::Empty => Popped::Empty,
            Popped::Pending => Popped::Pending,
        }
    }

    /// What a few pops find.
    fn pops(&self, count: usize) -> Vec<u32> {
        let item = |_| match self.pop() {
            Popped::Item(item) => Some(item),
            Popped::Empty | Popped::Pending => None,
        };
        (0..count).filter_map(item).collect()
    }
}

#[test]
fn two_producers_keep_their_order_around_the_end() {
    explore("two producers, one consumer", 2, || {
        let ring = Boxes::new(2);
        assert!(ring.push(1));
        let start = |items: &'static [u32]| {
            let ring = ring.clone();
            let push = move |n: &&u32| ring.push(**n);
            thread::spawn(move || items.iter().filter(push).copied().collect::<Vec<_>>())
        };
        let producers = [start(&[10, 11]), start(&[20])];
        let mut taken = ring.pops(2);
        let accepted = producers.map(|producer| producer.join().unwrap());
        taken.extend(ring.pops(3));
        assert!(ring.ring.is_empty());
        assert_eq!(taken.remove(0), 1);
        taken.sort_by_key(|n| n / 10);
        assert_eq!(taken, accepted.concat());
    });
}

#[test]
fn two_consumers_take_each_item_once() {
    explore("one producer, two consumers", 2, || {
        let ring = Boxes::new(2);
        assert!(ring.push(1));
        let start = |count| {
            let ring = ring.clone();
            thread::spawn(move || ring.pops(count))
        };
        let consumers = [start(2), start(1)];
        let pushed = 1 + [2, 3].into_iter().filter(|&n| ring.push(n)).count();
        let taken = consumers.map(|consumer| consumer.join().unwrap());
        assert!(taken.iter().all(|taken| taken.is_sorted()), "out of order: {taken:?}");
        let mut all = taken.concat();
        all.extend(ring.pops(3));
        assert_eq!(all.len(), pushed, "lost, or taken twice: {all:?}");
        assert_eq!(all.iter().filter(|&&n| n == 1).count(), 1);
        assert!(ring.ring.is_empty());
    });
}

#[test]
fn a_push_under_way_hides_what_comes_after_it_and_nothing_else() {
    explore("a push under way", 4, || {
        let ring = Boxes::new(4);
        let other = ring.clone();
        let pushing = thread::spawn(move || assert!(other.push(1)));
        assert!(ring.push(2));
        // Ours is in: it is first, or waits behind the other.
        let first = ring.pop();
        assert_ne!(first, Popped::Empty);
        pushing.join().unwrap();
        let mut taken = ring.pops(2);
        if let Popped::Item(n) = first {
            taken.push(n);
        }
        taken.sort();
        assert_eq!(taken, [1, 2]);
        assert!(ring.ring.is_empty());
    });
}

#[test]
fn a_ring_that_was_not_ready_had_nothing() {
    explore("ready beside a push and a pop", 3, || {
        let ring = Boxes::new(2);
        assert!(ring.push(1));
        let (pushing, popping) = (ring.clone(), ring.clone());
        let pushing = thread::spawn(move || assert!(pushing.push(2)));
        let popping = thread::spawn(move || popping.pop());
        ring.turns.take();
        if !ring.ring.is_ready() {
            // Then the first is gone, and the second was not there.
            assert_ne!(ring.pop(), Popped::Item(1));
        }
        pushing.join().unwrap();
        assert_ne!(popping.join().unwrap(), Popped::Empty);
    });
}
