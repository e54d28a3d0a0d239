//! The order in which requests complete: FI_ORDER_STRICT. Reference: fi_endpoint(3), "comp_order".
//!
//! What completes early waits for those before it, where that was asked for; nowhere else, which is
//! shown beside it: a case in which nothing overtakes would pass without any order.

use std::time::Instant;

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::DomainOptions,
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    memory::Pieces,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Send, World, open_vector, pattern},
    contexts::{Portal, counts, naming, next},
    link::{Driven, End, Link},
    one_sided::{Atomic, BOTH, Rma, expose, segment},
    scale::PATIENCE,
};

/// Longer than what may leave unasked.
const LONG: usize = 200_000;
/// Tag and context of what the others wait for.
const FIRST: u64 = 1;

/// Endpoints whose completions keep an order, or not.
fn options(in_order: bool) -> Options {
    Options { endpoint: endpoint_options(in_order), ..Options::default() }
}

fn endpoint_options(in_order: bool) -> EndpointOptions {
    let (transmits_in_order, receives_in_order) = (in_order, in_order);
    EndpointOptions { transmits_in_order, receives_in_order, ..EndpointOptions::default() }
}

/// `count` endpoints that are connected.
fn world<P: Provider>(bed: &Bed<P>, count: usize, in_order: bool) -> World<P> {
    let world = bed.world_with(count, &options(in_order));
    world.warm_up();
    world
}

/// The first send: nobody has posted a receive for it.
fn first(memory: &Memory) -> Send<'_> {
    Send { pieces: memory.all(), tag: Some(FIRST), context: FIRST, ..Send::default() }
}

/// What has completed so far, and how, by context.
fn sent<P: Provider>(world: &World<P>, node: usize) -> Vec<(u64, Option<Errno>)> {
    let done = (0..world.waiting(node).0).map(|_| world.sent(node));
    let mut done: Vec<_> = done.map(|done| (done.context, done.errno)).collect();
    done.sort_unstable_by_key(|(context, _)| *context);
    done
}

/// Drives one endpoint alone, until `done` and some rounds more.
fn drive_alone<P: Provider>(world: &World<P>, node: usize, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        world.nodes[node].poll();
        assert!(start.elapsed() < PATIENCE, "in vain");
    }
    (0..100).for_each(|_| world.nodes[node].poll());
}

fn sorted(mut contexts: Vec<u64>) -> Vec<u64> {
    contexts.sort_unstable();
    contexts
}

/// "Requests complete in the order in which they are submitted to the transmit context."
pub fn sends_complete_in_the_order_of_submission<P: Provider>(bed: &Bed<P>) {
    // A message that needs its receiver's consent, and one that waits until it is matched.
    for (length, flags) in [(LONG, Flags::empty()), (8, Flags::MATCH_COMPLETE)] {
        for in_order in [true, false] {
            let (long, short) = (Memory::from(pattern(1, length)), Memory::from(pattern(2, 8)));
            let cut = short.cut(&[3, 5]);
            let world = world(bed, 3, in_order);
            let short = Send { pieces: short.all(), ..Send::default() };
            for tag in 2..6 {
                world.nodes[1].receive(8, Some(tag), tag);
            }
            world.nodes[0].post_send(1, &Send { flags, ..first(&long) }).unwrap();
            for (tag, flags) in [(2, Flags::empty()), (3, Flags::DELIVERY_COMPLETE)] {
                let send = Send { tag: Some(tag), context: tag, flags, ..short };
                world.nodes[0].post_send(1, &send).unwrap();
            }
            let gathered =
                Send { pieces: Pieces::Many(&cut), tag: Some(4), context: 4, ..Send::default() };
            world.nodes[0].post_send(1, &gathered).unwrap();
            let injected = Send { tag: Some(5), context: 5, flags: Flags::INJECT, ..short };
            world.post(|| world.nodes[0].post_send(1, &injected));
            for tag in 2..6 {
                assert_eq!(world.received(1).context(), tag);
            }
            world.poll(50);
            let early = if in_order { vec![] } else { (2..6).map(|nth| (nth, None)).collect() };
            assert_eq!(sent(&world, 0), early);
            // "Completion ordering of requests that target different endpoints … is not defined."
            world.nodes[2].receive(8, Some(6), 6);
            world.nodes[0].post_send(2, &Send { tag: Some(6), context: 6, ..short }).unwrap();
            assert_eq!(world.sent(0).context(), 6);
            assert_eq!(world.received(2).context(), 6);
            world.nodes[1].receive(length, Some(FIRST), FIRST);
            assert_eq!(world.received(1).context(), FIRST);
            let rest: &[u64] = if in_order { &[1, 2, 3, 4, 5] } else { &[1] };
            for &context in rest {
                assert_eq!(world.sent(0).context(), context);
            }
            // And nobody waits any more.
            world.nodes[1].receive(8, Some(7), 7);
            world.nodes[0].post_send(1, &Send { tag: Some(7), context: 7, ..short }).unwrap();
            assert_eq!(world.sent(0).context(), 7);
            assert_eq!(world.received(1).context(), 7);
            world.nothing_more();
        }
    }
}

/// Atomic operations, reads and writes have their places among the sends.
pub fn operations_of_all_kinds_keep_one_order<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let (memory, local) = (Memory::zeroed(64), Memory::zeroed(8));
        let (into, one) = (Memory::zeroed(8), Memory::from(vec![1; 8]));
        let world = world(bed, 2, in_order);
        let region = expose(&world.nodes[1], &memory, BOTH, 5);
        let segments = [segment(&region, 0, 8)];
        world.nodes[1].receive(8, Some(2), 2);
        let call = AtomicCall {
            operation: AtomicOperation::Sum,
            datatype: Datatype::Uint64,
            form: Form::Fetch,
        };
        let (operands, results) = (one.all(), into.all());
        let fetch =
            Atomic { operands, results, segments: &segments, context: 1, ..Atomic::new(call) };
        world.nodes[0].post_atomic(1, &fetch).unwrap();
        // Complete when it has left, also where a device would have to hear of its peer's.
        let flags = Flags::INJECT_COMPLETE;
        let send = Send { pieces: one.all(), tag: Some(2), context: 2, flags, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        // The target is not driven, so that the first is not answered.
        drive_alone(&world, 0, || in_order || world.waiting(0).0 > 0);
        let early: &[_] = if in_order { &[] } else { &[(2, None)] };
        assert_eq!(sent(&world, 0), early);
        let rma = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
        world.nodes[0].post_write(1, &Rma { context: 3, ..rma }).unwrap();
        world.nodes[0].post_read(1, &Rma { context: 4, ..rma }).unwrap();
        let rest: &[u64] = if in_order { &[1, 2, 3, 4] } else { &[1, 3, 4] };
        let done = rest.iter().map(|_| world.sent(0).context()).collect();
        assert_eq!(if in_order { done } else { sorted(done) }, rest);
        assert_eq!(world.received(1).context(), 2);
        world.nothing_more();
    }
}

/// An error has its place, too.
pub fn errors_keep_their_places<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let (long, short) = (Memory::from(pattern(1, LONG)), Memory::from(pattern(2, 8)));
        let memory = Memory::zeroed(8);
        let world = world(bed, 2, in_order);
        let region = expose(&world.nodes[1], &memory, BOTH, 5);
        let mut nowhere = segment(&region, 0, 8);
        nowhere.key = !nowhere.key;
        world.nodes[1].receive(8, Some(3), 3);
        world.nodes[0].post_send(1, &first(&long)).unwrap();
        let segments = [nowhere];
        let write = Rma { pieces: short.all(), segments: &segments, context: 2, ..Rma::default() };
        world.nodes[0].post_write(1, &write).unwrap();
        let send = Send { pieces: short.all(), tag: Some(3), context: 3, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        assert_eq!(world.received(1).context(), 3);
        world.poll(50);
        let refused = Some(Errno::KEYREJECTED);
        let early: &[_] = if in_order { &[] } else { &[(2, refused), (3, None)] };
        assert_eq!(sent(&world, 0), early);
        world.nodes[1].receive(LONG, Some(FIRST), FIRST);
        assert_eq!(world.sent(0).context(), FIRST);
        if in_order {
            assert_eq!(world.sent(0).bad(Errno::KEYREJECTED).context, 2);
            assert_eq!(world.sent(0).context(), 3);
        }
        assert_eq!(world.received(1).context(), FIRST);
        world.nothing_more();
    }
}

/// A peer that goes ends what waits: in order, each as it went.
pub fn what_waits_for_a_peer_that_goes_completes<P: Provider>(bed: &Bed<P>) {
    let (long, short) = (Memory::from(pattern(1, LONG)), Memory::from(pattern(2, 8)));
    let world = world(bed, 3, true);
    let short = Send { pieces: short.all(), ..Send::default() };
    for tag in [2, 4] {
        world.nodes[1].receive(8, Some(tag), tag);
    }
    world.nodes[0].post_send(1, &first(&long)).unwrap();
    for (tag, flags) in
        [(2, Flags::empty()), (3, Flags::MATCH_COMPLETE), (4, Flags::empty()), (5, Flags::FENCE)]
    {
        let send = Send { tag: Some(tag), context: tag, flags, ..short };
        world.nodes[0].post_send(1, &send).unwrap();
    }
    for tag in [2, 4] {
        assert_eq!(world.received(1).context(), tag);
    }
    world.poll(50);
    assert_eq!(world.waiting(0), (0, 0));
    world.nodes[1].endpoint.close();
    for (context, fails) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        let done = world.sent(0);
        assert_eq!((done.context, done.errno.is_some()), (context, fails), "{done:?}");
    }
    world.nodes[2].receive(8, Some(6), 6);
    world.nodes[0].post_send(2, &Send { tag: Some(6), context: 6, ..short }).unwrap();
    assert_eq!(world.sent(0).context(), 6);
    assert_eq!(world.received(2).context(), 6);
    world.nothing_more();
}

/// What is over and not reported has its place in the transmit queue.
pub fn what_waits_has_a_place_in_the_queue<P: Provider>(bed: &Bed<P>) {
    const SIZE: u64 = 4;
    let long = Memory::from(pattern(1, LONG));
    let endpoint = EndpointOptions { transmit_size: SIZE as usize, ..endpoint_options(true) };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    world.warm_up();
    let node = &world.nodes[0];
    node.post_send(1, &first(&long)).unwrap();
    for tag in 2..=SIZE {
        world.nodes[1].receive(8, Some(tag), tag);
        node.send(vec![0; 8], 1, Some(tag), tag);
        assert_eq!(world.received(1).context(), tag);
    }
    world.poll(50);
    assert_eq!(node.endpoint.sends_left().unwrap(), 0);
    let refused = node.endpoint.send_tagged(vec![0; 8], 1, 9, 9).unwrap_err();
    assert_eq!(refused.error, PostError::Again);
    assert_eq!(node.endpoint.inject_tagged(&[0; 8], 1, 9).unwrap_err(), PostError::Again);
    world.nodes[1].receive(LONG, Some(FIRST), FIRST);
    for context in 1..=SIZE {
        assert_eq!(world.sent(0).context(), context);
    }
    assert_eq!(world.received(1).context(), FIRST);
    assert_eq!(node.endpoint.sends_left().unwrap(), SIZE as usize);
    world.nothing_more();
}

/// A counter counts what is reported.
pub fn counters_count_in_turn<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let long = Memory::from(pattern(1, LONG));
        let world = bed.world(1);
        let domain = bed.domain(DomainOptions::default());
        let endpoint = Endpoint::open(&domain, endpoint_options(in_order)).unwrap();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        let counter = CompletionCounter::open(&domain);
        let vector = open_vector();
        vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
        endpoint.bind_counter(&counter, Flags::SEND).unwrap();
        endpoint.enable().unwrap();
        endpoint.post_send(first(&long).post(0)).unwrap();
        for tag in [2, 3] {
            world.nodes[0].receive(8, Some(tag), tag);
            // One that is counted, and writes no entry.
            world.drive("there is room", || {
                counter.read();
                endpoint.inject_tagged(&[0; 8], 0, tag).is_ok()
            });
        }
        let early = if in_order { 0 } else { 2 };
        world.drive("what was injected has come", || {
            counter.read();
            world.waiting(0).1 == 2
        });
        world.drive("what has left is counted", || counter.read() >= early);
        world.poll(50);
        assert_eq!(counter.read(), early);
        world.nodes[0].receive(LONG, Some(FIRST), FIRST);
        world.drive("all is counted", || counter.read() == 3);
    }
}

/// A cancel needs no turn: the operation is over at once, and nobody waits for it any more.
pub fn a_canceled_operation_waits_for_nobody<P: Provider>(bed: &Bed<P>) {
    let short = Memory::from(pattern(2, 8));
    let world = world(bed, 2, true);
    let short = Send { pieces: short.all(), ..Send::default() };
    for (tag, flags) in [(1, Flags::MATCH_COMPLETE), (2, Flags::FENCE), (3, Flags::empty())] {
        let send = Send { tag: Some(tag), context: tag, flags, ..short };
        world.nodes[0].post_send(1, &send).unwrap();
    }
    world.nodes[0].endpoint.cancel(2).unwrap();
    assert_eq!(world.drive_sends_of(0).bad(Errno::CANCELED).context, 2);
    world.nodes[1].receive(8, Some(3), 3);
    assert_eq!(world.received(1).context(), 3);
    world.nothing_more();
    world.nodes[1].receive(8, Some(1), 1);
    for context in [1, 3] {
        assert_eq!(world.sent(0).context(), context);
    }
    assert_eq!(world.received(1).context(), 1);
    world.nothing_more();
}

/// Connected endpoints are no different; a shutdown ends what waits, in order.
pub fn connected_endpoints_keep_an_order<P: Provider>(bed: &Bed<P>) {
    let (long, short) = (Memory::from(pattern(1, LONG)), Memory::from(pattern(2, 8)));
    let options = EndpointOptions { connected: true, ..endpoint_options(true) };
    let Link { listener, .. } = Link::new(bed);
    let caller = End::open(bed, |domain| Endpoint::open(domain, options.clone()).unwrap());
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let acceptor = End::acceptor(bed, listener.take(&[&caller]));
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&caller, &listener]);
    acceptor.endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 2, 0, 2).unwrap();
    caller.endpoint.post_send(first(&long).post(0)).unwrap();
    let send = Send { pieces: short.all(), tag: Some(2), context: 2, ..Send::default() };
    caller.endpoint.post_send(send.post(0)).unwrap();
    assert_eq!(acceptor.done(&[&caller]).context(), 2);
    (0..50).for_each(|_| [&caller, &acceptor].into_iter().for_each(Driven::drive));
    caller.endpoint.shutdown().unwrap();
    assert_eq!(caller.done(&[&acceptor]).bad(Errno::CANCELED).context, FIRST);
    assert_eq!(caller.done(&[&acceptor]).context(), 2);
}

/// Each pair of contexts has an order of its own.
pub fn contexts_keep_an_order<P: Provider>(bed: &Bed<P>) {
    let long = Memory::from(pattern(1, LONG));
    let options = EndpointOptions { transmits_in_order: true, ..naming() };
    let domain = bed.domain(DomainOptions::default());
    let ours = Portal::with(&domain, counts(2, 1), &options);
    let theirs = Portal::open(bed, counts(1, 1));
    ours.knows(&[theirs.endpoint.address()]);
    let all = [&ours, &theirs];
    let receive = |room: usize, tag| {
        let endpoint = &theirs.receive[0].endpoint;
        endpoint.receive_tagged(vec![0; room], FI_ADDR_UNSPEC, tag, 0, tag).unwrap();
    };
    [2, 3].into_iter().for_each(|tag| receive(8, tag));
    ours.transmit[0].endpoint.post_send(first(&long).post(0)).unwrap();
    ours.transmit[0].endpoint.send_tagged(vec![0; 8], 0, 2, 2).unwrap();
    assert_eq!(next(&theirs.receive[0], &all).context(), 2);
    ours.transmit[1].endpoint.send_tagged(vec![0; 8], 0, 3, 3).unwrap();
    assert_eq!(next(&theirs.receive[0], &all).context(), 3);
    assert_eq!(next(&ours.transmit[1], &all).context(), 3);
    assert!(ours.transmit[0].taken().is_none());
    receive(LONG, FIRST);
    for context in [FIRST, 2] {
        assert_eq!(next(&ours.transmit[0], &all).context(), context);
    }
}
