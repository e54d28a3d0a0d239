//! Transmit completion over queue pairs, on the fake: a message that the peer's device does not have
//! yet may be lost, so its send is not complete, and fails with its peer.

use std::{
    thread,
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    memory::Pieces,
    transport::Transport,
    triggered::{Threshold, Work},
};
use kestrel_tests::{
    bed::{Memory, Options, Send, World, open_vector, pattern, same},
    fake::fake_bed,
    link::Link,
    scale::PATIENCE,
};
use kestrel_verbs::{
    Carrier, RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric},
    verbs::Status,
};

/// Inline, in a buffer, in all of one, in several.
const LENGTHS: [usize; 4] = [8, 1_000, 7_000, 30_000];
/// Whose sends are complete when the peer has the message.
const LATE: [Flags; 3] = [Flags::empty(), Flags::TRANSMIT_COMPLETE, Flags::INJECT];

/// Two who know each other, and the first has a long window to the second.
fn world() -> (World<RcProvider<FakeDevice>>, FakeFabric) {
    world_of(EndpointOptions::default())
}

fn world_of(endpoint: EndpointOptions) -> (World<RcProvider<FakeDevice>>, FakeFabric) {
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let endpoint = EndpointOptions { inject_size: LENGTHS[3], ..endpoint };
    let options = Options { endpoint, ..Options::default() };
    let world = bed.world_with(2, &options);
    world.warm_up();
    for nth in 0..40 {
        world.nodes[1].receive(1, None, nth);
        world.nodes[0].send(vec![1], 1, None, nth);
        world.sent(0).good();
        world.received(1).good();
    }
    (world, fabric)
}

/// A long one in pieces, so that it is not lent to its receiver.
fn send(world: &World<RcProvider<FakeDevice>>, memory: &Memory, flags: Flags, context: u64) {
    let length = memory.bytes().len();
    let parts = memory.cut(&[3, length - 3]);
    let pieces = if length < LENGTHS[3] { memory.all() } else { Pieces::Many(&parts) };
    let send = Send { pieces, flags, context, ..Send::default() };
    world.nodes[0].post_send(1, &send).unwrap();
}

#[test]
fn a_send_is_complete_when_its_peer_has_it() {
    for length in LENGTHS {
        let (world, fabric) = world();
        let memory = Memory::from(pattern(1, length));
        for (round, flags) in LATE.into_iter().enumerate() {
            fabric.hold(true);
            send(&world, &memory, flags, 1);
            send(&world, &memory, Flags::INJECT_COMPLETE, 2);
            assert_eq!(world.sent(0).context(), 2, "its buffer is free");
            world.poll(100);
            world.nothing_more();
            fabric.hold(false);
            assert_eq!(world.sent(0).context(), 1);
            for _ in 0..2 {
                world.nodes[1].receive(length, None, round as u64);
                same(&world.received(1).good().returned.unwrap(), &memory.bytes(), "it came");
            }
        }
        world.nothing_more();
    }
}

/// What its peer has not got yet keeps its place among the sends that may be under way.
#[test]
fn what_is_unconfirmed_counts_as_under_way() {
    let few = EndpointOptions { transmit_size: 4, ..EndpointOptions::default() };
    let (world, fabric) = world_of(few);
    let memory = Memory::from(pattern(1, 8));
    fabric.hold(true);
    (0..4).for_each(|context| send(&world, &memory, Flags::empty(), context));
    let one_more = Send { pieces: memory.all(), context: 4, ..Send::default() };
    assert_eq!(world.nodes[0].post_send(1, &one_more), Err(PostError::Again));
    fabric.hold(false);
    assert_eq!([(); 4].map(|()| world.sent(0).context()), [0, 1, 2, 3]);
    world.nodes[0].post_send(1, &one_more).unwrap();
    assert_eq!(world.sent(0).context(), 4);
}

/// Where completions keep the order of the sends, what is complete at once waits as well.
#[test]
fn in_order_nothing_overtakes_what_its_peer_has_to_get() {
    for length in LENGTHS {
        let in_order = EndpointOptions { transmits_in_order: true, ..EndpointOptions::default() };
        let (world, fabric) = world_of(in_order);
        let memory = Memory::from(pattern(1, length));
        for flags in LATE {
            fabric.hold(true);
            send(&world, &memory, flags, 1);
            send(&world, &memory, Flags::INJECT_COMPLETE, 2);
            world.poll(100);
            world.nothing_more();
            fabric.hold(false);
            assert_eq!([world.sent(0).context(), world.sent(0).context()], [1, 2]);
        }
    }
}

/// However many peers have something to confirm, the device is asked once for all of them.
#[test]
fn a_poll_asks_the_device_once_for_all_peers() {
    let looks_with = |peers: u64| {
        let (bed, fabric) = fake_bed(VerbsOptions::default());
        let nodes = bed.world_with(1 + peers as usize, &Options::default());
        let byte = Memory::zeroed(1);
        let post = |to: u64| {
            let send = Send { pieces: byte.all(), context: to, ..Send::default() };
            nodes.post(|| nodes.nodes[0].post_send(to, &send));
        };
        (1..=peers).for_each(|to| nodes.nodes[to as usize].receive(1, None, to));
        (1..=peers).for_each(post);
        (0..peers).for_each(|_| drop(nodes.sent(0).good()));
        fabric.hold(true);
        (1..=peers).for_each(post);
        nodes.nodes[0].poll();
        let before = fabric.tally().looks;
        // A transport asks besides in one look of 64, wherever it is in these: in as many polls equally often.
        (0..64).for_each(|_| nodes.nodes[0].poll());
        let looks = fabric.tally().looks - before;
        assert_eq!(nodes.waiting(0), (0, 0), "the fabric holds them");
        fabric.hold(false);
        (0..peers).for_each(|_| drop(nodes.sent(0).good()));
        looks
    };
    assert_eq!(looks_with(30), looks_with(2), "in 64 polls");
}

/// "Operations that fail asynchronously will still generate completions, even if a completion is not
/// requested".
#[test]
fn what_is_injected_and_suppressed_fails_all_the_same() {
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    let world = bed.world_with(2, &options);
    world.warm_up();
    let memory = Memory::from(pattern(1, LENGTHS[0]));
    fabric.hold(true);
    let transmitted = Flags::INJECT | Flags::TRANSMIT_COMPLETE;
    let each = [Flags::INJECT, transmitted, transmitted | Flags::INJECT_COMPLETE];
    for flags in each {
        let context = flags.bits();
        let send = Send { pieces: memory.all(), flags, context, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
    }
    world.poll(100);
    world.nothing_more();
    fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
    fabric.hold(false);
    let failed = [(); 3].map(|()| world.sent(0));
    assert!(failed.iter().all(|done| done.errno.is_some()), "{failed:?}");
    let told = failed.map(|done| done.context);
    assert_eq!(told, each.map(|flags| flags.bits()));
    world.nothing_more();
}

/// It writes no entry, but is counted at its level, which is the default one.
#[test]
fn what_is_injected_is_counted_when_its_peer_has_it() {
    for is_lost in [false, true] {
        let (bed, fabric) = fake_bed(VerbsOptions::default());
        let (peer, domain) = (bed.stranger(&Options::default()), bed.domain(Default::default()));
        let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        let reported = Flags::TRANSMIT | Flags::RECV | Flags::SELECTIVE_COMPLETION;
        endpoint.bind_completion_queue(&queue, reported).unwrap();
        let counter = CompletionCounter::open(&domain);
        endpoint.bind_counter(&counter, Flags::SEND).unwrap();
        let vector = open_vector();
        endpoint.bind_address_vector(&vector).unwrap();
        vector.insert_one(peer.endpoint.address()).unwrap();
        endpoint.enable().unwrap();
        let counts = || (counter.read(), counter.counter().read_error());
        let reaches = |expected| {
            let start = Instant::now();
            while counts() != expected {
                peer.poll();
                assert!(start.elapsed() < PATIENCE, "{:?}, not {expected:?}", counts());
            }
        };
        endpoint.inject(&[1; 8], 0).unwrap();
        reaches((1, 0));
        fabric.hold(true);
        endpoint.inject(&[2; 8], 0).unwrap();
        let memory = Memory::zeroed(8);
        let send = Send { pieces: memory.all(), flags: Flags::INJECT, ..Send::default() };
        endpoint.post_send(send.post(0)).unwrap();
        (0..100).for_each(|_| assert_eq!(counts(), (1, 0), "they have not arrived"));
        if is_lost {
            fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
        }
        fabric.hold(false);
        reaches(if is_lost { (1, 2) } else { (3, 0) });
        endpoint.close();
    }
}

/// What counts work tells that it was lost.
#[test]
fn what_is_injected_by_work_is_counted_when_its_peer_has_it() {
    for is_lost in [false, true] {
        let (bed, fabric) = fake_bed(VerbsOptions::default());
        let mut options = Options::default();
        options.endpoint.capabilities |= Flags::TRIGGER;
        let world = bed.world_with(2, &options);
        world.warm_up();
        let [start, done] = [(); 2].map(|()| CompletionCounter::open(&world.nodes[0].domain));
        let work = Some(Work { id: 1, completion: Some(done.clone()) });
        let now = Threshold { counter: start, value: 0, work };
        let memory = Memory::zeroed(8);
        let send = Send { pieces: memory.all(), flags: Flags::INJECT, ..Send::default() };
        fabric.hold(true);
        world.nodes[0].endpoint.trigger_send(send.post(1), &now).unwrap();
        let counts = || (done.read(), done.counter().read_error());
        for _ in 0..100 {
            world.poll(1);
            assert_eq!(counts(), (0, 0), "it has not arrived");
        }
        if is_lost {
            fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
        }
        fabric.hold(false);
        let expected = if is_lost { (0, 1) } else { (1, 0) };
        world.drive("work is counted", || counts() == expected);
    }
}

#[test]
fn what_its_peer_did_not_get_fails() {
    for length in LENGTHS {
        for flags in LATE {
            let (world, fabric) = world();
            let memory = Memory::from(pattern(1, length));
            fabric.hold(true);
            for context in 0..3 {
                send(&world, &memory, flags, context);
            }
            fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
            fabric.hold(false);
            for context in 0..3 {
                let done = world.sent(0);
                assert_eq!(
                    (done.errno, done.context),
                    (Some(Errno::CONNRESET), context),
                    "{done:?}"
                );
            }
            world.nothing_more();
        }
    }
}

/// "Any operation posted after the fenced operation will be deferred until all previous operations
/// targeting the same peer endpoint have completed."
#[test]
fn a_fence_waits_for_what_its_peer_has_to_get() {
    let (world, fabric) = world();
    let memory = Memory::from(pattern(1, 8));
    fabric.hold(true);
    send(&world, &memory, Flags::empty(), 1);
    send(&world, &memory, Flags::FENCE | Flags::INJECT_COMPLETE, 2);
    world.poll(100);
    world.nothing_more();
    fabric.hold(false);
    assert_eq!((world.sent(0).context(), world.sent(0).context()), (1, 2));
    for context in 0..2 {
        world.nodes[1].receive(8, None, context);
        world.received(1).good();
    }
    world.nothing_more();
}

/// Node 1 has a message of node 0's, which does not hear so.
#[track_caller]
fn comes_unacknowledged(
    (world, fabric): (&World<RcProvider<FakeDevice>>, &FakeFabric),
    memory: &Memory,
    flags: Flags,
) {
    fabric.lose_acknowledgements(true);
    send(world, memory, flags, 1);
    world.nodes[1].receive(memory.bytes().len(), None, 0);
    same(&world.received(1).good().returned.unwrap(), &memory.bytes(), "it came");
}

/// The device that closes acknowledges no more, but its owner has said what came.
#[test]
fn what_a_peer_had_got_when_it_closed_is_complete() {
    for length in LENGTHS {
        for flags in LATE {
            let (mut world, fabric) = world();
            let memory = Memory::from(pattern(1, length));
            comes_unacknowledged((&world, &fabric), &memory, flags);
            world.nothing_more();
            drop(world.nodes.pop());
            assert_eq!(world.sent(0).context(), 1);
            world.nothing_more();
        }
    }
}

/// Which of the two connections ends first is nothing to go by.
#[test]
fn what_a_peer_had_got_when_it_parted_is_complete() {
    for length in LENGTHS {
        let (world, fabric) = world();
        let memory = Memory::from(pattern(1, length));
        comes_unacknowledged((&world, &fabric), &memory, Flags::empty());
        fabric.lose_acknowledgements(false);
        fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
        world.nodes[1].send(vec![1], 0, None, 2);
        world.sent(1).bad(Errno::CONNRESET);
        assert_eq!(world.sent(0).good().context, 1);
        world.nothing_more();
    }
}

/// The connections stay until the other end lets go too, so that only a goodbye says what came.
#[test]
fn what_had_come_before_a_shutdown_is_complete() {
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let Link { caller, acceptor, listener: _listener } = Link::new(&bed);
    fabric.lose_acknowledgements(true);
    acceptor.endpoint.receive(vec![0; 8], 0, 1).unwrap();
    caller.endpoint.send(vec![1; 8], 0, 2).unwrap();
    assert_eq!(acceptor.done(&[&caller]).errno, None);
    acceptor.endpoint.shutdown().unwrap();
    let done = caller.done(&[&acceptor]);
    assert_eq!((done.errno, done.context), (None, 2), "{done:?}");
    caller.sees_shutdown(&[&acceptor]);
}

/// And what had not come is lost.
#[test]
fn what_a_peer_closed_before_fails() {
    for length in LENGTHS {
        let (mut world, fabric) = world();
        let memory = Memory::from(pattern(1, length));
        comes_unacknowledged((&world, &fabric), &memory, Flags::empty());
        fabric.lose_acknowledgements(false);
        fabric.hold(true);
        send(&world, &memory, Flags::empty(), 2);
        drop(world.nodes.pop());
        assert_eq!(world.sent(0).context(), 1);
        let lost = world.sent(0);
        assert_eq!((lost.errno, lost.context), (Some(Errno::CONNRESET), 2), "{lost:?}");
        world.nothing_more();
    }
}

/// The device says when a peer has a message, and nobody has to look for it.
#[test]
fn who_waits_for_a_confirmation_sleeps() {
    let (world, fabric) = world();
    let memory = Memory::from(pattern(1, 8));
    fabric.hold(true);
    send(&world, &memory, Flags::empty(), 1);
    let wait = world.nodes[0].sends.prepare_wait().expect("what comes rings");
    let start = Instant::now();
    let device = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        fabric.hold(false);
    });
    Carrier::<FakeDevice>::sleep(&wait.descriptors(), Some(PATIENCE));
    assert!(start.elapsed() < PATIENCE / 2, "woken, not timed out");
    drop(wait);
    device.join().unwrap();
    assert_eq!(world.sent(0).context(), 1);
}
