//! Reading and writing another process's memory by the kernel.

use super::PeerIndex;
use crate::{memory::Piece, ring::claims::Claims};

/// Long messages that one side copies out of, or into, the other one's memory: see
/// [`crate::protocol::single_copy`]. Unless a transport says otherwise, it cannot.
pub trait SingleCopy {
    /// Reads `length` bytes at `remote` in the peer's memory into `to`, if this
    /// transport and this peer permit it. Returns false if not.
    fn read_remote(&mut self, _peer: PeerIndex, _remote: u64, _to: Piece) -> bool {
        false
    }

    /// Whether `read_remote` can work for `peer`.
    fn can_read_remote(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Whether `peer` said that its own `read_remote` works for our memory: where it does not,
    /// no address of ours is told.
    fn is_readable_by(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Writes all of `from` at `remote` in the peer's memory, where the peer asked for it. Returns
    /// false if that is not permitted, or has failed.
    fn write_remote(&mut self, _peer: PeerIndex, _remote: u64, _from: Piece) -> bool {
        false
    }

    /// Whether the process that `peer` sends from is known to have ended: nothing of it writes to our
    /// memory any more. May be so before `event` tells of it. Cost: a system call.
    fn has_ended(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Where we and `peer` claim blocks of the messages that it sends to us, if it can help.
    fn claims_from(&self, _peer: PeerIndex) -> Option<&Claims> {
        None
    }

    /// Where we and `peer` claim blocks of the messages that we send to it, if we can help.
    fn claims_to(&self, _peer: PeerIndex) -> Option<&Claims> {
        None
    }
}
