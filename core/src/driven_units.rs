//! The endpoints that a queue or a counter drives when it is polled.

use std::{cell::UnsafeCell, os::fd::RawFd, sync::Arc};

use arc_swap::ArcSwap;

use crate::{
    arming::{arm_all, disarm_all},
    domain::Sharing,
    engine::{BURST_MAX, sleep::Sleep, unit::Unit},
    event_queue::Driven,
    rota::Roster,
    transport::Provider,
};

/// A list of units, read on every poll and changed only by bind and close.
pub struct DrivenUnits<P: Provider> {
    units: Units<P>,
}

enum Units<P: Provider> {
    Exclusive(UnsafeCell<Roster<Unit<P>>>),
    Shared(ArcSwap<Roster<Unit<P>>>),
}

// SAFETY: the exclusive list is touched by one thread at a time: opening a
// domain for exclusive use is unsafe and demands exactly that, and nobody outside of
// this crate makes a list otherwise.
unsafe impl<P: Provider> Sync for DrivenUnits<P> {}

impl<P: Provider> DrivenUnits<P> {
    /// Empty. `sharing` is the domain's, or says that any thread may use it.
    pub(crate) fn new(sharing: Sharing) -> Self {
        let units = match sharing {
            Sharing::Exclusive => Units::Exclusive(UnsafeCell::default()),
            Sharing::Shared => Units::Shared(ArcSwap::default()),
        };
        DrivenUnits { units }
    }

    /// Calls `visit` with the units of this moment.
    #[inline(always)]
    fn read<R>(&self, visit: impl FnOnce(&Roster<Unit<P>>) -> R) -> R {
        match &self.units {
            // SAFETY: exclusive use; `visit` never comes back to this list to change it.
            Units::Exclusive(units) => visit(unsafe { &*units.get() }),
            Units::Shared(units) => visit(&units.load()),
        }
    }

    fn change(&self, change: impl Fn(&mut Vec<Arc<Unit<P>>>)) {
        match &self.units {
            Units::Exclusive(units) => {
                // SAFETY: exclusive use.
                let units = unsafe { &mut *units.get() };
                *units = units.changed(change);
            }
            Units::Shared(units) => {
                units.rcu(|units| units.changed(&change));
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

    /// Polls the units for the application, for `most` packets each: of many units those alone that it is
    /// time for. Returns whether anything moved.
    ///
    /// A loop, and no closure: what a thread has to itself is inlined to where the completions go, which
    /// saves 3 ns of half a round trip of 8 bytes.
    #[inline(always)]
    pub fn progress(&self, most: usize) -> bool {
        match &self.units {
            Units::Exclusive(units) => {
                // SAFETY: exclusive use; a poll never comes back to this list to change it.
                let units = unsafe { &*units.get() };
                if units.are_many() {
                    return progress_some(units, most);
                }
                let mut moved = false;
                for unit in units.members() {
                    moved |= unit.progress_by_application(most);
                }
                moved
            }
            Units::Shared(units) => progress_some(&units.load(), most),
        }
    }

    /// Polls every unit for a helper thread.
    pub fn progress_by_helper(&self) -> bool {
        self.read(|units| {
            let mut moved = false;
            for unit in units.members() {
                moved |= unit.progress(BURST_MAX);
            }
            moved
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.read(|units| units.members().len())
    }

    /// How often the application polled any of the units.
    pub fn polls(&self) -> u64 {
        self.read(|units| units.members().iter().map(|unit| u64::from(unit.polls())).sum())
    }

    /// Asks the peers of every unit for bells, until what this answers is dropped.
    pub fn arm(&self) -> Armed<P> {
        let (units, are_many) = self.read(|units| (units.members().to_vec(), units.are_many()));
        // Polls have not looked at each of them, which costs less than to arm it.
        if are_many && self.progress_by_helper() {
            return Armed { units: Vec::new(), sleeps: vec![Sleep::Awake] };
        }
        let sleeps = arm_all(&units);
        Armed { units, sleeps }
    }
}

#[inline(never)]
fn progress_some<P: Provider>(units: &Roster<Unit<P>>, most: usize) -> bool {
    units.drive(|unit| unit.progress_by_application(most))
}

/// The units of the moment when a thread wanted to sleep: their peers ring.
pub struct Armed<P: Provider> {
    units: Vec<Arc<Unit<P>>>,
    /// See [`arm_all`].
    sleeps: Vec<Sleep>,
}

impl<P: Provider> Armed<P> {
    /// Whether there was nothing to do, so that the thread may sleep.
    pub fn is_quiet(&self) -> bool {
        !self.sleeps.contains(&Sleep::Awake)
    }

    /// What a sleeper waits for.
    pub fn bells(&self) -> Vec<RawFd> {
        self.units.iter().filter_map(|unit| unit.bell()).collect()
    }

    /// Whether a unit waits for room at a peer, so that the thread looks again by itself.
    pub fn waits_for_room(&self) -> bool {
        self.sleeps.contains(&Sleep::Nap)
    }
}

impl<P: Provider> Drop for Armed<P> {
    fn drop(&mut self) {
        disarm_all(self.units.drain(..).zip(self.sleeps.drain(..)));
    }
}
