//! A pipelined copy: one side fills shared chunks while the other empties them.

use super::region::{CHUNK_BYTES_MAX, CHUNK_COUNT_MAX};
use super::{Floor, FloorError, Pattern, Plan, spin_until};
use kestrel_shm::copy::Copier;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// One side's place in one direction of the chunk ring.
struct Lane {
    direction: usize,
    chunk_bytes: usize,
    /// A power of two.
    chunk_count: u64,
    copier: Copier,
    hands_back: bool,
    next: u64,
    /// The producer may fill chunks below this index.
    limit: u64,
}

impl Floor {
    /// Nanoseconds a message, one way.
    pub(super) fn copies(
        &mut self,
        pattern: Pattern,
        size: usize,
        messages: u64,
        plan: &Plan,
    ) -> Result<f64, FloorError> {
        let (bytes, count) = (plan.chunk_bytes, plan.chunk_count);
        if bytes == 0
            || bytes > CHUNK_BYTES_MAX
            || count > CHUNK_COUNT_MAX
            || !count.is_power_of_two()
        {
            return Err(FloorError::BadPlan { bytes, count });
        }
        if self.side == 0 {
            for direction in 0..2 {
                self.region.consumed(direction).store(0, Ordering::Relaxed);
                (0..count).for_each(|index| {
                    self.region.flag(direction, index).store(0, Ordering::Relaxed)
                });
            }
        }
        let copier = plan.copier()?;
        let lane = |direction| Lane {
            direction,
            chunk_bytes: bytes,
            chunk_count: count as u64,
            copier,
            hands_back: plan.hands_back,
            next: 0,
            limit: count as u64,
        };
        let (mut out, mut back) = (lane(self.side), lane(1 - self.side));
        self.meet()?;
        let warmup = messages.div_ceil(8);
        let mut start = Instant::now();
        for i in 0..warmup + messages {
            if i == warmup {
                start = Instant::now();
            }
            match (self.side, pattern) {
                (0, Pattern::Stream) => self.fill(&mut out, size)?,
                (0, Pattern::PingPong) => {
                    self.fill(&mut out, size)?;
                    self.empty(&mut back, size)?;
                }
                (_, Pattern::Stream) => self.empty(&mut back, size)?,
                (_, Pattern::PingPong) => {
                    self.empty(&mut back, size)?;
                    self.fill(&mut out, size)?;
                }
            }
        }
        if self.side == 0 {
            let consumed = self.region.consumed(0);
            // K3: pairs with K4.
            spin_until(|| consumed.load(Ordering::Acquire) == out.next)?;
        }
        let one_way = if pattern == Pattern::PingPong { 2 * messages } else { messages };
        let elapsed_ns = start.elapsed().as_nanos() as f64;
        // Nobody resets the lane while the other still looks at it.
        self.meet()?;
        Ok(elapsed_ns / one_way as f64)
    }

    #[inline(always)]
    fn fill(&mut self, lane: &mut Lane, size: usize) -> Result<(), FloorError> {
        let chunks = self.region.chunks(lane.direction);
        let consumed = self.region.consumed(lane.direction);
        let mut done = 0;
        while done < size {
            if lane.next == lane.limit {
                spin_until(|| {
                    // K3: pairs with K4.
                    lane.limit = consumed.load(Ordering::Acquire) + lane.chunk_count;
                    lane.limit > lane.next
                })?;
            }
            let index = (lane.next & (lane.chunk_count - 1)) as usize;
            let piece = lane.chunk_bytes.min(size - done);
            // SAFETY: `index < chunk_count` and `copies` checked that count and
            // size of the chunks fit; the source holds MESSAGE_BYTES_MAX bytes,
            // which `run` checked `size` against; the copier checked the CPU.
            unsafe {
                let chunk = chunks.add(index * lane.chunk_bytes);
                lane.copier.copy_in(chunk, self.source.at(done), piece);
            }
            lane.next += 1;
            // K1: pairs with K2.
            self.region.flag(lane.direction, index).store(lane.next, Ordering::Release);
            done += piece;
        }
        Ok(())
    }

    #[inline(always)]
    fn empty(&mut self, lane: &mut Lane, size: usize) -> Result<(), FloorError> {
        let chunks = self.region.chunks(lane.direction);
        let mut done = 0;
        while done < size {
            let index = (lane.next & (lane.chunk_count - 1)) as usize;
            let piece = lane.chunk_bytes.min(size - done);
            lane.next += 1;
            let flag = self.region.flag(lane.direction, index);
            // K2: pairs with K1.
            spin_until(|| flag.load(Ordering::Acquire) == lane.next)?;
            // SAFETY: as in `fill`, with the destination instead of the source.
            unsafe {
                let (chunk, to) =
                    (chunks.add(index * lane.chunk_bytes), self.destination.at_mut(done));
                if lane.hands_back {
                    lane.copier.copy_out_and_back(to, chunk, piece);
                } else {
                    lane.copier.copy_out(to, chunk, piece);
                }
            }
            // K4: pairs with K3.
            self.region.consumed(lane.direction).store(lane.next, Ordering::Release);
            done += piece;
        }
        Ok(())
    }
}
