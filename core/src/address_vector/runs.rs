//! The addresses of a symmetric vector (`FI_SYMMETRIC`), in runs that follow each other.
//!
//! "each node will be associated with the same number of endpoints, the same transport
//! addresses will be allocated on each node, and the transport addresses will be sequential"
//! (fi_av(3)). So a node, whose addresses differ by their ports alone, is one run, and all
//! nodes of a symmetric insertion together are one run: constant space, however many
//! addresses it has. Only where the order breaks does a new run begin.
//!
//! Runs are written once, in segments that never move, and cover the indices from 0 on without
//! a gap. Readers are wait-free: they search the runs by halves. One writer at a time appends.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::symmetric::{SymmetricRange, node_number, nodes_between};
use crate::address::Address;
use crate::primitive::{AtomicU64, Ordering};

const FIRST_SEGMENT_LOG2: u32 = 3;
const SEGMENT_COUNT: usize = (u32::BITS - FIRST_SEGMENT_LOG2 + 1) as usize;

/// Consecutive addresses at consecutive indices, up to where the next run begins.
#[derive(Clone, Copy)]
struct Run {
    /// The index of its first address.
    first: u32,
    /// Where it starts, and how many services a node has.
    range: SymmetricRange,
}

/// All runs, in the order of their indices.
pub(super) struct Runs {
    segments: [OnceLock<Box<[OnceLock<Run>]>>; SEGMENT_COUNT],
    count: AtomicU64,
    /// How many indices the runs cover: published last.
    len: AtomicU64,
}

/// The way back, owned by the vector's writer mutex: which runs may hold an address.
#[derive(Default)]
pub(super) struct RunIndex {
    /// The first node of each run, as a number.
    nodes: BTreeSet<(u128, u32)>,
    /// How many nodes lie between the first and the last node of a run, at most.
    widest: u128,
}

fn locate(run: u32) -> (usize, usize) {
    let biased = u64::from(run) + (1 << FIRST_SEGMENT_LOG2);
    let magnitude = biased.ilog2();
    ((magnitude - FIRST_SEGMENT_LOG2) as usize, (biased - (1 << magnitude)) as usize)
}

impl Runs {
    pub(super) fn new() -> Self {
        Runs {
            segments: std::array::from_fn(|_| OnceLock::new()),
            count: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }

    /// How many indices are covered.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire) // Q1: pairs with Q2 in cover()
    }

    fn run(&self, run: u32) -> Option<&Run> {
        let (segment, offset) = locate(run);
        self.segments.get(segment)?.get()?.get(offset)?.get()
    }

    /// The run that covers `index`, which is below `len`.
    fn covering(&self, index: u32) -> Option<(u32, &Run)> {
        // Q3: pairs with Q4 in begin(): there may be more runs than cover anything yet.
        let (mut low, mut high) = (0, self.count.load(Ordering::Acquire) as u32);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.run(middle)?.first <= index { low = middle } else { high = middle }
        }
        Some((low, self.run(low)?))
    }

    /// The address at `index`. Wait-free: as many steps as the count of runs has bits.
    pub(super) fn get(&self, index: u32) -> Option<Address> {
        if u64::from(index) >= self.len() {
            return None;
        }
        let (_, run) = self.covering(index)?;
        run.range.nth((index - run.first) as usize)
    }

    /// Appends one address, to the last run if it goes on there; false if there is no memory.
    /// The caller holds the vector's writer mutex.
    pub(super) fn append(&self, address: Address, known: &mut RunIndex) -> bool {
        let len = self.len();
        if let Some((_, last)) = self.last()
            && let Some(next) = last.range.nth((len - u64::from(last.first)) as usize)
            // As it is written: that is how it is looked up.
            && next.socket_addr() == address.socket_addr()
        {
            known.note(&last.range, address);
            self.cover(len + 1);
            return true;
        }
        let begun = self.begin(SymmetricRange::of_node(address), known);
        if begun {
            self.cover(len + 1);
        }
        begun
    }

    /// Appends a range that is not empty, as one run; false if there is no memory. The caller
    /// holds the vector's writer mutex, and has seen that the indices suffice.
    pub(super) fn append_range(&self, range: SymmetricRange, known: &mut RunIndex) -> bool {
        let begun = self.begin(range, known);
        if let (true, Some(last)) = (begun, range.nth(range.len() - 1)) {
            known.note(&range, last);
            self.cover(self.len() + range.len() as u64);
        }
        begun
    }

    fn last(&self) -> Option<(u32, &Run)> {
        let number = (self.count.load(Ordering::Relaxed) as u32).checked_sub(1)?;
        Some((number, self.run(number)?))
    }

    /// Writes a run that covers nothing yet.
    fn begin(&self, range: SymmetricRange, known: &mut RunIndex) -> bool {
        let number = self.count.load(Ordering::Relaxed) as u32;
        let (segment, offset) = locate(number);
        if self.segments[segment].get().is_none() {
            let len = 1 << (segment as u32 + FIRST_SEGMENT_LOG2);
            let mut runs = Vec::new();
            if runs.try_reserve_exact(len).is_err() {
                return false;
            }
            runs.resize_with(len, OnceLock::new);
            self.segments[segment].get_or_init(|| runs.into_boxed_slice());
        }
        let first = self.len() as u32;
        let written = self.segments[segment].get().and_then(|runs| runs.get(offset));
        let _ = written.map(|place| place.set(Run { first, range }));
        known.nodes.insert((node_number(range.base().ip()), number));
        // Before `len`, which readers look at first: see Q2. Q4: pairs with Q3 in covering().
        self.count.store(u64::from(number) + 1, Ordering::Release);
        true
    }

    /// Publishes how many indices are covered.
    fn cover(&self, len: u64) {
        self.len.store(len, Ordering::Release); // Q2: pairs with Q1
    }

    /// The indices of runs that hold `address`, in no order. The caller holds the vector's
    /// writer mutex.
    pub(super) fn find(&self, address: &Address, known: &RunIndex) -> Vec<u32> {
        let node = node_number(address.ip());
        // The lowest node at which a run may begin that has this one.
        let lowest = node.saturating_sub(known.widest);
        let candidates = known.nodes.range((lowest, 0)..=(node, u32::MAX));
        candidates.filter_map(|&(_, number)| self.index_in(number, address)).collect()
    }

    /// The index of `address` in a run, if it is there.
    fn index_in(&self, number: u32, address: &Address) -> Option<u32> {
        let run = self.run(number)?;
        let index = u64::from(run.first) + run.range.position_of(address)? as u64;
        let end = self.run(number + 1).map_or(self.len(), |next| u64::from(next.first));
        (index < end).then_some(index as u32)
    }
}

impl RunIndex {
    /// Remembers how far a run reaches.
    fn note(&mut self, range: &SymmetricRange, last: Address) {
        let nodes = nodes_between(range.base().ip(), last.ip()).unwrap_or(0);
        self.widest = self.widest.max(nodes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<std::net::SocketAddr>().unwrap().into()
    }

    #[test]
    fn a_node_is_a_run_and_so_is_a_symmetric_range() {
        let (runs, mut known) = (Runs::new(), RunIndex::default());
        for node in 0..3_u32 {
            for port in 7..10 {
                assert!(runs.append(address(&format!("10.0.0.{node}:{port}")), &mut known));
            }
        }
        assert_eq!((runs.count.load(Ordering::Relaxed), runs.len()), (3, 9));
        let range = SymmetricRange::new(address("10.0.0.1:8"), 1000, 4).unwrap();
        assert!(runs.append_range(range, &mut known));
        assert_eq!((runs.count.load(Ordering::Relaxed), runs.len()), (4, 4009));
        // What goes on where the range ends is part of it.
        assert!(runs.append(address("10.0.3.233:8"), &mut known));
        assert_eq!((runs.count.load(Ordering::Relaxed), runs.len()), (4, 4010));
        for (index, text) in [
            (0, "10.0.0.0:7"),
            (5, "10.0.0.1:9"),
            (9, "10.0.0.1:8"),
            (14, "10.0.0.2:9"),
            (4009, "10.0.3.233:8"),
        ] {
            assert_eq!(runs.get(index), Some(address(text)), "{index}");
            assert!(runs.find(&address(text), &known).contains(&index), "{text}");
        }
        assert_eq!(runs.get(4010), None);
        assert_eq!(BTreeSet::from_iter(runs.find(&address("10.0.0.2:9"), &known)), [8, 14].into());
        for text in ["10.0.0.0:10", "10.0.3.233:9", "10.0.0.1:6", "11.0.0.0:8", "[::1]:8"] {
            assert_eq!(runs.find(&address(text), &known), [], "{text}");
        }
    }

    /// An IPv4 address that is mapped into IPv6 is the same.
    #[test]
    fn an_address_is_found_however_it_is_written() {
        let (runs, mut known) = (Runs::new(), RunIndex::default());
        let mapped = SymmetricRange::new(address("[::ffff:10.0.0.1]:8"), 4, 2).unwrap();
        assert!(runs.append_range(mapped, &mut known));
        assert!(runs.append(address("10.0.1.1:8"), &mut known));
        let found = |text: &str| runs.find(&address(text), &known);
        for node in 0..4 {
            for (text, index) in [("8", 2 * node), ("9", 2 * node + 1)] {
                let ip = format!("10.0.0.{}", node + 1);
                assert_eq!(found(&format!("{ip}:{text}")), [index]);
                assert_eq!(found(&format!("[::ffff:{ip}]:{text}")), [index]);
            }
        }
        assert_eq!((found("10.0.1.1:8"), found("[::ffff:10.0.1.1]:8")), (vec![8], vec![8]));
        // As it was inserted.
        assert!(runs.get(0).unwrap().ip().is_ipv6() && runs.get(8).unwrap().ip().is_ipv4());
        for text in ["10.0.0.5:8", "10.0.0.1:10", "[::10.0.0.1]:8"] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    /// "The returned address is the same format as those stored by the AV."
    #[test]
    fn an_address_is_looked_up_as_it_is_written() {
        let (runs, mut known) = (Runs::new(), RunIndex::default());
        for text in ["10.0.0.1:7", "[::ffff:10.0.0.1]:8", "[::ffff:10.0.0.1]:9"] {
            assert!(runs.append(address(text), &mut known));
        }
        let written = [0, 1, 2].map(|index| runs.get(index).unwrap().ip().is_ipv6());
        assert_eq!(written, [false, true, true]);
        assert_eq!(runs.find(&address("10.0.0.1:8"), &known), [1]);
    }

    #[test]
    fn runs_lie_in_segments_without_gap() {
        let mut expected = (0, 0);
        for run in 0..10_000 {
            assert_eq!(locate(run), expected);
            expected.1 += 1;
            if expected.1 == 1 << (expected.0 as u32 + FIRST_SEGMENT_LOG2) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(locate(u32::MAX).0, SEGMENT_COUNT - 1);
    }
}
