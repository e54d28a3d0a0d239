//! Chunk pools: one bounded pool per endpoint, lent to its lanes, or a small one of a lane's own.
//!
//! A lane fills a chunk with one payload after the other and hands it back when
//! the receiver has consumed the last of them. Chunks are reused first in, first
//! out: one that the receiver has just read is still in its cache, and writing
//! to it at once would wait for that (measured: last in, first out doubles the
//! half round trip at 2 KiB; a turn of 256 KiB or 1 MiB instead of 2 costs a stream a tenth).
//!
//! A lane's own chunks are few. On AMD's processors their lines come back: the receiver writes to each that
//! it has read, so that the sender, which overwrites it, gets it from whoever wrote it last. That is
//! several times faster there than to write what the other side has but read (docs/performance.md).
//! Some are the receiver's for a time (`lane/given.rs`): taken one by one, and the first to be used again.

use std::{collections::VecDeque, ptr::NonNull};

use kestrel_core::prefetch::{self, LINE_BYTES};

use crate::region::{LANE_CHUNK_BYTES, LaneMemory, PoolMemory};

/// Payloads start at multiples of this. Units: bytes.
pub const GRAIN: usize = 64;

/// Where a grain is, from the start of the chunks. Units: bytes.
#[inline(always)]
pub(crate) const fn offset_of(grain: u32) -> usize {
    grain as usize * GRAIN
}

/// How much of the next payload's place is fetched ahead. Units: bytes.
const PREPARED_BYTES: usize = 16 * LINE_BYTES;

/// A lane has no chunks of its own if they were fewer.
const OWN_COUNT_MIN: usize = 4;

/// The free chunks of an endpoint, or of a lane.
pub struct ChunkPool {
    start: NonNull<u8>,
    chunk_bytes: usize,
    count: usize,
    /// Whether other lanes want some, too.
    is_shared: bool,
    free: VecDeque<u32>,
}

// SAFETY: the pool's memory is owned by the endpoint, or the lane, and touched by its engine alone;
// what peers can do to it harms only what is sent to them.
unsafe impl Send for ChunkPool {}

/// Memory of a chunk, for one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Where to write.
    pub start: *mut u8,
    /// Where that is in the pool, for the receiver. Units: [`GRAIN`].
    pub grain: u32,
}

/// A lane's part of the pool.
#[derive(Default)]
pub struct Loan {
    current: Option<Open>,
    /// Full chunks, oldest first, with the position of their last packet.
    full: VecDeque<(u32, u64)>,
}

#[derive(Clone, Copy)]
struct Open {
    chunk: u32,
    filled: usize,
    last: u64,
}

impl ChunkPool {
    /// All that `memory` has for chunks, of `chunk_bytes` each (a multiple of [`GRAIN`]).
    pub fn new(memory: &PoolMemory, chunk_bytes: usize) -> ChunkPool {
        ChunkPool::over(memory.as_ptr(), memory.chunk_bytes(), chunk_bytes, true)
    }

    /// The chunks of a lane's own; none if they were too large to have some.
    pub fn of_lane(memory: &LaneMemory, chunk_bytes: usize) -> Option<ChunkPool> {
        ChunkPool::fits_lane(chunk_bytes)
            .then(|| ChunkPool::over(memory.chunks(), LANE_CHUNK_BYTES, chunk_bytes, false))
    }

    /// Whether lanes can have chunks of their own that are so large.
    pub fn fits_lane(chunk_bytes: usize) -> bool {
        LANE_CHUNK_BYTES / chunk_bytes >= OWN_COUNT_MIN
    }

    fn over(start: NonNull<u8>, bytes: usize, chunk_bytes: usize, is_shared: bool) -> ChunkPool {
        assert!(chunk_bytes.is_multiple_of(GRAIN) && chunk_bytes > 0);
        let count = bytes / chunk_bytes;
        ChunkPool { start, chunk_bytes, count, is_shared, free: (0..count as u32).collect() }
    }

    /// The largest payload. Units: bytes.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Whether `loan` could place `length` bytes now.
    pub fn can_place(&self, loan: &Loan, length: usize) -> bool {
        let fits = |open: &Open| open.filled + length <= self.chunk_bytes;
        loan.current.as_ref().is_some_and(fits) || self.may_lend(loan)
    }

    /// Whether `loan` may have one chunk more: always if it has none, else as
    /// long as it has at most as many as are free, so that nobody takes all.
    fn may_lend(&self, loan: &Loan) -> bool {
        !self.free.is_empty() && (!self.is_shared || loan.full.len() <= self.free.len())
    }

    /// Asks the cache for the lines of the next payload, to write to them: as for the lane's own
    /// line, a trip that would otherwise come before the first byte leaves.
    #[inline(always)]
    pub fn prepare(&self, loan: &Loan) {
        if let Some(open) = loan.current
            && open.filled + PREPARED_BYTES <= self.chunk_bytes
        {
            let start = open.chunk as usize * self.chunk_bytes + open.filled;
            for line in (start..start + PREPARED_BYTES).step_by(LINE_BYTES) {
                prefetch::to_write(self.start.as_ptr().wrapping_add(line));
            }
        }
    }

    /// Memory for `length` bytes, at most a chunk, for the packet at `position`.
    pub fn place(&mut self, loan: &mut Loan, length: usize, position: u64) -> Option<Grant> {
        let needed = length.next_multiple_of(GRAIN);
        let mut open = match loan.current {
            Some(open) if open.filled + length <= self.chunk_bytes => open,
            _ if length <= self.chunk_bytes && self.may_lend(loan) => {
                let chunk = self.free.pop_front()?;
                if let Some(open) = loan.current.take() {
                    if loan.full.capacity() == 0 {
                        // All that a lane can have, so that a stream never makes it grow.
                        loan.full.reserve_exact(if self.is_shared {
                            self.count / 2 + 1
                        } else {
                            self.count
                        });
                    }
                    loan.full.push_back((open.chunk, open.last));
                }
                Open { chunk, filled: 0, last: position }
            }
            _ => return None,
        };
        let offset = open.chunk as usize * self.chunk_bytes + open.filled;
        open.filled = (open.filled + needed).min(self.chunk_bytes);
        open.last = position;
        loan.current = Some(open);
        debug_assert!(offset + length <= self.count * self.chunk_bytes);
        Some(self.grant(offset))
    }

    fn grant(&self, offset: usize) -> Grant {
        // SAFETY: a chunk's number came from the pool, so the offset is inside it.
        let start = unsafe { self.start.add(offset) }.as_ptr();
        Grant { start, grain: (offset / GRAIN) as u32 }
    }

    /// A whole chunk, apart from those that are lent: its number, and where it is.
    pub fn take_alone(&mut self) -> Option<(u32, Grant)> {
        let chunk = self.free.pop_front()?;
        Some((chunk, self.grant(chunk as usize * self.chunk_bytes)))
    }

    /// A chunk that [`Self::take_alone`] took comes back, and is the next to be used.
    pub fn put_back(&mut self, chunk: u32) {
        debug_assert!((chunk as usize) < self.count && !self.free.contains(&chunk));
        self.free.push_front(chunk);
    }

    /// Takes back what the receiver, whose head is `head`, has consumed.
    pub fn take_back(&mut self, loan: &mut Loan, head: u64) {
        while let Some(&(chunk, last)) = loan.full.front()
            && last < head
        {
            loan.full.pop_front();
            self.free.push_back(chunk);
        }
        if let Some(open) = &mut loan.current
            && open.last < head
        {
            open.filled = 0;
        }
    }

    /// Takes everything back: the lane is closed.
    pub fn take_all(&mut self, loan: &mut Loan) {
        self.free.extend(loan.full.drain(..).map(|(chunk, _)| chunk));
        self.free.extend(loan.current.take().map(|open| open.chunk));
    }
}

impl Loan {
    /// Whether any payload may still be unread.
    pub fn is_lent(&self) -> bool {
        !self.full.is_empty() || self.current.is_some_and(|open| open.filled > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(chunks: usize) -> (PoolMemory, ChunkPool) {
        let memory = PoolMemory::create(chunks * 4096).unwrap();
        let pool = ChunkPool::new(&memory, 4096);
        (memory, pool)
    }

    #[test]
    fn payloads_share_a_chunk_until_it_is_full() {
        let (_memory, mut pool) = pool(4);
        let mut loan = Loan::default();
        let first = pool.place(&mut loan, 100, 0).unwrap();
        let second = pool.place(&mut loan, 3000, 1).unwrap();
        assert_eq!(second.grain, first.grain + 2);
        let third = pool.place(&mut loan, 3000, 2).unwrap();
        assert_ne!(third.grain / 64, first.grain / 64);
        assert!(loan.is_lent());
    }

    #[test]
    fn a_chunk_comes_back_when_its_last_packet_is_consumed() {
        let (_memory, mut pool) = pool(2);
        let mut loan = Loan::default();
        pool.place(&mut loan, 4096, 0).unwrap();
        pool.place(&mut loan, 4096, 1).unwrap();
        assert!(!pool.can_place(&loan, 1));
        assert!(pool.place(&mut loan, 1, 2).is_none());
        pool.take_back(&mut loan, 1);
        assert!(pool.place(&mut loan, 4096, 2).is_some());
        pool.take_back(&mut loan, 3);
        assert!(!loan.is_lent());
    }

    #[test]
    fn a_lane_may_take_all_of_its_own() {
        let (memory, _) = LaneMemory::create().unwrap();
        let mut own = ChunkPool::of_lane(&memory, LANE_CHUNK_BYTES / 8).unwrap();
        let mut loan = Loan::default();
        for position in 0..8 {
            let grant = own.place(&mut loan, own.chunk_bytes(), position).unwrap();
            assert_eq!(
                grant.start,
                memory.chunks().as_ptr().wrapping_add(grant.grain as usize * GRAIN)
            );
        }
        assert!(!own.can_place(&loan, 1) && own.place(&mut loan, 1, 8).is_none());
        own.take_back(&mut loan, 1);
        assert!(own.place(&mut loan, 1, 8).is_some());
        assert!(
            ChunkPool::of_lane(&memory, LANE_CHUNK_BYTES / 2).is_none(),
            "too few to send ahead"
        );
    }

    #[test]
    fn no_lane_takes_more_than_it_leaves() {
        let (_memory, mut pool) = pool(8);
        let (mut greedy, mut modest) = (Loan::default(), Loan::default());
        let taken = (0..8).take_while(|n| pool.place(&mut greedy, 4096, *n).is_some()).count();
        assert!((4..8).contains(&taken), "{taken}");
        assert!(pool.place(&mut modest, 4096, 0).is_some());
        pool.take_all(&mut greedy);
        pool.take_all(&mut modest);
        assert_eq!(pool.free.len(), 8);
    }
}
