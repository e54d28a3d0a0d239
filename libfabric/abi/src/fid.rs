//! Objects as C sees them: a `struct fid` first, then the tables of their calls.
//! Reference: fi_provider(3), fi_control(3).

use std::ffi::{c_char, c_int, c_void};

use super::{
    atomic::OpsAtomic,
    control::{
        OpsAv, OpsCm, OpsCntr, OpsCq, OpsDomain, OpsEp, OpsEq, OpsFabric, OpsFid, OpsMr, OpsPoll,
        OpsWait,
    },
    info::{BusAttr, DeviceAttr, FabricAttr, Info, LinkAttr},
    transfer::{OpsCollective, OpsMsg, OpsRma, OpsTagged},
};

/// `FI_CLASS_*`.
pub mod class {
    pub const FABRIC: usize = 1;
    pub const DOMAIN: usize = 2;
    pub const EP: usize = 3;
    pub const SEP: usize = 4;
    pub const RX_CTX: usize = 5;
    pub const SRX_CTX: usize = 6;
    pub const TX_CTX: usize = 7;
    pub const STX_CTX: usize = 8;
    pub const PEP: usize = 9;
    pub const AV: usize = 11;
    pub const MR: usize = 12;
    pub const EQ: usize = 13;
    pub const CQ: usize = 14;
    pub const CNTR: usize = 15;
    pub const WAIT: usize = 16;
    pub const POLL: usize = 17;
    pub const CONNREQ: usize = 18;
    pub const MC: usize = 19;
    pub const NIC: usize = 20;
}

#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const OpsFid,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const OpsFabric,
    /// libfabric writes it after `fabric()` has returned.
    pub api_version: u32,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const OpsDomain,
    pub mr: *const OpsMr,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const OpsEp,
    pub cm: *const OpsCm,
    pub msg: *const OpsMsg,
    pub rma: *const OpsRma,
    pub tagged: *const OpsTagged,
    pub atomic: *const OpsAtomic,
    pub collective: *const OpsCollective,
}

/// A scalable endpoint: C declares it as an endpoint.
#[repr(transparent)]
pub struct FidSep(pub FidEp);

/// A socket endpoint: C declares it as an endpoint.
#[repr(transparent)]
pub struct FidSocket(pub FidEp);

/// A shared receive context: C declares it as an endpoint.
#[repr(transparent)]
pub struct FidSrx(pub FidEp);

#[repr(C)]
pub struct FidStx {
    pub fid: Fid,
    pub ops: *const OpsEp,
}

#[repr(C)]
pub struct FidPep {
    pub fid: Fid,
    pub ops: *const OpsEp,
    pub cm: *const OpsCm,
}

/// What `fi_info` of a connection request has as its handle: a `struct fid` and no more.
#[repr(C)]
pub struct FidRequest {
    pub fid: Fid,
}

#[repr(C)]
pub struct FidMc {
    pub fid: Fid,
    /// What `fi_mc_addr` gives: it is inline in the header.
    pub fi_addr: u64,
}

/// Reference: fi_nic(3).
#[repr(C)]
pub struct FidNic {
    pub fid: Fid,
    pub device_attr: *mut DeviceAttr,
    pub bus_attr: *mut BusAttr,
    pub link_attr: *mut LinkAttr,
    pub prov_attr: *mut c_void,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const OpsAv,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const OpsEq,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const OpsCq,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const OpsCntr,
}

#[repr(C)]
pub struct FidWait {
    pub fid: Fid,
    pub ops: *const OpsWait,
}

#[repr(C)]
pub struct FidPoll {
    pub fid: Fid,
    pub ops: *const OpsPoll,
}

/// `struct fi_provider`, the same since 1.3.
#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub fi_version: u32,
    /// libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: unsafe extern "C" fn(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const Info,
        info: *mut *mut Info,
    ) -> c_int,
    pub fabric: unsafe extern "C" fn(
        attr: *mut FabricAttr,
        fabric: *mut *mut FidFabric,
        context: *mut c_void,
    ) -> c_int,
    pub cleanup: unsafe extern "C" fn(),
}
