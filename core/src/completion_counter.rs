//! Counters as applications see them: a [`CounterCell`] that drives the endpoints
//! bound to it when it is read. Reference: fi_cntr(3).

use std::{
    fmt,
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    bind_count::BindError,
    counter::CounterCell,
    domain::Domain,
    driven_units::{Armed, DrivenUnits},
    engine::{BURST_MAX, idle::Idle, sleep::rest, unit::Unit},
    error::{Errno, HasErrno},
    primitive::{AtomicBool, Ordering},
    sleepers::Entered,
    transport::{Bell, Provider, Transport},
};

/// Why a wait ended without reaching its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time is over.
    #[error("the counter did not reach {threshold} in time: it is {value}")]
    TimedOut {
        /// As given.
        threshold: u64,
        /// As it was at the end.
        value: u64,
    },
    /// The process is a forked child of the one that opened the counter.
    #[error("a forked child cannot wait for its parent's counter")]
    ForkedChild,
    /// The error count changed meanwhile.
    #[error("an operation failed: the error count is {errors}")]
    Failed {
        /// The error count.
        errors: u64,
    },
}

impl HasErrno for WaitError {
    fn errno(&self) -> Errno {
        match self {
            WaitError::TimedOut { .. } => Errno::TIMEDOUT,
            WaitError::ForkedChild => Errno::OPNOTSUPP,
            WaitError::Failed { .. } => Errno::AVAIL,
        }
    }
}

/// A counter that is bound to endpoints of a domain.
pub struct CompletionCounter<P: Provider> {
    domain: Arc<Domain<P>>,
    counter: Arc<CounterCell>,
    units: DrivenUnits<P>,
    /// Bound to a memory region: any endpoint of the domain may add to it.
    drives_domain: AtomicBool,
    idle: Idle,
}

impl<P: Provider> fmt::Debug for CompletionCounter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionCounter")
            .field("counter", &self.counter)
            .field("drives_domain", &self.drives_domain.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl<P: Provider> CompletionCounter<P> {
    /// Opens a counter at 0.
    pub fn open(domain: &Arc<Domain<P>>) -> Arc<Self> {
        Arc::new(CompletionCounter {
            domain: domain.clone(),
            counter: Arc::new(CounterCell::default()),
            units: DrivenUnits::new(domain.sharing()),
            drives_domain: AtomicBool::new(false),
            idle: Idle::default(),
        })
    }

    /// The domain that the counter was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// The plain counter: add, set and the error count, without progress.
    pub fn counter(&self) -> &Arc<CounterCell> {
        &self.counter
    }

    pub(crate) fn units(&self) -> &DrivenUnits<P> {
        &self.units
    }

    pub(crate) fn drive_domain(&self) {
        self.drives_domain.store(true, Ordering::Relaxed);
        self.domain.tell_of_units(&self.counter);
        // Who sleeps has not armed the domain's units.
        self.counter.tell_of_units();
    }

    pub(crate) fn add_unit(&self, unit: &Arc<Unit<P>>) {
        self.units.add(unit);
        self.counter.tell_of_units();
    }

    /// The endpoints that reading it drives.
    fn driven(&self) -> &DrivenUnits<P> {
        if self.drives_domain.load(Ordering::Relaxed) { self.domain.units() } else { &self.units }
    }

    /// The value, after driving progress (`fi_cntr_read`).
    pub fn read(&self) -> u64 {
        if self.driven().progress(BURST_MAX) {
            self.idle.reset();
        } else {
            self.idle.idle();
        }
        self.counter.read()
    }

    /// Waits until the value is at least `threshold`, up to `timeout` (none: for
    /// ever), as [`CompletionQueue::read_blocking`](crate::completion_queue::CompletionQueue::read_blocking)
    /// does.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::Failed`] if the error count changes meanwhile,
    /// [`WaitError::ForkedChild`].
    /// # Reference
    /// fi_cntr(3), `fi_cntr_wait`
    pub fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), WaitError> {
        let start = Instant::now();
        let errors = self.counter.read_error();
        loop {
            let value = self.read();
            if value >= threshold {
                return Ok(());
            }
            if self.domain.provider().forked() {
                return Err(WaitError::ForkedChild);
            }
            let failed = self.counter.read_error();
            if failed != errors {
                return Err(WaitError::Failed { errors: failed });
            }
            let waited = start.elapsed();
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(WaitError::TimedOut { threshold, value });
            }
            if waited >= self.domain.spin() {
                let left = timeout.map(|timeout| timeout.saturating_sub(waited));
                self.sleep((value, failed), left);
            }
        }
    }

    fn sleep(&self, seen: (u64, u64), left: Option<Duration>) {
        let wait = self.begin_wait(seen);
        if wait.is_quiet() {
            P::Transport::sleep(&wait.descriptors(), rest(left, wait.looks_again()));
        }
    }

    fn begin_wait(&self, seen: (u64, u64)) -> CounterWait<P> {
        let (bell, entered) = self.counter.enter_sleep(|| self.domain.provider().new_bell());
        let (bell, counter) = (bell.map(Bell::fd), self.counter.clone());
        let (armed, helped) = (self.driven().arm(), self.domain.has_helper());
        CounterWait { counter, armed, bell, seen, entered, helped }
    }

    /// Makes ready for a wait outside, for something else than the value and error count
    /// that were `seen`. None: do not wait, since it is there, or could only be seen by
    /// polling. Reference: fi_poll(3), `fi_trywait`.
    pub fn prepare_wait(&self, seen: (u64, u64)) -> Option<CounterWait<P>> {
        self.prepare_nap(seen).filter(|wait| !wait.looks_again())
    }

    /// As [`Self::prepare_wait`], for who looks again soon where the wait says that it has to.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn prepare_nap(&self, seen: (u64, u64)) -> Option<CounterWait<P>> {
        if self.domain.provider().forked() {
            return None;
        }
        let wait = self.begin_wait(seen);
        wait.is_quiet().then_some(wait)
    }

    /// Closes the counter.
    ///
    /// # Errors
    /// [`BindError::Busy`] while an endpoint or a region is bound to it, [`BindError::Closed`] the
    /// second time.
    pub fn close(&self) -> Result<(), BindError> {
        self.counter.close()
    }
}

/// A wait for a counter to change: while it lives, peers and those who add ring.
pub struct CounterWait<P: Provider> {
    counter: Arc<CounterCell>,
    armed: Armed<P>,
    bell: Option<RawFd>,
    seen: (u64, u64),
    entered: Entered,
    helped: bool,
}

impl<P: Provider> CounterWait<P> {
    fn is_quiet(&self) -> bool {
        self.armed.is_quiet() && self.counter.now() == self.seen
    }

    /// Whether a sleeper must look again by itself, soon: no helper does, which would ring.
    pub fn looks_again(&self) -> bool {
        self.bell.is_none() || self.armed.waits_for_room() && !self.helped
    }

    /// What to wait for: one of these becomes readable.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut bells = self.armed.bells();
        bells.extend(self.bell);
        bells
    }
}

impl<P: Provider> Drop for CounterWait<P> {
    fn drop(&mut self) {
        self.counter.leave_sleep(self.entered);
    }
}
