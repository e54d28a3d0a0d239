//! Tagged messages. Reference: fi_tagged(3).

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
        message::MsgTagged,
        transfer::OpsTagged,
    },
    object::Header,
};

type Opaque = *mut c_void;

pub static OPERATIONS: OpsTagged = OpsTagged {
    size: size_of::<OpsTagged>(),
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
pub static SHARED: OpsTagged = OpsTagged {
    recv: recv::<FidSrx>,
    recvv: recvv::<FidSrx>,
    recvmsg: recvmsg::<FidSrx>,
    ..OpsTagged::refusing::<NOSYS>()
};

// What C passes is what the manual page asks for: an open endpoint, and buffers that the
// operation may use until it completes.

unsafe extern "C" fn recv<H: Header<State: Receives>>(
    ep: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    descriptor: Opaque,
    from: u64,
    tag: u64,
    ignore: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        post::receive::<H>(ep, (buffer, length, descriptor), from, Tag::new(tag, ignore), context)
    }
}

unsafe extern "C" fn recvv<H: Header<State: Receives>>(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let list = (iov, descriptors.cast_const(), count);
        post::receive_list(receiver::<H>(ep), list, from, Tag::new(tag, ignore), context)
    }
}

unsafe extern "C" fn recvmsg<H: Header<State: Receives>>(
    ep: *mut FidEp,
    msg: *const MsgTagged,
    flags: u64,
) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return post::no_message() };
        post::receive_message(receiver::<H>(ep), msg, Tag::new(msg.tag, msg.ignore), flags)
    }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    to: u64,
    tag: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::send(ep, (buffer, length, descriptor), None, to, Tag::new(tag, 0), context) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const Iovec,
    descriptors: *mut Opaque,
    count: usize,
    to: u64,
    tag: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        let Some(list) = List::new(iov, count) else { return bad_list() };
        let state = post::state(ep);
        let flags = state.defaults.send();
        let buffers = (list.pieces(), state.lists().region(descriptors, count));
        post::send_pieces(state, buffers, None, to, Tag::new(tag, 0), context, flags)
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: as said above; the message is valid or null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return post::no_message() };
        post::send_message(post::state(ep), msg, Tag::new(msg.tag, 0), flags)
    }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::inject(ep, (buffer, length), None, to, Tag::new(tag, 0)) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    descriptor: Opaque,
    data: u64,
    to: u64,
    tag: u64,
    context: Opaque,
) -> isize {
    // SAFETY: as said above.
    unsafe {
        post::send(ep, (buffer, length, descriptor), Some(data), to, Tag::new(tag, 0), context)
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: as said above.
    unsafe { post::inject(ep, (buffer, length), Some(data), to, Tag::new(tag, 0)) }
}
