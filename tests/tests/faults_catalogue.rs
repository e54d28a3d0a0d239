//! Regions that are told of before anybody asks: reached at the first operation, whatever their owner
//! does, until they close; and catalogues that lie.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_core::{
    completion_counter::CompletionCounter,
    error::Errno,
    flags::Flags,
    memory_region::MemoryRegion,
    one_sided::RemoteSegment,
    ring::catalogue::{Catalogue, ENTRIES},
};
use kestrel_tests::{
    bed::{Memory, pattern, same},
    node::{Done, Node, Wait},
    one_sided::{BOTH, Rma, expose, expose_as, expose_in, expose_ranges, segment},
    process::{Peer, child_role, listen_to_parent, say},
    random::Random,
    scale::{PATIENCE, scaled},
    shm_reach::{LENGTHS, SHORT, ShmReach, lone_node},
};

/// Two nodes with a window between them.
fn opened() -> ShmReach {
    let reach = ShmReach::new();
    let first = Memory::zeroed(SHORT);
    let region = expose(&reach.world.nodes[1], &first, BOTH, 1000);
    reach.open_window(&region);
    reach.close(&region);
    reach
}

/// Reads all of a region. Returns whether its owner was not needed, and what was there.
#[track_caller]
fn read(reach: &ShmReach, region: &MemoryRegion) -> (bool, Vec<u8>) {
    let length = region.len() as usize;
    let into = Memory::zeroed(length);
    reach.read(&into, &[segment(region, 0, length)]);
    let alone = reach.ends_alone();
    reach.world.sent(0).good();
    (alone, into.bytes())
}

#[test]
fn a_new_region_is_reached_without_its_owner() {
    let reach = opened();
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let (target, source) = (Memory::zeroed(length), Memory::from(pattern(seed as u64, length)));
        // The next one has the same key, and lies elsewhere.
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.write(&source, &[segment(&region, 0, length)]);
        assert!(reach.ends_alone(), "a write of {length}");
        reach.world.sent(0).good();
        same(&target.bytes(), &source.bytes(), "written");
        let (alone, found) = read(&reach, &region);
        assert!(alone, "a read of {length}");
        same(&found, &source.bytes(), "read");
        reach.close(&region);
        reach.write(&source, &[segment(&region, 0, length)]);
        reach.world.sent(0).bad(Errno::KEYREJECTED);
    }
    reach.world.nothing_more();
}

/// What was registered before there was a window is told of with it.
#[test]
fn an_old_region_is_reached_without_its_owner() {
    let reach = ShmReach::new();
    let memory = Memory::from(pattern(1, 2 * SHORT));
    let pieces = memory.cut(&[SHORT; 2]);
    let regions =
        [0, 1].map(|at| expose_ranges(&reach.world.nodes[1], &pieces[at..=at], BOTH, at as u64));
    let [first, second] = regions.map(Result::unwrap);
    reach.open_window(&first);
    assert_eq!(read(&reach, &second), (true, memory.bytes()[SHORT..].to_vec()));
    reach.close(&first);
    reach.close(&second);
}

/// What is counted, or may not be read, is for the owner to say; and so is what several pieces make.
#[test]
fn what_no_adapter_reaches_is_not_told_of() {
    let reach = opened();
    let node = &reach.world.nodes[1];
    let memory = Memory::from(pattern(1, 2 * SHORT));
    let pieces = memory.cut(&[SHORT; 2]);
    let plain = expose(node, &memory, BOTH, 1);
    let counter = CompletionCounter::open(&node.domain);
    let counted = expose(node, &memory, BOTH, 2);
    assert!(read(&reach, &counted).0);
    node.domain.bind_memory_counter(&counted, &counter, Flags::REMOTE_READ).unwrap();
    let eventful = expose_as(node, &[memory.piece()], BOTH, 3, Flags::RMA_EVENT).unwrap();
    let several = expose_ranges(node, &pieces, BOTH, 4).unwrap();
    for region in [&counted, &eventful, &several] {
        assert_eq!(read(&reach, region), (false, memory.bytes()), "key {}", region.key());
        assert!(read(&reach, &plain).0);
    }
    assert_eq!(counter.read(), 1);
    let written = expose(node, &memory, Flags::REMOTE_WRITE, 5);
    reach.read(&Memory::zeroed(SHORT), &[segment(&written, 0, SHORT)]);
    reach.world.sent(0).bad(Errno::ACCES);
    reach.read(&Memory::zeroed(SHORT), &[segment(&plain, SHORT + 1, SHORT)]);
    reach.world.sent(0).bad(Errno::INVAL);
    for region in [&plain, &counted, &eventful, &several, &written] {
        reach.close(region);
    }
}

/// Those that find no place are asked for.
#[test]
fn regions_may_outnumber_the_entries() {
    let regions = ENTRIES + 60;
    let memory = Memory::from(pattern(1, regions * SHORT));
    let reach = opened();
    let node = &reach.world.nodes[1];
    let open = |(key, piece)| expose_ranges(node, &[piece], BOTH, key as u64).unwrap();
    let regions: Vec<_> =
        memory.cut(&vec![SHORT; regions]).into_iter().enumerate().map(open).collect();
    let mut alone = 0;
    for (region, bytes) in regions.iter().zip(memory.bytes().chunks(SHORT)) {
        let (without_owner, found) = read(&reach, region);
        same(&found, bytes, "read");
        alone += usize::from(without_owner);
    }
    assert!((ENTRIES / 2..=ENTRIES).contains(&alone), "{alone} of {}", regions.len());
    regions.iter().for_each(|region| reach.close(region));
    // All places are free again.
    let last = expose(node, &memory, BOTH, 9999);
    assert!(read(&reach, &last).0);
    reach.close(&last);
}

/// The bytes of each region in the test of lies.
const LENGTH: usize = 64 << 10;
const KEY: u64 = 4;

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let orders = listen_to_parent();
    let node = lone_node();
    let memory = Memory::from(vec![7; LENGTH]);
    let _region = expose_in(&node.domain, &[memory.piece()], BOTH, KEY, Flags::empty()).unwrap();
    say(&node.address().socket_addr().to_string());
    let mut lies = None;
    while orders.try_recv().is_err() {
        // Each lie lasts for a few operations.
        for _ in 0..300 {
            assert!(node.poll().is_none());
        }
        if role[0] == "liar" {
            lies = lies.or_else(Lies::begin);
            lies.iter_mut().for_each(Lies::tell);
        }
    }
    say("alive");
}

/// Words of an entry: its stamp, its key, and what a lease has.
const WORDS: usize = 6;
/// Where the address of the memory is.
const ADDRESS: usize = 4;

/// What changes an entry in its process's own catalogue.
struct Lies {
    random: Random,
    entry: &'static [AtomicU64],
    honest: [u64; WORDS],
    /// Zeros, where the region has none.
    decoy: Memory,
}

impl Lies {
    /// Once there is something to lie about.
    fn begin() -> Option<Lies> {
        // There is one.
        let is_listed = |entry: &&[AtomicU64]| entry[0].load(Ordering::Relaxed) % 2 == 1;
        let entry = catalogue()?.chunks(align_of::<Catalogue>() / 8).find(is_listed)?;
        let honest = std::array::from_fn(|at| entry[at].load(Ordering::Relaxed));
        Some(Lies { random: Random::new(1), entry, honest, decoy: Memory::zeroed(LENGTH) })
    }

    fn tell(&mut self) {
        for (word, honest) in self.entry.iter().zip(self.honest) {
            word.store(honest, Ordering::Relaxed);
        }
        let random = &mut self.random;
        let (at, other) = (random.below(WORDS as u64) as usize, self.honest[ADDRESS]);
        let (at, lie) = match random.below(8) {
            // It is written to where it says.
            0..3 => (ADDRESS, self.decoy.start()),
            3 => (ADDRESS, [8, u64::MAX - 8][random.below(2) as usize]),
            4 if at != ADDRESS => (at, random.number()),
            5 if at != ADDRESS => (at, [0, other, u64::MAX][random.below(3) as usize]),
            6 if at != ADDRESS => (at, self.honest[at] ^ 1 << random.below(64)),
            _ => return,
        };
        self.entry[at].store(lie, Ordering::Relaxed);
    }
}

/// Our own catalogue: it is behind the chunks of the one pool, which nobody else can write.
fn catalogue() -> Option<&'static [AtomicU64]> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let own = |line: &&str| line.contains("kestrel-pool") && line.contains(" rw-s ");
    let number = |text| usize::from_str_radix(text, 16).expect("an address");
    let end = maps.lines().filter(own).find_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        // Others are of a page.
        (number(end) - number(start) > size_of::<Catalogue>()).then(|| number(end))
    })?;
    let words = std::ptr::with_exposed_provenance::<AtomicU64>(end - size_of::<Catalogue>());
    // SAFETY: the mapping ends there, is that of a pool with a catalogue, and is unmapped when this process ends;
    // there is nothing but atomics.
    Some(unsafe { std::slice::from_raw_parts(words, size_of::<Catalogue>() / 8) })
}

/// A read or a write of `memory`, and how it ends.
#[track_caller]
fn copy(node: &Node, to: u64, memory: &Memory, writes: bool) -> Done {
    let segments = [RemoteSegment { address: 0, length: LENGTH as u64, key: KEY }];
    let (pieces, flags) = (memory.all(), Flags::COMPLETION);
    let post = Rma { pieces, segments: &segments, flags, ..Rma::default() }.post(to);
    match writes {
        true => node.endpoint.post_write(post).unwrap(),
        false => node.endpoint.post_read(post).unwrap(),
    }
    node.within(PATIENCE, Wait::Polling).expect("an operation ends")
}

/// Who lies harms itself: each operation ends, and those with others are right.
#[test]
fn lies_of_a_catalogue_harm_nobody_else() {
    let mut peers = ["liar", "honest"].map(Peer::start);
    let node = lone_node();
    let [liar, honest] = peers.each_mut().map(|peer| node.insert_text(&peer.hear()));
    let memory = Memory::zeroed(LENGTH);
    let mut deceived = 0;
    for round in 0..scaled(300, 2_000, 50_000) {
        // What was written just before is read.
        let (byte, writes) = ((round / 2) as u8, round % 2 == 0);
        memory.fill(if writes { byte } else { !byte });
        let done = copy(&node, liar, &memory, writes);
        let right = memory.bytes().iter().all(|&found| found == byte);
        deceived += usize::from(matches!(done, Done::Badly(_)) || !right);
        memory.fill(0);
        copy(&node, honest, &memory, false).well();
        assert!(memory.bytes().iter().all(|&byte| byte == 7), "round {round}");
    }
    assert!(deceived > 0, "no lie was believed");
    for peer in &mut peers {
        peer.order("end");
        assert_eq!(peer.hear(), "alive");
        peer.succeed();
    }
}
