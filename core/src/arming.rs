//! How a thread asks all that it drives for their bells before it sleeps, and lets them go behind that.
//!
//! Between the wish for a bell and the last look lies a fence, which may be a system call (`membarrier`): one for
//! all of a kind.

use std::sync::Arc;

use crate::{contained::contained, engine::sleep::Sleep, event_queue::Driven};

/// What meets a bug while it is armed, or let go.
const ARMED: &str = "an endpoint";

/// Asks all of them for their bells, with one fence for those of a kind: how to sleep with each. Behind one
/// that keeps a thread awake the others are not asked how, and are taken for awake as well. A bug in one of them is not
/// to keep the others armed.
pub(crate) fn arm_all<D: Driven + ?Sized>(all: &[Arc<D>]) -> Vec<Sleep> {
    for driven in all {
        contained(ARMED, || driven.arm());
    }
    fence_all(all);
    let mut sleeps = vec![Sleep::Awake; all.len()];
    for (driven, sleep) in all.iter().zip(&mut sleeps) {
        *sleep = contained(ARMED, || driven.how_to_sleep()).unwrap_or(Sleep::Awake);
        if *sleep == Sleep::Awake {
            break;
        }
    }
    sleeps
}

/// The counterpart of [`arm_all`], with what it answered. Who sleeps on at some of them is rung for where
/// something is there: again with one fence for those of a kind.
pub(crate) fn disarm_all<D: Driven + ?Sized>(armed: impl Iterator<Item = (Arc<D>, Sleep)>) {
    let is_shared = |(driven, sleep): &(Arc<D>, Sleep)| {
        contained(ARMED, || driven.disarm(*sleep)).unwrap_or(false)
    };
    let shared: Vec<_> = armed.filter(is_shared).map(|(driven, _)| driven).collect();
    fence_all(&shared);
    for driven in &shared {
        contained(ARMED, || driven.ring_for_others());
    }
}

/// What has to lie between the wish for a bell and the look, once for those of a kind.
fn fence_all<D: Driven + ?Sized>(all: &[Arc<D>]) {
    let mut fences: Vec<fn()> = Vec::new();
    for fence in all.iter().map(|driven| driven.fence()) {
        if !fences.iter().any(|known| std::ptr::fn_addr_eq(*known, fence)) {
            fence();
            fences.push(fence);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        os::fd::RawFd,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    static FENCES: AtomicU32 = AtomicU32::new(0);

    /// One that others sleep on, or not.
    struct Sleeper {
        others_sleep: bool,
        /// The fences that there were when it was asked how to sleep, and when it rang for others.
        looked_behind: AtomicU32,
        rang_behind: AtomicU32,
    }

    impl Sleeper {
        fn new(others_sleep: bool) -> Arc<Sleeper> {
            Arc::new(Sleeper {
                others_sleep,
                looked_behind: AtomicU32::new(0),
                rang_behind: AtomicU32::new(0),
            })
        }
    }

    impl Driven for Sleeper {
        fn drive(&self) -> bool {
            false
        }
        fn arm(&self) {}
        fn fence(&self) -> fn() {
            || _ = FENCES.fetch_add(1, Ordering::Relaxed)
        }
        fn how_to_sleep(&self) -> Sleep {
            self.looked_behind.store(FENCES.load(Ordering::Relaxed), Ordering::Relaxed);
            Sleep::Sound
        }
        fn disarm(&self, _: Sleep) -> bool {
            self.others_sleep
        }
        fn ring_for_others(&self) {
            self.rang_behind.store(FENCES.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        fn bell(&self) -> Option<RawFd> {
            None
        }
    }

    /// The fence may be a system call that interrupts other cores: many have one together.
    #[test]
    fn many_are_asked_and_let_go_with_a_fence_each() {
        let others = [true, false, true, true];
        let all: Vec<_> = others.map(Sleeper::new).into();
        let sleeps = arm_all(&all);
        assert_eq!(sleeps, [Sleep::Sound; 4]);
        assert!(all.iter().all(|sleeper| sleeper.looked_behind.load(Ordering::Relaxed) == 1));
        disarm_all(all.iter().cloned().zip(sleeps));
        let rang: Vec<_> = all.iter().map(|it| it.rang_behind.load(Ordering::Relaxed)).collect();
        assert_eq!(rang, [2, 0, 2, 2]);
        disarm_all(all[1..2].iter().cloned().map(|alone| (alone, Sleep::Sound)));
        assert_eq!(FENCES.load(Ordering::Relaxed), 2, "nobody sleeps on");
    }
}
