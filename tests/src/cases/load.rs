//! Many messages, many endpoints, little room.

use std::time::Instant;

use kestrel_core::{
    domain::{DomainOptions, Sharing},
    endpoint::{EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    transport::Provider,
};

use crate::bed::{Bed, Memory, Options, Receive, Send, pattern, same};
use crate::one_sided::{BOTH, Rma, expose, segment};
use crate::scale::{PATIENCE, scaled};

pub fn a_full_transmit_queue_has_no_side_effect<P: Provider>(bed: &Bed<P>) {
    let endpoint = EndpointOptions { transmit_size: 8, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    let bytes = Memory::from(pattern(1, 200_000));
    let mut refused = 0;
    let mut posted = 0u64;
    // Nobody receives: rendezvous pile up to the size of the queue.
    for _ in 0..20 {
        let send =
            Send { pieces: bytes.all(), tag: Some(posted), context: posted, ..Send::default() };
        match world.nodes[0].post_send(1, &send) {
            Ok(()) => posted += 1,
            Err(error) => {
                assert_eq!(error, PostError::Again);
                assert_eq!(error.errno(), Errno::AGAIN);
                refused += 1;
            }
        }
        world.poll(3);
    }
    assert_eq!((posted, refused), (8, 12));
    let back = world.nodes[0].endpoint.send(vec![5; 100_000], 1, 99).unwrap_err();
    assert_eq!((back.error, back.buffer.len()), (PostError::Again, 100_000));
    for tag in 0..posted {
        world.nodes[1].receive(200_000, Some(tag), tag);
        same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "content");
        assert_eq!(world.sent(0).context(), tag);
    }
    // None of those that were refused has arrived.
    world.nothing_more();
    world.nodes[0].send(pattern(2, 10), 1, Some(99), 1);
    world.nodes[1].receive(10, Some(99), 2);
    world.received(1).good();
}

/// Nobody else drives a sender that posts again and again, and reads nothing: it gets a place all the same.
pub fn who_only_posts_gets_a_place<P: Provider>(bed: &Bed<P>) {
    const SIZE: usize = 8;
    let endpoint = EndpointOptions { transmit_size: SIZE, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    world.warm_up();
    let bytes = Memory::from(pattern(1, 200_000));
    let send = Send { pieces: bytes.all(), ..Send::default() };
    let (from, to) = (&world.nodes[0], &world.nodes[1]);
    let start = Instant::now();
    for nth in 0..2 * SIZE as u64 {
        to.receive(200_000, None, nth);
        while let Err(error) = from.post_send(1, &send) {
            assert_eq!(error, PostError::Again);
            to.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: message {nth}");
        }
    }
    for nth in 0..2 * SIZE as u64 {
        assert_eq!(world.received(1).context(), nth);
        world.sent(0).good();
    }
}

/// Nor do two who inject to each other, and read nothing, stand still when there is no room between them.
pub fn who_only_injects_gets_room<P: Provider>(bed: &Bed<P>) {
    let (world, count) = (bed.world(2), scaled(3_000, 6_000, 20_000));
    world.warm_up();
    let (mut sent, start) = ([0; 2], Instant::now());
    while sent != [count; 2] {
        for (from, to) in [(0, 1), (1, 0)] {
            let node = &world.nodes[from];
            match sent[from] {
                done if done == count => node.poll(),
                _ => sent[from] += u64::from(node.endpoint.inject(&[7; 8], to).is_ok()),
            }
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {sent:?}");
    }
    for node in [0, 1] {
        for nth in 0..count {
            world.nodes[node].receive(8, None, nth);
            assert_eq!(world.received(node).context(), nth);
        }
    }
}

/// "a lower bound on the number of transmit operations that may be posted … without that operation
/// returning -FI_EAGAIN": operations of all kinds.
pub fn what_is_left_counts_operations_of_all_kinds<P: Provider>(bed: &Bed<P>) {
    const SIZE: usize = 8;
    let endpoint = EndpointOptions { transmit_size: SIZE, ..EndpointOptions::default() };
    let memory = Memory::from(pattern(1, 200_000));
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let segments = [segment(&region, 0, 200_000)];
    let rma = Rma { pieces: memory.all(), segments: &segments, ..Rma::default() };
    let (node, send) = (&world.nodes[0], Send { pieces: memory.all(), ..Send::default() });
    let mut posted = 0;
    while node.endpoint.sends_left().unwrap() > 0 {
        let done =
            if posted % 2 == 0 { node.post_write(1, &rma) } else { node.post_send(1, &send) };
        assert_eq!(done, Ok(()), "after {posted}");
        posted += 1;
        assert!(posted <= 1_000, "there is always more left");
    }
    (0..posted / 2).for_each(|_| world.nodes[1].receive(200_000, None, 1));
    (0..posted).for_each(|_| drop(world.sent(0).good()));
    assert_eq!(node.endpoint.sends_left(), Ok(SIZE));
}

/// The same while another thread drives the endpoint, however long: here the one that asks does so.
pub fn what_is_left_may_be_posted_while_others_drive<P: Provider>(bed: &Bed<P>) {
    let bed = &Bed { provider: bed.provider.clone(), sharing: Sharing::Shared };
    let world = bed.world(2);
    let (node, bytes) = (&world.nodes[0], Memory::from(pattern(1, 8)));
    let (send, receive) = (Send { pieces: bytes.all(), ..Send::default() }, Receive::default());
    let left = [node.endpoint.sends_left().unwrap(), node.endpoint.receives_left().unwrap()];
    assert!(left.iter().all(|&left| left > 0), "nothing is under way");
    let engine_is_ours = node.endpoint.inspect(|_| {
        (0..left[0]).for_each(|_| node.post_send(1, &send).unwrap());
        (0..left[1]).for_each(|_| node.post_receive(&receive).unwrap());
        // As few as there are.
        let more = (0..10_000).find_map(|_| node.post_send(1, &send).err());
        assert_eq!(more, Some(PostError::Again), "there is no end");
    });
    engine_is_ours.unwrap();
}

pub fn an_exhausted_budget_loses_and_blocks_nothing<P: Provider>(bed: &Bed<P>) {
    let domain = DomainOptions { unexpected_budget: 100_000, ..DomainOptions::default() };
    for length in [8, 1_000, 7_000, 60_000] {
        let world = bed.world_with(3, &Options { domain: domain.clone(), ..Options::default() });
        let count = scaled(100u64, 400, 1000);
        // Two senders, far beyond the budget, all unexpected.
        let bytes = Memory::from(pattern(length as u64, length));
        for nth in 0..count {
            for from in [0, 1] {
                let send =
                    Send { pieces: bytes.all(), tag: Some(nth), context: nth, ..Send::default() };
                world.post(|| world.nodes[from].post_send(2, &send));
            }
            if nth % 16 == 0 {
                world.poll(1);
            }
        }
        world.poll(50);
        // A later tag arrives, past all that nobody takes.
        for from in [0, 1] {
            world.nodes[2].receive(64, Some(1 << 40), from);
            world.nodes[from as usize].send(pattern(from, 64), 2, Some(1 << 40), 7777);
            let received = world.received(2).good();
            assert_eq!((received.context, received.tag), (from, 1 << 40));
        }
        // The last first, then all: whole, and in order for each sender and tag.
        for nth in (0..count).rev() {
            for _ in 0..2 {
                world.nodes[2].receive(length, Some(nth), nth);
                let received = world.received(2).good();
                assert_eq!(received.tag, nth);
                same(&received.returned.unwrap(), &bytes.bytes(), "within the budget or not");
            }
        }
        for from in [0, 1] {
            for _ in 0..=count {
                world.sent(from).good();
            }
        }
        world.nothing_more();
    }
}

pub fn fifty_endpoints_talk_all_to_all<P: Provider>(bed: &Bed<P>) {
    let count = scaled(12, 50, 50);
    let world = bed.world(count);
    let length = |from: usize, to: usize| [0, 8, 100, 3_000, 20_000][(from + to) % 5];
    for to in 0..count {
        for from in 0..count {
            let buffer = vec![0; length(from, to)];
            let context = from as u64;
            world.nodes[to].endpoint.receive_tagged(buffer, context, 7, 0, context).unwrap();
        }
    }
    for step in 0..count {
        for from in 0..count {
            let to = (from + step) % count;
            let bytes = pattern((from * 100 + to) as u64, length(from, to));
            world.nodes[from].send(bytes, to as u64, Some(7), to as u64);
        }
    }
    for node in 0..count {
        for _ in 0..count {
            let received = world.received(node).good();
            assert_eq!(received.context, received.source);
            let from = received.source as usize;
            let expected = pattern((from * 100 + node) as u64, length(from, node));
            same(&received.returned.unwrap(), &expected, "all to all");
            world.sent(node).good();
        }
    }
    world.nothing_more();
}

pub fn stuck_peers_do_not_stop_the_others<P: Provider>(bed: &Bed<P>) {
    // Seven receivers never run: whatever the sender shares among its peers,
    // the eighth gets some of it.
    let world = bed.world(9);
    world.warm_up();
    let bytes = Memory::from(pattern(1, 6_000));
    for round in 0..20u64 {
        for to in 1..8 {
            let send = Send { pieces: bytes.all(), tag: Some(round), ..Send::default() };
            world.nodes[0].post_send(to, &send).unwrap();
        }
    }
    for round in 0..30u64 {
        let length = [6_000, 100_000, 8][round as usize % 3];
        world.nodes[8].receive(length, Some(round), round);
        world.nodes[0].send(pattern(round, length), 8, Some(round), 50 + round);
        let start = std::time::Instant::now();
        let mut arrived = None;
        while arrived.is_none() {
            world.nodes[0].poll();
            world.nodes[8].poll();
            arrived = (world.waiting(8).1 > 0).then_some(());
            assert!(start.elapsed() < crate::scale::PATIENCE, "in vain: message {round}");
        }
        let received = world.received_already(8).good();
        assert_eq!(received.context, round);
        same(&received.returned.unwrap(), &pattern(round, length), "past the stuck ones");
    }
    // They had only not been asked.
    for to in 1..8 {
        for round in 0..20 {
            world.nodes[to].receive(6_000, Some(round), round);
            same(&world.received(to).good().returned.unwrap(), &bytes.bytes(), "late");
        }
    }
}

pub fn a_window_of_everything_at_once<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let count = scaled(300u64, 2_000, 20_000);
    let length = |nth: u64| [0, 8, 48, 49, 392, 1_000, 8_192, 12_000, 66_000][nth as usize % 9];
    let levels = [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE, Flags::FENCE];
    let all = Memory::from(pattern(5, 66_000));
    let mut received = 0u64;
    for nth in 0..count {
        let piece = all.piece().part(0, length(nth));
        let send = Send {
            pieces: kestrel_core::memory::Pieces::One(piece),
            tag: Some(nth % 5),
            data: Some(nth),
            flags: levels[nth as usize / 7 % 4],
            context: nth,
        };
        world.post(|| world.nodes[0].post_send(1, &send));
        if nth % 3 == 0 {
            world.nodes[0].poll();
        }
        if nth >= 40 {
            take(&world, received, length(received), &all);
            received += 1;
        }
    }
    while received < count {
        take(&world, received, length(received), &all);
        received += 1;
    }
    for _ in 0..count {
        world.sent(0).good();
    }
    world.nothing_more();
}

fn take<P: Provider>(world: &crate::bed::World<P>, nth: u64, length: usize, all: &Memory) {
    world.nodes[1].receive(length, Some(nth % 5), nth);
    let received = world.received(1).good();
    assert_eq!((received.context, received.data), (nth, nth));
    same(&received.returned.unwrap(), &all.bytes()[..length], "in the window");
}
