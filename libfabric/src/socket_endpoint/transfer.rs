//! Sends and receives of socket endpoints: "the return value from send and receive operations
//! indicate the number of bytes transferred on success". Reference: fi_msg(3).

use std::ffi::c_void;

use kestrel_core::flags::Flags;

use super::State;
use crate::{
    abi::{
        attributes::Iovec,
        constants::NOSYS,
        fid::{FidEp, FidSocket},
        message::Msg,
        transfer::OpsMsg,
    },
    endpoint::{
        buffers::{List, bad_list},
        post::no_message,
    },
    object,
    outcome::guarded,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsMsg =
    OpsMsg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, ..OpsMsg::refusing::<NOSYS>() };

// What C passes is what the manual page asks for: an open endpoint, and buffers that may be used
// during the call.

/// # Safety
/// As said above; the buffers may be read.
unsafe fn send_list(
    ep: *mut FidEp,
    (iov, count): (*const Iovec, usize),
    to: u64,
    flags: Flags,
) -> isize {
    // SAFETY: the caller vouches for it.
    let Some(list) = (unsafe { List::new(iov, count) }) else { return bad_list() };
    guarded("fi_send", || {
        // SAFETY: as above.
        let state: &State = unsafe { object::owned(ep.cast::<FidSocket>()) }?;
        Ok(state.socket.send_pieces(list.pieces(), to, flags)? as isize)
    })
}

/// # Safety
/// As said above; the buffers may be written to.
unsafe fn receive_list(ep: *mut FidEp, (iov, count): (*const Iovec, usize), flags: Flags) -> isize {
    // SAFETY: the caller vouches for it.
    let Some(list) = (unsafe { List::new(iov, count) }) else { return bad_list() };
    guarded("fi_recv", || {
        // SAFETY: as above.
        let state: &State = unsafe { object::owned(ep.cast::<FidSocket>()) }?;
        Ok(state.socket.receive_pieces(list.pieces(), flags)?.length as isize)
    })
}

/// One buffer as a list.
fn one(buffer: *const c_void, len: usize) -> Iovec {
    Iovec { base: buffer.cast_mut(), len }
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
    unsafe { send_list(ep, (&one(buffer, length), 1), to, Flags::empty()) }
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
    unsafe { send_list(ep, (iov, count), to, Flags::empty()) }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return no_message() };
        let list = (msg.msg_iov, msg.iov_count);
        send_list(ep, list, msg.addr, Flags::from_bits_retain(flags))
    }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { send_list(ep, (&one(buffer, length), 1), to, Flags::INJECT) }
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
    unsafe { receive_list(ep, (&one(buffer, length), 1), Flags::empty()) }
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
    unsafe { receive_list(ep, (iov, count), Flags::empty()) }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return no_message() };
        let list = (msg.msg_iov, msg.iov_count);
        receive_list(ep, list, Flags::from_bits_retain(flags))
    }
}
