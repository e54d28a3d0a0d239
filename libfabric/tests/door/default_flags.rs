//! What calls without flags do by an endpoint's default flags. Reference: fi_endpoint(3),
//! "OPERATION FLAGS".

use std::{
    ffi::c_void,
    ptr::{null_mut, without_provenance_mut},
};

use crate::{
    abi::{atomic::Ioc, attributes::Iovec, fid::FidEp},
    code, flag,
    host::host,
    one_sided::register,
    world::{World, cq_attr},
};

const INJECT: u64 = 1 << 25;
const DELIVERY_COMPLETE: u64 = 1 << 28;
const NONE: *mut c_void = null_mut();
const UINT64: u32 = 7;
const SUM: u32 = 2;
const CSWAP: u32 = 12;

/// Two endpoints whose transmit calls have these flags.
fn world(host: &'static crate::host::Host, transmit: u64, receive: u64) -> World {
    let mut world = World::empty(host, |hints| {
        // SAFETY: hints have all attributes.
        unsafe {
            ((*hints.tx_attr).op_flags, (*hints.rx_attr).op_flags) = (transmit, receive);
        }
    });
    for _ in 0..2 {
        world.add_node(&mut cq_attr(), 0);
    }
    world
}

/// What an atomic operation of an endpoint's reads and writes here.
struct Words {
    operand: u64,
    compare: u64,
    result: u64,
}

impl Words {
    /// Adds by `fi_atomic`.
    fn add(&mut self, ep: *mut FidEp) -> isize {
        let operand = (&raw mut self.operand).cast();
        // SAFETY: the endpoint is open, and the words stay where they are.
        unsafe { ((*(*ep).atomic).write)(ep, operand, 1, NONE, 1, 0, 17, UINT64, SUM, NONE) }
    }

    /// Adds by `fi_atomicv`.
    fn add_listed(&mut self, ep: *mut FidEp) -> isize {
        let ioc = Ioc { addr: (&raw mut self.operand).cast(), count: 1 };
        let (list, none) = (&raw const ioc, null_mut());
        // SAFETY: as above.
        unsafe { ((*(*ep).atomic).writev)(ep, list, none, 1, 1, 0, 17, UINT64, SUM, NONE) }
    }

    /// Adds by `fi_fetch_atomic`.
    fn fetch(&mut self, ep: *mut FidEp) -> isize {
        let [operand, result] = [&raw mut self.operand, &raw mut self.result].map(|at| at.cast());
        // SAFETY: as above.
        unsafe {
            let call = (*(*ep).atomic).readwrite;
            call(ep, operand, 1, NONE, result, NONE, 1, 0, 17, UINT64, SUM, NONE)
        }
    }

    /// Swaps by `fi_compare_atomic`.
    fn swap(&mut self, ep: *mut FidEp) -> isize {
        let [operand, compare, result] =
            [&raw mut self.operand, &raw mut self.compare, &raw mut self.result]
                .map(|at| at.cast::<c_void>());
        // SAFETY: as above.
        unsafe {
            let call = (*(*ep).atomic).compwrite;
            call(ep, operand, 1, NONE, compare, NONE, result, NONE, 1, 0, 17, UINT64, CSWAP, NONE)
        }
    }
}

/// "FI_INJECT: Indicates that all outbound data buffers should be returned to the user's control
/// immediately after a data transfer call returns": of an operation that waits for its peer as well.
#[test]
fn operands_are_free_at_once() {
    let Some(host) = host("operands_are_free_at_once") else { return };
    type Call = fn(&mut Words, *mut FidEp) -> isize;
    let calls: [(&str, Call, u64); 4] = [
        ("fi_atomic", Words::add, 42),
        ("fi_atomicv", Words::add_listed, 42),
        ("fi_fetch_atomic", Words::fetch, 42),
        ("fi_compare_atomic", Words::swap, 2),
    ];
    for (name, call, expected) in calls {
        // Each in a world of its own: nobody is connected yet, so that nothing can leave.
        let world = world(host, INJECT, 0);
        let from = world.nodes[0];
        let mut memory = vec![40_u64];
        let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
        let mut words = Words { operand: 2, compare: 40, result: 0 };
        assert_eq!(call(&mut words, from.ep), 0, "{name}");
        let (operand, compare) = (&raw mut words.operand, &raw mut words.compare);
        // SAFETY: they are ours again.
        unsafe {
            operand.write_volatile(1000);
            compare.write_volatile(1000);
        }
        world.completion(from);
        // SAFETY: the memory is there.
        assert_eq!(unsafe { (&raw const memory[0]).read_volatile() }, expected, "{name}");
        let fetched = if name.starts_with("fi_atomic") { 0 } else { 40 };
        // SAFETY: a result is not outbound: it comes with the completion.
        assert_eq!(unsafe { (&raw const words.result).read_volatile() }, fetched, "{name}");
        assert_eq!(crate::world::close(mr), 0);
    }
}

/// "FI_DELIVERY_COMPLETE: Indicates that a completion should be generated when the operation has
/// been processed by the destination endpoint(s)."
#[test]
fn a_send_completes_when_it_is_delivered() {
    let Some(host) = host("a_send_completes_when_it_is_delivered") else { return };
    for (flags, early) in [(0, true), (DELIVERY_COMPLETE, false)] {
        let world = world(host, flags, 0);
        let [from, to] = [world.nodes[0], world.nodes[1]];
        // The peer is connected by then.
        assert_eq!(from.send(b"first", 1, 0), 0);
        world.completion(from);
        assert_eq!(from.send(b"second", 1, 0), 0);
        let told = (0..1000).any(|_| from.read().is_ok());
        assert_eq!(told, early, "the peer's engine was not driven");
        if !told {
            to.progress();
            world.completion(from);
        }
    }
}

/// "FI_MULTI_RECV: … This flag allows the user to post a single buffer that will receive multiple
/// incoming messages."
#[test]
fn a_receive_takes_several_messages() {
    let Some(host) = host("a_receive_takes_several_messages") else { return };
    let world = world(host, 0, flag::MULTI_RECV);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut buffer = [0_u8; 256];
    // SAFETY: the endpoint is open, and the buffer outlives it.
    let posted = unsafe {
        let recv = (*(*to.ep).msg).recv;
        recv(to.ep, buffer.as_mut_ptr().cast(), buffer.len(), NONE, u64::MAX, NONE)
    };
    assert_eq!(posted, 0);
    let messages: [&[u8]; 3] = [b"one", b"two", &[7; 200]];
    for (bytes, released) in messages.into_iter().zip([0, 0, flag::MULTI_RECV]) {
        assert_eq!(from.send(bytes, 1, 0), 0);
        let entry = world.completion(to);
        assert_eq!((entry.len, entry.flags & flag::MULTI_RECV), (bytes.len(), released));
        // SAFETY: so much of the buffer was filled.
        let filled = unsafe { std::slice::from_raw_parts(entry.buf.cast::<u8>(), entry.len) };
        assert_eq!(filled, bytes);
        world.completion(from);
    }
    assert_eq!(to.read().err(), Some(code::AGAIN));
}

/// Posts two receives of one tag, by `fi_trecv` and `fi_trecvv`, and has two messages of it come.
/// Answers the contexts of the entries, and how many say that a buffer is released.
fn two_tagged(world: &World) -> ([usize; 2], usize) {
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut rooms = [[0_u8; 256]; 2];
    let [first, second] = rooms.each_mut().map(|room| room.as_mut_ptr().cast::<c_void>());
    let list = Iovec { base: second, len: 256 };
    // SAFETY: the endpoint is open, and the buffers outlive the receives or the messages that come.
    unsafe {
        let (ops, [one, two]) = (&*(*to.ep).tagged, [1, 2].map(without_provenance_mut));
        assert_eq!((ops.recv)(to.ep, first, 256, NONE, u64::MAX, 7, 0, one), 0);
        let none = null_mut();
        assert_eq!((ops.recvv)(to.ep, &raw const list, none, 1, u64::MAX, 7, 0, two), 0);
    }
    let mut released = 0;
    let contexts = [b"one", b"two"].map(|bytes| {
        let start = bytes.as_ptr().cast();
        // SAFETY: the endpoint is open, and the bytes are constants.
        let sent = unsafe { ((*(*from.ep).tagged).send)(from.ep, start, 3, NONE, 1, 7, NONE) };
        assert_eq!(sent, 0);
        let entry = world.completion(to);
        assert_eq!(entry.len, 3);
        released += usize::from(entry.flags & flag::MULTI_RECV != 0);
        world.completion(from);
        entry.op_context as usize
    });
    (contexts, released)
}

/// fi_tagged(3) of version 1.17 knows of no FI_MULTI_RECV: who takes several messages by a default flag
/// gets one tagged message from each receive, into a buffer that is its own again.
#[test]
fn a_tagged_receive_takes_one_message() {
    let Some(host) = host("a_tagged_receive_takes_one_message") else { return };
    let world = world(host, 0, flag::MULTI_RECV);
    assert_eq!(two_tagged(&world), ([1, 2], 0));
}

/// "Applies to posted tagged receive operations when the FI_TAGGED_MULTI_RECV capability is enabled":
/// since version 2.1, and for who asked.
#[test]
fn a_tagged_receive_takes_several_where_that_was_asked_for() {
    let Some(host) = host("a_tagged_receive_takes_several_where_that_was_asked_for") else {
        return;
    };
    for (asked, contexts) in [(0, [1, 2]), (flag::TAGGED_MULTI_RECV, [1, 1])] {
        let mut world = World::empty(host, |_| {});
        world.reopen_as(2 << 16 | 1);
        // SAFETY: the info has all attributes.
        unsafe {
            let receive = &mut *(*world.info).rx_attr;
            (*world.info).caps |= asked;
            receive.caps |= asked;
            receive.op_flags = flag::MULTI_RECV;
        }
        for _ in 0..2 {
            world.add_node(&mut cq_attr(), 0);
        }
        assert_eq!(two_tagged(&world), (contexts, 0));
    }
}
