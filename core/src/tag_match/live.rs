//! Which tables have to be looked at.

use super::bits::Bits;
use super::class::{CLASS_COUNT_MAX, NO_SLOT};

/// Instead of the slot of a class: the list of those that found none.
pub(super) const OVERFLOW_SLOT: usize = CLASS_COUNT_MAX;

/// One bit per slot whose table may hold receives, and one for the overflow list if it does.
///
/// A table's bit outlives its last receive until a message meets several bits: clearing it in
/// every match would make each match wait for the one before, through this word.
#[derive(Debug)]
pub(super) struct Live {
    bits: u32,
    /// The slot of the only bit, if there is one and it is that of a table; else `NO_SLOT`. Most often
    /// there is, and neither a post nor a message then looks at bits.
    sole: usize,
}

impl Live {
    pub(super) const NONE: Live = Live { bits: 0, sole: NO_SLOT };

    /// The slot of the only table that there is to look at, or `NO_SLOT`: none, or several.
    #[inline(always)]
    pub(super) fn sole(&self) -> usize {
        self.sole
    }

    /// All slots to look at.
    #[inline]
    pub(super) fn slots(&self) -> Bits {
        Bits(self.bits)
    }

    /// Receives are in there.
    #[inline(always)]
    pub(super) fn mark(&mut self, slot: usize) {
        if self.sole != slot {
            self.mark_another(slot);
        }
    }

    #[inline(never)]
    fn mark_another(&mut self, slot: usize) {
        if self.bits & 1 << slot == 0 {
            self.bits |= 1 << slot;
            self.settle();
        }
    }

    /// In none of these slots are receives.
    pub(super) fn clear(&mut self, slots: u32) {
        self.bits &= !slots;
        self.settle();
    }

    fn settle(&mut self) {
        let slot = self.bits.trailing_zeros() as usize;
        let is_sole = self.bits.is_power_of_two() && slot < CLASS_COUNT_MAX;
        self.sole = if is_sole { slot } else { NO_SLOT };
    }
}
