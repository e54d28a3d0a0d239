//! The order in which received data is written: FI_ORDER_DATA. Reference: fi_endpoint(3),
//! "comp_order" of receive contexts.
//!
//! "Received data is written into memory in order. Data ordering applies to memory accessed as part
//! of a single operation and between operations if message ordering is guaranteed."

use std::{iter, time::Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    domain::DomainOptions,
    endpoint::{EndpointOptions, OptionName},
    flags::Flags,
    memory::{Piece, Pieces},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Receive, Send, World, same},
    cases::shared_contexts::senders_with,
    completion::Done,
    contexts::{Portal, counts, naming, next},
    long_first::{FIRST, HALF, first, long, short, start_long, until_come},
    one_sided::{BOTH, Rma, expose_ranges, segment},
    scale::{PATIENCE, scaled},
    watched::Watched,
};

/// In one line, in one packet, in several; read by two at once, or by a device, where nobody asks
/// for an order.
const LENGTHS: [usize; 11] =
    [1, 8, 45, 300, 8_192, 9_001, 40_000, 70_000, 300_000, (1 << 20) + 5, 8 << 20];
/// All of them, or all but the last: where packets are short that takes a minute.
fn lengths() -> impl Iterator<Item = usize> {
    LENGTHS.into_iter().take(scaled(10, 10, 11))
}

/// A message that needs its sender, if only once.
const LONG: usize = 300_000;

fn in_order() -> EndpointOptions {
    EndpointOptions { data_in_order: true, ..EndpointOptions::default() }
}

fn options(endpoint: EndpointOptions) -> Options {
    Options { endpoint, ..Options::default() }
}

/// Drives everybody, one after the other, and looks in between.
#[track_caller]
fn drive<P: Provider>(world: &World<P>, watched: &Watched, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        for node in &world.nodes {
            node.poll();
            watched.check();
        }
        assert!(start.elapsed() < PATIENCE, "in vain: watched operations");
    }
}

/// How often memory of a length is written.
fn rounds(length: usize) -> u8 {
    if length < 100_000 { 12 } else { 3 }
}

/// Whole, and where its second half comes first in memory; neither begins at a whole word.
fn watched(length: usize) -> [Watched; 2] {
    let half = length / 2;
    let halves = vec![3 + length - half..3 + length, 3..3 + length - half];
    [Watched::new(iter::once(3..3 + length).collect()), Watched::new(halves)]
}

pub fn a_message_is_written_from_its_first_byte_to_its_last<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(2, &options(in_order()));
    world.warm_up();
    for length in lengths() {
        for watched in watched(length) {
            let pieces = watched.pieces();
            watched.watch(|| {
                (1..=rounds(length)).for_each(|round| {
                    let bytes = Memory::from(vec![round; length]);
                    let into = Pieces::Many(&pieces);
                    let receive = Receive { pieces: into, tag: Some((1, 0)), ..Receive::default() };
                    // Every other one comes before it is asked for.
                    if round % 2 == 0 {
                        world.nodes[1].post_receive(&receive).unwrap();
                    }
                    let send = Send { pieces: bytes.all(), tag: Some(1), ..Send::default() };
                    world.nodes[0].post_send(1, &send).unwrap();
                    if round % 2 == 1 {
                        (0..20).for_each(|_| world.nodes[1].poll());
                        world.nodes[1].post_receive(&receive).unwrap();
                    }
                    drive(&world, &watched, || world.waiting(0).0 > 0 && world.waiting(1).1 > 0);
                    assert_eq!(world.received_already(1).good().length, length as u64);
                    world.sent(0).good();
                    assert!((0..pieces.len()).all(|range| watched.is_all(range, round)));
                })
            });
        }
    }
    world.nothing_more();
}

/// A write of any length, another one, and a message: each is there before the next. The region
/// is used often enough that a peer would have a window to it; but only the target's own engine
/// writes there.
pub fn a_write_is_placed_in_order_and_before_what_follows<P: Provider>(bed: &Bed<P>) {
    for length in lengths() {
        let watched = Watched::new(vec![3..3 + length, 3 + length..3 + 2 * length, 0..1]);
        let flag = Pieces::One(watched.piece(0..1));
        let world = bed.world_with(2, &options(in_order()));
        world.warm_up();
        let both = [watched.piece(3..3 + 2 * length)];
        let region = expose_ranges(&world.nodes[1], &both, BOTH, 5).unwrap();
        let write = |bytes: &Memory, at| {
            let segments = [segment(&region, at, length)];
            let write = Rma { pieces: bytes.all(), segments: &segments, ..Rma::default() };
            world.post(|| world.nodes[0].post_write(1, &write));
        };
        let last = rounds(length);
        watched.watch(|| {
            for round in 1..=last {
                let bytes = Memory::from(vec![round; length]);
                [0, length].into_iter().for_each(|at| write(&bytes, at));
                world.nodes[1]
                    .post_receive(&Receive { pieces: flag, ..Receive::default() })
                    .unwrap();
                let pieces = Pieces::One(bytes.piece().part(0, 1));
                world.nodes[0].post_send(1, &Send { pieces, ..Send::default() }).unwrap();
                drive(&world, &watched, || world.waiting(0).0 >= 3 && world.waiting(1).1 > 0);
                (0..3).for_each(|_| drop(world.sent(0).good()));
                world.received_already(1).good();
                assert!((0..3).all(|range| watched.is_all(range, round)));
            }
            let bytes = Memory::from(vec![last + 1; length]);
            write(&bytes, 0);
            (0..50).for_each(|_| world.nodes[0].poll());
            assert!(watched.is_all(0, last), "nobody but the target writes {length} bytes");
            drive(&world, &watched, || world.waiting(0).0 > 0);
            world.sent(0).good();
            assert!(watched.is_all(0, last + 1));
        });
    }
}

/// A receive into part of memory, with a tag that is its context.
fn receive<P: Provider>(world: &World<P>, piece: Piece, tag: u64, flags: Flags) {
    let pieces = Pieces::One(piece);
    let receive =
        Receive { pieces, tag: Some((tag, 0)), context: tag, flags, ..Receive::default() };
    world.nodes[1].post_receive(&receive).unwrap();
}

/// What is matched behind a message that is not whole is written behind it, also where it came
/// before it was asked for; with or without an order of completions, which is the same one. Other
/// peers wait for nobody.
pub fn messages_are_written_in_the_order_of_matching<P: Provider>(bed: &Bed<P>) {
    for (data_in_order, receives_in_order) in [(true, false), (true, true), (false, false)] {
        let endpoint = EndpointOptions { data_in_order, receives_in_order, ..in_order() };
        let (long, bytes) = (long(), Memory::from(vec![7; 8]));
        let (more, into) = (Memory::from(vec![7; LONG]), Memory::zeroed(48 + LONG));
        let world = bed.world_with(3, &options(endpoint));
        world.warm_up();
        let place = |at, length| into.piece().part(at, length);
        world.nodes[1].endpoint.set_option(OptionName::MinMultiRecv, 8).unwrap();
        start_long(&world, &long);
        receive(&world, place(0, 8), 2, Flags::empty());
        receive(&world, place(8, 16), 3, Flags::MULTI_RECV);
        for tag in [2, 3, 3, 4] {
            world.nodes[0].post_send(1, &short(&bytes, tag)).unwrap();
        }
        receive(&world, place(48, LONG), 5, Flags::empty());
        world.nodes[0].post_send(1, &short(&more, 5)).unwrap();
        until_come(&world, 4, || world.nodes[1].poll());
        receive(&world, place(40, 8), 4, Flags::PEEK);
        receive(&world, place(24, 8), 4, Flags::empty());
        let other = Send { pieces: bytes.all(), tag: Some(6), ..Send::default() };
        receive(&world, place(32, 8), 6, Flags::empty());
        world.nodes[2].post_send(1, &other).unwrap();
        world.sent(2).good();
        (0..100).for_each(|_| world.nodes[1].poll());
        let written = if data_in_order { 0 } else { 7 };
        let expected = [vec![written; 32], vec![7; 8], vec![written; 8]].concat();
        same(&into.bytes()[..48], &expected, "while the first is not whole");
        let mut order: Vec<u64> = (0..8).map(|_| world.received(1).good().context).collect();
        order.retain(|&context| context != 6);
        if data_in_order {
            assert_eq!(order, [4, FIRST, 2, 3, 3, 5, 4]);
        }
        (0..6).for_each(|_| drop(world.sent(0).good()));
        same(&into.bytes()[48..], &more.bytes(), "the other long one");
        assert_eq!(into.bytes()[..32], [7; 32]);
        world.nothing_more();
    }
}

/// What had come of it is received in its turn, whole as it is; the rest fails.
pub fn what_has_come_of_a_sender_that_goes_is_written<P: Provider>(bed: &Bed<P>) {
    for receives_in_order in [false, true] {
        let endpoint = EndpointOptions { receives_in_order, ..in_order() };
        let (long, bytes) = (long(), Memory::from(vec![7; 8]));
        let (more, into) = (Memory::from(vec![7; LONG]), Memory::zeroed(24 + LONG));
        let world = bed.world_with(2, &options(endpoint));
        world.warm_up();
        start_long(&world, &long);
        for (tag, at) in [(2, 0), (4, 8)] {
            receive(&world, into.piece().part(at, 8), tag, Flags::empty());
        }
        receive(&world, into.piece().part(24, LONG), 3, Flags::empty());
        for (bytes, tag) in [(&bytes, 2), (&more, 3), (&bytes, 4)] {
            world.nodes[0].post_send(1, &short(bytes, tag)).unwrap();
        }
        until_come(&world, 2, || world.nodes[1].poll());
        assert_eq!((world.waiting(1).1, &into.bytes()[..16]), (0, &[0; 16][..]));
        world.nodes[0].endpoint.close();
        let told: Vec<Done> = (0..4).map(|_| world.received(1)).collect();
        let told: Vec<_> = told.iter().map(|done| (done.context, done.errno.is_none())).collect();
        assert_eq!(told, [(FIRST, false), (2, true), (3, false), (4, true)]);
        assert_eq!(into.bytes()[..16], [7; 16]);
        assert_eq!(world.waiting(1), (0, 0));
    }
}

/// "Outstanding operations posted to the endpoint when fi_close is called will be discarded"
/// (fi_endpoint(3)): those behind them take their turns.
pub fn a_context_that_closes_ends_the_turns_of_its_messages<P: Provider>(bed: &Bed<P>) {
    for receives_in_order in [false, true] {
        let long = long();
        let (cut, more) = (long.cut(&[HALF, HALF]), Memory::from(vec![7; LONG]));
        let options = EndpointOptions { data_in_order: true, receives_in_order, ..naming() };
        let theirs = Portal::with(&bed.domain(DomainOptions::default()), counts(1, 1), &options);
        let ours = Portal::open(bed, counts(2, 1));
        ours.knows(&[theirs.endpoint.address()]);
        let (all, [closes, stays]) = ([&ours, &theirs], &ours.transmit[..]) else {
            unreachable!("there are two")
        };
        for (room, tag) in [(2 * HALF, FIRST), (LONG, 2), (8, 3), (8, 4), (8, 5)] {
            let endpoint = &theirs.receive[0].endpoint;
            endpoint.receive_tagged(vec![0; room], FI_ADDR_UNSPEC, tag, 0, tag).unwrap();
        }
        let bytes = Memory::from(vec![7; 8]);
        // Both contexts are known before.
        for (from, tag) in [(closes, 4), (stays, 5)] {
            from.endpoint.post_send(short(&bytes, tag).post(0)).unwrap();
            assert_eq!(next(from, &all).context(), tag);
            assert_eq!(next(&theirs.receive[0], &all).context(), tag);
        }
        for send in [first(&cut), short(&more, 2), short(&bytes, 3)] {
            closes.endpoint.post_send(send.post(0)).unwrap();
        }
        assert_eq!(next(closes, &all).context(), 3, "the last one has come");
        assert!(theirs.receive[0].taken().is_none(), "and waits for its turn");
        closes.endpoint.close();
        let mut told: Vec<_> = (0..3)
            .map(|_| next(&theirs.receive[0], &all[..]))
            .map(|done| (done.context, done.errno.is_none()))
            .collect();
        told.sort();
        assert_eq!(told, [(FIRST, false), (2, false), (3, true)]);
        theirs.receive[0].endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 6, 0, 6).unwrap();
        stays.endpoint.post_send(short(&bytes, 6).post(0)).unwrap();
        assert_eq!(next(&theirs.receive[0], &all).context(), 6);
        assert_eq!(next(stays, &all).context(), 6);
    }
}

/// The order is that of each endpoint, also for receives that are posted to a shared context.
pub fn shared_receives_are_written_in_order<P: Provider>(bed: &Bed<P>) {
    let (long, bytes) = (long(), Memory::from(vec![7; 8]));
    let cut = long.cut(&[HALF, HALF]);
    let (sharers, world) = senders_with(bed, 1, 1, &options(in_order()));
    let post = |room: usize, tag| {
        sharers.shared.receive_tagged(vec![0; room], FI_ADDR_UNSPEC, tag, 0, tag).unwrap();
    };
    post(2 * HALF, FIRST);
    post(8, 2);
    world.nodes[0].post_send(0, &first(&cut)).unwrap();
    for tag in [2, 3] {
        world.nodes[0].post_send(0, &short(&bytes, tag)).unwrap();
    }
    until_come(&world, 2, || sharers.poll());
    // It waits in the pool until now, and from now on for its turn.
    post(8, 3);
    (0..100).for_each(|_| sharers.poll());
    assert!(sharers.members[0].taken().is_none());
    for context in [FIRST, 2, 3] {
        assert_eq!(sharers.next(|| world.poll(1)).1.context(), context);
    }
}

/// Where messages are announced, their order is that of the claims.
pub fn claims_are_written_in_order<P: Provider>(bed: &Bed<P>) {
    let endpoint = EndpointOptions { buffered: true, ..in_order() };
    let world = bed.world_with(2, &options(endpoint));
    let (long, bytes) = (long(), Memory::from(vec![7; 8]));
    let cut = long.cut(&[HALF, HALF]);
    let announced = |pieces, flags| {
        world.nodes[0].post_send(1, &Send { pieces, flags, ..Send::default() }).unwrap();
        world.received(1).good().context
    };
    let first = announced(Pieces::Many(&cut), Flags::empty());
    let others = [(); 2].map(|()| announced(bytes.all(), Flags::empty()));
    let watched = Watched::new(vec![8..16, 0..8]);
    let pieces = watched.pieces();
    world.nodes[1].endpoint.claim(first, vec![0; 2 * HALF], FIRST).unwrap();
    for (piece, context) in pieces.iter().zip(others) {
        let flags = Flags::CLAIM;
        let pieces = Pieces::One(*piece);
        let claim = Receive { pieces, context, flags, ..Receive::default() };
        world.nodes[1].post_receive(&claim).unwrap();
    }
    (0..100).for_each(|_| world.nodes[1].poll());
    assert_eq!(world.waiting(1).1, 0);
    assert!(watched.is_all(0, 0) && watched.is_all(1, 0));
    let whole = world.received(1).good();
    same(&whole.returned.unwrap(), &long.bytes(), "the first claim");
    (0..2).for_each(|_| drop(world.received(1).good()));
    assert!(watched.is_all(0, 7) && watched.is_all(1, 7));
    (0..3).for_each(|_| drop(world.sent(0).good()));
    world.nothing_more();
}

/// A receive context of a scalable endpoint may keep it where the others do not.
pub fn a_receive_context_has_an_order_of_its_own<P: Provider>(bed: &Bed<P>) {
    let long = long();
    let cut = long.cut(&[HALF, HALF]);
    let options = EndpointOptions { data_in_order: true, ..naming() };
    let domain = bed.domain(DomainOptions::default());
    let theirs = Portal::with(&domain, counts(1, 1), &options);
    let ours = Portal::open(bed, counts(1, 1));
    ours.knows(&[theirs.endpoint.address()]);
    let all = [&ours, &theirs];
    let endpoint = &theirs.receive[0].endpoint;
    for (room, tag) in [(8, 3), (2 * HALF, FIRST), (8, 2)] {
        endpoint.receive_tagged(vec![0; room], FI_ADDR_UNSPEC, tag, 0, tag).unwrap();
    }
    let from = &ours.transmit[0];
    from.endpoint.send_tagged(vec![0; 8], 0, 3, 3).unwrap();
    assert_eq!(next(&theirs.receive[0], &all).context(), 3);
    assert_eq!(next(from, &all).context(), 3);
    from.endpoint.post_send(first(&cut).post(0)).unwrap();
    from.endpoint.send_tagged(vec![0; 8], 0, 2, 2).unwrap();
    for context in [FIRST, 2] {
        assert_eq!(next(&theirs.receive[0], &all).context(), context);
    }
}
