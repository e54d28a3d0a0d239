//! Targets of one-sided operations that die, and regions that close under way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kestrel_core::{
    domain::DomainOptions,
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::Pieces,
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
    mock::MockOptions,
};
use kestrel_tests::{
    bed::{Memory, pattern, same},
    mock::{mock_bed, tight},
    node::{Done, Node, NodeOptions, says_gone},
    one_sided::{BOTH, Rma, expose, expose_ranges, options, segment},
    process::{Peer, child_role, listen_to_parent, say},
    scale::{PATIENCE, scaled},
};

const KEY: u64 = 12;
const LENGTH: usize = 1 << 20;
/// A death is known by then, 50 ms of posts included.
const WITHIN: Duration = Duration::from_secs(1);

fn node() -> Node {
    let domain =
        DomainOptions { memory_region_mode: MemoryRegionMode::empty(), ..DomainOptions::default() };
    Node::with(&NodeOptions { domain, ..NodeOptions::default() })
}

/// Lets peers of `node` reach `bytes`.
///
/// # Safety
/// `bytes` is valid until the region is closed, and not looked at by others meanwhile.
unsafe fn register(node: &Node, bytes: *mut u8, length: usize) -> Arc<MemoryRegion> {
    let attributes = MemoryRegionAttributes {
        ranges: &[MemoryRange { address: bytes as u64, len: length as u64 }],
        access: BOTH,
        requested_key: KEY,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe { node.domain.register_memory(&attributes) }.unwrap()
}

#[test]
fn child() {
    let Some(_) = child_role() else { return };
    let _parent = listen_to_parent();
    let mut memory = vec![1; LENGTH];
    let node = node();
    // SAFETY: the process is killed with everything in it.
    let _region = unsafe { register(&node, memory.as_mut_ptr(), LENGTH) };
    say(&format!("ready {}", node.address().socket_addr()));
    loop {
        if let Some(done) = node.poll() {
            panic!("{done:?}");
        }
    }
}

/// What becomes of operations on a target that is killed.
#[derive(Default)]
struct Ends {
    ended: u64,
    failed: u64,
}

impl Ends {
    fn take(&mut self, done: Done) {
        self.ended += 1;
        match done {
            Done::Well(mut entry) => {
                let bytes = entry.take_buffer().unwrap();
                same(&bytes, &vec![1; bytes.len()], "read, or written");
            }
            Done::Badly(error) => {
                self.failed += 1;
                assert!(says_gone(error.errno), "{error:?}");
            }
        }
    }
}

#[test]
fn a_killed_target_fails_what_is_under_way() {
    let mut quickest = Duration::MAX;
    for moment in 0..scaled(3, 10, 100) as u64 {
        let mut peer = Peer::start("target");
        let node = node();
        let to = node.insert_text(&peer.hear_after("ready "));
        node.endpoint.write(vec![1; 8], to, 0, KEY, 0).unwrap();
        node.next().well();
        let alive = Duration::from_micros(moment * 300);
        let (start, mut posted, mut ends) = (Instant::now(), 0_u64, Ends::default());
        let mut killed = None;
        // Something is posted when it is dead, however long a machine keeps us.
        while killed.is_none_or(|(killed, before): (Instant, _)| {
            killed.elapsed() < Duration::from_millis(50) || posted == before
        }) {
            assert!(start.elapsed() < PATIENCE, "in vain: a post");
            let length = [8, 300, 5_000, LENGTH][posted as usize % 4];
            let post = || match posted % 3 {
                0 => node.endpoint.read(vec![0; length], to, 0, KEY, 1),
                _ => node.endpoint.write(vec![1; length], to, 0, KEY, 1),
            };
            if post().is_ok() {
                posted += 1;
            }
            while let Some(completion) = node.poll() {
                ends.take(completion);
            }
            if killed.is_none() && start.elapsed() > alive {
                peer.kill();
                killed = Some((Instant::now(), posted));
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while ends.ended < posted {
            if let Some(completion) = node.poll() {
                ends.take(completion);
            }
            assert!(Instant::now() < deadline, "{} of {posted} ended", ends.ended);
        }
        assert!(ends.failed > 0, "{posted} operations, none of which failed");
        quickest = quickest.min(killed.unwrap().0.elapsed());
    }
    assert!(quickest < WITHIN, "the quickest of all took {quickest:?}");
}

/// A read of two regions, of which one closes while it is answered, and one of the other.
#[test]
fn a_region_that_closes_takes_no_other_along() {
    const SHARE: usize = 300_000;
    for polls in [0, 1, 2, 5] {
        let bed = mock_bed(tight());
        let (memory, into) = (Memory::from(pattern(4, 2 * SHARE)), Memory::zeroed(2 * SHARE));
        let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
        world.warm_up();
        let [reader, target] = [&world.nodes[0], &world.nodes[1]];
        let regions = [0, SHARE].map(|at| {
            let (half, key) = (memory.piece().part(at, SHARE), 4 + at as u64);
            expose_ranges(target, &[half], BOTH, key).unwrap()
        });
        let segments = regions.each_ref().map(|region| segment(region, 0, SHARE));
        let both = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
        let pieces = Pieces::One(into.piece().part(0, SHARE));
        let alone = Rma { pieces, segments: &segments[1..], context: 1, ..both };
        [&both, &alone].into_iter().for_each(|read| reader.post_read(1, read).unwrap());
        (0..polls).for_each(|_| target.poll());
        target.domain.close_memory(&regions[0]).unwrap();
        for done in [world.sent(0), world.sent(0)] {
            let refused = done.errno == Some(Errno::KEYREJECTED) && done.context == 0;
            assert!(refused || done.errno.is_none(), "{done:?}");
        }
        reader.post_read(1, &alone).unwrap();
        world.sent(0).good();
        same(&into.bytes()[..SHARE], &memory.bytes()[SHARE..], "of the second region");
        target.domain.close_memory(&regions[1]).unwrap();
        world.nothing_more();
    }
}

#[test]
fn a_dead_target_fails_what_is_under_way_whatever_came_through() {
    for mock in [MockOptions::default(), tight()] {
        for polls in [0, 1, 3, 10, 40] {
            let bed = mock_bed(mock.clone());
            let local = Memory::from(pattern(1, 300_000));
            let target = Memory::zeroed(300_000);
            let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
            world.warm_up();
            let region = expose(&world.nodes[1], &target, BOTH, KEY);
            let lengths = [8, 300, 4_000, 9_000, 300_000];
            for (nth, &length) in lengths.iter().enumerate() {
                let pieces = Pieces::One(local.piece().part(0, length));
                let segments = [segment(&region, 0, length)];
                let rma = Rma { pieces, segments: &segments, ..Rma::default() };
                let fenced = Rma { flags: Flags::FENCE, ..rma };
                world.nodes[0].post_write(1, &Rma { context: 2 * nth as u64, ..rma }).unwrap();
                let read = Rma { context: 2 * nth as u64 + 1, ..fenced };
                world.nodes[0].post_read(1, &read).unwrap();
            }
            world.poll(polls);
            bed.provider.kill(world.nodes[1].endpoint.address());
            let mut contexts = Vec::new();
            for _ in 0..2 * lengths.len() {
                let done = world.sent(0);
                assert!(matches!(done.errno, None | Some(Errno::CONNRESET)), "{done:?}");
                let is_read = done.context % 2 == 1;
                assert!(polls > 0 || !is_read || done.errno.is_some(), "nobody answered: {done:?}");
                contexts.push(done.context);
            }
            contexts.sort();
            contexts.dedup();
            assert_eq!(contexts.len(), 2 * lengths.len(), "each ended once");
            let segments = [segment(&region, 0, 300_000)];
            let rma = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_write(1, &rma).unwrap();
            world.sent(0).bad(Errno::HOSTUNREACH);
            world.nothing_more();
        }
    }
}

/// Memory that is looked at while peers may write it.
struct Words(Vec<AtomicU64>);

impl Words {
    fn sum(&self) -> u64 {
        self.0.iter().map(|word| word.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[test]
fn nothing_lands_after_a_close() {
    const WORDS: usize = 8 << 10;
    let words = Words((0..WORDS).map(|_| AtomicU64::new(0)).collect());
    let (from, to) = (node(), node());
    let peer = from.insert(to.address());
    let stop = AtomicBool::new(false);
    let start = words.0.as_ptr().cast_mut().cast::<u8>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(to.poll().is_none());
            }
        });
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                // Refused where there is no room, or while the region is closed.
                let _ = from.endpoint.write(vec![round; 8 * WORDS], peer, 0, KEY, 1);
                while let Some(done) = from.poll() {
                    if let Done::Badly(error) = done {
                        assert_eq!(error.errno, Errno::KEYREJECTED);
                    }
                }
            }
        });
        let mut written = 0;
        for _ in 0..scaled(30, 200, 3_000) {
            // SAFETY: the words outlive the scope, and are atomics, so that looking is no race.
            let region = unsafe { register(&to, start, 8 * WORDS) };
            let before = words.sum();
            std::thread::sleep(Duration::from_micros(300));
            to.domain.close_memory(&region).unwrap();
            let after = words.sum();
            written += usize::from(before != after);
            std::thread::sleep(Duration::from_micros(200));
            assert_eq!(words.sum(), after, "something landed after the close");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(written > 0, "nothing was ever written");
    });
}
