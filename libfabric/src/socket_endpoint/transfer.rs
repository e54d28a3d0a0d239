//! Sends and receives of socket endpoints: "the return value from send and receive operations
//! indicate the number of bytes transferred on success". Reference: fi_msg(3).

use std::ffi::c_void;

use kestrel_core::{
    flags::Flags,
    memory::{Piece, Pieces},
};

use super::State;
use crate::{
    abi::{
        attributes::Iovec,
        constants::NOSYS,
        fid::{FidEp, FidSocket},
        message::Msg,
        transfer::OpsMsg,
    },
    endpoint::post::{List, bad_list},
    object,
    outcome::guarded,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsMsg =
    OpsMsg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, ..OpsMsg::refusing::<NOSYS>() };

// What C passes is what the manual page asks for: an open endpoint, and buffers that may be used
// during the call.

/// # Safety
/// As said above; the pieces may be read.
unsafe fn send_pieces(ep: *mut FidEp, pieces: Pieces<'_>, to: u64, flags: Flags) -> isize {
    guarded("fi_send", || {
        // SAFETY: the caller vouches for it.
        let state: &State = unsafe { object::owned(ep.cast::<FidSocket>()) }?;
        Ok(state.socket.send_pieces(pieces, to, flags)? as isize)
    })
}

/// # Safety
/// As said above; the pieces may be written to.
unsafe fn receive_pieces(ep: *mut FidEp, pieces: Pieces<'_>, flags: Flags) -> isize {
    guarded("fi_recv", || {
        // SAFETY: the caller vouches for it.
        let state: &State = unsafe { object::owned(ep.cast::<FidSocket>()) }?;
        Ok(state.socket.receive_pieces(pieces, flags)?.length as isize)
    })
}

/// # Safety
/// The buffer is null or has that length, and may be used during the call.
unsafe fn one(buffer: *const c_void, length: usize) -> Option<Pieces<'static>> {
    if buffer.is_null() && length > 0 {
        return None;
    }
    // SAFETY: the caller vouches for it.
    Some(Pieces::One(unsafe { Piece::new(buffer.cast::<u8>().cast_mut(), length) }))
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: Opaque,
    to: u64,
    _: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(pieces) = one(buffer, length) else { return bad_list() };
        send_pieces(ep, pieces, to, Flags::empty())
    }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const Iovec,
    _: *mut Opaque,
    count: usize,
    to: u64,
    _: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(list) = List::new(iov, count) else { return bad_list() };
        send_pieces(ep, list.pieces(), to, Flags::empty())
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return bad_list() };
        let Some(list) = List::new(msg.msg_iov, msg.iov_count) else { return bad_list() };
        send_pieces(ep, list.pieces(), msg.addr, Flags::from_bits_retain(flags))
    }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(pieces) = one(buffer, length) else { return bad_list() };
        send_pieces(ep, pieces, to, Flags::INJECT)
    }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: Opaque,
    _: u64,
    _: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(pieces) = one(buffer, length) else { return bad_list() };
        receive_pieces(ep, pieces, Flags::empty())
    }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const Iovec,
    _: *mut Opaque,
    count: usize,
    _: u64,
    _: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(list) = List::new(iov, count) else { return bad_list() };
        receive_pieces(ep, list.pieces(), Flags::empty())
    }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return bad_list() };
        let Some(list) = List::new(msg.msg_iov, msg.iov_count) else { return bad_list() };
        receive_pieces(ep, list.pieces(), Flags::from_bits_retain(flags))
    }
}
