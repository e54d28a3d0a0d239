//! Atomic operations. Reference: fi_atomic(3).

use std::ffi::{c_int, c_void};

use super::fid::FidEp;

/// Something that kestrel never looks into.
type Opaque = *mut c_void;

#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

/// `struct fi_ioc`: elements, not bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
pub struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: *mut Opaque,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: u32,
    pub op: u32,
    pub context: *mut c_void,
    pub data: u64,
}

/// Where the values from before go.
#[repr(C)]
pub struct MsgFetch {
    pub msg_iov: *mut Ioc,
    pub desc: *mut Opaque,
    pub iov_count: usize,
}

/// What is compared with.
#[repr(C)]
pub struct MsgCompare {
    pub msg_iov: *const Ioc,
    pub desc: *mut Opaque,
    pub iov_count: usize,
}

operations! {
    pub struct OpsAtomic {
        write(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        writev(ep: *mut FidEp, iov: *const Ioc, desc: *mut Opaque, count: usize, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        writemsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize;
        inject(ep: *mut FidEp, buffer: *const c_void, count: usize, to: u64, address: u64, key: u64, datatype: u32, op: u32) -> isize;
        readwrite(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, result: *mut c_void, result_desc: Opaque, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        readwritev(ep: *mut FidEp, iov: *const Ioc, desc: *mut Opaque, count: usize, result: *mut Ioc, result_desc: *mut Opaque, result_count: usize, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        readwritemsg(ep: *mut FidEp, msg: *const MsgAtomic, result: *mut Ioc, result_desc: *mut Opaque, result_count: usize, flags: u64) -> isize;
        compwrite(ep: *mut FidEp, buffer: *const c_void, count: usize, desc: Opaque, compare: *const c_void, compare_desc: Opaque, result: *mut c_void, result_desc: Opaque, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        compwritev(ep: *mut FidEp, iov: *const Ioc, desc: *mut Opaque, count: usize, compare: *const Ioc, compare_desc: *mut Opaque, compare_count: usize, result: *mut Ioc, result_desc: *mut Opaque, result_count: usize, to: u64, address: u64, key: u64, datatype: u32, op: u32, context: Opaque) -> isize;
        compwritemsg(ep: *mut FidEp, msg: *const MsgAtomic, compare: *const Ioc, compare_desc: *mut Opaque, compare_count: usize, result: *mut Ioc, result_desc: *mut Opaque, result_count: usize, flags: u64) -> isize;
        writevalid(ep: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int;
        readwritevalid(ep: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int;
        compwritevalid(ep: *mut FidEp, datatype: u32, op: u32, count: *mut usize) -> c_int;
    }
}
