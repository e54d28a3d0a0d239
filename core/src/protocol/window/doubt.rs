//! Operations that a window closed over which may have been done, or not.
//!
//! They are not tried again: the target may have seen what they did, and changed it since. But they may as
//! well have been refused, and the adapter of the target that says so not have been heard. So its engine is
//! asked whether they are permitted, by a write of nothing behind the last byte of what they reach. What it
//! refuses fails for its reason, and all else since nobody knows whether it was done. Who does not answer
//! is gone, and they fail as all operations do then.

use super::Way;
use crate::{
    engine::Engine,
    memory::Piece,
    one_sided::{RemoteSegment, RemoteStage, StoredSegments},
    transport::{PeerIndex, Transport},
    wire::{self, Head, Kind},
};

impl<T: Transport> Engine<T> {
    /// The window has closed, and nobody knows whether an operation was done.
    #[cold]
    pub(super) fn doubt(&mut self, index: u32) {
        self.start_again(index);
        self.remotes[index].stage = RemoteStage::Doubtful;
    }

    /// The bytes of a write are there, and its lease is over: whether it was over before is for the target
    /// to say. If it still permits the write, that is done.
    #[cold]
    pub(super) fn doubt_landed(&mut self, peer: PeerIndex, index: u32, key: u64) -> Way {
        self.renew_lease(peer, key);
        let operation = &mut self.remotes[index];
        (operation.stage, operation.landed) = (RemoteStage::Doubtful, true);
        Way::Wait
    }

    /// Asks the target about an operation at the head of its peer's queue. Returns whether it did.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_about(&mut self, peer: PeerIndex, index: u32) -> bool {
        // W1: those behind it are doubtful as well, or come as packets.
        if self.peers[peer as usize].window.under_way > 0 {
            return false;
        }
        let StoredSegments::One(RemoteSegment { address, length, key }) =
            self.remotes[index].segments
        else {
            // No adapter is given several.
            return false;
        };
        if !self.transport.is_window_open(peer) {
            // The peer's end of the window goes with this, and what may still be on the way to it.
            self.ask_for(peer, key);
        }
        let words = [key, address, length, length, 0];
        let (head, name) = (Head::new(Kind::WritePart, wire::LAST), self.remotes.name(index));
        if !self.transport.push(peer, head, name, &words, Piece::EMPTY) {
            return false;
        }
        self.remotes[index].stage = RemoteStage::Asked;
        let record = &mut self.peers[peer as usize];
        record.queue.pop_front();
        record.awaiting += 1;
        record.packet_left();
        true
    }
}
