//! Chunks that go to and fro: given with a message, and back with an answer.
//!
//! Where two sides speak in turn, each with chunks of its own, every line crosses twice for each
//! message: with it, and back to be overwritten. A receiver that answers in the chunk it has just
//! read overwrites what lies in its cache, and the sender gets the chunk back with what it waits for
//! (docs/performance.md, docs/protocol.md).
//!
//! Invariants:
//! 1. A chunk that is given is its receiver's as soon as the packet that gave it is consumed, and its
//!    sender's again as soon as that has consumed a packet which lies in it. No side writes to it
//!    meanwhile but the one whose it is.
//! 2. A sender gives chunks of [`GIVEN_BYTES`] at least, however short the packet, and
//!    [`GIVEN_MAX`] at a time. It needs none of them back: a receiver that never answers keeps them.
//! 3. Each side knows for itself what is given, and believes of the other's word only what fits.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{
    chunk::{ChunkPool, Grant},
    region::{LANE_CHUNK_BYTES, LANE_CHUNK_BYTES_FIRST, LaneMemory},
};

/// How long an answer in a given chunk may be. Units: bytes.
pub(crate) const GIVEN_BYTES: usize = 32 << 10;
/// How many chunks of a lane may be the receiver's at a time.
pub(super) const GIVEN_MAX: usize = 2;

const _: () = assert!(LANE_CHUNK_BYTES_FIRST == GIVEN_MAX * GIVEN_BYTES);
const _: () = assert!(LANE_CHUNK_BYTES / GIVEN_BYTES <= u32::BITS as usize);

/// The sender's side: the lane's memory, and which of its chunks are the receiver's.
///
/// Shared with this process's end of the lane the other way, where they come back. Both ends have
/// one owner, so nothing here is a race.
pub(super) struct Giver {
    memory: LaneMemory,
    /// How long a chunk is; none if no chunks are given. Units: bytes.
    chunk_bytes: Option<usize>,
    /// Bit `n` is that of chunk `n`.
    away: AtomicU32,
    /// Those that have come back, and are not in the pool again.
    back: AtomicU32,
}

impl Giver {
    /// Of a lane with chunks of its own in `pool`, or with none.
    pub(super) fn new(memory: LaneMemory, pool: Option<&ChunkPool>) -> Giver {
        let chunk_bytes = pool.map(ChunkPool::chunk_bytes).filter(|&bytes| bytes >= GIVEN_BYTES);
        Giver { memory, chunk_bytes, away: AtomicU32::new(0), back: AtomicU32::new(0) }
    }

    /// The lane's memory.
    #[inline(always)]
    pub(super) fn memory(&self) -> &LaneMemory {
        &self.memory
    }

    /// Whether its chunks are given at all.
    #[inline(always)]
    pub(super) fn gives(&self) -> bool {
        self.chunk_bytes.is_some()
    }

    /// Whether chunk number `chunk` is the receiver's.
    pub(super) fn has_given(&self, chunk: usize) -> bool {
        self.gives() && self.away.load(Relaxed) & 1 << chunk != 0
    }

    /// Takes a chunk of `pool` to give it away, unless there is none to give.
    pub(super) fn give(&self, pool: &mut ChunkPool) -> Option<Grant> {
        let away = self.away.load(Relaxed);
        if !self.gives() || away.count_ones() as usize >= GIVEN_MAX {
            return None;
        }
        let (chunk, grant) = pool.take_alone()?;
        self.away.store(away | 1 << chunk, Relaxed);
        Some(grant)
    }

    /// Puts those that have come back into `pool`, where they are the next to be taken.
    #[inline(always)]
    pub(super) fn collect(&self, pool: &mut ChunkPool) {
        let mut back = self.back.load(Relaxed);
        if back == 0 {
            return;
        }
        while back != 0 {
            pool.put_back(back.trailing_zeros());
            back &= back - 1;
        }
        self.back.store(0, Relaxed);
    }

    /// Whether the receiver may have answered there.
    pub(super) fn is_away(&self, offset: usize, length: usize) -> bool {
        self.chunk_away(offset, length).is_some()
    }

    fn chunk_away(&self, offset: usize, length: usize) -> Option<u32> {
        let chunk_bytes = self.chunk_bytes?;
        let chunk = (offset / chunk_bytes) as u32;
        let fits = offset.is_multiple_of(chunk_bytes)
            && offset < LANE_CHUNK_BYTES
            && (1..=GIVEN_BYTES).contains(&length);
        (fits && self.away.load(Relaxed) & 1 << chunk != 0).then_some(chunk)
    }

    /// What came back there has been read.
    pub(super) fn take_back(&self, offset: usize, length: usize) {
        let Some(chunk) = self.chunk_away(offset, length) else { return };
        self.away.store(self.away.load(Relaxed) & !(1 << chunk), Relaxed);
        self.back.store(self.back.load(Relaxed) | 1 << chunk, Relaxed);
    }
}

/// The receiver's side: the chunks that were given to it, oldest first.
#[derive(Default)]
pub(super) struct Kept {
    grains: [Cell<u32>; GIVEN_MAX],
    count: Cell<usize>,
}

impl Kept {
    /// Whether there can be one more.
    pub(super) fn has_room(&self) -> bool {
        self.count.get() < GIVEN_MAX
    }

    /// Keeps the chunk at `grain`. There is room for it.
    pub(super) fn keep(&self, grain: u32) {
        self.grains[self.count.get()].set(grain);
        self.count.set(self.count.get() + 1);
    }

    /// The grains of all.
    pub(super) fn grains(&self) -> impl Iterator<Item = u32> + '_ {
        self.grains[..self.count.get()].iter().map(Cell::get)
    }

    /// The grain of the chunk that was kept longest.
    pub(super) fn take(&self) -> Option<u32> {
        let left = self.count.get().checked_sub(1)?;
        let grain = self.grains[0].get();
        for index in 0..left {
            self.grains[index].set(self.grains[index + 1].get());
        }
        self.count.set(left);
        Some(grain)
    }
}
