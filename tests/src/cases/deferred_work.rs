//! Deferred work. Reference: fi_trigger(3), "DEFERRED WORK QUEUES".

use std::sync::Arc;

use kestrel_core::{
    completion_counter::CompletionCounter,
    endpoint::{EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
    triggered::{Change, Threshold, Work},
};

use super::triggered::{Chain, chain, triggers, world};
use crate::{
    bed::{Bed, Memory, Options, Receive, Send, World, same},
    completion::read_all,
    one_sided::{Atomic, BOTH, Rma, expose, segment},
};

type Counter<P> = Arc<CompletionCounter<P>>;

fn work<P: Provider>(
    counter: &Counter<P>,
    value: u64,
    id: u64,
    completion: Option<&Counter<P>>,
) -> Threshold<P> {
    let work = Some(Work { id, completion: completion.cloned() });
    Threshold { counter: counter.clone(), value, work }
}

/// Waits for a counter, driving everybody.
#[track_caller]
fn reaches<P: Provider>(world: &World<P>, counter: &Counter<P>, value: u64) {
    world.drive("a counter counts work", || counter.read() >= value);
    world.nothing_more();
    assert_eq!((counter.read(), counter.counter().read_error()), (value, 0));
}

pub fn operations_are_counted_by_a_counter_of_their_own<P: Provider>(bed: &Bed<P>) {
    for length in [0, 8, 5_000, 300_000] {
        for (tag, early) in [(None, false), (Some(5), true), (None, true), (Some(5), false)] {
            let (from, into) = (Memory::from(vec![9; length]), Memory::zeroed(length));
            let (world, start) = world(bed);
            let other = CompletionCounter::open(&world.nodes[1].domain);
            let [sent, received] =
                [0, 1].map(|node| CompletionCounter::open(&world.nodes[node].domain));
            let receive = Receive { pieces: into.all(), ..Receive::default() };
            let receive = Receive { tag: tag.map(|tag| (tag, 0)), ..receive };
            let send = Send { pieces: from.all(), tag, ..Send::default() };
            let node = &world.nodes[0].endpoint;
            node.trigger_send(send.post(1), &work(&start, 1, 1, Some(&sent))).unwrap();
            let when = work(&other, 1, 2, Some(&received));
            world.nodes[1].endpoint.trigger_receive(receive.post(), &when).unwrap();
            world.nothing_more();
            for counter in if early { [&other, &start] } else { [&start, &other] } {
                counter.counter().add(1);
                world.poll(20);
            }
            reaches(&world, &received, 1);
            reaches(&world, &sent, 1);
            same(&into.bytes(), &from.bytes(), "what was sent");
        }
    }
}

pub fn one_sided_work_is_counted_too<P: Provider>(bed: &Bed<P>) {
    for length in [8, 5_000, 300_000] {
        let target = Memory::zeroed(length);
        let (from, into) = (Memory::from(vec![1; length]), Memory::zeroed(length));
        let (one, old) = (Memory::from(vec![1; 8]), Memory::zeroed(8));
        let (world, start) = world(bed);
        let done = CompletionCounter::open(&world.nodes[0].domain);
        let region = expose(&world.nodes[1], &target, BOTH, 5);
        let (all, first) = ([segment(&region, 0, length)], [segment(&region, 0, 8)]);
        let node = &world.nodes[0].endpoint;
        let write = Rma { pieces: from.all(), segments: &all, ..Rma::default() };
        node.trigger_write(write.post(1), &work(&start, 1, 1, Some(&done))).unwrap();
        let operation = AtomicOperation::Sum;
        let call = AtomicCall { operation, datatype: Datatype::Uint64, form: Form::Fetch };
        let (operands, results) = (one.all(), old.all());
        let add = Atomic { operands, results, segments: &first, ..Atomic::new(call) };
        // What the work before it has counted.
        node.trigger_atomic(add.post(1), &work(&done, 1, 2, Some(&done))).unwrap();
        let read = Rma { pieces: into.all(), segments: &all, ..Rma::default() };
        node.trigger_read(read.post(1), &work(&done, 2, 3, Some(&done))).unwrap();
        start.counter().add(1);
        reaches(&world, &done, 3);
        let mut expected = vec![1; length];
        expected[..8].fill(2);
        same(&into.bytes(), &expected, "written, added to and read");
        assert_eq!(old.bytes(), [1; 8]);
        world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

pub fn entries_are_for_who_asks<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(8);
    let (from, into) = (Memory::from(vec![1; 8]), Memory::zeroed(8));
    let (world, start) = world(bed);
    let done = CompletionCounter::open(&world.nodes[0].domain);
    let region = expose(&world.nodes[1], &target, BOTH, 5);
    let (node, flags) = (&world.nodes[0].endpoint, Flags::COMPLETION);
    let segments = [segment(&region, 0, 8)];
    let receive = Receive { pieces: into.all(), context: 1, flags, ..Receive::default() };
    node.trigger_receive(receive.post(), &work(&start, 1, 1, Some(&done))).unwrap();
    let send = Send { pieces: from.all(), context: 2, flags, ..Send::default() };
    node.trigger_send(send.post(0), &work(&start, 2, 2, None)).unwrap();
    let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
    let write = Rma { context: 3, flags, ..write };
    node.trigger_write(write.post(1), &work(&start, 3, 3, Some(&done))).unwrap();
    start.counter().add(3);
    let sent = [world.sent(0), world.sent(0)].map(|done| done.context());
    assert!(sent == [2, 3] || sent == [3, 2], "{sent:?}");
    let received = world.received(0).good();
    assert_eq!((received.context, received.length, received.buffer), (1, 8, into.start()));
    reaches(&world, &done, 2);
    world.nodes[1].domain.close_memory(&region).unwrap();
}

/// What arrives is passed on while the application only waits for the end.
pub fn a_received_message_is_passed_on_by_nobody<P: Provider>(bed: &Bed<P>) {
    let (into, back) = (Memory::zeroed(8), Memory::zeroed(8));
    let (world, _) = world(bed);
    let node = &world.nodes[1];
    let Chain { endpoint, counter, queue } = chain(bed, node);
    let (first, last) =
        (CompletionCounter::open(endpoint.domain()), CompletionCounter::open(endpoint.domain()));
    // It is addressed before it is known who sends.
    let receive = Receive { pieces: into.all(), ..Receive::default() };
    endpoint.trigger_receive(receive.post(), &work(&first, 0, 1, Some(&first))).unwrap();
    let send = Send { pieces: into.all(), ..Send::default() };
    endpoint.trigger_send(send.post(0), &work(&first, 1, 2, Some(&last))).unwrap();
    node.post_receive(&Receive { pieces: back.all(), ..Receive::default() }).unwrap();
    let peer = node.vector.insert_one(endpoint.address()).unwrap();
    node.send(vec![4; 8], peer, None, 1);
    // This drives the endpoint, although nothing binds it to the counter.
    world.drive("a message is passed on", || last.read() >= 1 && world.waiting(1).1 >= 1);
    assert_eq!(back.bytes(), [4; 8]);
    read_all(&queue, |done| panic!("an entry of work: {done:?}"));
    assert_eq!(counter.read(), 0, "work is not counted by its endpoint's counter");
}

pub fn errors_trigger_and_are_counted<P: Provider>(bed: &Bed<P>) {
    let (world, start) = world(bed);
    let done = CompletionCounter::open(&world.nodes[0].domain);
    let node = &world.nodes[0].endpoint;
    let when = |id| work(&start, 2, id, Some(&done));
    node.trigger_send(Send { context: 1, ..Send::default() }.post(55), &when(1)).unwrap();
    let write = Rma { context: 2, ..Rma::default() };
    node.trigger_write(write.post(55), &when(2)).unwrap();
    node.trigger_receive(Receive { from: 55, context: 3, ..Receive::default() }.post(), &when(3))
        .unwrap();
    start.counter().add(1);
    world.nothing_more();
    // "Success plus error counter values".
    start.counter().add_error(1);
    for context in [1, 2] {
        assert_eq!(world.sent(0).bad(Errno::INVAL).context, context);
    }
    assert_eq!(world.received(0).bad(Errno::INVAL).context, 3);
    world.nothing_more();
    assert_eq!((done.read(), done.counter().read_error()), (0, 3));
}

pub fn counters_are_set_and_added_to<P: Provider>(bed: &Bed<P>) {
    let (world, start) = world(bed);
    let domain = &world.nodes[0].domain;
    let target = CompletionCounter::open(domain);
    domain.defer_change(&target, Change::Add(5), &work(&start, 2, 1, None)).unwrap();
    domain.defer_change(&target, Change::Set(40), &work(&start, 1, 2, None)).unwrap();
    // A change may be what the next one waits for, and go around.
    domain.defer_change(&start, Change::Add(1), &work(&target, 45, 3, None)).unwrap();
    domain.defer_change(&target, Change::Add(1), &work(&start, 3, 4, None)).unwrap();
    start.counter().add(1);
    assert_eq!(target.read(), 40);
    start.counter().add(1);
    assert_eq!((target.read(), start.read()), (46, 3));
    for counter in [target, start] {
        counter.close().unwrap();
    }
}

pub fn work_is_canceled_and_flushed<P: Provider>(bed: &Bed<P>) {
    let (world, start) = world(bed);
    let (domain, node) = (&world.nodes[0].domain, &world.nodes[0].endpoint);
    let other = CompletionCounter::open(domain);
    for (id, counter) in [(1, &start), (2, &start), (3, &other), (4, &start)] {
        let send = Send { context: 7, ..Send::default() };
        node.trigger_send(send.post(1), &work(counter, 1, id, None)).unwrap();
    }
    // An operation that is no work is not meant.
    let plain = Threshold { counter: start.clone(), value: 2, work: None };
    node.trigger_send(Send { context: 8, ..Send::default() }.post(1), &plain).unwrap();
    domain.defer_change(&other, Change::Add(1), &work(&start, 1, 5, None)).unwrap();
    assert!(domain.cancel_work(1) && !domain.cancel_work(1) && !domain.cancel_work(8));
    assert_eq!(node.cancel(7), Err(PostError::NothingToCancel { context: 7 }));
    domain.flush_work(Some(&start));
    assert!(!domain.cancel_work(2) && !domain.cancel_work(5));
    domain.flush_work(None);
    assert!(!domain.cancel_work(3));
    other.close().unwrap();
    world.nodes[1].receive(8, None, 3);
    start.counter().add(2);
    assert_eq!((world.sent(0).context(), world.received(1).context()), (8, 3));
    world.nothing_more();
    start.close().unwrap();
}

pub fn what_cannot_be_work_is_refused<P: Provider>(bed: &Bed<P>) {
    let (world, start) = world(bed);
    let (domain, node) = (&world.nodes[0].domain, &world.nodes[0].endpoint);
    let target = CompletionCounter::open(domain);
    for flags in [Flags::PEEK, Flags::MULTI_RECV] {
        let receive = Receive { flags, ..Receive::default() };
        let refused = node.trigger_receive(receive.post(), &work(&start, 1, 1, None)).unwrap_err();
        assert_eq!(refused.errno(), Errno::NOSYS);
    }
    let counted = work(&start, 1, 1, Some(&start));
    let refused = domain.defer_change(&target, Change::Set(1), &counted).unwrap_err();
    assert_eq!(refused.errno(), Errno::INVAL);
    let elsewhere = CompletionCounter::open(&world.nodes[1].domain);
    let refused = domain.defer_change(&elsewhere, Change::Set(1), &work(&start, 1, 1, None));
    assert_eq!(refused.unwrap_err().errno(), Errno::DOMAIN);
    let refused = node.trigger_send(Send::default().post(1), &work(&start, 1, 1, Some(&elsewhere)));
    assert_eq!(refused.unwrap_err().errno(), Errno::DOMAIN);
    let options = triggers();
    let endpoint = EndpointOptions { buffered: true, ..options.endpoint };
    let buffering = bed.world_with(1, &Options { endpoint, ..options });
    let node = &buffering.nodes[0];
    let when = work(&CompletionCounter::open(&node.domain), 1, 1, None);
    let refused = node.endpoint.trigger_send(Send::default().post(0), &when).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSYS);
}
