//! What a poller does that finds nothing: spin, then give the core away.
//!
//! The policy learns from the yield itself. One that returns at once found
//! nobody else to run, so spinning costs nobody anything; one that takes long
//! let somebody run, and on a core that is shared this is the only way for a
//! peer to answer. So eight ranks on two cores yield after a few empty polls,
//! and two ranks on two cores after thousands.

use std::time::{Duration, Instant};

use crate::primitive::{AtomicU32, Ordering, yield_now};

/// Empty polls before a yield while nobody else wants the core.
const SPINS_ALONE: u32 = 2_000;
/// Empty polls before a yield while the core is shared.
const SPINS_SHARED: u32 = 8;
/// A yield that took longer let somebody else run.
const OTHERS_RAN: Duration = Duration::from_micros(3);
/// Quick yields in a row after which the core counts as ours again.
const QUICK_MAX: u32 = 64;

/// The idle policy of one poller. Its numbers are hints; races cost a yield.
#[derive(Debug)]
pub struct Idle {
    empty: AtomicU32,
    limit: AtomicU32,
    quick: AtomicU32,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            empty: AtomicU32::new(0),
            limit: AtomicU32::new(SPINS_ALONE),
            quick: AtomicU32::new(0),
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
        if before.elapsed() >= OTHERS_RAN {
            self.quick.store(0, Ordering::Relaxed);
            self.limit.store(SPINS_SHARED, Ordering::Relaxed);
            return;
        }
        let quick = self.quick.load(Ordering::Relaxed) + 1;
        self.quick.store(quick, Ordering::Relaxed);
        if quick >= QUICK_MAX {
            self.limit.store(SPINS_ALONE, Ordering::Relaxed);
        }
    }
}
