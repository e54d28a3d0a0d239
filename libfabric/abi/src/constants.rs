//! Numbers that no type of core has. Reference: fi_getinfo(3), fi_control(3), fi_poll(3).

use std::ffi::c_int;

/// `fi_getinfo`: the node is a number; no resolver is to be asked.
pub const NUMERICHOST: u64 = 1 << 55;
/// `fi_getinfo`: interfaces may have come or gone since it was called last.
pub const RESCAN: u64 = 1 << 35;
/// `fi_getinfo`, from libfabric itself and its utility providers: what they say to each other.
pub const HOST_FLAGS: u64 = 1 << 58 | CORE_PROVIDER_ONLY | 1 << 60 | 1 << 61;
/// `fi_getinfo`: only the provider's own attributes are asked for.
pub const PROV_ATTR_ONLY: u64 = 1 << 54;
/// `fi_getinfo`, from utility providers that would layer themselves over us.
pub const CORE_PROVIDER_ONLY: u64 = 1 << 59;

/// `enum fi_wait_obj`.
pub mod wait {
    pub const NONE: u32 = 0;
    pub const UNSPEC: u32 = 1;
    pub const SET: u32 = 2;
    pub const FD: u32 = 3;
    pub const YIELD: u32 = 5;
    pub const POLLFD: u32 = 6;
}

/// `fi_control` commands.
pub mod command {
    use super::c_int;

    pub const GETOPSFLAG: c_int = 2;
    pub const SETOPSFLAG: c_int = 3;
    pub const ALIAS: c_int = 4;
    pub const GETWAIT: c_int = 5;
    pub const ENABLE: c_int = 6;
    pub const BACKLOG: c_int = 7;
    pub const GET_RAW_MR: c_int = 8;
    pub const MAP_RAW_MR: c_int = 9;
    pub const UNMAP_KEY: c_int = 10;
    pub const QUEUE_WORK: c_int = 11;
    pub const CANCEL_WORK: c_int = 12;
    pub const FLUSH_WORK: c_int = 13;
    pub const DUP: c_int = 15;
    pub const GETWAITOBJ: c_int = 16;
}

/// `FI_OPT_ENDPOINT`: the only level of options.
pub const OPT_ENDPOINT: c_int = 0;

/// `FI_AV_AUTH_KEY`, since 1.20: instead of the size of a key.
pub const AV_AUTH_KEY: usize = usize::MAX;

/// `FI_PROGRESS_CONTROL_UNIFIED`, since 1.21.
pub const PROGRESS_CONTROL_UNIFIED: u32 = 3;

/// `FI_AV_UNSPEC`'s sibling errors: numbers that the stubs of tables answer with.
pub const NOSYS: i32 = 38;
/// What calls on a closed object answer.
pub const BADF: i32 = 9;
