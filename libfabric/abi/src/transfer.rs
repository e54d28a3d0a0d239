//! The calls of the data path, but for atomics. Reference: fi_msg(3), fi_tagged(3),
//! fi_rma(3), fi_collective(3).

use std::ffi::c_void;

use super::{
    attributes::Iovec,
    fid::FidEp,
    message::{Msg, MsgRma, MsgTagged},
};

/// Something that kestrel never looks into: descriptors, contexts, …
type Opaque = *mut c_void;

operations! {
    pub struct OpsMsg {
        recv(ep: *mut FidEp, buffer: *mut c_void, length: usize, desc: Opaque, from: u64, context: Opaque) -> isize;
        recvv(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, from: u64, context: Opaque) -> isize;
        recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize;
        send(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, to: u64, context: Opaque) -> isize;
        sendv(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, to: u64, context: Opaque) -> isize;
        sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize;
        inject(ep: *mut FidEp, buffer: *const c_void, length: usize, to: u64) -> isize;
        senddata(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, data: u64, to: u64, context: Opaque) -> isize;
        injectdata(ep: *mut FidEp, buffer: *const c_void, length: usize, data: u64, to: u64) -> isize;
    }

    pub struct OpsTagged {
        recv(ep: *mut FidEp, buffer: *mut c_void, length: usize, desc: Opaque, from: u64, tag: u64, ignore: u64, context: Opaque) -> isize;
        recvv(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, from: u64, tag: u64, ignore: u64, context: Opaque) -> isize;
        recvmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize;
        send(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, to: u64, tag: u64, context: Opaque) -> isize;
        sendv(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, to: u64, tag: u64, context: Opaque) -> isize;
        sendmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize;
        inject(ep: *mut FidEp, buffer: *const c_void, length: usize, to: u64, tag: u64) -> isize;
        senddata(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, data: u64, to: u64, tag: u64, context: Opaque) -> isize;
        injectdata(ep: *mut FidEp, buffer: *const c_void, length: usize, data: u64, to: u64, tag: u64) -> isize;
    }

    pub struct OpsRma {
        read(ep: *mut FidEp, buffer: *mut c_void, length: usize, desc: Opaque, from: u64, address: u64, key: u64, context: Opaque) -> isize;
        readv(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, from: u64, address: u64, key: u64, context: Opaque) -> isize;
        readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize;
        write(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, to: u64, address: u64, key: u64, context: Opaque) -> isize;
        writev(ep: *mut FidEp, iov: *const Iovec, desc: *mut Opaque, count: usize, to: u64, address: u64, key: u64, context: Opaque) -> isize;
        writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize;
        inject(ep: *mut FidEp, buffer: *const c_void, length: usize, to: u64, address: u64, key: u64) -> isize;
        writedata(ep: *mut FidEp, buffer: *const c_void, length: usize, desc: Opaque, data: u64, to: u64, address: u64, key: u64, context: Opaque) -> isize;
        injectdata(ep: *mut FidEp, buffer: *const c_void, length: usize, data: u64, to: u64, address: u64, key: u64) -> isize;
    }

    pub struct OpsCollective {
        barrier(ep: *mut FidEp, collective: u64, context: Opaque) -> isize;
        broadcast(ep: *mut FidEp, buffer: Opaque, count: usize, desc: Opaque, collective: u64, root: u64, datatype: u32, flags: u64, context: Opaque) -> isize;
        alltoall(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, datatype: u32, flags: u64, context: Opaque) -> isize;
        allreduce(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, datatype: u32, op: u32, flags: u64, context: Opaque) -> isize;
        allgather(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, datatype: u32, flags: u64, context: Opaque) -> isize;
        reduce_scatter(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, datatype: u32, op: u32, flags: u64, context: Opaque) -> isize;
        reduce(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, root: u64, datatype: u32, op: u32, flags: u64, context: Opaque) -> isize;
        scatter(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, root: u64, datatype: u32, flags: u64, context: Opaque) -> isize;
        gather(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: Opaque, result_desc: Opaque, collective: u64, root: u64, datatype: u32, flags: u64, context: Opaque) -> isize;
        msg(ep: *mut FidEp, msg: *const c_void, result: Opaque, result_desc: *mut Opaque, result_count: usize, flags: u64) -> isize;
        barrier2(ep: *mut FidEp, collective: u64, flags: u64, context: Opaque) -> isize;
    }
}
