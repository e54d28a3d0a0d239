//! Members: who is in a list that several processes map and change.
//!
//! A place has an incarnation in its first word, 0 where nobody is, and what is said of the member in
//! the words behind it. Invariants:
//!
//! 1. Who holds the list's lock alone fills a place, and only a vacant one.
//! 2. Anybody vacates one, by exchanging the incarnation that was read.
//! 3. The words behind an incarnation change only while the place is vacant.
//! 4. Whoever has changed a place counts that afterwards.
//!
//! So a reader that sees one incarnation before and after the words has that member's (3),
//! incarnations being random.
//!
//! `core/tests/loom_members.rs` has the model.

use crate::primitive::{AtomicU64, Ordering, fence};

/// Who is at a place, and what is said there. None if it is vacant, or was in the meantime.
pub fn read<const WORDS: usize>(place: &[AtomicU64]) -> Option<(u64, [u64; WORDS])> {
    let incarnation = place[0].load(Ordering::Acquire); // G3: pairs with G4 in fill()
    if incarnation == 0 {
        return None;
    }
    let words = std::array::from_fn(|at| place[1 + at].load(Ordering::Relaxed));
    fence(Ordering::Acquire); // G5: pairs with G6 in fill()
    // Who changed it meanwhile counts that, or has left.
    (place[0].load(Ordering::Relaxed) == incarnation).then_some((incarnation, words))
}

/// Fills a vacant place. The caller holds the list's lock.
pub fn fill(place: &[AtomicU64], incarnation: u64, words: &[u64]) {
    fence(Ordering::Release); // G6: pairs with G5 in read(): whoever sees a word sees it vacant.
    for (word, &value) in place[1..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    place[0].store(incarnation, Ordering::Release); // G4: pairs with G3 in read()
}

/// Vacates the place of that incarnation. Whether it was still there.
pub fn vacate(place: &[AtomicU64], incarnation: u64) -> bool {
    place[0].compare_exchange(incarnation, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// A number that is another one after each change. Cost: one load.
pub fn changes(count: &AtomicU64) -> u64 {
    count.load(Ordering::Acquire) // G1: pairs with G2 in count_change()
}

/// Counts a change.
pub fn count_change(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Release); // G2: pairs with G1 in changes()
}
