//! Peek, claim and discard. Reference: fi_tagged(3).

use std::time::Instant;

use kestrel_core::{
    completion_queue::{Entry, ReadError},
    endpoint::PostError,
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    operation::IOV_LIMIT,
    transport::Provider,
};

use crate::bed::{Bed, Memory, Options, Receive, Send, World, pattern, same};
use crate::completion::{Done, read_all};
use crate::scale::PATIENCE;

const LENGTHS: [usize; 6] = [0, 8, 300, 5_000, 60_000, 500_000];

fn peek<P: Provider>(world: &World<P>, flags: Flags, receive: Receive<'_>) -> Done {
    let flags = Flags::PEEK | flags;
    world.nodes[1].post_receive(&Receive { flags, ..receive }).unwrap();
    world.received(1)
}

/// Peeks at the second node until the message has arrived.
pub fn find<P: Provider>(world: &World<P>, flags: Flags, receive: Receive<'_>) -> Done {
    let mut found = None;
    world.drive("the message arrives", || {
        let done = peek(world, flags, receive);
        if done.errno == Some(Errno::NOMSG) {
            return false;
        }
        found = Some(done.good());
        true
    });
    found.unwrap()
}

fn send<P: Provider>(world: &World<P>, bytes: &Memory, tag: u64) {
    let send = Send { pieces: bytes.all(), tag: Some(tag), data: Some(tag + 1), ..Send::default() };
    world.nodes[0].post_send(1, &send).unwrap();
}

pub fn a_miss_is_a_completion<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    for flags in [Flags::empty(), Flags::CLAIM, Flags::DISCARD, Flags::CLAIM | Flags::DISCARD] {
        for (from, tag) in [(u64::MAX, Some((5, 0))), (0, Some((5, 1))), (u64::MAX, None)] {
            let done = peek(&world, flags, Receive { from, tag, context: 3, ..Receive::default() });
            let done = done.bad(Errno::NOMSG);
            assert_eq!(done.context, 3);
            assert!(done.flags.contains(Flags::RECV));
        }
    }
    // A message with another tag does not answer.
    world.nodes[0].send(vec![0; 8], 1, Some(6), 0);
    world.poll(20);
    peek(&world, Flags::empty(), Receive { tag: Some((5, 0)), ..Receive::default() })
        .bad(Errno::NOMSG);
    world.nodes[1].receive(8, Some(6), 0);
    world.received(1).good();
    world.sent(0).good();
    world.nothing_more();
}

pub fn who_only_peeks_finds_what_comes<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let bytes = Memory::from(pattern(1, 8));
    send(&world, &bytes, 5);
    let start = Instant::now();
    // The answer to each peek is read before the queue is ever empty.
    let found = loop {
        let peek = Receive { tag: Some((5, 0)), flags: Flags::PEEK, ..Receive::default() };
        world.nodes[1].post_receive(&peek).unwrap();
        match world.nodes[1].receives.read(&mut [Entry::default()]) {
            Ok(count) => break count,
            Err(ReadError::ErrorAvailable) => {
                let error = world.nodes[1].receives.read_error().unwrap();
                assert_eq!(error.errno, Errno::NOMSG, "{error:?}");
            }
            Err(error) => panic!("every peek has an answer: {error}"),
        }
        read_all(&world.nodes[0].sends, |done| assert_eq!(done.errno, None));
        assert!(start.elapsed() < PATIENCE, "in vain: the message arrives");
    };
    assert_eq!(found, 1);
}

pub fn a_peek_tells_and_leaves<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let bytes = Memory::from(pattern(length as u64, length));
        let into = Memory::zeroed(length + 4);
        let world = bed.world(2);
        send(&world, &bytes, 5);
        for round in 0..3 {
            let pieces = if round == 2 { into.all() } else { Receive::default().pieces };
            let receive = Receive { pieces, tag: Some((4, 1)), context: 8, ..Receive::default() };
            let done = find(&world, Flags::empty(), receive);
            assert_eq!((done.context, done.length), (8, length as u64));
            assert_eq!((done.tag, done.data, done.source), (5, 6, 0));
            assert_eq!(done.flags, Flags::TAGGED | Flags::RECV | Flags::REMOTE_CQ_DATA);
            if done.buffer != 0 && length > 0 {
                assert_eq!(done.buffer, into.start());
                same(&into.bytes()[..length], &bytes.bytes(), "peeked");
            }
        }
        world.nodes[1].receive(length, Some(5), 9);
        let received = world.received(1).good();
        assert_eq!((received.context, received.data), (9, 6));
        same(&received.returned.unwrap(), &bytes.bytes(), "received after the peek");
        world.sent(0).good();
        peek(&world, Flags::empty(), Receive { tag: Some((5, 0)), ..Receive::default() })
            .bad(Errno::NOMSG);
        world.nothing_more();
    }
}

pub fn what_is_claimed_is_one_receivers<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let bytes = [Memory::from(pattern(1, length)), Memory::from(pattern(2, length))];
        let into = Memory::zeroed(length);
        let world = bed.world(2);
        send(&world, &bytes[0], 5);
        send(&world, &bytes[1], 5);
        let receive = Receive { tag: Some((5, 0)), context: 70, ..Receive::default() };
        let done = find(&world, Flags::CLAIM, receive);
        assert_eq!((done.context, done.length, done.tag), (70, length as u64, 5));
        // Others get the other one.
        world.nodes[1].receive(length, Some(5), 1);
        same(&world.received(1).good().returned.unwrap(), &bytes[1].bytes(), "the other one");
        let missing = peek(&world, Flags::empty(), Receive { context: 1, ..receive });
        missing.bad(Errno::NOMSG);
        let other = Receive { flags: Flags::CLAIM, context: 71, pieces: into.all(), ..receive };
        let nothing = world.nodes[1].post_receive(&other);
        if let Err(error) = nothing {
            assert_eq!(error, PostError::NothingClaimed { context: 71 });
            assert_eq!(error.errno(), Errno::INVAL);
        } else {
            world.received(1).bad(Errno::INVAL);
        }
        let claim = Receive { flags: Flags::CLAIM, pieces: into.all(), ..receive };
        world.nodes[1].post_receive(&claim).unwrap();
        let done = world.received(1).good();
        assert_eq!((done.context, done.length, done.data), (70, length as u64, 6));
        assert_eq!(done.buffer, into.start());
        same(&into.bytes(), &bytes[0].bytes(), "the claimed one");
        world.sent(0).good();
        world.sent(0).good();
        world.nothing_more();
    }
}

pub fn what_is_discarded_is_gone<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        for claim_first in [false, true] {
            let bytes = Memory::from(pattern(1, length));
            let into = Memory::zeroed(length);
            let world = bed.world(2);
            for flags in [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE] {
                let send = Send { pieces: bytes.all(), tag: Some(5), flags, ..Send::default() };
                world.nodes[0].post_send(1, &send).unwrap();
                let receive = Receive {
                    pieces: into.all(),
                    tag: Some((5, 0)),
                    context: 70,
                    ..Receive::default()
                };
                if claim_first {
                    find(
                        &world,
                        Flags::CLAIM,
                        Receive { pieces: Receive::default().pieces, ..receive },
                    );
                    into.scribble();
                    let flags = Flags::CLAIM | Flags::DISCARD;
                    world.nodes[1].post_receive(&Receive { flags, ..receive }).unwrap();
                    assert_eq!(world.received(1).context(), 70);
                } else {
                    into.scribble();
                    let many = [into.piece(); IOV_LIMIT + 1];
                    let receive = Receive { pieces: Pieces::Many(&many), ..receive };
                    let done = find(&world, Flags::DISCARD, receive);
                    assert_eq!((done.context, done.length), (70, length as u64));
                }
                assert!(into.bytes().iter().all(|&byte| byte == 0xee), "buffers are ignored");
                world.sent(0).good();
                peek(&world, Flags::empty(), receive).bad(Errno::NOMSG);
                // The way is free for the next one.
                world.nodes[0].send(pattern(3, 70_000), 1, Some(6), 1);
                world.nodes[1].receive(70_000, Some(6), 1);
                same(&world.received(1).good().returned.unwrap(), &pattern(3, 70_000), "next");
                world.sent(0).good();
            }
            world.nothing_more();
        }
    }
}

pub fn discarding_gives_the_credit_back<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let bytes = Memory::from(pattern(1, 60_000));
    for _ in 0..100 {
        send(&world, &bytes, 5);
        find(&world, Flags::DISCARD, Receive { tag: Some((5, 0)), ..Receive::default() });
        world.sent(0).good();
    }
    world.nothing_more();
}

pub fn a_peek_into_a_short_buffer_is_no_error<P: Provider>(bed: &Bed<P>) {
    let (bytes, into) = (Memory::from(pattern(1, 300)), Memory::zeroed(10));
    let world = bed.world(2);
    send(&world, &bytes, 5);
    let receive = Receive { pieces: into.all(), tag: Some((5, 0)), ..Receive::default() };
    let done = find(&world, Flags::empty(), receive);
    assert_eq!((done.length, done.buffer), (300, into.start()));
    same(&into.bytes(), &bytes.bytes()[..10], "what fits");
    world.nodes[1].receive(300, Some(5), 0);
    world.received(1).good();
    world.sent(0).good();
}

/// "The same fi_context structure used for an FI_PEEK + FI_CLAIM operation must be used by the paired
/// FI_CLAIM request": while it names one message it cannot name another.
pub fn a_context_claims_one_message<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let bytes = [Memory::from(pattern(1, 300)), Memory::from(pattern(2, 300))];
    bytes.iter().for_each(|bytes| send(&world, bytes, 5));
    let receive = Receive { tag: Some((5, 0)), context: 70, ..Receive::default() };
    find(&world, Flags::CLAIM, receive);
    let again = Receive { flags: Flags::PEEK | Flags::CLAIM, ..receive };
    match world.nodes[1].post_receive(&again) {
        Ok(()) => drop(world.received(1).bad(Errno::INVAL)),
        Err(error) => assert_eq!(error, PostError::ClaimedBefore { context: 70 }),
    }
    // Nothing is lost: neither the one nor the other.
    let into = Memory::zeroed(300);
    let claim = Receive { flags: Flags::CLAIM, pieces: into.all(), ..receive };
    for (number, bytes) in bytes.iter().enumerate() {
        if number > 0 {
            find(&world, Flags::CLAIM, receive);
        }
        world.nodes[1].post_receive(&claim).unwrap();
        assert_eq!(world.received(1).context(), 70);
        same(&into.bytes(), &bytes.bytes(), "the claimed one");
        world.sent(0).good();
    }
    world.nothing_more();
}

/// A claim of what its sender did not live to send completes, and says why.
pub fn what_is_claimed_of_a_sender_that_closes_fails<P: Provider>(bed: &Bed<P>) {
    for discard in [Flags::empty(), Flags::DISCARD] {
        let lengths = [300, 1 << 20];
        let bytes = lengths.map(|length| Memory::from(pattern(1, length)));
        let mut world = bed.world(2);
        let receive = Receive { tag: Some((5, 0)), ..Receive::default() };
        for (bytes, context) in bytes.iter().zip(70..) {
            send(&world, bytes, 5);
            find(&world, Flags::CLAIM, Receive { context, ..receive });
        }
        drop(world.nodes.remove(0));
        world.poll(500);
        for (bytes, context) in bytes.iter().zip(70..) {
            let into = Memory::zeroed(bytes.bytes().len());
            let flags = Flags::CLAIM | discard;
            let claim = Receive { flags, pieces: into.all(), context, ..receive };
            world.nodes[0].post_receive(&claim).unwrap();
            let claimed = world.received(0);
            assert_eq!(claimed.context, context);
            match claimed.errno {
                Some(errno) => {
                    assert_eq!((errno, context, discard), (Errno::CONNRESET, 71, Flags::empty()));
                }
                None if discard.is_empty() => same(&into.bytes(), &bytes.bytes(), "all had come"),
                None => {}
            }
        }
        world.nothing_more();
    }
}

/// What is discarded completes as receives do: not at all, where completions are selective.
pub fn a_discard_of_a_claim_may_be_silent<P: Provider>(bed: &Bed<P>) {
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    let world = bed.world_with(2, &options);
    let bytes = Memory::from(pattern(1, 300));
    let receive = Receive { tag: Some((5, 0)), context: 70, ..Receive::default() };
    for told in [Flags::empty(), Flags::COMPLETION] {
        send(&world, &bytes, 5);
        // What a peek finds is its result, whatever completions are.
        find(&world, Flags::CLAIM, receive);
        let flags = Flags::CLAIM | Flags::DISCARD | told;
        world.nodes[1].post_receive(&Receive { flags, ..receive }).unwrap();
        if !told.is_empty() {
            assert_eq!(world.received(1).context(), 70);
        }
        world.nothing_more();
    }
}

/// A claim names its message by the context, and its sender may have left the address vector since.
pub fn a_claim_needs_no_source<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(pattern(1, 300));
    let world = bed.world(2);
    let receive = Receive { from: 0, tag: Some((5, 0)), ..Receive::default() };
    for context in 70..72 {
        send(&world, &bytes, 5);
        find(&world, Flags::CLAIM, Receive { context, ..receive });
    }
    world.nodes[1].vector.remove(&[0]).unwrap();
    let refused = world.nodes[1].post_receive(&receive);
    assert_eq!(refused, Err(PostError::UnknownAddress { address: 0 }));
    for (context, discard) in [(70, Flags::empty()), (71, Flags::DISCARD)] {
        let into = Memory::zeroed(300);
        let claim = Receive { flags: Flags::CLAIM | discard, context, ..receive };
        world.nodes[1].post_receive(&Receive { pieces: into.all(), ..claim }).unwrap();
        assert_eq!(world.received(1).context(), context);
        if discard.is_empty() {
            same(&into.bytes(), &bytes.bytes(), "the claimed one");
        }
        world.sent(0).good();
    }
    world.nothing_more();
}
