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

/// How often something is done before it is time for the other.
const CALLS: u32 = 4096;

/// Says when something is to be done that has no place in a measured loop but now and then.
pub struct Reminder {
    left: u32,
}

impl Reminder {
    pub fn new() -> Reminder {
        Reminder { left: CALLS }
    }

    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.left -= 1;
        let is_due = self.left == 0;
        if is_due {
            self.left = CALLS;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_comes_once_in_so_many_calls() {
        let mut reminder = Reminder::new();
        assert_eq!((0..3 * CALLS).filter(|_| reminder.is_due()).count(), 3);
    }
}
