//! Placing bytes: from a packet into a posted buffer or an unexpected body.

use crate::{
    memory::{Piece, Pieces},
    operation::{Body, ReceiveOperation},
    transport::Transport,
};

/// Places a whole message, the last arrival, into a receive's buffer and returns
/// the room there.
#[inline(always)]
pub fn whole<T: Transport>(transport: &T, receive: &ReceiveOperation, length: usize) -> usize {
    match receive.pieces.view() {
        Pieces::One(piece) => {
            transport.copy_out(0, piece.part(0, length));
            piece.len()
        }
        pieces => {
            at(transport, pieces, 0, usize::MAX, length);
            pieces.total()
        }
    }
}

/// Places `length` bytes of the last arrival at byte `start` of `pieces`, at most
/// `room` of them.
pub fn at<T: Transport>(
    transport: &T,
    pieces: Pieces<'_>,
    start: usize,
    room: usize,
    length: usize,
) {
    let mut done = 0;
    pieces.for_each_part(start, length.min(room), |piece| {
        transport.copy_out(done, piece);
        done += piece.len();
    });
}

impl Body {
    /// A body of exactly `length` bytes.
    pub fn new(length: usize) -> Body {
        if length <= 16 { Body::Small([0; 2]) } else { Body::Large(vec![0; length].into()) }
    }

    /// Copies `length` bytes of the last arrival to byte `offset` of the body.
    pub fn fill<T: Transport>(&mut self, transport: &T, offset: usize, length: usize) {
        transport.copy_out(0, self.piece().part(offset, length));
    }

    /// The memory of the body.
    pub fn piece(&mut self) -> Piece {
        match self {
            Body::Small(words) => Piece::of_words(words),
            Body::Large(bytes) => Piece::of_owned(bytes),
        }
    }
}
