//! In which way an object is waited for. Reference: fi_poll(3), fi_cq(3), fi_eq(3), fi_cntr(3).

use kestrel_core::error::Errno;

use crate::{abi::constants::wait, outcome::Failure};

/// How an application waits for an object. Reference: `enum fi_wait_obj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// It does not: it polls.
    None,
    /// Inside our calls.
    Inside,
    /// Through a wait set.
    Set,
    /// On a descriptor, which is told as one or as a list of one.
    Descriptor,
}

impl WaitKind {
    pub fn of(wait_obj: u32) -> Result<WaitKind, Failure> {
        match wait_obj {
            wait::NONE => Ok(WaitKind::None),
            wait::UNSPEC | wait::YIELD => Ok(WaitKind::Inside),
            wait::SET => Ok(WaitKind::Set),
            wait::FD | wait::POLLFD => Ok(WaitKind::Descriptor),
            other => {
                let reason =
                    format!("wait object {other} is neither UNSPEC, SET, FD, YIELD nor POLLFD");
                Err(Failure::new(Errno::NOSYS, reason))
            }
        }
    }

    /// "It is invalid for applications to call this function if the EQ has been configured with a wait
    /// object of FI_WAIT_NONE or FI_WAIT_SET" (fi_eq(3); fi_cq(3) and fi_cntr(3) say the same).
    pub fn check_blocking(self) -> Result<(), Failure> {
        let reason = match self {
            WaitKind::Inside | WaitKind::Descriptor => return Ok(()),
            WaitKind::None => "it was opened with FI_WAIT_NONE and cannot be waited for",
            WaitKind::Set => "it was opened with FI_WAIT_SET: its wait set is waited for",
        };
        Err(Failure::new(Errno::INVAL, reason))
    }

    /// The same of counters and event queues: those that are to be polled, FI_WAIT_NONE, are waited for all the
    /// same. Programs do, libfabric's own tests among them and those whose attributes are zeroes (Derecho), and
    /// nothing that others wait on stands in the way.
    pub fn check_waiting(self) -> Result<(), Failure> {
        if self == WaitKind::None { Ok(()) } else { self.check_blocking() }
    }
}

/// What has no descriptor cannot be waited for outside.
pub fn no_descriptor(what: &str) -> Failure {
    let reason = format!("the {what} was not opened with FI_WAIT_FD or FI_WAIT_POLLFD");
    Failure::new(Errno::INVAL, reason)
}
