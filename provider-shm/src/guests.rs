//! Several guests: who may be at what is listed, and how long they are waited for.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::yield_now,
    time::{Duration, Instant},
};

use kestrel_core::ring::catalogue::EntryName;

use crate::guest::Guest;

/// How long guests may take for a copy before they lose their permits. A copy is of a megabyte at
/// most.
pub(crate) const COPY_MAX: Duration = Duration::from_millis(200);
/// How long they may still be in the kernel after that.
pub(crate) const LEAVE_MAX: Duration = Duration::from_millis(800);
/// Looks at what they are at between two turns of the core given away.
const LOOKS: u32 = 64;

/// Those who read one catalogue, until there is nothing left of them.
#[derive(Default)]
pub(crate) struct Guests(Mutex<Vec<Arc<Guest>>>);

impl Guests {
    /// Those that may still be at something.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Guest>>> {
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|guest| !guest.is_gone());
        guests
    }

    /// One more.
    pub fn enter(&self, guest: Arc<Guest>) {
        self.lock().push(guest);
    }

    /// Whoever is gone is nobody's concern. Returns how many are left.
    pub fn forget_gone(&self) -> usize {
        self.lock().len()
    }

    /// Waits for those who are at what was struck out.
    pub fn see_off(&self, name: EntryName) {
        let at_it: Vec<_> =
            self.lock().iter().filter(|guest| guest.may_be_at(name)).cloned().collect();
        see_off(&at_it, |guest| guest.is_at(name));
    }
}

/// Waits for the ends of copies of what guests may reach no more: as long as one `is_at_it`, but not for
/// ever.
#[cold]
pub(crate) fn see_off(guests: &[Arc<Guest>], is_at_it: impl Fn(&Guest) -> bool) {
    let mut left: Vec<_> = guests.iter().collect();
    wait_for(&mut left, COPY_MAX, &is_at_it);
    left.iter().for_each(|guest| guest.expel());
    wait_for(&mut left, LEAVE_MAX, &is_at_it);
    left.iter().for_each(|guest| guest.give_up());
}

/// Waits for so long at most, and leaves those who are still at it.
fn wait_for(left: &mut Vec<&Arc<Guest>>, longest: Duration, is_at_it: impl Fn(&Guest) -> bool) {
    let begun = Instant::now();
    for looks in 1_u32.. {
        left.retain(|guest| is_at_it(guest) && !guest.is_dead_or_gone());
        if left.is_empty() {
            return;
        }
        if !looks.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            continue;
        }
        yield_now();
        if begun.elapsed() > longest {
            return;
        }
    }
}
