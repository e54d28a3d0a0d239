//! What a poller does that finds nothing: spin, then give the core away.
//!
//! The policy learns from the yield itself. One that returns at once found
//! nobody else to run, so spinning costs nobody anything; one that takes long
//! let somebody run, and on a core that is shared this is the only way for a
//! peer to answer. So eight ranks on two cores yield after a few empty polls,
//! and two ranks on two cores after thousands. One slow yield alone says little:
//! something passed by, and who takes it for a shared core pays a system call in
//! every wait from then on. Several in a row mean company.

use std::time::{Duration, Instant};

use crate::primitive::{AtomicU32, Ordering, yield_now};

/// Empty polls before a yield while nobody else wants the core.
const SPINS_ALONE: u32 = 2_000;
/// Empty polls before a yield while the core is shared: whoever could answer does not run.
const SPINS_SHARED: u32 = 2;
/// A yield that took longer let somebody else run. Here one alone takes 0.25 to 0.5 µs, one of
/// two processes on a core at least 1.5 µs, one of four 3.5 µs.
const OTHERS_RAN: Duration = Duration::from_micros(1);
/// Slow yields in a row after which the core counts as shared.
const SLOW_MAX: u32 = 3;
/// Quick yields in a row after which the core counts as ours again.
const QUICK_MAX: u32 = 16;

/// The idle policy of one poller. Its numbers are hints; races cost a yield.
#[derive(Debug)]
pub struct Idle {
    empty: AtomicU32,
    limit: AtomicU32,
    quick: AtomicU32,
    slow: AtomicU32,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            empty: AtomicU32::new(0),
            limit: AtomicU32::new(SPINS_ALONE),
            quick: AtomicU32::new(0),
            slow: AtomicU32::new(0),
        }
    }
}

impl Idle {
    /// A poll found something.
    #[inline(always)]
    pub fn reset(&self) {
        if self.empty.load(Ordering::Relaxed) != 0 {
            self.empty.store(0, Ordering::Relaxed);
        }
    }

    /// A poll found nothing.
    #[inline(always)]
    pub fn idle(&self) {
        let empty = self.empty.load(Ordering::Relaxed) + 1;
        self.empty.store(empty, Ordering::Relaxed);
        if empty >= self.limit.load(Ordering::Relaxed) {
            self.give_way();
        }
    }

    /// Whether the core is shared with somebody who wants it.
    pub fn is_shared(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == SPINS_SHARED
    }

    #[cold]
    #[inline(never)]
    fn give_way(&self) {
        self.empty.store(0, Ordering::Relaxed);
        let before = Instant::now();
        yield_now();
        self.learn(before.elapsed());
    }

    /// A yield took this long.
    fn learn(&self, elapsed: Duration) {
        let (now, other, most, limit) = if elapsed >= OTHERS_RAN {
            (&self.slow, &self.quick, SLOW_MAX, SPINS_SHARED)
        } else {
            (&self.quick, &self.slow, QUICK_MAX, SPINS_ALONE)
        };
        other.store(0, Ordering::Relaxed);
        let in_a_row = now.load(Ordering::Relaxed).saturating_add(1);
        now.store(in_a_row, Ordering::Relaxed);
        if in_a_row >= most {
            self.limit.store(limit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn company_is_several_slow_yields_in_a_row() {
        let (idle, quick) = (Idle::default(), OTHERS_RAN / 10);
        for _ in 0..10 {
            idle.learn(OTHERS_RAN);
            idle.learn(OTHERS_RAN);
            idle.learn(quick);
            assert!(!idle.is_shared());
        }
        (0..SLOW_MAX).for_each(|_| idle.learn(OTHERS_RAN));
        assert!(idle.is_shared());
        (1..QUICK_MAX).for_each(|_| idle.learn(quick));
        assert!(idle.is_shared());
        idle.learn(quick);
        assert!(!idle.is_shared());
    }
}
