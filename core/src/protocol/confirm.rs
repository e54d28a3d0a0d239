//! Transmit completion where a packet that was pushed may still be lost: FI_TRANSMIT_COMPLETE means
//! that a message "has been successfully transmitted and is no longer being tracked by the
//! provider" (fi_endpoint(3)). Over shared memory that is so when it was pushed. A device still has
//! it then, and says later that the peer's device has it: until then the send has a record, which
//! fails with its peer.

use std::collections::VecDeque;

use crate::{
    engine::Engine,
    flags::Flags,
    memory::Piece,
    operation::SendStage,
    transport::{PeerIndex, Transport},
    wire::{Head, Kind},
};

/// Packets that were pushed to a peer and may still be lost.
#[derive(Debug, Default)]
pub struct Unconfirmed {
    /// There may be any.
    pub possible: bool,
    /// Sends that wait until the peer has their packet, which they are with: oldest first.
    sends: VecDeque<(u32, u32)>,
    /// It has said goodbye, and is let go when it is known to have this packet.
    leaves_after: Option<u32>,
}

impl Unconfirmed {
    /// Nothing waits, nor does the peer's goodbye.
    pub fn is_over(&self) -> bool {
        self.sends.is_empty() && self.leaves_after.is_none()
    }

    /// Nobody waits for what it has any more.
    pub fn forget_sends(&mut self) {
        self.sends.clear();
    }

    /// The connection is over.
    pub fn end(&mut self) {
        self.sends.clear();
        self.leaves_after = None;
    }

    /// Gives back memory that is not used.
    pub fn give_room_back(&mut self) {
        self.sends.shrink_to_fit();
    }

    /// Whether the peer has said goodbye, and what was pushed to it before is confirmed.
    fn has_left(&self) -> bool {
        let after = |last: u32| {
            let next = self.sends.front();
            next.is_none_or(|&(packet, _)| packet.wrapping_sub(last) as i32 > 0)
        };
        self.leaves_after.is_some_and(after)
    }
}

/// Whether a send is complete as soon as its buffer is free: it says so, or there is no completion
/// that could be too early, nor a counter, and none is asked for that could be an error.
fn needs_no_confirmation(flags: Flags, counted: bool) -> bool {
    let untold = flags & (Flags::INJECT | Flags::COMPLETION) == Flags::INJECT && !counted;
    (flags.contains(Flags::INJECT_COMPLETE) || untold) && !flags.contains(Flags::TRANSMIT_COMPLETE)
}

impl<T: Transport> Engine<T> {
    /// Whether a send to `peer` needs a record until its last packet is confirmed.
    #[inline(always)]
    pub(crate) fn confirms(&self, peer: PeerIndex, flags: Flags) -> bool {
        let counter = &self.setup.transmit.counter;
        self.peers[peer as usize].unconfirmed.possible
            && !needs_no_confirmation(flags, counter.is_some())
    }

    /// Whether a send of which all leaves unasked is over when its last packet is confirmed.
    /// Others the receiver answers.
    pub(crate) fn awaits_confirmation(&self, peer: PeerIndex, index: u32) -> bool {
        let send = &self.sends[index];
        self.confirms(peer, send.flags) && !send.wants_acknowledgement()
    }

    /// The next packet carries a send up to `end`: if that is all, its confirmation is wanted.
    pub(crate) fn confirm_last(&mut self, peer: PeerIndex, index: u32, end: usize) {
        let send = &self.sends[index];
        let is_last = end == send.total && send.stage != SendStage::Streaming;
        if is_last && self.awaits_confirmation(peer, index) {
            self.transport.confirm_next(peer);
        }
    }

    /// The last packet of a send was the last that was pushed to its peer.
    pub(crate) fn await_confirmation(&mut self, peer: PeerIndex, index: u32) {
        self.sends[index].stage = SendStage::AwaitConfirmation;
        let record = &mut self.peers[peer as usize];
        record.awaiting += 1;
        if record.unconfirmed.sends.is_empty() {
            self.confirming.push(peer);
        }
        record.unconfirmed.sends.push_back((self.transport.pushed(peer), index));
    }

    /// Completes what peers have. Returns whether there was anything.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_confirmed(&mut self) -> bool {
        // From the first on: where one goes another takes its place, so behind a turn some would be missed.
        self.next_confirming = 0;
        self.take_confirmed_of_some(self.confirming.len())
    }

    /// Completes what peers have, of so many of them: others have their turn the next time.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_confirmed_of_some(&mut self, most: usize) -> bool {
        // Once for all: a device that is asked takes some time.
        self.transport.look_for_confirmations();
        let mut moved = false;
        for _ in 0..most.min(self.confirming.len()) {
            if self.next_confirming >= self.confirming.len() {
                self.next_confirming = 0;
            }
            let Some(&peer) = self.confirming.get(self.next_confirming) else {
                break;
            };
            moved |= self.take_known_of(peer);
            if self.peers[peer as usize].unconfirmed.has_left() {
                self.peer_closed(peer);
            }
            if self.peers[peer as usize].unconfirmed.sends.is_empty() {
                self.confirming.swap_remove(self.next_confirming);
            } else {
                self.next_confirming += 1;
            }
        }
        moved
    }

    /// Completes what one peer has.
    pub(crate) fn take_confirmed_of(&mut self, peer: PeerIndex) {
        self.transport.look_for_confirmations();
        self.take_known_of(peer);
    }

    fn take_known_of(&mut self, peer: PeerIndex) -> bool {
        let confirmed = self.transport.confirmed(peer);
        let mut moved = false;
        while let Some(&(packet, index)) = self.peers[peer as usize].unconfirmed.sends.front()
            && confirmed.wrapping_sub(packet) as i32 >= 0
        {
            let record = &mut self.peers[peer as usize];
            record.unconfirmed.sends.pop_front();
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

    /// Says to a connected peer that we leave, and what of its packets came. Returns whether there was
    /// room.
    pub(crate) fn push_bye(&mut self, peer: PeerIndex) -> bool {
        let receipt = self.transport.receipt(peer);
        self.transport.push(peer, Head::new(Kind::Bye, 0), receipt, &[], Piece::EMPTY)
    }

    /// The peer says that it leaves, and what it has. More than that may have come to its device: the
    /// rest is known when it is confirmed, or when the connection has ended.
    #[cold]
    pub(crate) fn arrive_bye(&mut self, peer: PeerIndex, receipt: u64) {
        self.transport.take_receipt(peer, receipt);
        self.take_confirmed_of(peer);
        if self.shortage.puts_off(peer) {
            // What ends its lane is known, and comes next.
            return;
        }
        let Unconfirmed { sends, leaves_after, .. } = &mut self.peers[peer as usize].unconfirmed;
        match sends.back() {
            Some(&(last, _)) => *leaves_after = Some(last),
            None => self.peer_closed(peer),
        }
    }
}
