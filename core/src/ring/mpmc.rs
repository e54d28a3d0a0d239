//! A bounded ring for any number of producers and consumers, in which nobody
//! waits for anybody.
//!
//! The scheme is D. Vyukov's bounded queue (2010; crossbeam's `array_queue.rs` is
//! a child of it, too): each slot has a stamp that says whose turn it is. The
//! difference to crossbeam's: a consumer that meets a producer who has taken a
//! slot and not filled it yet (put off its core, perhaps) does not spin until it
//! has; it is told so, and goes on with something else.
//!
//! Invariants:
//! 1. Position `p` lives in slot `p % slots`. Its stamp is `p` when the slot is
//!    free for `p`, `p + 1` when it holds what was pushed at `p`, and
//!    `p + slots` when that was taken.
//! 2. Only who moved `tail` from `p` to `p + 1` writes the slot between stamps `p`
//!    and `p + 1`; only who moved `head` so reads it between `p + 1` and
//!    `p + slots`.
//! 3. A push that has returned can be popped, once all pushes at positions before
//!    it have returned.

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::primitive::{AtomicUsize, Ordering, UnsafeCell};

/// The ring. Its order is the order in which pushes took their positions.
pub struct Ring<T> {
    slots: Box<[Slot<T>]>,
    /// Where the next pop looks.
    head: CachePadded<AtomicUsize>,
    /// Where the next push goes.
    tail: CachePadded<AtomicUsize>,
}

struct Slot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// What is at the head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popped<T> {
    /// The oldest item.
    Item(T),
    /// Nothing is there.
    Empty,
    /// The oldest item is still being pushed, and what comes after it must wait.
    Pending,
}

// SAFETY: items are handed from one thread to another (T: Send) and never shared;
// invariant 2 keeps them apart.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// A ring of at least `size` slots; a power of two, and 2 at least.
    pub fn new(size: usize) -> Self {
        let slot = |position| Slot {
            stamp: AtomicUsize::new(position),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Ring {
            slots: (0..size.max(2).next_power_of_two()).map(slot).collect(),
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    /// Adds `item`, or gives it back if there is no free slot.
    #[inline(always)]
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(tail);
            // A5: pairs with R5 in `pop`: the slot's last item was read.
            let turn = slot.stamp.load(Ordering::Acquire).wrapping_sub(tail) as isize;
            if turn < 0 {
                return Err(item);
            }
            if turn > 0 {
                tail = self.tail.load(Ordering::Relaxed);
                continue;
            }
            let next = tail.wrapping_add(1);
            match self.tail.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    // SAFETY: the slot is ours until we stamp it (invariant 2).
                    slot.value.with_mut(|value| unsafe { (*value).write(item) });
                    // R6: pairs with A6 in `pop` and `is_ready`.
                    slot.stamp.store(next, Ordering::Release);
                    return Ok(());
                }
                Err(seen) => tail = seen,
            }
        }
    }

    /// Takes the oldest item.
    #[inline(always)]
    pub fn pop(&self) -> Popped<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (slot, next) = (self.slot(head), head.wrapping_add(1));
            // A6: pairs with R6 in `push`.
            let turn = slot.stamp.load(Ordering::Acquire).wrapping_sub(next) as isize;
            if turn < 0 {
                let empty = self.tail.load(Ordering::Relaxed) == head;
                return if empty { Popped::Empty } else { Popped::Pending };
            }
            if turn > 0 {
                head = self.head.load(Ordering::Relaxed);
                continue;
            }
            match self.head.compare_exchange_weak(head, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    // SAFETY: the slot is ours until we stamp it, and what is in it
                    // was written before A6 (invariant 2).
                    let item = slot.value.with(|value| unsafe { (*value).assume_init_read() });
                    // R5: pairs with A5 in `push`.
                    slot.stamp.store(head.wrapping_add(self.slots.len()), Ordering::Release);
                    return Popped::Item(item);
                }
                Err(seen) => head = seen,
            }
        }
    }

    /// Whether a pop would find an item.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        loop {
            let head = self.head.load(Ordering::Relaxed);
            // A6: pairs with R6 in `push`.
            let stamp = self.slot(head).stamp.load(Ordering::Acquire);
            let turn = stamp.wrapping_sub(head.wrapping_add(1)) as isize;
            // More: somebody took it since, and we see the new head next time.
            if turn <= 0 {
                return turn == 0;
            }
        }
    }

    /// How many items it takes in all.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// How many more items it takes, as far as can be seen from here.
    pub fn room(&self) -> usize {
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        self.slots.len().saturating_sub(tail.wrapping_sub(head))
    }

    /// Whether nothing is in it, nor being pushed.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while let Popped::Item(_) = self.pop() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_order_and_a_full_ring_gives_back() {
        let ring = Ring::new(3);
        for lap in 0..10 {
            assert!(ring.is_empty() && !ring.is_ready());
            for n in 0..4 {
                assert_eq!(ring.push(lap * 4 + n), Ok(()));
            }
            assert_eq!(ring.push(99), Err(99));
            assert!(!ring.is_empty() && ring.is_ready());
            for n in 0..4 {
                assert_eq!(ring.pop(), Popped::Item(lap * 4 + n));
            }
            assert_eq!(ring.pop(), Popped::Empty);
        }
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let item = std::sync::Arc::new(());
        let ring = Ring::new(4);
        for _ in 0..3 {
            ring.push(item.clone()).unwrap();
        }
        drop(ring.pop());
        assert_eq!(std::sync::Arc::strong_count(&item), 3);
        drop(ring);
        assert_eq!(std::sync::Arc::strong_count(&item), 1);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        const EACH: u64 = 20_000;
        let ring = Ring::new(8);
        let taken = std::thread::scope(|scope| {
            for producer in 0..2 {
                let ring = &ring;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while ring.push((producer, n)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 2];
            while next.iter().sum::<u64>() < 2 * EACH {
                match ring.pop() {
                    Popped::Item((producer, n)) => {
                        assert_eq!(n, next[producer]);
                        next[producer] += 1;
                    }
                    Popped::Empty | Popped::Pending => std::thread::yield_now(),
                }
            }
            next
        });
        assert_eq!(taken, [EACH; 2]);
    }
}
