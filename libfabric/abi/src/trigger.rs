//! Triggered operations. Reference: fi_trigger(3).

use super::fid::FidCntr;

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
