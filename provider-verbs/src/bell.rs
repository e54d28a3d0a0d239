//! One epoll descriptor for all that can wake a sleeper of an endpoint.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::event::epoll::{self, EventData, EventFlags};

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

    use kestrel_core::transport::{Bell, EventBell, wait_any};

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
