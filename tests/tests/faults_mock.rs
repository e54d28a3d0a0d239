//! Faults on demand: refused and late connections, no room, dying and returning
//! peers.

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    domain::DomainOptions,
    endpoint::{EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    mock::{MockOptions, MockProvider},
    transport::Limits,
};
use kestrel_tests::{
    bed::{Bed, Memory, Options, Receive, Send, World, pattern, same},
    contexts::{Portal, counts, next, nothing_more, two},
    mock::{mock_bed, tight},
};

fn bed() -> Bed<MockProvider> {
    mock_bed(MockOptions::default())
}

const LENGTHS: [usize; 4] = [8, 300, 9_000, 200_000];

/// Two manners of moving a message take turns until it is known which is faster: packets are tried as
/// they will go, in sight of who waits for them.
#[test]
fn packets_are_tried_in_sight() {
    const LENGTH: usize = 12 << 10;
    // Fewer than a comparison takes.
    const TURNS: u64 = 20;
    const TRIES: usize = 50;
    let defaults = MockOptions::default();
    let limits = Limits { short: 1 << 10, contested: true, ..defaults.limits };
    // One that loses its core in the middle may be out of the race at once.
    let tries_both = || {
        let bed = mock_bed(MockOptions { limits, read_remote: true, ..defaults.clone() });
        let world = bed.world(2);
        for turn in 0..2 * TURNS {
            let (from, to) = ((turn % 2) as usize, (1 - turn % 2) as usize);
            world.nodes[to].receive(LENGTH, Some(1), turn);
            world.nodes[from].send(pattern(turn, LENGTH), to as u64, Some(1), turn);
            same(&world.received(to).good().returned.unwrap(), &pattern(turn, LENGTH), "a turn");
            world.sent(from).good();
        }
        world.nodes.iter().all(|node| {
            let address = node.endpoint.address();
            let read = bed.provider.copied(address).0 / LENGTH;
            let shown = bed.provider.shown(address);
            assert!(read + shown >= TURNS as usize - 1, "{read} {shown}");
            read >= 8 && shown >= 8
        })
    };
    assert!((0..TRIES).any(|_| tries_both()));
}

#[test]
fn a_refused_connection_fails_what_waits_and_the_next_send_tries_again() {
    let bed = bed();
    for length in LENGTHS {
        let world = bed.world(2);
        bed.provider.refuse(world.nodes[1].endpoint.address(), 1, Errno::CONNREFUSED);
        for context in 0..3 {
            world.nodes[0].send(pattern(1, length), 1, Some(1), context);
        }
        let refused = world.nodes[0].endpoint.inject(&[1; 8], 1);
        assert!(matches!(refused, Err(PostError::Unreachable { errno: Errno::CONNREFUSED, .. })));
        for context in 0..3 {
            let error = world.sent(0).bad(Errno::CONNREFUSED);
            assert_eq!((error.context, error.returned.unwrap().len()), (context, length));
        }
        world.nodes[0].send(pattern(2, length), 1, Some(1), 9);
        world.nodes[1].receive(length, Some(1), 1);
        same(&world.received(1).good().returned.unwrap(), &pattern(2, length), "again");
        assert_eq!(world.sent(0).context(), 9);
        world.nothing_more();
    }
}

#[test]
fn a_reply_that_cannot_be_sent_harms_nobody() {
    let bed = bed();
    let world = bed.world(2);
    // The receiver cannot connect back to consent.
    bed.provider.refuse(world.nodes[0].endpoint.address(), 1, Errno::CONNREFUSED);
    world.nodes[1].receive(200_000, Some(1), 1);
    world.nodes[0].send(pattern(1, 200_000), 1, Some(1), 2);
    world.received(1).bad(Errno::CONNREFUSED);
    assert!(world.sent(0).errno.is_some(), "its sender does not wait for ever");
    // Both find each other again.
    world.nodes[1].receive(200_000, Some(2), 3);
    world.nodes[0].send(pattern(2, 200_000), 1, Some(2), 4);
    same(&world.received(1).good().returned.unwrap(), &pattern(2, 200_000), "again");
    assert_eq!(world.sent(0).context(), 4);
    world.nothing_more();
}

#[test]
fn late_connections_keep_everything_in_order() {
    for options in [MockOptions::default(), tight()] {
        let bed = mock_bed(options);
        bed.provider.delay_connections(100);
        let world = bed.world(3);
        for nth in 0..30u64 {
            let length = LENGTHS[nth as usize % 4];
            world.nodes[(nth % 2) as usize].send(pattern(nth, length), 2, Some(7), nth);
        }
        for nth in 0..30u64 {
            let receive = vec![0; LENGTHS[nth as usize % 4]];
            world.nodes[2].endpoint.receive_tagged(receive, nth % 2, 7, 0, nth).unwrap();
        }
        for _ in 0..30 {
            let received = world.received(2).good();
            let expected = pattern(received.context, LENGTHS[received.context as usize % 4]);
            same(&received.returned.unwrap(), &expected, "late");
        }
        for nth in 0..30 {
            world.sent(nth % 2).good();
        }
        world.nothing_more();
    }
}

/// Discards a message of which the first packet alone has come, once `find` took it.
#[test]
fn what_is_discarded_early_is_done_when_all_of_it_has_come() {
    for claim_first in [false, true] {
        for flags in [Flags::MATCH_COMPLETE, Flags::DELIVERY_COMPLETE] {
            let bed = mock_bed(tight());
            let world = bed.world(2);
            world.warm_up();
            let bytes = Memory::from(pattern(1, 9_000));
            let send = Send { pieces: bytes.all(), tag: Some(5), flags, ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            // Its lane holds three packets, and this message takes seven.
            bed.provider.block(world.nodes[1].endpoint.address(), usize::MAX);
            let peek = Receive { tag: Some((5, 0)), context: 7, ..Receive::default() };
            let first = if claim_first { Flags::CLAIM } else { Flags::DISCARD };
            world.nodes[1].post_receive(&Receive { flags: Flags::PEEK | first, ..peek }).unwrap();
            assert_eq!(world.received(1).context(), 7);
            if claim_first {
                let flags = Flags::CLAIM | Flags::DISCARD;
                world.nodes[1].post_receive(&Receive { flags, ..peek }).unwrap();
                assert_eq!(world.received(1).context(), 7);
            }
            world.poll(20);
            assert_eq!(world.waiting(0), (0, 0), "{flags:?}: it has not all come");
            bed.provider.block(world.nodes[1].endpoint.address(), 0);
            world.sent(0).good();
            world.nothing_more();
        }
    }
}

/// The same of one that is still copied in, and lies in the lane until all of it is there.
#[test]
fn what_is_discarded_in_sight_does_not_come_again() {
    for options in [MockOptions::default(), tight()] {
        // Of which half is seen for a while, or so long that nobody waits for it.
        for tag in [5, 6, 7] {
            let bed = mock_bed(options.clone());
            let world = bed.world(2);
            world.warm_up();
            let address = world.nodes[1].endpoint.address();
            let bytes = Memory::from(pattern(1, 200_000));
            // Question and answer, until there is credit for the start of the next one.
            for turn in 0..8 {
                let (from, to) = (turn % 2, 1 - turn % 2);
                world.nodes[to].receive(200_000, None, 9);
                world.nodes[from].send(bytes.bytes(), to as u64, None, 9);
                world.received(to).good();
                world.sent(from).good();
            }
            let (send, shown) = (
                Send { pieces: bytes.all(), tag: Some(tag), ..Send::default() },
                bed.provider.shown(address),
            );
            world.nodes[0].post_send(1, &send).unwrap();
            assert!(bed.provider.shown(address) > shown, "it can be seen");
            let (flags, tag) = (Flags::PEEK | Flags::DISCARD, Some((tag, 0)));
            let discard = Receive { tag, context: 7, flags, ..Receive::default() };
            world.nodes[1].post_receive(&discard).unwrap();
            assert_eq!(world.received(1).context(), 7);
            world.sent(0).good();
            world.poll(50);
            world.nodes[1].post_receive(&discard).unwrap();
            world.received(1).bad(Errno::NOMSG);
            world.nodes[1].receive(200_000, None, 9);
            world.nodes[0].send(bytes.bytes(), 1, None, 9);
            world.sent(0).good();
            same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "the next one");
            world.nothing_more();
        }
    }
}

/// A receive context closes while a message for one of its receives lies half copied in: whoever waits
/// for it is told, and its lane goes on.
#[test]
fn what_is_given_up_in_sight_is_refused() {
    let defaults = MockOptions::default();
    let limits = Limits { short: 1 << 10, ..defaults.limits };
    for length in [4_000, 200_000] {
        let bed = mock_bed(MockOptions { limits, ..defaults.clone() });
        let [mut ours, theirs] = two(&bed, counts(1, 1), counts(1, 1));
        let bytes = Memory::from(pattern(1, length));
        let turn = |from: &Portal<_>, to: &Portal<_>, all: &[&Portal<_>]| {
            to.receive[0].endpoint.receive(vec![0; 200_000], FI_ADDR_UNSPEC, 9).unwrap();
            from.transmit[0].endpoint.send(bytes.bytes(), 1, 9).unwrap();
            next(&to.receive[0], all).good();
            next(&from.transmit[0], all).good();
        };
        for _ in 0..4 {
            turn(&theirs, &ours, &[&ours, &theirs]);
            turn(&ours, &theirs, &[&ours, &theirs]);
        }
        let context = ours.receive.pop().unwrap();
        context.endpoint.receive_tagged(vec![0; length], FI_ADDR_UNSPEC, 7, 0, 1).unwrap();
        let shown = bed.provider.shown(ours.endpoint.address());
        let flags = Flags::TAGGED | Flags::DELIVERY_COMPLETE;
        let send = Send { pieces: bytes.all(), tag: Some(7), flags, context: 2, ..Send::default() };
        theirs.transmit[0].endpoint.post_send(send.post(1)).unwrap();
        assert!(bed.provider.shown(ours.endpoint.address()) > shown, "{length}: it can be seen");
        // Half of it is seen, for so long that nobody waits for the rest.
        context.poll();
        context.endpoint.close();
        assert_eq!(next(&theirs.transmit[0], &[&ours, &theirs]).bad(Errno::CONNRESET).context, 2);
        nothing_more(&[&ours, &theirs]);
        theirs.receive[0].endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 3).unwrap();
        ours.transmit[0].endpoint.send(bytes.bytes(), 1, 4).unwrap();
        let done = next(&theirs.receive[0], &[&ours, &theirs]).good();
        same(&done.returned.unwrap(), &bytes.bytes(), "the next one");
    }
}

#[test]
fn a_lane_without_room_only_delays() {
    let bed = mock_bed(tight());
    let world = bed.world(2);
    world.warm_up();
    for round in 0..20u64 {
        for node in &world.nodes {
            bed.provider.block(node.endpoint.address(), 30);
        }
        for nth in 0..8u64 {
            let length = LENGTHS[nth as usize % 4];
            world.nodes[0].send(pattern(nth, length), 1, Some(round), nth);
            if nth % 2 == 0 {
                world.nodes[1].receive(length, Some(round), nth);
                world.nodes[1].receive(LENGTHS[nth as usize % 4 + 1], Some(round), nth + 1);
            }
        }
        for _ in 0..8 {
            let received = world.received(1).good();
            let nth = received.context;
            same(&received.returned.unwrap(), &pattern(nth, LENGTHS[nth as usize % 4]), "delayed");
            world.sent(0).good();
        }
        world.nothing_more();
    }
}

fn post_all(world: &World<MockProvider>, bytes: &[Memory], flags: Flags) {
    for (nth, bytes) in bytes.iter().enumerate() {
        let send = Send {
            pieces: bytes.all(),
            tag: Some(nth as u64),
            context: nth as u64,
            flags,
            ..Send::default()
        };
        world.post(|| world.nodes[0].post_send(1, &send));
    }
}

#[test]
fn a_dead_peer_fails_what_depends_on_it() {
    for options in [MockOptions::default(), tight()] {
        for polls in [0, 1, 3, 10, 40] {
            let bytes: Vec<_> =
                LENGTHS.iter().map(|&length| Memory::from(pattern(1, length))).collect();
            let into = Memory::zeroed(100);
            let bed = mock_bed(options.clone());
            let world = bed.world(3);
            world.warm_up();
            post_all(&world, &bytes, Flags::MATCH_COMPLETE);
            let directed =
                Receive { pieces: into.all(), from: 1, context: 50, ..Receive::default() };
            world.nodes[0].post_receive(&directed).unwrap();
            world.nodes[0].receive(100, None, 51);
            let other = Receive { from: 2, context: 52, tag: Some((9, 0)), ..directed };
            world.nodes[0].post_receive(&other).unwrap();
            world.poll(polls);
            bed.provider.kill(world.nodes[1].endpoint.address());
            let mut failed: Vec<u64> = (0..4)
                .map(|_| {
                    let error = world.sent(0).bad(Errno::CONNRESET);
                    assert_eq!(error.source, 1);
                    error.context
                })
                .collect();
            failed.sort();
            assert_eq!(failed, [0, 1, 2, 3]);
            assert_eq!(world.received(0).bad(Errno::CONNRESET).context, 50);
            // The others stay posted, and work.
            world.nodes[2].send(vec![1; 10], 0, None, 1);
            assert_eq!(world.received(0).context(), 51);
            world.nodes[2].send(vec![1; 10], 0, Some(9), 2);
            assert_eq!(world.received(0).context(), 52);
            world.sent(2).good();
            world.sent(2).good();
            // Nobody is there any more.
            world.nodes[0].send(vec![1; 10], 1, None, 60);
            assert_eq!(world.sent(0).bad(Errno::HOSTUNREACH).context, 60);
            world.nothing_more();
        }
    }
}

#[test]
fn what_a_dead_peer_had_sent_is_delivered() {
    for options in [MockOptions::default(), tight()] {
        let bed = mock_bed(options);
        let world = bed.world(2);
        world.warm_up();
        world.nodes[1].receive(8, Some(1), 1);
        // Whole in the lane; and long, of which only a part is there.
        world.nodes[0].send(pattern(1, 8), 1, Some(1), 1);
        world.nodes[0].send(pattern(2, 300), 1, Some(2), 2);
        world.nodes[0].send(pattern(3, 200_000), 1, Some(3), 3);
        bed.provider.kill(world.nodes[0].endpoint.address());
        same(&world.received(1).good().returned.unwrap(), &pattern(1, 8), "delivered");
        world.poll(10);
        world.nodes[1].receive(300, Some(2), 2);
        same(&world.received(1).good().returned.unwrap(), &pattern(2, 300), "unexpected");
        // What never came whole is gone: the receive stays posted for others.
        world.nodes[1].receive(200_000, Some(3), 3);
        world.poll(20);
        assert_eq!(world.waiting(1).1, 0);
        world.nodes[1].endpoint.cancel(3).unwrap();
        world.received(1).bad(Errno::CANCELED);
    }
}

#[test]
fn a_receive_under_way_fails_with_its_sender() {
    for multi in [false, true] {
        let into = Memory::zeroed(300_000);
        let bed = bed();
        let world = bed.world(3);
        world.warm_up();
        let flags = if multi { Flags::MULTI_RECV } else { Flags::empty() };
        let receive = Receive { pieces: into.all(), context: 5, flags, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        world.nodes[0].send(pattern(3, 200_000), 1, None, 3);
        // The start has come and is matched; the sender does not go on.
        for _ in 0..5 {
            world.nodes[1].poll();
        }
        bed.provider.kill(world.nodes[0].endpoint.address());
        let error = world.received(1).bad(Errno::CONNRESET);
        assert_eq!((error.context, error.source), (5, 0));
        assert!(!error.flags.contains(Flags::MULTI_RECV), "only a message failed");
        if multi {
            // The buffer is still posted.
            world.nodes[2].send(pattern(1, 300), 1, None, 1);
            let received = world.received(1).good();
            assert_eq!((received.context, received.length), (5, 300));
            let at = (received.buffer - into.start()) as usize;
            same(&into.bytes()[at..at + 300], &pattern(1, 300), "after the failure");
            world.nodes[1].endpoint.cancel(5).unwrap();
            world.received(1).bad(Errno::CANCELED);
        }
    }
}

/// A peer that died, opened anew at its address by another process.
fn reopen(
    bed: &Bed<MockProvider>,
    world: &World<MockProvider>,
    node: usize,
) -> World<MockProvider> {
    let endpoint = EndpointOptions {
        address: Some(world.nodes[node].endpoint.address()),
        ..EndpointOptions::default()
    };
    let other = bed.world_with(1, &Options { endpoint, ..Options::default() });
    assert_eq!(other.nodes[0].vector.insert_one(world.nodes[0].endpoint.address()).unwrap(), 1);
    other
}

#[test]
fn a_restarted_peer_is_another_one() {
    for (polls, old_unexpected) in [(0, false), (20, false), (20, true)] {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        if old_unexpected {
            // Left behind by the old one, with an acknowledgement owed to nobody.
            let bytes = Memory::from(pattern(7, 300));
            let flags = Flags::MATCH_COMPLETE;
            let send = Send { pieces: bytes.all(), tag: Some(77), flags, ..Send::default() };
            world.nodes[1].post_send(0, &send).unwrap();
            world.poll(5);
            bed.provider.kill(world.nodes[1].endpoint.address());
        } else {
            bed.provider.kill(world.nodes[1].endpoint.address());
        }
        world.poll(polls);
        let other = reopen(&bed, &world, 1);
        let both = |done: &mut dyn FnMut() -> bool| {
            world.drive("the restarted peer", || {
                other.poll(1);
                done()
            });
        };
        // It sends first, many times its first credit; we answer.
        for round in 0..100u64 {
            world.nodes[0].receive(3_000, Some(round), round);
            other.nodes[0].send(pattern(round, 3_000), 1, Some(round), 0);
            both(&mut || world.waiting(0).1 > 0);
            let received = world.received_already(0).good();
            assert_eq!(received.source, 1);
            same(&received.returned.unwrap(), &pattern(round, 3_000), "from the new one");
            if round == 50 && old_unexpected {
                world.nodes[0].receive(300, Some(77), 1000);
                same(&world.received(0).good().returned.unwrap(), &pattern(7, 300), "old");
            }
        }
        // A rendezvous each way.
        world.nodes[0].send(pattern(5, 200_000), 1, Some(5), 5);
        other.nodes[0].receive(200_000, Some(5), 6);
        both(&mut || other.waiting(0).1 > 0);
        same(&other.received_already(0).good().returned.unwrap(), &pattern(5, 200_000), "to it");
        world.sent(0).good();
    }
}

#[test]
fn hundreds_of_dead_peers_leave_the_budget_whole() {
    let bed = bed();
    let domain = DomainOptions { unexpected_budget: 1 << 20, ..DomainOptions::default() };
    let world = bed.world_with(1, &Options { domain, ..Options::default() });
    for _ in 0..200 {
        let peer = bed.world(1);
        peer.nodes[0].vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
        peer.nodes[0].endpoint.inject(&[1; 8], 1).unwrap();
        world.nodes[0].receive(8, None, 0);
        world.drive("a short life", || {
            peer.poll(1);
            world.waiting(0).1 > 0
        });
        world.received_already(0).good();
        bed.provider.kill(peer.nodes[0].endpoint.address());
        world.poll(2);
    }
    // A peer of today may still send far more unexpected than its first credit.
    let peer = bed.world(1);
    peer.nodes[0].vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
    let bytes = Memory::from(pattern(1, 7_000));
    for nth in 0..100 {
        let send = Send { pieces: bytes.all(), tag: Some(nth), context: nth, ..Send::default() };
        peer.post(|| peer.nodes[0].post_send(1, &send));
        world.poll(1);
        peer.poll(1);
    }
    world.poll(10);
    peer.poll(10);
    let (sent, _) = peer.waiting(0);
    assert!(sent >= 60, "{sent} of 100 left without asking");
    for nth in 0..100 {
        let buffer = vec![0; 7_000];
        world.nodes[0].endpoint.receive_tagged(buffer, FI_ADDR_UNSPEC, nth, 0, nth).unwrap();
    }
    world.drive("all of it", || {
        peer.poll(1);
        world.waiting(0).1 == 100
    });
}

#[test]
fn a_sender_that_sleeps_is_read() {
    let bed = mock_bed(MockOptions { read_remote: true, ..MockOptions::default() });
    let bytes = Memory::from(pattern(1, 12 << 20));
    let world = bed.world(2);
    world.warm_up();
    let send = Send { pieces: bytes.all(), tag: Some(1), context: 3, ..Send::default() };
    world.nodes[0].post_send(1, &send).unwrap();
    world.nodes[1].receive(12 << 20, Some(1), 4);
    // Nobody polls the sender.
    let start = std::time::Instant::now();
    while world.waiting(1).1 == 0 {
        world.nodes[1].poll();
        assert!(start.elapsed() < kestrel_tests::scale::PATIENCE, "in vain");
    }
    let received = world.received_already(1).good();
    same(&received.returned.unwrap(), &bytes.bytes(), "read from its sender");
    assert_eq!(world.sent(0).context(), 3);
    world.nothing_more();
}
