//! Leases: what a receiver lends of its memory to the sender of a lane, who reaches it by itself.
//!
//! Each lease has a word, which both ends write. The borrower marks it as in use around each
//! access, the lender takes it back: then no access begins any more, and the lender waits for the
//! one that is under way. All of it is changes of one word, so that an access either precedes the
//! taking back, and is waited for, or finds nothing lent.
//!
//! Invariants:
//! 1. A word holds a generation, whether it is lent, and whether it is in use.
//! 2. Only the lender lends and takes back, and writes generations; a generation means one lease,
//!    as long as anybody may remember it. A word that is in use is not lent anew.
//! 3. Only the borrower sets and clears the mark of use, and has one access under way at a time.
//! 4. An access lies between the setting and the clearing, which has release order. Who took a
//!    lease back and sees it unused, with acquire order, has the memory to himself.
//! 5. The lender believes nothing of the other's mark but when to stop waiting, and no wait of
//!    his is without end.
//!
//! `core/tests/loom_leases.rs` has the model.

use crate::primitive::{AtomicU64, Ordering};

/// Leases that can be out on one lane at a time.
pub const LEASES: usize = 256;
/// Generations are below this: half of all keys are of [catalogues](super::catalogue).
pub const GENERATIONS: u32 = 1 << 23;

const LENT: u64 = 1;
const IN_USE: u64 = 2;
const GENERATION_SHIFT: u32 = 2;

/// The leases of a lane: memory that both ends write, all zero at first.
#[repr(C, align(64))]
pub struct Leases {
    words: [AtomicU64; LEASES],
}

impl Default for Leases {
    fn default() -> Self {
        Leases { words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// One lease, by where its word is and its generation there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseName {
    place: u8,
    generation: u32,
}

const _: () = assert!(LEASES == 1 << u8::BITS);

impl LeaseName {
    /// The lease of that generation at `place`.
    pub fn new(place: u8, generation: u32) -> LeaseName {
        LeaseName { place, generation: generation % GENERATIONS }
    }

    /// As it travels.
    pub fn to_key(self) -> u32 {
        self.generation << u8::BITS | u32::from(self.place)
    }

    /// From what travelled. Any number is a name; most are of nothing.
    pub fn from_key(key: u32) -> LeaseName {
        LeaseName::new(key as u8, key >> u8::BITS)
    }

    fn word(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT | LENT
    }
}

impl Leases {
    #[inline(always)]
    fn at(&self, lease: LeaseName) -> &AtomicU64 {
        &self.words[lease.place as usize]
    }

    /// The lender: whether a lease can be given at `place`: none is lent there, or still in use.
    pub fn is_free(&self, place: u8) -> bool {
        // L1: pairs with L2 in `give_back`: what the last borrower did is behind us.
        self.words[place as usize].load(Ordering::Acquire) & (LENT | IN_USE) == 0
    }

    /// The lender: gives a lease, at a place that is free.
    pub fn lend(&self, lease: LeaseName) {
        // L3: pairs with L4 in `take`; the lease is told of in a packet besides.
        self.at(lease).store(lease.word(), Ordering::Release);
    }

    /// The lender: whether the lease is lent.
    pub fn is_lent(&self, lease: LeaseName) -> bool {
        self.at(lease).load(Ordering::Relaxed) & !IN_USE == lease.word()
    }

    /// The lender: takes back whatever is lent at `place`. Returns whether it is free then.
    pub fn clear(&self, place: u8) -> bool {
        self.words[place as usize].fetch_and(!LENT, Ordering::Relaxed);
        self.is_free(place)
    }

    /// The lender: no access begins any more. Returns whether one is under way.
    pub fn take_back(&self, lease: LeaseName) -> bool {
        // A borrower may write nonsense, and take and give back without end: no loop follows it.
        if self.is_lent(lease) {
            // L5: pairs with L2 in `give_back`: what is over by now is behind us.
            self.at(lease).fetch_and(!LENT, Ordering::Acquire);
        }
        self.is_in_use(lease)
    }

    /// The lender, who took the lease back: whether the borrower's access is still under way.
    pub fn is_in_use(&self, lease: LeaseName) -> bool {
        // L6: pairs with L2 in `give_back`.
        let word = self.at(lease).load(Ordering::Acquire);
        word == lease.word() & !LENT | IN_USE
    }

    /// The lender: whether the borrower says that any access is under way.
    pub fn are_any_in_use(&self) -> bool {
        // L7: pairs with L2 in `give_back`.
        self.words.iter().any(|word| word.load(Ordering::Acquire) & IN_USE != 0)
    }

    /// The borrower: begins an access. False if the lease was taken back.
    #[inline(always)]
    pub fn take(&self, lease: LeaseName) -> bool {
        let lent = lease.word();
        // L4: pairs with L3 in `lend`.
        let taken = self.at(lease).compare_exchange(
            lent,
            lent | IN_USE,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        taken.is_ok()
    }

    /// The borrower: the access is over. False if the lease was taken back meanwhile, by somebody
    /// who may not have waited for us to the end.
    #[inline(always)]
    pub fn give_back(&self, lease: LeaseName) -> bool {
        // L2: pairs with L1, L5, L6 and L7, of whoever sees the mark gone.
        self.at(lease).fetch_sub(IN_USE, Ordering::Release) & LENT != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_used_until_it_is_taken_back() {
        let (leases, lease) = (Leases::default(), LeaseName::new(7, 5));
        assert!(!leases.take(lease) && leases.is_free(7), "not lent yet");
        leases.lend(lease);
        assert!(leases.is_lent(lease) && !leases.is_free(7));
        assert!(leases.take(lease) && !leases.take(lease) && leases.is_lent(lease));
        assert!(leases.give_back(lease) && leases.take(lease));
        assert!(leases.take_back(lease) && leases.is_in_use(lease) && !leases.is_free(7));
        assert!(leases.are_any_in_use());
        assert!(!leases.is_lent(lease));
        assert!(!leases.give_back(lease), "it was taken back");
        assert!(!leases.is_in_use(lease) && leases.is_free(7) && !leases.take(lease));
        assert!(!leases.are_any_in_use());
        assert!(!leases.take_back(lease), "a second time changes nothing");
    }

    #[test]
    fn an_old_name_is_of_nothing() {
        let (leases, old, new) = (Leases::default(), LeaseName::new(1, 1), LeaseName::new(1, 2));
        leases.lend(old);
        assert!(!leases.take_back(old));
        leases.lend(new);
        assert!(!leases.take(old) && !leases.is_lent(old) && leases.take(new));
        assert!(!leases.take_back(old) && !leases.is_in_use(old), "it is another's");
        assert!(leases.is_lent(new));
    }

    #[test]
    fn a_place_is_cleared_unless_it_is_in_use() {
        let (leases, lease) = (Leases::default(), LeaseName::new(9, 4));
        assert!(leases.clear(9));
        leases.lend(lease);
        assert!(leases.take(lease) && !leases.clear(9) && !leases.is_lent(lease));
        leases.give_back(lease);
        assert!(leases.is_free(9) && !leases.take(lease));
        leases.lend(lease);
        assert!(leases.clear(9) && !leases.take(lease));
    }

    #[test]
    fn nonsense_of_a_borrower_is_not_waited_for() {
        let lease = LeaseName::new(0, 1);
        for word in [0, u64::MAX, IN_USE, LENT | IN_USE, lease.word() << 1 | IN_USE] {
            let leases = Leases::default();
            leases.lend(lease);
            leases.words[0].store(word, Ordering::Relaxed);
            assert!(!leases.take_back(lease), "{word:#x}");
        }
    }

    #[test]
    fn names_travel_whole() {
        for (place, generation) in [(0, 0), (255, GENERATIONS - 1), (3, 0x12_3456)] {
            let lease = LeaseName::new(place, generation);
            assert_eq!(LeaseName::from_key(lease.to_key()), lease);
        }
        assert_eq!(LeaseName::new(1, GENERATIONS + 2), LeaseName::new(1, 2));
    }
}
