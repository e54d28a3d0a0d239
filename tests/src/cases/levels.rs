//! When a send completes, and whether an entry is written.

use kestrel_core::{error::Errno, flags::Flags, transport::Provider};

use crate::bed::{Bed, Memory, Options, Receive, Send, pattern, same};
use crate::one_sided::{BOTH, Rma, expose, segment};
use crate::scale::{leaves_in_time, unspoilt};

/// Inline, spilled, one part, several parts without consent, with consent.
const LENGTHS: [usize; 6] = [0, 8, 300, 5_000, 60_000, 1 << 20];

pub fn transmit_needs_no_receive_for_a_short_message<P: Provider>(bed: &Bed<P>) {
    for flags in [Flags::empty(), Flags::INJECT_COMPLETE, Flags::TRANSMIT_COMPLETE] {
        for length in [0, 8, 300] {
            let bytes = Memory::from(pattern(1, length));
            let world = bed.world(2);
            world.warm_up();
            let send = Send { pieces: bytes.all(), flags, context: 3, ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            // The receiver's engine does not run.
            world.nodes[0].poll();
            assert_eq!(world.waiting(0).0, 1, "{length} bytes, {flags:?}");
            assert_eq!(world.sent(0).context(), 3);
            world.nodes[1].receive(length, None, 4);
            same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "content");
        }
    }
}

/// Who closes has told its peers what it did for them, also those whom it had never to answer before.
pub fn who_closes_has_said_what_was_delivered<P: Provider>(bed: &Bed<P>) {
    let says = |flags| {
        let bytes = Memory::from(pattern(1, 300));
        let mut world = bed.world(2);
        world.nodes[1].receive(300, None, 4);
        let send = Send { pieces: bytes.all(), flags, context: 3, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "content");
        let receiver = world.nodes.pop().expect("the receiver");
        if !leaves_in_time(|| receiver.endpoint.close()) {
            return false;
        }
        assert_eq!(world.sent(0).good().context, 3, "{flags:?}");
        true
    };
    [Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE]
        .into_iter()
        .for_each(|flags| unspoilt(|| says(flags)));
}

pub fn delivery_waits_for_the_receivers_engine<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        for posted_first in [true, false] {
            let bytes = Memory::from(pattern(length as u64, length));
            let into = Memory::zeroed(length);
            let world = bed.world(2);
            world.warm_up();
            let receive = Receive { pieces: into.all(), context: 4, ..Receive::default() };
            if posted_first {
                world.nodes[1].post_receive(&receive).unwrap();
            }
            let flags = Flags::DELIVERY_COMPLETE;
            let send = Send { pieces: bytes.all(), flags, context: 3, ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            for _ in 0..50 {
                world.nodes[0].poll();
            }
            assert_eq!(world.waiting(0).0, 0, "{length} bytes: nobody has received them");
            if !posted_first {
                world.poll(20);
                world.nodes[1].post_receive(&receive).unwrap();
            }
            assert_eq!(world.sent(0).context(), 3);
            if posted_first {
                // "Placed in the user's buffer": the sender knows as soon as it is there.
                same(&into.bytes(), &bytes.bytes(), "delivered");
            }
            assert_eq!(world.received(1).context(), 4);
            same(&into.bytes(), &bytes.bytes(), "content");
            world.nothing_more();
        }
    }
}

pub fn match_waits_until_matched<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        for discard in [false, true] {
            let bytes = Memory::from(pattern(length as u64, length));
            let world = bed.world(2);
            let flags = Flags::MATCH_COMPLETE;
            let tag = Some(6);
            let send = Send { pieces: bytes.all(), flags, tag, context: 3, ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            world.poll(200);
            assert_eq!(world.waiting(0).0, 0, "{length} bytes: nobody has matched them");
            if discard {
                let peek = Flags::PEEK | Flags::DISCARD;
                world.drive("the message is found and discarded", || {
                    let receive = Receive { tag: Some((6, 0)), flags: peek, ..Receive::default() };
                    world.nodes[1].post_receive(&receive).unwrap();
                    world.received(1).errno != Some(Errno::NOMSG)
                });
            } else {
                world.nodes[1].receive(length, tag, 4);
                same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "content");
            }
            assert_eq!(world.sent(0).context(), 3, "{length} bytes");
            world.nothing_more();
        }
    }
}

pub fn acknowledged_messages_arrive_whole_however_the_room<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let levels = [Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE, Flags::TRANSMIT_COMPLETE];
    let mut buffers = Vec::new();
    for round in 0..60u64 {
        let length = [70, 900, 9_000, 30_000, 64_000, 100_000][round as usize % 6];
        let bytes = Memory::from(pattern(round, length));
        if round % 2 == 0 {
            world.nodes[1].receive(length, Some(round), round);
        }
        let send = Send {
            pieces: bytes.all(),
            tag: Some(round),
            data: (round % 3 == 0).then_some(round),
            flags: levels[round as usize % 3],
            context: round,
        };
        world.post(|| world.nodes[0].post_send(1, &send));
        buffers.push(bytes);
        world.poll(round as usize % 3);
    }
    for round in (1..60u64).step_by(2) {
        world.nodes[1].receive(buffers[round as usize].bytes().len(), Some(round), round);
    }
    for _ in 0..60 {
        let received = world.received(1).good();
        let expected = buffers[received.context as usize].bytes();
        same(&received.returned.unwrap(), &expected, "content");
        world.sent(0).good();
    }
    world.nothing_more();
}

pub fn selective_binding_suppresses_success_alone<P: Provider>(bed: &Bed<P>) {
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    for length in [8, 300, 5_000, 1 << 20] {
        let bytes = Memory::from(pattern(1, length));
        let into = Memory::zeroed(length);
        let world = bed.world_with(2, &options);
        let send = Send { pieces: bytes.all(), ..Send::default() };
        let receive = Receive { pieces: into.all(), ..Receive::default() };
        for asked in [false, true] {
            let flags = if asked { Flags::COMPLETION } else { Flags::empty() };
            for expected in [true, false] {
                if expected {
                    world.nodes[1].post_receive(&Receive { flags, context: 2, ..receive }).unwrap();
                }
                world.nodes[0].post_send(1, &Send { flags, context: 1, ..send }).unwrap();
                if !expected {
                    world.poll(10);
                    world.nodes[1].post_receive(&Receive { flags, context: 2, ..receive }).unwrap();
                }
                if asked {
                    assert_eq!(world.sent(0).context(), 1);
                    assert_eq!(world.received(1).context(), 2);
                } else {
                    world.drive("the content arrives", || into.bytes() == bytes.bytes());
                }
                into.scribble();
                world.nothing_more();
            }
        }
        // Errors are reported however they were posted.
        let short = Receive { pieces: into.all(), context: 9, ..Receive::default() };
        let less = Memory::zeroed(length - 1);
        let short = Receive { pieces: less.all(), ..short };
        world.nodes[1].post_receive(&short).unwrap();
        world.nodes[0].post_send(1, &send).unwrap();
        assert_eq!(world.received(1).bad(Errno::TRUNC).context, 9);
        world.nodes[1].post_receive(&Receive { context: 10, ..receive }).unwrap();
        world.nodes[1].endpoint.cancel(10).unwrap();
        assert_eq!(world.received(1).bad(Errno::CANCELED).context, 10);
        world.poll(20);
        world.nothing_more();
    }
}

/// Data that a peer sends with a write is no operation of ours that could ask for a completion: it is
/// told on a selective queue as on others.
pub fn a_selective_queue_tells_of_remote_data<P: Provider>(bed: &Bed<P>) {
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    let (target, from) = (Memory::zeroed(8), Memory::from(pattern(1, 8)));
    let world = bed.world_with(2, &options);
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
    world.nodes[0].post_write(1, &Rma { data: Some(5), ..write }).unwrap();
    let told = world.received(1).good();
    let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
    assert_eq!((told.flags, told.data), (flags, 5));
    same(&target.bytes(), &from.bytes(), "written when the data is told");
    world.nodes[0].post_write(1, &write).unwrap();
    world.poll(20);
    world.nothing_more();
}
