//! Atomic operations. Reference: fi_atomic(3).

use std::{ffi::c_void, ptr::null_mut};

use kestrel_core::{
    endpoint::DefaultFlags,
    error::Errno,
    flags::Flags,
    memory::Pieces,
    one_sided::{AtomicPost, RemoteSegment},
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};

use super::{
    State, atomic_query,
    buffers::{List, bad_list, elements},
    post,
    remote::Segments,
};
use crate::{
    abi::{
        Refusal,
        atomic::{Ioc, MsgAtomic, OpsAtomic},
        fid::FidEp,
    },
    outcome::posted,
    triggered,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid: atomic_query::writevalid,
    readwritevalid: atomic_query::readwritevalid,
    compwritevalid: atomic_query::compwritevalid,
};

// What C passes is what the manual page asks for: an open endpoint, and buffers that the
// operation may use until it completes.

/// Where an operation goes: the peer, and the address and key of its memory.
struct Target {
    peer: u64,
    address: u64,
    key: u64,
}

/// The local sides of an operation; empty where its form has none.
#[derive(Clone, Copy)]
struct Sides<'a> {
    operands: Pieces<'a>,
    compare: Pieces<'a>,
    results: Pieces<'a>,
}

const NONE: Pieces<'static> = Pieces::One(kestrel_core::memory::Piece::EMPTY);

/// None: numbers that core knows no operation or type by.
#[inline(always)]
pub fn call(datatype: u32, op: u32, form: Form) -> Option<AtomicCall> {
    let operation = AtomicOperation::from_number(op)?;
    Some(AtomicCall { operation, datatype: Datatype::from_number(datatype)?, form })
}

#[cold]
fn unknown(datatype: u32, op: u32) -> isize {
    tracing::info!("operation {op} on type {datatype} is not known");
    isize::refusal(Errno::OPNOTSUPP.0)
}

/// Posts an operation on `count` elements in a row, with the default flags.
///
/// # Safety
/// As [`start`].
#[inline(always)]
unsafe fn post_row(
    state: &State,
    call: AtomicCall,
    sides: Sides<'_>,
    target: &Target,
    count: usize,
    context: Opaque,
) -> isize {
    let length = (count as u64).saturating_mul(call.datatype.size() as u64);
    let segments = [RemoteSegment { address: target.address, length, key: target.key }];
    let flags = state.defaults.atomic();
    let post = of_sides(call, sides, target.peer, &segments, context, flags);
    // SAFETY: the caller vouches for it.
    unsafe { start(state, post) }
}

#[inline(always)]
fn of_sides<'a>(
    call: AtomicCall,
    Sides { operands, compare, results }: Sides<'a>,
    to: u64,
    segments: &'a [RemoteSegment],
    context: Opaque,
    flags: Flags,
) -> AtomicPost<'a> {
    let context = context as u64;
    AtomicPost { call, operands, compare, results, to, segments, data: 0, context, flags }
}

/// Posts an operation of a `…msg` call.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
unsafe fn post_message(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    form: Form,
    compare: (*const Ioc, usize),
    results: (*const Ioc, usize),
    flags: u64,
) -> isize {
    // SAFETY: the caller vouches for it.
    let (state, msg) = unsafe { (post::state(ep), msg.as_ref()) };
    let Some(msg) = msg else { return post::no_message() };
    let flags = Flags::from_bits_retain(flags);
    // SAFETY: as above.
    unsafe { with_post(msg, form, compare, results, flags, |post| start(state, post)) }
}

/// Posts an operation: with FI_TRIGGER not now.
///
/// # Safety
/// As [`triggered::start`].
#[inline(always)]
unsafe fn start(state: &State, post: AtomicPost<'_>) -> isize {
    let endpoint = &state.endpoint;
    // SAFETY: the caller vouches for it.
    unsafe {
        triggered::start(
            post,
            || endpoint.options().capabilities,
            |post| endpoint.post_atomic(post),
            |post, when| endpoint.trigger_atomic(post, when),
        )
    }
}

/// Hands what a message says to `post`.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
pub unsafe fn with_post(
    msg: &MsgAtomic,
    form: Form,
    (compare, compare_count): (*const Ioc, usize),
    (results, result_count): (*const Ioc, usize),
    flags: Flags,
    post: impl FnOnce(AtomicPost<'_>) -> isize,
) -> isize {
    let (datatype, op) = (msg.datatype, msg.op);
    let Some(call) = call(datatype, op, form) else { return unknown(datatype, op) };
    let size = call.datatype.size();
    // SAFETY: the caller vouches for it.
    let lists = unsafe {
        (
            List::of_elements(msg.msg_iov, operands_of(call, msg.iov_count), size),
            List::of_elements(compare, compare_count, size),
            List::of_elements(results, result_count, size),
            Segments::of_elements(msg.rma_iov, msg.rma_iov_count, size),
        )
    };
    let (Some(operands), Some(compare), Some(results), Some(segments)) = lists else {
        return bad_list();
    };
    let sides =
        Sides { operands: operands.pieces(), compare: compare.pieces(), results: results.pieces() };
    let what = of_sides(call, sides, msg.addr, segments.as_slice(), msg.context, flags);
    post(AtomicPost { data: msg.data, ..what })
}

/// How many operand buffers count: of FI_ATOMIC_READ "the source buffer operand … is ignored and may
/// be NULL" (fi_atomic(3)).
fn operands_of(call: AtomicCall, count: usize) -> usize {
    if call.operation == AtomicOperation::Read { 0 } else { count }
}

/// Posts an operation with lists of buffers.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
unsafe fn post_lists(
    ep: *mut FidEp,
    call: AtomicCall,
    (iov, count): (*const Ioc, usize),
    (compare, compare_count): (*const Ioc, usize),
    (results, result_count): (*const Ioc, usize),
    target: &Target,
    context: Opaque,
) -> isize {
    let size = call.datatype.size();
    // SAFETY: the caller vouches for it.
    let (state, lists) = unsafe {
        let lists = (
            List::of_elements(iov, operands_of(call, count), size),
            List::of_elements(compare, compare_count, size),
            List::of_elements(results, result_count, size),
        );
        (post::state(ep), lists)
    };
    let (Some(operands), Some(compare), Some(results)) = lists else {
        return bad_list();
    };
    let sides =
        Sides { operands: operands.pieces(), compare: compare.pieces(), results: results.pieces() };
    // A read has no operands: then the results say how long it is.
    let local = if call.form == Form::Base { sides.operands } else { sides.results };
    // SAFETY: as said above.
    unsafe { post_row(state, call, sides, target, local.total() / size, context) }
}

pub const NO_LIST: (*const Ioc, usize) = (std::ptr::null(), 0);

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: Opaque,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Base) else { return unknown(datatype, op) };
    let size = call.datatype.size();
    // SAFETY: as said above.
    let (state, sides) = unsafe {
        let piece = |buffer| Pieces::One(elements(buffer, count, size));
        (post::state(ep), Sides { operands: piece(buffer), compare: NONE, results: NONE })
    };
    // SAFETY: as said above.
    unsafe { post_row(state, call, sides, &Target { peer, address, key }, count, context) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _: *mut Opaque,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Base) else { return unknown(datatype, op) };
    let target = Target { peer, address, key };
    // SAFETY: as said above.
    unsafe { post_lists(ep, call, (iov, count), NO_LIST, NO_LIST, &target, context) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe { post_message(ep, msg, Form::Base, NO_LIST, NO_LIST, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    let Some(call) = call(datatype, op, Form::Base) else { return unknown(datatype, op) };
    let size = call.datatype.size();
    // SAFETY: as said above.
    let (state, operands) =
        unsafe { (post::state(ep), Pieces::One(elements(buffer, count, size))) };
    let length = (count as u64).saturating_mul(size as u64);
    let segments = [RemoteSegment { address, length, key }];
    let sides = Sides { operands, compare: NONE, results: NONE };
    let flags = DefaultFlags::injected(state.defaults.atomic());
    let post = of_sides(call, sides, peer, &segments, null_mut(), flags);
    posted(state.endpoint.post_atomic_unreported(post))
}

unsafe extern "C" fn readwrite(
    ep: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: Opaque,
    results: *mut c_void,
    _: Opaque,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Fetch) else { return unknown(datatype, op) };
    let size = call.datatype.size();
    // SAFETY: as said above.
    let (state, sides) = unsafe {
        let piece = |buffer| Pieces::One(elements(buffer, count, size));
        (post::state(ep), Sides { operands: piece(buffer), compare: NONE, results: piece(results) })
    };
    // SAFETY: as said above.
    unsafe { post_row(state, call, sides, &Target { peer, address, key }, count, context) }
}

unsafe extern "C" fn readwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _: *mut Opaque,
    count: usize,
    results: *mut Ioc,
    _: *mut Opaque,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Fetch) else { return unknown(datatype, op) };
    let target = Target { peer, address, key };
    // SAFETY: as said above.
    unsafe {
        post_lists(ep, call, (iov, count), NO_LIST, (results, result_count), &target, context)
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    results: *mut Ioc,
    _: *mut Opaque,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe { post_message(ep, msg, Form::Fetch, NO_LIST, (results, result_count), flags) }
}

unsafe extern "C" fn compwrite(
    ep: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: Opaque,
    compare: *const c_void,
    _: Opaque,
    results: *mut c_void,
    _: Opaque,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Compare) else { return unknown(datatype, op) };
    let size = call.datatype.size();
    // SAFETY: as said above.
    let (state, sides) = unsafe {
        let piece = |buffer| Pieces::One(elements(buffer, count, size));
        (
            post::state(ep),
            Sides { operands: piece(buffer), compare: piece(compare), results: piece(results) },
        )
    };
    // SAFETY: as said above.
    unsafe { post_row(state, call, sides, &Target { peer, address, key }, count, context) }
}

unsafe extern "C" fn compwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _: *mut Opaque,
    count: usize,
    compare: *const Ioc,
    _: *mut Opaque,
    compare_count: usize,
    results: *mut Ioc,
    _: *mut Opaque,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: Opaque,
) -> isize {
    let Some(call) = call(datatype, op, Form::Compare) else { return unknown(datatype, op) };
    let target = Target { peer, address, key };
    // SAFETY: as said above.
    unsafe {
        post_lists(
            ep,
            call,
            (iov, count),
            (compare, compare_count),
            (results, result_count),
            &target,
            context,
        )
    }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    compare: *const Ioc,
    _: *mut Opaque,
    compare_count: usize,
    results: *mut Ioc,
    _: *mut Opaque,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        post_message(
            ep,
            msg,
            Form::Compare,
            (compare, compare_count),
            (results, result_count),
            flags,
        )
    }
}
