//! Placing bytes: from a packet into a posted buffer or an unexpected body.

use crate::{
    engine::Engine,
    memory::{Piece, Pieces},
    operation::{Body, room_for},
    transport::Transport,
};

/// Bytes that are copied at a time where their order counts: they stay in the nearest cache.
const STRETCH: usize = 2 << 10;

/// Copies payload of the last arrival, from byte `offset` on, over `to`, first byte first: whoever
/// looks at the memory finds no byte before those in front of it. How a transport copies is its own
/// affair, so that goes to memory which nobody else looks at.
pub fn in_order<T: Transport>(transport: &T, offset: usize, to: Piece) {
    let mut stretch = [0; STRETCH];
    for at in (0..to.len()).step_by(STRETCH) {
        let part = to.part(at, STRETCH);
        let copy = Piece::of_owned(&mut stretch).part(0, part.len());
        transport.copy_out(offset + at, copy);
        copy.copy_in_order_to(part);
    }
}

impl<T: Transport> Engine<T> {
    /// Places `length` bytes of the last arrival at byte `start` of `pieces`, at most `room` of
    /// them.
    pub(crate) fn place_payload(
        &self,
        pieces: Pieces<'_>,
        start: usize,
        room: usize,
        length: usize,
    ) {
        let copy_out = self.placing();
        pieces.for_each_part(start, length.min(room), |done, part| {
            copy_out(&self.transport, done, part);
        });
    }
}

impl Body {
    /// A body of exactly `length` bytes.
    pub fn new(length: usize) -> Body {
        if length <= 16 {
            Body::Small([0; 2])
        } else {
            Body::Large(vec![0; length].into_boxed_slice().into())
        }
    }

    /// A body of exactly `length` bytes; none if there is no memory for it.
    pub fn try_new(length: usize) -> Option<Body> {
        if length <= 16 {
            return Some(Body::Small([0; 2]));
        }
        let mut bytes = room_for(length).ok()?;
        bytes.resize(length, 0);
        Some(Body::Large(bytes.into_boxed_slice().into()))
    }

    /// Copies `length` bytes of the last arrival to byte `offset` of the body.
    pub fn fill<T: Transport>(&mut self, transport: &T, offset: usize, length: usize) {
        transport.copy_out(0, self.piece().part(offset, length));
    }

    /// Copies the body's first bytes to byte `start` of `pieces`, at most `room` of them.
    pub fn scatter(
        &mut self,
        pieces: Pieces<'_>,
        start: usize,
        room: usize,
        copy: fn(Piece, Piece),
    ) {
        let body = self.piece();
        pieces.for_each_part(start, room, |done, part| copy(body.part(done, part.len()), part));
    }

    /// The memory of the body.
    pub(crate) fn piece(&mut self) -> Piece {
        match self {
            Body::Small(words) => Piece::of_words(words),
            Body::Large(bytes) => bytes.piece(),
        }
    }
}
