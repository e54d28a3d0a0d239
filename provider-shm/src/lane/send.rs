//! The sending end of a lane.

use std::sync::Arc;

use kestrel_core::{
    memory::Piece,
    ring::{
        catalogue::Visit,
        claims::Claims,
        filling,
        lane::{
            CONTINUATION_BYTES, FirstLine, INLINE_BYTES, INLINE_WORDS, LINE_WORDS, LaneProducer,
            WISH_CLOSED,
        },
        leases::Leases,
    },
    wire::Head,
};

use super::{
    CHUNK_WORD, CHUNKED, ChunkPlace, FILLED_IN_SIGHT, LINES, LaneError, OwnChunks, Owner,
    RESERVED_LINES, ReceiveLane, SPILL_MAX, SPILL_PIECE, SPILLED, claims,
    given::{GIVEN_BYTES, Giver},
    leases, lies_in_chunk, parts, visit,
};
use crate::{
    chunk::{ChunkPool, Grant, Loan, offset_of},
    copy::Copier,
    doorbell::Doorbell,
    region::{LANE_CHUNK_BYTES, LaneMemory},
    station::PeerIdentity,
};

/// The sending end.
pub struct SendLane {
    producer: LaneProducer,
    /// Its own chunks, if it has some.
    own: Option<ChunkPool>,
    /// Whether they are for all of its packets. Else the endpoint's pool lends what is not given.
    lends_own: bool,
    loan: Loan,
    bell: Doorbell,
    /// The receiver fences for us, so we need not.
    asymmetric: bool,
    /// The receiver's wish that was last answered.
    answered: u32,
    /// The last packet's payload did not fit its line: an answer's may not either.
    was_long: bool,
    /// Who receives.
    pub peer: PeerIdentity,
    /// Its process is gone.
    pub is_abandoned: bool,
    giver: Arc<Giver>,
}

/// What a sender has besides its lane.
pub struct Means<'a> {
    /// The endpoint's chunks.
    pub pool: &'a mut ChunkPool,
    /// How it copies.
    pub copier: &'a Copier,
    /// The lane the other way, whose chunks may be here.
    pub other_way: Option<&'a ReceiveLane>,
}

impl SendLane {
    /// The sending end of a lane that was just connected, with such chunks of its own, which have as many
    /// bytes as those of the pool.
    pub fn new(
        memory: LaneMemory,
        bell: Doorbell,
        peer: PeerIdentity,
        own: OwnChunks,
        chunk_bytes: usize,
    ) -> SendLane {
        let (lines, control) = parts(&memory);
        // SAFETY: the memory is kept as long as the producer, and this side of a
        // new lane has no other producer.
        let producer = unsafe { LaneProducer::new(lines, LINES, control) };
        let asymmetric = peer.asymmetric && crate::barrier::asymmetric();
        let lends_all = own == OwnChunks::All;
        let own = match own {
            OwnChunks::None => None,
            OwnChunks::Turns | OwnChunks::All => ChunkPool::of_lane(&memory, chunk_bytes),
        };
        let lends_own = lends_all && own.is_some();
        let giver = Arc::new(Giver::new(memory, own.as_ref()));
        let loan = Loan::default();
        let (answered, was_long, is_abandoned) = (0, false, false);
        SendLane {
            producer,
            own,
            lends_own,
            loan,
            bell,
            asymmetric,
            answered,
            was_long,
            peer,
            is_abandoned,
            giver,
        }
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
        if wanted == 0 || self.can_place(pool, wanted) {
            return Ok(Some(wanted));
        }
        self.refresh(pool)?;
        if self.can_place(pool, wanted) {
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

    fn can_place(&self, pool: &ChunkPool, wanted: usize) -> bool {
        self.lender(pool).can_place(&self.loan, wanted)
    }

    /// Whose chunks are lent.
    #[inline(always)]
    fn lender<'a>(&'a self, pool: &'a ChunkPool) -> &'a ChunkPool {
        self.own.as_ref().filter(|_| self.lends_own).unwrap_or(pool)
    }

    fn refresh(&mut self, pool: &mut ChunkPool) -> Result<(), LaneError> {
        self.producer.refresh()?;
        let mut lender = pool;
        if let Some(own) = &mut self.own {
            self.giver.collect(own);
            if self.lends_own {
                lender = own;
            }
        }
        lender.take_back(&mut self.loan, self.producer.head());
        Ok(())
    }

    fn place(&mut self, pool: &mut ChunkPool, length: usize) -> Option<(Owner, Grant)> {
        let position = self.producer.position();
        let Some(own) = self.own.as_mut().filter(|_| self.lends_own) else {
            return Some((Owner::Pool, pool.place(&mut self.loan, length, position)?));
        };
        self.giver.memory().make_chunk_pages(LANE_CHUNK_BYTES);
        Some((Owner::Lane, own.place(&mut self.loan, length, position)?))
    }

    /// Pushes a packet if there is room for it. Only one whose payload does not fit its line needs the
    /// `means`.
    #[inline(always)]
    pub fn push<'a>(
        &mut self,
        means: impl FnOnce() -> Means<'a>,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> Result<bool, LaneError> {
        if words.len() * 8 + payload.len() > INLINE_BYTES {
            return self.push_outside(means(), head, word, words, payload);
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
        head.length = payload.len() as u16;
        let line = self.producer.first_line();
        line.put(0, word);
        if payload.len() == 8 {
            // What latency is measured with, and what most messages are.
            line.put(1 + words.len(), payload.read_word());
        } else if !payload.is_empty() {
            put_payload(&line, 1 + words.len(), payload);
        }
        for (index, &word) in words.iter().enumerate() {
            line.put(1 + index, word);
        }
        line.publish(head.to_word(), 1);
        self.was_long = false;
        self.answer_wish();
    }

    #[inline(always)]
    fn publish(&mut self, head: Head, lines: u64) {
        self.producer.publish(head.to_word(), lines);
        self.answer_wish();
    }

    #[inline(always)]
    fn answer_wish(&mut self) {
        let wish = self.producer.attention(self.asymmetric);
        if wish != 0 {
            self.ring(wish);
        }
    }

    #[cold]
    #[inline(never)]
    fn ring(&mut self, wish: u32) {
        let is_answered = std::mem::replace(&mut self.answered, wish) == wish;
        if !is_answered && wish != WISH_CLOSED {
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
        means: Means<'_>,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> Result<bool, LaneError> {
        if !self.producer.has_room(1 + RESERVED_LINES)? {
            return Ok(false);
        }
        self.was_long = true;
        let Means { pool, copier, other_way } = means;
        let mut place = self.place_to_and_fro(other_way, payload.len());
        if place.is_none() {
            place = self.place(pool, payload.len());
        }
        if place.is_none() {
            self.refresh(pool)?;
            place = self.place(pool, payload.len());
        }
        let Some((owner, Grant { start, grain })) = place else {
            // As in `room`: the others have all chunks, and may never give them back.
            if payload.len() <= SPILL_MAX && !self.loan.is_lent() {
                return self.push_spilled(head, word, words, payload);
            }
            return Ok(false);
        };
        let place = ChunkPlace { grain, length: payload.len(), owner }.to_word();
        let head = Head { flags: head.flags | CHUNKED, ..head };
        if head.is_shown() {
            self.put_words(word, words, place);
            self.publish_and_fill(copier, head, start, payload);
            return Ok(true);
        }
        // SAFETY: the place is for this many bytes, and the piece is the application's for as long;
        // they cannot overlap.
        unsafe { copier.copy_in(start, payload.as_ptr(), payload.len()) };
        // The line comes last: in a stream the receiver asks for it meanwhile.
        self.put_words(word, words, place);
        self.publish(head, 1);
        Ok(true)
    }

    /// A chunk that came from the receiver, or one that may come back with the answer.
    fn place_to_and_fro(
        &mut self,
        other_way: Option<&ReceiveLane>,
        length: usize,
    ) -> Option<(Owner, Grant)> {
        if length > GIVEN_BYTES {
            return None;
        }
        if let Some(grant) = other_way.and_then(ReceiveLane::take_kept) {
            return Some((Owner::Returned, grant));
        }
        let own = self.own.as_mut()?;
        self.giver.collect(own);
        let grant = self.giver.give(own)?;
        self.giver.memory().make_chunk_pages(offset_of(grant.grain) + GIVEN_BYTES);
        Some((Owner::Given, grant))
    }

    #[inline(always)]
    fn put_words(&mut self, word: u64, words: &[u64], place: u64) {
        let line = self.producer.first_line();
        line.put(0, word);
        for (index, &word) in words.iter().enumerate() {
            line.put(1 + index, word);
        }
        line.put(1 + CHUNK_WORD, place);
    }

    /// Publishes a packet, and copies its payload in then: who waits for it can begin meanwhile. Who
    /// sleeps is woken when all of it is there.
    fn publish_and_fill(&mut self, copier: &Copier, head: Head, start: *mut u8, payload: Piece) {
        let position = self.producer.position();
        let head = Head { flags: head.flags | FILLED_IN_SIGHT, ..head };
        self.producer.publish(head.to_word(), 1);
        let mut done = 0;
        for (index, end) in filling::ends(payload.len()).enumerate() {
            let part = payload.part(done, end - done);
            // SAFETY: the chunk was granted for the payload, of which this is a part, and the piece
            // is the application's for as long; they cannot overlap.
            unsafe { copier.copy_in(start.add(done), part.as_ptr(), part.len()) };
            super::filling(self.giver.memory()).fill(index, position);
            done = end;
        }
        self.answer_wish();
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
        let line = self.producer.first_line();
        line.put(0, word);
        for (index, &word) in words.iter().enumerate() {
            line.put(1 + index, word);
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

    /// See [`LaneProducer::prepare`].
    #[inline(always)]
    pub fn prepare(&self) {
        self.producer.prepare();
    }

    /// The same for where the payload of an answer to a packet with `head` would lie, whose lines nobody
    /// polls: unless that is in the packet's own chunk, or what was sent last fit its line.
    #[inline(always)]
    pub fn prepare_payload(&self, pool: &ChunkPool, head: Head) {
        if !self.was_long || lies_in_chunk(head) && self.giver.gives() {
            return;
        }
        self.lender(pool).prepare(&self.loan);
    }

    /// What the receiver lets us send.
    #[inline(always)]
    pub fn credit(&self) -> u64 {
        self.producer.credit()
    }

    /// Where both ends claim what they copy together.
    pub fn claims(&self) -> &Claims {
        claims(self.giver.memory())
    }

    /// What the receiver lends us of its memory.
    #[inline(always)]
    pub fn leases(&self) -> &Leases {
        leases(self.giver.memory())
    }

    /// What we say that we are at in the receiver's memory.
    #[inline(always)]
    pub fn visit(&self) -> &Visit {
        visit(self.giver.memory())
    }

    /// What this side has given of the lane.
    #[inline(always)]
    pub(super) fn giver(&self) -> &Arc<Giver> {
        &self.giver
    }

    /// Where the next packet will be.
    pub fn position(&self) -> u64 {
        self.producer.position()
    }

    /// Gives the pages of its own chunks back, but of those that the receiver may answer in. False if it has
    /// not read yet what lies in others.
    pub fn give_pages_back(&mut self, pool: &mut ChunkPool) -> bool {
        if self.refresh(pool).is_err() {
            // It broke: whoever uses it finds out.
            return true;
        }
        if self.lends_own && self.loan.is_lent() {
            return false;
        }
        let Some(bytes) = self.own.as_ref().map(ChunkPool::chunk_bytes) else { return true };
        let (count, mut from) = (LANE_CHUNK_BYTES / bytes, 0);
        for chunk in 0..=count {
            if chunk == count || self.giver.has_given(chunk) {
                self.giver.memory().give_chunk_pages_back(from * bytes..chunk * bytes);
                from = chunk + 1;
            }
        }
        true
    }

    /// Gives the pool back what a lane that is closed has of it, as soon as nobody reads that any more.
    /// Whether it has nothing left.
    pub fn settle(&mut self, pool: &mut ChunkPool) -> bool {
        if self.lends_own {
            return true;
        }
        let is_read = self.is_abandoned || self.is_closed() || self.refresh(pool).is_err();
        if is_read || !self.loan.is_lent() {
            pool.take_all(&mut self.loan);
        }
        !self.loan.is_lent()
    }
}

/// Writes a payload that fits the line behind what is there, from inline word `from` on.
#[inline(never)]
fn put_payload(line: &FirstLine<'_>, from: usize, payload: Piece) {
    let mut content = [0; INLINE_WORDS];
    payload.copy_to_words(&mut content, 0);
    for (index, &word) in content[..payload.len().div_ceil(8)].iter().enumerate() {
        line.put(from + index, word);
    }
}
