//! Datagrams: messages that may be lost, to anybody. Reference: fi_endpoint(3), FI_EP_DGRAM.

use std::{thread, time::Duration};

use kestrel_core::{
    address_vector::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC},
    completion_queue::Entry,
    connection::ConnectionError,
    domain::{DomainOptions, ProgressMode, Sharing},
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    memory::Pieces,
    protocol::datagram::Dropped,
    transport::Provider,
    wire::ENVELOPE_COST,
};

use super::addresses::insert_nobody;
use crate::{
    bed::{Bed, Memory, Node, Options, Receive, Send, World, pattern, same},
    completion::Done,
    link,
    process::woken,
    reserved::beside,
    scale::{PATIENCE, leaves_in_time, unspoilt},
};

/// Endpoints that know each other and have heard of each other: nothing is held any more.
fn world<P: Provider>(bed: &Bed<P>, count: usize) -> World<P> {
    acquainted((0..count).map(|_| bed.stranger(&Options::datagrams())).collect())
}

fn acquainted<P: Provider>(nodes: Vec<Node<P>>) -> World<P> {
    let (count, world) = (nodes.len(), World { nodes });
    world.introduce();
    for to in 0..count {
        for from in (0..count).filter(|&from| from != to) {
            world.nodes[to].receive(8, None, 0);
            world.nodes[from].endpoint.inject(&[1], to as u64).unwrap();
            world.received(to).good();
        }
    }
    world
}

fn longest<P: Provider>(node: &Node<P>) -> usize {
    node.endpoint.message_max().unwrap()
}

fn dropped<P: Provider>(node: &Node<P>) -> Dropped {
    node.endpoint.dropped().unwrap()
}

/// For endpoints at addresses of their own: nobody of another type is there.
fn two_places<P: Provider>(bed: &Bed<P>) -> [Options; 2] {
    let near = bed.stranger(&Options::datagrams()).endpoint.address();
    [(); 2].map(|()| {
        let mut options = Options::datagrams();
        options.endpoint.address = Some(beside(near, 1));
        options
    })
}

/// Whole, with what the page says of them, expected and not.
pub fn messages_of_every_length_arrive_whole<P: Provider>(bed: &Bed<P>) {
    let world = world(bed, 2);
    let longest = longest(&world.nodes[0]);
    assert!((512..=8 << 10).contains(&longest), "{longest}");
    for length in [0, 1, 7, 8, 48, 49, 500, longest - 1, longest] {
        for expected in [true, false] {
            let bytes = pattern(length as u64, length);
            if expected {
                world.nodes[1].receive(longest, None, 5);
            }
            world.nodes[0].endpoint.send_data(bytes.clone(), 1, 77, 6).unwrap();
            assert_eq!(world.sent(0).context(), 6);
            if !expected {
                world.poll(20);
                world.nodes[1].receive(longest, None, 5);
            }
            let done = world.received(1).good();
            assert_eq!((done.context, done.length, done.data), (5, length as u64, 77));
            assert_eq!(done.source, 0);
            assert!(done.flags.contains(Flags::MSG | Flags::RECV | Flags::REMOTE_CQ_DATA));
            same(&done.returned.unwrap()[..length], &bytes, "a datagram");
        }
    }
    world.nothing_more();
    assert_eq!(dropped(&world.nodes[0]), Dropped::default());
}

/// A datagram is one packet, however many pieces it is gathered from.
pub fn vectors_are_one_datagram<P: Provider>(bed: &Bed<P>) {
    let (bytes, memory) = (pattern(3, 512), Memory::zeroed(512));
    let from = Memory::from(bytes.clone());
    let world = bed.world_with(2, &Options::datagrams());
    let (cut, into) = (from.cut(&[0, 1, 11, 300, 200]), memory.cut(&[500, 12]));
    // The first is held until its receiver is found, the second leaves at once.
    for context in [1, 2] {
        memory.scribble();
        let receive = Receive { pieces: Pieces::Many(&into), context, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        let send = Send { pieces: Pieces::Many(&cut), context, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        assert_eq!(world.sent(0).context(), context);
        assert_eq!(world.received(1).good().length, 512);
        same(&memory.bytes(), &bytes, "what was gathered and scattered");
    }
}

/// What was injected has left: it arrives though its sender closes at once, which had yet to find
/// whom it is for.
pub fn who_closes_at_once_is_heard<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| {
        let world = bed.world_with(2, &Options::datagrams());
        world.nodes[1].receive(8, None, 5);
        let endpoint = &world.nodes[0].endpoint;
        let is_heard = leaves_in_time(|| {
            endpoint.inject(&[3; 8], 1).unwrap();
            endpoint.close();
        });
        if is_heard {
            same(&world.received(1).good().returned.unwrap(), &[3; 8], "of who has gone");
        }
        is_heard
    });
}

/// "max_msg_size: Defines the maximum size for an application data transfer as a single
/// operation." What is longer is no datagram.
pub fn what_is_longer_is_refused<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(64 << 10);
    let world = world(bed, 2);
    let limit = longest(&world.nodes[0]);
    let refused = PostError::TooLong { length: limit + 1, limit };
    let error = world.nodes[0].endpoint.send(vec![0; limit + 1], 1, 1).unwrap_err();
    assert_eq!((error.error, error.buffer.len()), (refused, limit + 1));
    let cut = memory.cut(&[limit, 1]);
    let send = Send { pieces: Pieces::Many(&cut), ..Send::default() };
    assert_eq!(world.nodes[0].post_send(1, &send), Err(refused));
    world.nothing_more();
}

/// Receives all that is parked, and one more. How much it was.
fn receive_all<P: Provider>(world: &World<P>, node: usize, length: usize) -> u64 {
    for arrived in 0.. {
        world.nodes[node].receive(length, None, 0);
        world.poll(20);
        if world.waiting(node).1 == 0 {
            return arrived;
        }
        assert_eq!(world.received(node).good().length, length as u64);
    }
    unreachable!("there is an end of what has come")
}

/// Nobody waits for a receiver: what it does not take is dropped at either side, and counted.
pub fn a_silent_receiver_stops_nobody<P: Provider>(bed: &Bed<P>) {
    const COUNT: u64 = 2000;
    let world = world(bed, 2);
    for number in 0..COUNT {
        let bytes = pattern(number, 400);
        let sent = || world.nodes[0].endpoint.send(bytes.clone(), 1, number);
        while sent().is_err_and(|refused| refused.error == PostError::Again) {
            world.nodes[0].poll();
        }
    }
    link::drive("a sender waits for nobody", &[&world.nodes[0]], || {
        world.waiting(0).0 >= COUNT as usize
    });
    (0..COUNT).for_each(|_| drop(world.sent(0).good()));
    world.poll(2000);
    let lost = dropped(&world.nodes[0]).sent + dropped(&world.nodes[1]).received;
    assert!(lost > 0, "so many are not held");
    let arrived = receive_all(&world, 1, 400);
    // What a device drops for want of a buffer nobody hears of.
    assert!(arrived > 0 && arrived + lost <= COUNT, "{arrived} arrived, {lost} were dropped");
    world.nodes[0].endpoint.inject(&[9], 1).unwrap();
    world.received(1).good();
}

/// What one peer can have parked is bounded, and does not cost the others their place.
pub fn each_peer_has_a_place_of_its_own<P: Provider>(bed: &Bed<P>) {
    let world = world(bed, 3);
    for _ in 0..1000 {
        let _ = world.nodes[0].endpoint.inject(&[0; 500], 2);
        world.poll(1);
    }
    world.poll(50);
    assert!(dropped(&world.nodes[2]).received > 0);
    world.nodes[1].endpoint.inject(&[1; 500], 2).unwrap();
    world.poll(50);
    world.nodes[2].endpoint.receive(vec![0; 500], 1, 3).unwrap();
    let done = world.received(2).good();
    assert_eq!((done.context, done.source), (3, 1));
    same(&done.returned.unwrap(), &[1; 500], "the datagram of another peer");
}

/// What nobody receives is bounded for all senders together, and for each, also when they are gone.
pub fn who_is_gone_leaves_no_more_than_its_place<P: Provider>(bed: &Bed<P>) {
    let mut options = Options::datagrams();
    options.domain.unexpected_budget = 100_000;
    for (same, most) in [(false, options.domain.unexpected_budget), (true, 64 << 10)] {
        let world = bed.world_with(1, &options);
        options.endpoint.address = same.then(|| beside(world.nodes[0].endpoint.address(), 1));
        for visit in 1..=8 {
            let stranger = bed.stranger(&options);
            let to = stranger.vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
            for _ in 0..100 {
                let _ = stranger.endpoint.inject(&[0; 500], to);
                stranger.poll();
                world.poll(1);
            }
            // Late ones come first, into no room. Receiving makes room; one receive was left the last time.
            if visit % 4 == 0 {
                thread::sleep(Duration::from_millis(100));
                world.poll(500);
                let parked = receive_all(&world, 0, 500);
                assert!((50..=most / (500 + ENVELOPE_COST) + 1).contains(&parked), "{parked}");
            }
        }
    }
}

/// Sends to nobody complete, are counted, and keep nothing from anybody else.
pub fn nobody_there_is_no_error<P: Provider>(bed: &Bed<P>) {
    const COUNT: u64 = 200;
    let world = world(bed, 2);
    let nobody = insert_nobody(&world.nodes[0]);
    for context in 0..COUNT {
        world.nodes[0].endpoint.send(vec![1; 100], nobody, context).unwrap();
    }
    world.nodes[1].receive(8, None, 0);
    world.nodes[0].endpoint.inject(&[1; 8], 1).unwrap();
    world.received(1).good();
    let mut contexts: Vec<u64> = (0..COUNT).map(|_| world.sent(0).context()).collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..COUNT));
    assert_eq!(dropped(&world.nodes[0]).sent, COUNT);
}

/// A datagram that waits for its peer to be found can be taken back.
pub fn what_is_held_is_canceled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(1, &Options::datagrams());
    world.nodes[0].endpoint.send(vec![1; 8], insert_nobody(&world.nodes[0]), 1).unwrap();
    world.nodes[0].endpoint.cancel(1).unwrap();
    assert_eq!(world.sent(0).bad(Errno::CANCELED).context, 1);
    assert_eq!(dropped(&world.nodes[0]), Dropped::default());
}

/// "The capabilities … may be restricted": nothing that needs the receiver's word.
pub fn what_needs_an_answer_is_refused<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(8);
    let world = world(bed, 2);
    let endpoint = &world.nodes[0].endpoint;
    for level in [Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE, Flags::FENCE] {
        let send = Send { pieces: memory.all(), flags: level, ..Send::default() };
        let flags = Flags::MSG | Flags::COMPLETION | level;
        assert_eq!(world.nodes[0].post_send(1, &send), Err(PostError::BadFlags { flags }));
    }
    for level in [Flags::INJECT_COMPLETE, Flags::TRANSMIT_COMPLETE] {
        world.nodes[1].receive(8, None, 0);
        let send = Send { pieces: memory.all(), flags: level, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        world.sent(0).good();
        world.received(1).good();
    }
    let tagged = PostError::NotCapable { missing: Flags::TAGGED };
    assert_eq!(endpoint.inject_tagged(&[1], 1, 7), Err(tagged));
    assert_eq!(endpoint.receive_tagged(vec![0; 8], 1, 7, 0, 0).unwrap_err().error, tagged);
    let refused = endpoint.write(vec![0; 8], 1, 0, 0, 0).unwrap_err().error;
    assert!(matches!(refused, PostError::NotCapable { .. }), "{refused}");
    let connect = endpoint.connect(world.nodes[1].endpoint.address(), &[]);
    assert_eq!(connect, Err(ConnectionError::Connectionless));
    world.nothing_more();
}

/// Receives are directed, canceled, and take many messages, as with reliable endpoints.
pub fn receives_are_as_ever<P: Provider>(bed: &Bed<P>) {
    let world = world(bed, 3);
    let receiver = &world.nodes[2];
    receiver.endpoint.receive(vec![0; 8], 1, 1).unwrap();
    receiver.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 2).unwrap();
    for from in [0, 1] {
        world.nodes[from].endpoint.inject(&[from as u8; 8], 2).unwrap();
    }
    let mut done = [world.received(2).good(), world.received(2).good()];
    done.sort_by_key(|done| done.context);
    assert_eq!(done.map(|done| (done.context, done.source)), [(1, 1), (2, 0)]);
    receiver.receive(8, None, 3);
    receiver.endpoint.cancel(3).unwrap();
    assert_eq!(world.received(2).bad(Errno::CANCELED).context, 3);
    receiver.endpoint.receive_multi(vec![0; 200], FI_ADDR_UNSPEC, 4).unwrap();
    for number in 0..3 {
        world.nodes[0].endpoint.inject(&[number; 60], 2).unwrap();
        let done = world.received(2).good();
        assert_eq!((done.context, done.length), (4, 60));
        assert_eq!(done.flags.contains(Flags::MULTI_RECV), number == 2, "its release");
    }
    receiver.receive(4, None, 5);
    world.nodes[1].endpoint.inject(&[7; 9], 2).unwrap();
    let Done { overflow, length, .. } = world.received(2).bad(Errno::TRUNC);
    assert_eq!((length, overflow), (4, 5));
}

/// A source that is in no address vector is heard all the same.
pub fn buffered_ones_are_announced<P: Provider>(bed: &Bed<P>) {
    let endpoint = EndpointOptions { buffered: true, ..Options::datagrams().endpoint };
    let world = bed.world_with(2, &Options { endpoint, ..Options::datagrams() });
    for length in [0, 8, 500] {
        let bytes = pattern(length as u64, length);
        let announced = loop {
            world.nodes[0].endpoint.inject(&bytes, 1).unwrap();
            world.poll(20);
            if world.waiting(1).1 > 0 {
                break world.received_already(1).good();
            }
        };
        assert_eq!((announced.length, announced.flags), (length as u64, Flags::MSG | Flags::RECV));
        let check = |_: u64, found: &[u8]| same(found, &bytes, "announced");
        world.nodes[1].endpoint.look_at_announced(announced.context, check).unwrap();
        world.nodes[1].endpoint.discard(announced.context).unwrap();
        // What was sent before it could arrive may still come.
        world.poll(20);
        while world.waiting(1).1 > 0 {
            world.nodes[1].endpoint.discard(world.received_already(1).good().context).unwrap();
        }
    }
}

pub fn strangers_are_heard<P: Provider>(bed: &Bed<P>) {
    let (one, other) = (bed.stranger(&Options::datagrams()), bed.stranger(&Options::datagrams()));
    let known = one.vector.insert_one(other.endpoint.address()).unwrap();
    let world = World { nodes: vec![one, other] };
    world.nodes[1].receive(8, None, 1);
    world.nodes[0].endpoint.inject(&[1; 8], known).unwrap();
    assert_eq!(world.received(1).good().source, FI_ADDR_NOTAVAIL);
    let source = world.nodes[1].vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
    world.nodes[1].receive(8, None, 2);
    world.nodes[0].endpoint.inject(&[1; 8], known).unwrap();
    assert_eq!(world.received(1).good().source, source);
}

/// As anybody else.
pub fn an_endpoint_reaches_itself<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(1, &Options::datagrams());
    for context in 0..3 {
        world.nodes[0].receive(100, None, context);
        let bytes = pattern(context, 100);
        world.nodes[0].endpoint.send(bytes.clone(), 0, context).unwrap();
        assert_eq!(world.sent(0).context(), context);
        same(&world.received(0).good().returned.unwrap(), &bytes, "a datagram to itself");
    }
}

/// Its receives wait for whoever comes, and its sends find who is there later.
pub fn a_peer_that_goes_fails_nothing<P: Provider>(bed: &Bed<P>) {
    let places = two_places(bed);
    let mut world = acquainted(places.each_ref().map(|place| bed.stranger(place)).into());
    world.nodes[0].endpoint.receive(vec![0; 8], 1, 1).unwrap();
    drop(world.nodes.pop());
    for context in 0..10 {
        world.nodes[0].endpoint.send(vec![1; 8], 1, context).unwrap();
        world.poll(20);
    }
    (0..10).for_each(|_| drop(world.sent(0).good()));
    world.nothing_more();
    world.nodes.push(bed.stranger(&places[1]));
    world.nodes[1].vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
    world.nodes[1].receive(8, None, 2);
    // Those are lost that leave before the old one's end is noticed.
    let mut tries = 0..;
    world.drive("a datagram to the new one", || {
        if tries.next().is_some_and(|nth: u32| nth.is_multiple_of(1000)) {
            // No room is as good as lost.
            let _ = world.nodes[0].endpoint.inject(&[2; 8], 1);
        }
        world.waiting(1).1 > 0
    });
    assert_eq!(world.received(1).good().context, 2);
    world.nodes[1].endpoint.inject(&[3; 8], 0).unwrap();
    let done = world.received(0).good();
    assert_eq!((done.context, done.source), (1, 1));
}

/// "Only peer endpoints that are programmed to use the same authorization key may communicate."
pub fn other_keys_are_not_heard<P: Provider>(bed: &Bed<P>) {
    let with_key = |key: &[u8]| {
        let mut options = Options::datagrams();
        options.endpoint.auth_key = key.to_vec();
        bed.stranger(&options)
    };
    let nodes = vec![with_key(b"one"), with_key(b"other"), with_key(b"one")];
    let world = World { nodes };
    world.introduce();
    for to in [1, 2] {
        world.nodes[to].receive(8, None, to as u64);
        world.nodes[0].endpoint.send(vec![1; 8], to as u64, to as u64).unwrap();
    }
    assert_eq!(world.received(2).good().context, 2);
    world.sent(0).good();
    world.sent(0).good();
    world.nothing_more();
    assert_eq!(dropped(&world.nodes[0]).sent, 1);
}

/// An endpoint of another type is nobody to datagrams, and they are nobody to it.
pub fn reliable_endpoints_are_not_reached<P: Provider>(bed: &Bed<P>) {
    let mut places = two_places(bed);
    places[1].endpoint.datagrams = false;
    let world = World { nodes: places.each_ref().map(|place| bed.stranger(place)).into() };
    world.introduce();
    world.nodes[0].receive(8, None, 9);
    world.nodes[1].receive(8, None, 9);
    world.nodes[0].endpoint.send(vec![1; 8], 1, 1).unwrap();
    world.sent(0).good();
    assert_eq!(dropped(&world.nodes[0]).sent, 1);
    world.nodes[1].endpoint.send(vec![1; 8], 0, 2).unwrap();
    let refused = world.sent(1);
    assert_eq!((refused.context, refused.errno.is_some()), (2, true), "{refused:?}");
    world.nothing_more();
}

/// A datagram wakes a reader that sleeps, also the first one of a peer.
pub fn a_datagram_wakes_a_sleeper<P: Provider>(bed: &Bed<P>) {
    let progress = ProgressMode::Automatic;
    let domain = DomainOptions { progress, ..DomainOptions::default() };
    let options = Options { domain, ..Options::datagrams() };
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let world = bed.world_with(2, &options);
    for number in 0..3 {
        world.nodes[1].receive(8, None, number);
        let sent = world.nodes[0].endpoint.clone();
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            sent.inject(&[1; 8], 1).unwrap();
        });
        let mut entries = [Entry::default()];
        let receives = &world.nodes[1].receives;
        let read = woken(|| receives.read_blocking(&mut entries, Some(PATIENCE)));
        assert_eq!(read, Ok(1));
        assert_eq!(entries[0].context, number);
        sender.join().unwrap();
    }
}

/// Threads that collide leave datagrams for the owner, who does with them as with others.
pub fn threads_may_send_at_once<P: Provider>(bed: &Bed<P>) {
    const EACH: u64 = 300;
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let world = world(bed, 2);
    let limit = longest(&world.nodes[0]);
    thread::scope(|scope| {
        for thread in 0..3 {
            let endpoint: &Endpoint<P> = &world.nodes[0].endpoint;
            scope.spawn(move || {
                for number in 0..EACH {
                    let context = thread * EACH + number;
                    while let Err(refused) = endpoint.send(vec![1; 64], 1, context) {
                        assert_eq!(refused.error, PostError::Again);
                        thread::yield_now();
                    }
                    let long = endpoint.send(vec![1; limit + 1], 1, context).unwrap_err().error;
                    assert!(matches!(long, PostError::TooLong { .. }), "{long}");
                }
            });
        }
        world.drive("all sends complete", || world.waiting(0).0 == 3 * EACH as usize);
    });
    let mut contexts: Vec<u64> = (0..3 * EACH).map(|_| world.sent(0).context()).collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..3 * EACH));
}

/// "For unreliable communication, completion ordering applies to all data transfer requests
/// submitted to an endpoint."
pub fn completions_keep_one_order<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let mut options = Options::datagrams();
        options.endpoint.transmits_in_order = in_order;
        let world = bed.world_with(2, &options);
        world.nodes[1].receive(8, None, 0);
        world.nodes[0].send(vec![0; 8], 1, None, 0);
        assert_eq!((world.sent(0).context(), world.received(1).context()), (0, 0));
        let nobody = insert_nobody(&world.nodes[0]);
        // The first is held until nobody is found.
        world.nodes[1].receive(8, None, 2);
        world.nodes[0].send(vec![0; 8], nobody, None, 1);
        world.nodes[0].send(vec![0; 8], 1, None, 2);
        assert_eq!(world.received(1).context(), 2);
        let order = if in_order { [1, 2] } else { [2, 1] };
        assert_eq!([0; 2].map(|_| world.sent(0).context()), order);
        world.nothing_more();
    }
}
