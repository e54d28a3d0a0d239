//! A shared context of one direction beside several contexts of the other. Reference: fi_endpoint(3),
//! "SHARED CONTEXTS": "an endpoint may use a shared context of one type, but a scalable set of
//! contexts of the alternate type." And a context that endpoints of different types share.

use std::{sync::Arc, time::Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    scalable_endpoint::ScalableEndpoint,
    shared_context::{SharedTransmit, receive::SharedReceive},
    transport::Provider,
    triggered::Threshold,
};

use crate::bed::{Bed, Memory, Options, Receive, open_vector, pattern, same};
use crate::completion::Done;
use crate::contexts::{Context, Portal, counts, named, naming, next, nothing_more, sharing};
use crate::link::{self, End, Listener};
use crate::scale::PATIENCE;

const LENGTHS: [usize; 3] = [8, 5_000, 300_000];

fn open<P: Provider>(
    domain: &Arc<Domain<P>>,
    options: &EndpointOptions,
) -> Arc<ScalableEndpoint<P>> {
    ScalableEndpoint::open(domain, options.clone(), counts(3, 3)).unwrap()
}

pub fn receives_scale_beside_a_shared_transmit_context<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let options = EndpointOptions { shares_transmit: true, ..naming() };
    let shared = SharedTransmit::open(&domain, naming()).unwrap();
    let endpoint = open(&domain, &options);
    assert_eq!(endpoint.counts(), counts(1, 3));
    endpoint.bind_shared_transmit(&shared).unwrap();
    let ours = Portal::over(endpoint, &options);
    let theirs = Portal::open(bed, counts(2, 2));
    let sharer = EndpointOptions { shares_transmit: true, ..EndpointOptions::default() };
    let sharer = Endpoint::open(&domain, sharer).unwrap();
    sharer.bind_shared_transmit(&shared).unwrap();
    sharer.bind_address_vector(&ours.vector).unwrap();
    let sharer = Context::enabled(sharer, Flags::TRANSMIT | Flags::RECV);
    ours.knows(&[theirs.endpoint.address()]);
    theirs.knows(&[ours.endpoint.address(), sharer.endpoint.address()]);
    let all = [&ours, &theirs];
    for length in LENGTHS {
        for index in 0..3 {
            let bytes = pattern(index as u64, length);
            ours.receive[index].endpoint.receive(vec![0; length], 0, 5).unwrap();
            let from = &theirs.transmit[index % 2];
            from.endpoint.send(bytes.clone(), named(0, index as u64), 6).unwrap();
            let done = next(&ours.receive[index], &all).good();
            assert_eq!((done.context, done.source), (5, 0));
            same(&done.returned.unwrap(), &bytes, "content");
            assert_eq!(next(from, &all).context(), 6);
        }
        // Both of those who share the context send by it, each to its own queue.
        for (source, from) in [(0, &ours.transmit[0]), (1, &sharer)] {
            let to = &theirs.receive[0];
            to.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 7).unwrap();
            from.endpoint.send(vec![3; length], 0, 8).unwrap();
            let start = std::time::Instant::now();
            let (mut sent, mut received) = (None, None);
            while sent.is_none() || received.is_none() {
                // Both go on: who has its own may still have to answer the other.
                sent = from.taken().or(sent);
                received = to.taken().or(received);
                assert!(start.elapsed() < PATIENCE, "in vain: a message of {length} bytes");
            }
            let received = received.unwrap().good();
            assert_eq!((received.context, received.source), (7, source));
            assert_eq!(sent.unwrap().context(), 8);
        }
    }
    nothing_more(&all);
}

/// The receives of a shared context, and who has it: a scalable endpoint, and another one.
struct Pool<P: Provider> {
    shared: Arc<SharedReceive<P>>,
    scalable: Portal<P>,
    plain: Context<P>,
}

impl<P: Provider> Pool<P> {
    fn new(bed: &Bed<P>) -> Pool<P> {
        let domain = bed.domain(DomainOptions::default());
        let options = EndpointOptions { shares_receive: true, ..naming() };
        let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
        let endpoint = open(&domain, &options);
        assert_eq!(endpoint.counts(), counts(3, 1));
        endpoint.bind_shared_receive(&shared).unwrap();
        let scalable = Portal::over(endpoint, &options);
        let plain = Endpoint::open(&domain, sharing()).unwrap();
        plain.bind_shared_receive(&shared).unwrap();
        plain.bind_address_vector(&scalable.vector).unwrap();
        let plain = Context::enabled(plain, Flags::TRANSMIT | Flags::RECV);
        Pool { shared, scalable, plain }
    }

    /// The next completion of a receive, and whether it is the scalable endpoint's.
    #[track_caller]
    fn next(&self, others: &Portal<P>) -> (bool, Done) {
        let start = std::time::Instant::now();
        loop {
            others.poll();
            self.scalable.poll();
            let ours = self.scalable.receive[0].taken().map(|done| (true, done));
            if let Some(found) = ours.or_else(|| self.plain.taken().map(|done| (false, done))) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a completion");
        }
    }
}

pub fn transmits_scale_beside_a_shared_receive_context<P: Provider>(bed: &Bed<P>) {
    let pool = Pool::new(bed);
    let ours = &pool.scalable;
    let theirs = Portal::open(bed, counts(2, 3));
    ours.knows(&[theirs.endpoint.address()]);
    theirs.knows(&[ours.endpoint.address(), pool.plain.endpoint.address()]);
    let all = [ours, &theirs];
    for (length, unexpected) in LENGTHS.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        for (from, to) in [(0, 0), (1, 1), (1, 0), (0, 1)] {
            // One that is directed takes from all contexts of its source.
            let source = if to == 0 { 0 } else { FI_ADDR_UNSPEC };
            let post = || pool.shared.receive(vec![0; length], source, 5).unwrap();
            if !unexpected {
                post();
            }
            let bytes = pattern(from + to, length);
            let context = &theirs.transmit[from as usize];
            context.endpoint.send(bytes.clone(), to, 6).unwrap();
            if unexpected {
                (0..50).for_each(|_| {
                    theirs.poll();
                    ours.poll();
                    pool.plain.poll();
                });
                post();
            }
            let (is_scalable, done) = pool.next(&theirs);
            let done = done.good();
            assert_eq!((is_scalable, done.context, done.source), (to == 0, 5, 0));
            same(&done.returned.unwrap(), &bytes, "content");
            let start = std::time::Instant::now();
            while context.taken().is_none() {
                ours.poll();
                pool.plain.poll();
                assert!(start.elapsed() < PATIENCE, "in vain: a send completes");
            }
        }
        for index in 0..3 {
            let bytes = pattern(index as u64, length);
            theirs.receive[index].endpoint.receive(vec![0; length], 0, 7).unwrap();
            ours.transmit[index].endpoint.send(bytes.clone(), named(0, index as u64), 8).unwrap();
            same(&next(&theirs.receive[index], &all).good().returned.unwrap(), &bytes, "content");
            assert_eq!(next(&ours.transmit[index], &all).context(), 8);
        }
    }
    let refused = ours.receive[0].endpoint.receive(vec![7], FI_ADDR_UNSPEC, 0).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (PostError::ReceivesAreShared, vec![7]));
    nothing_more(&all);
}

/// What comes while only the transmit context of the index is enabled is for shared receives too.
pub fn what_came_before_its_context_takes_a_shared_receive<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let options = EndpointOptions { shares_receive: true, ..naming() };
    let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
    let endpoint = open(&domain, &options);
    endpoint.bind_address_vector(&open_vector()).unwrap();
    endpoint.bind_shared_receive(&shared).unwrap();
    let transmit = endpoint.transmit_context(0, options.clone()).unwrap();
    let transmit = Context::enabled(transmit, Flags::TRANSMIT);
    let theirs = Portal::open(bed, counts(1, 1));
    theirs.knows(&[endpoint.address()]);
    // One receive is there when the context is enabled, the other is posted later.
    let post = |context| shared.receive(vec![0; 300], FI_ADDR_UNSPEC, context).unwrap();
    post(5);
    for value in [1, 2] {
        theirs.transmit[0].endpoint.send(vec![value; 300], 0, 6).unwrap();
    }
    for _ in 0..200 {
        theirs.poll();
        transmit.poll();
    }
    let receive = Context::enabled(endpoint.receive_context(0, options).unwrap(), Flags::RECV);
    post(7);
    for (context, value) in [(5, 1), (7, 2)] {
        let start = std::time::Instant::now();
        let done = loop {
            theirs.poll();
            if let Some(done) = receive.taken() {
                break done.good();
            }
            assert!(start.elapsed() < PATIENCE, "in vain: message {value}");
        };
        assert_eq!((done.context, done.returned.unwrap()), (context, vec![value; 300]));
    }
    post(8);
    receive.endpoint.close();
    assert_eq!(endpoint.close().unwrap_err().errno(), Errno::BUSY);
    transmit.endpoint.close();
    assert_eq!(shared.close().unwrap_err().errno(), Errno::BUSY, "the endpoint is open");
    endpoint.close().unwrap();
    shared.close().unwrap();
}

/// A receive that waits for a counter may be due within a poll of the engine that it goes to.
pub fn a_shared_receive_is_due_within_a_poll<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let triggered =
        EndpointOptions { capabilities: naming().capabilities | Flags::TRIGGER, ..naming() };
    let shared = SharedReceive::open(&domain, triggered).unwrap();
    let options = EndpointOptions { shares_receive: true, ..naming() };
    let endpoint = ScalableEndpoint::open(&domain, options.clone(), counts(1, 1)).unwrap();
    let vector = open_vector();
    endpoint.bind_address_vector(&vector).unwrap();
    // The context that transmits comes first, before anything says what receives are like.
    let transmit = endpoint.transmit_context(0, options.clone()).unwrap();
    let transmit = Context::enabled(transmit, Flags::TRANSMIT);
    endpoint.bind_shared_receive(&shared).unwrap();
    let receive = endpoint.receive_context(0, options).unwrap();
    let counter = CompletionCounter::open(&domain);
    receive.bind_counter(&counter, Flags::RECV).unwrap();
    let receive = Context::enabled(receive, Flags::RECV);
    vector.insert_one(endpoint.address()).unwrap();
    let send = |tag: u64| {
        transmit.endpoint.inject_tagged(&[tag as u8; 8], 0, tag).unwrap();
        (0..50).for_each(|_| [&transmit, &receive].into_iter().for_each(Context::poll));
    };
    send(7);
    let into = Memory::zeroed(8);
    let due = Receive { pieces: into.all(), tag: Some((7, 0)), context: 7, ..Receive::default() };
    let when = Threshold { counter: counter.clone(), value: 1, work: None };
    shared.trigger_receive(due.post(), &when).unwrap();
    shared.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 9, 0, 9).unwrap();
    send(9);
    let start = std::time::Instant::now();
    let mut found = Vec::new();
    while found.len() < 2 {
        found.extend(receive.taken().map(Done::context));
        transmit.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: {found:?}");
    }
    found.sort_unstable();
    assert_eq!((found, into.bytes(), counter.read()), (vec![7, 9], vec![7; 8], 2));
}

/// "Applies only to connectionless endpoints": what is for one peer comes to those that are, and what
/// is for anybody comes to all.
pub fn endpoints_of_two_types_share_receives<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
    let listener = Listener::listening(bed);
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let request = listener.take(&[&caller]);
    let accepting = EndpointOptions { shares_receive: true, ..link::options() };
    let acceptor = Endpoint::open_for(&domain, accepting, request).unwrap();
    acceptor.bind_shared_receive(&shared).unwrap();
    let acceptor = End::over(&domain, acceptor);
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&caller, &listener]);
    let plain = Endpoint::open(&domain, sharing()).unwrap();
    let vector = open_vector();
    plain.bind_shared_receive(&shared).unwrap();
    plain.bind_address_vector(&vector).unwrap();
    let plain = Context::enabled(plain, Flags::TRANSMIT | Flags::RECV);
    let senders = [(); 2].map(|()| bed.stranger(&Options::default()));
    for sender in &senders {
        assert_eq!(sender.vector.insert_one(plain.endpoint.address()), Ok(0));
        vector.insert_one(sender.endpoint.address()).unwrap();
    }
    let comes_from = |source: usize| {
        senders[source].endpoint.inject(&[1; 8], 0).unwrap();
        let start = std::time::Instant::now();
        loop {
            senders[source].poll();
            if let Some(done) = plain.taken() {
                assert_eq!(done.source, source as u64);
                break done.context();
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a message from {source}");
        }
    };
    shared.receive(vec![0; 8], 0, 1).unwrap();
    shared.receive(vec![0; 8], FI_ADDR_UNSPEC, 2).unwrap();
    assert_eq!(comes_from(1), 2, "the first receive is for another");
    shared.receive(vec![0; 8], FI_ADDR_UNSPEC, 3).unwrap();
    caller.endpoint.inject(&[2; 8], 0).unwrap();
    assert_eq!(acceptor.done(&[&caller]).context(), 3);
    assert_eq!(comes_from(0), 1);
}

/// "Endpoints associated with a shared transmit context must use a subset of the transmit context's
/// attributes": what they receive is nothing to it, and the other way round.
pub fn an_endpoint_shares_one_side_of_what_it_can<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let (sends, receives) = (Flags::RMA | Flags::WRITE, Flags::MSG | Flags::RECV);
    let of = |capabilities| EndpointOptions { capabilities, ..EndpointOptions::default() };
    let transmit = SharedTransmit::open(&domain, of(sends)).unwrap();
    let receive = SharedReceive::open(&domain, of(receives)).unwrap();
    let both = EndpointOptions {
        transmit_capabilities: sends,
        receive_capabilities: receives,
        shares_transmit: true,
        shares_receive: true,
        ..of(sends | receives)
    };
    let endpoint = Endpoint::open(&domain, both.clone()).unwrap();
    endpoint.bind_shared_transmit(&transmit).unwrap();
    endpoint.bind_shared_receive(&receive).unwrap();
    let more = EndpointOptions {
        transmit_capabilities: sends | Flags::MSG,
        receive_capabilities: receives | Flags::RMA,
        ..both
    };
    let endpoint = Endpoint::open(&domain, more).unwrap();
    let refused = [
        endpoint.bind_shared_transmit(&transmit).unwrap_err(),
        endpoint.bind_shared_receive(&receive).unwrap_err(),
    ];
    let missing = [Flags::MSG, Flags::RMA];
    assert_eq!(refused, missing.map(|missing| EndpointError::BeyondEndpoint { missing }));
}

pub fn what_a_scalable_endpoint_cannot_share_is_refused<P: Provider>(bed: &Bed<P>) {
    let [domain, elsewhere] = [(); 2].map(|()| bed.domain(DomainOptions::default()));
    let transmit = |domain| SharedTransmit::open(domain, naming()).unwrap();
    let receive = |domain| SharedReceive::open(domain, EndpointOptions::default()).unwrap();
    let (stx, srx) = (transmit(&domain), receive(&domain));
    // It was not opened to use one.
    let plain = open(&domain, &naming());
    assert_eq!(plain.bind_shared_transmit(&stx).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(plain.bind_shared_receive(&srx).unwrap_err().errno(), Errno::INVAL);
    let both = EndpointOptions { shares_transmit: true, shares_receive: true, ..naming() };
    let ours = open(&domain, &both);
    assert_eq!(ours.counts(), counts(1, 1));
    let refused = ours.bind_shared_transmit(&transmit(&elsewhere)).unwrap_err();
    assert_eq!(refused.errno(), Errno::DOMAIN);
    assert_eq!(ours.bind_shared_receive(&receive(&elsewhere)).unwrap_err().errno(), Errno::DOMAIN);
    let messages = EndpointOptions { capabilities: Flags::MSG | Flags::SEND, ..naming() };
    let less = SharedTransmit::open(&domain, messages).unwrap();
    assert_eq!(ours.bind_shared_transmit(&less).unwrap_err().errno(), Errno::INVAL);
    ours.bind_address_vector(&open_vector()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let sends = ours.transmit_context(0, both.clone()).unwrap();
    let receives = ours.receive_context(0, both.clone()).unwrap();
    for (context, flags, direction) in
        [(&sends, Flags::TRANSMIT, "transmit"), (&receives, Flags::RECV, "receive")]
    {
        context.bind_completion_queue(&queue, flags).unwrap();
        let unbound = context.enable().unwrap_err();
        assert_eq!(unbound, EndpointError::NoSharedContext { direction });
        // It is the endpoint that is bound.
        let refused = (context.bind_shared_transmit(&stx), context.bind_shared_receive(&srx));
        assert_eq!(refused.0.unwrap_err().errno(), Errno::INVAL);
        assert_eq!(refused.1.unwrap_err().errno(), Errno::INVAL);
    }
    for again in [false, true] {
        let bound = (ours.bind_shared_transmit(&stx), ours.bind_shared_receive(&srx));
        assert_eq!((bound.0.is_err(), bound.1.is_err()), (again, again), "bound twice");
    }
    sends.enable().unwrap();
    receives.enable().unwrap();
    assert_eq!(ours.transmit_context(1, both).err().unwrap().errno(), Errno::INVAL);
    for context in [sends, receives] {
        context.close();
        assert_eq!(stx.close().unwrap_err().errno(), Errno::BUSY);
        assert_eq!(srx.close().unwrap_err().errno(), Errno::BUSY);
    }
    ours.close().unwrap();
    stx.close().unwrap();
    srx.close().unwrap();
}

/// "Users post receive buffers directly to a shared receive context, with the buffers usable by any
/// endpoint bound to the shared receive context": also before one is enabled, and for one peer.
pub fn a_receive_is_directed_before_an_endpoint_is_enabled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for vector_first in [true, false] {
        let domain = bed.domain(DomainOptions::default());
        let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
        let endpoint = Endpoint::open(&domain, sharing()).unwrap();
        let vector = open_vector();
        if vector_first {
            endpoint.bind_address_vector(&vector).unwrap();
        }
        endpoint.bind_shared_receive(&shared).unwrap();
        if !vector_first {
            endpoint.bind_address_vector(&vector).unwrap();
        }
        let nodes = world.nodes.iter();
        vector.insert(&nodes.map(|node| node.endpoint.address()).collect::<Vec<_>>());
        shared.receive(vec![0; 8], 1, 1).unwrap();
        shared.receive(vec![0; 8], 0, 0).unwrap();
        // Their room is not the endpoint's to release.
        let refused = endpoint.set_option(OptionName::MinMultiRecv, 8).unwrap_err();
        assert!(matches!(refused, EndpointError::UnknownOption { .. }), "{refused}");
        assert!(endpoint.option(OptionName::MinMultiRecv).is_err());
        let context = Context::enabled(endpoint, Flags::TRANSMIT | Flags::RECV);
        for (sender, node) in world.nodes.iter().enumerate() {
            let to = node.vector.insert_one(context.endpoint.address()).unwrap();
            node.endpoint.inject(&[sender as u8; 8], to).unwrap();
            let start = std::time::Instant::now();
            let done = loop {
                node.poll();
                if let Some(done) = context.taken() {
                    break done.good();
                }
                assert!(start.elapsed() < PATIENCE);
            };
            assert_eq!((done.context, done.source), (sender as u64, sender as u64));
            assert_eq!(done.returned.unwrap(), [sender as u8; 8]);
        }
    }
}

/// One that is closed has nothing to discard, and what waits for a context of its index goes on waiting.
pub fn a_context_that_was_never_enabled_leaves_nothing<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let endpoint =
        ScalableEndpoint::open(&domain, EndpointOptions::default(), counts(1, 1)).unwrap();
    endpoint.bind_address_vector(&open_vector()).unwrap();
    let transmit = endpoint.transmit_context(0, EndpointOptions::default()).unwrap();
    let transmit = Context::enabled(transmit, Flags::TRANSMIT);
    let theirs = Portal::open(bed, counts(1, 1));
    theirs.knows(&[endpoint.address()]);
    // The pair's engine is driven by whichever of its contexts is there.
    let sent = |ours: &Context<P>| {
        let start = Instant::now();
        loop {
            ours.poll();
            if let Some(done) = theirs.transmit[0].taken() {
                return (done.context, done.errno);
            }
            theirs.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: the end of a send");
        }
    };
    let (sender, lengths) = (&theirs.transmit[0].endpoint, [LENGTHS[0], LENGTHS[2]]);
    for (length, context) in lengths.into_iter().zip(10..) {
        sender.send(vec![7; length], 0, context).unwrap();
    }
    sender.send_tagged(vec![7; LENGTHS[2]], 0, 5, 12).unwrap();
    // The short one has arrived when it is done; and the others have begun to soon.
    assert_eq!(sent(&transmit), (10, None));
    for _ in 0..50 {
        transmit.poll();
        theirs.poll();
    }
    let probe = endpoint.receive_context(0, EndpointOptions::default()).unwrap();
    assert_eq!(probe.enable().unwrap_err().errno(), Errno::NOCQ);
    probe.close();
    // What it cannot receive waits for it no longer.
    let capabilities = Flags::MSG | Flags::RECV;
    let options = EndpointOptions { capabilities, ..EndpointOptions::default() };
    let receive = endpoint.receive_context(0, options).unwrap();
    let receive = Context::enabled(receive, Flags::RECV);
    for length in lengths {
        receive.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 5).unwrap();
        assert_eq!(next(&receive, &[&theirs]).good().length, length as u64);
    }
    let mut ends = [(); 2].map(|()| sent(&receive));
    ends.sort_by_key(|(context, _)| *context);
    assert_eq!(ends, [(11, None), (12, Some(Errno::CONNRESET))]);
}
