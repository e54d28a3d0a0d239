//! Endpoints of datagrams. Reference: fi_endpoint(3), FI_EP_DGRAM.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use crate::{
    abi::{info::Info, message::Msg},
    code, flag,
    host::host,
    kind,
    world::{self, PATIENCE, World, cq_attr},
};

const MSGSIZE: isize = -90;

pub fn asks_for_datagrams(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.ep_attr).kind = kind::DGRAM }
}

pub fn datagrams(host: &'static crate::host::Host, count: usize) -> World {
    let mut world = World::empty(host, asks_for_datagrams);
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
        assert_eq!(send(node.ep, start, longest + 1, null_mut(), 1, null_mut()), MSGSIZE);
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
    let gone = datagrams(host, 1);
    let (node, to) = (world.nodes[0], world.insert(gone.nodes[0].ep));
    drop(gone);
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
