//! Submissions: what threads leave for the owner of an engine, in order.
//!
//! They lie in a bounded ring, and who finds that full is refused. What cannot be refused overflows
//! into a list, which has no bound. Invariants:
//!
//! 1. What overflows goes behind what is in the ring, and what comes later and cannot be refused
//!    goes behind that.
//! 2. Whoever overflows puts a mark into the ring afterwards, which has the owner look again. If
//!    there is no room for it, somebody takes from the ring later, and then looks at the list.
//! 3. While something has overflowed nothing that cannot be refused goes into the ring. So the owner
//!    looks first how much has overflowed, then takes all of the ring, which is older, and then takes
//!    what it has seen.
//!
//! `core/tests/loom_submissions.rs` has the model.

use crate::{
    primitive::{Ordering, SegQueue, fence},
    ring::mpmc::{Popped, Ring},
};

/// A bounded ring, and behind it what overflowed.
pub struct Submissions<T> {
    ring: Ring<T>,
    capacity: usize,
    overflow: SegQueue<T>,
}

impl<T> Submissions<T> {
    /// Nothing, with room for `capacity` that can be refused: a power of two.
    pub fn new(capacity: usize) -> Self {
        Submissions { ring: Ring::new(capacity), capacity, overflow: SegQueue::new() }
    }

    /// Leaves one, or gives it back if there is no room.
    pub fn push(&self, submission: T) -> Result<(), T> {
        self.ring.push(submission)
    }

    /// Leaves one that is not refused; `mark` is nothing but a reason to look.
    pub fn push_always(&self, submission: T, mark: T) {
        // In order: behind what waits for room already.
        let refused = match self.overflow.is_empty() {
            true => self.ring.push(submission).err(),
            false => Some(submission),
        };
        let Some(refused) = refused else { return };
        self.overflow.push(refused);
        // F10: pairs with F11 in `drain`: either there is room for this by now, which has the owner
        // look again, or whoever makes room sees the overflow.
        fence(Ordering::SeqCst);
        let _ = self.ring.push(mark);
    }

    /// Whether the ring is empty, or somebody is in the middle of a push.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether something can be taken from the ring.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.ring.is_ready()
    }

    /// How many more the ring takes.
    pub fn room(&self) -> usize {
        self.ring.room()
    }

    /// Takes what there is, in order, for the one owner. False if it cannot take all that was in the
    /// ring: somebody is in the middle of a push and maybe off the core, so nobody waits. What comes
    /// after that push goes behind it.
    pub fn drain(&self, mut take: impl FnMut(T)) -> bool {
        loop {
            if !self.drain_ring(&mut take) {
                return false;
            }
            // F11: pairs with F10 in `push_always`.
            fence(Ordering::SeqCst);
            let waiting = self.overflow.len();
            if waiting == 0 {
                return true;
            }
            // Invariant 3: what is in the ring by now went there before.
            if !self.drain_ring(&mut take) {
                return false;
            }
            for _ in 0..waiting {
                self.overflow.pop().map(&mut take);
            }
        }
    }

    fn drain_ring(&self, take: &mut impl FnMut(T)) -> bool {
        for _ in 0..self.capacity {
            match self.ring.pop() {
                Popped::Item(submission) => take(submission),
                Popped::Empty => return true,
                Popped::Pending => return false,
            }
        }
        true
    }
}
