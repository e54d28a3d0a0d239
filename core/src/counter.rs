//! Counters: how many operations completed, and how many failed. Reference: fi_cntr(3).
//!
//! Lock-free: an engine adds on its data path while any thread reads.
//! Waiting is done elsewhere, by asking [`CounterWait`] again and again.

use crossbeam_utils::CachePadded;

use crate::bind_count::{BindCount, BindError};
use crate::primitive::{AtomicU64, Ordering};

/// A count of completions, and one of errors.
///
/// Each has a cache line of its own: the first is written for every
/// completion, the second hardly ever, and waiters read both.
#[derive(Debug, Default)]
pub struct Counter {
    value: CachePadded<AtomicU64>,
    errors: CachePadded<AtomicU64>,
    binds: BindCount,
}

/// What a waiter waits for: a threshold, or any change of the error count
/// since the wait began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterWait {
    threshold: u64,
    errors_before: u64,
}

/// What a waiter finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// The count is at or beyond the threshold.
    Reached,
    /// The error count changed first: FI_EAVAIL.
    ErrorChanged,
    /// Neither; wait on.
    Pending,
}

impl Counter {
    pub fn new() -> Self {
        Counter::default()
    }

    /// How many operations completed. Who sees a count sees what those
    /// operations wrote.
    pub fn read(&self) -> u64 {
        self.value.load(Ordering::Acquire) // C1: pairs with C2
    }

    /// How many operations failed.
    pub fn read_error(&self) -> u64 {
        self.errors.load(Ordering::Acquire) // C1: pairs with C2
    }

    /// Adds to the count, wrapping around. Cost: one atomic instruction; no lock, no system call.
    pub fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Release); // C2: pairs with C1
    }

    /// Adds to the error count.
    pub fn add_error(&self, value: u64) {
        self.errors.fetch_add(value, Ordering::Release); // C2: pairs with C1
    }

    /// Sets the count. What is added meanwhile may be lost: "applications
    /// should ensure that the value of a counter is stable".
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Release); // C2: pairs with C1
    }

    /// Sets the error count, with the same warning.
    pub fn set_error(&self, value: u64) {
        self.errors.store(value, Ordering::Release); // C2: pairs with C1
    }

    /// Whether the count is "greater than or equal to the input threshold value".
    pub fn reached(&self, threshold: u64) -> bool {
        self.read() >= threshold
    }

    /// Begins a wait: "Any change in a counter's error value will unblock
    /// any thread inside fi_cntr_wait", so the error count is remembered now.
    pub fn begin_wait(&self, threshold: u64) -> CounterWait {
        CounterWait { threshold, errors_before: self.read_error() }
    }

    /// How a wait stands. A count that is reached outweighs an error.
    pub fn poll(&self, wait: &CounterWait) -> CounterState {
        if self.reached(wait.threshold) {
            CounterState::Reached
        } else if self.read_error() != wait.errors_before {
            CounterState::ErrorChanged
        } else {
            CounterState::Pending
        }
    }

    /// The endpoints and memory regions bound to it: they count themselves in and out here.
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`BindError::Busy`] while something is bound.
    pub fn close(&self) -> Result<(), BindError> {
        self.binds.close()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::{Errno, HasErrno};

    #[test]
    fn values_and_errors_are_counted_apart() {
        let counter = Counter::new();
        counter.add(3);
        counter.add(4);
        counter.add_error(2);
        assert_eq!((counter.read(), counter.read_error()), (7, 2));
        counter.set(100);
        counter.set_error(0);
        assert_eq!((counter.read(), counter.read_error()), (100, 0));
        assert!(counter.reached(100) && counter.reached(0) && !counter.reached(101));
    }

    #[test]
    fn a_wait_ends_at_the_threshold_or_when_errors_change() {
        let counter = Counter::new();
        counter.add_error(5);
        let wait = counter.begin_wait(2);
        assert_eq!(counter.poll(&wait), CounterState::Pending);
        counter.add(1);
        assert_eq!(counter.poll(&wait), CounterState::Pending);
        counter.set_error(0); // Any change, also downwards.
        assert_eq!(counter.poll(&wait), CounterState::ErrorChanged);
        counter.add(1);
        assert_eq!(counter.poll(&wait), CounterState::Reached);
        assert_eq!(counter.poll(&counter.begin_wait(3)), CounterState::Pending);
    }

    #[test]
    fn no_addition_is_lost_between_threads() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        counter.add(1);
                        counter.add_error(2);
                    }
                });
            }
        });
        assert_eq!((counter.read(), counter.read_error()), (40_000, 80_000));
    }

    #[test]
    fn a_bound_counter_does_not_close() {
        let counter = Counter::new();
        counter.binds().bind().unwrap();
        assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
        counter.binds().unbind().unwrap();
        counter.close().unwrap();
    }
}
