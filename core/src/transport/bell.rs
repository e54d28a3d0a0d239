//! What wakes a sleeper, and the sleep.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};

/// A doorbell, as a sleeper sees it. It stays rung until drained, so "drain, look, sleep" loses no
/// wake-up.
pub trait Bell: Send + Sync {
    /// Makes the bell readable.
    fn ring(&self);
    /// Makes it silent again.
    fn drain(&self);
    /// What to wait for.
    fn fd(&self) -> RawFd;
}

/// A bell of this process: an eventfd.
#[derive(Debug)]
pub struct EventBell(OwnedFd);

impl EventBell {
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE), or no memory.
    pub fn new() -> io::Result<EventBell> {
        Ok(EventBell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // EAGAIN: the counter is full, so the bell is as rung as it can be.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn drain(&self) {
        // EAGAIN: it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sleeps until one of `bells` is readable, or `timeout` is over (none: for ever).
///
/// Returns early on a signal: the caller looks again and decides.
pub fn wait_any(bells: &[RawFd], timeout: Option<Duration>) {
    let mut descriptors: Vec<libc::pollfd> =
        bells.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let spec = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time live through the call, which keeps nothing.
    // A descriptor that is closed meanwhile is reported, and does no harm.
    unsafe {
        libc::ppoll(descriptors.as_mut_ptr(), descriptors.len() as u64, spec, std::ptr::null());
    }
}
