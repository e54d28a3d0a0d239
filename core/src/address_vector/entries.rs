//! The entries of an address vector: read wait-free while they grow.
//!
//! Entries live in segments that never move and are never freed before the
//! vector is, so an index, once valid, leads to the same memory for ever.
//! Segment sizes follow the index's magnitude, four segments to each power
//! of two (as histograms with sub-buckets do), so at most a fifth of the
//! memory waits unused, however many addresses there are.
//!
//! Each entry is a sequence lock (H.-J. Boehm, "Can seqlocks get along with
//! programming language memory models?", MSPC 2012) whose reader needs no
//! retry. Invariants:
//!
//! 1. Only the holder of the writer mutex stores into an entry.
//! 2. `state` alternates between vacant and occupied; each occupied value is
//!    used once, since the version in it only grows.
//! 3. `words` change only while `state` is vacant.
//!
//! So if a reader sees one occupied value before and after it reads `words`,
//! the words belong to it (3). If it sees two different ones, the entry was
//! vacant at some moment in between (2), and "nobody" is a true answer for
//! that moment: the reader returns it instead of trying again.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::OnceLock;

use crate::address::Address;
use crate::primitive::{AtomicU64, Ordering, fence};

/// Added to an index before its magnitude is taken, so that the first segments hold 4 entries.
const BIAS: u64 = 16;
const BIAS_LOG2: u32 = BIAS.ilog2();
/// Segments to each power of two: 2 to the power of this.
const SPLIT_LOG2: u32 = 2;
const SEGMENT_COUNT: usize = ((u32::BITS - BIAS_LOG2) << SPLIT_LOG2) as usize;

/// The number of entries that a vector can ever hold.
pub(super) const ENTRY_COUNT_MAX: u64 = (1 << u32::BITS) - BIAS;

const FAMILY_MASK: u64 = 0b11;
const VACANT: u64 = 0;
const FAMILY_V4: u64 = 1;
const FAMILY_V6: u64 = 2;
const PORT_SHIFT: u32 = 2;
const VERSION_SHIFT: u32 = 18;

/// One address: 32 bytes, two to a cache line.
struct Entry {
    /// Version (46 bits), port (16), family (2; 0 is vacant).
    state: AtomicU64,
    /// IPv4: the address in the first. IPv6: the address in two, then flow information and scope.
    words: [AtomicU64; 3],
}

/// All entries, by index.
pub(super) struct Entries {
    segments: [OnceLock<Box<[Entry]>>; SEGMENT_COUNT],
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
    pub(super) fn new() -> Self {
        Entries {
            segments: std::array::from_fn(|_| OnceLock::new()),
            #[cfg(loom)]
            growth: AtomicU64::new(0),
        }
    }

    /// The entry at `index`, if its segment exists. Wait-free: two loads.
    fn entry(&self, index: u32) -> Option<&Entry> {
        let (segment, offset) = locate(index);
        #[cfg(loom)]
        self.growth.fetch_add(0, Ordering::Acquire);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// The address at `index`. Wait-free: five loads beside `entry`'s.
    pub(super) fn read(&self, index: u32) -> Option<Address> {
        let entry = self.entry(index)?;
        let state = entry.state.load(Ordering::Acquire); // V1: pairs with V2 in publish()
        if state & FAMILY_MASK == VACANT {
            return None;
        }
        let words = entry.load_words();
        fence(Ordering::Acquire); // V3: pairs with V4 in publish()
        if entry.state.load(Ordering::Relaxed) != state {
            return None; // It was vacant meanwhile: see the head of this file.
        }
        Some(unpack(state, words))
    }

    /// The version of the address at `index`, never 0 and never the same
    /// for two publications at that index. Wait-free.
    pub(super) fn version(&self, index: u32) -> Option<u64> {
        let state = self.entry(index)?.state.load(Ordering::Acquire); // V1
        (state & FAMILY_MASK != VACANT).then_some(state >> VERSION_SHIFT)
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
        entries.resize_with(len, Entry::vacant);
        #[cfg(loom)] // Just before: loom may switch threads here, and not between here and there.
        self.growth.fetch_add(1, Ordering::Release);
        self.segments[segment].get_or_init(|| entries.into_boxed_slice());
        true
    }

    /// Fills the vacant entry at `index`. The caller holds the writer mutex and has reserved the entry.
    pub(super) fn publish(&self, index: u32, address: Address) {
        let entry = self.entry(index).expect("publish() follows reserve()");
        let old = entry.state.load(Ordering::Relaxed);
        debug_assert_eq!(old & FAMILY_MASK, VACANT);
        let (family_and_port, words) = pack(address);
        fence(Ordering::Release); // V4: pairs with V3 in read(): new words are not seen before the vacancy
        for (slot, word) in entry.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        let version = (old >> VERSION_SHIFT) + 1;
        entry.state.store(version << VERSION_SHIFT | family_and_port, Ordering::Release); // V2: pairs with V1
    }

    /// Empties the entry at `index` and answers what was there. The caller holds the writer mutex.
    pub(super) fn vacate(&self, index: u32) -> Option<Address> {
        let address = self.read_exclusive(index)?;
        let entry = self.entry(index)?;
        let version = entry.state.load(Ordering::Relaxed) >> VERSION_SHIFT;
        entry.state.store(version << VERSION_SHIFT, Ordering::Relaxed);
        Some(address)
    }

    /// The address at `index`, for the holder of the writer mutex, whom no write can disturb.
    pub(super) fn read_exclusive(&self, index: u32) -> Option<Address> {
        let entry = self.entry(index)?;
        let state = entry.state.load(Ordering::Relaxed);
        (state & FAMILY_MASK != VACANT).then(|| unpack(state, entry.load_words()))
    }

    /// How many entries have memory.
    pub(super) fn capacity(&self) -> usize {
        self.segments.iter().filter_map(|segment| segment.get()).map(|segment| segment.len()).sum()
    }
}

impl Entry {
    fn vacant() -> Self {
        Entry { state: AtomicU64::new(VACANT), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn load_words(&self) -> [u64; 3] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

/// An address as the low part of a state, and words.
fn pack(address: Address) -> (u64, [u64; 3]) {
    let (family, words) = match address.socket_addr() {
        SocketAddr::V4(v4) => (FAMILY_V4, [v4.ip().to_bits().into(), 0, 0]),
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            let rest = u64::from(v6.flowinfo()) << 32 | u64::from(v6.scope_id());
            (FAMILY_V6, [(bits >> 64) as u64, bits as u64, rest])
        }
    };
    (u64::from(address.port()) << PORT_SHIFT | family, words)
}

/// The inverse of [`pack`], for an occupied state.
fn unpack(state: u64, words: [u64; 3]) -> Address {
    let port = (state >> PORT_SHIFT) as u16;
    let socket_addr = if state & FAMILY_MASK == FAMILY_V4 {
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from_bits(words[0] as u32), port))
    } else {
        let ip = Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]));
        SocketAddr::V6(SocketAddrV6::new(ip, port, (words[2] >> 32) as u32, words[2] as u32))
    };
    socket_addr.into()
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

    #[test]
    fn packing_keeps_every_field() {
        for text in ["0.0.0.0:0", "255.254.253.252:65535", "[::]:0", "[1:2:3:4:5:6:7:8]:9"] {
            let address = Address::from(text.parse::<SocketAddr>().unwrap());
            let (state, words) = pack(address);
            assert_eq!(unpack(7 << VERSION_SHIFT | state, words), address);
        }
        let ip = "fe80::ffff".parse().unwrap();
        let address =
            Address::from(SocketAddr::V6(SocketAddrV6::new(ip, 1, u32::MAX, 0xdead_beef)));
        let (state, words) = pack(address);
        assert_eq!(unpack(state, words), address);
    }

    #[test]
    fn a_version_is_never_used_twice() {
        let entries = Entries::new();
        assert!(entries.reserve(5));
        let address = Address::from("1.2.3.4:5".parse::<SocketAddr>().unwrap());
        assert_eq!(entries.version(5), None);
        entries.publish(5, address);
        let first = entries.version(5).unwrap();
        assert_eq!(entries.vacate(5), Some(address));
        assert_eq!((entries.version(5), entries.read(5), entries.vacate(5)), (None, None, None));
        entries.publish(5, address);
        assert!(entries.version(5).unwrap() > first);
        assert_eq!(std::mem::size_of::<Entry>(), 32);
    }
}
