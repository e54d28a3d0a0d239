//! A clock cheap enough to stand inside a measured loop.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time stamp counter, or nanoseconds where there is none.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it touches no memory.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return origin().elapsed().as_nanos() as u64;
}

#[cfg(not(target_arch = "x86_64"))]
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// Nanoseconds a tick, measured once against the system clock.
pub fn ns_per_tick() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        let elapsed_ns = start.elapsed().as_nanos() as f64;
        elapsed_ns / (ticks() - first).max(1) as f64
    })
}
