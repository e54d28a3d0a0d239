//! Long messages: prefix, consent, parts, finish.
//!
//! The sender pushes a prefix unasked. When the receiver has matched the
//! message it consents, the rest follows, and the receiver says when it has all.
//! A message whose prefix is the whole needs neither.

use crate::{
    engine::{
        Engine,
        order::receive::{Owed, Receipt},
        peer::Reply,
        report::Message,
        shortage::growth_of,
    },
    error::{Cause, Errno},
    flags::Flags,
    operation::{Body, Incoming, SendStage, Target, Unexpected},
    protocol::{
        arrive::{OVERDRAWN, UNDER_WAY_MAX, message_flags},
        fetch::Fetch,
        in_sight::IN_SIGHT,
    },
    tag_match::{STICKY, SourceIndex},
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, ENVELOPE_COST, Kind, LONG_WORDS},
};

/// The last number that the kernel and libfabric have for an error.
const ERRNO_MAX: u64 = 4095;

impl Incoming {
    /// What its completion will say.
    pub(crate) fn message(&self) -> Message {
        let Incoming { peer, flags, tag, data, total, .. } = *self;
        Message { peer, flags, tag, data, total }
    }

    /// Whether the sender waits for our consent or our finish.
    pub(crate) fn is_rendezvous(&self) -> bool {
        self.prefix < self.total || self.prefix == 0
    }

    /// The sender's name for it, if it waits for a word about it; `head_flags` are the first packet's.
    fn awaited(&self, head_flags: u8) -> Option<u64> {
        let acknowledged = head_flags & (wire::ACK_DELIVERY | wire::ACK_MATCH) != 0;
        (self.is_rendezvous() || acknowledged).then_some(self.operation)
    }

    /// The credit that it took.
    pub(crate) fn cost(&self) -> u64 {
        if self.prefix == 0 { 0 } else { self.prefix as u64 + ENVELOPE_COST }
    }
}

impl<T: Transport> Engine<T> {
    pub(crate) fn arrive_long(&mut self, arrival: Arrival) -> bool {
        let (peer, flags) = (arrival.peer, arrival.head.flags);
        let operation = self.transport.word(0);
        let known = self.peers[peer as usize].incoming.get(&operation);
        if let Some(&index) = known.filter(|&&index| self.incoming[index].is_left) {
            return self.meet_again(peer, index, arrival.length);
        }
        let Some(incoming) = self.begun_by(arrival, operation).filter(|_| known.is_none()) else {
            self.violation(peer, "a long message contradicts itself");
            return true;
        };
        if self.has_too_many(peer) {
            self.violation(peer, "it has more messages under way than anybody can send");
            return true;
        }
        let Some((from, _)) = self.charge_arrival(peer, incoming.cost()) else {
            self.violation(peer, OVERDRAWN);
            return true;
        };
        let found = self.find_receive(&incoming, from);
        if found.is_none() && self.refuses_messages(peer, flags, incoming.awaited(flags)) {
            return true;
        }
        if found.is_none() && self.leaves_for_later(peer, incoming.cost()) {
            return false;
        }
        if found.is_none() && self.leaves_too_much(peer, incoming.cost()) {
            return self.drops_for_memory();
        }
        // A receive, or memory to wait in for one.
        let place = match found {
            Some(receive) => Ok(receive),
            None => {
                let Incoming { flags, prefix, .. } = incoming;
                let by_name = growth_of(&self.peers[peer as usize].incoming);
                let (cost, beside) = (incoming.cost(), self.incoming.growth() + by_name);
                let Some(body) = self.body_for(peer, flags, prefix, cost, beside) else {
                    return self.drops_for_memory();
                };
                Err(body)
            }
        };
        if incoming.prefix == 0 {
            self.heard_envelope(peer);
        }
        let acknowledge = (flags & wire::ACK_MATCH != 0).then_some(operation);
        let index = self.incoming.insert(incoming);
        self.peers[peer as usize].incoming.insert(operation, index);
        match place {
            Ok((receive, posted)) => {
                self.has_news = true;
                if !self.give(index, receive, posted, acknowledge) {
                    return true;
                }
            }
            Err(body) => {
                // Who got it meanwhile may have all of it by now.
                if self.park_long(index, body, acknowledge) && arrival.length == 0 {
                    return true;
                }
            }
        }
        self.take_as_it_comes(index, arrival.length)
    }

    /// The message that the last arrival begins. None if what it says of itself cannot be.
    #[inline(always)]
    fn begun_by(&self, arrival: Arrival, operation: u64) -> Option<Incoming> {
        let [total, prefix, data, remote] =
            std::array::from_fn::<_, { LONG_WORDS - 1 }, _>(|index| self.transport.word(1 + index));
        let (prefix, key) = (prefix & u64::from(u32::MAX), (prefix >> 32) as u32);
        let valid = prefix <= total
            && arrival.length as u64 <= prefix
            && prefix <= self.limits.prefix as u64
            && (prefix == 0 || (key == 0 && remote == 0))
            && operation != IN_SIGHT;
        let flags = arrival.head.flags;
        valid.then(|| Incoming {
            peer: arrival.peer,
            operation,
            total: total as usize,
            prefix: prefix as usize,
            received: 0,
            asked: prefix as usize,
            end: total as usize,
            target: Target::Nowhere,
            remote,
            fetch: Fetch::of(key),
            own: None,
            sender_waits: flags & wire::WAITS != 0,
            is_left: false,
            flags: message_flags(flags),
            tag: arrival.word,
            data,
            acknowledge_whole: flags & (wire::ACK_DELIVERY | wire::ACK_MATCH) == wire::ACK_DELIVERY,
        })
    }

    /// Whether more messages are under way from `peer` than anybody can send.
    fn has_too_many(&self, peer: PeerIndex) -> bool {
        let record = &self.peers[peer as usize];
        let under_way = record.incoming.len().max(record.replies.len());
        under_way > UNDER_WAY_MAX || self.is_too_late(peer)
    }

    fn heard_envelope(&mut self, peer: PeerIndex) {
        self.peers[peer as usize].note_envelope();
        self.grant_starved(peer);
    }

    /// The receive for a message that begins to arrive, and whether it may still be posted.
    fn find_receive(&mut self, incoming: &Incoming, from: SourceIndex) -> Option<(u32, bool)> {
        let Incoming { peer, flags, tag, total, .. } = *incoming;
        let tagged = flags.contains(Flags::TAGGED);
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        match matcher.take_posted(from, tag) {
            Some(receive) => Some((receive & !STICKY, true)),
            None => Some((self.take_shared(peer, flags, tag, total)?, false)),
        }
    }

    /// Returns whether somebody got it at once: a shared receive, or who buffers messages.
    fn park_long(&mut self, index: u32, body: Body, acknowledge: Option<u64>) -> bool {
        let parked = self.park(self.not_placed(index, body, acknowledge));
        self.incoming[index].target = Target::Unexpected(parked);
        self.offer_parked(parked)
    }

    /// What is kept of a message that begins to arrive and has no place in a buffer yet.
    fn not_placed(&self, index: u32, body: Body, acknowledge: Option<u64>) -> Unexpected {
        let incoming = &self.incoming[index];
        let whole = !incoming.is_rendezvous();
        Unexpected {
            peer: incoming.peer,
            flags: incoming.flags,
            tag: incoming.tag,
            data: incoming.data,
            total: incoming.total,
            body,
            acknowledge: if whole { acknowledge } else { None },
            arriving: Some(index),
            cost: incoming.cost(),
            is_left_behind: false,
        }
    }

    /// A message that begins to arrive was matched before its turn to be written.
    #[cold]
    #[inline(never)]
    fn hold_long(
        &mut self,
        index: u32,
        (receive, is_posted): (u32, bool),
        acknowledge: Option<u64>,
    ) {
        let body = Body::new(self.incoming[index].prefix);
        let message = self.not_placed(index, body, acknowledge);
        self.hold_charge(message.peer, message.cost);
        let target = self.open_receive(receive, is_posted, message.total);
        let parked = self.unexpected.insert(message);
        self.hold(target, parked);
    }

    /// Gives a message that begins to arrive to the receive that it has matched. Returns whether it
    /// comes in packets.
    fn give(
        &mut self,
        index: u32,
        receive: u32,
        is_posted: bool,
        acknowledge: Option<u64>,
    ) -> bool {
        if self.waits_for_data(self.incoming[index].peer) {
            self.hold_long(index, (receive, is_posted), acknowledge);
            return true;
        }
        let target = self.open_receive(receive, is_posted, self.incoming[index].total);
        self.aim(index, target);
        self.matched(index, acknowledge)
    }

    /// Gives an incoming message the place that it was matched with.
    pub(crate) fn aim(&mut self, index: u32, target: Target) {
        self.incoming[index].target = target;
        if self.receives_in_order {
            self.enter_receive_line(index);
        }
    }

    /// The receive for an incoming message is known: it is read from the sender's memory, or the
    /// sender may go on. Returns whether it comes in packets.
    pub(crate) fn matched(&mut self, index: u32, acknowledge: Option<u64>) -> bool {
        if !self.incoming[index].is_rendezvous() {
            // With its last packet: the sender lets go of what is acknowledged.
            self.incoming[index].acknowledge_whole |= acknowledge.is_some();
            return true;
        }
        // What comes in packets is written in order.
        if self.orders.data.is_none() && (self.pull(index) || self.fetch(index)) {
            return false;
        }
        self.consent(index);
        true
    }

    /// Asks the sender for what has not come yet. With that its loan is over.
    pub(crate) fn consent(&mut self, index: u32) {
        let incoming = &mut self.incoming[index];
        incoming.fetch.key = 0;
        incoming.asked = incoming.end;
        let Incoming { peer, operation, received, prefix, end, .. } = *incoming;
        let from = received.max(prefix) as u64;
        let words = [from, end as u64, 0, 0];
        self.reply(peer, Reply { kind: Kind::Consent, operation, words });
    }

    /// More of a message. Returns whether it has been taken: it may be copied in still.
    pub(crate) fn arrive_part(&mut self, arrival: Arrival) -> bool {
        let peer = arrival.peer;
        // One that was discarded may still have parts on the way.
        let Some(&index) = self.peers[peer as usize].incoming.get(&arrival.word) else {
            return true;
        };
        let Incoming { received, asked, .. } = self.incoming[index];
        // Nothing is left to come of what was not asked for, or is read from the sender's memory: not
        // even an empty part.
        let fits = received < asked && arrival.length <= asked - received;
        if self.transport.word(0) != received as u64 || !fits {
            self.violation(peer, "a part is out of place");
            return true;
        }
        self.take_as_it_comes(index, arrival.length)
    }

    /// Places the packet's part of an incoming message, and finishes the message
    /// if that was all.
    pub(crate) fn take_part(&mut self, index: u32, length: usize) {
        let incoming = &mut self.incoming[index];
        let at = incoming.received;
        incoming.received += length;
        match incoming.target {
            Target::GivenUp => return self.forget_given_up(index),
            Target::Receive { receive, start, room } if length > 0 => {
                let pieces = self.receives[receive].pieces.view();
                let room = room.saturating_sub(at);
                self.place_payload(pieces, start + at, room, length);
            }
            Target::Unexpected(parked) | Target::Buffered(parked) if length > 0 => {
                self.unexpected[parked].body.fill(&self.transport, at, length);
            }
            _ => {}
        }
        self.finish_if_whole(index);
    }

    /// Completes an incoming message of which everything has come.
    pub(crate) fn finish_if_whole(&mut self, index: u32) {
        let incoming = &self.incoming[index];
        if incoming.received != incoming.end {
            return;
        }
        match incoming.target {
            Target::Unexpected(parked) if !incoming.is_rendezvous() => {
                self.unexpected[parked].arriving = None;
                self.close_incoming(index);
            }
            Target::Buffered(parked) => self.buffer_more(index, parked),
            Target::Receive { receive, start, room } => {
                let message = incoming.message();
                let owed = self.close_matched(index);
                self.close_receive(Some(index), receive, &message, start, room, owed);
            }
            Target::Nowhere => self.close_incoming(index),
            Target::Unexpected(_) | Target::GivenUp => {}
        }
    }

    /// The first packet of a message that was given up has been taken: whatever else comes of it finds
    /// nobody.
    #[cold]
    fn forget_given_up(&mut self, index: u32) {
        let Incoming { peer, operation, .. } = self.incoming.remove(index);
        self.peers[peer as usize].incoming.remove(&operation);
    }

    /// Forgets an incoming message and tells a sender that waits for it.
    pub(crate) fn close_incoming(&mut self, index: u32) {
        let incoming = self.forget_incoming(index);
        if incoming.is_rendezvous() {
            self.reply(incoming.peer, incoming.finish());
        } else if incoming.acknowledge_whole {
            self.acknowledge(incoming.peer, incoming.operation);
        }
    }

    /// The same of one that is in its receive's buffer. Returns what its sender gets when that is told: one
    /// whose sender waits for a word gets that then, if it would wait for its turn beyond the budget.
    fn close_matched(&mut self, index: u32) -> Owed {
        let incoming = &self.incoming[index];
        if !incoming.is_rendezvous() {
            self.close_incoming(index);
            return Owed::Credit;
        }
        if !self.is_late(incoming.peer) {
            self.close_incoming(index);
            return Owed::Nothing;
        }
        Owed::Late(Some(self.forget_incoming(index).finish()))
    }

    fn forget_incoming(&mut self, index: u32) -> Incoming {
        let incoming = self.incoming.remove(index);
        self.peers[incoming.peer as usize].incoming.remove(&incoming.operation);
        incoming
    }

    /// The receiver of one of our messages lets us go on.
    pub(crate) fn arrive_consent(&mut self, peer: PeerIndex, name: u64, from: u64, to: u64) {
        let Some(index) = self.own_send(peer, name) else {
            return;
        };
        let send = &mut self.sends[index];
        if from < send.prefix as u64 || from > to || to > send.total as u64 {
            return self.violation(peer, "it asked for what a message does not have");
        }
        send.until = to as usize;
        // Whoever asks for parts does not fetch it.
        if send.lent.take().is_some() {
            self.note_refused(peer, index);
        }
        let send = &mut self.sends[index];
        match send.stage {
            SendStage::AwaitConsent if from == to => send.stage = SendStage::AwaitFinish,
            SendStage::AwaitConsent => self.stream_on(peer, index, from),
            // Consent came while the prefix was still leaving: the receiver is
            // there, so the whole message may leave as a prefix does.
            SendStage::Prefix => self.sends[index].consented = true,
            // It has the start that it asked for, and now wants more.
            SendStage::AwaitFinish if from >= send.sent as u64 => self.stream_on(peer, index, from),
            _ => self.violation(peer, "it consented to a message twice"),
        }
    }

    /// Sends what the receiver has asked for, from byte `from` on.
    fn stream_on(&mut self, peer: PeerIndex, index: u32, from: u64) {
        let send = &mut self.sends[index];
        send.sent = from as usize;
        send.stage = SendStage::Streaming;
        self.peers[peer as usize].streams.push_back(index);
        self.pump(peer);
        self.note_backlog(peer);
    }

    /// The receiver has all of one of our messages, or wants no more of it.
    pub(crate) fn arrive_finish(&mut self, peer: PeerIndex, name: u64, word: u64) {
        let Some(index) = self.own_send(peer, name) else {
            return;
        };
        let errno = word & !wire::REGISTERED;
        if errno > ERRNO_MAX {
            return self.violation(peer, "it gave a message up for what is no error");
        }
        let record = &mut self.peers[peer as usize];
        match self.sends[index].stage {
            SendStage::Queued | SendStage::AwaitConfirmation => {
                return self.violation(peer, "it finished a message that has not left");
            }
            // The receiver discarded it while its prefix was still leaving.
            SendStage::Prefix => record.queue.retain(|&queued| queued != index),
            SendStage::Streaming => {
                record.streams.retain(|&stream| stream != index);
                record.awaiting -= 1;
            }
            SendStage::AwaitConsent | SendStage::AwaitFinish => record.awaiting -= 1,
        }
        if errno == 0 {
            self.note_fetched(peer, index, word);
            self.finish_send(index);
        } else {
            let (address, errno) = (self.peers[peer as usize].address, Errno(errno as i32));
            let reason = format!("{address} gave the message up: {errno} ({})", errno.name());
            self.fail_send(index, &Cause { errno, reason });
        }
        // A fenced send may have waited for this.
        self.note_backlog(peer);
    }

    fn own_send(&self, peer: PeerIndex, name: u64) -> Option<u32> {
        let index = self.sends.index_of(name)?;
        (self.sends[index].peer == peer).then_some(index)
    }

    /// Where in the buffer of its receive a message of `total` bytes goes, and how much of it fits.
    pub(crate) fn open_receive(&mut self, receive: u32, is_posted: bool, total: usize) -> Target {
        if self.receives[receive].flags.contains(Flags::MULTI_RECV) {
            return self.open_multi(receive, is_posted, total);
        }
        let room = self.receives[receive].pieces.view().total();
        Target::Receive { receive, start: 0, room }
    }

    /// All of a message is in its receive's buffer: of one that was `incoming`, or came at once. Where it
    /// waits for its turn, its sender gets what it is `owed` then.
    pub(crate) fn close_receive(
        &mut self,
        incoming: Option<u32>,
        receive: u32,
        message: &Message,
        start: usize,
        room: usize,
        owed: Owed,
    ) {
        if self.receives_in_order {
            let receipt = Receipt::Whole { receive, message: *message, start, room };
            self.tell_in_turn(message.peer, incoming, receipt, owed);
            if let Some(incoming) = incoming {
                self.write_next(message.peer, incoming);
            }
            return;
        }
        self.report_whole(receive, message, start, room);
    }

    /// Reports a message that is in its receive's buffer.
    pub(crate) fn report_whole(
        &mut self,
        receive: u32,
        message: &Message,
        start: usize,
        room: usize,
    ) {
        if self.receives[receive].flags.contains(Flags::MULTI_RECV) {
            self.close_multi(receive, message, start, room);
        } else {
            self.report_received(receive, message, room);
            self.end_slice(receive);
        }
    }
}
