//! Transmit completion where a packet that was pushed may still be lost: FI_TRANSMIT_COMPLETE means
//! that a message "has been successfully transmitted and is no longer being tracked by the
//! provider" (fi_endpoint(3)). Over shared memory that is so when it was pushed. A device still has
//! it then, and says later that the peer's device has it: until then the send has a record, which
//! fails with its peer.

use crate::{
    engine::Engine,
    flags::Flags,
    operation::SendStage,
    transport::{PeerIndex, Transport},
};

/// Whether a send is complete as soon as its buffer is free: it says so, or there is no completion
/// that could be too early.
pub(crate) fn needs_no_confirmation(flags: Flags) -> bool {
    flags.contains(Flags::INJECT_COMPLETE)
        || flags & (Flags::INJECT | Flags::COMPLETION) == Flags::INJECT
}

impl<T: Transport> Engine<T> {
    /// Whether a send to `peer` needs a record until its packet is confirmed.
    #[inline(always)]
    pub(crate) fn confirms(&self, peer: PeerIndex, flags: Flags) -> bool {
        self.peers[peer as usize].confirms && !needs_no_confirmation(flags)
    }

    /// The packet of a send was the last that was pushed to its peer.
    pub(crate) fn await_confirmation(&mut self, peer: PeerIndex, index: u32) {
        self.sends[index].stage = SendStage::AwaitConfirmation;
        let record = &mut self.peers[peer as usize];
        record.awaiting += 1;
        if record.unconfirmed.is_empty() {
            self.confirming.push(peer);
        }
        record.unconfirmed.push_back((self.transport.pushed(peer), index));
    }

    /// Completes what peers have. Returns whether there was anything.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_confirmed(&mut self) -> bool {
        let (mut moved, mut at) = (false, 0);
        while let Some(&peer) = self.confirming.get(at) {
            moved |= self.take_confirmed_of(peer);
            if self.peers[peer as usize].unconfirmed.is_empty() {
                self.confirming.swap_remove(at);
            } else {
                at += 1;
            }
        }
        moved
    }

    /// The same of one peer.
    pub(crate) fn take_confirmed_of(&mut self, peer: PeerIndex) -> bool {
        let confirmed = self.transport.confirmed(peer);
        let mut moved = false;
        while let Some(&(packet, index)) = self.peers[peer as usize].unconfirmed.front()
            && confirmed.wrapping_sub(packet) as i32 >= 0
        {
            let record = &mut self.peers[peer as usize];
            record.unconfirmed.pop_front();
            record.awaiting -= 1;
            self.finish_send(index);
            moved = true;
        }
        if moved {
            // A fenced operation may have waited for this.
            self.note_backlog(peer);
        }
        moved
    }
}
