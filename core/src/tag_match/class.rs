//! Classes: receives that ask the same kind of question share one hash table.

use super::table::Key;
use super::{ANY_SOURCE, SourceIndex};

/// How many classes have a table at the same time, on each side.
pub(super) const CLASS_COUNT_MAX: usize = 16;

/// How many remembered answers `ClassIndex` keeps; a power of two.
const HINT_COUNT: usize = 64;

/// What kind of question a receive asks: which bits of the tag it ignores, and whether it names
/// its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// The bits of the tag that count, `!ignore`.
    significant: u64,
    /// 0 where the source counts, all ones where it does not, so that `source | source_mask` is
    /// the source to compare without a branch.
    source_mask: u32,
}

impl Class {
    /// Equal to no class that a receive can have, because its source mask is neither 0 nor all ones.
    const UNUSED: Class = Class {
        significant: 0,
        source_mask: 1,
    };

    /// The class of a receive from `source` (or `ANY_SOURCE`) that ignores the bits `ignore`.
    #[inline]
    pub(super) fn of(source: SourceIndex, ignore: u64) -> Class {
        let source_mask = if source == ANY_SOURCE { u32::MAX } else { 0 };
        Class {
            significant: !ignore,
            source_mask,
        }
    }

    /// What a message, or a receive, from `source` with `tag` looks like to this class.
    #[inline]
    pub(super) fn key(self, source: SourceIndex, tag: u64) -> Key {
        Key {
            tag: tag & self.significant,
            source: source | self.source_mask,
        }
    }

    #[inline]
    fn hint_index(self) -> usize {
        // Masks differ in few bits anywhere in the word; the top bits of a product see them all.
        let mixed = self.significant.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        (mixed as usize ^ self.source_mask as usize) % HINT_COUNT
    }
}

/// Which slot serves which class.
///
/// A scan of the slots would mispredict whenever an application mixes masks, so the answer is
/// remembered in a small direct-mapped table; an entry there is a guess that `find` verifies.
#[derive(Debug)]
pub(super) struct ClassIndex {
    classes: [Class; CLASS_COUNT_MAX],
    hints: [u8; HINT_COUNT],
}

impl ClassIndex {
    pub(super) fn new() -> Self {
        ClassIndex {
            classes: [Class::UNUSED; CLASS_COUNT_MAX],
            hints: [0; HINT_COUNT],
        }
    }

    /// The class that `slot` serves.
    #[inline]
    pub(super) fn class(&self, slot: usize) -> Class {
        self.classes[slot % CLASS_COUNT_MAX]
    }

    /// The slot that serves `class`.
    #[inline]
    pub(super) fn find(&mut self, class: Class) -> Option<usize> {
        let slot = self.hints[class.hint_index()] as usize % CLASS_COUNT_MAX;
        if self.classes[slot] == class {
            Some(slot)
        } else {
            self.scan(class)
        }
    }

    #[cold]
    #[inline(never)]
    fn scan(&mut self, class: Class) -> Option<usize> {
        let slot = self
            .classes
            .iter()
            .position(|&candidate| candidate == class)?;
        self.hints[class.hint_index()] = slot as u8;
        Some(slot)
    }

    /// Some slot that serves no class.
    pub(super) fn unused(&self) -> Option<usize> {
        self.classes
            .iter()
            .position(|&candidate| candidate == Class::UNUSED)
    }

    /// Lets `slot` serve `class` from now on.
    pub(super) fn assign(&mut self, slot: usize, class: Class) {
        self.classes[slot] = class;
        self.hints[class.hint_index()] = slot as u8;
    }

    /// Lets `slot` serve no class.
    pub(super) fn retire(&mut self, slot: usize) {
        self.classes[slot] = Class::UNUSED;
    }
}
