//! One-sided reads and writes. Reference: fi_rma(3).

use std::{ffi::c_void, ptr::null_mut};

use kestrel_core::{
    endpoint::DefaultFlags,
    flags::Flags,
    memory::{Piece, Pieces},
    memory_region::descriptor::Descriptor,
    one_sided::{RemoteSegment, RmaPost},
};

use super::{
    State,
    buffers::{List, bad_list},
    post,
    remote::Segments,
};
use crate::{
    abi::{attributes::Iovec, fid::FidEp, message::MsgRma, transfer::OpsRma},
    memory_region::{DescriptorLists, region_of},
    outcome::{posted, refused_argument},
    triggered,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

// What C passes is what the manual page asks for: an open endpoint, and buffers that the
// operation may use until it completes.

/// Where an operation goes: the peer, and the address and key of its memory.
#[derive(Clone, Copy)]
struct Target {
    peer: u64,
    address: u64,
    key: u64,
}

impl Target {
    #[inline(always)]
    fn segment(self, length: usize) -> RemoteSegment {
        RemoteSegment { address: self.address, length: length as u64, key: self.key }
    }
}

#[inline(always)]
fn of_pieces<'a>(
    (pieces, region): (Pieces<'a>, Option<Descriptor>),
    to: u64,
    segments: &'a [RemoteSegment],
    context: Opaque,
    flags: Flags,
) -> RmaPost<'a> {
    let (data, context) = (0, context as u64);
    RmaPost { pieces, to, segments, data, context, flags, region, attachment: None }
}

/// One buffer; none if it is missing.
///
/// # Safety
/// The operation may use the buffer until it completes.
#[inline(always)]
unsafe fn piece(buffer: *const c_void, length: usize) -> Option<Piece> {
    if buffer.is_null() && length > 0 {
        return None;
    }
    // SAFETY: the caller vouches for it.
    Some(unsafe { Piece::new(buffer.cast::<u8>().cast_mut(), length) })
}

#[cold]
fn missing() -> isize {
    refused_argument("a null buffer with a length")
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    descriptor: Opaque,
    peer: u64,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    let (state, piece, region) =
        unsafe { (post::state(ep), piece(buffer, length), region_of(descriptor)) };
    let Some(piece) = piece else { return missing() };
    let segments = [Target { peer, address, key }.segment(length)];
    let (local, flags) = ((Pieces::One(piece), region), state.defaults.read());
    let post = of_pieces(local, peer, &segments, context, flags);
    // SAFETY: as said above.
    unsafe { start_read(state, post) }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    let (state, list) = unsafe { (post::state(ep), List::new(iov, count)) };
    let Some(list) = list else { return bad_list() };
    // SAFETY: as above.
    let region = unsafe { state.lists().region(descriptors, count) };
    let segments = [Target { peer, address, key }.segment(list.pieces().total())];
    let (local, flags) = ((list.pieces(), region), state.defaults.read());
    let post = of_pieces(local, peer, &segments, context, flags);
    // SAFETY: as said above.
    unsafe { start_read(state, post) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe { with_message(ep, msg, flags, |state, post| start_read(state, post)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe { with_message(ep, msg, flags, |state, post| start_write(state, post)) }
}

/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
unsafe fn with_message(
    ep: *mut FidEp,
    msg: *const MsgRma,
    flags: u64,
    start: impl FnOnce(&State, RmaPost<'_>) -> isize,
) -> isize {
    // SAFETY: the caller vouches for all of it.
    let (state, msg) = unsafe { (post::state(ep), msg.as_ref()) };
    let Some(msg) = msg else { return post::no_message() };
    // SAFETY: as above.
    unsafe {
        with_post(msg, state.lists(), Flags::from_bits_retain(flags), |post| start(state, post))
    }
}

/// Posts a read: with FI_TRIGGER not now.
///
/// # Safety
/// As [`triggered::start`].
#[inline(always)]
unsafe fn start_read(state: &State, post: RmaPost<'_>) -> isize {
    let endpoint = &state.endpoint;
    // SAFETY: the caller vouches for it.
    unsafe {
        triggered::start(
            post,
            || endpoint.options().capabilities,
            |post| endpoint.post_read(post),
            |post, when| endpoint.trigger_read(post, when),
        )
    }
}

/// Posts a write: with FI_TRIGGER not now.
///
/// # Safety
/// As [`triggered::start`].
#[inline(always)]
unsafe fn start_write(state: &State, post: RmaPost<'_>) -> isize {
    let endpoint = &state.endpoint;
    // SAFETY: the caller vouches for it.
    unsafe {
        triggered::start(
            post,
            || endpoint.options().capabilities,
            |post| endpoint.post_write(post),
            |post, when| endpoint.trigger_write(post, when),
        )
    }
}

/// Hands what a message says to `post`.
///
/// # Safety
/// As calls from C (see the crate's documentation).
#[inline(always)]
pub unsafe fn with_post(
    msg: &MsgRma,
    lists: DescriptorLists,
    flags: Flags,
    post: impl FnOnce(RmaPost<'_>) -> isize,
) -> isize {
    // SAFETY: the caller vouches for it.
    let Some(list) = (unsafe { List::new(msg.msg_iov, msg.iov_count) }) else {
        return bad_list();
    };
    let total = list.pieces().total();
    // SAFETY: as above.
    let segments = unsafe { Segments::of_bytes(msg.rma_iov, msg.rma_iov_count, total) };
    let Some(segments) = segments else { return bad_list() };
    // SAFETY: as above.
    let region = unsafe { lists.region(msg.desc, msg.iov_count) };
    post(RmaPost {
        pieces: list.pieces(),
        to: msg.addr,
        segments: segments.as_slice(),
        data: msg.data,
        context: msg.context as u64,
        flags,
        region,
        attachment: None,
    })
}

/// # Safety
/// As [`piece`] and [`region_of`]; `ep` is open.
#[inline(always)]
unsafe fn write_one(
    ep: *mut FidEp,
    (buffer, length, descriptor): (*const c_void, usize, Opaque),
    data: Option<u64>,
    target: Target,
    context: Opaque,
) -> isize {
    // SAFETY: the caller vouches for all of it.
    let (state, piece, region) =
        unsafe { (post::state(ep), piece(buffer, length), region_of(descriptor)) };
    let Some(piece) = piece else { return missing() };
    let segments = [target.segment(length)];
    let flags = state.defaults.write();
    let mut post = of_pieces((Pieces::One(piece), region), target.peer, &segments, context, flags);
    if let Some(data) = data {
        post.data = data;
        post.flags |= Flags::REMOTE_CQ_DATA;
    }
    // SAFETY: the caller vouches for it.
    unsafe { start_write(state, post) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    peer: u64,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    let buffer = (buffer, length, descriptor);
    // SAFETY: as said above.
    unsafe { write_one(ep, buffer, None, Target { peer, address, key }, context) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    let buffer = (buffer, length, descriptor);
    // SAFETY: as said above.
    unsafe { write_one(ep, buffer, Some(data), Target { peer, address, key }, context) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    let (state, list) = unsafe { (post::state(ep), List::new(iov, count)) };
    let Some(list) = list else { return bad_list() };
    // SAFETY: as above.
    let region = unsafe { state.lists().region(descriptors, count) };
    let segments = [Target { peer, address, key }.segment(list.pieces().total())];
    let (local, flags) = ((list.pieces(), region), state.defaults.write());
    let post = of_pieces(local, peer, &segments, context, flags);
    // SAFETY: as said above.
    unsafe { start_write(state, post) }
}

/// # Safety
/// `ep` is open; the buffer may be read during the call.
#[inline(always)]
unsafe fn inject_one(
    ep: *mut FidEp,
    (buffer, length): (*const c_void, usize),
    data: Option<u64>,
    target: Target,
) -> isize {
    // SAFETY: the caller vouches for both; an injected write is copied at once.
    let (state, piece) = unsafe { (post::state(ep), piece(buffer, length)) };
    let Some(piece) = piece else { return missing() };
    let segments = [target.segment(length)];
    let flags = DefaultFlags::injected(state.defaults.write());
    let mut post = of_pieces((Pieces::One(piece), None), target.peer, &segments, null_mut(), flags);
    if let Some(data) = data {
        post.data = data;
        post.flags |= Flags::REMOTE_CQ_DATA;
    }
    posted(state.endpoint.post_write_unreported(post))
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { inject_one(ep, (buffer, length), None, Target { peer, address, key }) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { inject_one(ep, (buffer, length), Some(data), Target { peer, address, key }) }
}
