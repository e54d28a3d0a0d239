//! Triggered operations, through the flag FI_TRIGGER and the context of a call.

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{
        atomic::{Ioc, MsgAtomic, RmaIoc},
        attributes::{CntrAttr, Iovec},
        fid::{FidCntr, FidEp},
        message::{Msg, MsgRma, MsgTagged, RmaIov},
        trigger::{Trigger, TriggerThreshold, TriggeredContext},
    },
    aliases::alias,
    code, flag,
    host::host,
    kind,
    one_sided::{KEY, register},
    tagged::INJECT,
    world::{World, bind, close, cq_attr, info},
};

pub const TRIGGER: u64 = 1 << 20;
const XPU: u32 = 1;
const UINT64: u32 = 7;
const SUM: u32 = 2;

/// A domain whose endpoints can be triggered.
fn domain(host: &'static crate::host::Host) -> World {
    World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | flag::RMA | flag::ATOMIC | TRIGGER;
    })
}

/// Such a domain with two endpoints.
pub fn world(host: &'static crate::host::Host) -> World {
    let mut world = domain(host);
    for _ in 0..2 {
        world.add_node(&mut cq_attr(), 0);
    }
    world
}

pub fn counter(world: &World) -> *mut FidCntr {
    let mut cntr = null_mut();
    // SAFETY: the domain is open; zeroes are the defaults.
    unsafe {
        let mut attr: CntrAttr = std::mem::zeroed();
        let open = (*(*world.domain).ops).cntr_open;
        assert_eq!(open(world.domain, &raw mut attr, &raw mut cntr, null_mut()), 0);
    }
    cntr
}

/// `fi_cntr_add`.
pub fn add(cntr: *mut FidCntr, value: u64) {
    // SAFETY: the counter is open.
    assert_eq!(unsafe { ((*(*cntr).ops).add)(cntr, value) }, 0);
}

/// `fi_cntr_set`.
fn set(cntr: *mut FidCntr, value: u64) {
    // SAFETY: the counter is open.
    assert_eq!(unsafe { ((*(*cntr).ops).set)(cntr, value) }, 0);
}

/// `fi_cntr_adderr`.
pub fn add_errors(cntr: *mut FidCntr, value: u64) {
    // SAFETY: the counter is open.
    assert_eq!(unsafe { ((*(*cntr).ops).adderr)(cntr, value) }, 0);
}

/// `fi_cntr_read`.
pub fn value(cntr: *mut FidCntr) -> u64 {
    // SAFETY: the counter is open.
    unsafe { ((*(*cntr).ops).read)(cntr) }
}

/// What an operation with the flag FI_TRIGGER has for its context.
pub fn when(cntr: *mut FidCntr, threshold: usize) -> Box<TriggeredContext> {
    let threshold = TriggerThreshold { cntr, threshold };
    Box::new(TriggeredContext { event_type: 0, trigger: Trigger { threshold } })
}

/// The same for several thresholds, and where each is.
fn conditions(
    cntr: *mut FidCntr,
    thresholds: impl IntoIterator<Item = usize>,
) -> (Vec<TriggeredContext>, Vec<*mut c_void>) {
    let mut all: Vec<_> = thresholds.into_iter().map(|threshold| *when(cntr, threshold)).collect();
    let at = all.iter_mut().map(|each| (&raw mut *each).cast()).collect();
    (all, at)
}

pub fn iovec(bytes: &mut [u64]) -> Iovec {
    Iovec { base: bytes.as_mut_ptr().cast(), len: size_of_val(bytes) }
}

pub fn msg(iov: &Iovec, addr: u64, context: *mut c_void) -> Msg {
    Msg { msg_iov: iov, desc: null_mut(), iov_count: 1, addr, context, data: 0 }
}

pub fn tagged(iov: &Iovec, addr: u64, tag: u64, context: *mut c_void) -> MsgTagged {
    let Msg { msg_iov, desc, iov_count, addr, context, data } = msg(iov, addr, context);
    MsgTagged { msg_iov, desc, iov_count, addr, tag, ignore: 0, context, data }
}

pub fn rma(iov: &Iovec, rma_iov: &RmaIov, context: *mut c_void) -> MsgRma {
    let Msg { msg_iov, desc, iov_count, addr, context, data } = msg(iov, 1, context);
    MsgRma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count: 1, context, data }
}

pub fn atomic(ioc: &Ioc, rma_iov: &RmaIoc, context: *mut c_void) -> MsgAtomic {
    MsgAtomic {
        msg_iov: ioc,
        desc: null_mut(),
        iov_count: 1,
        addr: 1,
        rma_iov,
        rma_iov_count: 1,
        datatype: UINT64,
        op: SUM,
        context,
        data: 0,
    }
}

/// No completion comes in some rounds.
pub fn nothing(world: &World) {
    for _ in 0..100 {
        for node in &world.nodes {
            assert_eq!(node.read().err(), Some(code::AGAIN));
        }
    }
}

#[test]
fn messages_wait_for_their_threshold() {
    let Some(host) = host("messages_wait_for_their_threshold") else { return };
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let cntr = counter(&world);
    let (mut sent, mut received) = ([1_u64, 2, 3, 4], [0_u64; 4]);
    let (out, into) = (iovec(&mut sent), iovec(&mut received));
    let (_contexts, at) = conditions(cntr, [2, 3, 2, 1]);
    // SAFETY: buffers and contexts live until the completions have come.
    unsafe {
        let (ops, tagged_ops) = (&*(*from.ep).msg, &*(*from.ep).tagged);
        assert_eq!((tagged_ops.sendmsg)(from.ep, &tagged(&out, 1, 9, at[1]), TRIGGER), 0);
        assert_eq!((ops.sendmsg)(from.ep, &msg(&out, 1, at[0]), TRIGGER), 0);
        let (ops, tagged_ops) = (&*(*to.ep).msg, &*(*to.ep).tagged);
        assert_eq!((tagged_ops.recvmsg)(to.ep, &tagged(&into, 0, 9, at[2]), TRIGGER), 0);
        assert_eq!((ops.recvmsg)(to.ep, &msg(&into, 0, at[3]), TRIGGER), 0);
    }
    nothing(&world);
    assert_eq!(close(cntr), code::BUSY);
    add(cntr, 2);
    assert_eq!(world.completion(from).op_context, at[0]);
    assert_eq!(world.completion(to).op_context, at[3]);
    assert_eq!(received, sent);
    received.fill(0);
    nothing(&world);
    add(cntr, 1);
    assert_eq!(world.completion(from).op_context, at[1]);
    let entry = world.completion(to);
    assert_eq!((entry.op_context, entry.tag), (at[2], 9));
    assert_eq!(received, sent);
    assert_eq!(close(cntr), 0);
}

#[test]
fn one_sided_operations_wait_for_their_threshold() {
    let Some(host) = host("one_sided_operations_wait_for_their_threshold") else { return };
    let world = world(host);
    let from = world.nodes[0];
    let cntr = counter(&world);
    let mut memory = [40_u64, 0];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (mut sent, mut read, mut old) = ([5_u64], [0_u64], [0_u64]);
    let (out, into) = (iovec(&mut sent), iovec(&mut read));
    let operand = Ioc { addr: sent.as_mut_ptr().cast(), count: 1 };
    let mut result = Ioc { addr: old.as_mut_ptr().cast(), count: 1 };
    let (_contexts, at) = conditions(cntr, 1..=4);
    let (iov, ioc) = (RmaIov { addr: 0, len: 8, key: KEY }, RmaIoc { addr: 0, count: 1, key: KEY });
    // SAFETY: buffers, contexts and the region live until the completions have come.
    unsafe {
        let (ops, atomics) = (&*(*from.ep).rma, &*(*from.ep).atomic);
        assert_eq!((ops.readmsg)(from.ep, &rma(&into, &iov, at[3]), TRIGGER), 0);
        let fetch = atomic(&operand, &ioc, at[2]);
        let place = &raw mut result;
        assert_eq!((atomics.readwritemsg)(from.ep, &fetch, place, null_mut(), 1, TRIGGER), 0);
        assert_eq!((atomics.writemsg)(from.ep, &atomic(&operand, &ioc, at[1]), TRIGGER), 0);
        assert_eq!((ops.writemsg)(from.ep, &rma(&out, &iov, at[0]), TRIGGER), 0);
    }
    nothing(&world);
    for context in at {
        add(cntr, 1);
        assert_eq!(world.completion(from).op_context, context);
    }
    assert_eq!((memory[0], read, old), (15, [15], [10]));
    assert_eq!((close(mr), close(cntr)), (0, 0));
}

/// "If the condition is met when the request is made": then nothing waits for the counter.
#[test]
fn what_is_due_already_starts_at_once() {
    let Some(host) = host("what_is_due_already_starts_at_once") else { return };
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let [due, later] = [(); 2].map(|()| counter(&world));
    let (mut sent, mut received) = ([7_u64], [0_u64]);
    let (out, into) = (iovec(&mut sent), iovec(&mut received));
    let ((_due, at), mut last) = (conditions(due, [9, 4]), when(later, 10));
    let last: *mut c_void = (&raw mut *last).cast();
    [due, later].into_iter().for_each(|cntr| set(cntr, 9));
    // SAFETY: buffers and contexts live until the completions have come.
    let send =
        |context| unsafe { ((*(*from.ep).msg).sendmsg)(from.ep, &msg(&out, 1, context), TRIGGER) };
    // SAFETY: as above.
    unsafe {
        let receive = (*(*to.ep).msg).recvmsg;
        assert_eq!(receive(to.ep, &msg(&into, 0, at[0]), TRIGGER), 0);
    }
    assert_eq!((send(at[1]), send(last)), (0, 0));
    assert_eq!((close(due), close(later)), (0, code::BUSY));
    assert_eq!(world.completion(from).op_context, at[1]);
    assert_eq!(world.completion(to).op_context, at[0]);
    assert_eq!(received, sent);
    add_errors(later, 1);
    nothing(&world);
    set(later, 10);
    assert_eq!(world.completion(from).op_context, last);
    assert_eq!(close(later), 0);
}

/// Each link is counted where the next one waits: the initiator's operations, then what its peer has
/// received.
#[test]
fn an_operation_starts_the_next() {
    let Some(host) = host("an_operation_starts_the_next") else { return };
    let mut world = domain(host);
    let [done, heard] = [(); 2].map(|()| counter(&world));
    let counted = flag::SEND | flag::READ | flag::WRITE;
    let [from, to] = [(done, counted), (heard, flag::RECV)].map(|(cntr, flags)| {
        let ep = world.open_ep();
        assert_eq!(bind(ep, cntr, flags), 0);
        world.add(ep, &mut cq_attr(), 0)
    });
    let mut memory = [40_u64];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (mut five, mut old, mut read) = ([5_u64], [0_u64], [0_u64]);
    let (mut passed, mut back) = ([0_u64], [0_u8; 8]);
    let (out, into, on) = (iovec(&mut five), iovec(&mut read), iovec(&mut passed));
    let operand = Ioc { addr: out.base, count: 1 };
    let mut result = Ioc { addr: old.as_mut_ptr().cast(), count: 1 };
    let (iov, ioc) = (RmaIov { addr: 0, len: 8, key: KEY }, RmaIoc { addr: 0, count: 1, key: KEY });
    let ((_done, at), mut answer) = (conditions(done, 1..=4), when(heard, 1));
    let answer: *mut c_void = (&raw mut *answer).cast();
    let none = null_mut::<c_void>();
    // SAFETY: buffers, contexts and the region live until the completions have come.
    unsafe {
        let (ops, rmas, atomics) = (&*(*to.ep).msg, &*(*from.ep).rma, &*(*from.ep).atomic);
        assert_eq!((ops.sendmsg)(to.ep, &msg(&on, 0, answer), TRIGGER), 0);
        assert_eq!((ops.recvmsg)(to.ep, &msg(&on, 0, none), 0), 0);
        assert_eq!(from.receive(&mut back, 1, 6), 0);
        let ops = &*(*from.ep).msg;
        assert_eq!((ops.sendmsg)(from.ep, &msg(&into, 1, at[3]), TRIGGER), 0);
        assert_eq!((rmas.readmsg)(from.ep, &rma(&into, &iov, at[2]), TRIGGER), 0);
        let fetch = atomic(&operand, &ioc, at[1]);
        let place = &raw mut result;
        assert_eq!((atomics.readwritemsg)(from.ep, &fetch, place, null_mut(), 1, TRIGGER), 0);
        assert_eq!((rmas.writemsg)(from.ep, &rma(&out, &iov, at[0]), TRIGGER), 0);
        nothing(&world);
        assert_eq!((rmas.write)(from.ep, out.base, 0, none, 1, 0, KEY, none), 0);
    }
    for context in [none, at[0], at[1], at[2], at[3], 6 as *mut c_void] {
        assert_eq!(world.completion(from).op_context, context);
    }
    assert_eq!([none, answer].map(|_| world.completion(to).op_context), [none, answer]);
    assert_eq!((memory, old, read, passed), ([10], [5], [10], [10]));
    assert_eq!((back, value(done), value(heard)), (10_u64.to_ne_bytes(), 5, 1));
    world.nodes.drain(..).for_each(|node| assert_eq!((close(node.ep), close(node.cq)), (0, 0)));
    assert_eq!((close(mr), close(done), close(heard)), (0, 0, 0));
}

#[test]
fn an_injected_buffer_is_free_while_it_waits() {
    let Some(host) = host("an_injected_buffer_is_free_while_it_waits") else { return };
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let cntr = counter(&world);
    let mut memory = [0_u64];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (mut word, mut plain, mut other) = ([0_u64], [0_u64], [0_u64]);
    let (out, into, into_other) = (iovec(&mut word), iovec(&mut plain), iovec(&mut other));
    let operand = Ioc { addr: out.base, count: 1 };
    let (iov, ioc) = (RmaIov { addr: 0, len: 8, key: KEY }, RmaIoc { addr: 0, count: 1, key: KEY });
    let (_contexts, at) = conditions(cntr, 1..=4);
    // SAFETY: the word is there; what is posted may not look at it any more.
    let put = |value: u64| unsafe { out.base.cast::<u64>().write_volatile(value) };
    let posted = |value: u64, post: &dyn Fn() -> isize| {
        put(value);
        assert_eq!(post(), 0);
        put(99);
    };
    // SAFETY: buffers, contexts and the region live until the completions have come.
    unsafe {
        let (messages, tags) = (&*(*from.ep).msg, &*(*from.ep).tagged);
        let (rmas, atomics) = (&*(*from.ep).rma, &*(*from.ep).atomic);
        let (ep, flags, none) = (from.ep, TRIGGER | INJECT, null_mut());
        assert_eq!((messages.recvmsg)(to.ep, &msg(&into, 0, none), 0), 0);
        assert_eq!((tags.recvmsg)(to.ep, &tagged(&into_other, 0, 3, none), 0), 0);
        posted(5, &|| (rmas.writemsg)(ep, &rma(&out, &iov, at[0]), flags));
        posted(6, &|| (atomics.writemsg)(ep, &atomic(&operand, &ioc, at[1]), flags));
        posted(7, &|| (messages.sendmsg)(ep, &msg(&out, 1, at[2]), flags));
        posted(8, &|| (tags.sendmsg)(ep, &tagged(&out, 1, 3, at[3]), flags));
    }
    nothing(&world);
    for context in at {
        add(cntr, 1);
        assert_eq!(world.completion(from).op_context, context);
    }
    for _ in 0..2 {
        world.completion(to);
    }
    assert_eq!((memory, plain, other), ([11], [7], [8]));
    assert_eq!((close(mr), close(cntr)), (0, 0));
}

/// "fi_ep_alias": with the flag, every call's context says when.
#[test]
fn an_alias_may_trigger_all_its_operations() {
    let Some(host) = host("an_alias_may_trigger_all_its_operations") else { return };
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let sends = alias(from.ep, flag::SEND | TRIGGER).unwrap();
    let receives = alias(to.ep, flag::RECV | TRIGGER).unwrap();
    let cntr = counter(&world);
    let mut memory = [40_u64];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (mut sent, mut read, mut received) = ([5_u64], [0_u64], [0_u64]);
    let (_contexts, at) = conditions(cntr, 1..=5);
    let (out, none) = (sent.as_mut_ptr().cast::<c_void>(), null_mut());
    // SAFETY: buffers, contexts and the region live until the completions have come.
    unsafe {
        let (rma, atomics) = (&*(*sends).rma, &*(*sends).atomic);
        let recv = (*(*receives).msg).recv;
        assert_eq!(recv(receives, received.as_mut_ptr().cast(), 8, none, u64::MAX, at[3]), 0);
        let send = (*(*sends).msg).send;
        assert_eq!(send(sends, out, 8, none, 1, at[4]), 0);
        let into = read.as_mut_ptr().cast();
        assert_eq!((rma.read)(sends, into, 8, none, 1, 0, KEY, at[2]), 0);
        let write = atomics.write;
        assert_eq!(write(sends, out, 1, none, 1, 0, KEY, UINT64, SUM, at[1]), 0);
        assert_eq!((rma.write)(sends, out, 8, none, 1, 0, KEY, at[0]), 0);
        // The endpoint's own calls are as they were, and what has no context is done at once.
        assert_eq!(((*(*from.ep).rma).write)(from.ep, out, 0, none, 1, 0, KEY, none), 0);
        assert_eq!((rma.inject)(sends, out, 8, 1, 0, KEY), 0);
    }
    assert_eq!(world.completion(from).op_context, none);
    nothing(&world);
    for context in &at[..3] {
        add(cntr, 1);
        assert_eq!(world.completion(from).op_context, *context);
    }
    assert_eq!((memory[0], read), (10, [10]));
    add(cntr, 2);
    assert_eq!(world.completion(from).op_context, at[4]);
    assert_eq!(world.completion(to).op_context, at[3]);
    assert_eq!(received, [5]);
    let plain = World::new(host, 1);
    assert_eq!(alias(plain.nodes[0].ep, flag::SEND | TRIGGER).err(), Some(code::BADFLAGS));
    assert_eq!((close(receives), close(sends), close(mr), close(cntr)), (0, 0, 0, 0));
}

#[test]
fn what_has_no_condition_is_refused() {
    let Some(host) = host("what_has_no_condition_is_refused") else { return };
    let world = world(host);
    let plain = World::new(host, 1);
    let cntr = counter(&world);
    let mut bytes = [0_u64];
    let out = iovec(&mut bytes);
    let send = |ep: *mut FidEp, context: *mut TriggeredContext| {
        // SAFETY: the context is null or lives as long as it takes.
        unsafe { ((*(*ep).msg).sendmsg)(ep, &msg(&out, 0, context.cast()), TRIGGER) }
    };
    let ep = world.nodes[0].ep;
    assert_eq!(send(ep, null_mut()), code::INVAL as isize);
    assert_eq!(send(ep, &raw mut *when(null_mut(), 1)), code::INVAL as isize);
    assert_eq!(send(ep, &raw mut *when(ep.cast(), 1)), code::INVAL as isize);
    let mut other = when(cntr, 1);
    other.event_type = XPU;
    assert_eq!(send(ep, &raw mut *other), code::NOSYS as isize);
    let mut good = when(cntr, 1);
    let at = &raw mut *good;
    let own = counter(&plain);
    let plain_ep = plain.nodes[0].ep;
    assert_eq!(send(plain_ep, &raw mut *when(own, 1)), code::OPNOTSUPP as isize);
    // Its context is the application's own, and nobody looks into it.
    assert_eq!(send(plain_ep, std::ptr::dangling_mut()), code::OPNOTSUPP as isize);
    assert_eq!(send(ep, at), 0);
    // SAFETY: the endpoint is open.
    unsafe {
        let cancel = (*(*ep).ops).cancel;
        assert_eq!(cancel(ep.cast(), at.cast()), 0);
        assert_eq!(cancel(ep.cast(), at.cast()), code::NOENT as isize);
    }
    assert_eq!(world.nodes[0].read().err(), Some(code::AVAIL));
    assert_eq!(world.nodes[0].read_error().unwrap().op_context, at.cast());
    assert_eq!((close(own), close(cntr)), (0, 0));
}

#[test]
fn triggers_are_for_who_asks() {
    let Some(host) = host("triggers_are_for_who_asks") else { return };
    let asked = |caps: u64, kind: u32| {
        let found = info(host, |hints| {
            hints.caps = caps;
            // SAFETY: libfabric allocates hints with all attributes.
            unsafe { (*hints.ep_attr).kind = kind };
        })?;
        // SAFETY: libfabric's own info.
        unsafe {
            let caps = (*found).caps & TRIGGER;
            let sides = ((*(*found).tx_attr).caps & TRIGGER, (*(*found).rx_attr).caps & TRIGGER);
            (host.freeinfo)(found);
            Ok((caps, sides))
        }
    };
    assert_eq!(asked(flag::MSG, kind::RDM), Ok((0, (0, 0))));
    assert_eq!(asked(0, kind::RDM), Ok((0, (0, 0))));
    assert_eq!(asked(flag::MSG | TRIGGER, kind::RDM), Ok((TRIGGER, (TRIGGER, TRIGGER))));
    assert_eq!(asked(flag::MSG | TRIGGER, kind::SOCK_STREAM), Err(code::NODATA));
    // "fine grained control" (fi_endpoint(3)): of one side it is nothing to the other.
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | TRIGGER;
        let (sends, receives) = (flag::MSG | flag::SEND, flag::MSG | flag::RECV | TRIGGER);
        // SAFETY: hints have all attributes.
        unsafe { ((*hints.tx_attr).caps, (*hints.rx_attr).caps) = (sends, receives) };
    });
    let node = world.add_node(&mut cq_attr(), 0);
    assert_eq!(alias(node.ep, flag::SEND | TRIGGER).err(), Some(code::BADFLAGS));
    let other = alias(node.ep, flag::RECV | TRIGGER).unwrap();
    assert_eq!(close(other), 0);
}
