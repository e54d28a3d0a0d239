//! Triggered operations. Reference: fi_trigger(3).

use super::{
    atomic::{MsgAtomic, MsgCompare, MsgFetch},
    fid::{FidCntr, FidEp},
    message::{Msg, MsgRma, MsgTagged},
};

/// `enum fi_trigger_event`.
pub mod event {
    pub const THRESHOLD: u32 = 0;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TriggerThreshold {
    pub cntr: *mut FidCntr,
    pub threshold: usize,
}

/// What a condition is, by the kind of event: the largest is as long as three pointers.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Trigger {
    pub threshold: TriggerThreshold,
    pub internal: [usize; 3],
}

#[repr(C)]
pub struct TriggeredContext {
    pub event_type: u32,
    pub trigger: Trigger,
}

/// `enum fi_op_type`.
pub mod op {
    pub const RECV: u32 = 0;
    pub const SEND: u32 = 1;
    pub const TRECV: u32 = 2;
    pub const TSEND: u32 = 3;
    pub const READ: u32 = 4;
    pub const WRITE: u32 = 5;
    pub const ATOMIC: u32 = 6;
    pub const FETCH_ATOMIC: u32 = 7;
    pub const COMPARE_ATOMIC: u32 = 8;
    pub const CNTR_SET: u32 = 9;
    pub const CNTR_ADD: u32 = 10;
}

#[repr(C)]
pub struct OpMsg {
    pub ep: *mut FidEp,
    pub msg: Msg,
    pub flags: u64,
}

#[repr(C)]
pub struct OpTagged {
    pub ep: *mut FidEp,
    pub msg: MsgTagged,
    pub flags: u64,
}

#[repr(C)]
pub struct OpRma {
    pub ep: *mut FidEp,
    pub msg: MsgRma,
    pub flags: u64,
}

#[repr(C)]
pub struct OpAtomic {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub flags: u64,
}

#[repr(C)]
pub struct OpFetchAtomic {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub fetch: MsgFetch,
    pub flags: u64,
}

#[repr(C)]
pub struct OpCompareAtomic {
    pub ep: *mut FidEp,
    pub msg: MsgAtomic,
    pub fetch: MsgFetch,
    pub compare: MsgCompare,
    pub flags: u64,
}

#[repr(C)]
pub struct OpCntr {
    pub cntr: *mut FidCntr,
    pub value: u64,
}

/// What work does: one of the structs above, by its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Op {
    pub msg: *mut OpMsg,
    pub tagged: *mut OpTagged,
    pub rma: *mut OpRma,
    pub atomic: *mut OpAtomic,
    pub fetch_atomic: *mut OpFetchAtomic,
    pub compare_atomic: *mut OpCompareAtomic,
    pub cntr: *mut OpCntr,
}

#[repr(C)]
pub struct DeferredWork {
    /// The provider's.
    pub context: [usize; 8],
    pub threshold: u64,
    pub triggering_cntr: *mut FidCntr,
    pub completion_cntr: *mut FidCntr,
    pub op_type: u32,
    pub op: Op,
}
