//! What arrives: each packet is checked, matched and placed.
//!
//! The inline words were copied out of shared memory once; whatever they say is
//! checked before it is used, and a peer that lies loses its lane.

use crate::{
    engine::{Engine, peer::Reply, report::Message},
    flags::Flags,
    info::TX_SIZE_MAX,
    operation::{Body, Unexpected},
    protocol::place,
    tag_match::STICKY,
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, ENVELOPE_COST, Kind},
};

/// More operations than this no endpoint has under way with another: its transmit size, and
/// what threads left for the owner. Beyond it a peer only wants our memory.
pub(crate) const UNDER_WAY_MAX: usize = 2 * TX_SIZE_MAX;

impl<T: Transport> Engine<T> {
    /// Delivers one packet and gives its memory back.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, arrival: Arrival) {
        if arrival.head.kind == Kind::Eager as u8 {
            self.arrive_eager(arrival);
        } else {
            self.arrive_other(arrival);
        }
        self.transport.consume();
    }

    #[inline(always)]
    fn arrive_eager(&mut self, arrival: Arrival) {
        let flags = arrival.head.flags;
        let cost = arrival.length as u64 + ENVELOPE_COST;
        if !self.charge_arrival(arrival.peer, cost) {
            return self.violation(arrival.peer, "it sent more than its credit");
        }
        let matcher = if flags & wire::TAGGED != 0 { &mut self.tagged } else { &mut self.untagged };
        let Some((posted, receive)) = matcher.match_posted(arrival.peer, arrival.word) else {
            return self.park_eager(arrival, cost);
        };
        let message = self.eager_message(arrival);
        if receive & STICKY != 0 {
            self.place_in_multi(receive & !STICKY, posted, &message);
        } else {
            let room = place::whole(&self.transport, &self.receives[receive], message.total);
            self.report_received(receive, &message, room);
        }
        if flags & (wire::ACK_DELIVERY | wire::ACK_MATCH) != 0 {
            let operation = self.transport.word(arrival.head.words() - 1);
            self.acknowledge_arrival(arrival.peer, operation);
        }
    }

    #[inline(always)]
    fn eager_message(&self, arrival: Arrival) -> Message {
        let flags = arrival.head.flags;
        Message {
            peer: arrival.peer,
            flags: message_flags(flags),
            tag: arrival.word,
            data: if flags & wire::DATA != 0 { self.transport.word(0) } else { 0 },
            total: arrival.length,
        }
    }

    /// Nobody has posted a receive for it yet.
    #[inline(never)]
    fn park_eager(&mut self, arrival: Arrival, cost: u64) {
        let flags = arrival.head.flags;
        let message = self.eager_message(arrival);
        let wanted = flags & (wire::ACK_DELIVERY | wire::ACK_MATCH);
        let operation = match wanted {
            0 => None,
            _ => Some(self.transport.word(arrival.head.words() - 1)),
        };
        let acknowledge = operation.filter(|_| wanted & wire::ACK_MATCH != 0);
        let mut body = Body::new(message.total);
        body.fill(&self.transport, 0, message.total);
        let unexpected = Unexpected {
            peer: message.peer,
            flags: message.flags,
            tag: message.tag,
            data: message.data,
            total: message.total,
            body,
            acknowledge,
            arriving: None,
            cost,
        };
        self.park(unexpected);
        if let Some(operation) = operation.filter(|_| acknowledge.is_none()) {
            self.acknowledge_arrival(message.peer, operation);
        }
    }

    pub(crate) fn park(&mut self, unexpected: Unexpected) -> u32 {
        let (peer, tag) = (unexpected.peer, unexpected.tag);
        self.hold_charge(peer, unexpected.cost);
        let tagged = unexpected.flags.contains(Flags::TAGGED);
        let index = self.unexpected.insert(unexpected);
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        matcher.park(peer, tag, index);
        index
    }

    #[cold]
    #[inline(never)]
    fn arrive_other(&mut self, arrival: Arrival) {
        let peer = arrival.peer;
        match Kind::from_byte(arrival.head.kind) {
            Some(Kind::Long) => self.arrive_long(arrival),
            Some(Kind::Part) => self.arrive_part(arrival),
            Some(Kind::Consent) => self.arrive_consent(peer, arrival.word),
            Some(Kind::Finish) => self.arrive_finish(peer, arrival.word, self.transport.word(0)),
            Some(Kind::Acknowledge) => self.arrive_finish(peer, arrival.word, 0),
            Some(Kind::Bye) => self.peer_closed(peer),
            Some(
                Kind::Write
                | Kind::WriteData
                | Kind::WritePart
                | Kind::Read
                | Kind::Atomic
                | Kind::Data
                | Kind::Done,
            ) => self.arrive_one_sided(arrival),
            Some(Kind::Eager) | None => {
                let what = format!("it sent a packet of kind {}", arrival.head.kind);
                self.violation(peer, &what);
            }
        }
    }

    /// Tells the sender that its message was delivered, or matched.
    #[cold]
    #[inline(never)]
    pub(crate) fn acknowledge(&mut self, peer: PeerIndex, operation: u64) {
        self.reply(peer, Reply { kind: Kind::Acknowledge, operation, errno: 0 });
    }

    /// The same at the end of an arrival, which is the only place where a peer can be dropped
    /// because it never takes its replies.
    #[cold]
    #[inline(never)]
    fn acknowledge_arrival(&mut self, peer: PeerIndex, operation: u64) {
        self.acknowledge(peer, operation);
        if self.peers[peer as usize].replies.len() > UNDER_WAY_MAX {
            self.violation(peer, "it wants more acknowledgements than it can have sends under way");
        }
    }

    /// Sends a small packet that must not be lost for lack of room.
    #[cold]
    #[inline(never)]
    pub(crate) fn reply(&mut self, peer: PeerIndex, reply: Reply) {
        self.peers[peer as usize].replies.push_back(reply);
        self.pump(peer);
        self.note_backlog(peer);
    }
}

/// The completion flags of a message.
#[inline(always)]
pub(crate) fn message_flags(head_flags: u8) -> Flags {
    let kind = if head_flags & wire::TAGGED != 0 { Flags::TAGGED } else { Flags::MSG };
    if head_flags & wire::DATA != 0 { kind | Flags::REMOTE_CQ_DATA } else { kind }
}
