//! The catalogue: what a receiver lets its guests reach of its memory, for all of them to read.
//!
//! A lease ([`super::leases`]) is lent to one sender, who has to ask. In a catalogue every sender finds a
//! region whatever the receiver does at that moment: by a hash of its key, which both make, and whose
//! low bits say where it is. Each guest has a word, its *visit*, in which it says what it reaches.
//!
//! Invariants:
//! 1. An entry has a stamp, which is odd while something is listed there, and grows by one with
//!    each change. Only the owner writes entries. One thread lists at a time, and whoever listed
//!    something strikes it out.
//! 2. What was read of an entry counts if it was read between two looks at the same odd stamp.
//! 3. Who begins a visit marks its word, then looks at the stamp. Who strikes an entry out changes
//!    the stamp, then looks at the words. Both have a fence between the two: so the visit finds
//!    nothing listed, or its mark is seen.
//! 4. Who struck an entry out and sees no word that names it, with acquire order, has the memory to
//!    himself.
//! 5. A guest sets and clears its word, and makes one visit at a time. The bar in it is the owner's: no
//!    visit begins under it. The owner clears all of it for a guest that is new, and at nothing.
//! 6. A name has some of a stamp's bits. So a visit also looks whether what is listed there reaches as
//!    far as it does: by a name that has come again nothing is reached that is not listed.
//! 7. Neither believes the other. The owner learns from a word when to stop waiting, and no wait of
//!    its is without end. A guest learns where to read and write in the owner's memory alone.
//!
//! `core/tests/loom_catalogue.rs` has the models.

use crate::{
    primitive::{AtomicU64, Ordering, fence},
    window::{Direction, Lease},
};

/// Regions that can be listed at a time: a power of two.
pub const ENTRIES: usize = if cfg!(loom) { 2 } else { 1024 };
/// Places that a hash may have, one behind the other.
const PLACES: usize = if cfg!(loom) { 1 } else { 8 };

const PLACE_BITS: u32 = ENTRIES.trailing_zeros();
/// Names are told by it from those of leases.
const LISTED: u32 = 1 << 31;
/// Stamps that names tell apart.
const STAMPS: u64 = 1 << (LISTED.trailing_zeros() - PLACE_BITS);
const BARRED: u64 = 1 << 63;

/// Where a region is listed, or nothing.
#[repr(C, align(64))]
#[derive(Default)]
struct Entry {
    stamp: AtomicU64,
    hash: AtomicU64,
    /// As a lease travels.
    words: [AtomicU64; 4],
}

/// The entries of a receiver: memory that it alone writes, all zero at first.
#[repr(C)]
pub struct Catalogue {
    entries: [Entry; ENTRIES],
}

impl Default for Catalogue {
    fn default() -> Self {
        Catalogue { entries: std::array::from_fn(|_| Entry::default()) }
    }
}

/// What is listed, by where that is, and the stamp there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryName(u32);

impl EntryName {
    fn new(place: usize, stamp: u64) -> EntryName {
        // Odd stamps alone have names.
        let stamp = ((stamp >> 1) % STAMPS) as u32;
        EntryName(LISTED | (stamp << PLACE_BITS) | place as u32)
    }

    /// In the place of the key of a lease.
    pub fn to_key(self) -> u32 {
        self.0
    }

    /// From such a key; none from that of a lease.
    #[inline(always)]
    pub fn from_key(key: u32) -> Option<EntryName> {
        (key & LISTED != 0).then_some(EntryName(key))
    }

    fn place(self) -> usize {
        self.0 as usize % ENTRIES
    }
}

/// Where something may be listed.
fn places_of(hash: u64) -> impl Iterator<Item = usize> {
    let first = hash as usize % ENTRIES;
    (first..first + PLACES).map(|place| place % ENTRIES)
}

impl Entry {
    /// Its stamp, the hash of the key, and what is listed there.
    #[inline]
    fn read(&self) -> Option<(u64, u64, Lease)> {
        // C1: pairs with C2 in `list`.
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp.is_multiple_of(2) {
            return None;
        }
        let hash = self.hash.load(Ordering::Relaxed);
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        // C3: pairs with C4 and C9, in `strike` and `list`: who read what is listed next sees another stamp.
        fence(Ordering::Acquire);
        let whole = self.stamp.load(Ordering::Relaxed) == stamp;
        Lease::from_words(words).filter(|_| whole).map(|lease| (stamp, hash, lease))
    }
}

impl Catalogue {
    /// The owner: lists a region by the hash of its key, if there is a place. The lease's own key does not
    /// count.
    pub fn list(&self, hash: u64, lease: &Lease) -> Option<EntryName> {
        let vacant =
            |&place: &usize| self.entries[place].stamp.load(Ordering::Relaxed).is_multiple_of(2);
        let place = places_of(hash).find(vacant)?;
        let entry = &self.entries[place];
        let stamp = entry.stamp.load(Ordering::Relaxed) + 1;
        // C9: pairs with C3 in `read`: another thread may have struck out what was here.
        fence(Ordering::Release);
        entry.hash.store(hash, Ordering::Relaxed);
        for (word, value) in entry.words.iter().zip(lease.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // C2: pairs with C1 in `read`.
        entry.stamp.store(stamp, Ordering::Release);
        Some(EntryName::new(place, stamp))
    }

    /// The owner: nothing is listed by that name any more. Whose word names it is still at it.
    pub fn strike(&self, name: EntryName) {
        let stamp = &self.entries[name.place()].stamp;
        let now = stamp.load(Ordering::Relaxed);
        if EntryName::new(name.place(), now) == name && !now.is_multiple_of(2) {
            stamp.store(now + 1, Ordering::Relaxed);
        }
        // C4: pairs with C3 and C5, in `read` and `visit`: it sees the stamp, or we see its mark.
        fence(Ordering::SeqCst);
    }

    /// A guest: what is listed by the hash of a key. The key of the lease is the name.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Lease> {
        places_of(hash).find_map(|place| {
            let (stamp, known, lease) = self.entries[place].read()?;
            let remote_key = EntryName::new(place, stamp).to_key();
            (known == hash).then_some(Lease { remote_key, ..lease })
        })
    }

    /// A guest: begins a visit to some bytes, by the owner's addresses. False if they are not
    /// listed by that name any more.
    #[inline]
    pub fn visit(
        &self,
        visit: &Visit,
        name: EntryName,
        (address, length): (u64, u64),
        direction: Direction,
    ) -> bool {
        let marked =
            visit.0.compare_exchange(0, name.0.into(), Ordering::Relaxed, Ordering::Relaxed);
        if marked.is_err() {
            return false;
        }
        // C5: pairs with C4 in `strike`.
        fence(Ordering::SeqCst);
        let place = name.place();
        let listed = self.entries[place].read().is_some_and(|(stamp, _, lease)| {
            EntryName::new(place, stamp) == name && lease.reaches(address, length, direction)
        });
        if !listed {
            visit.end();
        }
        listed
    }

    /// A guest: the visit is over. False if the entry was struck out meanwhile, or the guest barred, by
    /// somebody who may not have waited for us to the end.
    #[inline]
    pub fn leave(&self, visit: &Visit, name: EntryName) -> bool {
        let welcome = visit.end();
        let stamp = self.entries[name.place()].stamp.load(Ordering::Relaxed);
        welcome && !stamp.is_multiple_of(2) && EntryName::new(name.place(), stamp) == name
    }
}

/// What a guest is at: a word that both sides write, zero at first.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Visit(AtomicU64);

impl Visit {
    /// The guest: whether the owner lets it begin none.
    pub fn is_barred(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BARRED != 0
    }

    /// The guest: returns whether it was not barred.
    #[inline(always)]
    fn end(&self) -> bool {
        // C6: pairs with C7, C8 and C10, in `is_at`, `bar` and `is_any`: what the guest did is behind who sees its mark gone.
        self.0.fetch_and(BARRED, Ordering::Release) & BARRED == 0
    }

    /// The owner: whether the guest is at what is listed, or was, by that name.
    pub fn is_at(&self, name: EntryName) -> bool {
        // C7: pairs with C6 in `end`.
        self.0.load(Ordering::Acquire) & !BARRED == u64::from(name.0)
    }

    /// The owner: whether the guest is at anything.
    pub fn is_any(&self) -> bool {
        // C10: pairs with C6 in `end`.
        self.0.load(Ordering::Acquire) & !BARRED != 0
    }

    /// The owner: no visit begins any more. Returns whether one is under way.
    pub fn bar(&self) -> bool {
        // C8: pairs with C6 in `end`.
        self.0.fetch_or(BARRED, Ordering::Acquire) & !BARRED != 0
    }

    /// The owner: visits may begin, of a guest that is at none.
    pub fn admit(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::window::Access;

    const LEASE: Lease = Lease {
        base: 0,
        length: 100,
        address: 0x7000,
        remote_key: 0,
        access: Access { read: true, write: false, atomic: false },
    };

    fn named(lease: Option<Lease>) -> Option<EntryName> {
        lease.and_then(|lease| EntryName::from_key(lease.remote_key))
    }

    #[test]
    fn what_is_listed_is_found_and_visited_until_it_is_struck_out() {
        let (catalogue, visit) = (Catalogue::default(), Visit::default());
        assert!(catalogue.find(7).is_none());
        let name = catalogue.list(7, &LEASE).unwrap();
        let found = catalogue.find(7).unwrap();
        assert_eq!(found, Lease { remote_key: name.to_key(), ..LEASE });
        assert!(catalogue.find(8).is_none());
        let read = |bytes| catalogue.visit(&visit, name, bytes, Direction::Read);
        assert!(read((0x7000, 100)) && visit.is_at(name));
        assert!(!read((0x7000, 1)), "one visit at a time");
        assert!(catalogue.leave(&visit, name) && !visit.is_at(name));
        assert!(!read((0x7001, 100)) && !read((0x6fff, 1)), "beyond its ends");
        assert!(!catalogue.visit(&visit, name, (0x7000, 1), Direction::Write), "not permitted");
        assert!(read((0x7063, 1)));
        catalogue.strike(name);
        assert!(visit.is_at(name) && catalogue.find(7).is_none());
        assert!(!catalogue.leave(&visit, name), "it was struck out");
        assert!(!read((0x7000, 1)) && !visit.is_at(name));
    }

    #[test]
    fn an_old_name_is_of_nothing() {
        let (catalogue, visit) = (Catalogue::default(), Visit::default());
        let old = catalogue.list(7, &LEASE).unwrap();
        catalogue.strike(old);
        let new = catalogue.list(7, &LEASE).unwrap();
        assert!(old.place() == new.place() && old != new);
        assert!(!catalogue.visit(&visit, old, (0x7000, 1), Direction::Read));
        catalogue.strike(old);
        assert_eq!(named(catalogue.find(7)), Some(new));
        assert!(catalogue.visit(&visit, new, (0x7000, 1), Direction::Read));
    }

    #[test]
    fn who_is_barred_begins_nothing() {
        let (catalogue, visit) = (Catalogue::default(), Visit::default());
        let name = catalogue.list(7, &LEASE).unwrap();
        let read = || catalogue.visit(&visit, name, (0x7000, 1), Direction::Read);
        assert!(!visit.bar() && !read() && visit.is_barred());
        visit.admit();
        assert!(!visit.is_barred() && !visit.is_any() && read());
        assert!(visit.bar() && visit.is_at(name) && visit.is_any());
        assert!(!catalogue.leave(&visit, name) && !visit.bar() && !read());
    }

    #[test]
    fn where_there_is_no_place_nothing_is_listed() {
        let catalogue = Catalogue::default();
        let first = places_of(0).next().unwrap();
        let keys: Vec<u64> =
            (0..).filter(|&key| places_of(key).next() == Some(first)).take(PLACES + 1).collect();
        let names: Vec<_> = keys.iter().map(|&key| catalogue.list(key, &LEASE)).collect();
        assert_eq!(names.iter().filter(|name| name.is_none()).count(), 1);
        assert!(names[PLACES].is_none() && catalogue.find(keys[PLACES]).is_none());
        assert!((0..PLACES).all(|at| named(catalogue.find(keys[at])) == names[at]));
        catalogue.strike(names[3].unwrap());
        assert!(catalogue.list(keys[PLACES], &LEASE).is_some());
    }

    /// A stamp comes again in names.
    #[test]
    fn a_name_that_has_come_again_reaches_what_is_listed_alone() {
        let (catalogue, visit) = (Catalogue::default(), Visit::default());
        let old = catalogue.list(7, &LEASE).unwrap();
        catalogue.strike(old);
        let stamp = &catalogue.entries[old.place()].stamp;
        stamp.store(stamp.load(Ordering::Relaxed) + 2 * (STAMPS - 1), Ordering::Relaxed);
        let new = catalogue.list(7, &Lease { address: 0x9000, ..LEASE }).unwrap();
        assert_eq!(old, new);
        assert!(!catalogue.visit(&visit, old, (0x7000, 1), Direction::Read));
        assert!(catalogue.visit(&visit, new, (0x9000, 1), Direction::Read));
    }

    #[test]
    fn nonsense_of_a_guest_is_at_nothing() {
        let (catalogue, visit) = (Catalogue::default(), Visit::default());
        let name = catalogue.list(7, &LEASE).unwrap();
        for word in [1, u64::MAX, u64::MAX >> 1, u64::from(name.0) | 1 << 40, u64::from(!name.0)] {
            visit.0.store(word, Ordering::Relaxed);
            assert!(!visit.is_at(name), "{word:#x}");
        }
    }
}
