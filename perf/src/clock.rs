//! A clock cheap enough to stand inside a measured loop.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
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

const WHILE: Duration = Duration::from_millis(250);
/// How many of them have passed.
static WHILES: AtomicU32 = AtomicU32::new(0);

/// Says that a while has passed, for one load of a word that hardly ever changes: where something is to be
/// done now and then, however long what is measured in between may take.
pub struct Reminder {
    seen: u32,
}

impl Reminder {
    pub fn new() -> Reminder {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            let count = || loop {
                std::thread::sleep(WHILE);
                WHILES.fetch_add(1, Ordering::Relaxed);
            };
            // Where there is no thread for it, nobody is reminded.
            let _ = std::thread::Builder::new().name("perf-reminder".to_owned()).spawn(count);
        });
        Reminder { seen: WHILES.load(Ordering::Relaxed) }
    }

    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        let now = WHILES.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, now) != now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_comes_once_a_while() {
        let mut reminder = Reminder::new();
        while !reminder.is_due() {
            std::hint::spin_loop();
        }
        assert!(Reminder::new().seen > 0);
    }
}
