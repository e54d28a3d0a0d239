//! Multicast groups. Reference: fi_cm(3), `fi_join`; fi_endpoint(3), FI_MULTICAST.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use crate::{
    abi::{
        fid::{FidEp, FidEq, FidMc},
        info::Info,
        message::Msg,
    },
    code,
    contexts::completion,
    datagrams::{asks_for_datagrams, datagrams},
    flag,
    host::{Host, host},
    sockets::{iovec, message},
    vectors::{next_event, open_eq},
    world::{Node, PATIENCE, World, auth_key, bind, close, cq_attr},
};

/// FI_ADDR_UNSPEC and FI_ADDR_NOTAVAIL.
const ANY: u64 = u64::MAX;
const MULTICAST: u64 = 1 << 5;

pub fn asks_for_groups(hints: &mut Info) {
    asks_for_datagrams(hints);
    hints.caps = flag::MSG | MULTICAST;
}

/// 239.x.y.`number` of AF_INET: a group of this process.
fn group(number: u8) -> [u8; 16] {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let mut group = [0_u8; 16];
    group[0] = 2;
    group[4..8].copy_from_slice(&[239, high, low, number]);
    group
}

/// Adds endpoints that are bound to one event queue, which closes after them.
fn add_members(world: &mut World, count: usize) -> *mut FidEq {
    let eq = open_eq(world);
    world.queue = eq;
    for _ in 0..count {
        let ep = world.open_ep();
        assert_eq!(bind(ep, eq, 0), 0);
        world.add(ep, &mut cq_attr(), 0);
    }
    eq
}

fn join(ep: *mut FidEp, group: &[u8; 16], flags: u64) -> Result<*mut FidMc, c_int> {
    let (mut mc, context) = (null_mut(), 0x77 as *mut c_void);
    // SAFETY: the endpoint is open; the group is an address of its format.
    match unsafe { ((*(*ep).cm).join)(ep, group.as_ptr().cast(), flags, &raw mut mc, context) } {
        0 => Ok(mc),
        status => {
            assert!(mc.is_null());
            Err(status)
        }
    }
}

/// The next event, which has to say that `mc` is joined.
fn is_joined(eq: *mut FidEq, mc: *mut FidMc) {
    const JOIN_COMPLETE: u32 = 6;
    let (event, entry) = next_event(eq).unwrap();
    assert_eq!((event, entry.fid), (JOIN_COMPLETE, mc.cast()));
    assert_eq!(entry.context as usize, 0x77);
}

/// A world with so many members, of which the hints say more.
fn members(host: &'static Host, count: usize, change: impl FnOnce(&mut Info)) -> World {
    let mut world = World::empty(host, |hints| {
        asks_for_groups(hints);
        change(hints);
    });
    add_members(&mut world, count);
    world
}

/// One of them sends to a group, and sees it leave.
fn say(nodes: &[Node], from: usize, to: *mut FidMc, mut word: [u8; 8]) {
    let (node, iov) = (nodes[from], [iovec(&mut word)]);
    // SAFETY: the group is joined; the word stays until its completion has come.
    let sent = unsafe {
        let msg = Msg { addr: (*to).fi_addr, ..message(&iov) };
        ((*(*node.ep).msg).sendmsg)(node.ep, &raw const msg, MULTICAST)
    };
    let done = node.outcome(nodes).map(|entry| entry.flags);
    assert_eq!((sent, done.ok()), (0, Some(flag::MSG | flag::SEND)));
}

fn leave(groups: impl IntoIterator<Item = *mut FidMc>) {
    groups.into_iter().for_each(|mc| assert_eq!(close(mc), 0));
}

/// fi_cm(3), `fi_join`, and `fi_mc_addr` with FI_MULTICAST.
#[test]
fn a_group_is_joined_sent_to_and_left() {
    let Some(host) = host("a_group_is_joined_sent_to_and_left") else { return };
    let mut world = World::empty(host, asks_for_groups);
    // SAFETY: libfabric's info, with all attributes.
    unsafe {
        assert_eq!((*world.info).caps & MULTICAST, MULTICAST);
        assert_eq!((*(*world.info).tx_attr).caps & MULTICAST, MULTICAST);
    }
    let eq = add_members(&mut world, 3);
    let joined: Vec<_> =
        (0..3).map(|node| join(world.nodes[node].ep, &group(1), 0).unwrap()).collect();
    joined.iter().for_each(|&mc| is_joined(eq, mc));
    let words = [[1_u8; 8], [2_u8; 8], [3_u8; 8]];
    let mut received = [[0_u8; 8]; 3];
    for (from, word) in words.iter().enumerate() {
        let others: Vec<_> = (0..3).filter(|&to| to != from).collect();
        for &to in &others {
            assert_eq!(world.nodes[to].receive(&mut received[to], ANY, 0), 0);
        }
        say(&world.nodes, from, joined[from], *word);
        for to in others {
            assert_eq!(world.completion(world.nodes[to]).len, 8);
            assert_eq!(received[to], *word);
        }
    }
    // Who has joined keeps its endpoint open, and leaves by closing the group.
    assert_eq!(close(world.nodes[0].ep), code::BUSY);
    leave(joined);
    let again = join(world.nodes[0].ep, &group(1), flag::SEND).unwrap();
    is_joined(eq, again);
    assert_eq!(close(again), 0);
    // Nothing is told of one that is closed.
    leave([join(world.nodes[0].ep, &group(1), flag::SEND).unwrap()]);
    assert_eq!(next_event(eq).err(), Some(code::AGAIN));
}

/// "The endpoint must be configured for transmit operations to use this flag, or an error will
/// occur", and for receive operations likewise; without a flag it joins as far as it can.
#[test]
fn a_group_is_joined_as_far_as_an_endpoint_goes() {
    let Some(host) = host("a_group_is_joined_as_far_as_an_endpoint_goes") else { return };
    for (direction, other) in [(flag::SEND, flag::RECV), (flag::RECV, flag::SEND)] {
        let mut world = World::empty(host, |hints| {
            asks_for_groups(hints);
            hints.caps |= direction;
        });
        let eq = add_members(&mut world, 1);
        let ep = world.nodes[0].ep;
        for flags in [other, direction | other] {
            assert_eq!(join(ep, &group(3), flags), Err(code::BADFLAGS));
        }
        for flags in [0, direction] {
            let mc = join(ep, &group(3), flags).unwrap();
            is_joined(eq, mc);
            assert_eq!(close(mc), 0);
        }
    }
}

#[test]
fn what_is_no_group_is_not_joined() {
    let Some(host) = host("what_is_no_group_is_not_joined") else { return };
    let mut world = World::empty(host, asks_for_groups);
    add_members(&mut world, 1);
    let ep = world.nodes[0].ep;
    let mut one = group(2);
    one[4..8].copy_from_slice(&[127, 0, 0, 1]);
    assert_eq!(join(ep, &one, 0), Err(code::INVAL));
    assert_eq!(join(ep, &group(2), 1 << 50), Err(code::BADFLAGS));
    // SAFETY: the endpoint is open; null is what is tried.
    unsafe {
        let (join, mut mc, group) = ((*(*ep).cm).join, null_mut(), group(2));
        let place = group.as_ptr().cast();
        assert_eq!(join(ep, place, 0, null_mut(), null_mut()), code::INVAL);
        assert_eq!(join(ep, null(), 0, &raw mut mc, null_mut()), code::INVAL);
    }
    let mc = join(ep, &group(2), 0).unwrap();
    assert_eq!(join(ep, &group(2), 0), Err(code::INVAL), "a second time");
    // An event queue is needed, and the capability, which has to be asked for where hints say any.
    let without = datagrams(host, 1);
    assert_eq!(join(without.nodes[0].ep, &group(2), 0), Err(code::NOEQ));
    let mut without = World::empty(host, |hints| {
        asks_for_datagrams(hints);
        hints.caps = flag::MSG;
    });
    add_members(&mut without, 1);
    assert_eq!(join(without.nodes[0].ep, &group(2), 0), Err(code::OPNOTSUPP));
    assert_eq!(close(mc), 0);
}

/// "An endpoint may begin receiving messages from the multicast group as soon as the join completes":
/// and nothing of before.
#[test]
fn who_joins_later_hears_what_follows() {
    let Some(host) = host("who_joins_later_hears_what_follows") else { return };
    let world = members(host, 4, |_| {});
    let (nodes, mut rooms) = (&world.nodes, [[0_u8; 8]; 4]);
    let mut joined = vec![join(nodes[0].ep, &group(4), flag::SEND).unwrap()];
    for (node, room) in nodes.iter().zip(&mut rooms) {
        assert_eq!(node.receive(room, ANY, 0), 0);
    }
    // Nobody is there, which is no error.
    say(nodes, 0, joined[0], [9; 8]);
    for round in 1..4 {
        joined.push(join(nodes[round].ep, &group(4), flag::RECV).unwrap());
        let word = [round as u8; 8];
        say(nodes, 0, joined[0], word);
        for hearer in 1..=round {
            assert_eq!((world.completion(nodes[hearer]).len, rooms[hearer]), (8, word));
            assert_eq!(nodes[hearer].receive(&mut rooms[hearer], ANY, 0), 0);
        }
    }
    leave(joined);
}

/// What is complete has left, although its sender had yet to find who is there.
#[test]
fn who_closes_at_once_is_heard() {
    let Some(host) = host("who_closes_at_once_is_heard") else { return };
    let mut world = members(host, 4, |_| {});
    let mut rooms = [[0_u8; 8]; 3];
    let mut hear = Vec::new();
    for (node, room) in world.nodes[1..].iter().zip(&mut rooms) {
        hear.push(join(node.ep, &group(5), flag::RECV).unwrap());
        assert_eq!(node.receive(room, ANY, 0), 0);
    }
    let speaks = join(world.nodes[0].ep, &group(5), flag::SEND).unwrap();
    say(&world.nodes[..1], 0, speaks, [3; 8]);
    let from = world.nodes.remove(0);
    assert_eq!((close(speaks), close(from.ep)), (0, 0));
    for &node in &world.nodes {
        assert_eq!(world.completion(node).len, 8);
    }
    assert_eq!((rooms, close(from.cq)), ([[3; 8]; 3], 0));
    leave(hear);
}

/// Who was never heard of is heard; and who sends to one alone as well is the same peer.
#[test]
fn senders_are_told_apart() {
    let Some(host) = host("senders_are_told_apart") else { return };
    let worlds = [(); 2].map(|()| members(host, 1, |hints| hints.caps |= flag::SOURCE));
    let nodes = worlds.each_ref().map(|world| world.nodes[0]);
    let speaks = join(nodes[0].ep, &group(6), flag::SEND).unwrap();
    let hears = join(nodes[1].ep, &group(6), flag::RECV).unwrap();
    let mut room = [0_u8; 8];
    let mut is_heard = |source: u64, alone: Option<u64>| {
        assert_eq!(nodes[1].receive(&mut room, ANY, 0), 0);
        let word = [4; 8];
        match alone {
            None => say(&nodes, 0, speaks, word),
            Some(to) => {
                assert_eq!(nodes[0].send(&word, to, 0), 0);
                assert!(nodes[0].outcome(&nodes).is_ok());
            }
        }
        assert_eq!(completion(nodes[1], &nodes).1, source);
        assert_eq!(std::mem::take(&mut room), word);
    };
    is_heard(ANY, None);
    let known = worlds[1].insert(nodes[0].ep);
    is_heard(known, None);
    let to = worlds[0].insert(nodes[1].ep);
    for _ in 0..3 {
        is_heard(known, Some(to));
        is_heard(known, None);
    }
    leave([speaks, hears]);
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
#[test]
fn other_keys_are_other_groups() {
    let Some(host) = host("other_keys_are_other_groups") else { return };
    let worlds = [&b"one"[..], b"other", b"one", b"other"].map(|key| {
        members(host, 1, |hints| {
            // SAFETY: hints have all attributes.
            let attr = unsafe { &mut *hints.ep_attr };
            (attr.auth_key, attr.auth_key_size) = auth_key(key);
        })
    });
    let nodes = worlds.each_ref().map(|world| world.nodes[0]);
    let joined = nodes.map(|node| join(node.ep, &group(7), 0).unwrap());
    let mut rooms = [[0_u8; 8]; 4];
    for (node, room) in nodes.iter().zip(&mut rooms) {
        assert_eq!(node.receive(room, ANY, 0), 0);
    }
    // The first that each hears is of its own key.
    for (from, to) in [(0, 2), (3, 1)] {
        say(&nodes, from, joined[from], [from as u8 + 1; 8]);
        assert!(nodes[to].outcome(&nodes).is_ok());
    }
    assert_eq!(rooms, [[0; 8], [4; 8], [1; 8], [0; 8]]);
    leave(joined);
}

/// "Any fi_addr_t passed into a data transfer operation will be treated as a multicast address", but
/// "operations that take flags as input override the op_flags".
#[test]
fn calls_without_flags_may_mean_groups() {
    let Some(host) = host("calls_without_flags_may_mean_groups") else { return };
    let world = members(host, 3, |hints| {
        // SAFETY: hints have all attributes.
        unsafe { (*hints.tx_attr).op_flags = MULTICAST }
    });
    let [other, hears, speaks] = [world.nodes[0], world.nodes[1], world.nodes[2]];
    let joined = [
        join(speaks.ep, &group(8), flag::SEND).unwrap(),
        join(hears.ep, &group(8), flag::RECV).unwrap(),
    ];
    // SAFETY: the group is joined.
    let to = unsafe { (*joined[0]).fi_addr };
    assert_eq!(to, 0, "the other one's number, where it is an address");
    let (mut bytes, mut rooms) = ([5_u8; 8], [[0_u8; 8]; 2]);
    assert_eq!(other.receive(&mut rooms[0], ANY, 0), 0);
    let (word, none, iov) = (bytes.as_ptr().cast(), null_mut(), [iovec(&mut bytes)]);
    for call in 0..5 {
        assert_eq!(hears.receive(&mut rooms[1], ANY, 0), 0);
        let (ep, iov) = (speaks.ep, iov.as_ptr());
        // SAFETY: the endpoint is open, and the word outlives it.
        let (sent, data) = unsafe {
            let ops = &*(*ep).msg;
            match call {
                0 => ((ops.send)(ep, word, 8, none, to, none), 0),
                1 => ((ops.sendv)(ep, iov, null_mut(), 1, to, none), 0),
                2 => ((ops.senddata)(ep, word, 8, none, 7, to, none), 7),
                3 => ((ops.inject)(ep, word, 8, to), 0),
                _ => ((ops.injectdata)(ep, word, 8, 8, to), 8),
            }
        };
        let entry = world.completion(hears);
        assert_eq!((sent, entry.data, entry.len), (0, data, 8), "call {call}");
        assert_eq!(std::mem::take(&mut rooms[1]), [5; 8]);
    }
    let mut last = [6_u8; 8];
    let iov = [iovec(&mut last)];
    // SAFETY: as above.
    let sent = unsafe { ((*(*hears.ep).msg).sendmsg)(hears.ep, &message(&iov), 0) };
    assert_eq!((sent, world.completion(other).len, rooms[0]), (0, 8, last));
    leave(joined);
}

/// "The result of the join operation will be reported to the EQ": whoever reads of it may use what it
/// names, or close it, while the call that made it has yet to return.
#[test]
fn a_group_is_whole_when_its_event_is_read() {
    let Some(host) = host("a_group_is_whole_when_its_event_is_read") else { return };
    const ROUNDS: u32 = 300;
    let mut world = World::empty(host, asks_for_groups);
    let eq = add_members(&mut world, 1) as usize;
    let (ep, group) = (world.nodes[0].ep, group(8));
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let fid = loop {
                    match next_event(eq as *mut FidEq) {
                        Ok((_, entry)) => break entry.fid.cast::<FidMc>(),
                        Err(status) => assert_eq!(status, code::AGAIN),
                    }
                    assert!(start.elapsed() < PATIENCE, "no event came");
                };
                // SAFETY: the event names it, so it is there.
                assert_ne!(unsafe { (*fid).fi_addr }, u64::MAX);
                assert_eq!(close(fid), 0);
            }
        });
        for _ in 0..ROUNDS {
            let start = Instant::now();
            // As long as the reader has not left it, it is joined already.
            while let Err(status) = join(ep, &group, 0) {
                assert_eq!(status, code::INVAL);
                assert!(start.elapsed() < PATIENCE, "the group was not left");
            }
        }
        reader.join().unwrap();
    });
    assert!(next_event(eq as *mut FidEq).is_err());
}

/// FI_SEND joins "as a send only member", which hears nothing, and FI_RECV "with receive permissions only".
#[test]
fn a_member_may_only_send_or_only_receive() {
    let Some(host) = host("a_member_may_only_send_or_only_receive") else { return };
    let world = members(host, 3, |_| {});
    let (nodes, mut rooms) = (&world.nodes, [[0_u8; 8]; 3]);
    let joined: Vec<_> = [flag::SEND, flag::RECV, 0]
        .into_iter()
        .zip(nodes)
        .map(|(flags, node)| join(node.ep, &group(10), flags).unwrap())
        .collect();
    for (node, room) in nodes.iter().zip(&mut rooms) {
        assert_eq!(node.receive(room, ANY, 0), 0);
    }
    let (mut word, hears) = ([1_u8; 8], nodes[1]);
    let iov = [iovec(&mut word)];
    // SAFETY: the group is joined, and what is refused keeps no pointer.
    let refused = unsafe {
        let msg = Msg { addr: (*joined[1]).fi_addr, ..message(&iov) };
        ((*(*hears.ep).msg).sendmsg)(hears.ep, &raw const msg, MULTICAST)
    };
    assert_eq!(refused as c_int, code::INVAL);
    // What is sent to all is heard by one, and the other hears what is sent to itself, first.
    say(nodes, 2, joined[2], [2; 8]);
    assert_eq!((world.completion(hears).len, rooms[1]), (8, [2; 8]));
    for _ in 0..1000 {
        assert_eq!([nodes[0].read().err(), hears.read().err()], [Some(code::AGAIN); 2]);
    }
    assert_eq!(nodes[2].send(&[3; 8], 0, 0), 0);
    assert_eq!((world.completion(nodes[0]).len, rooms[0]), (8, [3; 8]));
    // Who only speaks is heard.
    assert_eq!(hears.receive(&mut rooms[1], ANY, 0), 0);
    assert!(nodes[2].outcome(nodes).is_ok(), "of what it sent to one");
    say(nodes, 0, joined[0], [4; 8]);
    assert_eq!((world.completion(hears).len, rooms[1]), (8, [4; 8]));
    assert_eq!((world.completion(nodes[2]).len, rooms[2]), (8, [4; 8]));
    leave(joined);
}

/// FI_SEND and FI_RECV together are as neither of them.
#[test]
fn both_directions_may_be_named() {
    let Some(host) = host("both_directions_may_be_named") else { return };
    let world = members(host, 2, |_| {});
    let mut room = [0_u8; 8];
    let joined = [0, 1].map(|at| {
        let ep = world.nodes[at].ep;
        join(ep, &group(9), flag::SEND | flag::RECV).unwrap()
    });
    assert_eq!(world.nodes[1].receive(&mut room, ANY, 0), 0);
    say(&world.nodes, 0, joined[0], [3; 8]);
    assert_eq!((world.completion(world.nodes[1]).len, room), (8, [3; 8]));
    leave(joined);
}
