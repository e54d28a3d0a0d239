//! What arrives: each packet is checked, matched and placed.
//!
//! The inline words were copied out of shared memory once; whatever they say is
//! checked before it is used, and a peer that lies loses its lane.

use crate::{
    completion_queue::Entry,
    engine::{Engine, order::receive::Owed, peer::Reply, report::Message},
    flags::Flags,
    info::TX_SIZE_MAX,
    operation::{Body, ReceiveOperation, StoredPieces, Target, Unexpected},
    protocol::datagram::Datagrams,
    tag_match::STICKY,
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, ENVELOPE_COST, Head, Kind},
};

/// More operations than this no endpoint has under way with another: its transmit size, and
/// what threads left for the owner. Beyond it a peer only wants our memory.
pub(crate) const UNDER_WAY_MAX: usize = 2 * TX_SIZE_MAX;

pub(crate) const OVERDRAWN: &str = "it sent more than its credit";

impl<T: Transport> Engine<T> {
    /// Delivers one packet and gives its memory back, or leaves it where it is: false.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, arrival: Arrival) -> bool {
        let taken = if arrival.head.is_plain() {
            self.arrive_plain(arrival)
        } else {
            let Arrival { peer, head, word, length, .. } = arrival;
            self.arrive_other(peer, head, word, length)
        };
        if taken {
            self.transport.consume();
        }
        taken
    }

    /// A message that comes alone, as most do.
    #[inline(always)]
    fn arrive_plain(&mut self, arrival: Arrival) -> bool {
        let Arrival { peer, head, word: tag, length, tiny } = arrival;
        let cost = length as u64 + ENVELOPE_COST;
        let Some((from, source)) = self.charge_arrival(peer, cost) else {
            self.violation(peer, OVERDRAWN);
            return true;
        };
        let matcher =
            if head.flags & wire::TAGGED != 0 { &mut self.tagged } else { &mut self.untagged };
        let Some(receive) = matcher.take_posted(from, tag) else {
            return self.park_eager(peer, head, tag, length);
        };
        self.has_news = true;
        let message =
            Message { peer, flags: message_flags(head.flags), tag, data: 0, total: length };
        self.receive_eager(receive, message, tiny, source);
        true
    }

    /// Whether a message that nobody asked for yet, and that was charged, stays in its lane.
    ///
    /// Its receive may be posted as soon as the application hears of what this pass has matched:
    /// a stream that runs ahead of a window of receives would otherwise be copied twice. The next
    /// pass meets it first, and takes it.
    pub(crate) fn leaves_for_later(&mut self, peer: PeerIndex, cost: u64) -> bool {
        if self.has_news {
            self.peers[peer as usize].flow.arrived -= cost;
        }
        self.has_news
    }

    /// Whether no message with these flags can be for us: nobody can post a receive for it, or the peer
    /// names a receive context that there is not, or that is closed. If its sender waits for a word about
    /// the operation it is told; parts that follow find nobody.
    pub(crate) fn refuses_messages(
        &mut self,
        peer: PeerIndex,
        flags: u8,
        operation: Option<u64>,
    ) -> bool {
        let is_unheard = !self.setup.hears.intersects(message_flags(flags));
        if is_unheard {
            self.refuse_arrival(peer, operation);
        }
        is_unheard
    }

    #[cold]
    #[inline(never)]
    fn refuse_arrival(&mut self, peer: PeerIndex, operation: Option<u64>) {
        let address = self.peers[peer as usize].address;
        tracing::debug!(%address, "a message that nobody here can receive");
        if let Some(operation) = operation {
            self.refuse(peer, operation);
            self.check_replies(peer);
        }
    }

    /// A message that brings data, or wants an answer, or lies elsewhere than beside its head.
    #[inline(always)]
    fn arrive_eager(&mut self, arrival: Arrival) -> bool {
        let flags = arrival.head.flags;
        if flags & wire::WAITS != 0 {
            let Arrival { peer, head, word, length, .. } = arrival;
            let is_whole = self.transport.placed() >= length;
            if !is_whole || self.has_in_sight(peer) {
                return self.arrive_in_sight(peer, head, word, length);
            }
        }
        let cost = arrival.length as u64 + ENVELOPE_COST;
        let Some((from, source)) = self.charge_arrival(arrival.peer, cost) else {
            self.violation(arrival.peer, OVERDRAWN);
            return true;
        };
        let matcher = if flags & wire::TAGGED != 0 { &mut self.tagged } else { &mut self.untagged };
        let Some(receive) = matcher.take_posted(from, arrival.word) else {
            let Arrival { peer, head, word, length, .. } = arrival;
            return self.park_eager(peer, head, word, length);
        };
        self.has_news = true;
        let message = self.eager_message(arrival);
        self.receive_eager(receive, message, None, source);
        self.acknowledge_taken(arrival.peer, arrival.head);
        true
    }

    /// Gives a whole message to the receive that it matched.
    ///
    /// What is not inlined gets a copy of the message, made where it is called: one whose address
    /// is taken would be written to memory for every message.
    #[inline(always)]
    fn receive_eager(&mut self, receive: u32, message: Message, tiny: Option<u64>, source: u64) {
        if receive & STICKY != 0 {
            return self.place_in_multi(receive & !STICKY, &{ message });
        }
        let piece = match self.receives[receive].pieces {
            StoredPieces::One(piece)
                if message.total <= piece.len()
                    && !(self.is_careful && self.needs_care(source)) =>
            {
                piece
            }
            _ => return self.receive_with_care(receive, &{ message }),
        };
        // Before the payload is written, after which nothing is known of what lies in memory.
        let ReceiveOperation { context, flags, attachment, .. } = self.receives.remove(receive);
        match tiny {
            Some(word) => piece.part(0, 8).write_word(word),
            None => self.transport.copy_out(0, piece.part(0, message.total)),
        }
        let wanted = flags.contains(Flags::COMPLETION);
        self.setup.receive.succeed_if(wanted, || Entry {
            context,
            flags: (message.flags | Flags::RECV).bits(),
            length: message.total as u64,
            buffer: piece.as_ptr() as u64,
            data: message.data,
            tag: message.tag,
            source,
            attachment,
        });
    }

    /// Whether what comes from there, or anything, is not simply received.
    #[cold]
    fn needs_care(&self, source: u64) -> bool {
        self.receives_in_order || self.is_unknown(source)
    }

    /// Receives a whole message where the buffer is in several pieces, or too small, or the sender
    /// unknown, or completions or data keep an order.
    #[cold]
    #[inline(never)]
    fn receive_with_care(&mut self, receive: u32, message: &Message) {
        let pieces = self.receives[receive].pieces.view();
        let room = pieces.total();
        if self.waits_for_data(message.peer) {
            return self.hold_whole(Target::Receive { receive, start: 0, room }, message);
        }
        self.place_payload(pieces, 0, room, message.total);
        self.close_receive(None, receive, message, 0, room, Owed::Credit);
    }

    #[inline(always)]
    pub(crate) fn eager_message(&self, arrival: Arrival) -> Message {
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
    fn park_eager(&mut self, peer: PeerIndex, head: Head, tag: u64, length: usize) -> bool {
        let arrival = Arrival { peer, head, word: tag, length, tiny: None };
        let (flags, cost) = (head.flags, length as u64 + ENVELOPE_COST);
        let wanted = flags & (wire::ACK_DELIVERY | wire::ACK_MATCH);
        let operation = match wanted {
            0 => None,
            _ => Some(self.transport.word(arrival.head.words() - 1)),
        };
        if self.refuses_messages(peer, flags, operation) {
            return true;
        }
        if let Some(receive) = self.take_shared(peer, message_flags(flags), tag, length) {
            self.receive_shared_eager(receive, arrival);
            return true;
        }
        if self.leaves_for_later(peer, cost) {
            return false;
        }
        if self.leaves_too_much(peer, cost) {
            return self.drops_for_memory();
        }
        if self.drops_unasked(peer, cost) {
            return true;
        }
        let Some(body) = self.body_for(peer, message_flags(flags), length, cost, 0) else {
            return self.drops_for_memory();
        };
        let message = self.eager_message(arrival);
        let acknowledge = operation.filter(|_| wanted & wire::ACK_MATCH != 0);
        let parked = self.park(self.set_aside(&message, body, acknowledge));
        let taken = self.offer_parked(parked);
        match operation.filter(|_| acknowledge.is_none()) {
            Some(operation) => self.acknowledge_arrival(message.peer, operation),
            None if taken => self.check_replies(message.peer),
            None => {}
        }
        true
    }

    /// Memory for a message that nobody has asked for, for naming it, and `beside` bytes for what else
    /// has to grow. None where there is not as much: it stays with the transport, and the next pass looks
    /// again.
    pub(crate) fn body_for(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        length: usize,
        cost: u64,
        beside: usize,
    ) -> Option<Body> {
        let beside = beside + self.growth_to_park(flags);
        let body = self.memory_for(length, beside);
        if body.is_none() {
            self.peers[peer as usize].flow.arrived -= cost;
        }
        body
    }

    /// What the tables take that name one more message that nobody has asked for: mostly nothing. They
    /// grow where a piece of that length was just free, or a few that are shorter. Units: bytes.
    #[inline]
    fn growth_to_park(&self, flags: Flags) -> usize {
        let tagged = flags.contains(Flags::TAGGED);
        let matcher = if tagged { &self.tagged } else { &self.untagged };
        let names = match &self.shared {
            Some(shared) if self.offers && self.buffering.is_none() => {
                shared.pool.lock().growth_to_park(tagged)
            }
            _ => matcher.growth_to_park(self.unexpected.next_index()),
        };
        self.unexpected.growth() + names
    }

    /// The last arrival, a whole message, in memory of ours.
    pub(crate) fn set_aside(
        &self,
        message: &Message,
        mut body: Body,
        acknowledge: Option<u64>,
    ) -> Unexpected {
        let Message { peer, flags, tag, data, total } = *message;
        body.fill(&self.transport, 0, total);
        let cost = total as u64 + ENVELOPE_COST;
        let (arriving, is_left_behind) = (None, false);
        Unexpected {
            peer,
            flags,
            tag,
            data,
            total,
            body,
            acknowledge,
            arriving,
            cost,
            is_left_behind,
        }
    }

    fn receive_shared_eager(&mut self, receive: u32, arrival: Arrival) {
        self.has_news = true;
        let message = self.eager_message(arrival);
        self.receive_with_care(receive, &message);
        self.acknowledge_taken(arrival.peer, arrival.head);
    }

    /// Answers the last arrival, an eager message that was received, if its sender waits for that.
    #[inline(always)]
    pub(crate) fn acknowledge_taken(&mut self, peer: PeerIndex, head: Head) {
        if let Some(operation) = self.awaited_of(head) {
            self.acknowledge_arrival(peer, operation);
        }
    }

    /// Answers the last arrival, an eager message whose receive was given up meanwhile, if its sender
    /// waits for that.
    #[cold]
    pub(crate) fn refuse_taken(&mut self, peer: PeerIndex, head: Head) {
        self.refuse_arrival(peer, self.awaited_of(head));
    }

    /// The sender's name for the message that the last arrival is, if it waits for a word about it.
    #[inline(always)]
    fn awaited_of(&self, head: Head) -> Option<u64> {
        let is_awaited = head.flags & (wire::ACK_DELIVERY | wire::ACK_MATCH) != 0;
        is_awaited.then(|| self.transport.word(head.words() - 1))
    }

    /// Holds a message until it is asked for. Where receives are shared, or messages announced, it
    /// still has to be offered.
    pub(crate) fn park(&mut self, unexpected: Unexpected) -> u32 {
        let (peer, tag) = (unexpected.peer, unexpected.tag);
        let source = self.peers[peer as usize].matched_as;
        self.hold_charge(peer, unexpected.cost);
        let tagged = unexpected.flags.contains(Flags::TAGGED);
        let index = self.unexpected.insert(unexpected);
        if self.offers {
            return index;
        }
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        matcher.park(source, tag, index);
        index
    }

    #[inline(never)]
    fn arrive_other(&mut self, peer: PeerIndex, head: Head, word: u64, length: usize) -> bool {
        let arrival = Arrival { peer, head, word, length, tiny: None };
        let kind = Kind::from_byte(arrival.head.kind);
        if self.manager.is_some() && !self.admits(peer, kind) {
            return true;
        }
        if self.datagrams.is_some() && !Datagrams::admits(head) {
            self.violation(peer, "it sent more than datagrams");
            return true;
        }
        match kind {
            Some(Kind::Long) => return self.arrive_long(arrival),
            Some(Kind::Eager) => return self.arrive_eager(arrival),
            Some(Kind::Part) => return self.arrive_part(arrival),
            Some(Kind::Consent) => {
                let [from, to] = std::array::from_fn(|index| self.transport.word(index));
                self.arrive_consent(peer, arrival.word, from, to);
            }
            Some(Kind::Share) => self.arrive_share(peer, arrival.word),
            Some(Kind::Wrote) => self.arrive_wrote(peer, arrival.word, self.transport.word(0)),
            Some(Kind::Finish) => self.arrive_finish(peer, arrival.word, self.transport.word(0)),
            Some(Kind::Acknowledge) => self.arrive_finish(peer, arrival.word, 0),
            Some(Kind::Bye) => self.arrive_bye(peer, word),
            Some(kind @ (Kind::Request | Kind::Accept | Kind::Reject | Kind::Established)) => {
                self.arrive_control(peer, kind, head.flags, word, length);
            }
            Some(
                Kind::Write
                | Kind::WriteData
                | Kind::WritePart
                | Kind::Read
                | Kind::Atomic
                | Kind::Data
                | Kind::Done
                | Kind::Written,
            ) => return self.arrive_one_sided(arrival),
            Some(Kind::Invite | Kind::Admit | Kind::Ask | Kind::Lease) => {
                self.arrive_window(arrival);
            }
            Some(Kind::Context) => return self.arrive_context(peer, word),
            Some(Kind::Withdraw) => self.arrive_withdraw(peer, word),
            None => {
                let what = format!("it sent a packet of kind {}", arrival.head.kind);
                self.violation(peer, &what);
            }
        }
        true
    }

    /// Tells the sender that its message was delivered, or matched.
    #[cold]
    #[inline(never)]
    pub(crate) fn acknowledge(&mut self, peer: PeerIndex, operation: u64) {
        self.reply(peer, Reply::new(Kind::Acknowledge, operation, 0));
    }

    /// Tells the sender that its message was delivered, or matched, at the end of an arrival: the only
    /// place where a peer can be dropped because it never takes its replies.
    #[cold]
    #[inline(never)]
    fn acknowledge_arrival(&mut self, peer: PeerIndex, operation: u64) {
        self.acknowledge(peer, operation);
        self.check_replies(peer);
    }

    fn check_replies(&mut self, peer: PeerIndex) {
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
