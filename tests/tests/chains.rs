//! What is posted to an adapter as one chain, on the fake: what announces more (FI_MORE) and what
//! follows it, the packets of one message, and what a poll does.

use kestrel_core::{
    flags::Flags, info::MemoryRegionMode, memory_region::MemoryRegion, one_sided::RemoteSegment,
};
use kestrel_tests::{
    bed::{Memory, Receive, Send, World, pattern, same},
    fake::fake_bed,
    one_sided::{BOTH, Rma, expose, options, segment},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric},
};

/// Operations of which all but the last announce another.
const IN_A_ROW: u64 = 10;

struct Chains {
    world: World<RcProvider<FakeDevice>>,
    fabric: FakeFabric,
}

impl Chains {
    fn new() -> Chains {
        let (bed, fabric) = fake_bed(VerbsOptions::default());
        let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
        world.warm_up();
        world.poll(100);
        Chains { world, fabric }
    }

    /// Chains that are posted while `work` does what it does.
    fn posted(&self, work: impl FnOnce()) -> u64 {
        let before = self.fabric.tally().chains;
        work();
        self.fabric.tally().chains - before
    }

    /// Node 0 sends to node 1, and has it delivered if asked.
    fn send(&self, bytes: &Memory, flags: Flags, context: u64) {
        let send = Send { pieces: bytes.all(), flags, context, ..Send::default() };
        self.world.nodes[0].post_send(1, &send).unwrap();
    }

    fn write(&self, bytes: &Memory, region: &MemoryRegion, offset: usize, flags: Flags) {
        let segments = [segment(region, offset, bytes.bytes().len())];
        let rma = Rma { pieces: bytes.all(), segments: &segments, flags, ..Rma::default() };
        self.world.nodes[0].post_write(1, &rma).unwrap();
    }

    /// Node 1 takes the next message.
    fn takes(&self, bytes: &Memory) {
        let into = Memory::zeroed(bytes.bytes().len());
        let receive = Receive { pieces: into.all(), ..Receive::default() };
        self.world.nodes[1].post_receive(&receive).unwrap();
        self.world.received(1).good();
        same(&into.bytes(), &bytes.bytes(), "content");
    }

    /// A window that enough packets pass at once.
    fn widen(&self) {
        let byte = Memory::zeroed(1);
        for context in 0..200 {
            self.send(&byte, Flags::empty(), context);
            self.takes(&byte);
            self.world.sent(0).good();
        }
    }
}

fn more_before(last: u64, number: u64) -> Flags {
    if number == last { Flags::empty() } else { Flags::MORE }
}

#[test]
fn what_announces_more_leaves_with_what_follows() {
    let bytes: Vec<Memory> =
        (0..IN_A_ROW).map(|number| Memory::from(pattern(number, 8 + number as usize))).collect();
    let chains = Chains::new();
    chains.widen();
    for _ in 0..3 {
        let posted = chains.posted(|| {
            for (number, bytes) in (0..).zip(&bytes) {
                chains.send(bytes, more_before(IN_A_ROW - 1, number), number);
            }
        });
        assert_eq!(posted, 1, "chains of {IN_A_ROW} sends");
        bytes.iter().for_each(|bytes| chains.takes(bytes));
        for number in 0..IN_A_ROW {
            assert_eq!(chains.world.sent(0).context(), number);
        }
    }
    let each = chains.posted(|| chains.send(&bytes[0], Flags::empty(), 0));
    assert_eq!(each, 1, "alone");
    chains.takes(&bytes[0]);
}

/// Nothing follows, though it was announced: a poll has it leave all the same.
#[test]
fn what_nothing_follows_leaves_with_the_next_poll() {
    let bytes = Memory::from(pattern(1, 100));
    let chains = Chains::new();
    let posted = chains.posted(|| chains.send(&bytes, Flags::MORE, 1));
    assert_eq!(posted, 0, "kept back");
    let posted = chains.posted(|| chains.world.nodes[0].poll());
    assert_eq!(posted, 1, "by a poll");
    chains.takes(&bytes);
    assert_eq!(chains.world.sent(0).context(), 1);
}

/// A post that is refused is what follows, too.
#[test]
fn what_announces_more_leaves_with_a_post_that_is_refused() {
    const NOBODY: u64 = 77;
    let bytes = Memory::from(pattern(1, 100));
    let chains = Chains::new();
    let node = &chains.world.nodes[0];
    let segments = [RemoteSegment { address: 0, length: 100, key: 4 }];
    let send = Send { pieces: bytes.all(), ..Send::default() };
    let write = Rma { pieces: bytes.all(), segments: &segments, ..Rma::default() };
    let refused: [&dyn Fn() -> bool; 2] =
        [&|| node.post_send(NOBODY, &send).is_err(), &|| node.post_write(NOBODY, &write).is_err()];
    for refused in refused {
        let posted = chains.posted(|| chains.send(&bytes, Flags::MORE, 1));
        assert_eq!(posted, 0, "kept back");
        assert_eq!(chains.posted(|| assert!(refused())), 1, "with what was refused");
        chains.takes(&bytes);
        assert_eq!(chains.world.sent(0).context(), 1);
    }
}

#[test]
fn the_packets_of_a_message_leave_together() {
    let bytes = Memory::from(pattern(2, 60_000));
    let chains = Chains::new();
    chains.widen();
    let posted = chains.posted(|| chains.send(&bytes, Flags::empty(), 1));
    assert_eq!(posted, 1, "chains of the packets of 60,000 bytes");
    chains.takes(&bytes);
    chains.world.sent(0).good();
}

#[test]
fn writes_that_announce_more_leave_with_what_follows() {
    let target = Memory::zeroed(4096 * IN_A_ROW as usize);
    // Some of these go inline, others do not.
    let bytes: Vec<Memory> =
        (0..IN_A_ROW).map(|number| Memory::from(pattern(number, 50 << (number % 6)))).collect();
    let chains = Chains::new();
    let region = expose(&chains.world.nodes[1], &target, BOTH, 4);
    while chains.fabric.tally().reached == 0 {
        chains.write(&bytes[0], &region, 0, Flags::empty());
        chains.world.sent(0).good();
    }
    let posted = chains.posted(|| {
        for (number, bytes) in (0..).zip(&bytes) {
            let flags = more_before(IN_A_ROW - 1, number);
            chains.write(bytes, &region, 4096 * number as usize, flags);
        }
    });
    assert_eq!(posted, 1, "chains of {IN_A_ROW} writes");
    for _ in 0..IN_A_ROW {
        chains.world.sent(0).good();
    }
    for (number, bytes) in bytes.iter().enumerate() {
        let (found, wrote) = (target.bytes(), bytes.bytes());
        same(&found[4096 * number..][..wrote.len()], &wrote, "what was written");
    }
    chains.world.nodes[1].domain.close_memory(&region).unwrap();
}
