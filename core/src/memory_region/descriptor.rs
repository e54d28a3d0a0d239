//! Descriptors: what an operation says of its own buffer, so that an adapter may use the registration that
//! there is. Reference: fi_mr(3), `fi_mr_desc`.

use std::num::NonZeroU64;

use super::MemoryRegion;

/// The region that a buffer lies in. It is the region's key, so that one of a closed region, or of none,
/// leads nowhere; and it takes one register through the data path, with or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(NonZeroU64);

impl Descriptor {
    /// Of the region with this key; no region has [`super::KEY_NOTAVAIL`].
    #[inline(always)]
    pub fn of(key: u64) -> Option<Descriptor> {
        Descriptor::from_word(key.wrapping_add(1))
    }

    /// As one word, which is never 0.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        self.0.get()
    }

    /// The inverse of [`Self::to_word`]; of 0 none.
    #[inline(always)]
    pub fn from_word(word: u64) -> Option<Descriptor> {
        NonZeroU64::new(word).map(Descriptor)
    }

    /// The key of the region.
    #[inline(always)]
    pub fn key(self) -> u64 {
        self.0.get().wrapping_sub(1)
    }
}

impl MemoryRegion {
    /// What operations of ours whose buffers lie in the region say.
    pub fn descriptor(&self) -> Option<Descriptor> {
        Descriptor::of(self.key)
    }
}
