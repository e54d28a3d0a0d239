//! What a socket endpoint has taken and not delivered yet.

use std::collections::VecDeque;

use crate::memory::Pieces;

/// Segments of a stream that are under way at once. What is taken beyond that is gathered, so
/// that many short sends become few messages.
const IN_FLIGHT_MAX: usize = 16;

/// Bytes that wait to be posted, and a count of those that are.
pub(super) struct Outgoing {
    waiting: VecDeque<Vec<u8>>,
    /// Segments that are posted, from the first that is not complete on: behind a gap nothing
    /// counts as delivered.
    in_flight: VecDeque<Flight>,
    /// The number of the first of them.
    first: u64,
    /// Taken and not complete. Units: bytes.
    bytes: usize,
    /// At most so many. Units: bytes.
    most: usize,
    /// The longest segment. Units: bytes.
    segment: usize,
    /// It was full, and less than a quarter is free since.
    is_full: bool,
}

/// A segment that was posted.
struct Flight {
    /// Units: bytes.
    length: usize,
    is_complete: bool,
}

impl Outgoing {
    pub fn new(most: usize, segment: usize) -> Outgoing {
        let (waiting, in_flight) = Default::default();
        Outgoing { waiting, in_flight, first: 0, bytes: 0, most, segment, is_full: false }
    }

    /// Room for more. Units: bytes.
    pub fn room(&self) -> usize {
        self.most - self.bytes
    }

    /// Whether it takes something. One that was full does so when a quarter is free, so that
    /// nobody is woken for every few bytes.
    pub fn is_ready(&self) -> bool {
        !self.is_full
    }

    /// Somebody needs more room than there is.
    pub fn wait_for_room(&mut self) {
        self.is_full = true;
    }

    /// Nothing is taken that is not delivered.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }

    /// Taken and not delivered, with all that was taken after it. Units: bytes.
    pub fn undelivered(&self) -> usize {
        let posted: usize = self.in_flight.iter().map(|flight| flight.length).sum();
        posted + self.waiting.iter().map(Vec::len).sum::<usize>()
    }

    /// Copies the start of `from`, as much as there is room for; says how much.
    pub fn take(&mut self, from: Pieces<'_>) -> usize {
        let length = from.total().min(self.room());
        let mut done = 0;
        while done < length {
            let gathers = self.waiting.back().is_some_and(|last| last.len() < self.segment);
            if !gathers {
                self.waiting.push_back(Vec::with_capacity(self.segment.min(length - done)));
            }
            let Some(last) = self.waiting.back_mut() else { break };
            let count = (self.segment - last.len()).min(length - done);
            from.for_each_part(done, count, |_, part| part.append_to(last));
            done += count;
        }
        self.bytes += length;
        self.is_full |= self.room() == 0;
        length
    }

    /// Appends the end of the stream: a segment without bytes.
    pub fn finish(&mut self) {
        self.waiting.push_back(Vec::new());
    }

    /// The next segment to be posted, if one may be, and its number.
    pub fn next(&mut self) -> Option<(Vec<u8>, u64)> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let segment = self.waiting.pop_front()?;
        let number = self.first + self.in_flight.len() as u64;
        self.in_flight.push_back(Flight { length: segment.len(), is_complete: false });
        Some((segment, number))
    }

    /// It could not be posted.
    pub fn refused(&mut self, segment: Vec<u8>) {
        self.in_flight.pop_back();
        self.waiting.push_front(segment);
    }

    /// The segment of that number has left. Of one that fails nothing is said.
    pub fn complete(&mut self, number: u64) {
        let at = number.wrapping_sub(self.first) as usize;
        let Some(flight) = self.in_flight.get_mut(at) else {
            return;
        };
        flight.is_complete = true;
        let length = flight.length;
        while self.in_flight.front().is_some_and(|flight| flight.is_complete) {
            self.in_flight.pop_front();
            self.first += 1;
        }
        self.free(length);
    }

    /// A datagram that counts so much is under way.
    pub fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.is_full |= self.bytes >= self.most;
    }

    /// It has left, or never will.
    pub fn free(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.is_full &= self.bytes > self.most - self.most / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Piece;

    fn take(outgoing: &mut Outgoing, mut bytes: Vec<u8>) -> usize {
        outgoing.take(Pieces::One(Piece::of_owned(&mut bytes)))
    }

    #[test]
    fn short_sends_are_gathered_and_long_ones_cut() {
        let mut outgoing = Outgoing::new(100, 8);
        assert_eq!(take(&mut outgoing, b"abcde".to_vec()), 5);
        assert_eq!(take(&mut outgoing, b"fghijklmnopqrst".to_vec()), 15);
        let segments: Vec<_> = std::iter::from_fn(|| outgoing.next()).map(|next| next.0).collect();
        assert_eq!(segments, [&b"abcdefgh"[..], b"ijklmnop", b"qrst"]);
        assert_eq!((outgoing.undelivered(), outgoing.room()), (20, 80));
        outgoing.complete(1);
        assert_eq!((outgoing.undelivered(), outgoing.room()), (20, 88), "there is a gap before it");
        outgoing.complete(0);
        assert_eq!((outgoing.undelivered(), outgoing.room()), (4, 96));
        outgoing.complete(2);
        assert!(outgoing.is_empty());
    }

    #[test]
    fn what_was_full_is_ready_when_a_quarter_is_free() {
        let mut outgoing = Outgoing::new(32, 4);
        assert_eq!(take(&mut outgoing, vec![1; 40]), 32);
        assert_eq!(take(&mut outgoing, vec![1; 4]), 0);
        (0..8).for_each(|_| assert_eq!(outgoing.next().unwrap().0.len(), 4));
        assert!(!outgoing.is_ready());
        outgoing.complete(0);
        assert!(!outgoing.is_ready());
        outgoing.complete(1);
        assert!(outgoing.is_ready());
    }

    #[test]
    fn a_few_segments_are_under_way_at_once() {
        let mut outgoing = Outgoing::new(1000, 1);
        assert_eq!(take(&mut outgoing, vec![0; IN_FLIGHT_MAX + 1]), IN_FLIGHT_MAX + 1);
        let segments: Vec<_> = std::iter::from_fn(|| outgoing.next()).collect();
        assert_eq!(segments.len(), IN_FLIGHT_MAX);
        outgoing.complete(0);
        let (last, number) = outgoing.next().unwrap();
        outgoing.refused(last);
        assert_eq!(outgoing.next().unwrap().1, number);
    }
}
