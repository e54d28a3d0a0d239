//! Untagged messages. Reference: fi_msg(3).

use std::ffi::c_void;

use super::{
    buffers::{List, bad_list},
    post::{self, Tag},
    receives::{Receives, receiver},
};
use crate::{
    abi::{
        attributes::Iovec,
        constants::NOSYS,
        fid::{FidEp, FidSrx},
        message::Msg,
        transfer::OpsMsg,
    },
    object::Header,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
    recv: recv::<FidEp>,
    recvv: recvv::<FidEp>,
    recvmsg: recvmsg::<FidEp>,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// Those of a shared receive context.
pub static SHARED: OpsMsg = OpsMsg {
    recv: recv::<FidSrx>,
    recvv: recvv::<FidSrx>,
    recvmsg: recvmsg::<FidSrx>,
    ..OpsMsg::refusing::<NOSYS>()
};

// What C passes is what the manual page asks for: an open endpoint, and buffers that the
// operation may use until it completes.

unsafe extern "C" fn recv<H: Header<State: Receives>>(
    ep: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    descriptor: Opaque,
    from: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::receive::<H>(ep, (buffer, length, descriptor), from, Tag::NONE, context) }
}

unsafe extern "C" fn recvv<H: Header<State: Receives>>(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    from: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let list = (iov, descriptors.cast_const(), count);
        post::receive_list(receiver::<H>(ep), list, from, Tag::NONE, context)
    }
}

unsafe extern "C" fn recvmsg<H: Header<State: Receives>>(
    ep: *mut FidEp,
    msg: *const Msg,
    flags: u64,
) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return post::no_message() };
        post::receive_message(receiver::<H>(ep), &post::untagged(msg), Tag::NONE, flags)
    }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    to: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::send(ep, (buffer, length, descriptor), None, to, Tag::NONE, context) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    to: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(list) = List::new(iov, count) else { return bad_list() };
        let state = post::state(ep);
        let flags = state.defaults.send();
        let buffers = (list.pieces(), state.lists().region(descriptors, count));
        post::send_pieces(state, buffers, None, to, Tag::NONE, context, flags)
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return post::no_message() };
        post::send_message(post::state(ep), &post::untagged(msg), Tag::NONE, flags)
    }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::inject(ep, (buffer, length), None, to, Tag::NONE) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    data: u64,
    to: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::send(ep, (buffer, length, descriptor), Some(data), to, Tag::NONE, context) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::inject(ep, (buffer, length), Some(data), to, Tag::NONE) }
}
