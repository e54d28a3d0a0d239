//! The two ends of a lane in shared memory: how a packet lies in lines and
//! chunks, and what is checked of one that a peer wrote.
//!
//! A packet's content (its words, then its payload) lies in the first line if it
//! fits; a longer payload in a chunk of the sender's pool, and the line says where.
//! Where no chunk is left, continuation lines carry it in small pieces. They are
//! no place for more: the receiver polls the line beside, and its cache takes
//! neighbours along, so that each costs the sender a trip (docs/performance.md).

use std::ptr::NonNull;

use kestrel_core::{
    memory::Piece,
    ring::lane::{
        CONTINUATION_BYTES, INLINE_BYTES, INLINE_WORDS, LINE_WORDS, LaneConsumer, LaneControl,
        LaneProducer, Line, WISH_CLOSED,
    },
    wire::Head,
};

pub use crate::lane_error::LaneError;

use crate::{
    chunk::{ChunkPool, GRAIN, Loan},
    copy::Copier,
    doorbell::Doorbell,
    region::{LaneMemory, PoolView},
    station::PeerIdentity,
};

/// Lines in a lane.
pub const LINES: usize = 128;
/// The lines start here; what is before is the receiver's. Units: bytes.
const LINES_OFFSET: usize = 4096;
/// The longest payload in continuation lines: what is injected is not longer, and the lines that
/// it takes become free however late the head is published. Units: bytes.
pub(crate) const SPILL_MAX: usize = 80 * CONTINUATION_BYTES;
/// How much of a longer one they carry at a time. Units: bytes.
const SPILL_PIECE: usize = 7 * CONTINUATION_BYTES;
/// How far ahead of a stream lines are fetched.
const PREFETCH_AHEAD: u64 = 4;
/// One line is kept free for the packet that says goodbye.
const RESERVED_LINES: u64 = 1;

/// The payload lies in continuation lines.
const SPILLED: u8 = 0x20;
/// The payload lies in a chunk: the last inline word says where.
const CHUNKED: u8 = 0x40;
/// The inline word that says where.
const CHUNK_WORD: usize = INLINE_WORDS - 1;

const _: () = assert!(LINES_OFFSET + LINES * size_of::<Line>() == crate::region::LANE_BYTES);
const _: () = assert!(size_of::<LaneControl>() <= LINES_OFFSET);
const _: () = assert!(80 + 1 + RESERVED_LINES as usize + LINES / 4 <= LINES);

/// The ends of a lane's memory.
fn parts(memory: &LaneMemory) -> (NonNull<Line>, NonNull<LaneControl>) {
    let start = memory.as_ptr();
    // SAFETY: the mapping is LANE_BYTES long, which the constants above add up to.
    let lines = unsafe { start.add(LINES_OFFSET) };
    (lines.cast(), start.cast())
}

/// The sending end.
pub struct SendLane {
    producer: LaneProducer,
    loan: Loan,
    bell: Doorbell,
    /// The receiver fences for us, so we need not.
    asymmetric: bool,
    /// The receiver's wish that was last answered.
    answered: u32,
    /// Who receives.
    pub peer: PeerIdentity,
    _memory: LaneMemory,
}

impl SendLane {
    /// The sending end of a lane that was just connected.
    pub fn new(memory: LaneMemory, bell: Doorbell, peer: PeerIdentity) -> SendLane {
        let (lines, control) = parts(&memory);
        // SAFETY: the memory is kept as long as the producer, and this side of a
        // new lane has no other producer.
        let producer = unsafe { LaneProducer::new(lines, LINES, control) };
        let asymmetric = peer.asymmetric && crate::barrier::asymmetric();
        let loan = Loan::default();
        SendLane { producer, loan, bell, asymmetric, answered: 0, peer, _memory: memory }
    }

    /// How much of `wanted` bytes of payload one packet can carry now.
    pub fn room(
        &mut self,
        pool: &mut ChunkPool,
        wanted: usize,
    ) -> Result<Option<usize>, LaneError> {
        if !self.producer.has_room(1 + RESERVED_LINES)? {
            return Ok(None);
        }
        let wanted = wanted.min(pool.chunk_bytes());
        if wanted == 0 || pool.can_place(&self.loan, wanted) {
            return Ok(Some(wanted));
        }
        self.refresh(pool)?;
        if pool.can_place(&self.loan, wanted) {
            return Ok(Some(wanted));
        }
        // Our own chunks will come back; if the others have them all, the lines
        // carry the payload in small pieces: slow, but never stuck.
        if self.loan.is_lent() {
            return Ok(None);
        }
        let wanted = wanted.min(SPILL_PIECE);
        let lines = 1 + wanted.div_ceil(CONTINUATION_BYTES) as u64;
        let room = self.producer.has_room(lines + RESERVED_LINES)?;
        Ok(room.then_some(wanted))
    }

    fn refresh(&mut self, pool: &mut ChunkPool) -> Result<(), LaneError> {
        self.producer.refresh()?;
        pool.take_back(&mut self.loan, self.producer.head());
        Ok(())
    }

    /// Pushes a packet if there is room for it.
    #[inline(always)]
    pub fn push(
        &mut self,
        pool: &mut ChunkPool,
        copier: &Copier,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> Result<bool, LaneError> {
        if words.len() * 8 + payload.len() > INLINE_BYTES {
            return self.push_outside(pool, copier, head, word, words, payload);
        }
        if !self.producer.has_room(1 + RESERVED_LINES)? {
            return Ok(false);
        }
        self.put_inline(head, word, words, payload);
        Ok(true)
    }

    /// Pushes the last packet of this lane, for which a line was kept.
    pub fn push_last(&mut self, head: Head) -> Result<bool, LaneError> {
        if !self.producer.has_room(1)? {
            return Ok(false);
        }
        self.put_inline(head, 0, &[], Piece::EMPTY);
        Ok(true)
    }

    #[inline(always)]
    fn put_inline(&mut self, mut head: Head, word: u64, words: &[u64], payload: Piece) {
        self.producer.put(0, word);
        if payload.len() == 8 {
            // What latency is measured with, and what most messages are.
            self.producer.put(1 + words.len(), payload.read_word());
        } else if !payload.is_empty() {
            let mut content = [0; INLINE_WORDS];
            payload.copy_to_words(&mut content, 0);
            let count = payload.len().div_ceil(8);
            for (index, &word) in content[..count].iter().enumerate() {
                self.producer.put(1 + words.len() + index, word);
            }
        }
        for (index, &word) in words.iter().enumerate() {
            self.producer.put(1 + index, word);
        }
        head.length = payload.len() as u16;
        self.publish(head, 1);
    }

    #[inline(always)]
    fn publish(&mut self, head: Head, lines: u64) {
        self.producer.publish(head.to_word(), lines);
        let wish = self.producer.attention(self.asymmetric);
        if wish != 0 && wish != self.answered {
            self.ring(wish);
        }
    }

    #[cold]
    #[inline(never)]
    fn ring(&mut self, wish: u32) {
        self.answered = wish;
        if wish != WISH_CLOSED {
            self.bell.ring();
        }
    }

    /// Whether the receiver has closed its end.
    pub fn is_closed(&self) -> bool {
        self.producer.is_closed()
    }

    #[inline(never)]
    fn push_outside(
        &mut self,
        pool: &mut ChunkPool,
        copier: &Copier,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> Result<bool, LaneError> {
        if !self.producer.has_room(1 + RESERVED_LINES)? {
            return Ok(false);
        }
        let position = self.producer.position();
        let mut place = pool.place(&mut self.loan, payload.len(), position);
        if place.is_none() {
            self.refresh(pool)?;
            place = pool.place(&mut self.loan, payload.len(), position);
        }
        let Some(grant) = place else {
            // As in `room`: the others have all chunks, and may never give them back.
            if payload.len() <= SPILL_MAX && !self.loan.is_lent() {
                return self.push_spilled(head, word, words, payload);
            }
            return Ok(false);
        };
        // SAFETY: the grant is for this many bytes of our own pool, and the piece
        // is the application's for as long; they cannot overlap.
        unsafe { copier.copy_in(grant.start, payload.as_ptr(), payload.len()) };
        self.producer.put(0, word);
        for (index, &word) in words.iter().enumerate() {
            self.producer.put(1 + index, word);
        }
        let place = u64::from(grant.grain) << 32 | payload.len() as u64;
        self.producer.put(1 + CHUNK_WORD, place);
        self.publish(Head { flags: head.flags | CHUNKED, ..head }, 1);
        Ok(true)
    }

    fn push_spilled(
        &mut self,
        mut head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> Result<bool, LaneError> {
        let lines = payload.len().div_ceil(CONTINUATION_BYTES) as u64;
        if !self.producer.has_room(1 + lines + RESERVED_LINES)? {
            return Ok(false);
        }
        self.producer.put(0, word);
        for (index, &word) in words.iter().enumerate() {
            self.producer.put(1 + index, word);
        }
        for nth in 0..lines {
            let part = payload.part(nth as usize * CONTINUATION_BYTES, CONTINUATION_BYTES);
            let mut content = [0; LINE_WORDS - 1];
            part.copy_to_words(&mut content, 0);
            self.producer.put_continuation(1 + nth, content);
        }
        head.flags |= SPILLED;
        head.length = payload.len() as u16;
        self.publish(head, 1 + lines);
        Ok(true)
    }

    /// See [`LaneProducer::prepare`]; the same for where a payload would lie.
    #[inline(always)]
    pub fn prepare(&self, pool: &ChunkPool) {
        self.producer.prepare();
        pool.prepare(&self.loan);
    }

    /// What the receiver lets us send.
    #[inline(always)]
    pub fn credit(&self) -> u64 {
        self.producer.credit()
    }

    /// Gives the pool back what the lane has of it.
    pub fn close(mut self, pool: &mut ChunkPool) -> PeerIdentity {
        pool.take_all(&mut self.loan);
        self.peer
    }
}

/// Where a packet's payload lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the first line, behind the words.
    Inline,
    /// In continuation lines.
    Spilled,
    /// In the sender's pool.
    Chunk { offset: usize, length: usize },
}

/// The receiving end.
pub struct ReceiveLane {
    consumer: LaneConsumer,
    pool: PoolView,
    /// The packet that `next` measured: where its payload lies, the words in front
    /// of it, the lines that it takes.
    place: Place,
    words: usize,
    lines: u64,
    /// Wakes the sender when this end closes.
    bell: Doorbell,
    /// Position at the last look whether the lane is quiet; none is that of one never looked at.
    pub looked_at: u64,
    /// Who sends.
    pub peer: PeerIdentity,
    _memory: LaneMemory,
}

impl ReceiveLane {
    /// The receiving end of a lane that a peer connected.
    pub fn new(
        memory: LaneMemory,
        pool: PoolView,
        bell: Doorbell,
        peer: PeerIdentity,
    ) -> ReceiveLane {
        let (lines, control) = parts(&memory);
        // SAFETY: the memory is kept as long as the consumer, and this side of a
        // new lane has no other consumer.
        let consumer = unsafe { LaneConsumer::new(lines, LINES, control) };
        ReceiveLane {
            consumer,
            pool,
            place: Place::Inline,
            words: 0,
            lines: 0,
            bell,
            looked_at: u64::MAX,
            peer,
            _memory: memory,
        }
    }

    /// Where the next packet will be.
    pub fn position(&self) -> u64 {
        self.consumer.position()
    }

    /// The head of the next packet, if it is there.
    #[inline(always)]
    pub fn peek(&self) -> Option<Head> {
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

    /// How long the payload of the next packet is, whose head `peek` showed, if it is sound.
    pub fn next(&mut self, head: Head) -> Result<usize, LaneError> {
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
        if head.flags & CHUNKED != 0 {
            return self.next_in_chunk();
        }
        self.place = Place::Inline;
        if words * 8 + length > INLINE_BYTES {
            return Err(LaneError::InlineTooLong { words, length });
        }
        Ok(length)
    }

    fn next_in_chunk(&mut self) -> Result<usize, LaneError> {
        let place = self.consumer.word(1 + CHUNK_WORD);
        let (offset, length) = ((place >> 32) as usize * GRAIN, place as u32 as usize);
        let pool = self.pool.len();
        if offset + length > pool || length == 0 {
            return Err(LaneError::OutsidePool { offset, length, pool });
        }
        self.place = Place::Chunk { offset, length };
        Ok(length)
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
            Place::Chunk { offset: start, length } => {
                let length = to.len().min(length.saturating_sub(offset));
                // SAFETY: `next` checked the chunk against the mapping, which lives as
                // long as the lane; the piece is writable until its operation
                // completes; `length` is within both.
                unsafe {
                    let from = self.pool.as_ptr().as_ptr().add(start + offset);
                    copier.copy_out(to.as_ptr(), from, length);
                }
            }
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
        let chunked = matches!(self.place, Place::Chunk { .. });
        if chunked || self.consumer.unpublished() >= LINES as u64 / 4 {
            self.consumer.publish_head();
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
