//! The entries of an address vector: read wait-free while they grow.
//!
//! Entries ([`slot`]) live in segments that never move and are never freed before the
//! vector is, so an index, once valid, leads to the same memory for ever.
//! Segment sizes follow the index's magnitude, four segments to each power
//! of two (as histograms with sub-buckets do), so at most a fifth of the
//! memory waits unused, however many addresses there are.
//!
//! A symmetric vector has no segments at first: its addresses are told by [`Runs`]. Only where
//! one was removed is there a segment, whose other entries defer to the runs as before.

use std::sync::OnceLock;

use super::runs::Runs;
use super::slot::{self, Content, Slot};
use crate::address::Address;
#[cfg(loom)]
use crate::primitive::{AtomicU64, Ordering};

/// Added to an index before its magnitude is taken, so that the first segments hold 4 entries.
const BIAS: u64 = 16;
const BIAS_LOG2: u32 = BIAS.ilog2();
/// Segments to each power of two: 2 to the power of this.
const SPLIT_LOG2: u32 = 2;
const SEGMENT_COUNT: usize = ((u32::BITS - BIAS_LOG2) << SPLIT_LOG2) as usize;

/// The number of entries that a vector can ever hold.
pub(super) const ENTRY_COUNT_MAX: u64 = (1 << u32::BITS) - BIAS;

/// The version of what a run tells and no entry does.
const RUN_VERSION: u64 = 1;

/// All entries, by index.
pub(super) struct Entries {
    segments: [OnceLock<Box<[Slot]>>; SEGMENT_COUNT],
    /// Of a symmetric vector: what entries that are not there, or defer, hold.
    runs: Option<Runs>,
    /// Loom cannot see inside a `OnceLock`; this stands for its acquire and release.
    #[cfg(loom)]
    growth: AtomicU64,
}

/// Which segment holds `index`, and where in it.
fn locate(index: u32) -> (usize, usize) {
    let biased = u64::from(index) + BIAS;
    let magnitude = biased.ilog2();
    let width = magnitude - SPLIT_LOG2;
    let part = (biased >> width) & ((1 << SPLIT_LOG2) - 1);
    let segment = (u64::from(magnitude - BIAS_LOG2) << SPLIT_LOG2) | part;
    (segment as usize, (biased & ((1 << width) - 1)) as usize)
}

/// How many entries a segment holds.
fn segment_len(segment: usize) -> usize {
    1 << ((segment >> SPLIT_LOG2) as u32 + BIAS_LOG2 - SPLIT_LOG2)
}

impl Entries {
    pub(super) fn new(runs: Option<Runs>) -> Self {
        Entries {
            segments: std::array::from_fn(|_| OnceLock::new()),
            runs,
            #[cfg(loom)]
            growth: AtomicU64::new(0),
        }
    }

    /// The runs, if the vector is symmetric.
    pub(super) fn runs(&self) -> Option<&Runs> {
        self.runs.as_ref()
    }

    /// The entry at `index`, if its segment exists. Wait-free: two loads.
    fn slot(&self, index: u32) -> Option<&Slot> {
        let (segment, offset) = locate(index);
        #[cfg(loom)]
        self.growth.fetch_add(0, Ordering::Acquire);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// What runs tell of `index`.
    fn in_run(&self, index: u32) -> Option<Address> {
        self.runs.as_ref()?.get(index)
    }

    /// The address at `index`. Wait-free: five loads beside `slot`'s, or a search of the runs.
    pub(super) fn read(&self, index: u32) -> Option<Address> {
        match self.slot(index).map_or(Content::Deferred, slot::read) {
            Content::Vacant => None,
            Content::Address(address) => Some(address),
            Content::Deferred => self.in_run(index),
        }
    }

    /// The address at `index`, for the holder of the writer mutex, whom no write can disturb.
    pub(super) fn read_exclusive(&self, index: u32) -> Option<Address> {
        match self.slot(index).map_or(Content::Deferred, slot::read_exclusive) {
            Content::Vacant => None,
            Content::Address(address) => Some(address),
            Content::Deferred => self.in_run(index),
        }
    }

    /// Whether a run, and no entry, tells what is at `index`.
    pub(super) fn is_deferred(&self, index: u32) -> bool {
        self.slot(index).is_none_or(|entry| slot::read_exclusive(entry) == Content::Deferred)
    }

    /// The version of the address at `index`, never 0 and never the same
    /// for two publications at that index. Wait-free.
    pub(super) fn version(&self, index: u32) -> Option<u64> {
        match self.slot(index) {
            Some(entry) if slot::read(entry) != Content::Deferred => slot::version(entry),
            _ => self.in_run(index).map(|_| RUN_VERSION),
        }
    }

    /// Makes room for the entry at `index`; false if there is no memory.
    /// The caller holds the writer mutex.
    pub(super) fn reserve(&self, index: u32) -> bool {
        let segment = locate(index).0;
        if self.segments[segment].get().is_some() {
            return true;
        }
        let len = segment_len(segment);
        let mut entries = Vec::new();
        if entries.try_reserve_exact(len).is_err() {
            return false;
        }
        entries.resize_with(len, if self.runs.is_some() { slot::deferred } else { slot::vacant });
        #[cfg(loom)] // Just before: loom may switch threads here, and not between here and there.
        self.growth.fetch_add(1, Ordering::Release);
        self.segments[segment].get_or_init(|| entries.into_boxed_slice());
        true
    }

    /// Fills the vacant entry at `index`. The caller holds the writer mutex and has reserved the entry.
    pub(super) fn publish(&self, index: u32, address: Address) {
        slot::publish(self.slot(index).expect("publish() follows reserve()"), address);
    }

    /// Empties the entry at `index`. The caller holds the writer mutex and has reserved the entry.
    pub(super) fn vacate(&self, index: u32) {
        slot::vacate(self.slot(index).expect("vacate() follows reserve()"));
    }

    /// How many entries have memory, or need none.
    pub(super) fn capacity(&self) -> usize {
        let entries =
            self.segments.iter().filter_map(|segment| segment.get()).map(|segment| segment.len());
        entries.sum::<usize>().max(self.runs.as_ref().map_or(0, |runs| runs.len() as usize))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segments_tile_the_indices_without_gap() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(locate(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == segment_len(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        let (segment, offset) = locate((ENTRY_COUNT_MAX - 1) as u32);
        assert_eq!((segment, offset), (SEGMENT_COUNT - 1, segment_len(segment) - 1));
    }

    #[test]
    fn at_most_a_fifth_of_the_memory_waits_unused() {
        let mut capacity = 0;
        for segment in 0..SEGMENT_COUNT {
            let before = capacity;
            capacity += segment_len(segment);
            // The worst moment: no entry of the new segment in use yet.
            let (used, had) = (before + BIAS as usize, capacity + BIAS as usize);
            assert!(used * 5 >= had * 4, "segment {segment}");
        }
        assert_eq!(capacity as u64, ENTRY_COUNT_MAX);
    }
}
