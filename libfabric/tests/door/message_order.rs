//! What overtakes what: nothing, between two endpoints. Reference: fi_endpoint(3), "msg_order".

use std::{ffi::c_void, ptr::null_mut, time::Instant};

use crate::{
    abi::info::{RxAttr, TxAttr},
    code,
    contexts::sharing_world,
    flag,
    host::{Host, host},
    kind,
    one_sided::{KEY, register},
    world::{Node, PATIENCE, World, close, info},
};

const NONE: *mut c_void = null_mut();
const ANYBODY: u64 = u64::MAX;
const UINT64: u32 = 7;
const SUM: u32 = 2;
const ATOMIC_WRITE: u32 = 11;
/// So many words are written and read in many pieces, between which others may have their turn.
const STRETCHES: usize = 1 << 18;

/// The orders of both sides in the answer to hints of this one.
fn answered(host: &Host, kind: u32, asked: u64) -> Result<[u64; 2], i32> {
    let found = info(host, |hints| {
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.ep_attr).kind = kind;
            ((*hints.tx_attr).msg_order, (*hints.rx_attr).msg_order) = (asked, asked);
        }
    })?;
    // SAFETY: libfabric's answer, with all attributes.
    unsafe {
        let orders = [(*(*found).tx_attr).msg_order, (*(*found).rx_attr).msg_order];
        (host.freeinfo)(found);
        Ok(orders)
    }
}

/// "Each set bit indicates that ordering is maintained between data transfers of the specified type."
#[test]
fn every_order_is_for_who_asks() {
    let Some(host) = host("every_order_is_for_who_asks") else { return };
    let orders: Vec<u64> = (0..9).chain(32..40).map(|bit| 1 << bit).collect();
    let all: u64 = orders.iter().sum();
    for kind in [kind::RDM, kind::MSG] {
        for asked in orders.iter().copied().chain([0, all]) {
            let told = answered(host, kind, asked).unwrap();
            // "FI_ORDER_NONE [...] may be used as input in order to obtain the default message order".
            let granted = if asked == 0 { all } else { asked };
            assert_eq!(told, [granted; 2], "{asked:#x}");
        }
        assert_eq!(answered(host, kind, 1 << 20), Err(code::NODATA), "nobody knows this one");
    }
    for asked in orders {
        assert_eq!(answered(host, kind::DGRAM, asked), Err(code::NODATA), "{asked:#x}");
    }
}

/// "By default, a transmit context inherits the properties of its associated endpoint": of an order that
/// nobody has named it gets what there is beside what it asks for.
#[test]
fn an_order_that_is_inherited_refuses_nothing() {
    const DATA: u64 = 1 << 16;
    const WAS: u64 = 1 << 5;
    const MULTICAST: u64 = 1 << 5;
    let Some(host) = host("an_order_that_is_inherited_refuses_nothing") else { return };
    let world = sharing_world(host, kind::RDM);
    let (mut srx, mut stx) = (null_mut(), null_mut());
    // SAFETY: the domain is open; the attributes are whole.
    unsafe {
        assert_ne!((*(*world.info).rx_attr).msg_order & WAS, 0);
        let ops = &*(*world.domain).ops;
        let mut receive = RxAttr { comp_order: DATA, msg_order: 0, ..*(*world.info).rx_attr };
        let status = (ops.srx_ctx)(world.domain, &raw mut receive, &raw mut srx, null_mut());
        assert_eq!((status, receive.msg_order & WAS), (0, 0));
        receive.msg_order = WAS;
        let mut none = null_mut();
        let status = (ops.srx_ctx)(world.domain, &raw mut receive, &raw mut none, null_mut());
        assert_eq!(status, code::INVAL, "who names it gets it or nothing");
        let caps = flag::MSG | MULTICAST;
        let rest = &*(*world.info).tx_attr;
        let (msg_order, inject_size, rma_iov_limit) = (0, 8, 0);
        let mut transmit = TxAttr { caps, msg_order, inject_size, rma_iov_limit, ..*rest };
        let status = (ops.stx_ctx)(world.domain, &raw mut transmit, &raw mut stx, null_mut());
        assert_eq!((status, transmit.msg_order), (0, 0), "of datagrams");
    }
    assert_eq!((close(stx), close(srx)), (0, 0));
}

/// Posts until there is place.
fn insist(nodes: &[Node], mut post: impl FnMut() -> isize) {
    let start = Instant::now();
    loop {
        match post() as i32 {
            0 => return,
            status => assert_eq!(status, code::AGAIN),
        }
        nodes.iter().for_each(|node| node.progress());
        assert!(start.elapsed() < PATIENCE, "there is no place");
    }
}

/// Lengths that take every path through the protocol, in turn.
fn length(nth: usize) -> usize {
    [8, 70_000, 0, 300, 5_000, 48, 200_000, 49, 9_000, 64 << 10, 1][nth % 11]
}

fn bytes(nth: usize) -> Vec<u8> {
    (0..length(nth)).map(|at| (at * 7 + nth) as u8).collect()
}

/// Whether the message of that number is injected, and has no completion.
fn is_injected(nth: usize) -> bool {
    length(nth) <= 48 && nth.is_multiple_of(2)
}

/// Sends the message of that number, by one call or another.
fn send(world: &World, nth: usize, bytes: &[u8], is_tagged: bool) {
    let (ep, start, size) = (world.nodes[0].ep, bytes.as_ptr().cast(), bytes.len());
    let is_injected = is_injected(nth);
    // SAFETY: the endpoint is open, and the bytes outlive their operation.
    insist(&world.nodes, || unsafe {
        let (msg, tagged) = (&*(*ep).msg, &*(*ep).tagged);
        match (is_tagged, is_injected) {
            (true, true) => (tagged.inject)(ep, start, size, 1, 4),
            (true, false) => (tagged.send)(ep, start, size, NONE, 1, 4, NONE),
            (false, true) => (msg.inject)(ep, start, size, 1),
            (false, false) => (msg.send)(ep, start, size, NONE, 1, NONE),
        }
    });
}

/// "FI_ORDER_SAS: Send after send. If set, message send operations, including tagged sends, are
/// transmitted in the order submitted relative to other message send."
#[test]
fn messages_of_one_tag_keep_their_order() {
    let Some(host) = host("messages_of_one_tag_keep_their_order") else { return };
    const COUNT: usize = 330;
    for (is_tagged, is_expected) in [(true, true), (true, false), (false, true), (false, false)] {
        let world = World::new(host, 2);
        let to = world.nodes[1];
        let sent: Vec<Vec<u8>> = (0..COUNT).map(bytes).collect();
        // Each receive has the room of its own message and no other: one that overtakes is cut.
        let mut rooms: Vec<Vec<u8>> = (0..COUNT).map(|nth| vec![0; length(nth)]).collect();
        let mut receive = || {
            for (nth, room) in rooms.iter_mut().enumerate() {
                let (at, size, context) =
                    (room.as_mut_ptr().cast(), room.len(), nth as *mut c_void);
                // SAFETY: the endpoint is open, and the rooms outlive their receives.
                insist(&world.nodes, || unsafe {
                    match is_tagged {
                        true => {
                            let recv = (*(*to.ep).tagged).recv;
                            recv(to.ep, at, size, NONE, ANYBODY, 4, 0, context)
                        }
                        false => ((*(*to.ep).msg).recv)(to.ep, at, size, NONE, ANYBODY, context),
                    }
                });
            }
        };
        if is_expected {
            receive();
        }
        for (nth, bytes) in sent.iter().enumerate() {
            send(&world, nth, bytes, is_tagged);
        }
        if !is_expected {
            (0..10).for_each(|_| world.nodes.iter().for_each(|node| node.progress()));
            receive();
        }
        for _ in 0..COUNT {
            let entry = world.completion(to);
            assert_eq!(entry.len, length(entry.op_context as usize));
        }
        assert!(rooms == sent, "{is_tagged}, {is_expected}");
        for _ in (0..COUNT).filter(|&nth| !is_injected(nth)) {
            world.completion(world.nodes[0]);
        }
    }
}

/// FI_ORDER_RAW, "RMA and atomic read operations are transmitted in the order submitted relative to
/// RMA and atomic write operations"; FI_ORDER_WAR, FI_ORDER_WAW.
#[test]
fn reads_and_writes_follow_each_other() {
    let Some(host) = host("reads_and_writes_follow_each_other") else { return };
    for (words, rounds) in [(1, 40), (40, 40), (2_500, 40), (40_000, 40), (STRETCHES, 4)] {
        let world = World::new(host, 2);
        let from = world.nodes[0];
        let mut memory = vec![0_u64; words];
        let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
        let sources: Vec<Vec<u64>> = (0..rounds).map(|round| vec![round + 1; words]).collect();
        let mut results = vec![vec![0_u64; words]; sources.len()];
        for (source, result) in sources.iter().zip(&mut results) {
            let (out, into) = (source.as_ptr().cast(), result.as_mut_ptr().cast());
            // SAFETY: the endpoint is open, and the words outlive their operations.
            unsafe {
                let (ep, ops) = (from.ep, &*(*from.ep).rma);
                insist(&world.nodes, || (ops.write)(ep, out, 8 * words, NONE, 1, 0, KEY, NONE));
                insist(&world.nodes, || (ops.read)(ep, into, 8 * words, NONE, 1, 0, KEY, NONE));
            }
        }
        for _ in 0..2 * rounds {
            world.completion(from);
        }
        // Each behind its write, and before the next one: all of one value.
        assert!(results == sources, "{words} words");
        assert_eq!(close(mr), 0);
    }
}

/// FI_ORDER_ATOMIC_RAW, WAR and WAW: "atomic fetch operations are transmitted in the order submitted
/// relative to atomic update operations".
#[test]
fn atomic_operations_follow_each_other() {
    let Some(host) = host("atomic_operations_follow_each_other") else { return };
    const ROUNDS: u64 = 60;
    let world = World::new(host, 2);
    let from = world.nodes[0];
    let mut memory = [0_u64; 1];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let starts: Vec<u64> = (1..=ROUNDS).map(|round| 100 * round).collect();
    let (mut fetched, mut read, one) = (starts.clone(), starts.clone(), 1_u64);
    for (at, start) in starts.iter().enumerate() {
        let [start, one] = [start, &one].map(|word| (&raw const *word).cast::<c_void>());
        let [old, now] =
            [&raw mut fetched[at], &raw mut read[at]].map(|word| word.cast::<c_void>());
        // SAFETY: the endpoint is open, and the words outlive their operations.
        unsafe {
            let (ep, atomic, rma) = (from.ep, &*(*from.ep).atomic, &*(*from.ep).rma);
            let update = |word, op| {
                insist(&world.nodes, || {
                    (atomic.write)(ep, word, 1, NONE, 1, 0, KEY, UINT64, op, NONE)
                });
            };
            update(start, ATOMIC_WRITE);
            update(one, SUM);
            insist(&world.nodes, || {
                (atomic.readwrite)(ep, one, 1, NONE, old, NONE, 1, 0, KEY, UINT64, SUM, NONE)
            });
            update(one, SUM);
            insist(&world.nodes, || (rma.read)(ep, now, 8, NONE, 1, 0, KEY, NONE));
        }
    }
    for _ in 0..5 * ROUNDS {
        world.completion(from);
    }
    assert_eq!(fetched, starts.iter().map(|start| start + 1).collect::<Vec<_>>());
    assert_eq!(read, starts.iter().map(|start| start + 3).collect::<Vec<_>>());
    assert_eq!(close(mr), 0);
}

/// "FI_ORDER_SAW: Send after write. If set, message send operations, including tagged sends, are
/// transmitted in order submitted relative to RMA and atomic write operations."
#[test]
fn a_message_follows_the_writes_before_it() {
    let Some(host) = host("a_message_follows_the_writes_before_it") else { return };
    for words in [1, 40, 2_500, 40_000, STRETCHES] {
        let world = World::new(host, 2);
        let [from, to] = [world.nodes[0], world.nodes[1]];
        let mut memory = vec![0_u64; words];
        let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
        for round in 1..=20_u64 {
            let (source, mut room) = (vec![round; words], [0_u8; 8]);
            assert_eq!(to.receive(&mut room, ANYBODY, 1), 0);
            let out = source.as_ptr().cast();
            // SAFETY: the endpoint is open, and the words outlive the write.
            insist(&world.nodes, || unsafe {
                ((*(*from.ep).rma).write)(from.ep, out, 8 * words, NONE, 1, 0, KEY, NONE)
            });
            let told = round.to_ne_bytes();
            insist(&world.nodes, || from.send(&told, 1, 0));
            world.completion(to);
            // SAFETY: the words are there.
            let word = |at: usize| unsafe { memory.as_ptr().add(at).read_volatile() };
            assert!((0..words).all(|at| word(at) == round), "written before the message");
            assert_eq!(u64::from_ne_bytes(room), round);
            for _ in 0..2 {
                world.completion(from);
            }
        }
        assert_eq!(close(mr), 0);
    }
}
