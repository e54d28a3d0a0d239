//! The two ends of a lane in shared memory: how a packet lies in lines and
//! chunks, and what is checked of one that a peer wrote.
//!
//! A packet's content (its words, then its payload) lies in the first line if it
//! fits; a longer payload in a chunk, of the sender's pool or of the lane, and the line says where.
//! Where no chunk is left, continuation lines carry it in small pieces. They are
//! no place for more: the receiver polls the line beside, and its cache takes
//! neighbours along, so that each costs the sender a trip (docs/performance.md).
//!
//! - [`send`], [`receive`]: the ends.
//! - [`given`]: chunks that go to and fro between two of them.

mod given;
mod receive;
mod send;

use std::ptr::NonNull;

use kestrel_core::{
    ring::{
        catalogue::Visit,
        claims::Claims,
        filling::Filling,
        lane::{CONTINUATION_BYTES, INLINE_WORDS, LaneControl, Line},
        leases::Leases,
    },
    wire::{CORE_FLAGS, Head},
};

pub use crate::lane_error::LaneError;
pub(crate) use given::GIVEN_BYTES;
#[cfg(test)]
pub(crate) use receive::LOOKS;
pub use receive::ReceiveLane;
pub use send::{Means, SendLane};

use crate::{chunk::offset_of, region::LaneMemory};

/// Lines in a lane.
pub const LINES: usize = 128;
/// The sender says here what it is at in the receiver's memory. Units: bytes.
const VISIT_OFFSET: usize = 384;
/// The sender says here what is filled. Units: bytes.
const FILLING_OFFSET: usize = 512;
/// Claims of what is copied together start here: both sides write there. Units: bytes.
const CLAIMS_OFFSET: usize = 1024;
/// Leases start here: both sides write there, too. Units: bytes.
const LEASES_OFFSET: usize = 2048;
/// The lines start here; what is before and not named above is the receiver's. Units: bytes.
const LINES_OFFSET: usize = 4096;
/// Continuation lines that one payload takes at most: they become free however late the head is published.
const SPILL_LINES: usize = 80;
/// The longest payload in continuation lines: what is injected is not longer. Units: bytes.
pub(crate) const SPILL_MAX: usize = SPILL_LINES * CONTINUATION_BYTES;
/// How much of a longer one they carry at a time. Units: bytes.
const SPILL_PIECE: usize = 7 * CONTINUATION_BYTES;
/// How far ahead of a stream lines are fetched.
const PREFETCH_AHEAD: u64 = 4;
/// One line is kept free for the packet that says goodbye.
const RESERVED_LINES: u64 = 1;

/// The payload lies in continuation lines.
const SPILLED: u8 = 0x20;
/// The payload lies in a chunk: the last inline word says where.
const CHUNKED: u8 = 0x40;
/// The chunk was still being filled when the packet was published.
const FILLED_IN_SIGHT: u8 = 0x80;
/// The inline word that says where.
const CHUNK_WORD: usize = INLINE_WORDS - 1;

// Core and the lane share the byte of flags.
const _: () = assert!((SPILLED | CHUNKED | FILLED_IN_SIGHT) & CORE_FLAGS == 0);
const _: () = assert!(LINES_OFFSET + LINES * size_of::<Line>() == crate::region::LANE_HEAD_BYTES);
const _: () = assert!(size_of::<LaneControl>() <= VISIT_OFFSET);
const _: () = assert!(VISIT_OFFSET + size_of::<Visit>() <= FILLING_OFFSET);
const _: () = assert!(FILLING_OFFSET + size_of::<Filling>() <= CLAIMS_OFFSET);
const _: () = assert!(CLAIMS_OFFSET + size_of::<Claims>() <= LEASES_OFFSET);
const _: () = assert!(LEASES_OFFSET + size_of::<Leases>() <= LINES_OFFSET);
const _: () = assert!(SPILL_LINES + 1 + RESERVED_LINES as usize + LINES / 4 <= LINES);

/// Whether the payload of a packet with that head lies in a chunk.
#[inline(always)]
fn lies_in_chunk(head: Head) -> bool {
    head.flags & CHUNKED != 0
}

/// Where a payload lies that is in a chunk: what that word says.
#[derive(Clone, Copy, Debug)]
struct ChunkPlace {
    /// From the start of the chunks. Units: [`crate::chunk::GRAIN`].
    grain: u32,
    /// Units: bytes.
    length: usize,
    /// Whose chunk it is.
    owner: Owner,
}

/// What a lane's own chunks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnChunks {
    /// Nothing: there are none.
    None,
    /// What two sides say in turn, in chunks that go to and fro. The rest goes through the pool.
    Turns,
    /// All that takes a chunk. The receiver writes to each line that it has read.
    All,
}

/// Whose chunk a payload lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The sender's pool's.
    Pool,
    /// The lane's own.
    Lane,
    /// The lane's own as well, and the receiver's from then on.
    Given,
    /// The receiver's, who gave it: of the lane the other way.
    Returned,
}

impl ChunkPlace {
    /// No payload is so long.
    const OWNER_SHIFT: u32 = 30;
    const LENGTH: u32 = (1 << ChunkPlace::OWNER_SHIFT) - 1;

    fn to_word(self) -> u64 {
        let owner = (self.owner as u32) << ChunkPlace::OWNER_SHIFT;
        u64::from(self.grain) << 32 | u64::from(self.length as u32 | owner)
    }

    /// From the start of the chunks. Units: bytes.
    fn offset(self) -> usize {
        offset_of(self.grain)
    }

    fn from_word(word: u64) -> ChunkPlace {
        let (grain, low) = ((word >> 32) as u32, word as u32);
        const OWNERS: [Owner; 4] = [Owner::Pool, Owner::Lane, Owner::Given, Owner::Returned];
        let owner = OWNERS[(low >> ChunkPlace::OWNER_SHIFT) as usize];
        ChunkPlace { grain, length: (low & ChunkPlace::LENGTH) as usize, owner }
    }
}

/// The ends of a lane's memory.
fn parts(memory: &LaneMemory) -> (NonNull<Line>, NonNull<LaneControl>) {
    let start = memory.as_ptr();
    // SAFETY: the mapping is LANE_BYTES long, which the constants above add up to.
    let lines = unsafe { start.add(LINES_OFFSET) };
    (lines.cast(), start.cast())
}

/// Where the sender says what is filled.
pub(crate) fn filling(memory: &LaneMemory) -> &Filling {
    // SAFETY: the mapping is LANE_BYTES long, aligned to a page and lives as long as `memory`; it
    // holds atomics alone, so that the peer may write there at any time.
    unsafe { memory.as_ptr().add(FILLING_OFFSET).cast().as_ref() }
}

/// Where both ends claim what they copy together.
fn claims(memory: &LaneMemory) -> &Claims {
    // SAFETY: the mapping is LANE_BYTES long, aligned to a page and lives as long as `memory`;
    // claims are atomics alone, so that the peer may write there at any time.
    unsafe { memory.as_ptr().add(CLAIMS_OFFSET).cast().as_ref() }
}

/// What the receiver lends of its memory to the sender.
pub(crate) fn leases(memory: &LaneMemory) -> &Leases {
    // SAFETY: as in `claims`.
    unsafe { memory.as_ptr().add(LEASES_OFFSET).cast().as_ref() }
}

/// What the sender is at of what the receiver lets all of its guests reach.
pub(crate) fn visit(memory: &LaneMemory) -> &Visit {
    // SAFETY: as in `claims`.
    unsafe { memory.as_ptr().add(VISIT_OFFSET).cast().as_ref() }
}
