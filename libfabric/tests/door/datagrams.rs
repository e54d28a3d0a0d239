//! Endpoints of datagrams. Reference: fi_endpoint(3), FI_EP_DGRAM.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use crate::{
    abi::{
        attributes::EqEntry,
        fid::{FidEp, FidEq, FidMc},
        info::Info,
        message::Msg,
    },
    code, flag,
    host::host,
    kind,
    world::{self, Node, PATIENCE, World, bind, cq_attr, enable},
};

const MSGSIZE: isize = -90;

fn asks_for_datagrams(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.ep_attr).kind = kind::DGRAM }
}

fn datagrams(host: &'static crate::host::Host, count: usize) -> World {
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

/// Adds endpoints that are bound to one event queue.
fn add_members(world: &mut World, count: usize) -> *mut FidEq {
    let mut eq = null_mut();
    // SAFETY: the fabric is open, and null stands for the defaults.
    unsafe {
        let ops = &*(*world.fabric).ops;
        assert_eq!((ops.eq_open)(world.fabric, null_mut(), &raw mut eq, null_mut()), 0);
    }
    for _ in 0..count {
        let node = Node { cq: world.open_cq(&mut cq_attr()).unwrap(), ep: world.open_ep() };
        assert_eq!(bind(node.ep, node.cq, flag::SEND | flag::RECV), 0);
        assert_eq!(bind(node.ep, world.av, 0), 0);
        assert_eq!(bind(node.ep, eq, 0), 0);
        assert_eq!(enable(node.ep), 0);
        assert_eq!(world.insert(node.ep), world.nodes.len() as u64);
        world.nodes.push(node);
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
    // SAFETY: the queue is open, and there is room for the entry.
    unsafe {
        let (mut event, mut entry) = (0, std::mem::zeroed::<EqEntry>());
        let (place, size) = ((&raw mut entry).cast(), size_of::<EqEntry>());
        let read = ((*(*eq).ops).read)(eq, &raw mut event, place, size, 0);
        assert_eq!((read, event), (size as isize, JOIN_COMPLETE));
        assert_eq!((entry.fid, entry.context as usize), (mc.cast(), 0x77));
    }
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
        // SAFETY: all buffers live until their completions have come.
        unsafe {
            for &to in &others {
                let (ep, place) = (world.nodes[to].ep, received[to].as_mut_ptr().cast::<c_void>());
                let recv = (*(*ep).msg).recv;
                assert_eq!(recv(ep, place, 8, null_mut(), u64::MAX, place), 0);
            }
            let (ep, mc_addr) = (world.nodes[from].ep, (*joined[from]).fi_addr);
            let iov = libc::iovec { iov_base: word.as_ptr().cast_mut().cast(), iov_len: 8 };
            let msg = Msg {
                msg_iov: (&raw const iov).cast(),
                iov_count: 1,
                addr: mc_addr,
                ..std::mem::zeroed()
            };
            let sendmsg = (*(*ep).msg).sendmsg;
            assert_eq!(sendmsg(ep, &raw const msg, MULTICAST), 0);
        }
        assert_eq!(world.completion(world.nodes[from]).flags, flag::MSG | flag::SEND);
        for to in others {
            assert_eq!(world.completion(world.nodes[to]).len, 8);
            assert_eq!(received[to], *word);
        }
    }
    // Who has joined keeps its endpoint open, and leaves by closing the group.
    assert_eq!(world::close(world.nodes[0].ep), code::BUSY);
    joined.into_iter().for_each(|mc| assert_eq!(world::close(mc), 0));
    let again = join(world.nodes[0].ep, &group(1), flag::SEND).unwrap();
    is_joined(eq, again);
    assert_eq!(world::close(again), 0);
    world.nodes.iter().for_each(|node| assert_eq!(world::close(node.ep), 0));
    world.nodes.drain(..).for_each(|node| assert_eq!(world::close(node.cq), 0));
    assert_eq!(world::close(eq), 0);
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
        let node = world.nodes.remove(0);
        for flags in [other, direction | other] {
            assert_eq!(join(node.ep, &group(3), flags), Err(code::BADFLAGS));
        }
        for flags in [0, direction] {
            let mc = join(node.ep, &group(3), flags).unwrap();
            is_joined(eq, mc);
            assert_eq!(world::close(mc), 0);
        }
        assert_eq!((world::close(node.ep), world::close(node.cq), world::close(eq)), (0, 0, 0));
    }
}

#[test]
fn what_is_no_group_is_not_joined() {
    let Some(host) = host("what_is_no_group_is_not_joined") else { return };
    let mut world = World::empty(host, asks_for_groups);
    let eq = add_members(&mut world, 1);
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
    let without = World::empty(host, |hints| {
        asks_for_datagrams(hints);
        hints.caps = flag::MSG;
    });
    let mut without = without;
    let other = add_members(&mut without, 1);
    assert_eq!(join(without.nodes[0].ep, &group(2), 0), Err(code::OPNOTSUPP));
    for (mut world, eq, mc) in [(world, eq, mc), (without, other, null_mut())] {
        assert!(mc.is_null() || world::close(mc) == 0);
        let nodes: Vec<_> = world.nodes.drain(..).collect();
        nodes
            .into_iter()
            .for_each(|node| assert_eq!(world::close(node.ep) + world::close(node.cq), 0));
        assert_eq!(world::close(eq), 0);
    }
}
