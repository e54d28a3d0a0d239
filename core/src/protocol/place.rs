//! Placing bytes: from a packet into a posted buffer or an unexpected body.

use crate::{
    memory::{Piece, Pieces},
    operation::{Body, ReceiveOperation},
    transport::{Arrival, Transport},
};

/// Places a whole message into a receive's buffer and returns its room.
#[inline(always)]
pub fn whole<T: Transport>(
    transport: &T,
    receive: &ReceiveOperation,
    arrival: &Arrival,
    words: usize,
) -> usize {
    let pieces = receive.pieces.view();
    if let Pieces::One(piece) = pieces {
        part(transport, arrival, words, 0, piece.part(0, arrival.payload.len()));
        return piece.len();
    }
    at(transport, pieces, 0, usize::MAX, arrival, words);
    pieces.total()
}

/// Places the packet's payload at byte `start` of `pieces`, at most `room` bytes.
pub fn at<T: Transport>(
    transport: &T,
    pieces: Pieces<'_>,
    start: usize,
    room: usize,
    arrival: &Arrival,
    words: usize,
) {
    let mut done = 0;
    pieces.for_each_part(start, arrival.payload.len().min(room), |piece| {
        part(transport, arrival, words, done, piece);
        done += piece.len();
    });
}

/// Places bytes of the packet's payload, from `offset` on, over `to`.
#[inline(always)]
fn part<T: Transport>(transport: &T, arrival: &Arrival, words: usize, offset: usize, to: Piece) {
    if arrival.payload.is_inline() {
        to.fill_from_words(&arrival.inline, words * 8 + offset);
    } else {
        transport.copy_out(arrival.payload.part(offset, to.len()), to);
    }
}

impl Body {
    /// A body of exactly `length` bytes.
    pub fn new(length: usize) -> Body {
        if length <= 16 { Body::Small([0; 2]) } else { Body::Large(vec![0; length].into()) }
    }

    /// Copies the packet's payload to byte `offset` of the body.
    pub fn fill<T: Transport>(
        &mut self,
        transport: &T,
        offset: usize,
        arrival: &Arrival,
        words: usize,
    ) {
        let length = arrival.payload.len();
        part(transport, arrival, words, 0, self.piece().part(offset, length));
    }

    /// The memory of the body.
    pub fn piece(&mut self) -> Piece {
        match self {
            Body::Small(words) => Piece::of_words(words),
            Body::Large(bytes) => Piece::of_owned(bytes),
        }
    }
}
