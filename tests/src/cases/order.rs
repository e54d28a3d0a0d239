//! What overtakes what: nothing, between two endpoints.

use std::collections::VecDeque;

use kestrel_core::{flags::Flags, memory::Pieces, transport::Provider};

use crate::bed::{Bed, Memory, Options, Receive, Send, pattern, same};

/// Lengths that take every path through the protocol, in turn.
fn length(nth: usize) -> usize {
    [8, 70_000, 0, 300, 5_000, 48, 200_000, 49, 9_000, 64 << 10, 1][nth % 11]
}

pub fn messages_of_one_tag_keep_their_order<P: Provider>(bed: &Bed<P>) {
    const COUNT: usize = 66;
    for (tag, posted_first) in [(Some(4), true), (Some(4), false), (None, true), (None, false)] {
        let world = bed.world(2);
        let post =
            || (0..COUNT).for_each(|nth| world.nodes[1].receive(length(nth), tag, nth as u64));
        if posted_first {
            post();
        }
        for nth in 0..COUNT {
            let bytes = pattern(nth as u64, length(nth));
            if length(nth) <= 48 && nth % 2 == 0 {
                match tag {
                    Some(tag) => {
                        world.post(|| world.nodes[0].endpoint.inject_tagged(&bytes, 1, tag))
                    }
                    None => world.post(|| world.nodes[0].endpoint.inject(&bytes, 1)),
                }
            } else {
                world.nodes[0].send(bytes, 1, tag, nth as u64);
            }
        }
        if !posted_first {
            world.poll(10);
            post();
        }
        // Each receive has the room of its own message and no other: a message
        // that overtakes is cut or differs.
        for _ in 0..COUNT {
            let received = world.received(1).good();
            let nth = received.context as usize;
            same(&received.returned.unwrap(), &pattern(nth as u64, length(nth)), "in order");
        }
    }
}

pub fn matching_takes_the_earliest_receive<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(3);
    // Any source and any tag; directed; exact: in posting order.
    let post = |from, tag, ignore, context| {
        let receive = Receive { from, tag: Some((tag, ignore)), context, ..Receive::default() };
        world.nodes[2].post_receive(&receive).unwrap();
    };
    post(0, 5, 0, 1);
    post(u64::MAX, 0, u64::MAX, 2);
    post(1, 4, 1, 3);
    post(u64::MAX, 5, 0, 4);
    let mut expected = VecDeque::from([(1, 5, 2), (0, 5, 1), (1, 5, 3), (1, 5, 4)]);
    while let Some((from, tag, context)) = expected.pop_front() {
        world.nodes[from].endpoint.inject_tagged(&[], 2, tag).unwrap();
        let received = world.received(2).good();
        assert_eq!((received.context, received.source), (context, from as u64));
    }
    world.nothing_more();
}

pub fn directed_receives_take_from_their_source<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 5_000, 100_000] {
        for tag in [None, Some(1)] {
            for posted_first in [true, false] {
                let world = bed.world(3);
                let into = [Memory::zeroed(length), Memory::zeroed(length)];
                let post = || {
                    for from in [1, 0] {
                        let receive = Receive {
                            pieces: into[from].all(),
                            from: from as u64,
                            tag: tag.map(|tag| (tag, 0)),
                            context: from as u64,
                            ..Receive::default()
                        };
                        world.nodes[2].post_receive(&receive).unwrap();
                    }
                };
                if posted_first {
                    post();
                }
                for from in 0..2 {
                    world.nodes[from].send(pattern(from as u64, length), 2, tag, 0);
                }
                if !posted_first {
                    world.poll(30);
                    post();
                }
                for _ in 0..2 {
                    let received = world.received(2).good();
                    assert_eq!(received.context, received.source);
                    let expected = pattern(received.source, length);
                    same(&into[received.source as usize].bytes(), &expected, "directed");
                }
            }
        }
    }
}

pub fn tags_count_in_all_64_bits<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let tags: Vec<u64> = (0..64).map(|bit| 1 << bit).chain([0, u64::MAX]).collect();
    for (context, &tag) in tags.iter().enumerate() {
        world.nodes[1].receive(8, Some(tag), context as u64);
    }
    for &tag in tags.iter().rev() {
        world.nodes[0].endpoint.inject_tagged(&tag.to_le_bytes(), 1, tag).unwrap();
        let received = world.received(1).good();
        assert_eq!((tags[received.context as usize], received.tag), (tag, tag));
    }
    // And each bit can be ignored.
    for bit in 0..64 {
        let receive = Receive { tag: Some((0, 1 << bit)), context: bit, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        let wrong = 1u64 << ((bit + 1) % 64);
        world.nodes[0].endpoint.inject_tagged(&[], 1, wrong).unwrap();
        world.nodes[0].endpoint.inject_tagged(&[], 1, 1 << bit).unwrap();
        let received = world.received(1).good();
        assert_eq!((received.context, received.tag), (bit, 1 << bit));
        let rest = Receive { tag: Some((wrong, 0)), context: 99, ..Receive::default() };
        world.nodes[1].post_receive(&rest).unwrap();
        assert_eq!(world.received(1).context(), 99);
    }
    world.nothing_more();
}

/// "Applies only to connectionless endpoints with the FI_DIRECTED_RECV capability enabled, otherwise
/// this field is ignored", whatever it says.
pub fn a_source_is_ignored_without_directed_receives<P: Provider>(bed: &Bed<P>) {
    let mut options = Options::default();
    options.endpoint.capabilities.remove(Flags::DIRECTED_RECV);
    let world = bed.world_with(3, &options);
    let node = &world.nodes[2];
    for (tag, sources) in [Some(5), None]
        .into_iter()
        .flat_map(|tag| [[1, 0], [4711, 1 << 63]].map(|sources| (tag, sources)))
    {
        for early in [true, false] {
            let post = || {
                for (context, from) in (0..).zip(sources) {
                    let tag = tag.map(|tag| (tag, 0));
                    let receive = Receive { from, tag, context, ..Receive::default() };
                    node.post_receive(&receive).unwrap();
                }
            };
            if early {
                post();
            }
            for from in [0, 1] {
                world.nodes[from].send(Vec::new(), 2, tag, 9);
                assert_eq!(world.sent(from).context(), 9);
                world.poll(20);
            }
            if !early {
                post();
            }
            let received = [(); 2].map(|()| world.received(2).good());
            let received = received.map(|done| (done.context, done.source));
            assert_eq!(received, [(0, 0), (1, 1)], "in the order of posting and of arrival");
        }
    }
    world.nothing_more();
}

pub fn a_fence_waits_for_its_own_peer_alone<P: Provider>(bed: &Bed<P>) {
    for length in [100, 100_000] {
        let (bytes, short) = (Memory::from(pattern(1, length)), Memory::from(pattern(2, 8)));
        let world = bed.world(3);
        world.warm_up();
        let slow = Send {
            pieces: bytes.all(),
            tag: Some(1),
            flags: Flags::MATCH_COMPLETE,
            context: 1,
            ..Send::default()
        };
        let fenced = Send {
            pieces: short.all(),
            tag: Some(2),
            flags: Flags::FENCE,
            context: 2,
            ..Send::default()
        };
        let after = Send { pieces: Pieces::Many(&[]), tag: Some(3), context: 3, ..Send::default() };
        for to in [1, 2] {
            world.nodes[to as usize].receive(8, Some(2), 2);
            world.nodes[to as usize].receive(8, Some(3), 3);
        }
        world.nodes[0].post_send(1, &slow).unwrap();
        world.nodes[0].post_send(1, &fenced).unwrap();
        world.nodes[0].post_send(1, &after).unwrap();
        world.poll(50);
        world.nothing_more();
        // The other peer does not wait.
        world.nodes[0].post_send(2, &fenced).unwrap();
        assert_eq!(world.sent(0).context(), 2);
        assert_eq!(world.received(2).context(), 2);
        world.nothing_more();
        world.nodes[1].receive(length, Some(1), 1);
        let received: Vec<u64> = (0..3).map(|_| world.received(1).context()).collect();
        assert_eq!(received, [1, 2, 3]);
        let sent: Vec<u64> = (0..3).map(|_| world.sent(0).context()).collect();
        assert_eq!(sent, [1, 2, 3]);
        world.nothing_more();
    }
}
