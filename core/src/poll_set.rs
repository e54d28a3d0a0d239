//! The endpoints that a queue or a counter drives when it is polled.

use std::{cell::UnsafeCell, os::fd::RawFd, sync::Arc};

use arc_swap::ArcSwap;

use crate::{completion_queue::store::Sharing, engine::unit::Unit, transport::Provider};

/// A list of units, read on every poll and changed only by bind and close.
pub struct PollSet<P: Provider> {
    units: Units<P>,
}

enum Units<P: Provider> {
    Exclusive(UnsafeCell<Vec<Arc<Unit<P>>>>),
    Shared(ArcSwap<Vec<Arc<Unit<P>>>>),
}

// SAFETY: the exclusive list is touched by one thread at a time: opening a
// domain for exclusive use is unsafe and demands exactly that.
unsafe impl<P: Provider> Sync for PollSet<P> {}

impl<P: Provider> PollSet<P> {
    /// Empty.
    pub fn new(sharing: Sharing) -> Self {
        let units = match sharing {
            Sharing::Exclusive => Units::Exclusive(UnsafeCell::new(Vec::new())),
            Sharing::Shared => Units::Shared(ArcSwap::default()),
        };
        PollSet { units }
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

    /// Polls every unit for the application. Returns whether anything moved.
    #[inline(always)]
    pub fn progress(&self) -> bool {
        self.read(|units| {
            let mut moved = false;
            for unit in units {
                moved |= unit.progress_by_application();
            }
            moved
        })
    }

    /// Polls every unit for a helper thread.
    pub fn progress_by_helper(&self) -> bool {
        self.read(|units| {
            let mut moved = false;
            for unit in units {
                moved |= unit.progress();
            }
            moved
        })
    }

    /// How often the application polled any of the units.
    pub fn polls(&self) -> u64 {
        self.read(|units| units.iter().map(|unit| u64::from(unit.polls())).sum())
    }

    /// Asks the peers of every unit for bells. False if something is there already.
    pub fn arm(&self) -> bool {
        let arm = |unit: &Arc<Unit<P>>| unit.with(|engine| engine.arm()).unwrap_or(true);
        self.read(|units| units.iter().all(arm))
    }

    /// No more bells, please.
    pub fn disarm(&self) {
        self.read(|units| {
            for unit in units {
                // A closed unit has nobody to tell.
                let _ = unit.with(|engine| engine.disarm());
            }
        });
    }

    /// What a sleeper waits for.
    pub fn bells(&self) -> Vec<RawFd> {
        self.read(|units| units.iter().filter_map(|unit| unit.with(|e| e.bell()).ok()).collect())
    }

    /// Whether a unit waits for room at a peer.
    pub fn waits_for_room(&self) -> bool {
        self.read(|units| {
            units.iter().any(|unit| unit.with(|engine| engine.waits_for_room()).unwrap_or(false))
        })
    }
}
