//! Opening, binding, enabling and closing. Reference: fi_endpoint(3).

use kestrel_core::{
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::DomainOptions,
    endpoint::{Endpoint, EndpointError, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    event_queue::{Event, EventRead},
    flags::Flags,
    info::traffic_class_of_dscp,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    scalable_endpoint::ScalableEndpoint,
    transport::Provider,
};

use crate::bed::{Bed, Memory, Options, Send, World, open_vector, pattern, same};
use crate::cases::shared_contexts::senders_with;
use crate::completion::read_each;
use crate::contexts::{Context, counts, sharing};
use crate::link::{self, End, Listener};
use crate::one_sided::{self, Atomic, Rma, expose, segment};
use crate::reserved::beside;

const BOTH: Flags = Flags::TRANSMIT.union(Flags::RECV);

pub fn what_is_bound_twice_is_refused<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let counter = CompletionCounter::open(&domain);
    let vector = open_vector();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT).unwrap();
    for flags in [Flags::TRANSMIT, BOTH] {
        let refused = endpoint.bind_completion_queue(&queue, flags).unwrap_err();
        assert_eq!(refused.errno(), Errno::INVAL);
    }
    endpoint.bind_completion_queue(&queue, Flags::RECV).unwrap();
    endpoint.bind_counter(&counter, Flags::SEND).unwrap();
    assert!(endpoint.bind_counter(&counter, Flags::SEND | Flags::RECV).is_err());
    endpoint.bind_counter(&counter, Flags::RECV).unwrap();
    endpoint.bind_address_vector(&vector).unwrap();
    assert!(endpoint.bind_address_vector(&vector).is_err());
    for flags in [Flags::empty(), Flags::SELECTIVE_COMPLETION, Flags::TRANSMIT | Flags::READ] {
        let refused = endpoint.bind_completion_queue(&queue, flags).unwrap_err();
        assert_eq!(refused.errno(), Errno::BADFLAGS);
    }
}

/// tx_attr and rx_attr give "fine grained control over the … capabilities associated with an endpoint":
/// what one side can is nothing to the other.
pub fn a_side_can_what_its_own_attributes_say<P: Provider>(bed: &Bed<P>) {
    let transmits = Flags::MSG | Flags::RMA | Flags::READ | Flags::SEND;
    let receives = Flags::TAGGED | Flags::ATOMIC | Flags::REMOTE_READ | Flags::RECV;
    let options = Options {
        endpoint: EndpointOptions {
            capabilities: transmits | receives,
            transmit_capabilities: transmits,
            receive_capabilities: receives,
            ..EndpointOptions::default()
        },
        ..Options::default()
    };
    let world = bed.world_with(1, &options);
    let endpoint = &world.nodes[0].endpoint;
    let cannot = |missing| PostError::NotCapable { missing };
    assert_eq!(endpoint.inject_tagged(&[1], 0, 5), Err(cannot(Flags::TAGGED)));
    let refused = endpoint.receive(vec![0; 8], 0, 1).unwrap_err().error;
    assert_eq!(refused, cannot(Flags::MSG));
    let (datatype, form) = (Datatype::Uint64, Form::Fetch);
    let fetch = Atomic::new(AtomicCall { operation: AtomicOperation::Read, datatype, form });
    assert_eq!(world.nodes[0].post_atomic(0, &fetch), Err(cannot(Flags::ATOMIC)));
    assert_eq!(cannot(Flags::ATOMIC).errno(), Errno::OPNOTSUPP);
    endpoint.inject(&[1], 0).unwrap();
    endpoint.receive_tagged(vec![0; 8], 0, 5, 0, 3).unwrap();
}

/// "fewer capabilities than that supported by the endpoint": what an endpoint has no receives for is
/// refused, and waits for nobody.
pub fn what_nobody_can_receive_is_refused<P: Provider>(bed: &Bed<P>) {
    let target = Flags::RMA | one_sided::BOTH;
    let cases = [
        (Flags::MSG | Flags::TAGGED | Flags::SEND, [false, false]),
        (Flags::MSG | Flags::TAGGED | Flags::SEND | target, [false, false]),
        (target, [false, false]),
        (Flags::TAGGED | Flags::SEND | Flags::RECV, [false, true]),
        (Flags::MSG | Flags::RECV, [true, false]),
    ];
    for (capabilities, heard) in cases {
        let endpoint = EndpointOptions { capabilities, ..EndpointOptions::default() };
        let sender = bed.stranger(&Options::default());
        let target = bed.stranger(&Options { endpoint, ..Options::default() });
        sender.vector.insert_one(target.endpoint.address()).unwrap();
        target.vector.insert_one(sender.endpoint.address()).unwrap();
        let world = World { nodes: vec![sender, target] };
        for (tag, is_heard) in [None, Some(5)].into_iter().zip(heard) {
            for (length, flags) in [(1 << 20, Flags::empty()), (8, Flags::DELIVERY_COMPLETE)] {
                let memory = Memory::from(pattern(1, length));
                let send = Send { pieces: memory.all(), tag, flags, ..Send::default() };
                world.nodes[0].post_send(0, &send).unwrap();
                if is_heard {
                    world.nodes[1].receive(length, tag, 3);
                    world.received(1).good();
                    world.sent(0).good();
                } else {
                    world.sent(0).bad(Errno::CONNRESET);
                }
            }
        }
        if capabilities.contains(Flags::RMA) {
            let (to, from) = (Memory::zeroed(8), Memory::from(pattern(2, 8)));
            let region = expose(&world.nodes[1], &to, one_sided::BOTH, 0);
            let segments = [segment(&region, 0, 8)];
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_write(0, &write).unwrap();
            world.sent(0).good();
            same(&to.bytes(), &from.bytes(), "written");
        }
        world.nothing_more();
    }
}

pub fn another_domains_objects_are_refused<P: Provider>(bed: &Bed<P>) {
    let (ours, theirs) = (bed.domain(Default::default()), bed.domain(Default::default()));
    let endpoint = Endpoint::open(&ours, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&theirs, 0).unwrap();
    let counter = CompletionCounter::open(&theirs);
    let refused = endpoint.bind_completion_queue(&queue, BOTH).unwrap_err();
    assert_eq!(refused.errno(), Errno::DOMAIN);
    assert_eq!(endpoint.bind_counter(&counter, Flags::SEND).unwrap_err().errno(), Errno::DOMAIN);
    // Refused, so not bound: both close.
    queue.close().unwrap();
    counter.close().unwrap();
}

pub fn enabling_needs_queues_and_a_vector<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    assert_eq!(endpoint.enable().unwrap_err().errno(), Errno::NOCQ);
    endpoint.bind_completion_queue(&queue, Flags::RECV).unwrap();
    assert_eq!(endpoint.enable().unwrap_err().errno(), Errno::NOCQ);
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT).unwrap();
    assert_eq!(endpoint.enable().unwrap_err(), EndpointError::NoAddressVector);
    assert_eq!(EndpointError::NoAddressVector.errno(), Errno::NOAV);
    let not_enabled = endpoint.inject(&[1], 0).unwrap_err();
    assert_eq!(not_enabled, PostError::NotEnabled);
    assert_eq!(not_enabled.errno(), Errno::OPBADSTATE);
    let refused = endpoint.receive(vec![1, 2], 0, 0).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (PostError::NotEnabled, vec![1, 2]));
    assert_eq!(endpoint.cancel(0).unwrap_err(), PostError::NotEnabled);
    let vector = open_vector();
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.enable().unwrap();
    assert_eq!(endpoint.enable().unwrap_err().errno(), Errno::OPBADSTATE);
    let late = endpoint.bind_completion_queue(&queue, BOTH).unwrap_err();
    assert_eq!(late.errno(), Errno::OPBADSTATE);
    // Who names no direction has both.
    let capabilities = Flags::MSG;
    let both = EndpointOptions { capabilities, ..EndpointOptions::default() };
    let both = Endpoint::open(&domain, both).unwrap();
    both.bind_address_vector(&vector).unwrap();
    assert_eq!(both.enable().unwrap_err().errno(), Errno::NOCQ);
    both.bind_completion_queue(&queue, BOTH).unwrap();
    both.enable().unwrap();
    // A side that the endpoint does not have needs no queue.
    let only_sends =
        EndpointOptions { capabilities: Flags::MSG | Flags::SEND, ..EndpointOptions::default() };
    let sender = Endpoint::open(&domain, only_sends).unwrap();
    sender.bind_completion_queue(&queue, Flags::TRANSMIT).unwrap();
    sender.bind_address_vector(&vector).unwrap();
    sender.enable().unwrap();
}

pub fn what_is_in_use_is_busy<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let vector = open_vector();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    endpoint.bind_completion_queue(&queue, BOTH).unwrap();
    endpoint.bind_address_vector(&vector).unwrap();
    for enabled in [false, true] {
        if enabled {
            endpoint.enable().unwrap();
        }
        assert_eq!(queue.close().unwrap_err().errno(), Errno::BUSY);
        assert_eq!(vector.close().unwrap_err().errno(), Errno::BUSY);
        assert_eq!(domain.close().unwrap_err().errno(), Errno::BUSY);
    }
    endpoint.close();
    endpoint.close();
    assert_eq!(endpoint.inject(&[1], 0), Err(PostError::Closed));
    queue.close().unwrap();
    vector.close().unwrap();
    domain.close().unwrap();
    assert!(Endpoint::open(&domain, EndpointOptions::default()).is_err());
    // What is closed cannot be bound.
    let domain = bed.domain(Default::default());
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    queue.close().unwrap();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let refused = endpoint.bind_completion_queue(&queue, BOTH).unwrap_err();
    assert_eq!(refused.errno(), Errno::BADF);
}

pub fn a_dropped_endpoint_lets_go_of_everything<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let near = Endpoint::open(&domain, EndpointOptions::default()).unwrap().address();
    let address = Some(beside(near, 1));
    let same_address = EndpointOptions { address, ..EndpointOptions::default() };
    for enable in [false, true] {
        let endpoint = Endpoint::open(&domain, same_address.clone()).unwrap();
        endpoint.bind_completion_queue(&queue, BOTH).unwrap();
        endpoint.bind_address_vector(&open_vector()).unwrap();
        if enable {
            endpoint.enable().unwrap();
        }
        let taken = Endpoint::open(&domain, same_address.clone()).expect_err("it is taken");
        assert_eq!(taken.errno(), Errno::ADDRINUSE);
        drop(endpoint);
        drop(Endpoint::open(&domain, same_address.clone()).expect("it is free again"));
    }
    queue.close().unwrap();
    domain.close().unwrap();
}

pub fn closing_drops_what_is_pending<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 5_000, 300_000] {
        let world = bed.world(2);
        world.warm_up();
        for context in 0..5 {
            world.nodes[1].receive(length, Some(context), context);
        }
        for _ in 0..3 {
            // One is under way, others wait in the queue of the sender.
            world.nodes[0].send(pattern(1, length), 1, Some(99), 1);
        }
        world.poll(2);
        world.nodes[1].endpoint.close();
        world.nodes[1].poll();
        assert_eq!(world.waiting(1), (0, 0), "silently");
        world.nodes[0].endpoint.close();
        let done = world.waiting(0).0;
        world.poll(5);
        assert_eq!(world.waiting(0).0, done, "silently");
    }
}

pub fn a_closed_receiver_fails_its_senders<P: Provider>(bed: &Bed<P>) {
    for length in [300, 300_000] {
        let world = bed.world(3);
        // With a lane back, and without one.
        for with_lane_back in [true, false] {
            let to = 1 + usize::from(with_lane_back);
            if with_lane_back {
                world.nodes[to].endpoint.inject(&[1], 0).unwrap();
                world.nodes[0].receive(1, None, 0);
                world.received(0).good();
            }
            world.nodes[0].endpoint.inject(&[1], to as u64).unwrap();
            world.nodes[to].receive(1, None, 0);
            world.received(to).good();
            let send = crate::bed::Memory::from(pattern(1, length));
            let post = crate::bed::Send {
                pieces: send.all(),
                flags: Flags::MATCH_COMPLETE,
                context: 7,
                ..crate::bed::Send::default()
            };
            world.nodes[0].post_send(to as u64, &post).unwrap();
            world.poll(20);
            world.nodes[to].endpoint.close();
            let done = world.sent(0);
            assert!(done.errno.is_some(), "{done:?}");
            assert_eq!((done.context, done.source), (7, to as u64));
            // And the next send says that nobody is there.
            world.nodes[0].post_send(to as u64, &post).unwrap();
            let done = world.sent(0);
            assert!(done.errno.is_some(), "{done:?}");
        }
    }
}

pub fn an_address_is_reopened<P: Provider>(bed: &Bed<P>) {
    const LENGTHS: [usize; 3] = [8, 5_000, 70_000];
    let world = bed.world(2);
    let address = Some(beside(world.nodes[1].endpoint.address(), 1));
    let options = EndpointOptions { address, ..EndpointOptions::default() };
    // Whose messages have been seen: those of later rounds come later.
    let mut seen = 0;
    for round in 0..4u64 {
        let domain = bed.domain(Default::default());
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        let vector = open_vector();
        let endpoint = Endpoint::open(&domain, options.clone()).unwrap();
        endpoint.bind_completion_queue(&queue, BOTH).unwrap();
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint.enable().unwrap();
        vector.insert_one(world.nodes[1].endpoint.address()).unwrap();
        if round == 0 {
            assert_eq!(world.nodes[1].vector.insert_one(endpoint.address()).unwrap(), 2);
        }
        // Both ways, with something left unread each time.
        for length in LENGTHS {
            endpoint.send(pattern(round, length), 0, 1).unwrap();
            endpoint.send(pattern(round, 500), 0, 1).unwrap();
        }
        for (nth, length) in LENGTHS.into_iter().enumerate() {
            world.nodes[1].receive(length.max(500), None, 0);
            let mut received = None;
            world.drive("the message of a reopened endpoint", || {
                let _ = read_each(&queue, 16, |_, _| {});
                received = (world.waiting(1).1 > 0).then(|| world.received(1));
                received.is_some()
            });
            let received = received.unwrap();
            // What was under way at an end fails, or does not fit.
            if received.errno.is_some() && nth > 0 && round > 0 {
                continue;
            }
            let received = received.good();
            assert_eq!(received.source, 2);
            let bytes = &received.returned.unwrap()[..received.length as usize];
            let of = (seen..=round).find(|&of| bytes == pattern(of, bytes.len()));
            seen = of.expect("a message of a round, and no earlier one");
            assert!(round > 0 || bytes.len() == [8, 500, 5_000][nth]);
        }
        world.nodes[1].send(pattern(9, 600), 2, Some(round), 5);
        endpoint.receive_tagged(vec![0; 600], u64::MAX, round, 0, 77).unwrap();
        let mut returned = None;
        world.drive("the message to a reopened endpoint", || {
            let _ = read_each(&queue, 16, |_, mut entry| {
                if entry.context == 77 {
                    returned = entry.take_buffer();
                }
            });
            returned.is_some()
        });
        same(&returned.unwrap(), &pattern(9, 600), "to a reopened endpoint");
        world.sent(1).good();
    }
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
pub fn other_keys_do_not_talk<P: Provider>(bed: &Bed<P>) {
    let with_key = |key: &[u8]| Options {
        endpoint: EndpointOptions { auth_key: key.to_vec(), ..EndpointOptions::default() },
        ..Options::default()
    };
    let mut world = bed.world_with(2, &with_key(b"job 17"));
    let stranger = bed.world_with(1, &with_key(b"job 18")).nodes.remove(0);
    let to = stranger.endpoint.address();
    assert_eq!(world.nodes[0].vector.insert(&[to]).count(), 1);
    world.nodes.push(stranger);
    world.nodes[0].send(pattern(1, 8), 2, Some(1), 7);
    assert_eq!(world.sent(0).bad(Errno::CONNREFUSED).context, 7);
    world.nodes[1].receive(8, Some(1), 8);
    world.nodes[0].send(pattern(2, 8), 1, Some(1), 9);
    same(&world.received(1).good().returned.unwrap(), &pattern(2, 8), "the same key");
    world.sent(0).good();
    world.nothing_more();
}

/// "An event queue bound to a domain will be the default EQ associated with asynchronous control
/// events that occur on the domain or active endpoints allocated on a domain. This includes CM
/// events" (fi_domain(3)).
pub fn a_domains_event_queue_is_the_default<P: Provider>(bed: &Bed<P>) {
    let (domain, events) = (bed.domain(DomainOptions::default()), link::events());
    assert_eq!(domain.bind_event_queue(&events), Ok(true));
    assert_eq!(domain.bind_event_queue(&events), Ok(false));
    let listener = Listener::listening(bed);
    let caller = Endpoint::open(&domain, link::options()).unwrap();
    caller.announce_as(4711);
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    caller.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    // One that could not be enabled has not taken it yet.
    let (other, own) = (Endpoint::open(&domain, Default::default()).unwrap(), link::events());
    other.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    assert_eq!(other.enable(), Err(EndpointError::NoAddressVector));
    other.bind_event_queue(&own, 1).unwrap();
    other.close();
    caller.connect(listener.passive.address(), &[]).unwrap();
    link::drive("a request", &[], || {
        events.progress();
        !listener.has_nothing()
    });
    // One that has a queue of its own reports there.
    let acceptor = End::acceptor(bed, listener.take(&[]));
    acceptor.endpoint.accept(&[]).unwrap();
    link::drive("the connection", &[&acceptor], || {
        events.progress();
        !events.is_empty()
    });
    assert_eq!(events.read(), EventRead::Event(Event::Connected { fid: 4711, data: Vec::new() }));
    assert_eq!(acceptor.connected(&[]), []);
    assert_eq!(events.close().unwrap_err().errno(), Errno::BUSY);
    caller.close();
    domain.close().unwrap();
    events.close().unwrap();
}

/// "If tclass is unset or set to FI_TC_UNSPEC, the endpoint will use the default traffic class
/// associated with the domain."
pub fn a_domains_class_is_the_default<P: Provider>(bed: &Bed<P>) {
    let (theirs, own) = (traffic_class_of_dscp(46), traffic_class_of_dscp(10));
    for (of_domain, asked, expected) in [(theirs, 0, theirs), (theirs, own, own), (0, own, own)] {
        let options = DomainOptions { traffic_class: of_domain, ..DomainOptions::default() };
        let domain = bed.domain(options);
        let options = EndpointOptions { traffic_class: asked, ..EndpointOptions::default() };
        let endpoint = Endpoint::open(&domain, options.clone()).unwrap();
        assert_eq!(endpoint.options().traffic_class, expected);
        let endpoint = ScalableEndpoint::open(&domain, options, counts(1, 1)).unwrap();
        assert_eq!(endpoint.options().traffic_class, expected);
    }
}

/// Whom receives of a shared context are for: also by one that is not enabled yet, when all others have
/// gone.
pub fn who_is_bound_to_a_shared_context_says_whom_receives_are_for<P: Provider>(bed: &Bed<P>) {
    let (mut sharers, world) = senders_with(bed, 1, 1, &Options::default());
    let next = Endpoint::open(&sharers.domain, sharing()).unwrap();
    next.bind_address_vector(&sharers.vector).unwrap();
    next.bind_shared_receive(&sharers.shared).unwrap();
    sharers.members.pop().unwrap().endpoint.close();
    sharers.shared.receive(vec![0; 8], 0, 3).unwrap();
    let member = Context::enabled(next, Flags::TRANSMIT | Flags::RECV);
    let to = world.nodes[0].vector.insert_one(member.endpoint.address()).unwrap();
    sharers.members.push(member);
    world.nodes[0].endpoint.inject(&[4; 8], to).unwrap();
    let (_, done) = sharers.next(|| world.poll(1));
    assert_eq!((done.context, done.returned.unwrap()), (3, vec![4; 8]));
}
