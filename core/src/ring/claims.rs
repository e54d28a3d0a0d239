//! Claims: who copies which block of a message that two processes copy together.
//!
//! The receiver of a long message reads its blocks from the first on, in the sender's memory; the
//! sender, where it comes round to it, writes blocks from the last on, into the receiver's. One
//! word says how far both have come. A side claims a block before it copies it, by exchanging the
//! word, so no block is copied twice and none is forgotten, however long either side is away.
//!
//! Invariants:
//! 1. The word holds a generation, `front` and `back`, with `front <= back`. Blocks below `front`
//!    are the receiver's, blocks from `back` on the sender's, those between nobody's yet.
//! 2. Only the receiver raises `front` and opens a generation; only the sender lowers `back`.
//! 3. After a block the sender adds one to `written`, and then to `there`, unless the block could not be
//!    written: after that `there` stays as it is. Both with release order. A receiver that needs its memory
//!    back closes the offer and waits until `written` covers what the sender claimed. Where nothing is left
//!    to claim, a receiver has everything once `there` covers that, and may open another offer in the place:
//!    the sender stores nothing more for this one.
//! 4. A sender that gives messages up counts them as withdrawn, before its buffers change. A
//!    receiver looks at that after it has read a message, and believes it if there are no more
//!    than it was told of by packets.
//! 5. Both sides keep what they know privately, and believe of the other's half only what fits.
//!
//! `core/tests/loom_claims.rs` has the model.

use crate::primitive::{AtomicU64, Ordering, fence};

/// Offers that can be open on one lane at a time.
pub const CLAIMS: usize = 4;
/// Blocks that an offer has at most.
pub const BLOCKS_MAX: u32 = (1 << FIELD_BITS) - 1;

const FIELD_BITS: u32 = 24;

/// Where the two ends of a lane claim blocks: memory that both write, all zero at first.
#[repr(C)]
#[derive(Default)]
pub struct Claims {
    claims: [Claim; CLAIMS],
    withdrawn: Withdrawn,
}

/// The sender's: how many messages it has given up, whose buffers are the application's again.
#[repr(C, align(64))]
#[derive(Default)]
struct Withdrawn(AtomicU64);

/// The sender has given up all of its messages.
const ALL: u64 = u64::MAX;

impl Claims {
    /// The sender gives all its messages up: what is read of them from now on means nothing.
    pub fn withdraw(&self) {
        self.withdraw_in_all(ALL);
    }

    /// The sender gives messages up, which are `count` with those before: what is read of them
    /// from now on means nothing. Packets say which they are.
    pub fn withdraw_in_all(&self, count: u64) {
        // F1: pairs with F2 in `is_withdrawn_beyond`. What reads a byte that was written after
        // this fence also sees the word.
        self.withdrawn.0.store(count, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the sender has given up all.
    pub fn is_all_withdrawn(&self) -> bool {
        self.withdrawn.0.load(Ordering::Relaxed) == ALL
    }

    /// Whether the sender had given up other messages than the `count` that are known when
    /// something was read that was read before this call.
    pub fn is_withdrawn_beyond(&self, count: u64) -> bool {
        // F2: pairs with F1 in `withdraw_in_all`.
        fence(Ordering::SeqCst);
        self.seems_withdrawn_beyond(count)
    }

    /// The same at any moment, which is worth a look before something is read.
    pub fn seems_withdrawn_beyond(&self, count: u64) -> bool {
        self.withdrawn.0.load(Ordering::Relaxed) != count
    }
}

#[repr(C, align(64))]
#[derive(Default)]
struct Claim {
    taken: AtomicU64,
    written: AtomicU64,
    there: AtomicU64,
}

#[derive(Clone, Copy)]
struct Taken {
    generation: u16,
    front: u32,
    back: u32,
}

impl Taken {
    fn from_word(word: u64) -> Taken {
        let field = |shift| (word >> shift) as u32 & BLOCKS_MAX;
        Taken { generation: (word >> 48) as u16, front: field(FIELD_BITS), back: field(0) }
    }

    fn to_word(self) -> u64 {
        let Taken { generation, front, back } = self;
        u64::from(generation) << 48 | u64::from(front) << FIELD_BITS | u64::from(back)
    }
}

/// The sender's half of a claim says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction;

/// The receiver's end of an open offer.
#[derive(Debug)]
pub struct Offer {
    slot: usize,
    generation: u16,
    blocks: u32,
    front: u32,
    back: u32,
}

impl Offer {
    /// Opens an offer of `blocks` blocks in `slot`, where none is open. `generation` differs from
    /// those of the slot's last offers.
    pub fn open(claims: &Claims, slot: usize, generation: u16, blocks: u32) -> Offer {
        assert!(blocks <= BLOCKS_MAX);
        let claim = &claims.claims[slot];
        let taken = Taken { generation, front: 0, back: blocks };
        claim.written.store(u64::from(generation) << 48, Ordering::Relaxed);
        claim.there.store(u64::from(generation) << 48, Ordering::Relaxed);
        // R1: pairs with A1 in `Help::take`; the offer is told of in a packet besides.
        claim.taken.store(taken.to_word(), Ordering::Release);
        Offer { slot, generation, blocks, front: 0, back: blocks }
    }

    /// Which of the lane's claims it is.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Tells it from the slot's earlier offers.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Blocks in all.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The first block that the sender had claimed at the last look.
    pub fn back(&self) -> u32 {
        self.back
    }

    /// Claims the next block for the receiver, if there is one left.
    pub fn take(&mut self, claims: &Claims) -> Result<Option<u32>, Contradiction> {
        let mine = self.front;
        let taken = self.advance(claims, |taken| (taken.front + 1).min(taken.back))?;
        self.front = taken.front;
        Ok((self.front > mine).then_some(mine))
    }

    /// Leaves nothing to claim: the sender's blocks from now on are those from `back` on.
    pub fn close(&mut self, claims: &Claims) -> Result<(), Contradiction> {
        let taken = self.advance(claims, |taken| taken.back)?;
        self.front = taken.front;
        Ok(())
    }

    /// Moves the front to where `front_of` says, and notes the back.
    fn advance(
        &mut self,
        claims: &Claims,
        front_of: impl Fn(Taken) -> u32,
    ) -> Result<Taken, Contradiction> {
        let claim = &claims.claims[self.slot];
        loop {
            let word = claim.taken.load(Ordering::Relaxed);
            let seen = Taken::from_word(word);
            let sound = seen.generation == self.generation
                && seen.front == self.front
                && (seen.front..=self.back).contains(&seen.back);
            if !sound {
                return Err(Contradiction);
            }
            self.back = seen.back;
            let next = Taken { front: front_of(seen), ..seen };
            if next.front == seen.front {
                return Ok(seen);
            }
            // Invariant 2 makes a failure the sender's progress. Nothing but the numbers is
            // passed on: blocks are read by the kernel, from memory that nobody writes meanwhile.
            let changed = claim.taken.compare_exchange(
                word,
                next.to_word(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if changed.is_ok() {
                return Ok(next);
            }
        }
    }

    /// Whether the sender writes no more of what it claimed. Of a closed offer this is final.
    pub fn is_quiet(&self, claims: &Claims) -> bool {
        // A2: pairs with R2 in `Help::wrote`.
        claims.claims[self.slot].written.load(Ordering::Acquire) == self.claimed()
    }

    /// Whether all that the sender claimed is there. Where nothing is left to claim this is final.
    pub fn is_there(&self, claims: &Claims) -> bool {
        // A3: pairs with R3 in `Help::wrote`.
        claims.claims[self.slot].there.load(Ordering::Acquire) == self.claimed()
    }

    /// What the sender counts when it has done with each block that it claimed.
    fn claimed(&self) -> u64 {
        u64::from(self.generation) << 48 | u64::from(self.blocks - self.back)
    }
}

/// The sender's end of an offer.
#[derive(Debug)]
pub struct Help {
    slot: usize,
    generation: u16,
    blocks: u32,
    back: u32,
}

impl Help {
    /// For an offer of `blocks` blocks that the receiver told of; none if there can be no such.
    pub fn new(slot: usize, generation: u16, blocks: u32) -> Option<Help> {
        let sound = slot < CLAIMS && (1..=BLOCKS_MAX).contains(&blocks);
        sound.then_some(Help { slot, generation, blocks, back: blocks })
    }

    /// Claims the last block that is left for the sender. None once nothing is left, or the offer
    /// is over, or contradicts itself.
    pub fn take(&mut self, claims: &Claims) -> Option<u32> {
        let claim = &claims.claims[self.slot];
        loop {
            // A1: pairs with R1 in `Offer::open`.
            let word = claim.taken.load(Ordering::Acquire);
            let seen = Taken::from_word(word);
            if !self.finds_block(seen) {
                return None;
            }
            let next = Taken { back: seen.back - 1, ..seen };
            let changed = claim.taken.compare_exchange(
                word,
                next.to_word(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if changed.is_ok() {
                self.back = next.back;
                return Some(next.back);
            }
        }
    }

    /// Notes that the block claimed last is written; or, if it `is_there` not, never will be, nor any
    /// other.
    pub fn wrote(&self, claims: &Claims, is_there: bool) {
        let claim = &claims.claims[self.slot];
        let written = u64::from(self.generation) << 48 | u64::from(self.blocks - self.back);
        // R2: pairs with A2 in `Offer::is_quiet`.
        claim.written.store(written, Ordering::Release);
        if is_there {
            // R3: pairs with A3 in `Offer::is_there`.
            claim.there.store(written, Ordering::Release);
        }
    }

    /// Whether [`Self::take`] seems to find nothing more.
    pub fn is_over(&self, claims: &Claims) -> bool {
        let seen = Taken::from_word(claims.claims[self.slot].taken.load(Ordering::Relaxed));
        !self.finds_block(seen)
    }

    fn finds_block(&self, seen: Taken) -> bool {
        seen.generation == self.generation && seen.back == self.back && seen.front < seen.back
    }

    /// Whether the sender has claimed any block.
    pub fn has_any(&self) -> bool {
        self.back < self.blocks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_ends_meet_and_each_block_has_one_taker() {
        let claims = Claims::default();
        let mut offer = Offer::open(&claims, 1, 7, 5);
        let mut help = Help::new(1, 7, 5).unwrap();
        assert_eq!(offer.take(&claims), Ok(Some(0)));
        assert_eq!(help.take(&claims), Some(4));
        assert!({ offer.take(&claims).unwrap() } == Some(1) && !offer.is_quiet(&claims));
        help.wrote(&claims, true);
        assert!(!help.is_over(&claims));
        assert_eq!((help.take(&claims), help.take(&claims)), (Some(3), Some(2)));
        assert!(help.is_over(&claims));
        assert_eq!((help.take(&claims), offer.take(&claims)), (None, Ok(None)));
        assert!(offer.back() == 2 && !offer.is_quiet(&claims) && !offer.is_there(&claims));
        help.wrote(&claims, true);
        assert!(offer.is_quiet(&claims) && offer.is_there(&claims));
    }

    #[test]
    fn a_block_that_could_not_be_written_is_not_there() {
        let claims = Claims::default();
        let mut offer = Offer::open(&claims, 1, 7, 2);
        let mut help = Help::new(1, 7, 2).unwrap();
        for (block, is_there) in [(1, true), (0, false)] {
            assert_eq!(help.take(&claims), Some(block));
            help.wrote(&claims, is_there);
            offer.close(&claims).unwrap();
            assert_eq!((offer.is_quiet(&claims), offer.is_there(&claims)), (true, is_there));
            (offer, help) = (Offer::open(&claims, 1, 8, 2), Help::new(1, 8, 2).unwrap());
            assert_eq!(help.take(&claims), Some(1));
            help.wrote(&claims, true);
        }
    }

    #[test]
    fn a_closed_offer_leaves_nothing_and_an_old_one_finds_nothing() {
        let claims = Claims::default();
        let mut offer = Offer::open(&claims, 0, 1, 3);
        let (mut help, mut late) = (Help::new(0, 1, 3).unwrap(), Help::new(0, 1, 3).unwrap());
        assert_eq!(help.take(&claims), Some(2));
        offer.close(&claims).unwrap();
        assert_eq!((offer.back(), offer.take(&claims), help.take(&claims)), (2, Ok(None), None));
        let next = Offer::open(&claims, 0, 2, 3);
        assert!(late.take(&claims).is_none() && !late.has_any() && next.is_quiet(&claims));
    }

    #[test]
    fn what_a_sender_cannot_have_written_is_not_believed() {
        let words = |generation, front, back| Taken { generation, front, back }.to_word();
        let impossible =
            [words(8, 0, 5), words(7, 1, 5), words(7, 0, 6), words(7, 2, 1), u64::MAX, 0];
        for word in impossible {
            let claims = Claims::default();
            let mut offer = Offer::open(&claims, 0, 7, 5);
            claims.claims[0].taken.store(word, Ordering::Relaxed);
            assert_eq!(offer.take(&claims), Err(Contradiction), "{word:#x}");
            assert_eq!(offer.close(&claims), Err(Contradiction), "{word:#x}");
        }
    }

    #[test]
    fn what_a_receiver_cannot_have_written_is_not_followed() {
        assert!(Help::new(CLAIMS, 1, 1).is_none() && Help::new(0, 1, 0).is_none());
        let words = |generation, front, back| Taken { generation, front, back }.to_word();
        for word in [words(6, 0, 5), words(7, 0, 6), words(7, 5, 5), words(7, 6, 5), u64::MAX, 0] {
            let claims = Claims::default();
            let mut help = Help::new(0, 7, 5).unwrap();
            claims.claims[0].taken.store(word, Ordering::Relaxed);
            assert_eq!(help.take(&claims), None, "{word:#x}");
        }
    }
}
