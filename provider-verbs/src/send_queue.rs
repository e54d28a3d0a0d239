//! A queue pair's send side: what is under way on it, and which buffers that holds.
//!
//! Requests are numbered, and complete in order: a completion with number `n` stands for all up
//! to `n`. They may be held back, and are then posted as one chain: for the device several are as
//! many doorbells, or system calls, as one.

use std::collections::VecDeque;

use crate::{
    send_pool::{INLINE_BYTES_MAX, SendPool, Share, SlotIndex},
    verbs::{QueuePair, Region, RemoteMemory, Segment, SendRequest, Verb, Verbs, VerbsError},
};

/// One request of so many asks for a completion, or of half as many as can be under way.
const SIGNAL_EVERY: u32 = 16;
/// Requests that are held back at most.
const HELD_MAX: usize = 16;

pub struct SendQueue<V: Verbs> {
    pair: V::QueuePair,
    depth: usize,
    signal_every: u32,
    inline_bytes_max: usize,
    /// The buffers of what is under way or held back, oldest first.
    under_way: VecDeque<SlotIndex>,
    /// How many buffers that is.
    share: Share,
    /// What is held back, oldest first.
    held: Vec<SendRequest>,
    /// The number of the last request.
    posted: u32,
    /// Requests since the last that asks for a completion.
    unsignalled: u32,
}

impl<V: Verbs> SendQueue<V> {
    /// The send side of a queue pair that takes `depth` requests.
    pub fn new(pair: V::QueuePair, depth: u32) -> Self {
        let under_way = VecDeque::with_capacity(depth as usize);
        let (depth, inline_bytes_max) =
            (depth as usize, pair.inline_bytes_max().min(INLINE_BYTES_MAX));
        let (signal_every, held) = (SIGNAL_EVERY.min(depth as u32 / 2).max(1), Vec::new());
        let (posted, unsignalled, share) = (0, 0, Share::default());
        SendQueue {
            pair,
            depth,
            signal_every,
            inline_bytes_max,
            under_way,
            share,
            held,
            posted,
            unsignalled,
        }
    }

    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// The number of the last request that was posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// The number of the last request that is over, as all before it are.
    pub fn over(&self) -> u32 {
        self.posted.wrapping_sub(self.under_way.len() as u32)
    }

    /// Whether one more request can be posted.
    #[inline(always)]
    pub fn has_room(&self, pool: &SendPool<V>) -> bool {
        self.under_way.len() < self.depth && pool.has_place()
    }

    /// How many more requests can be posted.
    pub fn room(&self, pool: &SendPool<V>) -> usize {
        (self.depth - self.under_way.len()).min(pool.places())
    }

    /// Whether one more request may have a buffer, if it needs one.
    #[inline(always)]
    pub fn may_take(&self, pool: &SendPool<V>) -> bool {
        self.share.admits(pool)
    }

    /// What it has of the buffers.
    pub fn share(&self) -> &Share {
        &self.share
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The longest request that can be posted inline. Units: bytes.
    pub fn inline_bytes_max(&self) -> usize {
        self.inline_bytes_max
    }

    /// Whether so many bytes can be posted inline.
    #[inline(always)]
    pub fn takes_inline(&self, bytes: usize) -> bool {
        bytes <= self.inline_bytes_max
    }

    /// Posts the first `length` bytes of a buffer, as a SEND, a datagram or a write, behind all that
    /// is held back. There is room. A refusal has no side effect where nothing was held back.
    #[inline(always)]
    pub fn post(
        &mut self,
        pool: &mut SendPool<V>,
        slot: SlotIndex,
        length: usize,
        verb: Verb,
        signal: bool,
    ) -> Result<(), VerbsError> {
        let (alone, unsignalled) = (self.holds_nothing(), self.unsignalled);
        self.hold(pool, slot, length, verb, signal);
        let posted = self.post_held();
        if posted.is_err() && alone {
            self.under_way.pop_back();
            self.share.note_returned(slot);
            pool.note_over(slot);
            (self.posted, self.unsignalled) = (self.posted.wrapping_sub(1), unsignalled);
        }
        posted
    }

    /// Whether nothing is held back.
    #[inline(always)]
    pub fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether as much is held back as can be: [`Self::post_held`] comes before the next.
    #[inline(always)]
    pub fn is_held_full(&self) -> bool {
        self.held.len() == HELD_MAX
    }

    /// Posts what is held back. Of what the device refuses the buffers come back when the queue is
    /// destroyed.
    #[inline(always)]
    pub fn post_held(&mut self) -> Result<(), VerbsError> {
        // SAFETY: buffers are registered, and none is taken again before its request completed, or
        // before the queue pair is gone; inline places are copied by the call.
        let posted = unsafe { self.pair.post_sends(&self.held) };
        self.held.clear();
        posted
    }

    /// As [`Self::post`], but the request is held back, until [`Self::post_held`] or the next that
    /// is posted.
    #[inline(always)]
    pub fn hold(
        &mut self,
        pool: &mut SendPool<V>,
        slot: SlotIndex,
        length: usize,
        verb: Verb,
        signal: bool,
    ) {
        let (region, start) = pool.buffer(slot);
        let signalled = signal || self.unsignalled + 1 >= self.signal_every || pool.is_scarce();
        let number = self.posted.wrapping_add(1);
        let request = SendRequest {
            request: u64::from(number),
            segment: Segment {
                address: region.memory().address(start),
                length: length as u32,
                local_key: pool.local_key(),
            },
            inline: SendPool::<V>::is_inline(slot),
            signalled,
            fenced: false,
            verb,
        };
        self.held.push(request);
        self.posted = number;
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        self.under_way.push_back(slot);
        self.share.note_taken(slot);
        pool.note_posted();
    }

    /// Has everything that is under way complete visibly: a write of nothing, with a signal.
    pub fn flush(&mut self, pool: &mut SendPool<V>) -> bool {
        if self.unsignalled == 0 {
            return true;
        }
        self.write_nothing(pool)
    }

    /// Asks the peer's device for a sign of life, unless one is awaited: a write of nothing, with a
    /// signal. Whether it was posted.
    pub fn probe(&mut self, pool: &mut SendPool<V>) -> bool {
        let awaited = !self.is_idle() && self.unsignalled == 0;
        !awaited && self.write_nothing(pool)
    }

    fn write_nothing(&mut self, pool: &mut SendPool<V>) -> bool {
        let nowhere = RemoteMemory { address: 0, key: 0 };
        self.has_room(pool)
            && self.post(pool, SendPool::<V>::INLINE, 0, Verb::Write(nowhere), true).is_ok()
    }

    /// Request `number` is complete, and so are those before it.
    #[inline(always)]
    pub fn completed(&mut self, number: u32, pool: &mut SendPool<V>) {
        let left = self.posted.wrapping_sub(number) as usize;
        while self.under_way.len() > left {
            if let Some(slot) = self.under_way.pop_front() {
                self.share.note_returned(slot);
                pool.note_over(slot);
            }
        }
    }

    /// Puts the queue pair into the error state.
    pub fn fail(&self) {
        self.pair.fail();
    }

    /// The queue pair.
    pub fn pair(&self) -> &V::QueuePair {
        &self.pair
    }

    /// Gives the queue pair more receives, where it shares none.
    pub fn provide(&self, count: u32) -> Result<(), VerbsError> {
        self.pair.provide(count)
    }

    /// Makes a queue pair of datagrams that is in error and idle usable again.
    pub fn renew(&self) -> Result<(), VerbsError> {
        self.pair.renew()
    }

    /// Destroys the queue pair, after which the device uses no buffer of it.
    pub fn destroy(self, pool: &mut SendPool<V>) {
        drop(self.pair);
        self.under_way.into_iter().for_each(|slot| pool.note_over(slot));
    }
}
