//! Attributes that objects are opened with, and entries that are read from queues.
//! Reference: fi_av(3), fi_cq(3), fi_cntr(3), fi_eq(3), fi_mr(3), fi_poll(3).

use std::ffi::{c_char, c_int, c_short, c_void};

use super::{
    fid::{Fid, FidMr, FidWait},
    info::Info,
};

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Iovec {
    pub base: *mut c_void,
    pub len: usize,
}

/// `struct fi_alias`: where the new object goes, and its flags.
#[repr(C)]
pub struct Alias {
    pub fid: *mut *mut Fid,
    pub flags: u64,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut FidWait,
    /// Behind 2.6.
    pub xpu_ctx: *mut c_void,
}

#[repr(C)]
pub struct CntrAttr {
    pub events: u32,
    pub wait_obj: u32,
    pub wait_set: *mut FidWait,
    pub flags: u64,
    /// Behind 2.6.
    pub xpu_ctx: *mut c_void,
}

#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut FidWait,
}

#[repr(C)]
pub struct WaitAttr {
    pub wait_obj: u32,
    pub flags: u64,
}

/// What FI_GETWAIT fills for FI_WAIT_POLLFD.
#[repr(C)]
pub struct WaitPollFd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut PollFd,
}

/// POSIX's `struct pollfd`.
#[repr(C)]
pub struct PollFd {
    pub fd: c_int,
    pub events: c_short,
    pub revents: c_short,
}

#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const Iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: u32,
    pub device: u64,
    /// Since 1.19.
    pub hmem_data: *mut c_void,
    /// Since 1.22.
    pub page_size: usize,
    /// Since 2.0, as the rest.
    pub base_mr: *const FidMr,
    pub sub_mr_cnt: usize,
}

/// What `MrAttr::auth_key` points to on a domain that was opened with FI_AV_AUTH_KEY. Since 1.20.
#[repr(C)]
pub struct MrAuthKey {
    pub av: *mut crate::fid::FidAv,
    pub src_addr: u64,
}

/// `struct fi_mr_raw_attr`.
#[repr(C)]
pub struct MrRawAttr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    pub key_size: *mut usize,
}

/// `struct fi_mr_map_raw`.
#[repr(C)]
pub struct MrMapRaw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    pub key: *mut u64,
}

/// `struct fi_cq_tagged_entry`, of which the smaller formats are the beginning.
#[repr(C)]
pub struct CqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    /// Since 1.5.
    pub err_data_size: usize,
    /// Since 1.20.
    pub src_addr: u64,
}

#[repr(C)]
pub struct EqEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `struct fi_eq_cm_entry`, without the connection data that follows it.
#[repr(C)]
pub struct EqCmEntry {
    pub fid: *mut Fid,
    pub info: *mut Info,
}
