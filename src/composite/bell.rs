//! One descriptor for several bells: an epoll set, readable while any of them is.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use kestrel_core::{
    error::{Cause, Errno},
    transport::Transport,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Bells that are waited for together.
pub struct Bells {
    set: OwnedFd,
}

impl Bells {
    /// The bells of both. Level-triggered, as bells are: the set stays readable until the bell
    /// that rang is silenced.
    ///
    /// # Errors
    /// No descriptor is left, or a bell is none.
    pub fn join(near: &impl Transport, far: &impl Transport) -> Result<Bells, Cause> {
        let join = || {
            let set = epoll::create(CreateFlags::CLOEXEC)?;
            for bell in [near.bell(), far.bell()] {
                // SAFETY: a transport's bell is open as long as the transport, and both are
                // borrowed until we return.
                let bell = unsafe { BorrowedFd::borrow_raw(bell) };
                epoll::add(&set, bell, EventData::new_u64(0), EventFlags::IN)?;
            }
            Ok(Bells { set })
        };
        join().map_err(|errno: rustix::io::Errno| Cause {
            errno: Errno(errno.raw_os_error()),
            reason: format!("one bell for two transports: {errno}"),
        })
    }

    /// What to wait for.
    pub fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}
