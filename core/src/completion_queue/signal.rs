//! A signal to who waits for a queue: first of all to those who are blocked in a read.

use crate::primitive::{AtomicBool, AtomicUsize, Ordering};

/// All of it is in one order, of which each who makes silent the bell of others looks at the end.
#[derive(Default)]
pub(super) struct Signal {
    is_there: AtomicBool,
    /// Threads that are blocked in a read.
    blocked: AtomicUsize,
}

impl Signal {
    pub(super) fn give(&self) {
        self.is_there.store(true, Ordering::SeqCst);
    }

    /// Whether there was one; it is taken.
    pub(super) fn take(&self) -> bool {
        self.is_there.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::SeqCst)
    }

    pub(super) fn blocked(&self) -> usize {
        self.blocked.load(Ordering::SeqCst)
    }

    /// Whether there is one, and somebody is blocked who is to take it.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_there() && self.blocked() > 0
    }
}

/// A thread that is blocked in a read, while this lives.
pub(super) struct Blocked<'a>(&'a Signal);

impl<'a> Blocked<'a> {
    /// Before the first look at the signal.
    pub(super) fn at(signal: &'a Signal) -> Self {
        signal.blocked.fetch_add(1, Ordering::SeqCst);
        Blocked(signal)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.blocked.fetch_sub(1, Ordering::SeqCst);
    }
}
