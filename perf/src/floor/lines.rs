//! One line bouncing, and a bare ring of slots of one line each.

use super::region::{LINE_BYTES, SLOT_COUNT};
use super::{Floor, FloorError, spin_until};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The consumer says how far it is once in so many slots.
const SLOTS_PER_REPORT: u64 = 256;

impl Floor {
    /// Nanoseconds for one line to reach the other core.
    pub(super) fn bounce(&mut self, iterations: u64) -> Result<f64, FloorError> {
        if self.side == 0 {
            self.region.bounce().store(0, Ordering::Relaxed);
        }
        self.meet()?;
        let line = self.region.bounce();
        let warmup = iterations / 8 + 16;
        let mut start = Instant::now();
        for i in 0..warmup + iterations {
            if i == warmup {
                start = Instant::now();
            }
            let (await_value, next_value) = (2 * i + 1, 2 * i + 2);
            if self.side == 0 {
                // B1: pairs with B2. B4: pairs with B3.
                line.store(await_value, Ordering::Release);
                spin_until(|| line.load(Ordering::Acquire) == next_value)?;
            } else {
                // B2: pairs with B1. B3: pairs with B4.
                spin_until(|| line.load(Ordering::Acquire) == await_value)?;
                line.store(next_value, Ordering::Release);
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / (2 * iterations) as f64)
    }

    /// Nanoseconds a message of 8 bytes through a ring of 64-byte slots.
    pub(super) fn slots(&mut self, messages: u64) -> Result<f64, FloorError> {
        if self.side == 0 {
            self.region.consumed(0).store(0, Ordering::Relaxed);
            (0..SLOT_COUNT).for_each(|index| self.region.slot(index).store(0, Ordering::Relaxed));
        }
        self.meet()?;
        let start = Instant::now();
        if self.side == 0 {
            self.fill_slots(messages)?
        } else {
            self.drain_slots(messages)?
        };
        Ok(start.elapsed().as_nanos() as f64 / messages as f64)
    }

    fn fill_slots(&self, messages: u64) -> Result<(), FloorError> {
        let consumed = self.region.consumed(0);
        let mut limit = SLOT_COUNT as u64;
        for i in 0..messages {
            if i == limit {
                spin_until(|| {
                    // S3: pairs with S4.
                    limit = consumed.load(Ordering::Acquire) + SLOT_COUNT as u64;
                    limit > i
                })?;
            }
            let slot = self.region.slot(i as usize);
            // SAFETY: the payload word is the second of the slot's own line,
            // written by this side only, before it publishes the slot.
            unsafe { slot.as_ptr().add(1).write_volatile(i) };
            // S1: pairs with S2.
            slot.store(i + 1, Ordering::Release);
        }
        // S3: pairs with S4.
        spin_until(|| consumed.load(Ordering::Acquire) == messages)
    }

    fn drain_slots(&self, messages: u64) -> Result<(), FloorError> {
        const { assert!(LINE_BYTES >= 2 * size_of::<u64>()) };
        for i in 0..messages {
            let slot = self.region.slot(i as usize);
            // S2: pairs with S1.
            spin_until(|| slot.load(Ordering::Acquire) == i + 1)?;
            // SAFETY: as in `fill_slots`; the slot was published (S2).
            let payload = unsafe { slot.as_ptr().add(1).read_volatile() };
            debug_assert_eq!(payload, i);
            if (i + 1) % SLOTS_PER_REPORT == 0 || i + 1 == messages {
                // S4: pairs with S3.
                self.region.consumed(0).store(i + 1, Ordering::Release);
            }
        }
        Ok(())
    }
}
