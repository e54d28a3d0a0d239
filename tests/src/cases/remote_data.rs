//! Remote CQ data of writes. Reference: fi_rma(3), fi_endpoint(3).

use kestrel_core::{flags::Flags, one_sided::RemoteSegment, transport::Provider};

use crate::{
    bed::{Bed, Memory, Receive, pattern, same},
    one_sided::{BOTH, MODES, Rma, expose, options, segment},
};

pub fn remote_data_needs_no_receive<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 100_000] {
        let target = Memory::zeroed(length);
        let from = Memory::from(pattern(2, length));
        let posted = Memory::zeroed(8);
        let world = bed.world(2);
        let receive = Receive { pieces: posted.all(), context: 9, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [segment(&region, 0, length)];
        for data in [0, u64::MAX, 0x1122_3344_5566_7788] {
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_write(1, &Rma { data: Some(data), ..write }).unwrap();
            let done = world.received(1).good();
            same(&target.bytes(), &from.bytes(), "written when the data is told");
            let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
            assert_eq!((done.context, done.flags, done.data, done.source), (0, flags, data, 0));
            assert_eq!(done.length, length as u64);
            world.sent(0).good();
        }
        world.nothing_more();
        world.nodes[0].send(vec![1; 8], 1, None, 1);
        assert_eq!(world.received(1).context(), 9);
    }
}

/// The data of a write is told when all of it is there; of one that was refused in part, never.
pub fn what_is_refused_in_part_tells_no_data<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(2, &options(MODES[0]));
    let (from, target) = (Memory::from(pattern(1, 600)), Memory::zeroed(600));
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let good = segment(&region, 0, 300);
    let bad = RemoteSegment { key: !good.key, ..good };
    for (segments, errno) in [([bad, good], true), ([good, bad], true), ([good, good], false)] {
        let data = Some(7);
        let write = Rma { pieces: from.all(), segments: &segments, data, ..Rma::default() };
        world.nodes[0].post_write(1, &write).unwrap();
        assert_eq!(world.sent(0).errno.is_some(), errno);
        world.poll(50);
        if !errno {
            assert_eq!(world.received(1).good().data, 7);
        }
        world.nothing_more();
    }
}
