//! Connected endpoints and how they connect. Reference: fi_cm(3).

use kestrel_core::{
    address::Address,
    connection::{CM_DATA_SIZE, ConnectionError},
    domain::DomainOptions,
    endpoint::{Endpoint, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    one_sided::AtomicPost,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use super::{addresses::nobody_beside, connection_events::who_rejects_and_goes_is_heard};
use crate::{
    bed::{Bed, Memory, pattern, same},
    link::{self, Driven, End, Link, Listener},
    one_sided::segment,
    reserved::beside,
    scale::unspoilt,
};

/// "User data exchanged as part of the connection process is available as part of the
/// fi_eq_cm_entry structure"; what is too long is silently truncated.
pub fn data_travels_both_ways<P: Provider>(bed: &Bed<P>) {
    for length in [0, 1, 40, CM_DATA_SIZE, CM_DATA_SIZE + 1] {
        let (asks, answers) = (pattern(1, length), pattern(2, length));
        let kept = length.min(CM_DATA_SIZE);
        let listener = Listener::listening(bed);
        let caller = End::calling(bed, listener.passive.address(), &asks);
        let asked = listener.request(&[&caller]);
        same(&asked.data, &asks[..kept], "what came with the request");
        assert_eq!(asked.info.destination, Some(caller.endpoint.address()));
        let request = listener.passive.take(asked.handle).unwrap();
        assert_eq!(request.address(), caller.endpoint.address());
        let acceptor = End::acceptor(bed, request);
        acceptor.endpoint.accept(&answers).unwrap();
        same(&caller.connected(&[&acceptor]), &answers[..kept], "what came with the answer");
        assert_eq!(acceptor.connected(&[&caller]), []);
        assert_eq!(caller.endpoint.peer(), Ok(acceptor.endpoint.address()));
        assert_eq!(acceptor.endpoint.peer(), Ok(caller.endpoint.address()));
        assert_eq!(caller.endpoint.option(OptionName::CmDataSize).unwrap(), CM_DATA_SIZE);
    }
}

/// Nothing but the peer is looked at: no address, no address vector.
pub fn every_call_works_over_a_connection<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(4096);
    let operand = Memory::from(5_u64.to_ne_bytes().to_vec());
    let link = Link::new(bed);
    let nowhere = 0x1234_5678;
    for (one, other) in [(&link.caller, &link.acceptor), (&link.acceptor, &link.caller)] {
        for length in [8, 3000, 300_000] {
            let bytes = pattern(length as u64, length);
            other.endpoint.receive(vec![0; length], nowhere, 1).unwrap();
            other.endpoint.receive_tagged(vec![0; length], nowhere, 9, 0, 2).unwrap();
            one.endpoint.send(bytes.clone(), nowhere, 3).unwrap();
            one.endpoint.send_tagged(bytes.clone(), nowhere, 9, 4).unwrap();
            let mut contexts: Vec<u64> = (0..2).map(|_| one.done(&[other]).context()).collect();
            contexts.sort_unstable();
            assert_eq!(contexts, [3, 4]);
            for _ in 0..2 {
                let done = other.done(&[one]).good();
                same(&done.returned.unwrap(), &bytes, "a message");
            }
        }
        one_sided(one, other, &memory, &operand);
    }
}

fn one_sided<P: Provider>(one: &End<P>, other: &End<P>, memory: &Memory, operand: &Memory) {
    let piece = memory.piece();
    let ranges = [MemoryRange { address: piece.as_ptr() as u64, len: piece.len() as u64 }];
    let access = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let attributes = MemoryRegionAttributes { ranges: &ranges, access, ..Default::default() };
    // SAFETY: the memory outlives the link, since the case makes it first.
    let region = unsafe { other.domain.register_memory(&attributes) }.unwrap();
    let bytes = pattern(77, 4096);
    let (base, key) = (region.base(), region.key());
    one.endpoint.write(bytes.clone(), 99, base, key, 5).unwrap();
    assert_eq!(one.done(&[other]).context(), 5);
    same(&memory.bytes(), &bytes, "what was written");
    one.endpoint.read(vec![0; 4096], 99, base, key, 6).unwrap();
    same(&one.done(&[other]).good().returned.unwrap(), &bytes, "what was read");
    let before = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    one.endpoint
        .post_atomic(AtomicPost {
            call: AtomicCall {
                form: Form::Base,
                operation: AtomicOperation::Sum,
                datatype: Datatype::Uint64,
            },
            operands: operand.all(),
            compare: Memory::zeroed(0).all(),
            results: Memory::zeroed(0).all(),
            to: 99,
            segments: &[segment(&region, 0, 8)],
            data: 0,
            context: 7,
            flags: Flags::DELIVERY_COMPLETE,
        })
        .unwrap();
    assert_eq!(one.done(&[other]).context(), 7);
    let after = u64::from_ne_bytes(memory.bytes()[..8].try_into().unwrap());
    assert_eq!(after, before.wrapping_add(5));
}

/// The data of a rejection is the error's own.
pub fn a_rejection_carries_its_data<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = End::calling(bed, listener.passive.address(), b"please");
    caller.endpoint.receive(vec![0; 16], 0, 1).unwrap();
    let asked = listener.request(&[&caller]);
    listener.passive.reject(asked.handle, b"not today").unwrap();
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), b"not today");
    // Nothing will come for what is posted, and nothing is posted any more.
    let done = caller.done(&[]);
    assert_eq!((done.errno, done.context), (Some(Errno::CANCELED), 1));
    let again = caller.endpoint.connect(listener.passive.address(), &[]);
    assert_eq!(again, Err(ConnectionError::ConnectedBefore), "once in its lifetime");
    let again = listener.passive.reject(asked.handle, b"").unwrap_err();
    assert_eq!(again, ConnectionError::RequestOver { handle: asked.handle });
    assert_eq!(caller.endpoint.peer(), Err(ConnectionError::NotConnected));
    unspoilt(|| who_rejects_and_goes_is_heard(bed));
    // What does not fit is cut.
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let asked = listener.request(&[&caller]);
    let long = pattern(4, CM_DATA_SIZE + 1);
    listener.passive.reject(asked.handle, &long).unwrap();
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), long[..CM_DATA_SIZE]);
}

/// Who asks where nobody listens, or where no endpoint is, hears of it.
pub fn nobody_listens<P: Provider>(bed: &Bed<P>) {
    let nobody = nobody_beside(End::caller(bed).endpoint.address());
    let caller = End::calling(bed, nobody, &[]);
    let errno = caller.error(&[]).error;
    assert!([Errno::HOSTUNREACH, Errno::CONNREFUSED].contains(&errno), "{errno:?}");
    let world = bed.world(1);
    let caller = End::calling(bed, world.nodes[0].endpoint.address(), &[]);
    link::drive("a refusal", &[&caller], || {
        world.poll(1);
        !caller.events.is_empty()
    });
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[]), []);
    let caller = End::caller(bed);
    let nowhere = Address::new([127, 0, 0, 1].into(), 0);
    assert_eq!(caller.endpoint.connect(nowhere, &[]).unwrap_err().errno(), Errno::INVAL);
}

/// "The number of outstanding connection requests that can be queued at an endpoint is
/// limited by the listening endpoint's backlog parameter."
pub fn a_full_backlog_rejects<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::open(bed);
    assert_eq!(listener.passive.set_backlog(0).unwrap_err().errno(), Errno::INVAL);
    listener.passive.set_backlog(2).unwrap();
    listener.passive.listen().unwrap();
    let address = listener.passive.address();
    let waiting: Vec<End<P>> = (0..2).map(|_| End::calling(bed, address, &[])).collect();
    let requests: Vec<_> = (0..2).map(|_| listener.request(&[&waiting[0], &waiting[1]])).collect();
    let turned_away = End::calling(bed, address, &[]);
    assert_eq!(turned_away.fails(Errno::CONNREFUSED, &[&listener]), []);
    // Whoever is taken makes room.
    let _taken = listener.passive.take(requests[0].handle).unwrap();
    let next = End::calling(bed, address, b"next");
    assert_eq!(listener.request(&[&next]).data, b"next");
    assert!(waiting.iter().all(|end| end.events.is_empty()));
}

/// "fi_connect may only be called on an endpoint once in its lifetime."
pub fn once_in_a_lifetime<P: Provider>(bed: &Bed<P>) {
    let link = Link::new(bed);
    let address = link.listener.passive.address();
    let again = link.caller.endpoint.connect(address, &[]);
    assert_eq!(again, Err(ConnectionError::ConnectedBefore));
    assert_eq!(link.acceptor.endpoint.accept(&[]), Err(ConnectionError::ConnectedBefore));
    assert_eq!(link.acceptor.endpoint.connect(address, &[]), Err(ConnectionError::HasRequest));
    let fresh = End::caller(bed);
    assert_eq!(fresh.endpoint.accept(&[]), Err(ConnectionError::NoRequest));
    let listens = link.listener.passive.listen().unwrap_err();
    assert_eq!(listens.errno(), Errno::OPBADSTATE);
    let unknown = link.listener.passive.take(1000).err().unwrap();
    assert_eq!(unknown, ConnectionError::UnknownRequest { handle: 1000 });
    let world = bed.world(1);
    let datagrams = &world.nodes[0].endpoint;
    assert_eq!(datagrams.connect(address, &[]), Err(ConnectionError::Connectionless));
    assert_eq!(datagrams.accept(&[]), Err(ConnectionError::Connectionless));
    assert_eq!(datagrams.shutdown(), Err(ConnectionError::Connectionless));
    assert_eq!(datagrams.peer(), Err(ConnectionError::Connectionless));
}

/// "Outbound data transfers cannot be initiated on a connection-oriented endpoint until an
/// FI_CONNECTED event has been generated. However, receive buffers may be associated with an
/// endpoint anytime."
pub fn nothing_is_sent_without_a_connection<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = End::caller(bed);
    let posts = |end: &End<P>, context| {
        assert_eq!(end.endpoint.inject(b"early", 0), Err(PostError::NotConnected));
        end.endpoint.receive(vec![0; 16], 0, context).unwrap();
    };
    caller.endpoint.enable().unwrap();
    posts(&caller, 1);
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let again = caller.endpoint.connect(listener.passive.address(), &[]);
    assert_eq!(again, Err(ConnectionError::ConnectedBefore), "once in its lifetime");
    posts(&caller, 2);
    assert_eq!(caller.endpoint.shutdown(), Err(ConnectionError::NotConnected));
    let acceptor = End::acceptor(bed, listener.take(&[&caller]));
    acceptor.endpoint.enable().unwrap();
    posts(&acceptor, 1);
    acceptor.endpoint.accept(&[]).unwrap();
    posts(&acceptor, 2);
    caller.connected(&[&acceptor]);
    acceptor.connected(&[&caller]);
    for (from, to) in [(&caller, &acceptor), (&acceptor, &caller)] {
        for context in [1, 2] {
            from.endpoint.inject(b"in time", 0).unwrap();
            let done = to.done(&[from]).good();
            assert_eq!((done.length, done.context), (7, context));
        }
    }
}

/// "Outstanding operations posted to the endpoint when fi_shutdown is called will be
/// canceled or discarded … all canceled completions will be written before fi_shutdown
/// returns. … An FI_SHUTDOWN event will be generated for an endpoint when the remote peer
/// issues a disconnect."
pub fn shutdown_cancels_and_is_seen<P: Provider>(bed: &Bed<P>) {
    let Link { caller, acceptor, listener: _listener } = Link::new(bed);
    for end in [&caller, &acceptor] {
        end.endpoint.receive(vec![0; 16], 0, 1).unwrap();
        end.endpoint.receive_tagged(vec![0; 16], 0, 5, 0, 1).unwrap();
    }
    // Nobody has room for it: it waits for a consent that never comes.
    caller.endpoint.send(pattern(1, 8 << 20), 0, 1).unwrap();
    caller.endpoint.shutdown().unwrap();
    for _ in 0..3 {
        let done = caller.failed_already();
        assert_eq!((done.errno, done.context), (Some(Errno::CANCELED), 1), "{done:?}");
    }
    caller.endpoint.shutdown().unwrap();
    assert_eq!(caller.endpoint.inject(b"late", 0), Err(PostError::NotConnected));
    let late = caller.endpoint.receive(vec![0; 16], 0, 2);
    assert_eq!(late.unwrap_err().error, PostError::NotConnected);
    let late = caller.endpoint.receive_multi(vec![0; 16], 0, 2);
    assert_eq!(late.unwrap_err().error, PostError::NotConnected);
    acceptor.sees_shutdown(&[&caller]);
    let failed = [acceptor.done(&[]), acceptor.done(&[])];
    assert!(failed.iter().all(|done| done.errno.is_some()), "{failed:?}");
    assert_eq!(acceptor.endpoint.inject(b"late", 0), Err(PostError::NotConnected));
    assert_eq!(acceptor.endpoint.peer(), Err(ConnectionError::NotConnected));
    acceptor.endpoint.shutdown().unwrap();
    // The peer has let go: the end of the disconnect is an event here as well.
    caller.sees_shutdown(&[&acceptor]);
}

/// A send that has completed is the peer's, whatever happens to the connection.
pub fn what_was_sent_before_a_shutdown_arrives<P: Provider>(bed: &Bed<P>) {
    let Link { caller, acceptor, listener: _listener } = Link::new(bed);
    for index in 0..8_u64 {
        caller.endpoint.send_tagged(pattern(index, 100), 0, index, index).unwrap();
    }
    for index in 0..8 {
        assert_eq!(caller.done(&[&acceptor]).context(), index);
    }
    caller.endpoint.shutdown().unwrap();
    drop(caller);
    acceptor.sees_shutdown(&[]);
    for index in 0..8 {
        acceptor.endpoint.receive_tagged(vec![0; 100], 0, index, 0, index).unwrap();
        same(&acceptor.done(&[]).good().returned.unwrap(), &pattern(index, 100), "a message");
    }
}

/// "… or abruptly closes the endpoint."
pub fn an_abrupt_close_is_a_shutdown<P: Provider>(bed: &Bed<P>) {
    let Link { caller, acceptor, listener } = Link::new(bed);
    acceptor.endpoint.receive(vec![0; 16], 0, 1).unwrap();
    drop(caller);
    acceptor.sees_shutdown(&[]);
    acceptor.done(&[]).bad(Errno::CANCELED);
    let Link { caller, acceptor, listener: _other } = Link::new(bed);
    drop(acceptor);
    caller.sees_shutdown(&[]);
    assert!(listener.has_nothing());
}

/// An endpoint that was opened for a request and never accepts it rejects it.
pub fn a_request_that_is_dropped_is_rejected<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let address = listener.passive.address();
    let caller = End::calling(bed, address, &[]);
    let request = listener.take(&[&caller]);
    drop(request);
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), []);
    let caller = End::calling(bed, address, &[]);
    drop(End::acceptor(bed, listener.take(&[&caller])));
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), []);
    // One that nobody has even looked at goes with the listener.
    let caller = End::calling(bed, address, &[]);
    link::drive("a request comes", &[&caller], || !listener.has_nothing());
    listener.passive.close();
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[]), []);
}

/// "The error entry will provide additional details describing the reason for the failed
/// attempt."
pub fn errors_say_why<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::open(bed);
    listener.passive.set_backlog(1).unwrap();
    listener.passive.listen().unwrap();
    let address = listener.passive.address();
    let waits = End::calling(bed, address, &[]);
    let asked = listener.request(&[&waits]);
    let turned_away = End::calling(bed, address, &[]).refusal(&[&listener]);
    assert!(turned_away.contains("backlog"), "{turned_away}");
    listener.passive.reject(asked.handle, b"").unwrap();
    let rejected = waits.refusal(&[&listener]);
    assert!(rejected.contains("application") && rejected.contains(&address.to_string()));
    let caller = End::calling(bed, address, &[]);
    drop(listener.take(&[&caller]));
    let forgotten = caller.refusal(&[&listener]);
    assert!(forgotten.contains("without an answer"), "{forgotten}");
    let nobody = nobody_beside(address);
    let reason = End::calling(bed, nobody, &[]).error(&[]).reason;
    assert!(reason.contains("nobody listens"), "{reason}");
}

/// An endpoint that was opened for a request is no answer yet.
pub fn a_request_can_be_rejected_until_it_is_accepted<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let asked = listener.request(&[&caller]);
    let acceptor = End::acceptor(bed, listener.passive.take(asked.handle).unwrap());
    let twice = listener.passive.take(asked.handle).err();
    let over = ConnectionError::RequestOver { handle: asked.handle };
    assert_eq!(twice, Some(over.clone()));
    listener.passive.reject(asked.handle, b"on second thoughts").unwrap();
    assert_eq!(acceptor.endpoint.accept(&[]), Err(over.clone()));
    assert_eq!(listener.passive.reject(asked.handle, b""), Err(over));
    drop(acceptor);
    assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), b"on second thoughts");
    // One that was accepted is not rejected.
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let asked = listener.request(&[&caller]);
    let acceptor = End::acceptor(bed, listener.passive.take(asked.handle).unwrap());
    acceptor.endpoint.accept(&[]).unwrap();
    let late = listener.passive.reject(asked.handle, b"").unwrap_err();
    assert_eq!(late.errno(), Errno::CONNABORTED);
    caller.connected(&[&acceptor, &listener]);
    // One may be accepted at the address that was asked, whose port is the listener's.
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let request = listener.take(&[&caller]);
    let domain = bed.domain(DomainOptions::default());
    let address = Some(listener.passive.address());
    let options = kestrel_core::endpoint::EndpointOptions { address, ..link::options() };
    let endpoint = Endpoint::open_for(&domain, options, request).unwrap();
    let acceptor = End::over(&domain, endpoint);
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
}

/// Accepting a request whose sender is gone fails, at once or with an event.
pub fn a_request_whose_sender_is_gone<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let address = listener.passive.address();
    // Nothing says that it is over before it is taken: another one, if it was not heard of.
    let over = (0..1_000).find_map(|_| {
        let caller = End::calling(bed, address, &[]);
        let asked = listener.request(&[&caller]);
        drop(caller);
        (0..20).for_each(|_| listener.drive());
        listener.passive.take(asked.handle).err()
    });
    assert_eq!(over.unwrap().errno(), Errno::CONNABORTED);
    let caller = End::calling(bed, address, &[]);
    let request = listener.take(&[&caller]);
    drop(caller);
    let acceptor = End::acceptor(bed, request);
    acceptor.endpoint.accept(&[]).unwrap();
    let error = acceptor.error(&[&listener]);
    assert_eq!(acceptor.endpoint.peer(), Err(ConnectionError::NotConnected), "{error:?}");
}

/// What came of its requests does not depend on a listener, not even between the request
/// and the answer.
pub fn a_closed_listener_leaves_connections_alone<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let acceptor = End::acceptor(bed, listener.take(&[&caller]));
    listener.passive.close();
    drop(listener);
    acceptor.endpoint.accept(b"yes").unwrap();
    assert_eq!(caller.connected(&[&acceptor]), b"yes");
    acceptor.connected(&[&caller]);
    caller.endpoint.inject(b"hello", 0).unwrap();
    acceptor.endpoint.receive(vec![0; 16], 0, 1).unwrap();
    assert_eq!(acceptor.done(&[&caller]).good().length, 5);
}

/// "The fi_setname call may be used to modify or assign the address of the local endpoint."
pub fn names_are_set_before_listening<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::open(bed);
    let [free, own] = [(); 2].map(|()| beside(listener.passive.address(), 1));
    let other = Listener::open(bed);
    let in_use = other.passive.set_address(listener.passive.address()).unwrap_err();
    assert_eq!(in_use.errno(), Errno::ADDRINUSE);
    listener.passive.set_address(free).unwrap();
    assert_eq!(listener.passive.address(), free);
    let any = std::net::IpAddr::from([0, 0, 0, 0]);
    for half in [free.with_port(0), Address::new(any, free.port()), Address::new(any, 0)] {
        listener.passive.set_address(half).unwrap();
        assert_eq!(listener.passive.address(), free, "what it leaves open stays");
    }
    listener.passive.listen().unwrap();
    let moves = listener.passive.set_address(free.with_port(1)).unwrap_err();
    assert_eq!(moves.errno(), Errno::OPBADSTATE);
    let caller = End::caller(bed);
    caller.endpoint.set_address(own).unwrap();
    assert_eq!(caller.endpoint.address(), own);
    caller.endpoint.set_address(own.with_port(0)).unwrap();
    assert_eq!(caller.endpoint.address(), own, "the port that it had");
    caller.endpoint.connect(free, &[]).unwrap();
    assert_eq!(listener.request(&[&caller]).info.destination, Some(own));
    let enabled = caller.endpoint.set_address(free).unwrap_err();
    assert_eq!(enabled.errno(), Errno::OPBADSTATE);
}

/// "Once an active endpoint acquires the properties of a passive endpoint, the passive
/// endpoint is no longer bound to any fabric resources and must no longer be used."
pub fn a_passive_endpoint_is_taken_over<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let reserved = Listener::open(bed);
    let address = reserved.passive.address();
    let caller = End::open(bed, |domain| {
        Endpoint::open_instead_of(domain, link::options(), &reserved.passive).unwrap()
    });
    assert_eq!(caller.endpoint.address(), address);
    assert_eq!(reserved.passive.listen(), Err(ConnectionError::Gone));
    reserved.events.close().unwrap();
    let bound = reserved.passive.bind_event_queue(&listener.events, link::LISTENER);
    assert_eq!(bound, Err(ConnectionError::Gone));
    reserved.passive.close();
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let request = listener.take(&[&caller]);
    assert_eq!(request.address(), address);
    let domain = bed.domain(DomainOptions::default());
    let twice = Endpoint::open_instead_of(&domain, link::options(), &reserved.passive);
    assert_eq!(twice.err(), Some(ConnectionError::Gone));
    let listens = Endpoint::open_instead_of(&domain, link::options(), &listener.passive);
    assert_eq!(listens.err().unwrap().errno(), Errno::OPBADSTATE);
}

/// An endpoint that is no end of the connection is not heard, and disturbs nobody.
pub fn strangers_are_not_heard<P: Provider>(bed: &Bed<P>) {
    let link = Link::new(bed);
    let world = bed.world(1);
    let victims = [link.caller.endpoint.address(), link.listener.passive.address()];
    assert_eq!(world.nodes[0].vector.insert(&victims).count(), 2);
    link.caller.endpoint.receive(vec![0; 64], 0, 1).unwrap();
    for (to, context) in [(1, 10), (1, 11), (2, 12), (2, 13)] {
        let long = context % 2 == 1;
        let bytes = pattern(context, if long { 1 << 20 } else { 50 });
        world.nodes[0].send(bytes, to, None, context);
    }
    let all: [&dyn Driven; 3] = [&link.caller, &link.acceptor, &link.listener];
    let mut failed = 0;
    link::drive("the long sends fail", &all, || {
        world.poll(1);
        failed = world.waiting(0).0;
        failed == 4
    });
    for _ in 0..failed {
        let done = world.sent(0);
        // A short one had left before anybody could refuse it.
        assert!(done.errno.is_some() || done.context.is_multiple_of(2), "{done:?}");
    }
    assert!(link.listener.has_nothing());
    link.acceptor.endpoint.inject(b"mine", 0).unwrap();
    assert_eq!(link.caller.done(&all).good().length, 4);
}
