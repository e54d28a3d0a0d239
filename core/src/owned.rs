//! Buffers of safe operations: the engine owns them from post to completion.
//!
//! A safe post moves a `Vec<u8>` in; its completion hands it back. Whatever
//! happens in between (cancel, an error, the endpoint or the queue dropped), the
//! memory stays where it is until the engine has let go of it.

use std::fmt;

use crate::memory::Piece;

/// A buffer that belongs to an operation under way.
///
/// Moving the `Vec` does not move its bytes, so the piece stays valid. The box
/// keeps a completion entry within one cache line.
#[allow(clippy::box_collection)]
pub struct Owner(Box<Vec<u8>>);

impl fmt::Debug for Owner {
    /// The length alone: a message's bytes belong into no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({} bytes)", self.0.len())
    }
}

impl Owner {
    /// Takes `buffer` over, and the piece that covers its whole length.
    pub(crate) fn new(buffer: Vec<u8>) -> (Owner, Piece) {
        let mut owner = Owner(Box::new(buffer));
        let piece = Piece::of_owned(&mut owner.0);
        (owner, piece)
    }

    /// The buffer of a post that was refused, which has therefore stayed here.
    pub(crate) fn reclaim(owner: Option<Owner>) -> Vec<u8> {
        owner.map(Owner::into_buffer).unwrap_or_default()
    }

    /// Gives the buffer back.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        *self.0
    }
}
