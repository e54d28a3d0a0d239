//! The transmit and the receive context of one index: what is done to one of them does not concern
//! the other. Reference: fi_endpoint(3), "SCALABLE ENDPOINTS": "Transmit contexts are independent
//! transmit queues"; `fi_close`, `fi_cancel`, options.

use std::{sync::Arc, time::Instant};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    completion_queue::Entry,
    domain::{DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    operation::SendPost,
    scalable_endpoint::ScalableEndpoint,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Receive, pattern, same},
    completion::Done,
    contexts::{Context, Portal, counts, named, naming, next, nothing_more, two},
    node::says_gone,
    scale::{PATIENCE, leaves_in_time, scaled, unspoilt},
};

const LONG: usize = 4 << 20;

/// Whom the other one of [`two`] knows as 1.
const OTHER: u64 = 1;

/// A context goes where an address says, whether or not it asked for FI_NAMED_RX_CTX, as oneCCL does not; and so
/// does the one that comes after it.
pub fn a_context_that_is_opened_again_names_by_itself<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 2));
    let Portal { endpoint, vector: _vector, mut transmit, receive } = ours;
    let names = |context: &Context<P>| {
        context.endpoint.inject(&[1; 8], named(OTHER, 1)).unwrap();
        for into in &theirs.receive {
            into.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 3).unwrap();
        }
        let start = Instant::now();
        let index = loop {
            [context, &receive[0]].into_iter().for_each(Context::poll);
            theirs.poll();
            if let Some(index) = theirs.receive.iter().position(|into| into.taken().is_some()) {
                break index;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a message");
        };
        theirs.receive[1 - index].endpoint.cancel(3).unwrap();
        let canceled = next(&theirs.receive[1 - index], &[&theirs]);
        assert_eq!(canceled.bad(Errno::CANCELED).context, 3);
        index
    };
    assert_eq!(names(&transmit[0]), 1);
    for options in [EndpointOptions::default(), naming()] {
        transmit.pop().unwrap().endpoint.close();
        let again = endpoint.transmit_context(0, options).unwrap();
        transmit.push(Context::enabled(again, Flags::TRANSMIT));
        assert_eq!(names(&transmit[0]), 1);
    }
}

/// The contexts of an endpoint have the same keys: those of its vector when the first was enabled, which
/// are not removed before the endpoint is closed.
pub fn contexts_have_the_keys_of_the_first<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let attributes = AddressVectorAttributes { auth_keys: true, ..Default::default() };
    let vector = Arc::new(AddressVector::open(attributes).unwrap());
    let options = EndpointOptions { vector_keys: true, ..EndpointOptions::default() };
    let endpoint = ScalableEndpoint::open(&domain, options.clone(), counts(2, 2)).unwrap();
    endpoint.bind_address_vector(&vector).unwrap();
    let first = vector.insert_auth_key(b"first").unwrap();
    let transmit = endpoint.transmit_context(0, options.clone()).unwrap();
    let transmit = Context::enabled(transmit, Flags::TRANSMIT);
    let later = vector.insert_auth_key(b"later").unwrap();
    let receive = [0, 1].map(|index| {
        let context = endpoint.receive_context(index, options.clone()).unwrap();
        Context::enabled(context, Flags::RECV)
    });
    let memory = Memory::zeroed(8);
    for context in &receive {
        let by_key = |from| {
            let flags = Flags::AUTH_KEY;
            let post = Receive { pieces: memory.all(), from, flags, ..Receive::default() };
            context.endpoint.post_receive(post.post())
        };
        assert_eq!(by_key(later), Err(PostError::UnknownAddress { address: later }));
        by_key(first).unwrap();
    }
    vector.remove_auth_keys(&[later]).unwrap();
    for context in receive.iter().chain([&transmit]) {
        context.endpoint.close();
    }
    assert_eq!(vector.remove_auth_keys(&[first]).unwrap_err().errno(), Errno::BUSY);
    endpoint.close().unwrap();
    vector.remove_auth_keys(&[first]).unwrap();
}

/// Polls both so often, which leaves what is under way at another point each time.
fn poll_some<P: Provider>(all: &[&Portal<P>], rounds: usize) {
    for _ in 0..rounds {
        all.iter().for_each(|portal| portal.poll());
    }
}

/// As many moments at which something is closed.
fn moments() -> impl Iterator<Item = usize> {
    (0..24).step_by(scaled(12, 8, 1)).chain([40, 200])
}

/// The next completion of `context`, or of what is canceled there because nothing was heard of it.
fn ended<P: Provider>(context: &Context<P>, posted: u64, all: &[&Portal<P>]) -> Done {
    poll_some(all, 200);
    context.taken().unwrap_or_else(|| {
        context.endpoint.cancel(posted).unwrap();
        next(context, all)
    })
}

fn post<P: Provider>(context: &Endpoint<P>, message: &Memory, flags: Flags, named: u64) {
    let (pieces, flags) = (message.all(), flags | Flags::COMPLETION);
    let post = SendPost {
        pieces,
        to: OTHER,
        tag: 0,
        data: 0,
        context: named,
        flags,
        region: None,
        attachment: None,
    };
    context.post_send(post).unwrap();
}

/// A message is here whole, or its receive failed since the sender gave it up.
fn whole_or_gone(done: Done, bytes: &[u8]) {
    match done.errno {
        None => same(&done.returned.unwrap(), bytes, "a message of a closed context"),
        Some(Errno::CANCELED) => {}
        Some(errno) => assert!(says_gone(errno), "{}", done.reason),
    }
}

pub fn closing_a_receive_context_keeps_what_its_sibling_sends<P: Provider>(bed: &Bed<P>) {
    for moment in moments() {
        let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
        let all = [&ours, &theirs];
        let (send, their_send) = (&ours.transmit[0].endpoint, &theirs.transmit[0].endpoint);
        let (receive, their_receive) = (&ours.receive[0].endpoint, &theirs.receive[0].endpoint);
        let bytes: Vec<_> = (0..3).map(|seed| pattern(seed, LONG)).collect();
        // Two that are begun or queued, one of them for a receive that is posted; one that waits
        // for those before it.
        their_receive.receive(vec![0; LONG], OTHER, 20).unwrap();
        for context in [10, 11] {
            send.send(bytes[context as usize - 10].clone(), OTHER, context).unwrap();
        }
        let fenced = Memory::from(bytes[2].clone());
        post(send, &fenced, Flags::MSG | Flags::FENCE, 12);
        // What arrives here: for a receive, for nobody yet, and directed receives beside.
        receive.receive(vec![0; LONG], OTHER, 30).unwrap();
        their_send.send(vec![7; LONG], OTHER, 40).unwrap();
        their_send.send(vec![7; LONG], OTHER, 41).unwrap();
        poll_some(&all, moment);
        receive.close();
        // It may have been received by then.
        assert!(ours.receive[0].taken().is_none_or(|done| done.good().context == 30));
        // Who sent to it is told, unless it was received before.
        let told = [next(&theirs.transmit[0], &all), next(&theirs.transmit[0], &all)];
        for (done, context) in told.into_iter().zip([40, 41]) {
            assert_eq!(done.context, context);
            assert!(done.errno.is_none_or(says_gone), "{moment}: {done:?}");
            assert!(context == 40 || done.errno == Some(Errno::CONNRESET), "{moment}: {done:?}");
        }
        // What the sibling has under way comes to its end.
        for context in [21, 22] {
            their_receive.receive(vec![0; LONG], OTHER, context).unwrap();
        }
        for (nth, bytes) in bytes.iter().enumerate() {
            let received = next(&theirs.receive[0], &all).good();
            assert_eq!(received.context, 20 + nth as u64, "{moment}");
            same(&received.returned.unwrap(), bytes, "content");
        }
        let mut sent = [(); 3].map(|()| next(&ours.transmit[0], &all).good().context);
        sent.sort_unstable();
        assert_eq!(sent, [10, 11, 12], "{moment}");
        nothing_more(&all);
    }
}

pub fn closing_a_transmit_context_keeps_what_its_sibling_receives<P: Provider>(bed: &Bed<P>) {
    for (moment, posted) in moments().flat_map(|moment| [(moment, true), (moment, false)]) {
        let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
        let all = [&ours, &theirs];
        let (their_send, their_receive) = (&theirs.transmit[0].endpoint, &theirs.receive[0]);
        let bytes = [pattern(1, LONG), pattern(2, LONG)];
        if posted {
            their_receive.endpoint.receive(vec![0; LONG], OTHER, 20).unwrap();
        }
        ours.transmit[0].endpoint.send(bytes[0].clone(), OTHER, 10).unwrap();
        ours.transmit[0].endpoint.send(vec![9; 60_000], OTHER, 11).unwrap();
        // Here a message arrives, and the next is awaited.
        for context in [30, 31] {
            ours.receive[0].endpoint.receive(vec![0; LONG], OTHER, context).unwrap();
        }
        their_send.send(bytes[1].clone(), OTHER, 40).unwrap();
        poll_some(&all, moment);
        let already = ours.receive[0].taken();
        // Its buffers are freed.
        ours.transmit[0].endpoint.close();
        while ours.transmit[0].taken().is_some() {}
        let received = already.unwrap_or_else(|| next(&ours.receive[0], &all)).good();
        assert_eq!(received.context, 30, "{moment}");
        same(&received.returned.unwrap(), &bytes[1], "content");
        assert_eq!(next(&theirs.transmit[0], &all).good().context, 40);
        their_send.send(bytes[1].clone(), OTHER, 41).unwrap();
        let received = next(&ours.receive[0], &all).good();
        assert_eq!(received.context, 31, "{moment}");
        assert_eq!(next(&theirs.transmit[0], &all).good().context, 41);
        if posted {
            whole_or_gone(ended(their_receive, 20, &all), &bytes[0]);
        }
        // Another one at its place sends as if nothing had been.
        let again = ours.endpoint.transmit_context(0, naming()).unwrap();
        let again = Context::enabled(again, Flags::TRANSMIT);
        their_receive.endpoint.receive_tagged(vec![0; LONG], OTHER, 5, 0, 21).unwrap();
        again.endpoint.send_tagged(bytes[0].clone(), OTHER, 5, 12).unwrap();
        let received = loop {
            again.poll();
            let done = next_of(their_receive, &again, &all);
            if done.context == 21 {
                break done.good();
            }
        };
        same(&received.returned.unwrap(), &bytes[0], "content");
        let sent = next_of(&again, &again, &all).good();
        assert_eq!(sent.context, 12, "{moment}");
        assert!(ours.transmit[0].taken().is_none(), "what is discarded is told to nobody");
    }
}

/// It was done when the calls returned: where credit is missing the rest is asked for while the context closes. Other
/// threads are at the sibling meanwhile, without which the peer may not ask.
pub fn what_was_injected_survives_its_context<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| injected_survives(bed));
}

fn injected_survives<P: Provider>(bed: &Bed<P>) -> bool {
    const LENGTH: usize = 16 << 10;
    const COUNT: u64 = 5;
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&theirs];
    let (send, receive) = (ours.transmit[0].endpoint.clone(), &theirs.receive[0]);
    // They are connected, both ways.
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        from.transmit[0].endpoint.inject(&[7; 8], OTHER).unwrap();
        to.receive[0].endpoint.receive(vec![0; 8], OTHER, COUNT).unwrap();
        assert_eq!(next(&to.receive[0], &[&ours, &theirs]).good().context, COUNT);
    }
    let bytes: Vec<_> = (0..COUNT).map(|seed| pattern(seed, LENGTH)).collect();
    // As many as find room, which is for none of this length where packets are short.
    let injected = bytes.iter().take_while(|bytes| send.inject(bytes, OTHER).is_ok()).count();
    theirs.transmit[0].endpoint.send(vec![8; 8], OTHER, 40).unwrap();
    let in_time = std::thread::scope(|scope| {
        let closing = scope.spawn(|| leaves_in_time(|| send.close()));
        if bed.sharing == Sharing::Shared {
            // Long enough for the other thread to wait, and far less than the second that it waits.
            std::thread::sleep(std::time::Duration::from_millis(50));
            ours.receive[0].endpoint.receive(vec![0; 8], OTHER, 30).unwrap();
            let received = loop {
                theirs.poll();
                // Who closes may have the engine to itself, and be done behind a look that was in vain for that.
                let is_closed = closing.is_finished();
                if let Some(done) = ours.receive[0].taken() {
                    break done.good();
                }
                if is_closed {
                    assert!(!closing.join().unwrap(), "what was injected waits for this");
                    return false;
                }
            };
            assert_eq!(received.context, 30);
        }
        for context in 0..injected as u64 {
            receive.endpoint.receive(vec![0; LENGTH], OTHER, context).unwrap();
        }
        while !closing.is_finished() {
            poll_some(&all, 1);
        }
        closing.join().unwrap()
    });
    if in_time {
        // One whose rest is asked for ends behind those that came whole.
        let mut received: Vec<_> = (0..injected).map(|_| next(receive, &all).good()).collect();
        received.sort_by_key(|done| done.context);
        for (context, (received, bytes)) in (0..).zip(received.into_iter().zip(&bytes)) {
            assert_eq!(received.context, context);
            same(&received.returned.unwrap(), bytes, "injected");
        }
        assert_eq!(next(&theirs.transmit[0], &all).good().context, 40);
        nothing_more(&all);
    }
    in_time
}

/// As [`next`], with one more context to drive.
fn next_of<P: Provider>(wanted: &Context<P>, more: &Context<P>, all: &[&Portal<P>]) -> Done {
    let start = std::time::Instant::now();
    loop {
        poll_some(all, 1);
        more.poll();
        if let Some(done) = wanted.taken() {
            return done;
        }
        assert!(start.elapsed() < crate::scale::PATIENCE, "in vain: a completion");
    }
}

pub fn a_closed_receive_context_refuses_what_comes<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&ours, &theirs];
    let bytes = pattern(3, LONG);
    ours.transmit[0].endpoint.send(bytes.clone(), OTHER, 10).unwrap();
    poll_some(&all, 20);
    let lengths = (0..).zip([60_000, 8, LONG, 60_000, 8, LONG]);
    let messages: Vec<_> =
        lengths.map(|(turn, length)| Memory::from(pattern(turn, length))).collect();
    // What lies here unasked is refused when it is closed, and what comes after as well.
    for (turn, message) in messages.iter().enumerate() {
        post(
            &theirs.transmit[0].endpoint,
            message,
            Flags::TAGGED | Flags::MATCH_COMPLETE,
            turn as u64,
        );
        poll_some(&all, 20);
        if turn == 2 {
            nothing_more(&all);
            ours.receive[0].endpoint.close();
            let refused = [(); 3].map(|()| next(&theirs.transmit[0], &all).bad(Errno::CONNRESET));
            let contexts = std::collections::HashSet::from(refused.map(|done| done.context));
            assert_eq!(contexts.len(), 3, "each is told once: {contexts:?}");
        } else if turn > 2 {
            let refused = next(&theirs.transmit[0], &all);
            assert_eq!((refused.context, refused.errno), (turn as u64, Some(Errno::CONNRESET)));
        }
    }
    theirs.transmit[0].endpoint.inject(&[1; 8], OTHER).unwrap();
    poll_some(&all, 20);
    // Another one at its place knows nothing of all that.
    let again = ours.endpoint.receive_context(0, naming()).unwrap();
    let again = Context::enabled(again, Flags::RECV);
    again.endpoint.receive(vec![0; 300_000], OTHER, 30).unwrap();
    theirs.transmit[0].endpoint.send(vec![4; 300_000], OTHER, 40).unwrap();
    let received = next_of(&again, &again, &all).good();
    assert_eq!((received.context, received.returned.unwrap()), (30, vec![4; 300_000]));
    assert_eq!(next(&theirs.transmit[0], &all).good().context, 40);
    theirs.receive[0].endpoint.receive(vec![0; LONG], OTHER, 20).unwrap();
    same(&next(&theirs.receive[0], &all).good().returned.unwrap(), &bytes, "content");
    assert_eq!(next(&ours.transmit[0], &all).good().context, 10);
    nothing_more(&all);
}

pub fn closing_a_context_keeps_its_siblings_one_sided_operations<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(LONG);
    let domain = bed.domain(DomainOptions::default());
    let range = MemoryRange { address: memory.start(), len: LONG as u64 };
    let attributes = MemoryRegionAttributes {
        ranges: &[range],
        access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
        ..Default::default()
    };
    // SAFETY: the memory outlives the domain.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    let (base, key) = (region.base(), region.key());
    for moment in moments() {
        let ours = Portal::open(bed, counts(1, 1));
        let theirs = Portal::on(&domain, counts(1, 1));
        ours.knows(&[ours.endpoint.address(), theirs.endpoint.address()]);
        theirs.knows(&[theirs.endpoint.address(), ours.endpoint.address()]);
        let all = [&ours, &theirs];
        let bytes = pattern(moment as u64, LONG);
        let start = |context: &Context<P>| {
            context.endpoint.write(bytes.clone(), OTHER, base, key, 10).unwrap();
            context.endpoint.read(vec![0; LONG], OTHER, base, key, 11).unwrap();
            context.endpoint.write(bytes[..8].to_vec(), OTHER, base, key, 12).unwrap();
        };
        let finish = |context: &Context<P>| {
            for expected in 10..13 {
                let done = next_of(context, context, &all).good();
                assert_eq!(done.context, expected, "{moment}");
                if expected == 11 {
                    same(&done.returned.unwrap(), &bytes, "read");
                }
            }
        };
        // Of the context that is closed a message arrives; its sibling's operations are done.
        ours.receive[0].endpoint.receive(vec![0; LONG], OTHER, 30).unwrap();
        theirs.transmit[0].endpoint.send(vec![7; LONG], OTHER, 40).unwrap();
        start(&ours.transmit[0]);
        poll_some(&all, moment);
        ours.receive[0].endpoint.close();
        finish(&ours.transmit[0]);
        assert!(next(&theirs.transmit[0], &all).errno.is_none_or(says_gone));
        // The operations of a context that is closed are told to nobody, and no buffer of theirs
        // is written to any more; those of its successor are done.
        start(&ours.transmit[0]);
        poll_some(&all, moment);
        ours.transmit[0].endpoint.close();
        while ours.transmit[0].queue.read(&mut [Entry::default()]).is_ok() {}
        let again = ours.endpoint.transmit_context(0, naming()).unwrap();
        let again = Context::enabled(again, Flags::TRANSMIT);
        start(&again);
        finish(&again);
        same(&memory.bytes(), &bytes, "written");
        assert!(again.taken().is_none());
    }
    domain.close_memory(&region).unwrap();
}

pub fn what_is_canceled_is_the_contexts_own<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&ours, &theirs];
    let (send, receive) = (&ours.transmit[0].endpoint, &ours.receive[0].endpoint);
    let nothing = |context| Err(PostError::NothingToCancel { context });
    // Both have one with the same context, and one of their own. The sends wait for a fence.
    send.send(vec![1; LONG], OTHER, 1).unwrap();
    let fenced = Memory::from(vec![2; 8]);
    for context in [5, 6] {
        post(send, &fenced, Flags::MSG | Flags::FENCE, context);
    }
    for context in [5, 7] {
        receive.receive(vec![0; 8], OTHER, context).unwrap();
    }
    poll_some(&all, 50);
    assert_eq!((send.cancel(7), receive.cancel(6)), (nothing(7), nothing(6)));
    assert_eq!(send.cancel(7).unwrap_err().errno(), Errno::NOENT);
    nothing_more(&all);
    send.cancel(5).unwrap();
    assert_eq!(next(&ours.transmit[0], &all).bad(Errno::CANCELED).context, 5);
    assert_eq!(send.cancel(5), nothing(5));
    receive.cancel(5).unwrap();
    assert_eq!(next(&ours.receive[0], &all).bad(Errno::CANCELED).context, 5);
    assert_eq!(receive.cancel(5), nothing(5));
    // The others are as they were.
    for length in [LONG, 8] {
        theirs.receive[0].endpoint.receive(vec![0; length], OTHER, 20).unwrap();
        next(&theirs.receive[0], &all).good();
    }
    let sent = [(); 2].map(|()| next(&ours.transmit[0], &all).good().context);
    assert_eq!(sent, [1, 6]);
    theirs.transmit[0].endpoint.inject(&[3; 8], OTHER).unwrap();
    assert_eq!(next(&ours.receive[0], &all).good().context, 7);
    nothing_more(&all);
    // What is closed has no part in what comes after it.
    receive.close();
    let again = ours.endpoint.receive_context(0, EndpointOptions::default()).unwrap();
    let again = Context::enabled(again, Flags::RECV);
    again.endpoint.receive(vec![0; 8], OTHER, 5).unwrap();
    assert_eq!(receive.cancel(5), Err(PostError::Closed));
    assert_eq!(receive.receives_left(), Err(PostError::Closed));
    theirs.transmit[0].endpoint.inject(&[3; 8], OTHER).unwrap();
    assert_eq!(next(&again, &all).good().context, 5);
}

pub fn the_least_of_a_buffer_is_the_receive_contexts<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&ours, &theirs];
    let (transmit, receive) = (&ours.transmit[0].endpoint, &ours.receive[0].endpoint);
    receive.set_option(OptionName::MinMultiRecv, 8).unwrap();
    let refused = transmit.set_option(OptionName::MinMultiRecv, 20).unwrap_err();
    assert!(matches!(refused, EndpointError::UnknownOption { option: 0 }));
    assert_eq!(refused.errno(), Errno::NOPROTOOPT);
    let refused = transmit.option(OptionName::MinMultiRecv).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOPROTOOPT);
    assert_eq!(receive.option(OptionName::MinMultiRecv).unwrap(), 8);
    // Two messages leave 16 and 8 bytes, which is enough for one more.
    receive.receive_multi(vec![0; 24], OTHER, 30).unwrap();
    for (nth, last) in [(1, false), (2, false), (3, true)] {
        theirs.transmit[0].endpoint.inject(&[nth; 8], OTHER).unwrap();
        let received = next(&ours.receive[0], &all).good();
        assert_eq!((received.context, received.length), (30, 8));
        assert_eq!(received.flags.contains(Flags::MULTI_RECV), last, "message {nth}");
    }
    nothing_more(&all);
}
