//! Buffers whose pages are others than before: "The application is responsible for [...] the memory"
//! between operations alone, and may unmap it then. Reference: fi_endpoint(3), fi_mr(3) (FI_MR_LOCAL).

use kestrel_core::{flags::Flags, info::MemoryRegionMode, transport::Provider};

use crate::{
    bed::{Bed, Memory, Receive, Send, World, pattern, same},
    mapped::{Change, Mapped},
    one_sided::{BOTH, Rma, expose, options, segment},
};

const CHANGES: [Change; 6] = [
    Change::None,
    Change::None,
    Change::MappedOver,
    Change::Discarded,
    Change::None,
    Change::MappedOver,
];
/// In packets, streamed in a way of its own, and long.
const LENGTHS: [usize; 4] = [5_000, 70_000, 300_000, 1 << 20];

/// Two messages, the second of which does not wait for an answer.
fn exchange<P: Provider>(world: &World<P>, from: &Mapped, into: &Mapped) {
    let tag = Some((1, 0));
    let receive = Receive { pieces: into.all(), tag, ..Receive::default() };
    let send = Send { pieces: from.all(), tag: Some(1), ..Send::default() };
    let (small, place) = (Memory::from(vec![1; 8]), Memory::zeroed(8));
    let first = Receive { pieces: place.all(), tag, ..Receive::default() };
    world.post(|| world.nodes[1].post_receive(&first));
    world.post(|| world.nodes[1].post_receive(&receive));
    world.post(|| world.nodes[0].post_send(1, &Send { pieces: small.all(), ..send }));
    world.post(|| world.nodes[0].post_send(1, &send));
    for _ in 0..2 {
        world.received(1).good();
        world.sent(0).good();
    }
}

/// A message is what its buffer had when it was posted, and lands where the receive's buffer is by then.
pub fn messages_are_what_lies_in_their_buffers_now<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let (from, into) = (Mapped::zeroed(length), Mapped::zeroed(length));
        let world = bed.world(2);
        world.warm_up();
        for (round, change) in (0..).zip(CHANGES) {
            from.change(change, 2 * round);
            into.change(change, 2 * round + 1);
            exchange(&world, &from, &into);
            same(&into.bytes(), &pattern(2 * round, length), "where it is read");
            same(&from.bytes(), &pattern(2 * round, length), "where it was sent");
        }
    }
}

/// One end's memory changes, the other's stays.
pub fn either_end_may_change_alone<P: Provider>(bed: &Bed<P>) {
    let length = LENGTHS[2];
    let (from, into) = (Mapped::zeroed(length), Mapped::zeroed(length));
    let world = bed.world(2);
    world.warm_up();
    for (round, change) in (0..).zip(CHANGES) {
        for (sender, receiver) in [(change, Change::None), (Change::None, change)] {
            from.change(sender, 2 * round);
            into.change(receiver, 2 * round + 1);
            exchange(&world, &from, &into);
            same(&into.bytes(), &pattern(2 * round, length), "where it is read");
        }
    }
}

/// The initiator's buffers of reads and writes, likewise.
pub fn one_sided_operations_use_what_lies_there_now<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let (from, into) = (Mapped::zeroed(length), Mapped::zeroed(length));
        let target = Memory::zeroed(length);
        let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
        let region = expose(&world.nodes[1], &target, BOTH, 1);
        let segments = [segment(&region, 0, length)];
        for (round, change) in (0..).zip(CHANGES) {
            from.change(change, 2 * round);
            into.change(change, 2 * round + 1);
            let flags = Flags::DELIVERY_COMPLETE;
            let write = Rma { pieces: from.all(), segments: &segments, flags, ..Rma::default() };
            world.nodes[0].post_write(1, &write).unwrap();
            world.sent(0).good();
            same(&target.bytes(), &pattern(2 * round, length), "written");
            let read = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_read(1, &read).unwrap();
            world.sent(0).good();
            same(&into.bytes(), &pattern(2 * round, length), "read");
        }
        world.nodes[1].domain.close_memory(&region).unwrap();
    }
}
