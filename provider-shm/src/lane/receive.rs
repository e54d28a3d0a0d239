//! The receiving end of a lane, and what is checked of a packet that a peer wrote.

use std::{ptr::NonNull, sync::Arc};

use kestrel_core::{
    memory::Piece,
    ring::{
        claims::Claims,
        lane::{CONTINUATION_BYTES, INLINE_BYTES, INLINE_WORDS, LaneConsumer},
    },
    wire::Head,
};

use super::{
    CHUNK_WORD, ChunkPlace, FILLED_IN_SIGHT, LINES, LaneError, OwnChunks, Owner, PREFETCH_AHEAD,
    SPILL_MAX, SPILLED, SendLane, claims, filling,
    given::{GIVEN_BYTES, Giver, Kept},
    lies_in_chunk, parts,
};
use crate::{
    chunk::{Grant, offset_of},
    copy::Copier,
    doorbell::Doorbell,
    region::{LANE_CHUNK_BYTES, LaneMemory, PoolView},
    station::PeerIdentity,
};

#[cfg(test)]
thread_local! {
    /// How often this thread has looked for a packet.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Where a packet's payload lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the first line, behind the words.
    Inline,
    /// In continuation lines.
    Spilled,
    /// In a chunk.
    Chunk(ChunkPlace),
}

/// The receiving end.
pub struct ReceiveLane {
    consumer: LaneConsumer,
    pool: Arc<PoolView>,
    /// The packet that `next` measured: where its payload lies, the words in front
    /// of it, the lines that it takes.
    place: Place,
    words: usize,
    lines: u64,
    /// Of one in a chunk: whether its payload may be on its way there.
    in_sight: bool,
    /// Whether lines of the lane's own chunks go back written to.
    hands_back: bool,
    /// The chunks of this lane that are ours now.
    kept: Kept,
    /// The lane the other way, of which a chunk has come back here.
    giver: Option<Arc<Giver>>,
    /// Wakes the sender when this end closes.
    bell: Doorbell,
    /// Position at the last look whether the lane is quiet; none is that of one never looked at.
    pub looked_at: u64,
    /// Who sends.
    pub peer: PeerIdentity,
    memory: Arc<LaneMemory>,
}

impl ReceiveLane {
    /// The receiving end of a lane that a peer connected. `own` is what this side's lanes have: for the
    /// peer it may be something else.
    pub fn new(
        memory: LaneMemory,
        pool: PoolView,
        bell: Doorbell,
        peer: PeerIdentity,
        own: OwnChunks,
    ) -> ReceiveLane {
        let (lines, control) = parts(&memory);
        // SAFETY: the memory is kept as long as the consumer, and this side of a
        // new lane has no other consumer.
        let consumer = unsafe { LaneConsumer::new(lines, LINES, control) };
        ReceiveLane {
            consumer,
            pool: Arc::new(pool),
            place: Place::Inline,
            words: 0,
            lines: 0,
            in_sight: false,
            hands_back: own == OwnChunks::All,
            kept: Kept::default(),
            giver: None,
            bell,
            looked_at: u64::MAX,
            peer,
            memory: Arc::new(memory),
        }
    }

    /// The lane's memory, for those who have to do with it beyond the lane's end.
    pub(crate) fn memory(&self) -> &Arc<LaneMemory> {
        &self.memory
    }

    /// What the sender shows us, for those who look at it beyond the lane's end.
    pub(crate) fn pool(&self) -> &Arc<PoolView> {
        &self.pool
    }

    /// Where both ends claim what they copy together.
    pub fn claims(&self) -> &Claims {
        claims(&self.memory)
    }

    /// Where the next packet will be.
    pub fn position(&self) -> u64 {
        self.consumer.position()
    }

    /// The head of the next packet, if it is there.
    #[inline(always)]
    pub fn peek(&self) -> Option<Head> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        self.consumer.peek().map(Head::from_word)
    }

    /// Has the cache fetch a line that will be looked at soon.
    ///
    /// A line comes from the sender's core, which takes as long as handling a packet: a stream
    /// would run at the pace of one line after the other.
    #[inline(always)]
    pub fn prefetch(&self) {
        self.consumer.prefetch(PREFETCH_AHEAD);
    }

    /// How long the payload of the next packet is, whose head `peek` showed, and the payload if it
    /// has 8 bytes; none if the packet is not what most are: a short message alone.
    #[inline(always)]
    pub fn next_plain(&mut self, head: Head) -> Option<(usize, Option<u64>)> {
        let length = head.length as usize;
        if !head.is_plain() || length > INLINE_BYTES {
            return None;
        }
        (self.place, self.words, self.lines) = (Place::Inline, 0, 1);
        Some((length, (length == 8).then_some(self.consumer.word(1))))
    }

    /// How long the payload of the next packet is, whose head `peek` showed, if it is sound. It may
    /// lie in a chunk of the lane the other way, `other_way`.
    pub fn next(&mut self, head: Head, other_way: Option<&SendLane>) -> Result<usize, LaneError> {
        let (words, length) = (head.words(), head.length as usize);
        self.words = words;
        self.lines = 1;
        if head.flags & SPILLED != 0 {
            if length > SPILL_MAX || length == 0 {
                return Err(LaneError::SpillTooLong { length });
            }
            self.place = Place::Spilled;
            self.lines = 1 + length.div_ceil(CONTINUATION_BYTES) as u64;
            return Ok(length);
        }
        if lies_in_chunk(head) {
            self.in_sight = head.flags & FILLED_IN_SIGHT != 0;
            return self.next_in_chunk(other_way);
        }
        self.place = Place::Inline;
        if words * 8 + length > INLINE_BYTES {
            return Err(LaneError::InlineTooLong { words, length });
        }
        Ok(length)
    }

    fn next_in_chunk(&mut self, other_way: Option<&SendLane>) -> Result<usize, LaneError> {
        let place = ChunkPlace::from_word(self.consumer.word(1 + CHUNK_WORD));
        let (offset, length) = (place.offset(), place.length);
        let (pool, needed) = match place.owner {
            Owner::Pool => (self.pool.len(), length),
            Owner::Lane => (LANE_CHUNK_BYTES, length),
            Owner::Given => (LANE_CHUNK_BYTES, length.max(GIVEN_BYTES)),
            Owner::Returned => {
                let giver = other_way.map(SendLane::giver);
                let giver = giver.filter(|giver| giver.is_away(offset, length));
                let giver = giver.ok_or(LaneError::NotGiven { offset, length })?;
                if !self.giver.as_ref().is_some_and(|known| Arc::ptr_eq(known, giver)) {
                    self.giver = Some(Arc::clone(giver));
                }
                self.place = Place::Chunk(place);
                return Ok(length);
            }
        };
        if offset + needed > pool || length == 0 {
            return Err(LaneError::OutsidePool { offset, length, pool });
        }
        if place.owner == Owner::Given && !self.kept.has_room() {
            return Err(LaneError::TooManyGiven { offset });
        }
        if place.owner != Owner::Pool {
            self.memory.make_chunk_pages(offset + needed);
        }
        self.place = Place::Chunk(place);
        Ok(length)
    }

    /// A chunk that was given with a packet from here, for an answer of up to [`GIVEN_BYTES`].
    pub(super) fn take_kept(&self) -> Option<Grant> {
        let grain = self.kept.take()?;
        // SAFETY: `next` checked that the chunk is all within the lane's own.
        let start = unsafe { self.memory.chunks().add(offset_of(grain)) }.as_ptr();
        Some(Grant { start, grain })
    }

    /// Gives the pages of those chunks back: whatever comes there is an answer.
    pub fn give_pages_back(&self) {
        for start in self.kept.grains().map(offset_of) {
            self.memory.give_chunk_pages_back(start..start + GIVEN_BYTES);
        }
    }

    /// How much of the payload of the packet that `next` measured is in its place by now.
    #[inline(always)]
    pub fn placed(&self) -> usize {
        match self.place {
            Place::Chunk(ChunkPlace { length, .. }) if self.in_sight => {
                filling(&self.memory).filled(self.position(), length)
            }
            _ => usize::MAX,
        }
    }

    /// Whether a packet is there, and all of its payload.
    pub fn has_whole_packet(&self) -> bool {
        let is_whole = |head: Head| {
            let length = || ChunkPlace::from_word(self.consumer.word(1 + CHUNK_WORD)).length;
            head.flags & FILLED_IN_SIGHT == 0
                || filling(&self.memory).is_filled(self.position(), length())
        };
        self.peek().is_some_and(is_whole)
    }

    /// The tag word of the next packet. Fetched once: a hostile sender may change it.
    #[inline(always)]
    pub fn tag(&self) -> u64 {
        self.consumer.word(0)
    }

    /// Word `index` of the packet that `next` measured.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        self.consumer.word(1 + index)
    }

    /// Copies payload of the packet that `next` measured, from `offset` on.
    #[inline(always)]
    pub fn copy_out(&self, copier: &Copier, offset: usize, to: Piece) {
        match self.place {
            Place::Inline => self.copy_inline(offset, to),
            Place::Spilled => self.copy_spilled(offset, to),
            Place::Chunk(place) => {
                let length = to.len().min(place.length.saturating_sub(offset));
                let Some(chunks) = self.chunks_of(place.owner) else { return };
                // SAFETY: `next` checked the chunk against the mapping, which lives as
                // long as the lane or what it has of the other; the piece is writable until its operation
                // completes; `length` is within both. The sender's pool is not written to.
                unsafe {
                    let from = chunks.as_ptr().add(place.offset() + offset);
                    if place.owner == Owner::Pool || !self.hands_back {
                        copier.copy_out(to.as_ptr(), from, length);
                    } else {
                        copier.copy_out_and_back(to.as_ptr(), from, length);
                    }
                }
            }
        }
    }

    /// None: the chunk came back, and `next` did not say so.
    #[inline(always)]
    fn chunks_of(&self, owner: Owner) -> Option<NonNull<u8>> {
        match owner {
            Owner::Pool => Some(self.pool.as_ptr()),
            Owner::Lane | Owner::Given => Some(self.memory.chunks()),
            Owner::Returned => self.giver.as_ref().map(|giver| giver.memory().chunks()),
        }
    }

    fn copy_inline(&self, offset: usize, to: Piece) {
        let content: [u64; INLINE_WORDS] =
            std::array::from_fn(|index| self.consumer.word(1 + index));
        to.fill_from_words(&content, self.words * 8 + offset);
    }

    fn copy_spilled(&self, offset: usize, to: Piece) {
        let mut done = 0;
        while done < to.len() {
            let at = offset + done;
            let line = self.consumer.continuation(1 + (at / CONTINUATION_BYTES) as u64);
            let within = at % CONTINUATION_BYTES;
            let part = to.part(done, CONTINUATION_BYTES - within);
            part.fill_from_words(&line, within);
            done += part.len();
        }
    }

    /// Steps over a packet; tells the sender now if a chunk waits for it, else
    /// when a quarter of the lane is consumed.
    #[inline(always)]
    pub fn consume(&mut self) {
        self.consumer.advance(self.lines);
        if let Place::Chunk(place) = self.place {
            self.change_hands(place);
            self.consumer.publish_head();
        } else if self.consumer.unpublished() >= LINES as u64 / 4 {
            self.consumer.publish_head();
        }
    }

    /// A chunk has been read: whose it is from now on.
    #[inline(always)]
    fn change_hands(&self, place: ChunkPlace) {
        match (place.owner, &self.giver) {
            (Owner::Given, _) => self.kept.keep(place.grain),
            (Owner::Returned, Some(giver)) => giver.take_back(place.offset(), place.length),
            _ => {}
        }
    }

    /// Publishes how much the sender may send.
    pub fn grant(&self, credit: u64) {
        self.consumer.publish_credit(credit);
    }

    /// Tells the sender that this end is closed.
    pub fn close(&self) {
        self.consumer.close();
        self.bell.ring();
    }

    /// Tells the sender whether to ring.
    pub fn set_attention(&self, wish: u32) {
        self.consumer.set_attention(wish);
    }
}
