//! Multi-receive buffers (FI_MULTI_RECV): the release comes once, and last.

use kestrel_core::{
    endpoint::OptionName, error::Errno, flags::Flags, memory::Pieces, transport::Provider,
};

use crate::bed::{Bed, Memory, Options, Receive, Send, World, pattern, same};
use crate::completion::Done;

const MULTI: Flags = Flags::MULTI_RECV;

fn post<P: Provider>(world: &World<P>, into: &Memory, flags: Flags, context: u64) {
    let receive =
        Receive { pieces: into.all(), context, flags: flags | MULTI, ..Receive::default() };
    world.nodes[1].post_receive(&receive).unwrap();
}

fn send<P: Provider>(world: &World<P>, bytes: &Memory, context: u64) {
    let send = Send { pieces: bytes.all(), context, ..Send::default() };
    world.post(|| world.nodes[0].post_send(1, &send));
}

fn released(done: &Done) -> bool {
    done.flags.contains(MULTI)
}

/// Checks one message of a buffer.
fn check(done: &Done, into: &Memory, at: usize, bytes: &[u8]) {
    assert_eq!(done.errno, None, "{done:?}");
    assert_eq!(done.flags.difference(MULTI), Flags::MSG | Flags::RECV);
    assert_eq!((done.length, done.source), (bytes.len() as u64, 0), "{done:?}");
    assert_eq!(done.buffer, into.start() + at as u64, "where the message starts");
    same(&into.bytes()[at..at + bytes.len()], bytes, "content");
}

pub fn messages_fill_a_buffer_one_after_the_other<P: Provider>(bed: &Bed<P>) {
    for expected in [true, false] {
        let into = Memory::zeroed(1000);
        let length = |nth| [190, 0, 410, 300, 60][nth as usize];
        let messages: Vec<_> = (0..5).map(|nth| Memory::from(pattern(nth, length(nth)))).collect();
        let world = bed.world(2);
        world.nodes[1].endpoint.set_option(OptionName::MinMultiRecv, 100).unwrap();
        if expected {
            post(&world, &into, Flags::empty(), 7);
        }
        for (nth, message) in messages.iter().enumerate() {
            send(&world, message, nth as u64);
        }
        if !expected {
            world.poll(20);
            post(&world, &into, Flags::empty(), 7);
        }
        let mut at = 0;
        for (nth, message) in messages.iter().take(4).enumerate() {
            let done = world.received(1);
            assert_eq!(done.context, 7);
            check(&done, &into, at, &message.bytes());
            at += message.bytes().len();
            // 100 are left after the third 900 bytes: no less than the minimum.
            assert!(!released(&done), "after message {nth}: {at} bytes are filled");
            assert_eq!(world.sent(0).context(), nth as u64);
        }
        let done = world.received(1);
        check(&done, &into, at, &messages[4].bytes());
        assert!(released(&done), "40 bytes are left, less than the minimum");
        world.sent(0).good();
        world.nothing_more();
    }
}

pub fn the_release_waits_for_rendezvous_in_flight<P: Provider>(bed: &Bed<P>) {
    let long = Memory::from(pattern(1, 900_000));
    let short = Memory::from(pattern(2, 50));
    for expected in [true, false] {
        let into = Memory::zeroed(1_000_000);
        let world = bed.world(2);
        world.warm_up();
        world.nodes[1].endpoint.set_option(OptionName::MinMultiRecv, 99_960).unwrap();
        if expected {
            post(&world, &into, Flags::empty(), 1);
        }
        send(&world, &long, 10);
        send(&world, &short, 11);
        if !expected {
            world.poll(5);
            post(&world, &into, Flags::empty(), 1);
        }
        let (first, second) = (world.received(1), world.received(1));
        assert!(!released(&first), "{first:?}");
        assert!(released(&second), "the last one releases: {second:?}");
        for done in [&first, &second] {
            if done.length == 50 {
                check(done, &into, 900_000, &short.bytes());
            } else {
                check(done, &into, 0, &long.bytes());
            }
        }
        world.sent(0).good();
        world.sent(0).good();
        world.nothing_more();
    }
}

pub fn suppressed_messages_still_release<P: Provider>(bed: &Bed<P>) {
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    for length in [100, 5_000, 200_000] {
        let bytes = Memory::from(pattern(1, length));
        let into = Memory::zeroed(3 * length);
        let world = bed.world_with(2, &options);
        post(&world, &into, Flags::empty(), 8);
        for context in 0..3 {
            send(&world, &bytes, context);
        }
        let done = world.received(1).good();
        assert_eq!(done.context, 8);
        assert_eq!(done.flags, MULTI, "no message came with it");
        for nth in 0..3 {
            same(&into.bytes()[nth * length..(nth + 1) * length], &bytes.bytes(), "content");
        }
        world.nothing_more();
    }
}

pub fn what_overflows_the_last_slot_is_cut_and_released<P: Provider>(bed: &Bed<P>) {
    for length in [100, 5_000, 70_000, 300_000] {
        for expected in [true, false] {
            let bytes = Memory::from(pattern(1, length));
            let into = Memory::zeroed(2 * length - 10);
            let world = bed.world(2);
            if expected {
                post(&world, &into, Flags::empty(), 8);
            }
            send(&world, &bytes, 0);
            send(&world, &bytes, 1);
            if !expected {
                world.poll(10);
                post(&world, &into, Flags::empty(), 8);
            }
            let (mut good, mut cut, mut releases, mut last) = (0, 0, 0, false);
            while releases == 0 {
                let done = world.received(1);
                last = released(&done);
                releases += usize::from(last);
                match done.errno {
                    None if done.length > 0 => {
                        check(&done, &into, 0, &bytes.bytes());
                        good += 1;
                    }
                    None => {}
                    Some(errno) => {
                        assert_eq!((errno, done.overflow), (Errno::TRUNC, 10));
                        assert_eq!(done.length, length as u64 - 10);
                        assert_eq!(done.buffer, into.start() + length as u64);
                        cut += 1;
                    }
                }
            }
            assert_eq!((good, cut, last), (1, 1, true));
            same(&into.bytes()[length..], &bytes.bytes()[..length - 10], "what fits");
            world.sent(0).good();
            world.sent(0).good();
            world.nothing_more();
        }
    }
}

pub fn cancel_releases_a_buffer_once<P: Provider>(bed: &Bed<P>) {
    let into = Memory::zeroed(1000);
    let world = bed.world(2);
    post(&world, &into, Flags::empty(), 8);
    world.nodes[0].send(pattern(1, 100), 1, None, 0);
    let first = world.received(1);
    check(&first, &into, 0, &pattern(1, 100));
    assert!(!released(&first));
    world.nodes[1].endpoint.cancel(8).unwrap();
    let canceled = world.received(1).bad(Errno::CANCELED);
    assert_eq!(canceled.context, 8);
    assert!(released(&canceled), "the buffer is the application's again");
    assert!(world.nodes[1].endpoint.cancel(8).is_err());
    world.sent(0).good();
    world.nothing_more();
}

pub fn cancel_waits_for_rendezvous_in_flight<P: Provider>(bed: &Bed<P>) {
    let long = Memory::from(pattern(1, 900_000));
    let into = Memory::zeroed(1_000_000);
    let world = bed.world(2);
    world.warm_up();
    post(&world, &into, Flags::empty(), 8);
    send(&world, &long, 0);
    // The receiver matches the start of it; the sender does not go on.
    for _ in 0..20 {
        world.nodes[1].poll();
    }
    world.nodes[1].endpoint.cancel(8).unwrap();
    let (first, second) = (world.received(1), world.received(1));
    check(&first, &into, 0, &long.bytes());
    assert!(!released(&first), "the release is last: {first:?}");
    assert!(released(&second.bad(Errno::CANCELED)));
    world.sent(0).good();
    world.nothing_more();
}

pub fn a_safe_buffer_comes_back_with_the_release<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for length in [500, 30_000] {
        world.nodes[1].endpoint.receive_multi(vec![0; 2 * length], u64::MAX, 5).unwrap();
        world.nodes[0].send(pattern(1, length), 1, None, 0);
        assert!(world.received(1).good().returned.is_none());
        world.nodes[0].send(pattern(2, length), 1, None, 0);
        let buffer = world.received(1).good().returned.expect("the buffer");
        same(&buffer[..length], &pattern(1, length), "first");
        same(&buffer[length..], &pattern(2, length), "second");
        world.sent(0).good();
        world.sent(0).good();
    }
    world.nothing_more();
}

pub fn tagged_buffers_take_what_matches<P: Provider>(bed: &Bed<P>) {
    let into = Memory::zeroed(300);
    let world = bed.world(2);
    let receive = Receive {
        pieces: into.all(),
        tag: Some((0x10, 0xf)),
        flags: MULTI,
        context: 1,
        ..Receive::default()
    };
    world.nodes[1].post_receive(&receive).unwrap();
    for tag in [0x11, 0x21, 0x12, 0x13] {
        world.post(|| world.nodes[0].endpoint.inject_tagged(&pattern(tag, 100), 1, tag));
    }
    for (nth, tag) in [0x11, 0x12, 0x13].into_iter().enumerate() {
        let done = world.received(1).good();
        assert_eq!((done.tag, done.length), (tag, 100));
        assert_eq!(done.buffer, into.start() + 100 * nth as u64);
        same(&into.bytes()[100 * nth..100 * (nth + 1)], &pattern(tag, 100), "content");
        assert_eq!(released(&done), nth == 2);
    }
    world.nodes[1].receive(100, Some(0x21), 2);
    assert_eq!(world.received(1).context(), 2);
    world.nothing_more();
}

pub fn the_minimum_is_an_option<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(1);
    let endpoint = &world.nodes[0].endpoint;
    assert_eq!(endpoint.option(OptionName::MinMultiRecv).unwrap(), 64);
    endpoint.set_option(OptionName::MinMultiRecv, 4096).unwrap();
    assert_eq!(endpoint.option(OptionName::MinMultiRecv).unwrap(), 4096);
    endpoint.set_option(OptionName::MinMultiRecv, 0).unwrap();
    assert_eq!(endpoint.option(OptionName::MinMultiRecv).unwrap(), 0);
    // Released when it is full, and not before.
    let (into, from) = (Memory::zeroed(10), Memory::from(pattern(5, 10)));
    let receive = Receive { pieces: into.all(), flags: Flags::MULTI_RECV, ..Receive::default() };
    world.nodes[0].post_receive(&Receive { context: 9, ..receive }).unwrap();
    for (part, last) in [(0, false), (7, false), (9, true)] {
        let length = if part == 0 {
            7
        } else if last {
            1
        } else {
            2
        };
        let pieces = Pieces::One(from.piece().part(part, length));
        world.nodes[0].post_send(0, &Send { pieces, ..Send::default() }).unwrap();
        world.sent(0).good();
        assert_eq!(released(&world.received(0).good()), last);
    }
    same(&into.bytes(), &from.bytes(), "content");
    assert!(endpoint.set_option(OptionName::CmDataSize, 1).is_err());
    assert!(OptionName::from_number(99).is_err());
}
