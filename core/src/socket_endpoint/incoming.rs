//! What has arrived at a socket endpoint and was not received yet, and the buffers that are
//! posted for more.

use std::collections::VecDeque;

use crate::memory::Pieces;

/// A segment of a stream, or a datagram.
struct Arrived {
    buffer: Vec<u8>,
    /// How much of it was received already.
    taken: usize,
    length: usize,
    source: u64,
}

enum Slot {
    Posted,
    Arrived(Arrived),
    /// Its receive has failed.
    Gone,
}

impl Slot {
    /// Whether it is the end of a stream.
    fn is_end(&self) -> bool {
        matches!(self, Slot::Arrived(Arrived { length: 0, .. }))
    }
}

/// What a receive from a datagram socket is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were placed.
    pub length: usize,
    /// Bytes that the datagram has; what was not placed is lost.
    pub total: usize,
    /// The sender in the address vector, or `FI_ADDR_NOTAVAIL`.
    pub source: u64,
}

/// Buffers in the order of their posting, which is that of the messages. Receives are numbered,
/// since they may complete in another order.
pub(super) struct Incoming {
    slots: VecDeque<Slot>,
    /// The number of the first one.
    first: u64,
    spare: Vec<Vec<u8>>,
    /// Slots at most.
    most: usize,
    /// Of each buffer. Units: bytes.
    room: usize,
    /// The peer has said that no more comes, and all before that was received.
    finished: bool,
    /// Some of the stream is missing behind what has arrived.
    is_broken: bool,
}

impl Incoming {
    pub fn new(most: usize, room: usize) -> Incoming {
        let (slots, spare) = Default::default();
        Incoming { slots, first: 0, spare, most, room, finished: false, is_broken: false }
    }

    /// A buffer to be posted, and its number; none if there are enough.
    pub fn next_buffer(&mut self) -> Option<(Vec<u8>, u64)> {
        let number = self.first + self.slots.len() as u64;
        let wanted = self.slots.len() < self.most && !self.is_broken;
        wanted.then(|| (self.spare.pop().unwrap_or_else(|| vec![0; self.room]), number))
    }

    /// It was posted.
    pub fn posted(&mut self) {
        self.slots.push_back(Slot::Posted);
    }

    /// It was not.
    pub fn refused(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// The receive of that number has completed.
    pub fn arrived(&mut self, number: u64, buffer: Vec<u8>, length: usize, source: u64) {
        self.fill(number, Slot::Arrived(Arrived { buffer, taken: 0, length, source }));
    }

    /// It has failed, and a datagram is lost.
    pub fn failed(&mut self, number: u64) {
        self.fill(number, Slot::Gone);
    }

    /// It has failed, and the stream ends where it would have gone on.
    pub fn break_off(&mut self, number: u64) {
        self.slots.truncate(number.saturating_sub(self.first) as usize);
        self.is_broken = true;
    }

    /// Nothing arrives any more, and what has arrived is there still.
    pub fn end(&mut self) {
        let posted = self.slots.iter().position(|slot| matches!(slot, Slot::Posted));
        self.break_off(self.first + posted.unwrap_or(self.slots.len()) as u64);
    }

    /// Whether what arrives from now on is not of the stream any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn fill(&mut self, number: u64, with: Slot) {
        let at = number.wrapping_sub(self.first) as usize;
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = with;
        }
        self.drop_gone();
    }

    fn pop(&mut self) {
        self.first += 1;
        if let Some(Slot::Arrived(arrived)) = self.slots.pop_front() {
            self.spare.push(arrived.buffer);
        }
        self.drop_gone();
    }

    /// What has failed is never first: it would hide what follows.
    fn drop_gone(&mut self) {
        while let Some(Slot::Gone) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
    }

    fn front(&mut self) -> Option<&mut Arrived> {
        match self.slots.front_mut() {
            Some(Slot::Arrived(arrived)) => Some(arrived),
            _ => None,
        }
    }

    /// Whether a receive finds something.
    pub fn is_ready(&self) -> bool {
        matches!(self.slots.front(), Some(Slot::Arrived(_)))
    }

    /// Whether all of the stream was received, up to the peer's end of it.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether the end of the stream has come, maybe behind what was not received yet.
    pub fn has_end(&self) -> bool {
        self.finished || self.slots.iter().any(Slot::is_end)
    }

    /// Whether it has come by a receive before that one.
    pub fn has_ended_before(&self, number: u64) -> bool {
        let before = number.saturating_sub(self.first) as usize;
        self.finished || self.slots.iter().take(before).any(Slot::is_end)
    }

    /// Copies bytes of a stream, as many as there are or fit, up to its end; they stay if `keep`.
    pub fn take_bytes(&mut self, to: Pieces<'_>, keep: bool) -> usize {
        let (mut done, wanted, mut index) = (0, to.total(), 0);
        while done < wanted && !self.finished {
            let Some(Slot::Arrived(arrived)) = self.slots.get_mut(index) else {
                break;
            };
            if keep && arrived.length == 0 {
                break;
            }
            let bytes = &arrived.buffer[arrived.taken..arrived.length];
            let count = bytes.len().min(wanted - done);
            place(bytes, &to, done, count);
            done += count;
            if keep {
                index += 1;
                continue;
            }
            arrived.taken += count;
            self.drop_received();
        }
        done
    }

    /// Lets go of segments that were received whole. One without bytes is the stream's end, and what
    /// is behind it is never received.
    pub fn drop_received(&mut self) {
        while !self.finished
            && let Some(&mut Arrived { taken, length, .. }) = self.front()
        {
            if taken < length {
                return;
            }
            self.finished |= length == 0;
            self.pop();
        }
    }

    /// Copies the next datagram, as much of it as fits; it stays if `keep`.
    pub fn take_datagram(&mut self, to: Pieces<'_>, keep: bool) -> Option<Received> {
        let arrived = self.front()?;
        let (total, source) = (arrived.length, arrived.source);
        let length = total.min(to.total());
        place(&arrived.buffer, &to, 0, length);
        if !keep {
            self.pop();
        }
        Some(Received { length, total, source })
    }
}

/// Copies the first `count` of `bytes` to the pieces, from byte `offset` of them on.
fn place(bytes: &[u8], to: &Pieces<'_>, offset: usize, count: usize) {
    to.for_each_part(offset, count, |done, part| {
        part.fill(&bytes[done..count]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Piece;

    fn arrive(incoming: &mut Incoming, number: u64, bytes: &[u8]) {
        let mut buffer = bytes.to_vec();
        buffer.resize(8, 0xee);
        incoming.arrived(number, buffer, bytes.len(), number);
    }

    fn take(incoming: &mut Incoming, room: usize, keep: bool) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let count = incoming.take_bytes(Pieces::One(Piece::of_owned(&mut bytes)), keep);
        bytes.truncate(count);
        bytes
    }

    fn posting(most: usize) -> Incoming {
        let mut incoming = Incoming::new(most, 8);
        while incoming.next_buffer().is_some() {
            incoming.posted();
        }
        incoming
    }

    #[test]
    fn bytes_come_in_the_order_of_the_posting() {
        let mut incoming = posting(3);
        arrive(&mut incoming, 1, b"defg");
        assert!(!incoming.is_ready());
        assert_eq!(take(&mut incoming, 8, false), b"");
        arrive(&mut incoming, 0, b"abc");
        assert_eq!(take(&mut incoming, 8, true), b"abcdefg");
        assert_eq!(take(&mut incoming, 4, false), b"abcd");
        assert_eq!(take(&mut incoming, 8, false), b"efg");
        // Both buffers are to be posted again.
        let (_, number) = incoming.next_buffer().unwrap();
        assert_eq!((number, incoming.slots.len()), (3, 1));
    }

    #[test]
    fn a_segment_without_bytes_is_the_end() {
        let mut incoming = posting(3);
        arrive(&mut incoming, 0, b"ab");
        arrive(&mut incoming, 1, b"");
        assert!(incoming.has_end() && !incoming.is_finished());
        assert_eq!(take(&mut incoming, 8, false), b"ab");
        assert!(incoming.has_end() && incoming.is_finished());
    }

    #[test]
    fn nothing_is_received_behind_the_end() {
        let mut incoming = posting(3);
        // Before the end itself is complete, it may be.
        arrive(&mut incoming, 2, b"cd");
        arrive(&mut incoming, 1, b"");
        arrive(&mut incoming, 0, b"ab");
        assert_eq!(take(&mut incoming, 8, true), b"ab");
        assert_eq!(take(&mut incoming, 8, false), b"ab");
        assert!(incoming.is_finished());
        assert_eq!(take(&mut incoming, 8, false), b"");
    }

    #[test]
    fn what_has_failed_is_passed_over() {
        let mut incoming = posting(3);
        arrive(&mut incoming, 2, b"c");
        incoming.failed(1);
        assert!(!incoming.is_ready());
        incoming.failed(0);
        assert_eq!(take(&mut incoming, 8, false), b"c");
    }

    #[test]
    fn nothing_is_received_beyond_a_gap() {
        let mut incoming = posting(4);
        arrive(&mut incoming, 0, b"ab");
        arrive(&mut incoming, 2, b"ef");
        incoming.break_off(1);
        arrive(&mut incoming, 3, b"");
        assert_eq!(take(&mut incoming, 8, false), b"ab");
        assert!(!incoming.has_end() && incoming.next_buffer().is_none());
        assert_eq!(take(&mut incoming, 8, false), b"");
    }

    #[test]
    fn a_datagram_is_taken_whole_or_cut() {
        let mut incoming = posting(2);
        arrive(&mut incoming, 0, b"abcdef");
        arrive(&mut incoming, 1, b"");
        let mut bytes = vec![0; 4];
        let to = Pieces::One(Piece::of_owned(&mut bytes));
        let cut = Received { length: 4, total: 6, source: 0 };
        assert_eq!(incoming.take_datagram(to, true), Some(cut));
        assert_eq!(incoming.take_datagram(to, false), Some(cut));
        assert_eq!(bytes, b"abcd");
        let empty = Received { length: 0, total: 0, source: 1 };
        assert_eq!(incoming.take_datagram(to, false), Some(empty));
        assert_eq!(incoming.take_datagram(to, false), None);
    }

    #[test]
    fn a_failure_behind_a_datagram_hides_nothing() {
        let mut incoming = posting(3);
        arrive(&mut incoming, 0, b"a");
        incoming.failed(1);
        arrive(&mut incoming, 2, b"c");
        let mut bytes = vec![0; 1];
        let to = Pieces::One(Piece::of_owned(&mut bytes));
        let whole = |source| Some(Received { length: 1, total: 1, source });
        assert_eq!(incoming.take_datagram(to, false), whole(0));
        assert!(incoming.is_ready());
        assert_eq!(incoming.take_datagram(to, false), whole(2));
    }
}
