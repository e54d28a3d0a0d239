//! The lane: a single-producer single-consumer ring of 64-byte lines, fit to
//! lie in memory that two processes share and do not trust each other with.
//!
//! The scheme is FastForward's (Giacomoni, Moseley, Vachharajani, PPoPP 2008):
//! the line itself says whether it is full, so that one cache line crosses
//! between the cores for a small message, and no index is read to receive it.
//!
//! Invariants:
//! 1. Position `p` lives in line `p % lines`. Its word 0 carries the stamp
//!    `(p + 1) as u32` in the low half exactly when the packet at `p` is
//!    published. A line's previous occupant has another stamp, since
//!    `lines < 2^32`, and fresh memory is zero, which is nobody's first stamp.
//! 2. A packet takes one line, or several in a row. Continuation lines carry
//!    the stamp of the position before in word 0, never user bytes. No lap looks
//!    for that stamp in that line, so neither a later packet nor one that was
//!    begun and given up can pass for published.
//! 3. The producer writes a line only when `position - head < lines`, where
//!    `head` is what the consumer published: no line is overwritten unread.
//! 4. Only the producer writes lines; only the consumer writes [`LaneControl`].
//!    Each side keeps its own position privately and never reads it back.
//! 5. Everything read from the other side is range-checked before it is used:
//!    a head outside `[last head, position]` is [`LaneCorrupt`].
//! 6. A consumer that is about to stop looking sets `attention`, issues the
//!    heavy fence (or both sides use `SeqCst` fences) and looks once more. A
//!    producer publishes, then reads `attention`. So either the consumer sees
//!    the packet or the producer sees the wish for a bell: no lost wake-up.
//!
//! `core/tests/loom_lane.rs` and `core/tests/loom_attention.rs` have the models.

use std::ptr::NonNull;

use crate::prefetch;
use crate::primitive::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

/// Words of eight bytes in one line.
pub const LINE_WORDS: usize = 8;
/// Words of a packet's first line that carry its inline content.
pub const INLINE_WORDS: usize = 6;
/// Bytes of inline content in a packet's first line.
pub const INLINE_BYTES: usize = INLINE_WORDS * 8;
/// Bytes of content in each continuation line.
pub const CONTINUATION_BYTES: usize = (LINE_WORDS - 1) * 8;

/// The wish of a consumer that has closed its end: no wish for a bell.
pub const WISH_CLOSED: u32 = u32::MAX;

/// One cache line of a lane.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Line {
    words: [AtomicU64; LINE_WORDS],
}

/// What the consumer tells the producer. Two lines: one that changes as packets
/// are consumed, one that changes only when the consumer goes to sleep.
#[repr(C, align(64))]
#[derive(Default)]
pub struct LaneControl {
    flow: FlowLine,
    attention: AttentionLine,
}

#[repr(C, align(64))]
#[derive(Default)]
struct FlowLine {
    head: AtomicU64,
    credit: AtomicU64,
}

#[repr(C, align(64))]
#[derive(Default)]
struct AttentionLine {
    wish: AtomicU32,
}

/// The other side of a lane published something that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer published head {head} of a lane at position {position}, last seen at {last}")]
pub struct LaneCorrupt {
    /// The head that the peer published.
    pub head: u64,
    /// The last head that was believed.
    pub last: u64,
    /// The producer's own position.
    pub position: u64,
}

/// The sending end of a lane. One owner; `&mut self` makes it single-producer.
pub struct LaneProducer {
    lines: NonNull<Line>,
    control: NonNull<LaneControl>,
    mask: u64,
    position: u64,
    /// The first position that is not free yet: a whole lane behind the head that was last seen.
    limit: u64,
}

/// The first line of the packet under way, looked up once for all that is written to it.
pub struct FirstLine<'a> {
    producer: &'a mut LaneProducer,
    line: NonNull<Line>,
}

impl FirstLine<'_> {
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: a line of the producer, whose lines live as long as it does.
        unsafe { self.line.as_ref() }
    }

    /// Writes inline word `index` (0 to 6): word 0 of these is the packet's tag word, 1 to 6 its
    /// inline content.
    #[inline(always)]
    pub fn put(&self, index: usize, word: u64) {
        debug_assert!(index < LINE_WORDS - 1);
        self.line().words[index + 1].store(word, Ordering::Relaxed);
    }

    /// Publishes the packet, of `lines` lines, with `meta` in the high half of its first word. The
    /// caller has made sure of the room.
    #[inline(always)]
    pub fn publish(self, meta: u32, lines: u64) {
        debug_assert!(self.producer.free_seen() >= lines && lines >= 1);
        let position = self.producer.position;
        let word = u64::from(meta) << 32 | u64::from(stamp(position));
        // R2: pairs with A2 in `LaneConsumer::peek`.
        self.line().words[0].store(word, Ordering::Release);
        self.producer.position = position + lines;
    }
}

/// The receiving end of a lane. One owner; `&mut self` makes it single-consumer.
pub struct LaneConsumer {
    lines: NonNull<Line>,
    control: NonNull<LaneControl>,
    mask: u64,
    position: u64,
    published: u64,
    /// The line of `position`: found once, read several times.
    current: NonNull<Line>,
}

// SAFETY: the handles own their end exclusively; all shared words are atomics,
// so moving an end to another thread is sound.
unsafe impl Send for LaneProducer {}
// SAFETY: as above.
unsafe impl Send for LaneConsumer {}

impl LaneProducer {
    /// The producer of an untouched (zeroed) lane.
    ///
    /// # Safety
    /// `lines` points to `count` lines and `control` to one control block, both
    /// valid, aligned and alive as long as this handle; `count` is a power of
    /// two, 2 at least; no other producer exists for them.
    pub unsafe fn new(lines: NonNull<Line>, count: usize, control: NonNull<LaneControl>) -> Self {
        assert!(count.is_power_of_two() && (2..1 << 31).contains(&count));
        LaneProducer { lines, control, mask: count as u64 - 1, position: 0, limit: count as u64 }
    }

    #[inline(always)]
    fn line(&self, position: u64) -> &Line {
        // SAFETY: the index is masked below `count`, for which `new` demanded valid lines.
        unsafe { &*self.lines.as_ptr().add((position & self.mask) as usize) }
    }

    #[inline(always)]
    fn control(&self) -> &LaneControl {
        // SAFETY: `new` demanded a valid control block.
        unsafe { self.control.as_ref() }
    }

    /// The position that the next packet will take.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The consumer's head, as last seen.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.limit - (self.mask + 1)
    }

    /// Lines free as far as the last look at the head tells.
    #[inline(always)]
    pub fn free_seen(&self) -> u64 {
        self.limit - self.position
    }

    /// Looks at the consumer's head again. Cost: one line from the other core.
    pub fn refresh(&mut self) -> Result<(), LaneCorrupt> {
        // A1: pairs with R1 in `LaneConsumer::publish_head`.
        let head = self.control().flow.head.load(Ordering::Acquire);
        if head < self.head() || head > self.position {
            return Err(LaneCorrupt { head, last: self.head(), position: self.position });
        }
        self.limit = head + self.mask + 1;
        Ok(())
    }

    /// Whether `lines` lines are free, looking at the head only if needed.
    #[inline(always)]
    pub fn has_room(&mut self, lines: u64) -> Result<bool, LaneCorrupt> {
        if self.free_seen() >= lines {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.free_seen() >= lines)
    }

    /// The first line of the packet under way, to be written.
    #[inline(always)]
    pub fn first_line(&mut self) -> FirstLine<'_> {
        let line = NonNull::from(self.line(self.position));
        FirstLine { producer: self, line }
    }

    /// Writes a continuation line: the `nth` line after the first (from 1).
    #[inline(always)]
    pub fn put_continuation(&mut self, nth: u64, words: [u64; LINE_WORDS - 1]) {
        let position = self.position + nth;
        let line = self.line(position);
        line.words[0].store(u64::from(stamp(position - 1)), Ordering::Relaxed);
        for (target, word) in line.words[1..].iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
    }

    /// Publishes the packet under way, of `lines` lines, with `meta` in the high
    /// half of its first word. The caller has made sure of the room.
    #[inline(always)]
    pub fn publish(&mut self, meta: u32, lines: u64) {
        self.first_line().publish(meta, lines);
    }

    /// Asks the cache for the next line, to write to it.
    ///
    /// A consumer that polls holds that line, so a write waits for it to come
    /// over, and the consumer then waits for it to come back. A producer that
    /// knows some tens of nanoseconds ahead that it will probably send, since it
    /// has just received, saves the first of the two trips.
    #[inline(always)]
    pub fn prepare(&self) {
        prefetch::to_write(self.line(self.position));
    }

    /// What the consumer last asked for: 0, or the number of its wish for a bell.
    /// With `asymmetric`, the consumer issues a heavy fence on this core's behalf
    /// and a plain load will do.
    #[inline(always)]
    pub fn attention(&self, asymmetric: bool) -> u32 {
        if asymmetric {
            // F3, executed for us; but only the compiler can keep the order before it.
            compiler_fence(Ordering::SeqCst);
        } else {
            // F3: pairs with F4 in `LaneConsumer::set_attention` (invariant 6).
            fence(Ordering::SeqCst);
        }
        self.control().attention.wish.load(Ordering::Relaxed)
    }

    /// Whether the consumer has closed its end. Cost: a line that is written only
    /// when the consumer falls asleep or closes.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        // A8: pairs with R8 in `LaneConsumer::close`.
        self.control().attention.wish.load(Ordering::Acquire) == WISH_CLOSED
    }

    /// The consumer's credit word: an opaque number that only grows.
    #[inline(always)]
    pub fn credit(&self) -> u64 {
        self.control().flow.credit.load(Ordering::Relaxed)
    }
}

impl LaneConsumer {
    /// The consumer of an untouched (zeroed) lane.
    ///
    /// # Safety
    /// As for [`LaneProducer::new`]; no other consumer exists for the lane.
    pub unsafe fn new(lines: NonNull<Line>, count: usize, control: NonNull<LaneControl>) -> Self {
        assert!(count.is_power_of_two() && (2..1 << 31).contains(&count));
        LaneConsumer {
            lines,
            control,
            mask: count as u64 - 1,
            position: 0,
            published: 0,
            current: lines,
        }
    }

    #[inline(always)]
    fn line(&self, position: u64) -> &Line {
        // SAFETY: the index is masked below `count`, for which `new` demanded valid lines.
        unsafe { &*self.lines.as_ptr().add((position & self.mask) as usize) }
    }

    #[inline(always)]
    fn control(&self) -> &LaneControl {
        // SAFETY: `new` demanded a valid control block.
        unsafe { self.control.as_ref() }
    }

    #[inline(always)]
    fn current(&self) -> &Line {
        // SAFETY: what `line` answered for the present position.
        unsafe { self.current.as_ref() }
    }

    /// The number of lines in the lane.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// The position of the next packet.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The `meta` of the next packet, if one is published.
    #[inline(always)]
    pub fn peek(&self) -> Option<u32> {
        // A2: pairs with R2 in `LaneProducer::publish`.
        let word = self.current().words[0].load(Ordering::Acquire);
        (word as u32 == stamp(self.position)).then_some((word >> 32) as u32)
    }

    /// Inline word `index` (0 to 6) of the packet that `peek` showed. The
    /// producer may rewrite it at any time if it is hostile: read once.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        self.current().words[index + 1].load(Ordering::Relaxed)
    }

    /// The content of the `nth` continuation line (from 1).
    #[inline(always)]
    pub fn continuation(&self, nth: u64) -> [u64; LINE_WORDS - 1] {
        let line = self.line(self.position + nth);
        std::array::from_fn(|index| line.words[index + 1].load(Ordering::Relaxed))
    }

    /// Asks the cache for the line `ahead` of the next packet.
    #[inline(always)]
    pub fn prefetch(&self, ahead: u64) {
        prefetch::to_read(self.line(self.position + ahead));
    }

    /// Steps over a packet of `lines` lines. Its memory stays untouched until
    /// [`Self::publish_head`].
    #[inline(always)]
    pub fn advance(&mut self, lines: u64) {
        self.position += lines;
        self.current = NonNull::from(self.line(self.position));
    }

    /// Lines consumed since the head was last published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.position - self.published
    }

    /// Gives the consumed lines back to the producer.
    #[inline(always)]
    pub fn publish_head(&mut self) {
        self.published = self.position;
        // R1: pairs with A1 in `LaneProducer::refresh`.
        self.control().flow.head.store(self.position, Ordering::Release);
    }

    /// Publishes the credit word.
    #[inline(always)]
    pub fn publish_credit(&self, credit: u64) {
        self.control().flow.credit.store(credit, Ordering::Relaxed);
    }

    /// Tells the producer that nobody consumes any more. Final: the wish is not
    /// set again.
    pub fn close(&self) {
        // R8: pairs with A8 in `LaneProducer::is_closed`: who sees it also sees
        // what this side had published elsewhere before.
        self.control().attention.wish.store(WISH_CLOSED, Ordering::Release);
    }

    /// Tells the producer whether to ring: 0 for no, else a number that differs
    /// from the last wish, so that each wish is answered once. After asking, the
    /// caller issues the heavy fence if producers rely on it, and peeks again
    /// before it sleeps.
    #[inline(always)]
    pub fn set_attention(&self, wish: u32) {
        self.control().attention.wish.store(wish, Ordering::Relaxed);
        if wish != 0 {
            // F4: pairs with F3 in `LaneProducer::attention` (invariant 6).
            fence(Ordering::SeqCst);
        }
    }
}

#[inline(always)]
fn stamp(position: u64) -> u32 {
    position.wrapping_add(1) as u32
}
