//! Shared transmit and receive contexts. Reference: fi_endpoint(3), "SHARED CONTEXTS".

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use kestrel_core::{
    address_vector::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC},
    completion_queue::{CompletionQueue, Entry},
    domain::{DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    operation::ReceivePost,
    shared_context::{SharedTransmit, receive::SharedReceive},
    transport::Provider,
};

use crate::bed::{Bed, Options, World, open_vector, pattern, same};
use crate::contexts::{Context, Sharers, sharing};
use crate::link::{End, Listener, options};
use crate::scale::{PATIENCE, scaled};

const LENGTHS: [usize; 4] = [8, 300, 5_000, 300_000];

/// `members` sharers and a world of `count` senders that know them as 0, 1, …
fn senders<P: Provider>(bed: &Bed<P>, members: usize, count: usize) -> (Sharers<P>, World<P>) {
    senders_with(bed, members, count, &Options::default())
}

/// The same with these options.
pub fn senders_with<P: Provider>(
    bed: &Bed<P>,
    members: usize,
    count: usize,
    options: &Options,
) -> (Sharers<P>, World<P>) {
    let sharers = Sharers::open(bed, members, options);
    let nodes = (0..count).map(|_| bed.stranger(options)).collect();
    let world = World { nodes };
    for node in &world.nodes {
        node.vector.insert(&sharers.addresses());
        sharers.vector.insert_one(node.endpoint.address()).unwrap();
    }
    (sharers, world)
}

pub fn every_endpoint_takes_shared_receives<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 3, 1);
    for (length, unexpected) in LENGTHS.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        for member in 0..3 {
            let bytes = pattern(member as u64, length);
            let post = |context| {
                let buffer = vec![0; length];
                sharers.shared.receive_tagged(buffer, FI_ADDR_UNSPEC, 5, 0, context).unwrap();
            };
            if !unexpected {
                post(7);
            }
            world.nodes[0].send(bytes.clone(), member as u64, Some(5), 8);
            if unexpected {
                for _ in 0..50 {
                    world.poll(1);
                    sharers.poll();
                }
                post(7);
            }
            let (at, done) = sharers.next(|| world.poll(1));
            // "Completed receive operations are posted to the CQs bound to the endpoint."
            assert_eq!((at, done.context, done.errno), (member, 7, None), "{done:?}");
            assert_eq!((done.source, done.tag), (0, 5));
            same(&done.returned.unwrap(), &bytes, "content");
            world.drive("a send completes", || {
                sharers.poll();
                world.waiting(0).0 > 0
            });
            assert_eq!(world.sent(0).context(), 8);
        }
    }
    // What does not fit is cut, as anywhere.
    for length in [8, 5_000, 300_000] {
        sharers.shared.receive(vec![0; length - 1], FI_ADDR_UNSPEC, 1).unwrap();
        world.nodes[0].send(vec![1; length], 1, None, 2);
        let (at, done) = sharers.next(|| world.poll(1));
        assert_eq!((at, done.errno, done.overflow), (1, Some(Errno::TRUNC), 1));
    }
}

pub fn connections_share_receives<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
    let told = SharedReceive::open(&domain, options()).unwrap();
    // "Applies only to connectionless endpoints …, otherwise this field is ignored."
    told.receive(vec![0; 8], 4711, 1).unwrap();
    told.cancel(1).unwrap();
    let listener = Listener::listening(bed);
    let sharing = EndpointOptions { shares_receive: true, ..options() };
    let mut ends = Vec::new();
    for _ in 0..5 {
        let caller = End::calling(bed, listener.passive.address(), &[]);
        let request = listener.take(&[&caller]);
        let endpoint = Endpoint::open_for(&domain, sharing.clone(), request).unwrap();
        endpoint.bind_shared_receive(&shared).unwrap();
        let acceptor = End::over(&domain, endpoint);
        acceptor.endpoint.accept(&[]).unwrap();
        caller.connected(&[&acceptor, &listener]);
        acceptor.connected(&[&caller, &listener]);
        ends.push((caller, acceptor));
    }
    for length in LENGTHS {
        // One pool of receives, for whichever connection has a message.
        for context in 0..5 {
            let from = [FI_ADDR_UNSPEC, 0, 4711][context as usize % 3];
            shared.receive(vec![0; length], from, context).unwrap();
        }
        for (index, (caller, acceptor)) in ends.iter().enumerate().rev() {
            let bytes = pattern(index as u64, length);
            caller.endpoint.send(bytes.clone(), 0, 9).unwrap();
            let done = acceptor.done(&[caller, &listener]).good();
            // The earliest posted goes first.
            assert_eq!(done.context, 4 - index as u64);
            same(&done.returned.unwrap(), &bytes, "content");
            assert_eq!(caller.done(&[acceptor]).context(), 9);
        }
    }
    // A connection that ends takes no receive along.
    shared.receive(vec![0; 8], FI_ADDR_UNSPEC, 3).unwrap();
    let (caller, acceptor) = ends.remove(2);
    caller.endpoint.shutdown().unwrap();
    acceptor.sees_shutdown(&[&caller]);
    drop((caller, acceptor));
    let (caller, acceptor) = &ends[0];
    caller.endpoint.send(vec![1; 8], 0, 9).unwrap();
    assert_eq!(acceptor.done(&[caller]).context(), 3);
    // An answer goes by the connection, whose own receives are its caller's.
    caller.endpoint.receive(vec![0; 8], 0, 4).unwrap();
    acceptor.endpoint.send(vec![2; 8], 0, 5).unwrap();
    // The send before may be known to be complete only now.
    let mut contexts = [caller.done(&[acceptor]).context(), caller.done(&[acceptor]).context()];
    contexts.sort_unstable();
    assert_eq!(contexts, [4, 9]);
}

pub fn the_earliest_receive_and_message_match<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 2, 1);
    let any = FI_ADDR_UNSPEC;
    for context in 0..4 {
        sharers.shared.receive_tagged(vec![0; 8], any, context / 2, 0, context).unwrap();
    }
    for (member, tag, expected) in [(1, 1, 2), (0, 0, 0), (1, 0, 1), (0, 1, 3)] {
        world.nodes[0].endpoint.inject_tagged(&[1; 8], member, tag).unwrap();
        let (at, done) = sharers.next(|| world.poll(1));
        assert_eq!((at as u64, done.context(), tag), (member, expected, tag));
    }
    // Messages that wait, at several endpoints, go in the order of their arrival.
    for (number, member) in [1, 0, 0, 1].into_iter().enumerate() {
        world.nodes[0].endpoint.inject_tagged(&[number as u8; 8], member, 7).unwrap();
        for _ in 0..50 {
            world.poll(1);
            sharers.poll();
        }
    }
    for (number, member) in [1, 0, 0, 1].into_iter().enumerate() {
        sharers.shared.receive_tagged(vec![9; 8], any, 0, u64::MAX, 1).unwrap();
        let (at, done) = sharers.next(|| world.poll(1));
        assert_eq!((at, done.good().returned.unwrap()), (member, vec![number as u8; 8]));
    }
}

pub fn a_directed_receive_takes_from_its_source<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 2, 2);
    let stranger = bed.stranger(&Options::default());
    stranger.vector.insert(&sharers.addresses());
    for member in [0, 1] {
        sharers.shared.receive(vec![0; 8], 1, 1).unwrap();
        sharers.shared.receive(vec![0; 8], 0, 0).unwrap();
        sharers.shared.receive(vec![0; 8], FI_ADDR_UNSPEC, 2).unwrap();
        stranger.endpoint.inject(&[1; 8], member).unwrap();
        let next =
            || sharers.next(|| [&stranger].into_iter().chain(&world.nodes).for_each(|n| n.poll()));
        let (at, done) = next();
        assert_eq!((at as u64, done.source, done.context()), (member, FI_ADDR_NOTAVAIL, 2));
        for sender in [0, 1] {
            world.nodes[sender as usize].endpoint.inject(&[1; 8], member).unwrap();
            let (at, done) = next();
            assert_eq!((at as u64, done.source, done.context()), (member, sender, sender));
        }
    }
    // Nobody is called that, so nobody can be meant.
    let refused = sharers.shared.receive(vec![0; 8], 77, 0).unwrap_err();
    assert_eq!(refused.error, PostError::UnknownAddress { address: 77 });
    // Whoever it is directed at has gone.
    sharers.shared.receive(vec![0; 8], 1, 5).unwrap();
    let World { mut nodes } = world;
    drop(nodes.pop());
    let (_, done) = sharers.next(|| nodes.iter().for_each(|node| node.poll()));
    assert_eq!(done.bad(Errno::CONNRESET).context, 5);
}

pub fn messages_of_all_endpoints_fill_one_buffer<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 2, 1);
    sharers.shared.set_option(OptionName::MinMultiRecv, 64).unwrap();
    assert_eq!(sharers.shared.option(OptionName::MinMultiRecv).unwrap(), 64);
    let messages = [(0, 8), (1, 20_000), (1, 300), (0, 70_000), (1, 8)];
    let total: usize = messages.iter().map(|(_, length)| length).sum();
    for unexpected in [false, true] {
        let post = || {
            let buffer = vec![0; total + 63];
            sharers.shared.receive_multi(buffer, FI_ADDR_UNSPEC, 3).unwrap();
        };
        if !unexpected {
            post();
        }
        for (number, (member, length)) in messages.into_iter().enumerate() {
            world.nodes[0].send(pattern(number as u64, length), member, None, 4);
            for _ in 0..50 {
                world.poll(1);
                sharers.poll();
            }
        }
        if unexpected {
            post();
        }
        let (mut found, mut buffer) = (Vec::new(), None);
        while buffer.is_none() {
            let (at, done) = sharers.next(|| world.poll(1));
            assert_eq!((done.context, done.errno), (3, None), "{done:?}");
            if done.flags.contains(Flags::MULTI_RECV) {
                assert_eq!(done.flags, Flags::MULTI_RECV, "no message came with it");
                buffer = done.returned;
                // What the other endpoint has taken is in its queue by now.
                for (at, member) in sharers.members.iter().enumerate() {
                    let rest = std::iter::from_fn(|| member.taken());
                    found.extend(rest.map(|done| (at as u64, done.length as usize, done.buffer)));
                }
            } else {
                found.push((at as u64, done.length as usize, done.buffer));
            }
        }
        // Each is whole and none lies where another one does, in whatever order they came.
        let buffer = buffer.unwrap();
        for (number, (member, length)) in messages.into_iter().enumerate() {
            let is_it = |&&(at, long, _): &&(u64, usize, u64)| (at, long) == (member, length);
            let mut places = found.iter().filter(is_it);
            let start = places.next().expect("the release comes last").2 - buffer.as_ptr() as u64;
            let bytes = &buffer[start as usize..][..length];
            same(bytes, &pattern(number as u64, length), "content");
        }
        assert_eq!(found.len(), messages.len());
        for _ in messages {
            world.drive("a send completes", || {
                sharers.poll();
                world.waiting(0).0 > 0
            });
            world.sent(0).good();
        }
    }
    // Canceled, it comes back once.
    sharers.shared.receive_multi(vec![0; 1_000], FI_ADDR_UNSPEC, 6).unwrap();
    world.nodes[0].send(vec![1; 8], 1, None, 4);
    assert_eq!(sharers.next(|| world.poll(1)).1.context(), 6);
    sharers.shared.cancel(6).unwrap();
    let (_, done) = sharers.next(|| world.poll(1));
    assert_eq!(done.bad(Errno::CANCELED).returned.unwrap().len(), 1_000);
}

pub fn a_receive_is_canceled_once<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 2, 1);
    for context in [5, 6, 5] {
        sharers.shared.receive(vec![0; 8], FI_ADDR_UNSPEC, context).unwrap();
    }
    sharers.shared.cancel(5).unwrap();
    let (_, done) = sharers.next(|| ());
    assert_eq!((done.flags.contains(Flags::RECV), done.bad(Errno::CANCELED).context), (true, 5));
    let missing = sharers.shared.cancel(7).unwrap_err();
    assert_eq!(missing, PostError::NothingToCancel { context: 7 });
    for context in [6, 5] {
        world.nodes[0].send(vec![1; 8], 1, None, 0);
        assert_eq!(sharers.next(|| world.poll(1)).1.context(), context);
    }
}

pub fn what_is_not_shared_is_refused<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let (queue, vector) = (CompletionQueue::open(&domain, 0).unwrap(), open_vector());
    let both = Flags::TRANSMIT | Flags::RECV;
    let open = |options: EndpointOptions| {
        let endpoint = Endpoint::open(&domain, options).unwrap();
        endpoint.bind_completion_queue(&queue, both).unwrap();
        endpoint
    };
    let shared = SharedReceive::open(&domain, EndpointOptions::default()).unwrap();
    let plain = open(EndpointOptions::default());
    // It was not opened to use one.
    assert_eq!(plain.bind_shared_receive(&shared).unwrap_err().errno(), Errno::INVAL);
    let ours = open(sharing());
    ours.bind_address_vector(&vector).unwrap();
    let unbound = ours.enable().unwrap_err();
    assert_eq!(unbound, EndpointError::NoSharedContext { direction: "receive" });
    assert_eq!(unbound.errno(), Errno::OPBADSTATE);
    let elsewhere = bed.domain(DomainOptions::default());
    let theirs = SharedReceive::open(&elsewhere, EndpointOptions::default()).unwrap();
    assert_eq!(ours.bind_shared_receive(&theirs).unwrap_err().errno(), Errno::DOMAIN);
    // "Endpoints associated with a shared receive context must use a subset".
    let messages = EndpointOptions { capabilities: Flags::MSG | Flags::RECV, ..sharing() };
    let less = SharedReceive::open(&domain, messages).unwrap();
    assert_eq!(ours.bind_shared_receive(&less).unwrap_err().errno(), Errno::INVAL);
    let refused = less.receive_tagged(vec![7], FI_ADDR_UNSPEC, 0, 0, 0).unwrap_err();
    assert_eq!(refused.error, PostError::NotCapable { missing: Flags::TAGGED });
    assert_eq!(refused.buffer, [7]);
    ours.bind_shared_receive(&shared).unwrap();
    assert_eq!(ours.bind_shared_receive(&shared).unwrap_err().errno(), Errno::INVAL);
    ours.enable().unwrap();
    // Receives are posted there, and not here.
    let refused = ours.receive(vec![7], FI_ADDR_UNSPEC, 0).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (PostError::ReceivesAreShared, vec![7]));
    // Who shares receives shares the address vector.
    let other = open(sharing());
    other.bind_address_vector(&open_vector()).unwrap();
    other.bind_shared_receive(&shared).unwrap();
    assert_eq!(other.enable().unwrap_err(), EndpointError::OtherAddressVector);
    let two = Flags::TAGGED | Flags::PEEK | Flags::MULTI_RECV;
    for flags in [Flags::TAGGED | Flags::DISCARD, two, Flags::MSG | Flags::INJECT, Flags::empty()] {
        let post = ReceivePost {
            pieces: Pieces::Many(&[]),
            from: FI_ADDR_UNSPEC,
            tag: 0,
            ignore: 0,
            context: 0,
            flags,
            region: None,
            attachment: None,
        };
        assert_eq!(shared.post_receive(post), Err(PostError::BadFlags { flags }));
    }
}

pub fn a_context_is_closed_after_its_endpoints<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = senders(bed, 2, 1);
    let Sharers { shared, members, domain, vector } = sharers;
    shared.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    for member in &members {
        assert_eq!(shared.close().unwrap_err().errno(), Errno::BUSY);
        member.endpoint.close();
    }
    assert_eq!(domain.close().unwrap_err().errno(), Errno::BUSY);
    shared.close().unwrap();
    vector.close().unwrap();
    members.iter().for_each(|member| member.queue.close().unwrap());
    domain.close().unwrap();
    drop(world);
}

pub fn a_closed_endpoint_takes_nothing_along<P: Provider>(bed: &Bed<P>) {
    let (mut sharers, world) = senders(bed, 2, 1);
    // Messages wait at both; those of the closed one are gone.
    for (member, value) in [(1, 1), (0, 0)] {
        world.nodes[0].endpoint.inject(&[value; 8], member).unwrap();
        for _ in 0..50 {
            world.poll(1);
            sharers.poll();
        }
    }
    let closed = sharers.members.pop().unwrap();
    closed.endpoint.close();
    sharers.shared.receive(vec![9; 8], FI_ADDR_UNSPEC, 3).unwrap();
    let (at, done) = sharers.next(|| world.poll(1));
    assert_eq!((at, done.good().returned.unwrap()), (0, vec![0; 8]));
    // A receive that a message was arriving for comes back.
    let long = 8 << 20;
    let third = Endpoint::open(&sharers.domain, sharing()).unwrap();
    third.bind_address_vector(&sharers.vector).unwrap();
    third.bind_shared_receive(&sharers.shared).unwrap();
    let third = Context::enabled(third, Flags::TRANSMIT | Flags::RECV);
    let to = world.nodes[0].vector.insert_one(third.endpoint.address()).unwrap();
    sharers.shared.receive(vec![9; long], FI_ADDR_UNSPEC, 4).unwrap();
    world.nodes[0].send(vec![1; long], to, None, 5);
    let start = Instant::now();
    let mut found = None;
    // Until the receiver has begun: the sender then has an answer, or bytes are there.
    for _ in 0..5 {
        world.poll(1);
        found = found.or_else(|| third.taken());
    }
    third.endpoint.close();
    while found.is_none() && start.elapsed() < PATIENCE {
        world.poll(1);
        found = third.taken();
        if found.is_none() && sharers.shared.cancel(4).is_ok() {
            found = Some(sharers.next(|| world.poll(1)).1);
        }
    }
    let done = found.expect("the receive comes back");
    assert_eq!((done.context, done.returned.unwrap().len()), (4, long));
}

pub fn threads_post_and_poll_at_once<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    const MEMBERS: usize = 3;
    let messages = scaled(100, 500, 10_000);
    let (sharers, world) = senders(bed, MEMBERS, 1);
    let (received, all, start) = (AtomicUsize::new(0), MEMBERS * messages, Instant::now());
    let is_over = || {
        assert!(start.elapsed() < PATIENCE * 4, "{received:?} of {all} messages");
        received.load(Ordering::Relaxed) == all
    };
    let (shared, sender) = (&sharers.shared, &world.nodes[0]);
    std::thread::scope(|scope| {
        for (place, member) in sharers.members.iter().enumerate() {
            let (queue, received, is_over) = (member.queue.clone(), &received, &is_over);
            scope.spawn(move || {
                let mut seen = vec![false; messages];
                while !is_over() {
                    let mut entry = [Entry::default()];
                    if queue.read(&mut entry).is_ok() {
                        let [mut entry] = entry;
                        let number = entry.take_buffer().unwrap().try_into().unwrap();
                        let number = usize::from_le_bytes(number);
                        assert_eq!((entry.length, number % MEMBERS), (8, place));
                        // No order of completions was asked for.
                        assert!(!std::mem::replace(&mut seen[number / MEMBERS], true), "twice");
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for posted in 0..all.div_ceil(2) {
                    shared.receive(vec![0; 8], FI_ADDR_UNSPEC, posted as u64).unwrap();
                }
            });
        }
        let mut sent = 0;
        while !is_over() {
            let to = sent as u64 % MEMBERS as u64;
            if sent < all && sender.endpoint.inject(&sent.to_le_bytes(), to).is_ok() {
                sent += 1;
            }
            let _ = sender.sends.read(&mut [Entry::default()]);
        }
    });
}

pub fn endpoints_send_by_a_shared_context<P: Provider>(bed: &Bed<P>) {
    let peer = bed.stranger(&Options::default());
    let domain = bed.domain(DomainOptions::default());
    let shares = EndpointOptions { shares_transmit: true, ..EndpointOptions::default() };
    let shared = SharedTransmit::open(&domain, EndpointOptions::default()).unwrap();
    let (queue, vector) = (CompletionQueue::open(&domain, 0).unwrap(), open_vector());
    vector.insert_one(peer.endpoint.address()).unwrap();
    let open = |options: &EndpointOptions| {
        let endpoint = Endpoint::open(&domain, options.clone()).unwrap();
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint
    };
    let plain = open(&EndpointOptions::default());
    assert_eq!(plain.bind_shared_transmit(&shared).unwrap_err().errno(), Errno::INVAL);
    // "Endpoints associated with a shared transmit context must use a subset of the transmit
    // context's attributes."
    let usual = EndpointOptions::default();
    for more in [
        EndpointOptions { transmit_size: usual.transmit_size + 1, ..shares.clone() },
        EndpointOptions { inject_size: usual.inject_size + 1, ..shares.clone() },
        EndpointOptions {
            capabilities: usual.capabilities | Flags::NAMED_RX_CTX,
            ..shares.clone()
        },
    ] {
        let refused = open(&more).bind_shared_transmit(&shared).unwrap_err();
        assert_eq!(refused.errno(), Errno::INVAL);
    }
    let ends: Vec<_> = (0..2).map(|_| open(&shares)).collect();
    for (index, end) in ends.iter().enumerate() {
        let unbound = end.enable().unwrap_err();
        assert_eq!(unbound, EndpointError::NoSharedContext { direction: "transmit" });
        end.bind_shared_transmit(&shared).unwrap();
        assert_eq!(end.bind_shared_transmit(&shared).unwrap_err().errno(), Errno::INVAL);
        end.enable().unwrap();
        peer.receive(8, None, index as u64);
        end.send(vec![1; 8], 0, index as u64).unwrap();
        let start = Instant::now();
        let mut entry = [Entry::default()];
        while queue.read(&mut entry).is_err() {
            peer.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: a send");
        }
        assert_eq!(entry[0].context, index as u64);
    }
    for end in &ends {
        assert_eq!(shared.close().unwrap_err().errno(), Errno::BUSY);
        end.close();
    }
    shared.close().unwrap();
}
