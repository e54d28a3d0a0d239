//! Messages that are seen while their sender copies them in.
//!
//! Such a packet is matched at once, and what is there of it is copied out while the rest is on its
//! way. That takes less than a microsecond, so the engine looks again and again; but the sender may
//! lose its core, be stopped or be killed, and nobody waits for that. The packet is left where it
//! is then, as one that is under way to the receive that it has matched, and is met again when all
//! of it is there. What cannot simply be put into a buffer, or was not asked for, is left as well.

use super::arrive::OVERDRAWN;
use crate::{
    engine::{Engine, report::Message},
    memory::Piece,
    operation::{Incoming, StoredPieces, Target},
    protocol::fetch::Fetch,
    tag_match::STICKY,
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, ENVELOPE_COST, Head},
};

/// Looks at a message of which nothing more comes before it is left. Units: looks, of some nanoseconds
/// each.
const LOOKS_MAX: u32 = 1_000;
/// What a message in sight is called among those that are under way: no operation's name.
pub(super) const IN_SIGHT: u64 = u64::MAX;

impl<T: Transport> Engine<T> {
    /// Whether the next message of `peer` was left in its lane when it was met first.
    pub(crate) fn has_in_sight(&self, peer: PeerIndex) -> bool {
        let incoming = &self.peers[peer as usize].incoming;
        !incoming.is_empty() && incoming.contains_key(&IN_SIGHT)
    }

    /// A message that is not all there, or was not when it was met first. Returns whether it has
    /// been taken.
    #[inline(never)]
    pub(crate) fn arrive_in_sight(
        &mut self,
        peer: PeerIndex,
        head: Head,
        tag: u64,
        length: usize,
    ) -> bool {
        let arrival = Arrival { peer, head, word: tag, length, tiny: None };
        if let Some(&index) = self.peers[peer as usize].incoming.get(&IN_SIGHT) {
            if length != self.incoming[index].total {
                self.violation(peer, "a message changes while it is copied in");
                return true;
            }
            let given_up = self.incoming[index].target == Target::GivenUp;
            let taken = self.take_as_it_comes(index, length);
            match (taken, given_up) {
                (true, false) => self.acknowledge_taken(peer, head),
                (true, true) => self.refuse_taken(peer, head),
                (false, _) => {}
            }
            return taken;
        }
        // Who waits for the match would have to be told before all of it is there.
        let told_early = head.flags & wire::ACK_MATCH != 0;
        if told_early || self.receives_in_order || self.datagrams.is_some() {
            return false;
        }
        let cost = length as u64 + ENVELOPE_COST;
        let Some((from, source)) = self.charge_arrival(peer, cost) else {
            self.violation(peer, OVERDRAWN);
            return true;
        };
        let tagged = head.flags & wire::TAGGED != 0;
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        let Some(receive) = matcher.take_posted(from, tag) else {
            // It is looked for again when it is whole.
            self.peers[peer as usize].flow.arrived -= cost;
            return false;
        };
        self.has_news = true;
        let message = self.eager_message(arrival);
        if receive & STICKY == 0
            && let StoredPieces::One(piece) = self.receives[receive].pieces
            && length <= piece.len()
            && !self.is_unknown(source)
            && self.copy_as_it_comes(piece.part(0, length))
        {
            self.report_whole(receive, &message, 0, piece.len());
            self.acknowledge_taken(peer, head);
            return true;
        }
        let target = self.open_receive(receive & !STICKY, true, length);
        self.leave_in_sight(&message, target);
        false
    }

    /// Copies the last arrival to `place` as far as it comes within a short time. Returns whether
    /// that was all.
    #[inline(always)]
    fn copy_as_it_comes(&mut self, place: Piece) -> bool {
        let (mut done, mut looks) = (0, 0);
        while looks < LOOKS_MAX {
            let placed = self.transport.placed().min(place.len());
            if placed <= done {
                std::hint::spin_loop();
                looks += 1;
                continue;
            }
            self.transport.copy_out(done, place.part(done, placed - done));
            (done, looks) = (placed, 0);
            if done == place.len() {
                return true;
            }
        }
        false
    }

    /// Takes a packet's part of a longer message, as far as it comes within a short time. Returns
    /// whether that was all; else the packet is left, and taken from its start once it is whole: whoever
    /// copies it in may have lost its core, to us perhaps.
    #[inline]
    pub(super) fn take_as_it_comes(&mut self, index: u32, length: usize) -> bool {
        let is_whole = self.transport.placed() >= length;
        let incoming = &mut self.incoming[index];
        let was_left = std::mem::replace(&mut incoming.is_left, !is_whole);
        if is_whole {
            self.take_part(index, length);
            return true;
        }
        let Incoming { target, received, .. } = *incoming;
        let Target::Receive { receive, start, room } = target else { return false };
        let StoredPieces::One(piece) = self.receives[receive].pieces else { return false };
        // What is copied as it comes is not written in order.
        if was_left
            || self.orders.data.is_some()
            || received + length > room
            || !self.copy_as_it_comes(piece.part(start + received, length))
        {
            return false;
        }
        let incoming = &mut self.incoming[index];
        (incoming.is_left, incoming.received) = (false, received + length);
        self.finish_if_whole(index);
        true
    }

    /// The first packet of a message is met again. Returns whether it has been taken.
    #[cold]
    pub(super) fn meet_again(&mut self, peer: PeerIndex, index: u32, length: usize) -> bool {
        let Incoming { prefix, received, .. } = self.incoming[index];
        if received != 0 || length > prefix {
            self.violation(peer, "a message changes while it is copied in");
            return true;
        }
        self.take_as_it_comes(index, length)
    }

    /// Keeps a message with the receive that it has matched until all of it is there.
    #[cold]
    fn leave_in_sight(&mut self, message: &Message, target: Target) {
        let Message { peer, total, .. } = *message;
        let index = self.incoming.insert(Incoming {
            peer,
            operation: IN_SIGHT,
            total,
            prefix: total,
            received: 0,
            asked: total,
            end: total,
            target,
            remote: 0,
            fetch: Fetch::of(0),
            own: None,
            sender_waits: false,
            is_left: true,
            flags: message.flags,
            tag: message.tag,
            data: message.data,
            acknowledge_whole: false,
        });
        self.peers[peer as usize].incoming.insert(IN_SIGHT, index);
    }
}
