//! Send buffers of an endpoint: a bounded pool of registered bounce buffers for all peers.
//!
//! A buffer is the device's from its posting to its completion. Few sends ask for a completion,
//! since a completion stands for all sends before it on its queue pair: one of 16, or every one
//! while half of the pool is out, so that buffers which wait for a signal cannot use it up.

use std::sync::Arc;

use kestrel_core::memory::Piece;

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
    /// Requests under way on all queue pairs, and how many may be: each may come back as an
    /// error of its own, and the completion queue must have room for all of them.
    under_way: u32,
    under_way_max: u32,
}

impl<V: Verbs> SendPool<V> {
    pub fn new(device: &Arc<V>, under_way_max: u32) -> Result<Self, VerbsError> {
        let region = device.allocate((BUFFERS + 1) * BUFFER_BYTES, false)?;
        let free = (1..=BUFFERS as SlotIndex).collect();
        Ok(SendPool { region, free, under_way: 0, under_way_max })
    }

    /// Whether one more request may be under way.
    #[inline(always)]
    pub fn has_place(&self) -> bool {
        self.under_way < self.under_way_max
    }

    /// How many more requests may be under way.
    pub fn places(&self) -> usize {
        (self.under_way_max - self.under_way) as usize
    }

    /// A request with this buffer was posted.
    #[inline(always)]
    pub fn note_posted(&mut self) {
        self.under_way += 1;
    }

    /// A request is over: its buffer comes back.
    #[inline(always)]
    pub fn note_over(&mut self, slot: SlotIndex) {
        self.under_way -= 1;
        self.give_back(slot);
    }

    /// The buffer for inline messages.
    pub const INLINE: SlotIndex = 0;

    /// Takes a buffer.
    #[inline(always)]
    pub fn take(&mut self) -> Option<SlotIndex> {
        self.free.pop()
    }

    /// Takes a buffer for a packet. One that goes inline needs none of its own.
    #[inline(always)]
    pub fn take_for(&mut self, inline: bool) -> Option<SlotIndex> {
        if inline { Some(Self::INLINE) } else { self.take() }
    }

    /// Writes a packet into a buffer: a head, words, the payload. Together they fit.
    #[inline(always)]
    pub fn write(&self, slot: SlotIndex, head: &[u64], words: &[u64], payload: Piece) {
        let (region, start) = self.buffer(slot);
        let memory = region.memory();
        for (nth, word) in head.iter().chain(words).enumerate() {
            memory.set_word(start + nth * 8, *word);
        }
        memory.copy_in(start + size_of_val(head) + size_of_val(words), payload);
    }

    /// Whether there is a buffer to take.
    #[inline(always)]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many buffers are free.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Whether so much is out that each send has to be signalled.
    #[inline(always)]
    pub fn is_scarce(&self) -> bool {
        self.free.len() < BUFFERS / 2 || self.under_way > self.under_way_max / 2
    }

    /// Gives a buffer back.
    #[inline(always)]
    pub fn give_back(&mut self, slot: SlotIndex) {
        if slot != Self::INLINE {
            debug_assert!(!self.free.contains(&slot), "a buffer is given back once");
            self.free.push(slot);
        }
    }

    /// Requests under way.
    pub fn under_way(&self) -> u32 {
        self.under_way
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
