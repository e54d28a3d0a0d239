//! The catalogue of an endpoint: regions that its guests reach without asking.
//!
//! It is the end of the endpoint's pool, which all peers map ([`kestrel_core::ring::catalogue`]). In place
//! of a key it has a hash by a [`Secret`], which guests alone are told: others see where regions lie, and not
//! what to call them. Dropping a [`Listed`] strikes a region out and waits for the guests that are at it.

use std::{
    hash::Hasher,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{Ordering, fence},
    },
};

use kestrel_core::{
    error::{Cause, Errno},
    fork_guard,
    ring::catalogue::{Catalogue, EntryName},
    window::{Lease, Publisher, Registration},
};
use siphasher::sip::SipHasher24;

use crate::{
    control::random_u64,
    guest,
    guests::Guests,
    region::{PoolMemory, PoolView, populate},
};

/// What it takes of a pool.
pub(crate) const BYTES: usize = size_of::<Catalogue>();

/// Half of the key of the hash; the secret is the other half.
const HASH_KEY: u64 = 0x6b65_7374_7265_6c21;

/// What keys are hashed by.
#[derive(Clone, Copy)]
pub(crate) struct Secret(NonZeroU64);

impl Secret {
    /// What stands for the key.
    #[inline]
    fn hash(self, key: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0.get(), HASH_KEY);
        hasher.write_u64(key.to_le());
        hasher.finish()
    }
}

/// Where it lies in a pool of so many bytes, which begins on a page, if it is so large.
fn offset_in(bytes: usize) -> Option<usize> {
    bytes.checked_sub(BYTES).filter(|offset| offset.is_multiple_of(align_of::<Catalogue>()))
}

/// In our own pool, behind the chunks.
struct Entries(PoolMemory);

impl Entries {
    fn get(&self) -> &Catalogue {
        // SAFETY: `OwnCatalogue::over` has looked that it lies within the mapping, which lives as long as
        // `self`, aligned. It is atomics alone, so that peers may read it at any time.
        unsafe { self.0.as_ptr().add(self.0.chunk_bytes()).cast().as_ref() }
    }
}

/// Our own.
pub(crate) struct OwnCatalogue {
    entries: Arc<Entries>,
    guests: Arc<Guests>,
    secret: Secret,
    /// Who lists something.
    writing: Mutex<()>,
    number: u64,
    /// In a forked child it is the parent's, and so is the memory.
    generation: u32,
}

impl OwnCatalogue {
    /// Behind the chunks of that pool.
    ///
    /// # Errors
    /// There is no memory for its pages, or peers could write it.
    pub(crate) fn over(pool: &PoolMemory) -> Result<OwnCatalogue, Cause> {
        if !pool.is_ours_alone() {
            let reason = "peers could write it: F_SEAL_FUTURE_WRITE is unknown before Linux 5.1";
            return Err(Cause { errno: Errno::NOSYS, reason: reason.to_owned() });
        }
        let offset = pool.chunk_bytes();
        assert_eq!(offset_in(pool.len()), Some(offset), "the pool was made with a catalogue");
        // SAFETY: within the mapping, as was just looked.
        populate(unsafe { pool.as_ptr().add(offset) }, BYTES).map_err(|error| Cause::of(&error))?;
        let random = random_u64().map_err(|error| Cause::of(&error))?;
        Ok(OwnCatalogue {
            entries: Arc::new(Entries(pool.clone())),
            guests: Arc::default(),
            secret: Secret(NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN)),
            writing: Mutex::default(),
            number: guest::number(),
            generation: fork_guard::generation(),
        })
    }

    /// What its guests have to know. Never 0.
    pub(crate) fn secret(&self) -> u64 {
        self.secret.0.get()
    }

    /// Those who read it.
    pub(crate) fn guests(&self) -> &Arc<Guests> {
        &self.guests
    }
}

impl Publisher for OwnCatalogue {
    fn audience(&self) -> u64 {
        self.number
    }

    fn publish(&self, key: u64, lease: &Lease) -> Option<Arc<dyn Registration>> {
        if fork_guard::forked(self.generation) {
            return None;
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let name = self.entries.get().list(self.secret.hash(key), lease)?;
        let (entries, guests) = (Arc::downgrade(&self.entries), self.guests.clone());
        Some(Arc::new(Listed { entries, guests, name, generation: self.generation }))
    }
}

/// A region that is listed, until this is dropped.
struct Listed {
    /// None once the endpoint is closed.
    entries: Weak<Entries>,
    guests: Arc<Guests>,
    name: EntryName,
    generation: u32,
}

impl Registration for Listed {
    fn remote_key(&self) -> u32 {
        self.name.to_key()
    }

    fn is_over(&self) -> bool {
        self.entries.strong_count() == 0 && self.guests.forget_gone() == 0
    }

    fn revoke(&self) {
        if !fork_guard::forked(self.generation)
            && let Some(entries) = self.entries.upgrade()
        {
            entries.get().strike(self.name);
        }
    }
}

impl Drop for Listed {
    /// In a forked child the catalogue is the parent's.
    fn drop(&mut self) {
        if !fork_guard::forked(self.generation) {
            self.revoke();
            // Where there is nothing to strike out any more, all guests were barred.
            fence(Ordering::SeqCst);
            self.guests.see_off(self.name);
        }
    }
}

/// A peer's.
pub(crate) struct PeerCatalogue {
    pool: Arc<PoolView>,
    offset: usize,
    secret: Secret,
}

impl PeerCatalogue {
    /// That of a peer who tells this secret; none if it has none, or can have none.
    pub(crate) fn of(pool: &Arc<PoolView>, secret: u64) -> Option<PeerCatalogue> {
        let (offset, secret) = (offset_in(pool.len())?, Secret(NonZeroU64::new(secret)?));
        Some(PeerCatalogue { pool: pool.clone(), offset, secret })
    }

    /// What may be reached of the region with that key.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<Lease> {
        self.get().find(self.secret.hash(key))
    }

    /// It may be nonsense, and change at any time.
    #[inline(always)]
    pub(crate) fn get(&self) -> &Catalogue {
        // SAFETY: `of` has looked that it lies within the mapping, which lives as long as `self`, aligned. It
        // is atomics alone, which are only loaded.
        unsafe { self.pool.as_ptr().add(self.offset).cast().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        time::{Duration, Instant},
    };

    use kestrel_core::window::{Access, Direction};
    use kestrel_tests::fork::{fork, wait};

    use super::*;
    use crate::{guest::Guest, guests::LEAVE_MAX, process::Life, region::LaneMemory};

    const LEASE: Lease = Lease {
        base: 0,
        length: 100,
        address: 0x7000,
        remote_key: 0,
        access: Access { read: true, write: false, atomic: false },
    };

    fn admit(catalogue: &OwnCatalogue) -> Arc<Guest> {
        let (memory, _) = LaneMemory::create().unwrap();
        let (life, others) = (Life::of(std::process::id()), Arc::downgrade(&catalogue.guests));
        let guest = Arc::new(Guest::admit(Arc::new(memory), life, others).unwrap());
        catalogue.guests.enter(guest.clone());
        guest
    }

    /// A catalogue with one region in it, and a guest of it.
    struct House {
        pool: PoolMemory,
        catalogue: OwnCatalogue,
        guest: Arc<Guest>,
    }

    impl House {
        fn new() -> House {
            let pool = PoolMemory::with_chunks(4096, BYTES).unwrap();
            let catalogue = OwnCatalogue::over(&pool).unwrap();
            let guest = admit(&catalogue);
            House { pool, catalogue, guest }
        }

        /// One more.
        fn admit(&self) -> Arc<Guest> {
            admit(&self.catalogue)
        }

        fn publish(&self, key: u64) -> Arc<dyn Registration> {
            self.catalogue.publish(key, &LEASE).unwrap()
        }

        /// The guest begins to copy from a region.
        fn visit(&self, listed: &Arc<dyn Registration>) -> EntryName {
            self.visit_by(&self.guest, listed)
        }

        fn visit_by(&self, guest: &Guest, listed: &Arc<dyn Registration>) -> EntryName {
            let name = EntryName::from_key(listed.remote_key()).unwrap();
            let entries = self.catalogue.entries.get();
            assert!(entries.visit(guest.visit(), name, (0x7000, 100), Direction::Read));
            name
        }
    }

    #[test]
    fn guests_find_it_and_others_do_not() {
        let house = House::new();
        let listed = house.publish(7);
        let view = Arc::new(house.pool.view().unwrap());
        let there = PeerCatalogue::of(&view, house.catalogue.secret()).unwrap();
        assert_eq!(there.find(7).unwrap().remote_key, listed.remote_key());
        assert!(there.find(8).is_none() && there.get().find(7).is_none());
        let stranger = PeerCatalogue::of(&view, !house.catalogue.secret()).unwrap();
        assert!(stranger.find(7).is_none());
        drop(listed);
        assert!(there.find(7).is_none());
        assert!(PeerCatalogue::of(&view, 0).is_none());
        let small = Arc::new(PoolMemory::create(BYTES - 4096).unwrap().view().unwrap());
        assert!(PeerCatalogue::of(&small, 1).is_none());
    }

    /// As the protocol has it.
    #[test]
    fn the_hash_is_that_of_the_document() {
        let secret = Secret(NonZeroU64::new(0x0123_4567_89ab_cdef).unwrap());
        let hashes = [0xeace_ee94_dc17_19b4, 0xb8b3_c526_0e7e_2925];
        assert_eq!([0, u64::MAX].map(|key| secret.hash(key)), hashes);
    }

    #[test]
    fn who_is_at_a_region_is_waited_for() {
        let house = House::new();
        let (listed, other) = (house.publish(7), house.publish(8));
        let name = house.visit(&listed);
        drop(other);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| drop(listed));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!closing.is_finished());
            assert!(!house.catalogue.entries.get().leave(house.guest.visit(), name));
        });
        let next = house.publish(7);
        house.visit(&next);
    }

    #[test]
    fn who_stays_for_ever_is_waited_for_once() {
        let house = House::new();
        let (first, second) = (house.publish(7), house.publish(8));
        house.visit(&first);
        let begun = Instant::now();
        drop(first);
        let waited = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
        assert!(house.guest.visit().is_barred());
        // As it says by itself.
        house.guest.visit().admit();
        house.visit(&second);
        let name = EntryName::from_key(second.remote_key()).unwrap();
        assert!(house.guest.is_at(name) && !house.guest.may_be_at(name));
        drop(second);
    }

    /// It began before it was barred, and the kernel may still be at it.
    #[test]
    fn who_was_expelled_is_waited_for_still() {
        let house = House::new();
        let listed = house.publish(7);
        let name = house.visit(&listed);
        house.guest.expel();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| drop(listed));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!closing.is_finished());
            assert!(!house.catalogue.entries.get().leave(house.guest.visit(), name));
        });
    }

    /// None of them can write when the others' time is over.
    #[test]
    fn several_that_stay_have_their_time_together() {
        let house = House::new();
        let more = [(); 3].map(|()| house.admit());
        let listed = house.publish(7);
        for guest in more.iter().chain([&house.guest]) {
            house.visit_by(guest, &listed);
        }
        let begun = Instant::now();
        drop(listed);
        let waited = begun.elapsed();
        assert!((LEAVE_MAX..3 * LEAVE_MAX).contains(&waited), "{waited:?}");
        assert!(more.iter().all(|guest| guest.visit().is_barred()));
    }

    #[test]
    fn a_forked_child_changes_nothing() {
        let house = House::new();
        let listed = RefCell::new(Some(house.publish(7)));
        let child = fork(|| {
            listed.take();
            i32::from(house.catalogue.publish(8, &LEASE).is_some())
        });
        assert_eq!(wait(child), 0);
        let secret = house.catalogue.secret;
        let found = |key| house.catalogue.entries.get().find(secret.hash(key)).is_some();
        assert_eq!([7, 8].map(found), [true, false]);
    }

    #[test]
    fn guests_that_are_gone_are_forgotten() {
        let house = House::new();
        assert!(house.guest.dismiss(None));
        assert_eq!(house.catalogue.guests.forget_gone(), 0);
        let house = House::new();
        let listed = house.publish(7);
        let name = house.visit(&listed);
        assert!(!house.guest.dismiss(None));
        let (guests, entries) = (house.catalogue.guests.clone(), house.catalogue.entries.clone());
        assert_eq!(guests.forget_gone(), 1, "it may still copy");
        drop(house.catalogue);
        assert!(!listed.is_over());
        entries.get().leave(house.guest.visit(), name);
        assert_eq!(guests.forget_gone(), 0);
        drop(entries);
        assert!(listed.is_over());
    }

    #[test]
    fn what_was_listed_goes_with_its_endpoint() {
        let house = House::new();
        let listed = house.publish(7);
        house.guest.dismiss(None);
        assert!(!listed.is_over());
        drop(house.catalogue);
        assert!(listed.is_over());
    }
}
