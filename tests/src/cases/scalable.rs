//! Scalable endpoints and their contexts. Reference: fi_endpoint(3), "SCALABLE ENDPOINTS".

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use kestrel_core::{
    address::Address,
    address_vector::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC},
    completion_queue::{CompletionQueue, Entry},
    domain::{DomainOptions, OpenError, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    scalable_endpoint::{CONTEXTS_MAX, ScalableEndpoint},
    transport::Provider,
};

use crate::bed::{Bed, Memory, Options, open_vector, pattern, same};
use crate::contexts::{Context, Portal, counts, named, naming, next, nothing_more, two};
use crate::reserved::beside;
use crate::scale::{PATIENCE, scaled};

pub fn a_named_context_gets_what_is_for_it<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(3, 3), counts(3, 3));
    let all = [&ours, &theirs];
    for length in [8, 5_000, 300_000] {
        for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
            let tag = (from * 3 + to) as u64;
            let bytes = pattern(tag, length);
            let address = named(1, to as u64);
            theirs.receive[to].endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, tag).unwrap();
            ours.transmit[from].endpoint.send(bytes.clone(), address, tag).unwrap();
            let received = next(&theirs.receive[to], &all).good();
            assert_eq!((received.context, received.source), (tag, 1), "from {from} to {to}");
            same(&received.returned.unwrap(), &bytes, "content");
            assert_eq!(next(&ours.transmit[from], &all).context(), tag);
        }
    }
    // The same to oneself.
    for index in 0..3 {
        ours.receive[index].endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 7).unwrap();
        ours.transmit[index].endpoint.send(vec![1; 8], named(0, index as u64), 8).unwrap();
        assert_eq!(next(&ours.receive[index], &all).good().source, 0);
        assert_eq!(next(&ours.transmit[index], &all).context(), 8);
    }
    nothing_more(&all);
}

pub fn the_first_context_gets_what_names_none<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(2, 1), counts(1, 2));
    let all = [&ours, &theirs];
    for from in [0, 1] {
        theirs.receive[0].endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 3).unwrap();
        ours.transmit[from].endpoint.send(vec![1; 8], 1, 4).unwrap();
        assert_eq!(next(&theirs.receive[0], &all).context(), 3);
        assert_eq!(next(&ours.transmit[from], &all).context(), 4);
    }
    // An endpoint that has no contexts, without FI_NAMED_RX_CTX, does not look at what an address names.
    let plain = bed.stranger(&Options::default());
    assert_eq!(plain.vector.insert_one(theirs.endpoint.address()).unwrap(), 0);
    theirs.receive[0].endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 5).unwrap();
    plain.send(vec![1; 8], 0, None, 6);
    let received = loop {
        plain.poll();
        if let Some(done) = theirs.receive[0].taken() {
            break done.good();
        }
    };
    assert_eq!((received.context, received.source), (5, FI_ADDR_NOTAVAIL));
    // And reaches it for the answer under the one address that it knows.
    theirs.knows(&[plain.endpoint.address()]);
    plain.endpoint.receive(vec![0; 8], 0, 9).unwrap();
    theirs.transmit[0].endpoint.inject(&[1; 8], 2).unwrap();
    let start = Instant::now();
    while plain.receives.read(&mut [Entry::default()]).is_err() {
        theirs.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: an answer");
    }
}

pub fn a_directed_receive_takes_from_every_context<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(3, 3), counts(3, 3));
    let stranger = Portal::open(bed, counts(1, 1));
    stranger.knows(&[theirs.endpoint.address()]);
    let all = [&ours, &theirs, &stranger];
    for (from, unexpected) in [(2, false), (1, true), (0, false), (2, true)] {
        stranger.transmit[0].endpoint.inject(&[9; 8], named(0, 1)).unwrap();
        // The bits of a source are of no account.
        let post = || {
            let source = named(1, from as u64);
            theirs.receive[1].endpoint.receive(vec![0; 8], source, 5).unwrap();
        };
        let send = || ours.transmit[from].endpoint.inject(&[1; 8], named(1, 1)).unwrap();
        if unexpected {
            send();
            nothing_more(&all);
            post();
        } else {
            post();
            nothing_more(&all);
            send();
        }
        let received = next(&theirs.receive[1], &all).good();
        assert_eq!((received.context, received.source), (5, 1));
        assert_eq!(received.returned.unwrap(), [1; 8]);
        theirs.receive[1].endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 6).unwrap();
        let received = next(&theirs.receive[1], &all).good();
        assert_eq!((received.context, received.source), (6, FI_ADDR_NOTAVAIL));
    }
    nothing_more(&all);
}

pub fn a_directed_receive_fails_with_the_last_context<P: Provider>(bed: &Bed<P>) {
    let [mut ours, theirs] = two(bed, counts(2, 1), counts(1, 1));
    for context in &ours.transmit {
        theirs.receive[0].endpoint.receive(vec![0; 8], 1, 5).unwrap();
        context.endpoint.inject(&[1; 8], 1).unwrap();
        next(&theirs.receive[0], &[&ours, &theirs]).good();
    }
    theirs.receive[0].endpoint.receive(vec![0; 8], 1, 5).unwrap();
    // The second pair of contexts is closed, but the first one can still send.
    let last = ours.transmit.pop().unwrap();
    last.endpoint.close();
    nothing_more(&[&ours, &theirs]);
    ours.transmit[0].endpoint.inject(&[1; 8], 1).unwrap();
    next(&theirs.receive[0], &[&ours, &theirs]).good();
    theirs.receive[0].endpoint.receive(vec![0; 8], 1, 6).unwrap();
    drop((last, ours));
    let failed = next(&theirs.receive[0], &[&theirs]);
    assert_eq!((failed.context, failed.errno), (6, Some(Errno::CONNRESET)));
}

pub fn who_names_no_context_that_exists_is_told<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(3, 1));
    let all = [&ours, &theirs];
    // There is a second transmit context, and no receive context beside it.
    ours.transmit[0].endpoint.send(vec![1; 300_000], named(1, 1), 3).unwrap();
    let failed = next(&ours.transmit[0], &all);
    assert_eq!(failed.context, 3);
    assert!(failed.errno.is_some_and(crate::node::says_gone), "{failed:?}");
    // The others are not concerned.
    theirs.receive[0].endpoint.receive(vec![0; 8], 1, 5).unwrap();
    ours.transmit[0].endpoint.send(vec![1; 8], named(1, 0), 6).unwrap();
    assert_eq!(next(&theirs.receive[0], &all).context(), 5);
    assert_eq!(next(&ours.transmit[0], &all).context(), 6);
}

pub fn one_sided_operations_go_to_a_context<P: Provider>(bed: &Bed<P>) {
    let (memory, read) = (Memory::zeroed(4_096), Memory::zeroed(4_096));
    let bytes = pattern(1, 4_096);
    let domain = bed.domain(DomainOptions::default());
    let ours = Portal::open(bed, counts(2, 2));
    let theirs = Portal::on(&domain, counts(3, 2));
    ours.knows(&[theirs.endpoint.address()]);
    let range = MemoryRange { address: memory.start(), len: 4_096 };
    let attributes = MemoryRegionAttributes {
        ranges: &[range],
        access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
        ..Default::default()
    };
    // SAFETY: the memory outlives the domain.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    let all = [&ours, &theirs];
    for (from, to) in [(0, 0), (1, named(0, 1)), (1, 0), (0, named(0, 1))] {
        let context = &ours.transmit[from];
        context.endpoint.write(bytes.clone(), to, region.base(), region.key(), 5).unwrap();
        assert_eq!(next(context, &all).context(), 5);
        same(&memory.bytes(), &bytes, "written");
        context.endpoint.read(read.bytes(), to, region.base(), region.key(), 6).unwrap();
        same(&next(context, &all).good().returned.unwrap(), &bytes, "read");
        memory.scribble();
    }
    // Where there is no receive context, nobody permits it.
    let (to, key) = (named(0, 2), region.key());
    ours.transmit[0].endpoint.write(vec![1; 8], to, region.base(), key, 7).unwrap();
    next(&ours.transmit[0], &all).bad(Errno::ACCES);
    domain.close_memory(&region).unwrap();
}

pub fn a_context_has_one_direction<P: Provider>(bed: &Bed<P>) {
    let ours = Portal::open(bed, counts(1, 1));
    ours.knows(&[ours.endpoint.address()]);
    let refused = ours.transmit[0].endpoint.receive(vec![7], FI_ADDR_UNSPEC, 0).unwrap_err();
    assert_eq!(refused.error, PostError::NotCapable { missing: Flags::RECV });
    assert_eq!((refused.error.errno(), refused.buffer), (Errno::OPNOTSUPP, vec![7]));
    let receive = &ours.receive[0].endpoint;
    assert_eq!(receive.inject(&[1], 0).unwrap_err().errno(), Errno::OPNOTSUPP);
    let refused = receive.write(vec![1], 0, 0, 0, 0).unwrap_err();
    assert_eq!(refused.error.errno(), Errno::OPNOTSUPP);
    // All of them go by the endpoint's name.
    assert_eq!(receive.address(), ours.endpoint.address());
    assert_eq!(ours.transmit[0].endpoint.address(), ours.endpoint.address());
    nothing_more(&[&ours]);
}

pub fn a_context_may_have_less_than_its_endpoint<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let messages = EndpointOptions {
        capabilities: Flags::MSG | Flags::SEND | Flags::RECV,
        ..EndpointOptions::default()
    };
    let endpoint = ScalableEndpoint::open(&domain, messages.clone(), counts(1, 1)).unwrap();
    let more = endpoint.transmit_context(0, EndpointOptions::default()).err().unwrap();
    assert!(matches!(more, EndpointError::BeyondEndpoint { missing } if !missing.is_empty()));
    assert_eq!(more.errno(), Errno::INVAL);
    let less = EndpointOptions { inject_size: 4, transmit_size: 1, ..messages };
    let context = endpoint.transmit_context(0, less).unwrap();
    assert_eq!(context.options().inject_size, 4);
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    context.bind_completion_queue(&queue, Flags::TRANSMIT).unwrap();
    // "Address vectors that are bound to scalable endpoints are implicitly bound": to nothing
    // else, and before they are enabled.
    let vector = open_vector();
    assert_eq!(context.bind_address_vector(&vector).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(context.enable().unwrap_err().errno(), Errno::NOAV);
    assert_eq!(endpoint.enable().unwrap_err().errno(), Errno::NOAV);
    endpoint.bind_address_vector(&vector).unwrap();
    assert_eq!(endpoint.bind_address_vector(&vector).unwrap_err().errno(), Errno::INVAL);
    endpoint.enable().unwrap();
    context.enable().unwrap();
    vector.insert_one(endpoint.address()).unwrap();
    assert_eq!(context.inject(&[1; 5], 0).unwrap_err().errno(), Errno::MSGSIZE);
    context.inject(&[1; 4], 0).unwrap();
}

pub fn contexts_close_before_their_endpoint<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let ours = Portal::on(&domain, counts(2, 1));
    ours.knows(&[ours.endpoint.address()]);
    for (index, errno) in [(0, Errno::BUSY), (1, Errno::BUSY), (2, Errno::INVAL)] {
        let refused = ours.endpoint.transmit_context(index, naming()).err().unwrap();
        assert_eq!(refused.errno(), errno, "context {index}");
    }
    assert_eq!(ours.endpoint.close().unwrap_err().errno(), Errno::BUSY);
    assert_eq!(domain.close().unwrap_err().errno(), Errno::BUSY);
    ours.transmit.iter().for_each(|context| context.endpoint.close());
    assert_eq!(ours.endpoint.close().unwrap_err().errno(), Errno::BUSY);
    ours.receive[0].endpoint.close();
    assert_eq!(
        ours.receive[0].endpoint.receive(vec![1], 0, 0).unwrap_err().error,
        PostError::Closed
    );
    // A context that was closed is opened again, and works.
    let again =
        Context::enabled(ours.endpoint.transmit_context(1, naming()).unwrap(), Flags::TRANSMIT);
    let receive =
        Context::enabled(ours.endpoint.receive_context(0, naming()).unwrap(), Flags::RECV);
    receive.endpoint.receive(vec![0; 8], 0, 3).unwrap();
    again.endpoint.inject(&[1; 8], 0).unwrap();
    let start = Instant::now();
    while receive.taken().is_none() {
        again.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: a message");
    }
    assert_eq!(ours.vector.close().unwrap_err().errno(), Errno::BUSY);
    again.endpoint.close();
    receive.endpoint.close();
    ours.endpoint.close().unwrap();
    assert_eq!(ours.endpoint.close().unwrap_err().errno(), Errno::BADF);
    assert!(ours.endpoint.transmit_context(0, naming()).is_err());
    ours.vector.close().unwrap();
    for context in ours.transmit.iter().chain(&ours.receive).chain([&again, &receive]) {
        context.queue.close().unwrap();
    }
    domain.close().unwrap();
}

pub fn closing_a_context_leaves_the_other_one<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let peer = bed.stranger(&Options::default());
    let endpoint = ScalableEndpoint::open(&domain, naming(), counts(1, 1)).unwrap();
    let vector = open_vector();
    endpoint.bind_address_vector(&vector).unwrap();
    vector.insert_one(peer.endpoint.address()).unwrap();
    peer.vector.insert_one(endpoint.address()).unwrap();
    // Both contexts have one queue, which goes on driving the one that is left.
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let open_transmit = || {
        let context = endpoint.transmit_context(0, naming()).unwrap();
        context.bind_completion_queue(&queue, Flags::TRANSMIT).unwrap();
        context.enable().unwrap();
        context
    };
    let receive = endpoint.receive_context(0, naming()).unwrap();
    receive.bind_completion_queue(&queue, Flags::RECV).unwrap();
    receive.enable().unwrap();
    let expect = |context: u64| {
        let start = Instant::now();
        let mut entry = [Entry::default()];
        while queue.read(&mut entry).is_err() {
            peer.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: {context}");
        }
        assert_eq!(entry[0].context, context);
    };
    for round in 0..3 {
        let transmit = open_transmit();
        peer.receive(8, None, 0);
        transmit.send(vec![1; 8], 0, 10 + round).unwrap();
        expect(10 + round);
        transmit.close();
        assert_eq!(transmit.inject(&[1], 0), Err(PostError::Closed));
        receive.receive(vec![0; 8], FI_ADDR_UNSPEC, 20 + round).unwrap();
        peer.send(vec![1; 8], 0, None, 0);
        expect(20 + round);
    }
    let transmit = open_transmit();
    receive.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    receive.close();
    peer.receive(8, None, 0);
    transmit.send(vec![1; 8], 0, 30).unwrap();
    expect(30);
}

pub fn what_a_closed_context_had_begun_is_let_go<P: Provider>(bed: &Bed<P>) {
    let long = 4 << 20;
    let [ours, theirs] = two(bed, counts(2, 2), counts(2, 2));
    let all = [&ours, &theirs];
    // A message that waits for its receive, and one that waits for its send.
    ours.transmit[1].endpoint.send(vec![1; long], named(1, 1), 5).unwrap();
    ours.receive[1].endpoint.receive(vec![0; long], FI_ADDR_UNSPEC, 6).unwrap();
    nothing_more(&all);
    ours.transmit[1].endpoint.close();
    ours.receive[1].endpoint.close();
    nothing_more(&all);
    // Whatever the receiver had heard of it, it does not wait for the rest for ever.
    theirs.receive[1].endpoint.receive(vec![0; long], FI_ADDR_UNSPEC, 7).unwrap();
    let start = Instant::now();
    let ended = loop {
        all.iter().for_each(|portal| portal.poll());
        if let Some(done) = theirs.receive[1].taken() {
            break done.errno;
        }
        // It may be that nothing was heard of the message, so that the receive still waits.
        if theirs.receive[1].endpoint.cancel(7).is_ok() {
            break next(&theirs.receive[1], &all).errno;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: the message is let go");
    };
    let canceled = ended == Some(Errno::CANCELED);
    assert!(canceled || ended.is_some_and(crate::node::says_gone), "{ended:?}");
    // The other contexts are not concerned.
    theirs.receive[1].endpoint.receive(vec![0; 8], 1, 8).unwrap();
    ours.transmit[0].endpoint.send(vec![1; 8], named(1, 1), 9).unwrap();
    assert_eq!(next(&theirs.receive[1], &all).context(), 8);
    assert_eq!(next(&ours.transmit[0], &all).context(), 9);
    nothing_more(&all);
}

pub fn ports_follow_each_other<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let row = ScalableEndpoint::open(&domain, naming(), counts(4, 2)).unwrap();
    assert_eq!((row.counts().transmit, row.counts().receive), (4, 2));
    // Each of the four has a port that nobody else can have, and those that are free can be had.
    let at = row.address();
    for index in 0..4 {
        let address = at.with_port(at.port() + index);
        let options = EndpointOptions { address: Some(address), ..EndpointOptions::default() };
        let error = Endpoint::open(&domain, options).err().unwrap();
        assert_eq!(error.errno(), Errno::ADDRINUSE, "port {index}");
    }
    row.close().unwrap();
    let at = beside(at, 4);
    let options = EndpointOptions { address: Some(at), ..naming() };
    for closes in [true, false] {
        let row = ScalableEndpoint::open(&domain, options.clone(), counts(2, 4)).unwrap();
        assert_eq!(row.address(), at);
        if closes {
            row.close().unwrap();
        }
    }
    // One of them is taken: an address that was asked for cannot be had.
    let third = EndpointOptions { address: Some(at.with_port(at.port() + 2)), ..naming() };
    let taken = Endpoint::open(&domain, third).unwrap();
    let error = ScalableEndpoint::open(&domain, options, counts(4, 1)).err().unwrap();
    assert_eq!(error.errno(), Errno::ADDRINUSE);
    drop(taken);
    // "If not specified (0), 1 context will be assigned".
    let least = ScalableEndpoint::open(&domain, naming(), counts(0, 0)).unwrap();
    assert_eq!(least.counts(), counts(1, 1));
    let count = CONTEXTS_MAX + 1;
    let error = ScalableEndpoint::open(&domain, naming(), counts(count, 1)).err().unwrap();
    assert_eq!(error, OpenError::TooManyContexts { count, limit: CONTEXTS_MAX });
    assert_eq!(error.errno(), Errno::INVAL);
}

/// "The fi_setname call may be used to modify or assign the address of the local endpoint"
/// (fi_cm(3)): of all contexts, until one is enabled.
pub fn a_name_is_set_before_contexts_are_enabled<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let near = Endpoint::open(&domain, EndpointOptions::default()).unwrap().address();
    let open = |count| {
        let options = EndpointOptions { address: Some(beside(near, count)), ..naming() };
        ScalableEndpoint::open(&domain, options, counts(count.into(), count.into())).unwrap()
    };
    let (ours, reserved) = (open(3), open(5));
    let (before, free) = (ours.address(), reserved.address());
    let at = |index| free.with_port(free.port() + index);
    let refused = |address| ours.set_address(address).unwrap_err().errno();
    let context = ours.receive_context(2, naming()).unwrap();
    assert_eq!(refused(free), Errno::ADDRINUSE);
    reserved.close().unwrap();
    // The last port of the row is taken: nothing is changed.
    let taken = EndpointOptions { address: Some(at(2)), ..EndpointOptions::default() };
    let taken = Endpoint::open(&domain, taken).unwrap();
    assert_eq!((refused(free), ours.address()), (Errno::ADDRINUSE, before));
    assert_eq!(refused(before.with_port(u16::MAX)), Errno::ADDRINUSE, "no ports follow it");
    drop(taken);
    // There, on by one port and by one more, and back by one: ports of both rows stay the endpoint's.
    for (index, left) in [(0, None), (1, Some(0)), (2, Some(1)), (1, Some(4))] {
        ours.set_address(at(index)).unwrap();
        assert_eq!((ours.address(), context.address()), (at(index), at(index)));
        let open_at = |address| {
            let options = EndpointOptions { address: Some(address), ..EndpointOptions::default() };
            Endpoint::open(&domain, options).err().map(|error| error.errno())
        };
        let taken = (index..index + 3).map(|index| open_at(at(index)));
        assert!(taken.into_iter().all(|error| error == Some(Errno::ADDRINUSE)), "from {index} on");
        assert_eq!(open_at(left.map_or(before, at)), None, "what it left is free");
    }
    let any = std::net::IpAddr::from([0, 0, 0, 0]);
    ours.set_address(Address::new(any, 0)).unwrap();
    assert_eq!(ours.address(), at(1), "what is left open stays");
    // "The transmit and receive contexts share the transport-level address."
    assert_eq!(context.set_address(free).unwrap_err().errno(), Errno::INVAL);
    drop(context);
    let ours = Portal::over(ours, &naming());
    let theirs = Portal::open(bed, counts(3, 3));
    ours.knows(&[theirs.endpoint.address()]);
    theirs.knows(&[at(1)]);
    assert_eq!(ours.endpoint.set_address(free).unwrap_err().errno(), Errno::OPBADSTATE);
    ours.endpoint.set_address(at(1)).unwrap();
    let all = [&ours, &theirs];
    for index in 0..3 {
        let tag = 10 + index as u64;
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            to.receive[index].endpoint.receive(vec![0; 8], 0, tag).unwrap();
            from.transmit[index].endpoint.send(vec![1; 8], named(0, index as u64), tag).unwrap();
            let received = next(&to.receive[index], &all).good();
            assert_eq!((received.context, received.source), (tag, 0));
            assert_eq!(next(&from.transmit[index], &all).context(), tag);
        }
    }
    drop(ours.transmit);
    drop(ours.receive);
    ours.endpoint.close().unwrap();
    assert_eq!(ours.endpoint.set_address(before).unwrap_err().errno(), Errno::BADF);
}

pub fn contexts_are_used_by_threads_of_their_own<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    const CONTEXTS: usize = 4;
    let messages = scaled(200, 1_000, 20_000);
    let [ours, theirs] = two(bed, counts(CONTEXTS, CONTEXTS), counts(CONTEXTS, CONTEXTS));
    let (finished, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    std::thread::scope(|scope| {
        for index in 0..CONTEXTS {
            let send = ours.transmit[index].endpoint.clone();
            let sent = ours.transmit[index].queue.clone();
            let receive = theirs.receive[index].endpoint.clone();
            let received = theirs.receive[index].queue.clone();
            let finished = finished.clone();
            scope.spawn(move || {
                let (mut next, mut expected) = (0_usize, 0_usize);
                receive.receive_tagged(vec![0; 8], 1, 0, u64::MAX, 0).unwrap();
                while finished.load(Ordering::Relaxed) < CONTEXTS {
                    assert!(start.elapsed() < PATIENCE * 4, "{expected} of {messages} messages");
                    let to = named(1, index as u64);
                    if next < messages && send.inject_tagged(&next.to_le_bytes(), to, 0).is_ok() {
                        next += 1;
                    }
                    let _ = sent.read(&mut [Entry::default()]);
                    let mut entry = [Entry::default()];
                    if received.read(&mut entry).is_err() {
                        continue;
                    }
                    let [mut entry] = entry;
                    let bytes: [u8; 8] = entry.take_buffer().unwrap().try_into().unwrap();
                    assert_eq!(usize::from_le_bytes(bytes), expected, "in order");
                    expected += 1;
                    if expected == messages {
                        finished.fetch_add(1, Ordering::Relaxed);
                    } else {
                        receive.receive_tagged(vec![0; 8], 1, 0, u64::MAX, 0).unwrap();
                    }
                }
            });
        }
    });
}
