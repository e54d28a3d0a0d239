//! Guests: peers that reach our memory by themselves, region by region, as far as it is lent.
//!
//! What is lent to one is a word in the guest's lane to us ([`kestrel_core::ring::leases`]), and what
//! all may reach is listed in our [catalogue](crate::catalogue). Dropping a [`LentRegion`] takes it back
//! and waits for the copy that the guest is making: until the guest says that it is over, or is dead. One
//! that says nothing for a while was stopped, or lies, and loses its permit (see [`crate::permit`]): then
//! it writes nothing more when it goes on.

use std::sync::{
    Arc, Once, OnceLock, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use kestrel_core::{
    fork_guard,
    ring::{
        catalogue::{EntryName, Visit},
        leases::{GENERATIONS, LEASES, LeaseName, Leases},
    },
    window::{Invitation, Registration},
};

use crate::{
    cma::NONCE_BYTES,
    control::shares::Share,
    guests::{Guests, see_off},
    lane,
    permit::Permit,
    process::Life,
    region::LaneMemory,
};

/// Keys of leases: each is used once on a lane.
const KEYS: u64 = LEASES as u64 * GENERATIONS as u64;

/// A number that no other audience of leases has in this process. Never 0.
pub(crate) fn number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A peer that reaches our memory.
pub(crate) struct Guest {
    memory: Arc<LaneMemory>,
    life: Life,
    permit: Permit,
    /// It is barred, and its permit withdrawn.
    expelled: Once,
    /// It did not even end its copy then, and is waited for no more.
    is_lost: AtomicBool,
    /// Those who read the same catalogue, if it reads one.
    others: Weak<Guests>,
    number: u64,
    generation: u32,
    /// Nothing is lent any more, and nothing will be.
    is_dismissed: AtomicBool,
    /// The same, and no copy was under way then: what the guest writes in its lane since is not
    /// believed.
    is_gone: AtomicBool,
    /// Of its lane, which ended while it copied or lied about that: it has us keep no more of those
    /// than its process may have lanes.
    share: OnceLock<Share>,
}

impl Guest {
    /// The sender on a lane becomes a guest, who is still to join the others.
    pub fn admit(
        memory: Arc<LaneMemory>,
        life: Life,
        others: Weak<Guests>,
    ) -> std::io::Result<Guest> {
        let (permit, generation) = (Permit::new()?, fork_guard::generation());
        lane::visit(&memory).admit();
        Ok(Guest {
            memory,
            life,
            permit,
            expelled: Once::new(),
            is_lost: AtomicBool::new(false),
            others,
            number: number(),
            generation,
            is_dismissed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            share: OnceLock::new(),
        })
    }

    /// What tells it from all others of this process. Never 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What the guest has to know, with the secret of our catalogue, or 0.
    pub fn invitation(&self, catalogue: u64) -> Invitation {
        let nonce = u128::from_le_bytes(self.permit.nonce());
        [self.permit.address(), nonce as u64, (nonce >> 64) as u64, catalogue]
    }

    fn leases(&self) -> &Leases {
        lane::leases(&self.memory)
    }

    /// What it says that it is at.
    pub fn visit(&self) -> &Visit {
        lane::visit(&self.memory)
    }

    /// Whether it says that it is at what is listed so, or was.
    pub fn is_at(&self, name: EntryName) -> bool {
        self.visit().is_at(name)
    }

    /// The same of one that is still to be waited for.
    pub fn may_be_at(&self, name: EntryName) -> bool {
        self.is_at(name) && !self.is_lost.load(Ordering::Relaxed)
    }

    /// From now on it begins no visit, and writes nothing more but what the kernel is at.
    pub fn expel(&self) {
        self.expelled.call_once(|| {
            self.visit().bar();
            self.permit.withdraw();
            tracing::info!("a peer that does not end its copy loses its window");
        });
    }

    /// It says that it is at something still.
    pub fn give_up(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Lends something. Where too much is lent, something else is taken back for it, which the
    /// guest has to ask for again.
    pub fn lend(self: &Arc<Guest>) -> Option<LentRegion> {
        if self.is_dismissed.load(Ordering::Relaxed) {
            return None;
        }
        let (leases, next) = (self.leases(), &self.memory.next_lease);
        let first = next.load(Ordering::Relaxed);
        let mut keys = first..(first + LEASES as u64).min(KEYS);
        let free = keys.clone().find(|&key| leases.is_free(key as u8));
        let key = free.or_else(|| keys.find(|&key| leases.clear(key as u8)))?;
        next.store(key + 1, Ordering::Relaxed);
        let lease = LeaseName::from_key(key as u32);
        leases.lend(lease);
        Some(LentRegion { guest: self.clone(), lease })
    }

    /// Nothing is lent any more. Who needs memory back drops the loan of it, and waits there. The
    /// share is that of its lane. Returns whether it is gone.
    pub fn dismiss(&self, share: Option<Share>) -> bool {
        let copies = (0..LEASES).filter(|&place| !self.leases().clear(place as u8)).count();
        let is_gone = !self.visit().bar() && copies == 0;
        if is_gone {
            // G1: pairs with G2 in `is_gone`: what its last copies did is behind us.
            self.is_gone.store(true, Ordering::Release);
        } else if let Some(share) = share {
            let _ = self.share.set(share);
        }
        // Relaxed: who sees it asks the kernel, or the words that both write.
        self.is_dismissed.store(true, Ordering::Relaxed);
        self.others.upgrade().inspect(|others| {
            others.forget_gone();
        });
        is_gone
    }

    /// Whether it has reached our memory for the last time.
    pub fn is_gone(&self) -> bool {
        // G2: pairs with G1 and G3, in `dismiss` and below.
        if self.is_gone.load(Ordering::Acquire) {
            return true;
        }
        let is_gone = self.is_dismissed.load(Ordering::Relaxed)
            && (!self.visit().is_any() && !self.leases().are_any_in_use() || self.life.has_ended());
        if is_gone {
            // G3: pairs with G2 above.
            self.is_gone.store(true, Ordering::Release);
        }
        is_gone
    }

    /// Whether it copies no more, whatever it says.
    pub fn is_dead_or_gone(&self) -> bool {
        self.is_gone() || self.life.has_ended()
    }
}

/// From what [`Guest::invitation`] told; none if there can be no such.
pub(crate) fn permit_of([address, low, high, _]: Invitation) -> Option<(u64, [u8; NONCE_BYTES])> {
    let nonce = u128::from(high) << 64 | u128::from(low);
    (address != 0).then(|| (address, nonce.to_le_bytes()))
}

/// Memory that a guest may reach, until this is dropped.
pub(crate) struct LentRegion {
    guest: Arc<Guest>,
    lease: LeaseName,
}

impl Registration for LentRegion {
    fn remote_key(&self) -> u32 {
        self.lease.to_key()
    }

    /// Who was killed in the middle of a copy never says that it is over.
    fn is_over(&self) -> bool {
        let leases = self.guest.leases();
        !leases.is_lent(self.lease) && !leases.is_in_use(self.lease) || self.guest.is_gone()
    }

    fn revoke(&self) {
        if !fork_guard::forked(self.guest.generation) {
            self.guest.leases().take_back(self.lease);
        }
    }
}

impl Drop for LentRegion {
    /// In a forked child the lane is the parent's, and so is what was lent.
    fn drop(&mut self) {
        let (guest, lease) = (&self.guest, self.lease);
        if !fork_guard::forked(guest.generation) && guest.leases().take_back(lease) {
            see_off(std::slice::from_ref(guest), |guest| guest.leases().is_in_use(lease));
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::{
        cma::PeerMemory,
        control::shares::{LANES_PER_PROCESS_MAX, Shares},
        process::ProcessId,
    };
    use std::{
        collections::HashSet,
        process::{Command, Stdio},
        time::Duration,
    };

    fn guest(life: Life) -> Arc<Guest> {
        let (memory, _) = LaneMemory::create().unwrap();
        Arc::new(Guest::admit(Arc::new(memory), life, Weak::new()).unwrap())
    }

    fn own() -> Life {
        Life::of(std::process::id())
    }

    /// Whether the guest can still write with its permit.
    fn writes(guest: &Guest) -> bool {
        let (address, nonce) = permit_of(guest.invitation(0)).unwrap();
        let memory = PeerMemory::of(std::process::id() as i32, address, nonce);
        let place = AtomicU64::new(0);
        let value = 5_u64.to_ne_bytes();
        // SAFETY: the value is 8 bytes long, and so is the place, whose content is never a reference.
        let written = unsafe { memory.write(place.as_ptr() as u64, value.as_ptr(), 8) };
        assert_eq!(place.load(Ordering::SeqCst), if written.is_ok() { 5 } else { 0 });
        written.is_ok()
    }

    #[test]
    fn a_loan_ends_behind_the_copy_that_is_under_way() {
        let guest = guest(own());
        let loan = guest.lend().unwrap();
        let lease = LeaseName::from_key(loan.remote_key());
        assert!(guest.leases().take(lease) && !loan.is_over());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                over.store(true, Ordering::SeqCst);
                guest.leases().give_back(lease);
            });
            drop(loan);
            assert!(over.load(Ordering::SeqCst));
        });
        assert!(writes(&guest) && !guest.leases().take(lease));
    }

    #[test]
    fn a_guest_that_does_not_end_its_copy_loses_its_permit() {
        let guest = guest(own());
        let loan = guest.lend().unwrap();
        assert!(guest.leases().take(LeaseName::from_key(loan.remote_key())) && writes(&guest));
        drop(loan);
        assert!(!writes(&guest), "it may go on now");
    }

    #[test]
    fn a_dead_guest_is_not_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let guest = guest(Life::of(child.id()));
        let loan = guest.lend().unwrap();
        assert!(guest.leases().take(LeaseName::from_key(loan.remote_key())));
        child.kill().unwrap();
        drop(loan);
        assert!(writes(&guest), "it did not take so long that the permit was taken back");
        child.wait().unwrap();
    }

    #[test]
    fn a_guest_that_was_killed_in_a_copy_has_no_loan_any_more() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let guest = guest(Life::of(child.id()));
        let loan = guest.lend().unwrap();
        assert!(guest.leases().take(LeaseName::from_key(loan.remote_key())));
        guest.dismiss(None);
        assert!(!loan.is_over(), "it may be at it still");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(loan.is_over());
    }

    #[test]
    fn a_guest_that_pretends_to_copy_counts_as_a_lane_until_nothing_is_left_of_it() {
        let process = ProcessId::from_u64(1).unwrap();
        let mut shares = Shares::default();
        let _others: Vec<_> =
            (1..LANES_PER_PROCESS_MAX).map(|_| shares.take(process, 0, 0)).collect();
        for begins_too_late in [false, true] {
            let mut share = shares.take(process, 0, 0).ok();
            assert!(share.is_some(), "there is one left");
            let memory = Arc::new(LaneMemory::create().unwrap().0);
            let guest = Arc::new(Guest::admit(memory, own(), Weak::new()).unwrap());
            let loan = guest.lend().unwrap();
            let lease = LeaseName::from_key(loan.remote_key());
            if begins_too_late {
                guest.dismiss(share.take());
                guest.leases().lend(lease);
            }
            assert!(guest.leases().take(lease));
            guest.dismiss(share.take());
            assert_eq!(loan.is_over(), begins_too_late);
            assert_eq!(shares.take(process, 0, 0).is_ok(), begins_too_late);
            guest.leases().give_back(lease);
            drop((loan, guest));
            assert!(shares.take(process, 0, 0).is_ok());
        }
    }

    #[test]
    fn no_two_leases_of_a_lane_have_one_name() {
        let (guest, left) = (guest(own()), 3 * LEASES);
        guest.memory.next_lease.store(KEYS - left as u64, Ordering::Relaxed);
        let lent = (0..left).map(|_| guest.lend().expect("a name is left").remote_key());
        assert_eq!(lent.collect::<HashSet<_>>().len(), left);
        let next = Arc::new(Guest::admit(guest.memory.clone(), own(), Weak::new()).unwrap());
        assert!(guest.lend().is_none() && next.lend().is_none(), "they have all been used");
    }

    #[test]
    fn the_oldest_loan_makes_room() {
        let guest = guest(own());
        let loans: Vec<LentRegion> = (0..LEASES).map(|_| guest.lend().unwrap()).collect();
        assert!(loans.iter().all(|loan| !loan.is_over()));
        let used = LeaseName::from_key(loans[3].remote_key());
        assert!(guest.leases().take(used));
        let more: Vec<LentRegion> = (0..LEASES / 2).map(|_| guest.lend().unwrap()).collect();
        assert!(!more[LEASES / 2 - 1].is_over(), "the last one is lent");
        let over = |loans: &[LentRegion]| loans.iter().filter(|loan| loan.is_over()).count();
        // The one that is in use is over when it is not any more.
        let lost = over(&loans) + over(&more);
        assert_eq!((lost, loans[3].is_over()), (LEASES / 2, false));
        guest.leases().give_back(used);
        guest.dismiss(None);
        assert!(loans.iter().chain(&more).all(|loan| loan.is_over()));
    }
}
