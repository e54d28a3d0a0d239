//! The endpoints that a queue or a counter drives when it is polled.

use std::{cell::UnsafeCell, os::fd::RawFd, sync::Arc};

use arc_swap::ArcSwap;

use crate::{
    domain::Sharing,
    engine::{BURST_MAX, sleep::Sleep, unit::Unit},
    transport::Provider,
};

/// A list of units, read on every poll and changed only by bind and close.
pub struct DrivenUnits<P: Provider> {
    units: Units<P>,
}

enum Units<P: Provider> {
    Exclusive(UnsafeCell<Vec<Arc<Unit<P>>>>),
    Shared(ArcSwap<Vec<Arc<Unit<P>>>>),
}

// SAFETY: the exclusive list is touched by one thread at a time: opening a
// domain for exclusive use is unsafe and demands exactly that, and nobody outside of
// this crate makes a list otherwise.
unsafe impl<P: Provider> Sync for DrivenUnits<P> {}

impl<P: Provider> DrivenUnits<P> {
    /// Empty. `sharing` is the domain's, or says that any thread may use it.
    pub(crate) fn new(sharing: Sharing) -> Self {
        let units = match sharing {
            Sharing::Exclusive => Units::Exclusive(UnsafeCell::new(Vec::new())),
            Sharing::Shared => Units::Shared(ArcSwap::default()),
        };
        DrivenUnits { units }
    }

    /// Calls `visit` with the units of this moment.
    #[inline(always)]
    fn read<R>(&self, visit: impl FnOnce(&[Arc<Unit<P>>]) -> R) -> R {
        match &self.units {
            // SAFETY: exclusive use; `visit` never comes back to this list to change it.
            Units::Exclusive(units) => visit(unsafe { &*units.get() }),
            Units::Shared(units) => visit(&units.load()),
        }
    }

    fn change(&self, change: impl Fn(&mut Vec<Arc<Unit<P>>>)) {
        match &self.units {
            // SAFETY: exclusive use.
            Units::Exclusive(units) => change(unsafe { &mut *units.get() }),
            Units::Shared(units) => {
                units.rcu(|units| {
                    let mut units = Vec::clone(units);
                    change(&mut units);
                    units
                });
            }
        }
    }

    /// Adds a unit, once.
    pub fn add(&self, unit: &Arc<Unit<P>>) {
        self.change(|units| {
            if !units.iter().any(|known| Arc::ptr_eq(known, unit)) {
                units.push(unit.clone());
            }
        });
    }

    /// Takes a unit off.
    pub fn remove(&self, unit: &Arc<Unit<P>>) {
        self.change(|units| units.retain(|known| !Arc::ptr_eq(known, unit)));
    }

    /// Polls every unit for the application, for `most` packets each. Returns whether anything
    /// moved.
    ///
    /// A loop, and no closure: what a thread has to itself is inlined to where the completions go, which
    /// saves 3 ns of half a round trip of 8 bytes.
    #[inline(always)]
    pub fn progress(&self, most: usize) -> bool {
        let mut moved = false;
        match &self.units {
            Units::Exclusive(units) => {
                // SAFETY: exclusive use; a poll never comes back to this list to change it.
                for unit in unsafe { &*units.get() } {
                    moved |= unit.progress_by_application(most);
                }
            }
            Units::Shared(units) => moved = progress_shared(&units.load(), most),
        }
        moved
    }

    /// Polls every unit for a helper thread.
    pub fn progress_by_helper(&self) -> bool {
        self.read(|units| {
            let mut moved = false;
            for unit in units {
                moved |= unit.progress(BURST_MAX);
            }
            moved
        })
    }

    /// How often the application polled any of the units.
    pub fn polls(&self) -> u64 {
        self.read(|units| units.iter().map(|unit| u64::from(unit.polls())).sum())
    }

    /// Asks the peers of every unit for bells, until what this answers is dropped.
    pub fn arm(&self) -> Armed<P> {
        let units = self.read(<[_]>::to_vec);
        let mut sleeps = Vec::with_capacity(units.len());
        for unit in &units {
            // A closed unit has nobody to ask.
            let sleep = unit.with(|engine| engine.arm()).unwrap_or(Sleep::Sound);
            sleeps.push(sleep);
            if sleep == Sleep::Awake {
                break;
            }
        }
        Armed { units, sleeps }
    }
}

#[inline(never)]
fn progress_shared<P: Provider>(units: &[Arc<Unit<P>>], most: usize) -> bool {
    units.iter().fold(false, |moved, unit| moved | unit.progress_by_application(most))
}

/// The units of the moment when a thread wanted to sleep: their peers ring.
pub struct Armed<P: Provider> {
    units: Vec<Arc<Unit<P>>>,
    /// What those of them answered that were asked.
    sleeps: Vec<Sleep>,
}

impl<P: Provider> Armed<P> {
    /// Whether there was nothing to do, so that the thread may sleep.
    pub fn is_quiet(&self) -> bool {
        !self.sleeps.contains(&Sleep::Awake)
    }

    /// What a sleeper waits for.
    pub fn bells(&self) -> Vec<RawFd> {
        self.units.iter().filter_map(|unit| unit.with(|engine| engine.bell()).ok()).collect()
    }

    /// Whether a unit waits for room at a peer, so that the thread looks again by itself.
    pub fn waits_for_room(&self) -> bool {
        self.sleeps.contains(&Sleep::Nap)
    }
}

impl<P: Provider> Drop for Armed<P> {
    fn drop(&mut self) {
        for (unit, &sleep) in self.units.iter().zip(&self.sleeps) {
            // A unit that was closed meanwhile has nobody to tell.
            let _ = unit.with(|engine| engine.disarm(sleep));
        }
    }
}
