//! What a poller does that finds nothing: spin, then give the core away.
//!
//! The policy learns from the yield itself. One that returns at once found
//! nobody else to run, so spinning costs nobody anything; one that takes long
//! let somebody run, and on a core that is shared this is the only way for a
//! peer to answer. So eight ranks on two cores yield after a few empty polls,
//! and two ranks on two cores after thousands. One slow yield alone says little:
//! something passed by, and who takes it for a shared core pays a system call in
//! every wait from then on. Several in a row mean company.
//!
//! How long a yield takes that let somebody run depends on the machine. So now and then, and before a core
//! counts as ours again, the system is asked whether others ran, and what it says moves the bound for the
//! yields at which nobody is asked.
//!
//! Who computes keeps the core for a slice of milliseconds, and whom we wait for may be on another core
//! all the while. So a poller that yielded after a few empty polls, and lost a slice each time, spins again
//! as if it were alone. Pollers that spin look like that to each other, if they are many: so each of a
//! host tries again at the same time, when a new stretch of the clock begins.
//!
//! Many callers give the core away themselves: an MPI does so between its polls when it has more
//! ranks than cores. A second yield would only send it through everybody else again: broadcasts
//! among four ranks on two cores took twice as long. So in company a poller looks now and then
//! whether others ran since its last yield, and leaves the yielding to its caller as long as they do.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::primitive::{AtomicU32, AtomicU64, Ordering, yield_now};

/// Empty polls before a yield while nobody else wants the core.
const SPINS_ALONE: u32 = 2_000;
/// Empty polls before a yield while the core is shared: whoever could answer does not run.
const SPINS_SHARED: u32 = 2;
/// Empty polls in a row before the next look whether the caller still gives the core away by itself:
/// it was seen to.
const SPINS_POLITE: u32 = 32;
/// How long this thread has not run is asked for at every so many yields, since it is a system call.
const ASKED_ALONE: u32 = 4;
const ASKED_SHARED: u32 = 32;
/// A yield that took longer let somebody else run, and so may a shorter one have.
const OTHERS_RAN: Duration = Duration::from_micros(1);
/// A yield that took longer let somebody compute. The others that poll and yield take some microseconds
/// each.
const SLICE: Duration = Duration::from_millis(1);
/// Such yields outweigh so many short ones each: the scheduler lets whoever gave a slice away run at once
/// the next time or two.
const SLICE_WEIGHT: u32 = 8;
/// What they may outweigh the others by before a shared core is not given away that easily any more: a
/// few may be due to others that have not found out yet that they share it.
const LOST_MAX: u32 = 4 * SLICE_WEIGHT;
/// How long that holds, at most.
const STRETCH: Duration = Duration::from_millis(512);
/// Slow yields in a row after which the core counts as shared.
const SLOW_MAX: u32 = 3;
/// Quick yields in a row after which the core counts as ours again.
const QUICK_MAX: u32 = 16;

/// The idle policy of one poller. Its numbers are hints; races cost a yield.
#[derive(Debug)]
pub struct Idle {
    empty: AtomicU32,
    limit: AtomicU32,
    /// Yields in a row to nobody, and to others.
    quick: AtomicU32,
    slow: AtomicU32,
    /// By how much yields to who computes outweigh the others.
    lost: AtomicU32,
    /// The stretch of the clock in which those who compute were found to have the core; none yet.
    taken: AtomicU64,
    /// A yield that takes as long as this let somebody else run, by all that was seen. Units:
    /// nanoseconds.
    long: AtomicU64,
    /// How long the thread had not run at the last look, or none if that was not asked. Units:
    /// nanoseconds.
    off: AtomicU64,
    /// How many yields there were at which that could have been asked.
    asked: AtomicU32,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            empty: AtomicU32::new(0),
            limit: AtomicU32::new(SPINS_ALONE),
            quick: AtomicU32::new(0),
            slow: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            long: AtomicU64::new(nanoseconds(OTHERS_RAN)),
            off: AtomicU64::new(0),
            asked: AtomicU32::new(0),
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
        let limit = self.limit.load(Ordering::Relaxed);
        if empty >= limit {
            self.in_vain(limit);
        }
    }

    /// Whether the core is shared with somebody who polls as well.
    fn is_shared(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != SPINS_ALONE
    }

    #[cold]
    #[inline(never)]
    fn in_vain(&self, limit: u32) {
        self.empty.store(0, Ordering::Relaxed);
        let before = self.off.load(Ordering::Relaxed);
        // None: that was not asked for at the last yield.
        let given_way = before != 0 && self.gave_way(before, off_core());
        // Where threads share the policy, one may have taken away what another was polite by.
        if !given_way && (limit != SPINS_POLITE || before == 0) {
            self.give_way();
        }
    }

    fn give_way(&self) {
        let off_before = self.asks().then(off_core);
        let before = Instant::now();
        yield_now();
        let elapsed = nanoseconds(before.elapsed());
        let (others_ran, off) = match off_before {
            None => (elapsed >= self.long.load(Ordering::Relaxed), 0),
            Some(off_before) => {
                let off = off_core();
                (self.tell(elapsed, off.saturating_sub(off_before)), off)
            }
        };
        match (others_ran, elapsed >= nanoseconds(SLICE)) {
            (false, _) => self.learn_nobody(),
            (true, false) => self.learn_others(None),
            (true, true) => self.learn_others(Some(stretch())),
        }
        if self.limit.load(Ordering::Relaxed) == SPINS_POLITE {
            self.limit.store(SPINS_SHARED, Ordering::Relaxed);
        }
        self.off.store(if self.is_shared() { off } else { 0 }, Ordering::Relaxed);
    }

    /// Whether others ran in a yield that took `elapsed`, of which the thread did not run for `off`. Moves
    /// the bound for those of which less is known.
    fn tell(&self, elapsed: u64, off: u64) -> bool {
        let (long, most) = (self.long.load(Ordering::Relaxed), nanoseconds(OTHERS_RAN));
        // What a switch takes is partly the thread's own time.
        let others_ran = elapsed >= most || off >= elapsed / 3;
        let seen = if others_ran {
            long.min(elapsed - elapsed / 4)
        } else {
            long.max(elapsed + elapsed / 4).min(most)
        };
        if seen != long {
            self.long.store(seen, Ordering::Relaxed);
        }
        others_ran
    }

    /// Whether the caller has let others run since this thread had not run for `before`: it has not for
    /// `off` so far. As long as it does that it is left to it.
    fn gave_way(&self, before: u64, off: u64) -> bool {
        let others_ran = off.saturating_sub(before) >= self.long.load(Ordering::Relaxed) / 2;
        let (limit, off) = if others_ran { (SPINS_POLITE, off) } else { (SPINS_SHARED, 0) };
        self.limit.store(limit, Ordering::Relaxed);
        self.off.store(off, Ordering::Relaxed);
        others_ran
    }

    /// Whether it is time to ask the system: now and then, and before the core counts as ours.
    fn asks(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed).wrapping_add(1);
        self.asked.store(asked, Ordering::Relaxed);
        if self.is_shared() {
            let is_last = self.quick.load(Ordering::Relaxed) + 1 >= QUICK_MAX;
            is_last || asked.is_multiple_of(ASKED_SHARED)
        } else {
            asked.is_multiple_of(ASKED_ALONE)
        }
    }

    /// Nobody else ran in a yield.
    fn learn_nobody(&self) {
        self.slow.store(0, Ordering::Relaxed);
        self.weigh(false);
        if one_more(&self.quick) >= QUICK_MAX {
            self.taken.store(0, Ordering::Relaxed);
            self.limit.store(SPINS_ALONE, Ordering::Relaxed);
        }
    }

    /// Others ran in a yield, for a slice in that stretch of the clock or shortly.
    fn learn_others(&self, slice_in: Option<u64>) {
        self.quick.store(0, Ordering::Relaxed);
        let Some(stretch) = slice_in else {
            self.weigh(false);
            if one_more(&self.slow) >= SLOW_MAX {
                self.limit.store(SPINS_SHARED, Ordering::Relaxed);
            }
            return;
        };
        if self.is_shared() {
            if self.weigh(true) >= LOST_MAX {
                self.lost.store(0, Ordering::Relaxed);
                self.slow.store(0, Ordering::Relaxed);
                self.taken.store(stretch, Ordering::Relaxed);
                self.limit.store(SPINS_ALONE, Ordering::Relaxed);
            }
            return;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == stretch {
            // Whoever computes is still there.
            return self.slow.store(0, Ordering::Relaxed);
        }
        let all_try_again = taken != 0 && taken + 1 == stretch;
        if all_try_again || one_more(&self.slow) >= SLOW_MAX {
            self.taken.store(0, Ordering::Relaxed);
            self.limit.store(SPINS_SHARED, Ordering::Relaxed);
        }
    }

    /// One more yield, to who computes or not.
    fn weigh(&self, slice: bool) -> u32 {
        let lost = self.lost.load(Ordering::Relaxed);
        let now = if slice { lost + SLICE_WEIGHT } else { lost.saturating_sub(1) };
        if now != lost {
            self.lost.store(now, Ordering::Relaxed);
        }
        now
    }
}

/// Counts one more in a row.
fn one_more(row: &AtomicU32) -> u32 {
    let count = row.load(Ordering::Relaxed).saturating_add(1);
    row.store(count, Ordering::Relaxed);
    count
}

/// The present stretch of the clock, the same for all of a host; never 0.
fn stretch() -> u64 {
    read(ClockId::Monotonic) / nanoseconds(STRETCH) + 1
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// How long this thread has not run, counted from some moment. Units: nanoseconds.
///
/// Cost: a system call.
fn off_core() -> u64 {
    read(ClockId::Monotonic).saturating_sub(read(ClockId::ThreadCPUTime))
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    nanoseconds(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn company_is_several_slow_yields_in_a_row() {
        let idle = Idle::default();
        for _ in 0..10 {
            idle.learn_others(None);
            idle.learn_others(Some(7));
            idle.learn_nobody();
            assert!(!idle.is_shared());
        }
        (0..SLOW_MAX).for_each(|_| idle.learn_others(None));
        assert!(idle.is_shared());
        (1..QUICK_MAX).for_each(|_| idle.learn_nobody());
        assert!(idle.is_shared() && idle.asks(), "the last one is looked at");
        idle.learn_nobody();
        assert!(!idle.is_shared());
    }

    #[test]
    fn who_computes_is_not_given_the_core_at_once() {
        let idle = Idle::default();
        // As the scheduler does it: a slice, and two yields that let nobody run.
        let lose = |stretch| {
            idle.learn_others(Some(stretch));
            idle.learn_nobody();
            idle.learn_others(None);
        };
        (0..SLOW_MAX).for_each(|_| idle.learn_others(Some(7)));
        assert!(idle.is_shared(), "many that spin look the same");
        for _ in 0..100 {
            idle.learn_others(Some(7));
            (0..SLICE_WEIGHT).for_each(|_| idle.learn_others(None));
            assert!(idle.is_shared(), "one of several computes for a while");
        }
        let turns = (0..100).take_while(|_| idle.is_shared()).map(|_| lose(7)).count();
        assert!((4..10).contains(&turns), "{turns}");
        (0..100).for_each(|_| lose(7));
        assert!(!idle.is_shared());
        lose(8);
        assert!(idle.is_shared(), "all try again");
        (0..turns).for_each(|_| lose(8));
        assert!(!idle.is_shared());
        lose(20);
        assert!(!idle.is_shared(), "that was long ago");
        (0..SLOW_MAX).for_each(|_| idle.learn_others(None));
        assert!(idle.is_shared(), "whoever computed is gone");
    }

    #[test]
    fn what_a_yield_takes_is_learned_from_the_system() {
        let idle = Idle::default();
        let long = || idle.long.load(Ordering::Relaxed);
        assert!(!idle.tell(200, 10), "nobody ran");
        assert_eq!(long(), 1_000, "that is less than anybody takes");
        assert!(idle.tell(800, 400));
        assert_eq!(long(), 600, "two that switch quickly");
        assert!(
            idle.tell(5_000, 4_000) && idle.tell(5_000, 0),
            "far beyond it nothing else counts"
        );
        assert_eq!(long(), 600);
        assert!(!idle.tell(700, 10), "an interrupt");
        assert_eq!(long(), 875);
        assert!(!idle.tell(999, 10));
        assert_eq!(long(), 1_000);
    }

    #[test]
    fn who_gives_way_by_itself_is_left_to_it() {
        let (idle, late) = (Idle::default(), 2 * nanoseconds(OTHERS_RAN));
        let limit = || idle.limit.load(Ordering::Relaxed);
        assert!(!idle.gave_way(100, 100 + 10));
        assert_eq!((limit(), idle.off.load(Ordering::Relaxed)), (SPINS_SHARED, 0));
        for turn in 1..100 {
            assert!(idle.gave_way(turn * late, (turn + 1) * late));
            assert_eq!(
                (limit(), idle.off.load(Ordering::Relaxed)),
                (SPINS_POLITE, (turn + 1) * late)
            );
        }
        assert!(
            !idle.gave_way(100 * late, 100 * late + 10),
            "it computes, or looks again and again"
        );
        assert_eq!(limit(), SPINS_SHARED);
    }

    #[test]
    fn a_caller_that_is_not_polite_any_more_is_found_out() {
        let idle = Idle::default();
        idle.limit.store(SPINS_POLITE, Ordering::Relaxed);
        idle.off.store(off_core(), Ordering::Relaxed);
        // Other processes may run in between, and be taken for its politeness.
        let looks = (0..100_000).take_while(|_| idle.limit.load(Ordering::Relaxed) == SPINS_POLITE);
        let looks = looks.map(|_| idle.idle()).count();
        assert!((SPINS_POLITE as usize..100_000).contains(&looks), "{looks}");
    }

    #[test]
    fn without_anything_to_be_polite_by_it_yields() {
        let idle = Idle::default();
        // As another thread may leave it that shares the policy.
        idle.limit.store(SPINS_POLITE, Ordering::Relaxed);
        (0..SPINS_POLITE).for_each(|_| idle.idle());
        assert_eq!(idle.limit.load(Ordering::Relaxed), SPINS_SHARED);
    }

    #[test]
    fn a_thread_that_sleeps_does_not_run() {
        let before = off_core();
        std::thread::sleep(Duration::from_millis(20));
        let between = off_core();
        assert!(between - before >= 19_000_000);
        // Other tests run in between, but not always.
        let runs = || {
            let (before, start) = (off_core(), Instant::now());
            while start.elapsed() < Duration::from_millis(2) {}
            off_core().saturating_sub(before) < 1_000_000
        };
        assert!((0..5_000).any(|_| runs()), "it is not the time that passes");
    }
}
