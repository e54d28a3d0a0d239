//! The mock's bells, and sleeping on them.

use std::{
    cell::Cell,
    os::fd::RawFd,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use super::lock;
use crate::transport::Bell;

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

/// A bell without a descriptor: its number only means something in here.
pub(super) struct MockBell(RawFd);

impl MockBell {
    pub(super) fn new() -> MockBell {
        static NEXT: AtomicI32 = AtomicI32::new(1);
        MockBell(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Bell for MockBell {
    fn ring(&self) {
        let mut rung = lock(&RUNG);
        if !rung.contains(&self.0) {
            rung.push(self.0);
        }
        RINGING.notify_all();
    }

    fn drain(&self) {
        lock(&RUNG).retain(|bell| *bell != self.0);
    }

    fn fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for MockBell {
    fn drop(&mut self) {
        self.drain();
    }
}
