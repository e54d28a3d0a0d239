//! Waiting for completions: inside a call, or outside on descriptors.
//! Reference: fi_cq(3), `fi_cq_sread`; fi_poll(3), `fi_trywait`.

use std::{
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    CompletionQueue, Entry, ReadError,
    signal::Blocked,
    store::{CompletionStore, Head},
};
use crate::{
    driven_units::Armed,
    engine::{BURST_MAX, sleep::rest},
    sleepers::Entered,
    transport::{Provider, Transport},
};

impl<P: Provider> CompletionQueue<P> {
    /// Reads as [`Self::read`], waiting up to `timeout` (none: for ever) for the
    /// first completion.
    ///
    /// The wait spins for a moment, yields, then sleeps on the bells of the
    /// endpoints bound, re-checking after it has asked for the bell. Without room for any, when
    /// `entries` is empty, it does not wait.
    /// # Errors
    /// As [`Self::read`], [`ReadError::Empty`] when the time is over; [`ReadError::Signaled`] after
    /// [`Self::signal`].
    /// # Reference
    /// fi_cq(3), `fi_cq_sread`
    pub fn read_blocking(
        &self,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<usize, ReadError> {
        self.read_blocking_by(entries.len(), |store| store.pop(entries), timeout)
    }

    /// Reads as [`Self::read_with`], waiting as [`Self::read_blocking`] does: not if `count` is 0.
    ///
    /// # Errors
    /// As there.
    pub fn read_with_blocking(
        &self,
        count: usize,
        timeout: Option<Duration>,
        mut take: impl FnMut(usize, &Entry),
    ) -> Result<usize, ReadError> {
        self.read_blocking_by(count, |store| store.pop_each(count, &mut take), timeout)
    }

    /// Reads by `pop`, which takes `count` completions at most.
    pub(super) fn read_blocking_by(
        &self,
        count: usize,
        mut pop: impl FnMut(&CompletionStore) -> Head,
        timeout: Option<Duration>,
    ) -> Result<usize, ReadError> {
        let start = Instant::now();
        let _blocked = Blocked::at(&self.store.signal);
        loop {
            match self.read_by(count, BURST_MAX, &mut pop) {
                // Who takes none would wait for what is there already.
                Err(ReadError::Empty) if count > 0 => {}
                outcome => return outcome,
            }
            if self.domain.provider().forked() {
                return Err(ReadError::ForkedChild);
            }
            if self.store.signal.take() {
                return Err(ReadError::Signaled);
            }
            let waited = start.elapsed();
            let left = timeout.map(|timeout| timeout.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return Err(ReadError::Empty);
            }
            if waited >= self.domain.spin() {
                self.sleep(left);
            }
        }
    }

    fn sleep(&self, left: Option<Duration>) {
        let wait = self.begin_wait();
        if self.nothing_yet(&wait) {
            P::Transport::sleep(&wait.descriptors(), rest(left, wait.looks_again()));
        }
    }

    fn begin_wait(&self) -> QueueWait<P> {
        let entered = self.store.enter_sleep();
        let (armed, helped) = (self.units.arm(), self.domain.has_helper());
        QueueWait { armed, store: self.store.clone(), entered, helped }
    }

    fn nothing_yet(&self, wait: &QueueWait<P>) -> bool {
        wait.armed.is_quiet() && self.store.is_empty() && !self.store.signal.is_there()
    }

    /// Drives progress, and answers whether a read would find something.
    pub fn poll(&self) -> bool {
        self.units.progress(BURST_MAX);
        !self.store.is_empty()
    }

    /// Makes ready for a wait outside. None: do not wait, since something is there
    /// already, or could only be seen by polling.
    /// Reference: fi_poll(3), `fi_trywait`: "the caller should … process any
    /// queued events before waiting".
    pub fn prepare_wait(&self) -> Option<QueueWait<P>> {
        self.prepare_nap().filter(|wait| !wait.looks_again())
    }

    /// As [`Self::prepare_wait`], for who looks again soon where the wait says that it has to.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn prepare_nap(&self) -> Option<QueueWait<P>> {
        if self.domain.provider().forked() {
            return None;
        }
        let wait = self.begin_wait();
        // Who waits outside is told once, too, and may wait the next time.
        if self.store.signal.take() {
            drop(wait);
            // But a signal is first of all for those who are blocked in a read: one that began before
            // the exchange is seen here, and one that began after it is not what was signaled for.
            if self.store.signal.blocked() > 0 {
                self.signal();
            }
            return None;
        }
        self.nothing_yet(&wait).then_some(wait)
    }
}

/// A wait for a queue's completions: while it lives, peers ring.
pub struct QueueWait<P: Provider> {
    armed: Armed<P>,
    store: Arc<CompletionStore>,
    entered: Entered,
    helped: bool,
}

impl<P: Provider> QueueWait<P> {
    /// What to wait for: one of these becomes readable.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut bells = self.armed.bells();
        bells.push(self.store.wake().fd());
        bells
    }

    /// Whether a sleeper must look again by itself, soon: no helper does, which would ring.
    pub fn looks_again(&self) -> bool {
        self.waits_for_room() && !self.helped
    }

    pub(crate) fn waits_for_room(&self) -> bool {
        self.armed.waits_for_room()
    }
}

impl<P: Provider> Drop for QueueWait<P> {
    /// The bells fall silent; each unit's own does after this, with its `Armed`.
    fn drop(&mut self) {
        self.store.leave_sleep(self.entered);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        domain::{Domain, DomainOptions},
        mock::{MockOptions, MockProvider, MockTransport},
    };

    /// Of two who sleep on one bell the first silences it: it rings for the other, too.
    #[test]
    fn a_signal_is_for_each_who_sleeps() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let domain = Domain::open(provider, DomainOptions::default()).unwrap();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        let is_rung = |wait: &QueueWait<MockProvider>| {
            let start = Instant::now();
            MockTransport::sleep(&wait.descriptors(), Some(Duration::from_secs(5)));
            start.elapsed() < Duration::from_secs(4)
        };
        let waits = || [(); 2].map(|()| queue.prepare_wait().unwrap());
        let [first, second] = waits();
        let blocked = Blocked::at(&queue.store.signal);
        queue.signal();
        drop(first);
        assert!(is_rung(&second));
        drop((second, blocked));
        assert!(queue.prepare_wait().is_none(), "the signal is still there");
        // Who makes ready once more finds the signal, and only then lets its earlier wait go.
        let [first, second] = waits();
        let _blocked = Blocked::at(&queue.store.signal);
        queue.signal();
        assert!(queue.prepare_wait().is_none());
        drop(first);
        assert!(is_rung(&second) && queue.store.signal.is_there());
    }
}
