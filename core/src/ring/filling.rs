//! Filling: a packet that is published while its payload is still being copied to its place.
//!
//! A receiver that waits spends some time on a packet before it copies the payload out: it sees the
//! line, matches the tag, finds the buffer. So a sender publishes the packet first, copies the
//! payload in then, in some parts, and says when each is there. The receiver copies one out
//! while the sender copies the next in, at a fraction of what packets of their size cost.
//!
//! Invariants:
//! 1. A word for each part holds the position after the last packet whose part is in its place.
//!    Only the sender writes it, positions only grow, and a packet's parts are filled before the
//!    next packet is published. So a word beyond a packet's position stays beyond it.
//! 2. The receiver reads a part only after it has seen that, with acquire order, and believes the
//!    sender no more than it believes a packet: what a liar calls filled lies in the liar's memory.
//! 3. The sender may be stopped, or killed, in between. A receiver does not wait for it: it looks
//!    at the packet again later, or learns that its sender is gone.
//!
//! `core/tests/loom_filling.rs` has the model.

use crate::primitive::{AtomicU64, Ordering};

/// Parts of a payload: two at least, and more of a long one.
const PARTS_MIN: usize = 2;
const PARTS_MAX: usize = 8;
/// How long parts are of which there are neither fewer nor more. Units: bytes.
const PART_BYTES: usize = 8 << 10;
/// Parts begin at multiples of this, so that no line is in two. Units: bytes.
const GRAIN: usize = 64;

/// Where a sender says what is filled: memory that only it writes, all zero at first.
#[repr(C)]
#[derive(Default)]
pub struct Filling {
    parts: [Part; PARTS_MAX],
}

/// A line of its own: the receiver polls that of the part that it waits for.
#[repr(C, align(64))]
#[derive(Default)]
struct Part {
    after: AtomicU64,
}

/// Where the parts of `length` bytes end.
#[inline(always)]
pub fn ends(length: usize) -> impl Iterator<Item = usize> {
    let count = (length / PART_BYTES).clamp(PARTS_MIN, PARTS_MAX);
    let part = length.div_ceil(count).next_multiple_of(GRAIN);
    (1..=count).map(move |parts| (parts * part).min(length))
}

impl Filling {
    /// Part `index` of the packet at `position` is in its place.
    #[inline(always)]
    pub fn fill(&self, index: usize, position: u64) {
        // R9: pairs with A9 in `filled`.
        self.parts[index].after.store(position + 1, Ordering::Release);
    }

    /// Whether all of the packet at `position`, of `length` bytes, is in its place.
    pub fn is_filled(&self, position: u64, length: usize) -> bool {
        self.filled(position, length) == length
    }

    /// How many of the `length` bytes of the packet at `position` are in their place.
    #[inline(always)]
    pub fn filled(&self, position: u64, length: usize) -> usize {
        let mut filled = 0;
        for (part, end) in self.parts.iter().zip(ends(length)) {
            // A9: pairs with R9 in `fill`.
            if part.after.load(Ordering::Acquire) <= position {
                break;
            }
            filled = end;
        }
        filled
    }
}
