//! Send buffers of an endpoint: a bounded pool of registered bounce buffers for all peers.
//!
//! A buffer is the device's from its posting to its completion. Few sends ask for a completion,
//! since a completion stands for all sends before it on its queue pair: one of 16, or every one
//! while half of the pool is out, so that buffers which wait for a signal cannot use it up.

use std::sync::Arc;

use crate::{
    receive_pool::BUFFER_BYTES,
    verbs::{Region, Verbs, VerbsError},
};

/// Buffers of an endpoint.
const BUFFERS: usize = 64;

/// A send buffer's number.
pub type SlotIndex = u32;

/// The pool. One more buffer than can be out is for messages that are posted inline, which need
/// theirs no longer than the posting takes.
pub struct SendPool<V: Verbs> {
    region: V::Region,
    free: Vec<SlotIndex>,
}

impl<V: Verbs> SendPool<V> {
    pub fn new(device: &Arc<V>) -> Result<Self, VerbsError> {
        let region = device.allocate((BUFFERS + 1) * BUFFER_BYTES, false)?;
        Ok(SendPool { region, free: (1..=BUFFERS as SlotIndex).collect() })
    }

    /// The buffer for inline messages.
    pub const INLINE: SlotIndex = 0;

    /// Takes a buffer.
    #[inline(always)]
    pub fn take(&mut self) -> Option<SlotIndex> {
        self.free.pop()
    }

    /// Whether there is a buffer to take.
    #[inline(always)]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether so many are out that each send has to be signalled.
    #[inline(always)]
    pub fn is_scarce(&self) -> bool {
        self.free.len() < BUFFERS / 2
    }

    /// Gives a buffer back.
    #[inline(always)]
    pub fn give_back(&mut self, slot: SlotIndex) {
        if slot != Self::INLINE {
            debug_assert!(!self.free.contains(&slot), "a buffer is given back once");
            self.free.push(slot);
        }
    }

    /// How many are out.
    pub fn out(&self) -> usize {
        BUFFERS - self.free.len()
    }

    /// The memory of all, and where a buffer starts in it.
    #[inline(always)]
    pub fn buffer(&self, slot: SlotIndex) -> (&V::Region, usize) {
        (&self.region, slot as usize * BUFFER_BYTES)
    }

    /// The key of all.
    #[inline(always)]
    pub fn local_key(&self) -> u32 {
        self.region.local_key()
    }
}
