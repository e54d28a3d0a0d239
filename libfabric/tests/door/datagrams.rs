//! Endpoints of datagrams. Reference: fi_endpoint(3), FI_EP_DGRAM.

use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use crate::{
    abi::{info::Info, message::Msg},
    code,
    contexts::completion,
    flag,
    host::host,
    kind,
    names::{bytes, set_name},
    sockets::{iovec, message},
    waiting::Shared,
    world::{self, Node, PATIENCE, World, auth_key, close, cq_attr},
};

const ANY: u64 = u64::MAX;

pub fn asks_for_datagrams(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.ep_attr).kind = kind::DGRAM }
}

pub fn datagrams(host: &'static crate::host::Host, count: usize) -> World {
    datagrams_that(host, count, |_| {})
}

/// Endpoints of datagrams of which the hints say more.
fn datagrams_that(
    host: &'static crate::host::Host,
    count: usize,
    change: impl FnOnce(&mut Info),
) -> World {
    let mut world = World::empty(host, |hints| {
        asks_for_datagrams(hints);
        change(hints);
    });
    for _ in 0..count {
        world.add_node(&mut cq_attr(), 0);
    }
    world
}

/// What is told of them is what they do: one packet each, no order, no tags, nothing one-sided.
#[test]
fn their_attributes_are_honest() {
    let Some(host) = host("their_attributes_are_honest") else { return };
    let info = world::info(host, asks_for_datagrams).unwrap();
    // SAFETY: libfabric's info, with all attributes.
    unsafe {
        let (ep, tx, rx) = (&*(*info).ep_attr, &*(*info).tx_attr, &*(*info).rx_attr);
        assert_eq!((ep.kind, ep.msg_prefix_size), (kind::DGRAM, 0));
        assert!((512..=8 << 10).contains(&ep.max_msg_size), "{}", ep.max_msg_size);
        assert!(tx.inject_size <= ep.max_msg_size);
        assert_eq!((tx.msg_order, rx.msg_order, tx.rma_iov_limit), (0, 0, 0));
        let caps = (*info).caps;
        assert_eq!(
            caps & (flag::MSG | flag::SEND | flag::RECV),
            flag::MSG | flag::SEND | flag::RECV
        );
        assert_eq!(caps & (flag::TAGGED | flag::READ | flag::WRITE), 0);
        (host.freeinfo)(info);
    }
    let refused = world::info(host, |hints| {
        asks_for_datagrams(hints);
        hints.caps = flag::TAGGED;
    });
    assert_eq!(refused.err(), Some(code::NODATA));
    let refused = world::info(host, |hints| {
        asks_for_datagrams(hints);
        // SAFETY: hints have all attributes.
        unsafe { (*hints.ep_attr).max_msg_size = 1 << 20 };
    });
    assert_eq!(refused.err(), Some(code::NODATA));
}

#[test]
fn datagrams_of_every_length_arrive() {
    let Some(host) = host("datagrams_of_every_length_arrive") else { return };
    let world = datagrams(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    // SAFETY: libfabric's info, with all attributes.
    let longest = unsafe { (*(*world.info).ep_attr).max_msg_size };
    for length in [0, 1, 8, 64, 500, longest - 1, longest] {
        let (sent, mut received) = (vec![length as u8; length], vec![0_u8; length]);
        // SAFETY: both buffers live until their completions have come.
        unsafe {
            let place = received.as_mut_ptr().cast::<c_void>();
            let ops = &*(*to.ep).msg;
            assert_eq!((ops.recv)(to.ep, place, length, null_mut(), u64::MAX, place), 0);
            let ops = &*(*from.ep).msg;
            let start = sent.as_ptr().cast();
            assert_eq!((ops.senddata)(from.ep, start, length, null_mut(), 99, 1, null_mut()), 0);
        }
        let done = world.completion(to);
        assert_eq!((done.len, done.data), (length, 99));
        assert_eq!(done.flags, flag::MSG | flag::RECV | flag::REMOTE_CQ_DATA);
        assert_eq!(world.completion(from).flags, flag::MSG | flag::SEND);
        assert!(received == sent, "{length} bytes");
    }
}

#[test]
fn what_datagrams_cannot_be_is_refused() {
    let Some(host) = host("what_datagrams_cannot_be_is_refused") else { return };
    const DELIVERY_COMPLETE: u64 = 1 << 28;
    let world = datagrams(host, 2);
    let node = world.nodes[0];
    // SAFETY: libfabric's info, with all attributes; the buffer lives until all is over.
    unsafe {
        let longest = (*(*world.info).ep_attr).max_msg_size;
        let bytes = vec![0_u8; longest + 1];
        let start = bytes.as_ptr().cast();
        let send = (*(*node.ep).msg).send;
        assert_eq!(
            send(node.ep, start, longest + 1, null_mut(), 1, null_mut()),
            code::MSGSIZE as isize
        );
        let tagged = (*(*node.ep).tagged).send;
        let refused = tagged(node.ep, start, 1, null_mut(), 1, 7, null_mut());
        assert_eq!(refused as c_int, code::OPNOTSUPP);
        let write = (*(*node.ep).rma).write;
        let refused = write(node.ep, start, 1, null_mut(), 1, 0, 0, null_mut());
        assert_eq!(refused as c_int, code::OPNOTSUPP);
        let msg: Msg = Msg { addr: 1, ..std::mem::zeroed() };
        let sendmsg = (*(*node.ep).msg).sendmsg;
        let refused = sendmsg(node.ep, &raw const msg, DELIVERY_COMPLETE);
        assert_eq!(refused as c_int, code::BADFLAGS);
        let connect = (*(*node.ep).cm).connect;
        let mut name = [0_u8; 64];
        let mut length = name.len();
        let place = name.as_mut_ptr().cast();
        assert_eq!(((*(*node.ep).cm).getname)(node.ep.cast(), place, &raw mut length), 0);
        assert!(connect(node.ep, place, null(), 0) < 0);
    }
}

/// Nobody waits for a receiver that is silent, or not there.
#[test]
fn a_send_to_nobody_completes() {
    let Some(host) = host("a_send_to_nobody_completes") else { return };
    let world = datagrams(host, 1);
    let (node, to) = (world.nodes[0], world.insert_nobody());
    let word = [7_u8; 8];
    for _ in 0..100 {
        // SAFETY: the word lives until all is over.
        unsafe {
            let send = (*(*node.ep).msg).send;
            assert_eq!(send(node.ep, word.as_ptr().cast(), 8, null_mut(), to, null_mut()), 0);
        }
    }
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(world.completion(node).flags, flag::MSG | flag::SEND);
    }
    assert!(start.elapsed() < PATIENCE);
}

/// "Message boundaries are maintained": one packet, however many pieces it is gathered from.
#[test]
fn vectors_are_one_datagram() {
    let Some(host) = host("vectors_are_one_datagram") else { return };
    let world = datagrams(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut sent: Vec<u8> = (0..512).map(|at| (at * 7) as u8).collect();
    let mut parts = Vec::new();
    let mut rest = &mut sent[..];
    for length in [0, 1, 11, 300, 200] {
        let part;
        (part, rest) = rest.split_at_mut(length);
        parts.push(iovec(part));
    }
    for by_message in [false, true] {
        let mut received = vec![0_u8; 512];
        let (front, back) = received.split_at_mut(500);
        let room = [iovec(front), iovec(back)];
        // SAFETY: buffers and lists live until the completions have come.
        let posted = unsafe {
            let (receives, sends) = (&*(*to.ep).msg, &*(*from.ep).msg);
            if by_message {
                let (into, of) = (message(&room), Msg { addr: 1, ..message(&parts) });
                let posted = (receives.recvmsg)(to.ep, &Msg { addr: ANY, ..into }, 0);
                [posted, (sends.sendmsg)(from.ep, &raw const of, 0)]
            } else {
                let (none, context) = (null_mut(), null_mut());
                let posted = (receives.recvv)(to.ep, room.as_ptr(), none, 2, ANY, context);
                [posted, (sends.sendv)(from.ep, parts.as_ptr(), none, 5, 1, context)]
            }
        };
        assert_eq!(posted, [0, 0]);
        world.completion(from);
        assert_eq!(world.completion(to).len, 512);
        assert!(received == sent, "what was gathered and scattered");
    }
    assert_eq!(to.read().err(), Some(code::AGAIN));
}

/// Directed, canceled, too short, and for many messages, as with reliable endpoints.
#[test]
fn receives_are_as_ever() {
    let Some(host) = host("receives_are_as_ever") else { return };
    let world = datagrams_that(host, 3, |hints| {
        hints.caps = flag::MSG | flag::SOURCE | flag::DIRECTED_RECV | flag::MULTI_RECV;
    });
    let (nodes, to) = (&world.nodes, world.nodes[2]);
    let (mut directed, mut room, word) = ([0_u8; 8], [0_u8; 8], [7_u8; 60]);
    assert_eq!((to.receive(&mut directed, 1, 1), to.receive(&mut room, ANY, 2)), (0, 0));
    // The one that the earlier receive is not for comes first.
    for (from, context) in [(0, 2), (1, 1)] {
        assert_eq!(nodes[from].send(&word[..8], 2, 0), 0);
        let (entry, source) = completion(to, nodes);
        assert_eq!((entry.op_context as usize, source), (context, from as u64));
        world.completion(nodes[from]);
    }
    assert_eq!((to.receive(&mut room, ANY, 3), to.cancel(3)), (0, 0));
    let error = to.outcome(nodes).err().unwrap();
    assert_eq!((error.err, error.op_context as usize), (-code::CANCELED, 3));
    let mut many = [0_u8; 200];
    let room_for_many = [iovec(&mut many)];
    let post = Msg { addr: ANY, context: 4 as *mut c_void, ..message(&room_for_many) };
    // SAFETY: the room outlives the endpoint's use of it.
    let posted = unsafe { ((*(*to.ep).msg).recvmsg)(to.ep, &raw const post, flag::MULTI_RECV) };
    assert_eq!(posted, 0);
    for released in [0, 0, flag::MULTI_RECV] {
        assert_eq!(nodes[0].send(&word, 2, 0), 0);
        let entry = world.completion(to);
        assert_eq!((entry.op_context as usize, entry.len), (4, 60));
        assert_eq!(entry.flags & flag::MULTI_RECV, released);
        world.completion(nodes[0]);
    }
    assert!(many[..180] == [7; 180] && many[180..] == [0; 20]);
    assert_eq!((to.receive(&mut room[..4], ANY, 5), nodes[1].send(&word[..9], 2, 0)), (0, 0));
    let error = to.outcome(nodes).err().unwrap();
    assert_eq!((error.err, error.len, error.olen), (-code::TRUNC, 4, 5));
    assert_eq!(error.op_context as usize, 5);
}

/// "If it is still pending, complete it as having been canceled": so it is with a send while its
/// peer is looked for.
#[test]
fn what_is_held_is_canceled() {
    let Some(host) = host("what_is_held_is_canceled") else { return };
    // Nothing is found meanwhile.
    const MANUAL: u32 = 2;
    let world = datagrams_that(host, 1, |hints| {
        // SAFETY: hints have all attributes.
        unsafe { (*hints.domain_attr).data_progress = MANUAL }
    });
    let (node, nobody) = (world.nodes[0], world.insert_nobody());
    let word = [1_u8; 8];
    assert_eq!((node.send(&word, nobody, 5), node.cancel(5)), (0, 0));
    let error = node.outcome(&[]).err().unwrap();
    assert_eq!((error.err, error.op_context as usize), (-code::CANCELED, 5));
    assert_eq!(error.flags, flag::MSG | flag::SEND);
}

/// "Only peer endpoints that are programmed to use the same authorization key may communicate."
#[test]
fn other_keys_are_not_heard() {
    let Some(host) = host("other_keys_are_not_heard") else { return };
    let worlds = [&b"one"[..], b"other", b"one", b"other"].map(|key| {
        datagrams_that(host, 1, |hints| {
            // SAFETY: hints have all attributes.
            let attr = unsafe { &mut *hints.ep_attr };
            (attr.auth_key, attr.auth_key_size) = auth_key(key);
        })
    });
    let nodes = worlds.each_ref().map(|world| world.nodes[0]);
    let (words, mut rooms) = ([[1_u8; 8], [2; 8]], [[0_u8; 8]; 2]);
    for (to, room) in [1, 2].into_iter().zip(&mut rooms) {
        assert_eq!(nodes[to].receive(room, ANY, to), 0);
        let there = worlds[0].insert(nodes[to].ep);
        assert_eq!(nodes[0].send(&words[0], there, to), 0);
    }
    assert_eq!(nodes[2].outcome(&nodes).map(|entry| entry.len).ok(), Some(8));
    // To whom it was sent is none of the sender's business.
    for _ in 0..2 {
        assert!(nodes[0].outcome(&nodes).is_ok());
    }
    // The first that the other one hears is of its own key.
    let there = worlds[3].insert(nodes[1].ep);
    assert_eq!(nodes[3].send(&words[1], there, 0), 0);
    assert_eq!(nodes[1].outcome(&nodes).map(|entry| entry.len).ok(), Some(8));
    assert_eq!(rooms, [words[1], words[0]]);
}

/// An endpoint of another type is nobody to datagrams, and they are nobody to it.
#[test]
fn reliable_endpoints_are_not_reached() {
    let Some(host) = host("reliable_endpoints_are_not_reached") else { return };
    let [mut datagrams, mut reliable] =
        [World::empty(host, asks_for_datagrams), World::empty(host, |_| {})];
    // Hosts of their own: elsewhere one of the other type may have the same port.
    for (world, own) in [(&mut datagrams, "127.0.8.8:0"), (&mut reliable, "127.0.8.9:0")] {
        let ep = world.open_ep();
        assert_eq!(set_name(ep, &bytes(own)), 0);
        world.add(ep, &mut cq_attr(), 0);
        world.add_node(&mut cq_attr(), 0);
    }
    let ends = [datagrams.nodes[0], reliable.nodes[0]];
    let (words, mut rooms) = ([[1_u8; 8], [2; 8]], [[0_u8; 8]; 2]);
    for (end, room) in ends.into_iter().zip(&mut rooms) {
        assert_eq!(end.receive(room, ANY, 9), 0);
    }
    let [there, back] = [datagrams.insert(ends[1].ep), reliable.insert(ends[0].ep)];
    assert_eq!(ends[0].send(&words[0], there, 1), 0);
    assert!(ends[0].outcome(&ends).is_ok(), "whoever is there");
    assert_eq!(ends[1].send(&words[0], back, 2), 0);
    let error = ends[1].outcome(&ends).err().expect("nobody is there");
    assert_eq!((error.op_context as usize, error.flags), (2, flag::MSG | flag::SEND));
    // The first that each hears is of its own type.
    for world in [&datagrams, &reliable] {
        assert_eq!(world.nodes[1].send(&words[1], 0, 3), 0);
        assert_eq!(world.completion(world.nodes[0]).op_context as usize, 9);
    }
    assert_eq!(rooms, [words[1]; 2]);
}

/// With FI_THREAD_SAFE: what threads send at once completes once, and arrives once at most.
#[test]
fn threads_may_send_at_once() {
    let Some(host) = host("threads_may_send_at_once") else { return };
    const THREADS: usize = 3;
    const EACH: usize = 300;
    let shared = Shared(datagrams_that(host, 2, |hints| {
        const THREAD_SAFE: u32 = 1;
        // SAFETY: hints have all attributes.
        unsafe { (*hints.domain_attr).threading = THREAD_SAFE }
    }));
    let words: Vec<[u8; 8]> = (0..THREADS * EACH).map(usize::to_ne_bytes).collect();
    let mut room = vec![0_u8; 8 * words.len()];
    let iov = [iovec(&mut room)];
    let post = Msg { addr: ANY, ..message(&iov) };
    let [from, to] = [shared.0.nodes[0], shared.0.nodes[1]];
    // SAFETY: the room outlives the endpoint's use of it.
    let posted = unsafe { ((*(*to.ep).msg).recvmsg)(to.ep, &raw const post, flag::MULTI_RECV) };
    assert_eq!(posted, 0);
    let mut sent = BTreeSet::new();
    std::thread::scope(|scope| {
        for share in words.chunks(EACH) {
            let shared = &shared;
            scope.spawn(move || {
                let Shared(world) = shared;
                for word in share {
                    insist(world.nodes[0], word, usize::from_ne_bytes(*word));
                }
            });
        }
        while sent.len() < words.len() {
            let entry = from.outcome(&[to]).ok().expect("a send completes");
            assert!(sent.insert(entry.op_context as usize), "twice");
        }
    });
    assert_eq!(sent.last(), Some(&(words.len() - 1)));
    let mut arrived = BTreeSet::new();
    let mut next = to.outcome(&[from]).ok();
    while let Some(entry) = next {
        assert_eq!(entry.len, 8);
        // SAFETY: so much of the room was filled.
        let number = usize::from_ne_bytes(unsafe { *entry.buf.cast::<[u8; 8]>() });
        assert!(sent.contains(&number) && arrived.insert(number), "{number}");
        next = to.read().ok();
    }
}

/// Sends to node 1 as soon as there is room.
fn insist(node: Node, word: &[u8], context: usize) {
    let start = Instant::now();
    loop {
        match node.send(word, 1, context) as c_int {
            0 => return,
            status => assert_eq!(status, code::AGAIN),
        }
        assert!(start.elapsed() < PATIENCE, "there is never room");
        std::thread::yield_now();
    }
}

/// "Outstanding operations posted to the endpoint when fi_close is called will be discarded": what
/// was injected is over, and has left, although whom it is for had yet to be found.
#[test]
fn who_closes_at_once_is_heard() {
    let Some(host) = host("who_closes_at_once_is_heard") else { return };
    let mut world = datagrams(host, 2);
    let (from, to) = (world.nodes.remove(0), world.nodes[0]);
    let (word, mut room) = ([3_u8; 8], [0_u8; 8]);
    assert_eq!(to.receive(&mut room, ANY, 5), 0);
    // SAFETY: the word is there, and copied by the call.
    let sent = unsafe { ((*(*from.ep).msg).inject)(from.ep, word.as_ptr().cast(), 8, 1) };
    assert_eq!((sent, close(from.ep)), (0, 0));
    assert_eq!(world.completion(to).op_context as usize, 5);
    assert_eq!((room, close(from.cq)), (word, 0));
}
