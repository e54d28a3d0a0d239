//! Deferred work: operations that are posted to a domain.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    time::Instant,
};

use crate::{
    abi::{
        atomic::{Ioc, MsgCompare, MsgFetch, RmaIoc},
        fid::FidCntr,
        message::{MsgRma, RmaIov},
        trigger::{
            DeferredWork, Op, OpAtomic, OpCntr, OpCompareAtomic, OpFetchAtomic, OpMsg, OpRma,
            OpTagged, op,
        },
    },
    code,
    contexts::open_srx,
    counters::counts,
    flag,
    host::host,
    one_sided::{KEY, register},
    triggered::{add, add_errors, atomic, counter, iovec, msg, nothing, rma, tagged, value, world},
    world::{PATIENCE, World, close},
};

const QUEUE: c_int = 11;
const CANCEL: c_int = 12;
const FLUSH: c_int = 13;
const CSWAP: u32 = 12;

fn control(world: &World, command: c_int, work: *mut DeferredWork) -> c_int {
    // SAFETY: the domain is open; the work is null or lives until it is done.
    unsafe { ((*(*world.domain).fid.ops).control)(world.domain.cast(), command, work.cast()) }
}

fn queue_all(world: &World, works: &mut [Box<DeferredWork>]) {
    for work in works {
        assert_eq!(control(world, QUEUE, &raw mut **work), 0);
    }
}

fn work(
    (triggering_cntr, threshold): (*mut FidCntr, u64),
    completion_cntr: *mut FidCntr,
    op_type: u32,
    op: Op,
) -> Box<DeferredWork> {
    let context = [0; 8];
    Box::new(DeferredWork { context, threshold, triggering_cntr, completion_cntr, op_type, op })
}

/// Waits for a counter: reading it drives all endpoints.
fn reaches(cntr: *mut FidCntr, threshold: u64) {
    let start = Instant::now();
    while value(cntr) < threshold {
        assert!(start.elapsed() < PATIENCE, "the counter is {}", value(cntr));
    }
}

#[test]
fn messages_are_work() {
    let Some(host) = host("messages_are_work") else { return };
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let [start, received, sent] = [(); 3].map(|()| counter(&world));
    let (mut first, mut second, mut out) = ([0_u64; 3], [0_u64; 3], [1_u64, 2, 3]);
    let (iov_first, iov_second, iov_out) = (iovec(&mut first), iovec(&mut second), iovec(&mut out));
    let none = null_mut::<c_void>();
    let mut send = OpMsg { ep: from.ep, msg: msg(&iov_out, 1, none), flags: 0 };
    let mut receive = OpMsg { ep: to.ep, msg: msg(&iov_first, 0, none), flags: 0 };
    // What has come is sent back, tagged, and completes as its flags say.
    let context = (&raw mut out).cast();
    let answer = tagged(&iov_first, 0, 6, none);
    let mut answer = OpTagged { ep: to.ep, msg: answer, flags: 0 };
    let heard = tagged(&iov_second, 1, 6, context);
    let mut heard = OpTagged { ep: from.ep, msg: heard, flags: 1 << 24 };
    let mut works = [
        work((start, 1), sent, op::SEND, Op { msg: &raw mut send }),
        work((start, 0), received, op::RECV, Op { msg: &raw mut receive }),
        work((received, 1), sent, op::TSEND, Op { tagged: &raw mut answer }),
        work((start, 0), received, op::TRECV, Op { tagged: &raw mut heard }),
    ];
    queue_all(&world, &mut works);
    nothing(&world);
    assert_eq!(close(start), code::BUSY);
    add(start, 1);
    reaches(received, 2);
    reaches(sent, 2);
    assert_eq!((first, second), (out, out));
    let entry = world.completion(from);
    assert_eq!((entry.op_context, entry.tag, entry.len), (context, 6, 24));
    nothing(&world);
    assert_eq!((close(start), close(received), close(sent)), (0, 0, 0));
}

#[test]
fn one_sided_operations_are_work() {
    let Some(host) = host("one_sided_operations_are_work") else { return };
    let world = world(host);
    let ep = world.nodes[0].ep;
    let [start, done] = [(); 2].map(|()| counter(&world));
    let mut memory = [0_u64; 2];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (mut five, mut read, mut old, mut older) = ([5_u64], [0_u64], [0_u64], [0_u64]);
    let (mut swapped, mut expected) = ([99_u64], [15_u64]);
    let (out, into) = (iovec(&mut five), iovec(&mut read));
    let element = |place: &mut [u64; 1]| Ioc { addr: place.as_mut_ptr().cast(), count: 1 };
    let (operand, swap, compared) =
        (element(&mut five), element(&mut swapped), element(&mut expected));
    let (mut fetched, mut found) = (element(&mut old), element(&mut older));
    let (iov, ioc) = (RmaIov { addr: 0, len: 8, key: KEY }, RmaIoc { addr: 0, count: 1, key: KEY });
    let none = null_mut::<c_void>();
    let fetch = |place: &mut Ioc| MsgFetch { msg_iov: place, desc: null_mut(), iov_count: 1 };
    let mut write = OpRma { ep, msg: rma(&out, &iov, none), flags: 0 };
    let mut sum = OpAtomic { ep, msg: atomic(&operand, &ioc, none), flags: 0 };
    let (message, place) = (atomic(&operand, &ioc, none), fetch(&mut fetched));
    let mut fetching = OpFetchAtomic { ep, msg: message, fetch: place, flags: 0 };
    let mut message = atomic(&swap, &ioc, none);
    message.op = CSWAP;
    let compare = MsgCompare { msg_iov: &raw const compared, desc: null_mut(), iov_count: 1 };
    let mut comparing =
        OpCompareAtomic { ep, msg: message, fetch: fetch(&mut found), compare, flags: 0 };
    let mut reading = OpRma { ep, msg: rma(&into, &iov, none), flags: 0 };
    let compare_atomic = &raw mut comparing;
    let mut works = [
        work((done, 4), done, op::READ, Op { rma: &raw mut reading }),
        work((done, 3), done, op::COMPARE_ATOMIC, Op { compare_atomic }),
        work((done, 2), done, op::FETCH_ATOMIC, Op { fetch_atomic: &raw mut fetching }),
        work((done, 1), done, op::ATOMIC, Op { atomic: &raw mut sum }),
        work((start, 1), done, op::WRITE, Op { rma: &raw mut write }),
    ];
    queue_all(&world, &mut works);
    add(start, 1);
    reaches(done, 5);
    assert_eq!((old, older, read, memory[0]), ([10], [15], [99], 99));
    nothing(&world);
    assert_eq!((close(mr), close(start), close(done)), (0, 0, 0));
}

/// "Success plus error counter values", and what fails is an error of the completion counter.
#[test]
fn errors_trigger_and_are_counted() {
    let Some(host) = host("errors_trigger_and_are_counted") else { return };
    const NOBODY: u64 = 55;
    let world = world(host);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let [start, done] = [(); 2].map(|()| counter(&world));
    let (mut out, mut room) = ([3_u64], [0_u8; 8]);
    let (iov, segment) = (iovec(&mut out), RmaIov { addr: 0, len: 8, key: KEY });
    let contexts = [1, 2].map(|context| context as *mut c_void);
    let mut lost = OpMsg { ep: from.ep, msg: msg(&iov, NOBODY, contexts[0]), flags: 0 };
    let write = MsgRma { addr: NOBODY, ..rma(&iov, &segment, contexts[1]) };
    let mut lost_too = OpRma { ep: from.ep, msg: write, flags: 0 };
    let mut sent = OpMsg { ep: from.ep, msg: msg(&iov, 1, null_mut()), flags: 0 };
    let mut works = [
        work((start, 2), done, op::SEND, Op { msg: &raw mut lost }),
        work((start, 2), done, op::WRITE, Op { rma: &raw mut lost_too }),
        work((start, 2), done, op::SEND, Op { msg: &raw mut sent }),
    ];
    queue_all(&world, &mut works);
    assert_eq!(to.receive(&mut room, 0, 0), 0);
    add(start, 1);
    nothing(&world);
    add_errors(start, 1);
    for context in contexts {
        let error = from.outcome(&world.nodes).err().expect("nobody has this address");
        assert_eq!((error.op_context, error.err), (context, -code::INVAL));
    }
    world.completion(to);
    reaches(done, 1);
    nothing(&world);
    assert_eq!([done, start].map(counts), [(1, 2), (1, 1)]);
    assert_eq!(room, 3_u64.to_ne_bytes());
    assert_eq!((close(start), close(done)), (0, 0));
}

#[test]
fn counters_are_work() {
    let Some(host) = host("counters_are_work") else { return };
    let world = world(host);
    let [start, target] = [(); 2].map(|()| counter(&world));
    let mut set = OpCntr { cntr: target, value: 40 };
    let mut plus = OpCntr { cntr: target, value: 2 };
    let mut works = [
        work((target, 40), null_mut(), op::CNTR_ADD, Op { cntr: &raw mut plus }),
        work((start, 1), null_mut(), op::CNTR_SET, Op { cntr: &raw mut set }),
    ];
    queue_all(&world, &mut works);
    let mut counted = work((start, 1), start, op::CNTR_ADD, Op { cntr: &raw mut plus });
    assert_eq!(control(&world, QUEUE, &raw mut *counted), code::INVAL);
    assert_eq!(value(target), 0);
    add(start, 1);
    assert_eq!(value(target), 42);
    assert_eq!((close(start), close(target)), (0, 0));
}

#[test]
fn work_is_canceled_and_flushed() {
    let Some(host) = host("work_is_canceled_and_flushed") else { return };
    let world = world(host);
    let [start, other] = [(); 2].map(|()| counter(&world));
    let mut plus = OpCntr { cntr: other, value: 1 };
    let op = Op { cntr: &raw mut plus };
    let mut works = [(); 4].map(|()| work((start, 1), null_mut(), op::CNTR_ADD, op));
    works[3].triggering_cntr = other;
    queue_all(&world, &mut works);
    let at = works.each_mut().map(|work| &raw mut **work);
    assert_eq!(control(&world, CANCEL, at[0]), 0);
    assert_eq!(control(&world, CANCEL, at[0]), code::NOENT);
    // Of one counter, which work names, or which is given itself.
    assert_eq!(control(&world, FLUSH, at[1]), 0);
    assert_eq!(control(&world, CANCEL, at[2]), code::NOENT);
    assert_eq!(control(&world, FLUSH, start.cast()), 0);
    assert_eq!(control(&world, FLUSH, null_mut()), 0);
    assert_eq!(control(&world, CANCEL, at[3]), code::NOENT);
    add(start, 1);
    assert_eq!(value(other), 0);
    assert_eq!((close(start), close(other)), (0, 0));
}

#[test]
fn what_is_no_work_is_refused() {
    let Some(host) = host("what_is_no_work_is_refused") else { return };
    let world = world(host);
    let [start, other] = [(); 2].map(|()| counter(&world));
    let mut plus = OpCntr { cntr: other, value: 1 };
    let op = Op { cntr: &raw mut plus };
    let refused = |change: fn(&mut DeferredWork), expected| {
        let mut work = work((start, 1), null_mut(), op::CNTR_ADD, op);
        change(&mut work);
        assert_eq!(control(&world, QUEUE, &raw mut *work), expected);
    };
    refused(|work| work.op_type = 11, code::NOSYS);
    refused(|work| work.triggering_cntr = null_mut(), code::INVAL);
    refused(|work| work.op = Op { cntr: null_mut() }, code::INVAL);
    refused(|work| (work.op_type, work.op) = (op::SEND, Op { msg: null_mut() }), code::INVAL);
    assert_eq!(control(&world, QUEUE, null_mut()), code::INVAL);
    assert_eq!(control(&world, 99, null_mut()), code::NOSYS);
    // Receives of a shared context are no work.
    let (srx, mut into) = (open_srx(world.domain, world.info), [0_u64]);
    let iov = iovec(&mut into);
    let mut receive = OpMsg { ep: srx, msg: msg(&iov, u64::MAX, null_mut()), flags: 0 };
    let mut shared = work((start, 1), null_mut(), op::RECV, Op { msg: &raw mut receive });
    assert_eq!(control(&world, QUEUE, &raw mut *shared), code::NOSYS);
    assert_eq!(close(srx), 0);
    let plain = World::new(host, 1);
    let own = counter(&plain);
    let mut bytes = [0_u64];
    let iov = iovec(&mut bytes);
    let ep = plain.nodes[0].ep;
    let mut send = OpMsg { ep, msg: msg(&iov, 0, null_mut()), flags: 0 };
    let mut incapable = work((own, 1), null_mut(), op::SEND, Op { msg: &raw mut send });
    assert_eq!(control(&plain, QUEUE, &raw mut *incapable), code::OPNOTSUPP);
    assert_eq!((close(own), close(start), close(other)), (0, 0, 0));
}
