//! Classes: receives that ask the same kind of question share one hash table.

use super::table::Key;
use super::{ANY_SOURCE, SourceIndex, WHO};

/// How many classes have a table at the same time, on each side.
pub(super) const CLASS_COUNT_MAX: usize = 16;

/// Instead of a slot: no slot serves the class.
pub(super) const NO_SLOT: usize = usize::MAX;

/// How many remembered answers `Slots` keeps; a power of two.
const HINT_COUNT: usize = 64;

/// What kind of question a receive asks: which bits of the tag it ignores, and whether it names
/// its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// The bits of the tag that count, `!ignore`.
    significant: u64,
    /// 0 where the source counts, all ones where it does not, and [`WHO`] where its group alone
    /// does, so that `source | source_mask` is the source to compare without a branch.
    source_mask: u32,
}

impl Class {
    /// Equal to no class of a receive, because its source mask is none of those three.
    const UNUSED: Class = Class { significant: 0, source_mask: 1 };

    /// The class of a receive from `source` (or `ANY_SOURCE`) that ignores the bits `ignore`.
    #[inline(always)]
    pub(super) fn of(source: SourceIndex, ignore: u64) -> Class {
        let source_mask = if source == ANY_SOURCE {
            u32::MAX
        } else if source & WHO == WHO {
            group_mask()
        } else {
            0
        };
        Class { significant: !ignore, source_mask }
    }

    /// What a message from `source` with `tag` looks like to this class.
    #[inline(always)]
    pub(super) fn key(self, source: SourceIndex, tag: u64) -> Key {
        Key { tag: tag & self.significant, source: source | self.source_mask }
    }

    /// Whether its receives are each from one source alone.
    pub(super) fn names_source(self) -> bool {
        self.source_mask == 0
    }

    fn hint_index(self) -> usize {
        // Masks differ in few bits anywhere in the word; the top bits of a product see them all.
        let mixed = self.significant.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        (mixed as usize ^ self.source_mask as usize) % HINT_COUNT
    }
}

/// Few ask for a group: those who do not need not compute it.
#[cold]
fn group_mask() -> u32 {
    WHO
}

/// A class and what is kept for it, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot<T> {
    pub(super) class: Class,
    pub(super) content: T,
}

/// The slots, and which of them serves which class.
///
/// Most receives are of the class of the one before. A scan of the slots would mispredict whenever
/// an application mixes masks, so other answers are remembered in a small direct-mapped table.
/// Both are guesses that are verified.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: [Slot<T>; CLASS_COUNT_MAX],
    /// The slot that `find` answered last.
    recent: usize,
    hints: [u8; HINT_COUNT],
}

impl<T> Slots<T> {
    pub(super) fn new(content: impl Fn() -> T) -> Self {
        let slots = std::array::from_fn(|_| Slot { class: Class::UNUSED, content: content() });
        Slots { slots, recent: 0, hints: [0; HINT_COUNT] }
    }

    #[inline(always)]
    pub(super) fn get(&self, slot: usize) -> &Slot<T> {
        &self.slots[slot % CLASS_COUNT_MAX]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Slot<T> {
        &mut self.slots[slot % CLASS_COUNT_MAX]
    }

    /// The slot that serves `class`, or `NO_SLOT`.
    #[inline(always)]
    pub(super) fn find(&mut self, class: Class) -> usize {
        let recent = self.recent % CLASS_COUNT_MAX;
        if self.get(recent).class == class { recent } else { self.find_other(class) }
    }

    #[inline(never)]
    fn find_other(&mut self, class: Class) -> usize {
        let guess = self.hints[class.hint_index()] as usize;
        if self.get(guess).class == class {
            self.recent = guess;
            return guess;
        }
        match self.slots.iter().position(|slot| slot.class == class) {
            Some(slot) => {
                self.remember(slot, class);
                slot
            }
            None => NO_SLOT,
        }
    }

    fn remember(&mut self, slot: usize, class: Class) {
        self.recent = slot;
        self.hints[class.hint_index()] = slot as u8;
    }

    /// Some slot that serves no class.
    pub(super) fn unused(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.class == Class::UNUSED)
    }

    /// Lets `slot` serve `class` from now on.
    pub(super) fn assign(&mut self, slot: usize, class: Class) -> &mut T {
        self.remember(slot, class);
        self.slots[slot].class = class;
        &mut self.slots[slot].content
    }

    /// Lets `slot` serve no class.
    pub(super) fn retire(&mut self, slot: usize) {
        self.slots[slot].class = Class::UNUSED;
    }
}
