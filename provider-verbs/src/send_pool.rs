//! Send buffers of an endpoint: a bounded pool of registered bounce buffers for all peers.
//!
//! A buffer is the device's from its posting to its completion. Few sends ask for a completion,
//! since a completion stands for all sends before it on its queue pair: one of 16, or every one
//! while few are left, so that buffers which wait for a signal cannot use the pool up.
//!
//! A peer that takes no packets gives no buffers back, so of many queue pairs each has a [`Share`].
//!
//! What is posted inline is copied by the posting. Until then it lies in an inline place: requests
//! are held back, to be posted as one chain.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::memory::Piece;

use crate::{
    receive_pool::{BUFFER_BYTES, WINDOW_MAX},
    verbs::{Region, Verbs, VerbsError},
};

/// How many buffers a pool has, and who gets them.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    count: usize,
    /// Each queue pair leaves as many as it has.
    divided: bool,
    /// With fewer left each send has to be signalled.
    scarce: usize,
}

impl Buffers {
    /// Of an endpoint that many queue pairs share: half of them are as many as one has under way. Of
    /// several who take what they may, the parts make up half of all at least.
    pub const SHARED: Buffers = Buffers { count: 128, divided: true, scarce: 64 };
    /// Of an endpoint with one peer: as many as that one's window has at most.
    pub const CONNECTION: Buffers =
        Buffers { count: WINDOW_MAX as usize, divided: false, scarce: 8 };
    /// Of an endpoint of datagrams, which has one queue pair.
    pub const DATAGRAMS: Buffers = Buffers { count: 64, divided: false, scarce: 32 };
}

/// How long a queue pair waits for a buffer before it does without.
const STARVED_AFTER: Duration = Duration::from_millis(100);
/// The longest request that is posted inline. Units: bytes.
pub const INLINE_BYTES_MAX: usize = 256;
/// Requests that may be held back and go inline.
const INLINE_PLACES: usize = BUFFER_BYTES / INLINE_BYTES_MAX;

/// A send buffer's number: an inline place, or behind those a buffer.
pub type SlotIndex = u32;

/// What a queue pair has of the pool. Of one that is divided one more buffer is its own only while it has no
/// more than are left: so half of all is the most that one gets, and the next gets half of the rest.
#[derive(Default)]
pub struct Share {
    /// Buffers that were taken for it, and that came back.
    taken: u32,
    returned: u32,
}

impl Share {
    #[inline(always)]
    pub fn note_taken(&mut self, slot: SlotIndex) {
        self.taken = self.taken.wrapping_add(u32::from(!is_inline(slot)));
    }

    #[inline(always)]
    pub fn note_returned(&mut self, slot: SlotIndex) {
        self.returned = self.returned.wrapping_add(u32::from(!is_inline(slot)));
    }

    /// Whether it may take one more.
    #[inline(always)]
    pub fn admits<V: Verbs>(&self, pool: &SendPool<V>) -> bool {
        let has = self.taken.wrapping_sub(self.returned) as usize;
        pool.has_free() && (has <= pool.free_count() || !pool.buffers.divided)
    }
}

/// When a queue pair first got no buffer, and how many it had taken by then.
#[derive(Default)]
pub struct Hunger(Option<(Instant, u32)>);

impl Hunger {
    /// It gets none. Whether that has been so for long: others may keep theirs for ever.
    #[cold]
    #[inline(never)]
    pub fn is_long(&mut self, share: &Share) -> bool {
        let now = Instant::now();
        let since = self.0.filter(|(_, taken)| *taken == share.taken).map(|(since, _)| since);
        self.0 = Some((since.unwrap_or(now), share.taken));
        since.is_some_and(|since| now.duration_since(since) >= STARVED_AFTER)
    }
}

/// Whether that is an inline place.
#[inline(always)]
fn is_inline(slot: SlotIndex) -> bool {
    slot < INLINE_PLACES as SlotIndex
}

/// The pool. One more buffer than can be out is cut into the inline places.
pub struct SendPool<V: Verbs> {
    region: V::Region,
    free: Vec<SlotIndex>,
    buffers: Buffers,
    /// Inline places that requests lie in which are held back: those below.
    inline_taken: SlotIndex,
    /// Requests under way on all queue pairs, and how many may be: each may come back as an
    /// error of its own, and the completion queue must have room for all of them.
    under_way: u32,
    under_way_max: u32,
}

impl<V: Verbs> SendPool<V> {
    pub fn new(device: &Arc<V>, buffers: Buffers, under_way_max: u32) -> Result<Self, VerbsError> {
        let region = device.allocate((buffers.count + 1) * BUFFER_BYTES, false)?;
        let first = INLINE_PLACES as SlotIndex;
        let free = (first..first + buffers.count as SlotIndex).collect();
        let (inline_taken, under_way) = (Self::INLINE + 1, 0);
        Ok(SendPool { region, free, buffers, inline_taken, under_way, under_way_max })
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

    /// The inline place of requests that are posted at once, and of those without bytes of ours.
    pub const INLINE: SlotIndex = 0;

    /// Whether that is an inline place.
    #[inline(always)]
    pub fn is_inline(slot: SlotIndex) -> bool {
        is_inline(slot)
    }

    /// Takes an inline place for a request that is held back, if one is left.
    #[inline(always)]
    pub fn take_inline(&mut self) -> Option<SlotIndex> {
        let place = self.inline_taken;
        let is_there = Self::is_inline(place);
        self.inline_taken += SlotIndex::from(is_there);
        is_there.then_some(place)
    }

    /// Nothing is held back any more: all inline places can be taken again.
    #[inline(always)]
    pub fn free_inline(&mut self) {
        self.inline_taken = Self::INLINE + 1;
    }

    /// Takes a buffer.
    #[inline(always)]
    pub fn take(&mut self) -> Option<SlotIndex> {
        self.free.pop()
    }

    /// Takes a buffer for what is posted at once. If it goes inline it needs none of its own.
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
        self.free.len() < self.buffers.scarce || self.under_way > self.under_way_max / 2
    }

    /// Gives a buffer back.
    #[inline(always)]
    pub fn give_back(&mut self, slot: SlotIndex) {
        if !Self::is_inline(slot) {
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
        let slot = slot as usize;
        let is_buffer = slot >= INLINE_PLACES;
        let inline = slot * INLINE_BYTES_MAX;
        (&self.region, if is_buffer { (slot - INLINE_PLACES + 1) * BUFFER_BYTES } else { inline })
    }

    /// The key of all.
    #[inline(always)]
    pub fn local_key(&self) -> u32 {
        self.region.local_key()
    }
}
