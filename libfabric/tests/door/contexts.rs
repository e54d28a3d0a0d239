//! Scalable endpoints and shared contexts. Reference: fi_endpoint(3).

use std::{ffi::c_int, mem, ptr::null_mut, time::Instant};

use crate::{
    abi::{
        attributes::{AvAttr, CqTaggedEntry},
        fid::{FidAv, FidCq, FidDomain, FidEp, FidStx, class},
        info::{Info, RxAttr, TxAttr},
    },
    code, flag,
    host::host,
    kind,
    world::{Node, PATIENCE, World, av_attr, bind, close, cq_attr, enable},
};

pub const NAMED_RX_CTX: u64 = 1 << 58;
const BITS: c_int = 2;
pub const SHARED: usize = usize::MAX;
pub const MIN_MULTI_RECV: c_int = 0;
const UNSPEC: u64 = u64::MAX;
const CANCELED: c_int = 125;
/// FI_TC_LOW_LATENCY.
const LOW_LATENCY: u32 = 0x201;

/// Receive context `index` of the endpoint at `fi_addr`: `fi_rx_addr`.
pub fn named(fi_addr: u64, index: u64) -> u64 {
    index << (64 - BITS) | fi_addr
}

/// A scalable endpoint, with queues for each context.
pub struct Portal {
    pub sep: *mut FidEp,
    pub transmit: Vec<Node>,
    pub receive: Vec<Node>,
}

pub fn open_sep(world: &World) -> Result<*mut FidEp, c_int> {
    let mut sep = null_mut();
    // SAFETY: the domain is open, the info libfabric's.
    let status = unsafe {
        let ops = &*(*world.domain).ops;
        (ops.scalable_ep)(world.domain, world.info, &raw mut sep, null_mut())
    };
    if status == 0 { Ok(sep) } else { Err(status) }
}

pub fn tx_context(sep: *mut FidEp, index: c_int, attr: *mut TxAttr) -> Result<*mut FidEp, c_int> {
    let mut ep = null_mut();
    // SAFETY: the endpoint is open, the attributes are valid or null.
    let status = unsafe { ((*(*sep).ops).tx_ctx)(sep, index, attr, &raw mut ep, null_mut()) };
    if status == 0 { Ok(ep) } else { Err(status) }
}

pub fn rx_context(sep: *mut FidEp, index: c_int, attr: *mut RxAttr) -> Result<*mut FidEp, c_int> {
    let mut ep = null_mut();
    // SAFETY: as above.
    let status = unsafe { ((*(*sep).ops).rx_ctx)(sep, index, attr, &raw mut ep, null_mut()) };
    if status == 0 { Ok(ep) } else { Err(status) }
}

/// A domain for scalable endpoints of two contexts each way.
pub fn scalable_world(host: &'static crate::host::Host) -> World {
    scalable_world_that(host, flag::MSG | flag::TAGGED | flag::SOURCE)
}

/// Such a domain for endpoints that can do this.
pub fn scalable_world_that(host: &'static crate::host::Host, caps: u64) -> World {
    World::empty(host, |hints| {
        hints.caps = caps | NAMED_RX_CTX;
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.ep_attr).tx_ctx_cnt = 2;
            (*hints.ep_attr).rx_ctx_cnt = 2;
        }
    })
}

pub fn open_av(world: &World) -> *mut FidAv {
    let mut av = null_mut();
    let mut attr = AvAttr { rx_ctx_bits: BITS, ..av_attr() };
    // SAFETY: the domain is open.
    unsafe {
        let ops = &*(*world.domain).ops;
        assert_eq!((ops.av_open)(world.domain, &raw mut attr, &raw mut av, null_mut()), 0);
    }
    av
}

impl Portal {
    pub fn open(world: &World, av: *mut FidAv) -> Portal {
        let sep = open_sep(world).expect("a scalable endpoint");
        assert_eq!(bind(sep, av, 0), 0);
        assert_eq!(enable(sep), 0);
        let enabled = |ep, flags| {
            let cq = world.open_cq(&mut cq_attr()).expect("a queue");
            assert_eq!(bind(ep, cq, flags), 0);
            assert_eq!(enable(ep), 0);
            Node { cq, ep }
        };
        let transmit = |index| enabled(tx_context(sep, index, null_mut()).unwrap(), flag::SEND);
        let receive = |index| enabled(rx_context(sep, index, null_mut()).unwrap(), flag::RECV);
        let (transmit, receive) = ((0..2).map(transmit), (0..2).map(receive));
        Portal { sep, transmit: transmit.collect(), receive: receive.collect() }
    }

    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.transmit.iter().chain(&self.receive).copied()
    }

    pub fn close(self) {
        for node in self.nodes() {
            assert_eq!(close(self.sep), code::BUSY, "a context is open");
            assert_eq!(close(node.ep), 0);
        }
        assert_eq!(close(self.sep), 0);
        for node in self.nodes() {
            assert_eq!(close(node.cq), 0);
        }
    }
}

/// The name of an endpoint or a context.
fn name(ep: *mut FidEp) -> Vec<u8> {
    let (mut address, mut length) = ([0_u8; 64], 64);
    // SAFETY: the endpoint is open, the buffer has that length.
    let status =
        unsafe { ((*(*ep).cm).getname)(ep.cast(), address.as_mut_ptr().cast(), &raw mut length) };
    assert_eq!(status, 0);
    address[..length].to_vec()
}

pub fn insert(av: *mut FidAv, address: &[u8]) -> u64 {
    let mut fi_addr = u64::MAX;
    // SAFETY: the vector is open, the address in its format.
    unsafe {
        let (insert, address) = ((*(*av).ops).insert, address.as_ptr().cast());
        assert_eq!(insert(av, address, 1, &raw mut fi_addr, 0, null_mut()), 1);
    }
    fi_addr
}

pub fn receive(ep: *mut FidEp, buffer: &mut u64, context: usize) -> isize {
    let buffer: *mut u64 = buffer;
    // SAFETY: the endpoint is open; the buffer outlives the wait for its completion.
    unsafe {
        let recv = (*(*ep).msg).recv;
        recv(ep, buffer.cast(), 8, null_mut(), UNSPEC, context as *mut _)
    }
}

pub fn send(ep: *mut FidEp, buffer: &u64, to: u64, context: usize) -> isize {
    let buffer: *const u64 = buffer;
    // SAFETY: as above.
    unsafe { ((*(*ep).msg).send)(ep, buffer.cast(), 8, null_mut(), to, context as *mut _) }
}

/// The next completion of `node`, and its source, while `others` are driven.
pub fn completion(node: Node, others: &[Node]) -> (CqTaggedEntry, u64) {
    let start = Instant::now();
    loop {
        // SAFETY: one entry and one source are asked for, and there is room for them.
        unsafe {
            let (mut entry, mut source) = (mem::zeroed::<CqTaggedEntry>(), 0);
            let readfrom = (*(*node.cq).ops).readfrom;
            match readfrom(node.cq, (&raw mut entry).cast(), 1, &raw mut source) {
                1 => return (entry, source),
                status => assert_eq!(status as c_int, code::AGAIN),
            }
        }
        others.iter().for_each(|other| other.progress());
        assert!(start.elapsed() < PATIENCE, "no completion came");
    }
}

#[test]
fn contexts_have_an_index_and_a_queue_each() {
    let Some(host) = host("contexts_have_an_index_and_a_queue_each") else { return };
    let world = scalable_world(host);
    let av = open_av(&world);
    let [ours, theirs] = [Portal::open(&world, av), Portal::open(&world, av)];
    let all: Vec<Node> = ours.nodes().chain(theirs.nodes()).collect();
    assert_eq!(insert(av, &name(ours.sep)), 0);
    assert_eq!(insert(av, &name(theirs.sep)), 1);
    // "The transmit and receive contexts share the transport-level address."
    assert_eq!(name(ours.transmit[1].ep), name(ours.sep));
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (sent, mut received) = (7 + from as u64, 0);
        assert_eq!(receive(theirs.receive[to].ep, &mut received, 3), 0);
        assert_eq!(send(ours.transmit[from].ep, &sent, named(1, to as u64), 4), 0);
        let (entry, source) = completion(theirs.receive[to], &all);
        assert_eq!((entry.op_context as usize, source, received), (3, 0, sent));
        assert_eq!(completion(ours.transmit[from], &all).0.op_context as usize, 4);
    }
    // SAFETY: all are open.
    unsafe {
        assert_eq!((*ours.sep).fid.fclass, class::SEP);
        assert_eq!((*ours.transmit[0].ep).fid.fclass, class::TX_CTX);
        assert_eq!((*ours.receive[0].ep).fid.fclass, class::RX_CTX);
    }
    for index in [-1, 2] {
        assert_eq!(tx_context(ours.sep, index, null_mut()), Err(code::INVAL));
        assert_eq!(rx_context(ours.sep, index, null_mut()), Err(code::INVAL));
    }
    assert_eq!(tx_context(ours.sep, 0, null_mut()), Err(code::BUSY));
    let mut buffer = 0;
    assert_eq!(receive(ours.transmit[0].ep, &mut buffer, 0) as c_int, code::OPNOTSUPP);
    assert_eq!(send(ours.receive[0].ep, &buffer, 1, 0) as c_int, code::OPNOTSUPP);
    // "Scalable endpoints cannot be used directly for communication operations".
    assert_eq!(send(ours.sep, &buffer, 1, 0) as c_int, code::NOSYS);
    assert_eq!(receive(ours.sep, &mut buffer, 0) as c_int, code::NOSYS);
    assert_eq!(bind(ours.sep, ours.transmit[0].cq, 0), code::INVAL);
    assert_eq!(bind(ours.sep, av, 0), code::INVAL);
    assert_eq!(close(av), code::BUSY);
    ours.close();
    theirs.close();
    assert_eq!(close(av), 0);
}

#[test]
fn a_context_tells_its_attributes() {
    let Some(host) = host("a_context_tells_its_attributes") else { return };
    let world = scalable_world(host);
    let sep = open_sep(&world).unwrap();
    // SAFETY: the info has all attributes.
    let (usual_tx, usual_rx) =
        unsafe { ((*world.info).tx_attr.read(), (*world.info).rx_attr.read()) };
    // SAFETY: attributes of zeroes are valid.
    let (mut tx, mut rx) = unsafe { (mem::zeroed::<TxAttr>(), mem::zeroed::<RxAttr>()) };
    tx.inject_size = 16;
    tx.size = 7;
    let transmit = tx_context(sep, 1, &raw mut tx).unwrap();
    assert_eq!((tx.inject_size, tx.size, tx.caps), (16, 7, usual_tx.caps));
    assert_eq!(tx.iov_limit, usual_tx.iov_limit);
    rx.caps = flag::MSG | flag::RECV | NAMED_RX_CTX;
    let receive = rx_context(sep, 1, &raw mut rx).unwrap();
    assert_eq!((rx.caps & (flag::TAGGED | NAMED_RX_CTX), rx.size), (0, usual_rx.size));
    for change in [
        (|tx: &mut TxAttr| tx.caps = flag::MSG | flag::WRITE) as fn(&mut TxAttr),
        |tx| tx.inject_size = usize::MAX / 2,
        |tx| tx.iov_limit = 9,
    ] {
        // SAFETY: as above.
        let mut tx = unsafe { mem::zeroed::<TxAttr>() };
        change(&mut tx);
        assert_eq!(tx_context(sep, 0, &raw mut tx), Err(code::INVAL));
    }
    for ep in [transmit, receive, sep] {
        assert_eq!(close(ep), 0);
    }
}

/// "By default, a transmit context inherits the properties of its associated endpoint."
#[test]
fn a_context_inherits_what_it_does_not_ask_for() {
    let Some(host) = host("a_context_inherits_what_it_does_not_ask_for") else { return };
    const DELIVERY_COMPLETE: u64 = 1 << 28;
    const COMPLETION: u64 = 1 << 24;
    const CLASS: u32 = 0x100 | 46;
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG | NAMED_RX_CTX;
        // SAFETY: hints have all attributes.
        unsafe {
            ((*hints.ep_attr).tx_ctx_cnt, (*hints.ep_attr).rx_ctx_cnt) = (2, 2);
            let (tx, rx) = (&mut *hints.tx_attr, &mut *hints.rx_attr);
            (tx.size, tx.inject_size, tx.op_flags, tx.tclass) = (100, 32, DELIVERY_COMPLETE, CLASS);
            (rx.size, rx.op_flags) = (77, COMPLETION);
        }
    });
    let sep = open_sep(&world).unwrap();
    // SAFETY: attributes of zeroes are valid.
    let (mut tx, mut rx) = unsafe { (mem::zeroed::<TxAttr>(), mem::zeroed::<RxAttr>()) };
    // Its packets leave from the one address of all contexts, and have that one's class.
    tx.tclass = 0x200;
    let transmit = tx_context(sep, 0, &raw mut tx).unwrap();
    assert_eq!((tx.size, tx.inject_size, tx.op_flags), (100, 32, DELIVERY_COMPLETE));
    assert_eq!(tx.tclass, CLASS);
    let receive = rx_context(sep, 0, &raw mut rx).unwrap();
    assert_eq!((rx.size, rx.op_flags), (77, COMPLETION));
    for ep in [transmit, receive, sep] {
        assert_eq!(close(ep), 0);
    }
}

/// A domain for endpoints that share both contexts.
pub fn sharing_world(host: &'static crate::host::Host, kind: u32) -> World {
    World::empty(host, |hints| share(hints, kind))
}

/// Asks for such endpoints.
pub fn share(hints: &mut Info, kind: u32) {
    // SAFETY: hints have all attributes.
    unsafe {
        (*hints.ep_attr).kind = kind;
        (*hints.ep_attr).tx_ctx_cnt = SHARED;
        (*hints.ep_attr).rx_ctx_cnt = SHARED;
    }
}

pub fn open_shared(world: &World) -> (*mut FidStx, *mut FidEp) {
    let mut stx = null_mut();
    // SAFETY: the domain is open, the attributes libfabric's.
    unsafe {
        let (open, tx) = ((*(*world.domain).ops).stx_ctx, (*world.info).tx_attr);
        assert_eq!(open(world.domain, tx, &raw mut stx, null_mut()), 0);
    }
    (stx, open_srx(world.domain, world.info))
}

pub fn open_srx(domain: *mut FidDomain, info: *mut Info) -> *mut FidEp {
    let mut srx = null_mut();
    // SAFETY: as above.
    unsafe {
        let (open, rx) = ((*(*domain).ops).srx_ctx, (*info).rx_attr);
        assert_eq!(open(domain, rx, &raw mut srx, null_mut()), 0);
    }
    srx
}

/// Two endpoints that share both.
pub fn open_sharers(world: &mut World, stx: *mut FidStx, srx: *mut FidEp) -> [Node; 2] {
    [(); 2].map(|()| {
        let node = open_sharer(world, &[world.av.cast(), stx.cast(), srx]);
        world.insert(node.ep);
        world.nodes.push(node);
        node
    })
}

/// An endpoint that is bound to all of these.
pub fn open_sharer(world: &World, shared: &[*mut FidEp]) -> Node {
    let cq: *mut FidCq = world.open_cq(&mut cq_attr()).unwrap();
    let ep = world.open_ep();
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    for &shared in shared {
        assert_eq!(bind(ep, shared, 0), 0);
    }
    assert_eq!(enable(ep), 0);
    Node { cq, ep }
}

/// Closes the endpoints and then what they shared.
pub fn close_sharers(world: &mut World, stx: *mut FidStx, srx: *mut FidEp) {
    for node in world.nodes.drain(..) {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    assert_eq!((close(stx), close(srx)), (0, 0));
}

#[test]
fn endpoints_share_contexts() {
    let Some(host) = host("endpoints_share_contexts") else { return };
    share_contexts(host, kind::RDM);
}

#[test]
fn endpoints_of_datagrams_share_contexts() {
    let Some(host) = host("endpoints_of_datagrams_share_contexts") else { return };
    share_contexts(host, kind::DGRAM);
}

fn share_contexts(host: &'static crate::host::Host, kind: u32) {
    let mut world = sharing_world(host, kind);
    let (stx, srx) = open_shared(&world);
    // SAFETY: both are open, and the attributes libfabric's.
    unsafe {
        assert_eq!(((*stx).fid.fclass, (*srx).fid.fclass), (class::STX_CTX, class::SRX_CTX));
        // Its class is its own, and those of its endpoints theirs.
        let mut attr = TxAttr { tclass: LOW_LATENCY, ..*(*world.info).tx_attr };
        let mut classed = null_mut();
        let open = (*(*world.domain).ops).stx_ctx;
        assert_eq!(open(world.domain, &raw mut attr, &raw mut classed, null_mut()), 0);
        assert_eq!((attr.tclass, close(classed)), (LOW_LATENCY, 0));
    }
    assert_eq!(enable(srx), 0);
    for index in 0..3 {
        let cq = world.open_cq(&mut cq_attr()).unwrap();
        let ep = world.open_ep();
        assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
        assert_eq!(bind(ep, world.av, 0), 0);
        assert_eq!(enable(ep), code::OPBADSTATE, "no shared context is bound");
        assert_eq!(bind(ep, stx, 0), 0);
        assert_eq!(enable(ep), code::OPBADSTATE, "no shared receive context is bound");
        assert_eq!(bind(ep, srx, 0), 0);
        assert_eq!(bind(ep, srx, 0), code::INVAL, "bound twice");
        assert_eq!(enable(ep), 0);
        assert_eq!(world.insert(ep), index);
        world.nodes.push(Node { cq, ep });
    }
    let nodes = world.nodes.clone();
    // Whoever gets a message takes the next receive, and reports it.
    let (mut received, sent) = ([0; 4], 77);
    for (context, buffer) in received.iter_mut().enumerate() {
        assert_eq!(receive(srx, buffer, context), 0);
    }
    for (turn, to) in [2, 0, 1].into_iter().enumerate() {
        assert_eq!(send(nodes[1].ep, &sent, to, 9), 0);
        let receiver = nodes[to as usize];
        let mut entry = world.completion(receiver);
        if to == 1 && entry.flags & flag::SEND != 0 {
            entry = world.completion(receiver);
        } else {
            assert_eq!(world.completion(nodes[1]).op_context as usize, 9);
        }
        assert_eq!((entry.op_context as usize, received[turn]), (turn, sent));
    }
    let mut buffer = 0;
    assert_eq!(receive(nodes[0].ep, &mut buffer, 0) as c_int, code::OPNOTSUPP);
    assert_eq!(send(srx, &buffer, 0, 0) as c_int, code::NOSYS);
    // SAFETY: the context is open.
    unsafe {
        assert_eq!(((*(*srx).ops).cancel)(srx.cast(), 3 as *mut _), 0);
        assert!(((*(*srx).ops).rx_size_left)(srx) > 0);
    }
    // No message came for it: one of the endpoints says so.
    assert_eq!(nodes[0].read().err(), Some(code::AVAIL));
    let canceled = nodes[0].read_error().unwrap();
    assert_eq!((canceled.op_context as usize, canceled.err), (3, CANCELED));
    for shared in [stx.cast(), srx] {
        assert_eq!(close(shared), code::BUSY, "endpoints are bound");
    }
    for node in world.nodes.drain(..) {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    for shared in [stx.cast(), srx] {
        assert_eq!((close(shared), close(shared)), (0, code::BADF));
    }
}

#[test]
fn one_buffer_takes_the_messages_of_several_endpoints() {
    let Some(host) = host("one_buffer_takes_the_messages_of_several_endpoints") else { return };
    let mut world = sharing_world(host, kind::RDM);
    let (stx, srx) = open_shared(&world);
    let nodes = open_sharers(&mut world, stx, srx);
    let mut minimum = 8_usize;
    let mut buffer = [0_u64; 2];
    // SAFETY: the context is open, the value a `size_t`; the buffer outlives the receive.
    unsafe {
        let (setopt, getopt) = ((*(*srx).ops).setopt, (*(*srx).ops).getopt);
        let place = (&raw mut minimum).cast();
        assert_eq!(setopt(srx.cast(), 0, MIN_MULTI_RECV, place, 8), 0);
        minimum = 0;
        let mut length = 8;
        let place = (&raw mut minimum).cast();
        assert_eq!(getopt(srx.cast(), 0, MIN_MULTI_RECV, place, &raw mut length), 0);
        assert_eq!(minimum, 8);
        let iov = crate::abi::attributes::Iovec { base: (&raw mut buffer).cast(), len: 16 };
        let mut msg: crate::abi::message::Msg = mem::zeroed();
        (msg.msg_iov, msg.iov_count, msg.addr) = (&raw const iov, 1, UNSPEC);
        assert_eq!(((*(*srx).msg).recvmsg)(srx, &raw const msg, flag::MULTI_RECV), 0);
    }
    let (mut messages, mut released) = (0, 0);
    for (to, sent) in [(1, &5), (0, &6)] {
        assert_eq!(send(nodes[0].ep, sent, to, 9), 0);
    }
    let start = Instant::now();
    while (messages, released) != (2, 1) {
        for node in &nodes {
            match node.read() {
                Ok(entry) if entry.flags & flag::MULTI_RECV != 0 => {
                    assert_eq!(entry.flags, flag::MULTI_RECV, "no message came with it");
                    released += 1;
                }
                Ok(entry) if entry.flags & flag::RECV != 0 => messages += 1,
                Ok(_) | Err(code::AGAIN) => {}
                Err(status) => panic!("{status}"),
            }
        }
        assert!(start.elapsed() < PATIENCE, "no release came");
    }
    buffer.sort_unstable();
    assert_eq!((messages, released, buffer), (2, 1, [5, 6]));
    close_sharers(&mut world, stx, srx);
}

#[test]
fn what_is_not_shared_takes_no_context() {
    let Some(host) = host("what_is_not_shared_takes_no_context") else { return };
    let world = World::empty(host, |_| {});
    let (stx, srx) = open_shared(&world);
    let ep = world.open_ep();
    assert_eq!((bind(ep, stx, 0), bind(ep, srx, 0)), (code::INVAL, code::INVAL));
    for object in [ep, stx.cast(), srx] {
        assert_eq!(close(object), 0);
    }
}
