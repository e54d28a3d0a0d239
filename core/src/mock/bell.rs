//! The mock's bells, and sleeping on them.
//!
//! A bell is a descriptor as well, one that poll(2) finds readable while the bell is rung:
//! whoever composes transports has sleepers wait for several kinds at once.

use std::{
    cell::Cell,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::lock;
use crate::{
    error::{Cause, HasErrno},
    transport::Bell,
};

/// Bells that are rung, by what stands for their descriptors.
static RUNG: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
static RINGING: Condvar = Condvar::new();

thread_local! {
    static SLEEPS: Cell<usize> = const { Cell::new(0) };
}

/// How often this thread has slept.
pub(super) fn sleeps() -> usize {
    SLEEPS.get()
}

/// Sleeps until one of the bells is rung, up to `timeout`.
pub(super) fn sleep(bells: &[RawFd], timeout: Option<Duration>) {
    SLEEPS.set(SLEEPS.get() + 1);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut rung = lock(&RUNG);
    while !rung.iter().any(|bell| bells.contains(bell)) {
        let left = match deadline {
            None => Duration::from_secs(60),
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            return;
        }
        rung = RINGING.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// A pair of sockets with a byte in it while the bell is rung.
pub(super) struct MockBell {
    outside: UnixStream,
    inside: UnixStream,
}

impl MockBell {
    pub(super) fn new() -> Result<MockBell, Cause> {
        let pair = || {
            let (outside, inside) = UnixStream::pair()?;
            inside.set_nonblocking(true)?;
            outside.set_nonblocking(true)?;
            Ok(MockBell { outside, inside })
        };
        pair().map_err(|error: std::io::Error| Cause {
            errno: error.errno(),
            reason: format!("no bell: {error}"),
        })
    }
}

impl Bell for MockBell {
    fn ring(&self) {
        let mut rung = lock(&RUNG);
        if !rung.contains(&self.fd()) {
            rung.push(self.fd());
            // One byte always fits.
            let _ = (&self.inside).write(&[1]);
        }
        RINGING.notify_all();
    }

    fn drain(&self) {
        let mut rung = lock(&RUNG);
        if rung.contains(&self.fd()) {
            rung.retain(|bell| *bell != self.fd());
            let _ = (&self.outside).read(&mut [0]);
        }
    }

    fn fd(&self) -> RawFd {
        self.outside.as_raw_fd()
    }
}

impl Drop for MockBell {
    fn drop(&mut self) {
        self.drain();
    }
}
