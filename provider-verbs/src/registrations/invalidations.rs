//! What the process has unmapped or discarded lately, in order: written by the monitor's thread, read by
//! whoever keeps registrations.
//!
//! The thread holds up whoever unmaps memory until it has taken the event, so it waits for nobody: the
//! ranges lie in a ring, and a reader that is further behind than that is long knows that it has missed
//! some.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Ranges that a reader may be behind.
const LENGTH: usize = 1024;

/// The first and the last byte's address of a range, and one more.
#[derive(Default)]
struct Slot([AtomicUsize; 2]);

/// The ranges that were invalidated last.
pub struct Invalidations {
    /// Events are being taken that are not all written yet.
    taking: AtomicBool,
    written: AtomicU64,
    slots: Box<[Slot]>,
}

/// What a reader has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// It has seen all of which the events were taken.
    Up,
    /// Events are being taken: nothing is sure yet.
    NotYet,
    /// It has missed some.
    Missed,
}

impl Default for Invalidations {
    fn default() -> Self {
        Invalidations {
            taking: AtomicBool::new(false),
            written: AtomicU64::new(0),
            slots: (0..LENGTH).map(|_| Slot::default()).collect(),
        }
    }
}

impl Invalidations {
    /// Before events are taken. There is one writer.
    pub fn begin(&self) {
        // I1: seen by whoever sees that an event was taken, which the kernel orders.
        self.taking.store(true, Ordering::SeqCst);
    }

    /// Writes one down.
    pub fn write(&self, range: &Range<usize>) {
        let number = self.written.load(Ordering::Relaxed);
        let Slot([start, end]) = &self.slots[number as usize % LENGTH];
        // I2: pairs with I3. Who reads what is written here sees that the count has come so far.
        fence(Ordering::Release);
        start.store(range.start, Ordering::Relaxed);
        end.store(range.end, Ordering::Relaxed);
        // I4: pairs with I5.
        self.written.store(number + 1, Ordering::Release);
    }

    /// All that was taken is written.
    pub fn end(&self) {
        // I6: pairs with I7.
        self.taking.store(false, Ordering::Release);
    }

    /// Where a reader begins that has nothing to lose.
    pub fn position(&self) -> u64 {
        // I5: pairs with I4.
        self.written.load(Ordering::Acquire)
    }

    /// Whether there is something that a reader at that position has not seen.
    pub fn is_behind(&self, position: u64) -> bool {
        self.written.load(Ordering::Relaxed) != position
    }

    /// Tells what was written since that position, which moves on.
    pub fn read(&self, position: &mut u64, mut tell: impl FnMut(Range<usize>)) -> Caught {
        // I7: pairs with I6.
        if self.taking.load(Ordering::Acquire) {
            return Caught::NotYet;
        }
        let end = self.position();
        while *position != end {
            let Slot([first, last]) = &self.slots[*position as usize % LENGTH];
            let range = first.load(Ordering::Relaxed)..last.load(Ordering::Relaxed);
            // I3: pairs with I2.
            fence(Ordering::Acquire);
            let written = self.written.load(Ordering::Relaxed);
            if written - *position >= LENGTH as u64 {
                *position = written;
                return Caught::Missed;
            }
            *position += 1;
            tell(range);
        }
        Caught::Up
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn all(from: &Invalidations, position: &mut u64) -> (Caught, Vec<Range<usize>>) {
        let mut told = Vec::new();
        let caught = from.read(position, |range| told.push(range));
        (caught, told)
    }

    #[test]
    fn ranges_are_told_once_and_not_before_all_are_written() {
        let ring = Invalidations::default();
        let mut position = ring.position();
        assert_eq!(all(&ring, &mut position), (Caught::Up, vec![]));
        ring.begin();
        ring.write(&(1..2));
        assert_eq!(all(&ring, &mut position), (Caught::NotYet, vec![]));
        ring.write(&(3..5));
        ring.end();
        assert!(ring.is_behind(position));
        assert_eq!(all(&ring, &mut position), (Caught::Up, vec![1..2, 3..5]));
        assert!(!ring.is_behind(position));
        assert_eq!(all(&ring, &mut position), (Caught::Up, vec![]));
    }

    #[test]
    fn who_is_too_far_behind_is_told_so_once() {
        let ring = Invalidations::default();
        let mut position = 0;
        (0..LENGTH - 1).for_each(|nth| ring.write(&(nth..nth + 1)));
        assert_eq!(all(&ring, &mut position).1.len(), LENGTH - 1);
        (0..LENGTH).for_each(|nth| ring.write(&(nth..nth + 1)));
        assert_eq!(all(&ring, &mut position), (Caught::Missed, vec![]));
        assert_eq!(all(&ring, &mut position), (Caught::Up, vec![]));
    }

    /// No reader sees half of a range, or one that was never written.
    #[test]
    fn what_is_overwritten_meanwhile_is_never_told() {
        const COUNT: usize = 200_000;
        let ring = Invalidations::default();
        thread::scope(|scope| {
            scope.spawn(|| (0..COUNT).for_each(|nth| ring.write(&(nth..nth + 7))));
            let (mut position, mut told) = (0, 0);
            while position < COUNT as u64 {
                let (caught, ranges) = all(&ring, &mut position);
                assert_ne!(caught, Caught::NotYet);
                for range in ranges {
                    assert_eq!(range.len(), 7);
                    assert!(told <= range.start, "in order");
                    told = range.start + 1;
                }
            }
        });
    }
}
