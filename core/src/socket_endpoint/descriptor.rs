//! The descriptor of a socket endpoint: one that poll and epoll understand as they do a socket's.
//!
//! It is one end of a pair of local sockets. What it shows, the kernel derives from the pair: it
//! is readable while a byte lies in it, writable unless its buffer was filled up, and hung up
//! when the other end is closed, with an error if a byte of its own was still unread there. So
//! the application only waits on it; what it would read or write there means nothing.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
};

bitflags::bitflags! {
    /// What a socket endpoint is ready for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// A receive answers something else than "again" (POLLIN).
        const RECEIVE = 1;
        /// A send answers something else than "again" (POLLOUT).
        const SEND = 2;
        /// The stream is over (POLLHUP).
        const HANG_UP = 4;
        /// It is, and not because either side wanted it so (POLLERR).
        const ERROR = 8;
    }
}

/// More than any buffer of a local socket takes at once, so that it is filled in a few writes.
static FILLING: [u8; 64 << 10] = [0; 64 << 10];

pub(super) struct Descriptor {
    /// What the application waits on.
    theirs: UnixStream,
    /// Until the stream is over, after which nothing changes any more.
    ours: Option<UnixStream>,
    shown: Readiness,
}

impl Descriptor {
    /// One that shows nothing.
    pub fn new() -> io::Result<Descriptor> {
        let (theirs, ours) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        ours.set_nonblocking(true)?;
        fill(&theirs);
        Ok(Descriptor { theirs, ours: Some(ours), shown: Readiness::empty() })
    }

    pub fn fd(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// Has it show this. Cost: system calls, but only where something changed.
    pub fn show(&mut self, now: Readiness) {
        let Some(ours) = self.ours.as_ref().filter(|_| now != self.shown) else {
            return;
        };
        let changed = now ^ self.shown;
        self.shown = now;
        if changed.contains(Readiness::RECEIVE) {
            if now.contains(Readiness::RECEIVE) { put(ours) } else { drain(&self.theirs) }
        }
        if changed.contains(Readiness::SEND) {
            if now.contains(Readiness::SEND) { drain(ours) } else { fill(&self.theirs) }
        }
        if now.contains(Readiness::HANG_UP) {
            drain(ours);
            if now.contains(Readiness::ERROR) {
                put(&self.theirs);
            }
            self.ours = None;
        }
    }
}

// Both ends are ours, and neither blocks: what fails has found the buffer full or empty.

fn put(mut end: &UnixStream) {
    let _ = end.write(&FILLING[..1]);
}

fn fill(mut end: &UnixStream) {
    while end.write(&FILLING).is_ok() {}
}

fn drain(mut end: &UnixStream) {
    let mut rest = [0; 16 << 10];
    while end.read(&mut rest).is_ok_and(|count| count > 0) {}
}
