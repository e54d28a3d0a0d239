//! Multicast groups. Reference: fi_cm(3), `fi_join`; fi_endpoint(3), FI_MULTICAST.

use std::{net::IpAddr, sync::Arc};

use kestrel_core::{
    address::Address,
    address_vector::FI_ADDR_NOTAVAIL,
    endpoint::{Group, GroupError, PostError},
    event_queue::{Event, EventQueue, EventRead},
    flags::Flags,
    memory::Pieces,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Node, Options, Send, World, pattern, same},
    link::events,
    reserved::own_group,
    scale::{leaves_in_time, unspoilt},
};

/// Context of every join.
const CONTEXT: u64 = 99;

fn options(queue: Option<&Arc<EventQueue>>) -> Options {
    Options { events: queue.cloned(), ..Options::datagrams() }
}

fn world<P: Provider>(bed: &Bed<P>, count: usize) -> (World<P>, Arc<EventQueue>) {
    let queue = events();
    (bed.world_with(count, &options(Some(&queue))), queue)
}

fn join<P: Provider>(node: &Node<P>, group: Address, flags: Flags) -> Group<P> {
    let joined = node.endpoint.join(group, flags).unwrap();
    joined.announce(5, CONTEXT);
    joined
}

fn send<P: Provider>(world: &World<P>, from: usize, to: &Group<P>, bytes: &[u8], context: u64) {
    let memory = Memory::from(bytes.to_vec());
    let flags = Flags::MULTICAST | Flags::INJECT;
    let send = Send { pieces: memory.all(), context, flags, ..Send::default() };
    world.post(|| world.nodes[from].post_send(to.address(), &send));
    assert_eq!(world.sent(from).context(), context);
}

/// "A lower bound on the number of transmit operations that may be posted … without that operation
/// returning -FI_EAGAIN" (fi_endpoint(3), `fi_tx_size_left`), to groups as well.
pub fn what_is_left_may_be_sent_to_a_group<P: Provider>(bed: &Bed<P>) {
    let (world, _queue) = world(bed, 2);
    let [from, to] = &world.nodes[..] else { unreachable!("there are two") };
    let group = own_group();
    let (ours, _theirs) = (join(from, group, Flags::empty()), join(to, group, Flags::empty()));
    let memory = Memory::from(pattern(1, 500));
    let send = Send { pieces: memory.all(), flags: Flags::MULTICAST, ..Send::default() };
    let mut sent = 0;
    // More than any queue of a device's has places.
    while sent < 5_000 {
        for _ in 0..from.endpoint.sends_left().unwrap() {
            from.post_send(ours.address(), &send).unwrap();
            sent += 1;
        }
        world.poll(1);
    }
}

/// All who have joined hear it, once, from its sender; who has not does not, nor does the sender.
pub fn a_group_hears_what_is_sent_to_it<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let (world, _queue) = world(bed, 4);
    let groups: Vec<_> =
        (0..3).map(|node| join(&world.nodes[node], group, Flags::empty())).collect();
    for round in 0..3 {
        (0..4).for_each(|node| world.nodes[node].receive(100, None, round));
        for (from, group) in groups.iter().enumerate() {
            let bytes = pattern(round * 3 + from as u64, 100);
            send(&world, from, group, &bytes, round);
            for to in (0..3).filter(|&to| to != from) {
                let done = world.received(to).good();
                assert_eq!((done.source, done.length), (from as u64, 100));
                same(&done.returned.unwrap(), &bytes, "a message to a group");
                world.nodes[to].receive(100, None, round);
            }
        }
    }
    world.nothing_more();
}

/// An application that has IPv6 addresses writes a group of IPv4 as one.
pub fn a_group_is_one_however_it_is_written<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let IpAddr::V4(ip) = group.ip() else { panic!("{group} is not of IPv4") };
    let mapped = Address::new(ip.to_ipv6_mapped().into(), 0);
    let (world, _queue) = world(bed, 2);
    let ours = join(&world.nodes[0], mapped, Flags::empty());
    let theirs = join(&world.nodes[1], group, Flags::empty());
    let again = world.nodes[0].endpoint.join(group, Flags::empty()).err();
    assert_eq!(again, Some(GroupError::Joined { group }));
    for (from, to, group) in [(0, 1, &ours), (1, 0, &theirs)] {
        world.nodes[to].receive(8, None, 1);
        send(&world, from, group, &[1; 8], 7);
        assert_eq!(world.received(to).good().source, from as u64);
    }
    world.nothing_more();
}

/// "The fi_join flags may be used to restrict access to the multicast group."
pub fn a_member_may_only_send_or_only_receive<P: Provider>(bed: &Bed<P>) {
    let (group, other) = (own_group(), own_group());
    let (world, _queue) = world(bed, 2);
    let speaks = join(&world.nodes[0], group, Flags::SEND);
    let hears = join(&world.nodes[1], group, Flags::RECV);
    (0..2).for_each(|node| world.nodes[node].receive(8, None, 1));
    send(&world, 0, &speaks, &[1; 8], 7);
    assert_eq!(world.received(1).good().source, 0);
    let word = Send { flags: Flags::MULTICAST, ..Send::default() };
    let refused = world.nodes[1].post_send(hears.address(), &word);
    assert_eq!(refused, Err(PostError::UnknownAddress { address: hears.address() }));
    // Whoever also hears is not heard by who only speaks.
    let both = join(&world.nodes[1], other, Flags::empty());
    let _speaks_too = join(&world.nodes[0], other, Flags::SEND);
    send(&world, 1, &both, &[2; 8], 8);
    world.nothing_more();
}

/// "By default, the endpoint will join the group based on the data transfer capabilities of the
/// endpoint", and what it has not it cannot join with: "the endpoint must be configured for transmit operations to use
/// this flag, or an error will occur".
pub fn an_endpoint_joins_as_far_as_it_goes<P: Provider>(bed: &Bed<P>) {
    let (group, queue) = (own_group(), events());
    let with = |directions: Flags| {
        let mut options = options(Some(&queue));
        options.endpoint.capabilities.remove(Flags::SEND | Flags::RECV);
        options.endpoint.capabilities |= directions;
        bed.stranger(&options)
    };
    // Who is asked for neither has both.
    let nodes = [Flags::SEND, Flags::RECV, Flags::empty()].map(with);
    let world = World { nodes: nodes.into() };
    world.introduce();
    for (node, flags) in [(0, Flags::RECV), (1, Flags::SEND), (0, Flags::SEND | Flags::RECV)] {
        let refused = world.nodes[node].endpoint.join(group, flags).err();
        assert_eq!(refused, Some(GroupError::BadFlags { flags }));
    }
    let groups = [0, 1, 2].map(|node| join(&world.nodes[node], group, Flags::empty()));
    for from in [0, 2] {
        let hears: Vec<_> = [1, 2].into_iter().filter(|&to| to != from).collect();
        hears.iter().for_each(|&to| world.nodes[to].receive(8, None, 1));
        send(&world, from, &groups[from], &[1; 8], 7);
        for to in hears {
            assert_eq!(world.received(to).good().source, from as u64);
        }
    }
    world.nothing_more();
}

/// "The result of the join operation will be reported to the EQ as an FI_JOIN_COMPLETE event."
pub fn joining_is_reported_or_refused<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let (world, queue) = world(bed, 1);
    let endpoint = &world.nodes[0].endpoint;
    let refused = |flags, group| endpoint.join(group, flags).err().unwrap();
    let one = Address::new([127, 0, 0, 1].into(), 0);
    assert_eq!(refused(Flags::empty(), one), GroupError::NoGroup { group: one });
    let flags = Flags::SEND | Flags::READ;
    assert_eq!(refused(flags, group), GroupError::BadFlags { flags });
    assert!(queue.is_empty());
    let _joined = join(&world.nodes[0], group, Flags::empty());
    let complete = Event::JoinComplete { fid: 5, context: CONTEXT, data: 0 };
    assert_eq!(queue.read(), EventRead::Event(complete));
    assert_eq!(refused(Flags::empty(), group), GroupError::Joined { group });
    assert!(queue.is_empty());
    let without = bed.stranger(&options(None));
    let refused = without.endpoint.join(group, Flags::empty()).err().unwrap();
    assert_eq!(refused, GroupError::NoEventQueue);
    // Nothing says which key of its vector a message proves.
    let keys = vec![b"key".to_vec()];
    let keyed = bed.stranger(&Options { keys, ..options(Some(&queue)) });
    let refused = keyed.endpoint.join(group, Flags::empty()).err().unwrap();
    assert_eq!(refused, GroupError::NotForThisType);
    let reliable = bed.stranger(&Options::default());
    let refused = reliable.endpoint.join(group, Flags::empty()).err().unwrap();
    assert_eq!(refused, GroupError::NotForThisType);
    let word = Send { flags: Flags::MULTICAST, ..Send::default() };
    let missing = Flags::MULTICAST;
    assert_eq!(reliable.post_send(0, &word), Err(PostError::NotCapable { missing }));
}

/// Who has left hears nothing and may not send, and may join again.
pub fn who_leaves_hears_no_more<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let (world, _queue) = world(bed, 2);
    let stays = join(&world.nodes[0], group, Flags::empty());
    for round in 0..3 {
        let leaves = join(&world.nodes[1], group, Flags::empty());
        world.nodes[1].receive(8, None, round);
        send(&world, 0, &stays, &[1; 8], round);
        assert_eq!(world.received(1).context(), round);
        let number = leaves.address();
        drop(leaves);
        world.nodes[1].receive(8, None, 50);
        send(&world, 0, &stays, &[1; 8], round);
        world.nothing_more();
        world.nodes[1].endpoint.cancel(50).unwrap();
        let _canceled = world.received(1);
        let word = Send { flags: Flags::MULTICAST, ..Send::default() };
        let refused = world.nodes[1].post_send(number, &word);
        assert_eq!(refused, Err(PostError::UnknownAddress { address: number }));
    }
}

/// Messages of every length, in pieces, and none that is too long.
pub fn groups_take_what_peers_take<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let memory = Memory::zeroed(9 << 10);
    let (world, _queue) = world(bed, 2);
    let speaks = join(&world.nodes[0], group, Flags::SEND);
    let _hears = join(&world.nodes[1], group, Flags::RECV);
    let longest = world.nodes[0].endpoint.message_max().unwrap();
    for length in [0, 1, 8, 200, 300, longest] {
        let bytes = pattern(length as u64, length);
        let from = Memory::from(bytes.clone());
        let cut = from.cut(&[length / 3, length - length / 3]);
        world.nodes[1].receive(longest, None, 3);
        let (flags, data) = (Flags::MULTICAST, Some(77));
        let send = Send { pieces: Pieces::Many(&cut), data, flags, ..Send::default() };
        world.post(|| world.nodes[0].post_send(speaks.address(), &send));
        world.sent(0).good();
        let done = world.received(1).good();
        assert_eq!((done.length, done.data, done.source), (length as u64, 77, 0));
        same(&done.returned.unwrap()[..length], &bytes, "a message to a group");
    }
    let pieces = Pieces::One(memory.piece().part(0, longest + 1));
    let long = Send { pieces, flags: Flags::MULTICAST, ..Send::default() };
    let refused = PostError::TooLong { length: longest + 1, limit: longest };
    assert_eq!(world.nodes[0].post_send(speaks.address(), &long), Err(refused));
}

/// Who was never heard of is heard; who also sends directly is the same peer.
pub fn senders_are_told_apart<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let queue = events();
    let nodes = (0..2).map(|_| bed.stranger(&options(Some(&queue)))).collect();
    let world = World { nodes };
    let speaks = join(&world.nodes[0], group, Flags::SEND);
    let _hears = join(&world.nodes[1], group, Flags::RECV);
    let hears = |source: u64| {
        world.nodes[1].receive(8, None, 1);
        send(&world, 0, &speaks, &[1; 8], 2);
        assert_eq!(world.received(1).good().source, source);
    };
    hears(FI_ADDR_NOTAVAIL);
    let known = world.nodes[1].vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
    hears(known);
    let to = world.nodes[0].vector.insert_one(world.nodes[1].endpoint.address()).unwrap();
    for _ in 0..3 {
        world.nodes[1].receive(8, None, 1);
        world.nodes[0].endpoint.inject(&[1; 8], to).unwrap();
        assert_eq!(world.received(1).good().source, known);
        hears(known);
    }
    world.nothing_more();
}

/// Those with another key are not heard.
pub fn other_keys_are_other_groups<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let queue = events();
    let with_key = |key: &[u8]| {
        let mut options = options(Some(&queue));
        options.endpoint.auth_key = key.to_vec();
        bed.stranger(&options)
    };
    let world = World { nodes: vec![with_key(b"one"), with_key(b"other"), with_key(b"one")] };
    let groups: Vec<_> = world.nodes.iter().map(|node| join(node, group, Flags::empty())).collect();
    (0..3).for_each(|node| world.nodes[node].receive(8, None, node as u64));
    send(&world, 0, &groups[0], &[1; 8], 7);
    assert_eq!(world.received(2).context(), 2);
    world.nothing_more();
}

/// "When set, data transfers will target multicast addresses by default" (fi_endpoint(3)): those of
/// calls without flags as well.
pub fn calls_without_flags_may_mean_groups<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let queue = events();
    let mut options = options(Some(&queue));
    options.endpoint.transmit_flags = Flags::MULTICAST;
    let world = bed.world_with(3, &options);
    let speaks = join(&world.nodes[2], group, Flags::SEND);
    let _hears = join(&world.nodes[1], group, Flags::RECV);
    // The number is also that of an address in the vector.
    assert_eq!(speaks.address(), 0);
    for data in [None, Some(7)] {
        (0..2).for_each(|node| world.nodes[node].receive(8, None, 1));
        world.post(|| match data {
            None => world.nodes[2].endpoint.inject(&[1; 8], speaks.address()),
            Some(data) => world.nodes[2].endpoint.inject_data(&[1; 8], speaks.address(), data),
        });
        let done = world.received(1).good();
        assert_eq!((done.source, done.data), (2, data.unwrap_or(0)));
        world.nodes[0].endpoint.cancel(1).unwrap();
        world.received(0);
    }
    world.nothing_more();
}

/// Whoever has joined hears what is sent from then on, and nothing of before.
pub fn who_joins_later_hears_what_follows<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let (world, _queue) = world(bed, 4);
    let speaks = join(&world.nodes[0], group, Flags::SEND);
    (1..4).for_each(|node| world.nodes[node].receive(8, None, 100));
    // Nobody is there, which is no error.
    send(&world, 0, &speaks, &[0; 8], 1);
    let mut joined = Vec::new();
    for round in 1..4 {
        joined.push(join(&world.nodes[round], group, Flags::RECV));
        send(&world, 0, &speaks, &[round as u8; 8], 1);
        for node in 1..=round {
            let done = world.received(node).good();
            same(&done.returned.unwrap(), &[round as u8; 8], "a message to who has joined");
            world.nodes[node].receive(8, None, 100);
        }
    }
    world.nothing_more();
}

/// A send to many is one operation: the buffer is its sender's again at its one completion,
/// whoever has yet to be connected.
pub fn a_send_to_many_is_one_operation<P: Provider>(bed: &Bed<P>) {
    let group = own_group();
    let (world, _queue) = world(bed, 4);
    let groups: Vec<_> =
        (0..4).map(|node| join(&world.nodes[node], group, Flags::empty())).collect();
    let bytes = pattern(1, 400);
    for context in 0..3 {
        let memory = Memory::from(bytes.clone());
        (1..4).for_each(|node| world.nodes[node].receive(400, None, 7));
        let (pieces, flags) = (memory.all(), Flags::MULTICAST);
        let send = Send { pieces, context, flags, data: Some(context), ..Send::default() };
        world.post(|| world.nodes[0].post_send(groups[0].address(), &send));
        assert_eq!(world.sent(0).context(), context);
        memory.scribble();
        for node in 1..4 {
            let done = world.received(node).good();
            assert_eq!((done.data, done.source), (context, 0));
            same(&done.returned.unwrap(), &bytes, "a message to many");
        }
    }
    world.nothing_more();
}

/// What is complete has left: it arrives though its sender closes at once, which had yet to find who
/// is there.
pub fn who_closes_at_once_is_heard<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| {
        let group = own_group();
        let (world, _queue) = world(bed, 4);
        let _heard: Vec<_> =
            (1..4).map(|node| join(&world.nodes[node], group, Flags::RECV)).collect();
        (1..4).for_each(|node| world.nodes[node].receive(8, None, 7));
        let speaks = join(&world.nodes[0], group, Flags::SEND);
        let is_heard = leaves_in_time(|| {
            send(&world, 0, &speaks, &[3; 8], 1);
            drop(speaks);
            world.nodes[0].endpoint.close();
        });
        for node in (1..4).filter(|_| is_heard) {
            let done = world.received(node).good();
            same(&done.returned.unwrap(), &[3; 8], "the last word of who has gone");
        }
        is_heard
    });
}
