//! What wakes a sleeper, and the sleep.

use std::{os::fd::RawFd, time::Duration};

/// A doorbell: an eventfd, as a sleeper sees it.
pub trait Bell: Send + Sync {
    /// Makes the bell readable.
    fn ring(&self);
    /// Makes it silent again.
    fn drain(&self);
    /// What to wait for.
    fn fd(&self) -> RawFd;
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
