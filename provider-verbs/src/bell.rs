//! What wakes a sleeper: an eventfd, and one epoll descriptor for all that can wake an endpoint.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use kestrel_core::transport::Bell;
use rustix::event::{
    EventfdFlags,
    epoll::{self, EventData, EventFlags},
    eventfd,
};

/// An eventfd. It stays rung until drained, so "drain, look, sleep" loses no wake-up.
#[derive(Debug)]
pub struct EventBell(OwnedFd);

impl EventBell {
    pub fn new() -> io::Result<EventBell> {
        Ok(EventBell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // EAGAIN: the counter is full, so the bell is as rung as it can be.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn drain(&self) {
        let mut count = [0u8; 8];
        // EAGAIN: it was not rung.
        let _ = rustix::io::read(&self.0, &mut count);
    }

    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An epoll descriptor that is readable when any of two others is.
#[derive(Debug)]
pub struct EitherBell(OwnedFd);

impl EitherBell {
    /// # Safety
    /// Both descriptors are open.
    pub unsafe fn new(bells: [RawFd; 2]) -> io::Result<EitherBell> {
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (nth, bell) in bells.into_iter().enumerate() {
            // SAFETY: the caller says that it is open; it is used for this call alone.
            let bell = unsafe { BorrowedFd::borrow_raw(bell) };
            epoll::add(&either, bell, EventData::new_u64(nth as u64), EventFlags::IN)?;
        }
        Ok(EitherBell(either))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kestrel_core::transport::wait_any;

    use super::*;

    #[test]
    fn either_bell_wakes_a_sleeper() {
        let bells = [EventBell::new().unwrap(), EventBell::new().unwrap()];
        // SAFETY: both are open.
        let either = unsafe { EitherBell::new([bells[0].fd(), bells[1].fd()]) }.unwrap();
        let is_readable = || {
            let mut poll = libc::pollfd { fd: either.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which is open.
            unsafe { libc::poll(&mut poll, 1, 0) == 1 }
        };
        for bell in &bells {
            assert!(!is_readable());
            bell.ring();
            bell.ring();
            assert!(is_readable());
            wait_any(&[either.fd()], None);
            bell.drain();
        }
        wait_any(&[either.fd()], Some(Duration::from_millis(1)));
        assert!(!is_readable());
    }
}
