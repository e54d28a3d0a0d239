//! Counters as applications see them: a [`Counter`] that drives the endpoints
//! bound to it when it is read. Reference: fi_cntr(3).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    bind_count::BindError,
    counter::Counter,
    domain::Domain,
    engine::{BURST_MAX, idle::Idle},
    poll_set::PollSet,
    primitive::{AtomicBool, Ordering},
    transport::{Provider, Transport},
};

/// The longest sleep between two looks: a counter has no bell of its own.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Why a wait ended without reaching its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time is over.
    #[error("the counter did not reach {threshold} in time: it is {value}")]
    TimedOut {
        /// As given.
        threshold: u64,
        /// As it was at the end.
        value: u64,
    },
    /// The error count changed meanwhile.
    #[error("an operation failed: the error count is {errors}")]
    Failed {
        /// The error count.
        errors: u64,
    },
}

/// A counter that is bound to endpoints of a domain.
pub struct CompletionCounter<P: Provider> {
    domain: Arc<Domain<P>>,
    counter: Arc<Counter>,
    units: PollSet<P>,
    /// Bound to a memory region: any endpoint of the domain may add to it.
    drives_domain: AtomicBool,
    idle: Idle,
}

impl<P: Provider> CompletionCounter<P> {
    /// Opens a counter at 0.
    pub fn open(domain: &Arc<Domain<P>>) -> Arc<Self> {
        Arc::new(CompletionCounter {
            domain: domain.clone(),
            counter: Arc::new(Counter::default()),
            units: PollSet::new(domain.sharing()),
            drives_domain: AtomicBool::new(false),
            idle: Idle::default(),
        })
    }

    /// The domain that the counter was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// The plain counter: add, set and the error count, without progress.
    pub fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    pub(crate) fn units(&self) -> &PollSet<P> {
        &self.units
    }

    pub(crate) fn drive_domain(&self) {
        self.drives_domain.store(true, Ordering::Relaxed);
    }

    /// The endpoints that reading it drives.
    fn driven(&self) -> &PollSet<P> {
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
    /// ever). Reference: fi_cntr(3), `fi_cntr_wait`: it returns early if the
    /// error count changes.
    pub fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), WaitError> {
        let start = Instant::now();
        let errors = self.counter.read_error();
        loop {
            let value = self.read();
            if value >= threshold {
                return Ok(());
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
                let armed = self.driven().arm();
                if armed.is_quiet() {
                    P::Transport::sleep(&armed.bells(), Some(LOOK_AGAIN));
                }
            }
        }
    }

    /// Closes the counter. Refused while an endpoint is bound to it.
    pub fn close(&self) -> Result<(), BindError> {
        self.counter.close()
    }
}
