//! Triggered operations. Reference: fi_trigger(3).

use std::{sync::Arc, time::Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::Sharing,
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
    triggered::{Threshold, Work},
};

use crate::{
    bed::{Bed, Memory, Node, Options, Receive, Send, World, open_vector, same},
    cases::shared_contexts::senders_with,
    completion::read_all,
    contexts::{Context, Sharers},
    link::{End, Listener},
    one_sided::{Atomic, BOTH, Rma, expose, options, segment},
    scale::PATIENCE,
};

fn capable() -> EndpointOptions {
    let options = EndpointOptions::default();
    EndpointOptions { capabilities: options.capabilities | Flags::TRIGGER, ..options }
}

pub(super) fn triggers() -> Options {
    Options { endpoint: capable(), ..options(MemoryRegionMode::ALLOCATED) }
}

/// Two endpoints that know each other, and a counter of the first one's.
pub(super) fn world<P: Provider>(bed: &Bed<P>) -> (World<P>, Arc<CompletionCounter<P>>) {
    let world = bed.world_with(2, &triggers());
    let counter = CompletionCounter::open(&world.nodes[0].domain);
    (world, counter)
}

fn at<P: Provider>(counter: &Arc<CompletionCounter<P>>, value: u64) -> Threshold<P> {
    Threshold { counter: counter.clone(), value, work: None }
}

pub fn a_send_waits_for_its_threshold<P: Provider>(bed: &Bed<P>) {
    for length in [0, 8, 5_000, 300_000] {
        let (from, into) = (Memory::zeroed(length), Memory::zeroed(length));
        let (world, counter) = world(bed);
        world.nodes[1]
            .post_receive(&Receive { pieces: into.all(), context: 2, ..Receive::default() })
            .unwrap();
        let send = Send { pieces: from.all(), context: 1, ..Send::default() };
        world.nodes[0].endpoint.trigger_send(send.post(1), &at(&counter, 3)).unwrap();
        counter.counter().add(2);
        counter.counter().add_error(5);
        world.nothing_more();
        // "Deferred": what is sent is what is there when it starts.
        from.fill(7);
        counter.counter().add(1);
        assert_eq!(world.sent(0).context(), 1);
        assert_eq!(world.received(1).context(), 2);
        same(&into.bytes(), &vec![7; length], "what was there when it started");
        world.nothing_more();
        assert_eq!(counter.read(), 3, "what it starts does not count here");
    }
}

pub fn what_is_due_already_starts_at_once<P: Provider>(bed: &Bed<P>) {
    let (world, counter) = world(bed);
    counter.counter().set(9);
    world.nodes[1].receive(8, None, 2);
    world.nodes[0]
        .endpoint
        .trigger_send(Send { context: 1, ..Send::default() }.post(1), &at(&counter, 9))
        .unwrap();
    assert_eq!((world.sent(0).context(), world.received(1).context()), (1, 2));
    counter.close().unwrap();
}

pub fn thresholds_come_in_order<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(vec![1, 2, 3, 4, 5]);
    let into = Memory::zeroed(5);
    let (world, counter) = world(bed);
    world.warm_up();
    let (pieces, places) = (bytes.cut(&[1; 5]), into.cut(&[1; 5]));
    for place in places {
        let pieces = Pieces::One(place);
        world.nodes[1].post_receive(&Receive { pieces, ..Receive::default() }).unwrap();
    }
    // By threshold, and as they were submitted where that is the same.
    for (index, threshold) in [(4, 9), (1, 5), (2, 5), (0, 2), (3, 5)] {
        let (pieces, context) = (Pieces::One(pieces[index]), index as u64);
        let send = Send { pieces, context, ..Send::default() };
        world.nodes[0].endpoint.trigger_send(send.post(1), &at(&counter, threshold)).unwrap();
    }
    counter.counter().add(20);
    for _ in 0..5 {
        world.sent(0).good();
        world.received(1).good();
    }
    assert_eq!(into.bytes(), [1, 2, 3, 4, 5]);
}

pub fn a_receive_is_posted_when_its_time_has_come<P: Provider>(bed: &Bed<P>) {
    let into = Memory::zeroed(8);
    for tag in [None, Some((7, 0))] {
        let (world, counter) = world(bed);
        let receive = Receive { pieces: into.all(), tag, context: 4, ..Receive::default() };
        world.nodes[0].endpoint.trigger_receive(receive.post(), &at(&counter, 1)).unwrap();
        world.nodes[1].send(vec![3; 8], 0, tag.map(|(tag, _)| tag), 1);
        assert_eq!(world.sent(1).context(), 1);
        world.nothing_more();
        counter.counter().set(1);
        assert_eq!(world.received(0).context(), 4);
        assert_eq!(into.bytes(), [3; 8]);
    }
}

pub fn a_shared_receive_is_posted_when_its_time_has_come<P: Provider>(bed: &Bed<P>) {
    let into = Memory::zeroed(8);
    let (sharers, world) = senders_with(bed, 2, 1, &triggers());
    let (shared, counter) = (&sharers.shared, CompletionCounter::open(&sharers.domain));
    let nothing = || {
        for member in (0..50).flat_map(|_| &sharers.members) {
            world.poll(1);
            assert!(member.taken().is_none());
        }
    };
    let mut threshold = 0;
    for tag in [None, Some((7, 0))] {
        for (is_early, to) in [(true, 0), (false, 1)] {
            threshold += 2;
            let receive = Receive { pieces: into.all(), tag, context: 4, ..Receive::default() };
            shared.trigger_receive(receive.post(), &at(&counter, threshold)).unwrap();
            counter.counter().add(if is_early { 2 } else { 1 });
            world.nodes[0].send(vec![threshold as u8; 8], to as u64, tag.map(|(tag, _)| tag), 1);
            if !is_early {
                nothing();
                counter.counter().add(1);
            }
            let (found, done) = sharers.next(|| world.poll(1));
            assert_eq!((found, done.context()), (to, 4));
            assert_eq!(into.bytes(), [threshold as u8; 8]);
        }
    }
    // What has not come is canceled, or goes with the context.
    let receive = Receive { context: 6, ..Receive::default() };
    shared.trigger_receive(receive.post(), &at(&counter, 9)).unwrap();
    assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
    shared.cancel(6).unwrap();
    let (found, done) = sharers.next(|| ());
    assert_eq!((found, done.bad(Errno::CANCELED).context), (0, 6));
    assert_eq!(shared.cancel(6), Err(PostError::NothingToCancel { context: 6 }));
    shared.trigger_receive(receive.post(), &at(&counter, 9)).unwrap();
    sharers.members.iter().for_each(|member| member.endpoint.close());
    shared.close().unwrap();
    counter.close().unwrap();
}

pub fn a_shared_receive_may_be_due_within_a_poll<P: Provider>(bed: &Bed<P>) {
    let into = [Memory::zeroed(8), Memory::zeroed(8)];
    let (mut sharers, world) = senders_with(bed, 1, 1, &triggers());
    let counter = CompletionCounter::open(&sharers.domain);
    let options = sharers.members[0].endpoint.options().clone();
    let counted = Endpoint::open(&sharers.domain, options).unwrap();
    counted.bind_address_vector(&sharers.vector).unwrap();
    counted.bind_shared_receive(&sharers.shared).unwrap();
    counted.bind_counter(&counter, Flags::RECV).unwrap();
    sharers.members.push(Context::enabled(counted, Flags::TRANSMIT | Flags::RECV));
    let address = sharers.members[1].endpoint.address();
    assert_eq!(world.nodes[0].vector.insert_one(address), Ok(1));
    let send = |to, tag: u64| {
        world.nodes[0].endpoint.inject_tagged(&[tag as u8; 8], to, tag).unwrap();
        for _ in 0..50 {
            world.poll(1);
            sharers.poll();
        }
    };
    // One waits where the counter is changed, and one elsewhere.
    send(1, 7);
    send(0, 8);
    for (memory, tag) in into.iter().zip([7, 8]) {
        let (tag, context) = (Some((tag, 0)), tag);
        let receive = Receive { pieces: memory.all(), tag, context, ..Receive::default() };
        sharers.shared.trigger_receive(receive.post(), &at(&counter, context - 6)).unwrap();
    }
    sharers.shared.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 9, 0, 9).unwrap();
    send(1, 9);
    let mut found = [(); 3].map(|()| {
        let (found, done) = sharers.next(|| world.poll(1));
        (found, done.context())
    });
    found.sort_unstable();
    assert_eq!(found, [(0, 8), (1, 7), (1, 9)]);
    assert_eq!((into[0].bytes(), into[1].bytes()), (vec![7; 8], vec![8; 8]));
    assert_eq!(counter.read(), 2);
}

pub fn what_cannot_be_triggered_at_a_shared_context_is_refused<P: Provider>(bed: &Bed<P>) {
    let sharers = Sharers::open(bed, 1, &triggers());
    let plain = Sharers::open(bed, 1, &Options::default());
    let counter = CompletionCounter::open(&sharers.domain);
    let trigger = |sharers: &Sharers<P>, flags, when: &Threshold<P>| {
        let receive = Receive { flags, tag: Some((0, 0)), ..Receive::default() };
        sharers.shared.trigger_receive(receive.post(), when).unwrap_err()
    };
    let (none, when) = (Flags::empty(), at(&counter, 1));
    let missing = PostError::NotCapable { missing: Flags::TRIGGER };
    assert_eq!(trigger(&plain, none, &when), missing);
    for flags in [Flags::PEEK, Flags::CLAIM, Flags::MULTI_RECV, Flags::INJECT] {
        assert_eq!(trigger(&sharers, flags, &when).errno(), Errno::BADFLAGS);
    }
    let elsewhere = at(&CompletionCounter::open(&plain.domain), 1);
    assert_eq!(trigger(&sharers, none, &elsewhere).errno(), Errno::DOMAIN);
    let work = Threshold { work: Some(Work { id: 1, completion: None }), ..at(&counter, 1) };
    assert_eq!(trigger(&sharers, none, &work).errno(), Errno::NOSYS);
    drop(when);
    drop(work);
    counter.close().unwrap();
}

pub fn one_sided_operations_wait_too<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(24);
    let (from, into) = (Memory::from(vec![1; 8]), Memory::zeroed(8));
    let (one, old) = (Memory::from(vec![1; 8]), Memory::zeroed(8));
    let (world, counter) = world(bed);
    let region = expose(&world.nodes[1], &target, BOTH, 5);
    let segments = [segment(&region, 8, 8)];
    let (node, to) = (&world.nodes[0].endpoint, 1);
    let rma = |pieces, context| {
        let rma = Rma { pieces, segments: &segments, context, ..Rma::default() };
        rma.post(to)
    };
    let operation = AtomicOperation::Sum;
    let call = AtomicCall { operation, datatype: Datatype::Uint64, form: Form::Fetch };
    let (operands, results) = (one.all(), old.all());
    let atomic = Atomic { operands, results, segments: &segments, ..Atomic::new(call) };
    let atomic = Atomic { context: 2, ..atomic };
    node.trigger_read(rma(into.all(), 3), &at(&counter, 3)).unwrap();
    node.trigger_atomic(atomic.post(to), &at(&counter, 2)).unwrap();
    node.trigger_write(rma(from.all(), 1), &at(&counter, 1)).unwrap();
    world.nothing_more();
    assert_eq!(target.bytes(), [0; 24]);
    for context in 1..=3 {
        counter.counter().add(1);
        assert_eq!(world.sent(0).context(), context);
    }
    assert_eq!((old.bytes(), into.bytes()), (vec![1; 8], vec![2; 8]));
    let lengths = node.trigger_write(rma(Pieces::One(Piece::EMPTY), 1), &at(&counter, 9));
    assert_eq!(lengths.unwrap_err().errno(), Errno::INVAL);
    world.nodes[1].domain.close_memory(&region).unwrap();
}

/// An endpoint whose sends are counted, and what drives it.
pub(super) struct Chain<P: Provider> {
    pub(super) endpoint: Arc<Endpoint<P>>,
    pub(super) counter: Arc<CompletionCounter<P>>,
    pub(super) queue: Arc<CompletionQueue<P>>,
}

pub(super) fn chain<P: Provider>(bed: &Bed<P>, peer: &Node<P>) -> Chain<P> {
    let domain = bed.domain(Default::default());
    let endpoint = Endpoint::open(&domain, capable()).unwrap();
    let counter = CompletionCounter::open(&domain);
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_counter(&counter, Flags::SEND).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    let vector = open_vector();
    vector.insert_one(peer.endpoint.address()).unwrap();
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.enable().unwrap();
    Chain { endpoint, counter, queue }
}

/// Each is sent by the endpoint whose counter it waits for, from within its engine.
pub fn an_operation_starts_the_next<P: Provider>(bed: &Bed<P>) {
    const LINKS: u64 = 600;
    let node = &bed.world(1).nodes[0];
    let Chain { endpoint, counter, queue } = chain(bed, node);
    for link in 1..=LINKS {
        let send = Send { context: link, ..Send::default() };
        endpoint.trigger_send(send.post(0), &at(&counter, link)).unwrap();
    }
    // Then more are due at once than an engine has room for beside its own.
    for link in LINKS + 1..=2 * LINKS {
        let send = Send { context: link, ..Send::default() };
        endpoint.trigger_send(send.post(0), &at(&counter, LINKS)).unwrap();
    }
    for _ in 0..=2 * LINKS {
        node.receive(0, None, 1);
    }
    endpoint.send(Vec::new(), 0, 0).unwrap();
    let start = Instant::now();
    let (mut sent, mut heard) = (0, 0);
    while sent <= 2 * LINKS || heard <= 2 * LINKS {
        read_all(&queue, |done| {
            assert_eq!(done.context(), sent, "in order");
            sent += 1;
        });
        read_all(&node.receives, |done| {
            done.good();
            heard += 1;
        });
        assert!(start.elapsed() < PATIENCE, "in vain: {sent} were sent and {heard} heard");
    }
    assert_eq!(counter.read(), 2 * LINKS + 1);
}

pub fn what_waits_is_canceled<P: Provider>(bed: &Bed<P>) {
    let (world, counter) = world(bed);
    let node = &world.nodes[0];
    let when = at(&counter, 1);
    node.endpoint.trigger_send(Send { context: 1, ..Send::default() }.post(1), &when).unwrap();
    node.endpoint
        .trigger_receive(Receive { context: 2, ..Receive::default() }.post(), &when)
        .unwrap();
    let segments = [];
    let write = Rma { segments: &segments, context: 3, ..Rma::default() };
    node.endpoint.trigger_write(write.post(1), &when).unwrap();
    assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
    for context in [1, 2, 3] {
        node.endpoint.cancel(context).unwrap();
        assert_eq!(node.endpoint.cancel(context), Err(PostError::NothingToCancel { context }));
    }
    for context in [1, 3] {
        assert_eq!(world.sent(0).bad(Errno::CANCELED).context, context);
    }
    assert_eq!(world.received(0).bad(Errno::CANCELED).context, 2);
    counter.counter().add(1);
    world.nothing_more();
    counter.close().unwrap();
}

pub fn what_goes_wrong_when_it_starts_is_reported<P: Provider>(bed: &Bed<P>) {
    let (world, counter) = world(bed);
    let node = &world.nodes[0];
    let (when, segments) = (at(&counter, 1), []);
    node.endpoint.trigger_send(Send { context: 1, ..Send::default() }.post(55), &when).unwrap();
    let write = Rma { segments: &segments, context: 2, ..Rma::default() };
    node.endpoint.trigger_write(write.post(55), &when).unwrap();
    let directed = Receive { context: 3, from: 55, ..Receive::default() };
    node.endpoint.trigger_receive(directed.post(), &when).unwrap();
    world.nothing_more();
    counter.counter().add(1);
    for context in [1, 2] {
        assert_eq!(world.sent(0).bad(Errno::INVAL).context, context);
    }
    assert_eq!(world.received(0).bad(Errno::INVAL).context, 3);
}

pub fn what_waits_goes_with_its_endpoint<P: Provider>(bed: &Bed<P>) {
    let (world, counter) = world(bed);
    for context in 0..3 {
        let send = Send { context, ..Send::default() };
        world.nodes[0].endpoint.trigger_send(send.post(1), &at(&counter, 1 + context)).unwrap();
    }
    world.nodes[1].receive(8, None, 2);
    counter.counter().add(1);
    assert_eq!(world.sent(0).context(), 0);
    world.received(1).good();
    assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
    world.nodes[0].endpoint.close();
    counter.counter().add(10);
    world.nodes[1].receive(8, None, 2);
    world.nothing_more();
    counter.close().unwrap();
}

pub fn what_cannot_be_triggered_is_refused<P: Provider>(bed: &Bed<P>) {
    let (world, counter) = world(bed);
    let (other, stranger) = (&world.nodes[1], bed.world(1));
    let send = Send::default();
    let foreign = other.endpoint.trigger_send(send.post(0), &at(&counter, 1)).unwrap_err();
    assert_eq!((foreign.errno(), foreign.to_string().contains("counter")), (Errno::DOMAIN, true));
    let node = &stranger.nodes[0];
    let incapable =
        node.endpoint.trigger_send(send.post(0), &at(&CompletionCounter::open(&node.domain), 1));
    assert_eq!(incapable, Err(PostError::NotCapable { missing: Flags::TRIGGER }));
    let node = &world.nodes[0];
    let flags = Flags::PEEK;
    let bad =
        node.endpoint.trigger_send(Send { flags, ..send }.post(1), &at(&counter, 1)).unwrap_err();
    assert_eq!(bad.errno(), Errno::BADFLAGS);
    let long = Memory::zeroed(node.endpoint.options().inject_size + 1);
    let inject = Send { pieces: long.all(), flags: Flags::INJECT, ..send };
    let long = node.endpoint.trigger_send(inject.post(1), &at(&counter, 1)).unwrap_err();
    assert_eq!(long.errno(), Errno::MSGSIZE);
    counter.close().unwrap();
    assert_eq!(
        node.endpoint.trigger_send(send.post(1), &at(&counter, 1)),
        Err(PostError::TriggerClosed)
    );
    world.nothing_more();
}

pub fn an_injected_buffer_is_free_while_it_waits<P: Provider>(bed: &Bed<P>) {
    let (from, into) = (Memory::from(vec![6; 40]), Memory::zeroed(40));
    let (world, counter) = world(bed);
    let receive = Receive { pieces: into.all(), ..Receive::default() };
    world.nodes[1].post_receive(&receive).unwrap();
    let pieces = from.cut(&[10, 30]);
    let pieces = Pieces::Many(&pieces);
    let send = Send { pieces, flags: Flags::INJECT, ..Send::default() };
    world.nodes[0].endpoint.trigger_send(send.post(1), &at(&counter, 1)).unwrap();
    from.scribble();
    counter.counter().add(1);
    world.received(1).good();
    assert_eq!(into.bytes(), [6; 40]);
}

pub fn any_thread_starts_what_waits<P: Provider>(bed: &Bed<P>) {
    const EACH: u64 = 200;
    let threads = if bed.sharing == Sharing::Shared { 2 } else { 1 };
    let (world, counter) = world(bed);
    world.warm_up();
    for context in 0..threads * EACH {
        world.nodes[1].receive(0, None, context);
        let send = Send { context, ..Send::default() };
        world.nodes[0].endpoint.trigger_send(send.post(1), &at(&counter, context + 1)).unwrap();
    }
    let plain = counter.counter();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..EACH).for_each(|_| plain.add(1)));
        }
    });
    for context in 0..threads * EACH {
        assert_eq!(world.sent(0).context(), context);
        world.received(1).good();
    }
    world.nothing_more();
}

/// "Outstanding operations posted to the endpoint" are canceled by fi_shutdown, and what starts
/// when the connection is over is told, even if it was accepted before.
pub fn a_shutdown_cancels_what_waits<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let options = EndpointOptions { connected: true, ..capable() };
    let caller = End::open(bed, |domain| Endpoint::open(domain, options).unwrap());
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let acceptor = End::acceptor(bed, listener.take(&[&caller]));
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    let (into, counter) = (Memory::zeroed(8), CompletionCounter::open(&caller.domain));
    let receive = Receive { pieces: into.all(), context: 2, ..Receive::default() };
    let send = Send { context: 1, ..Send::default() };
    caller.endpoint.trigger_send(send.post(0), &at(&counter, 1)).unwrap();
    caller.endpoint.trigger_receive(receive.post(), &at(&counter, 1)).unwrap();
    assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
    caller.endpoint.shutdown().unwrap();
    for context in [1, 2] {
        let done = caller.failed_already();
        assert_eq!((done.errno, done.context), (Some(Errno::CANCELED), context), "{done:?}");
    }
    let late = Receive { context: 3, ..receive };
    caller.endpoint.trigger_receive(late.post(), &at(&counter, 1)).unwrap();
    counter.counter().add(1);
    let done = caller.done(&[&acceptor]);
    assert_eq!((done.errno, done.context), (Some(Errno::NOTCONN), 3), "{done:?}");
    counter.close().unwrap();
}

/// "Outbound data transfers cannot be initiated on a connection-oriented endpoint until an FI_CONNECTED
/// event has been generated" (fi_cm(3)), nor after its end: who is told later is told why as well.
pub fn what_starts_without_a_connection_fails<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let options = EndpointOptions { connected: true, ..capable() };
    let caller = End::open(bed, |domain| Endpoint::open(domain, options).unwrap());
    let counter = CompletionCounter::open(&caller.domain);
    let fails = |context| {
        let send = Send { context, ..Send::default() };
        caller.endpoint.trigger_send(send.post(0), &at(&counter, 0)).unwrap();
        let done = caller.done(&[]);
        assert_eq!((done.errno, done.context), (Some(Errno::NOTCONN), context), "{done:?}");
    };
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    fails(1);
    let acceptor = End::acceptor(bed, listener.take(&[&caller]));
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    caller.endpoint.shutdown().unwrap();
    fails(2);
    counter.close().unwrap();
}
