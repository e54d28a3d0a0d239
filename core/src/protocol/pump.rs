//! Pushing what waits: replies first, then queued sends in order, in turns with
//! the streams of messages that the receiver has consented to.

use crate::{
    engine::{
        Engine,
        peer::{ONE_SIDED, PeerState},
    },
    flags::Flags,
    memory::Piece,
    operation::SendStage,
    protocol::{
        contest::{Discipline, Manner},
        fence::Earlier,
    },
    transport::{Limits, PeerIndex, Room, Transport},
    window::Loan,
    wire::{self, ENVELOPE_COST, Head, Kind},
};

/// How what is long is cut into parts, so that the receiver copies one out while the sender copies
/// the next one in.
pub(crate) struct Cut {
    /// How many parts there are at least,
    parts_min: usize,
    /// unless they were shorter than this, which their length is a multiple of. Units: bytes.
    part_min: usize,
}

impl Cut {
    /// For a receiver that waits.
    const SHORT: Cut = Cut { parts_min: 6, part_min: 1 << 10 };
    /// For one that is busy with what came before.
    const BUSY: Cut = Cut { parts_min: 6, part_min: 16 << 10 };

    /// For a receiver that is busy, or waits.
    pub(crate) fn to(busy: bool) -> Cut {
        if busy { Cut::BUSY } else { Cut::SHORT }
    }

    /// How long the parts of `total` bytes are, which fit into a fragment.
    pub(crate) fn part_of(&self, total: usize, fragment: usize) -> usize {
        let ideal = (total / self.parts_min).next_multiple_of(self.part_min);
        ideal.max(self.part_min).min(fragment)
    }
}

impl<T: Transport> Engine<T> {
    /// Pushes as much for `peer` as there is room for. Returns whether anything
    /// moved.
    pub(crate) fn pump(&mut self, peer: PeerIndex) -> bool {
        if self.peers[peer as usize].control.is_some() && !self.push_control(peer) {
            return false;
        }
        if self.peers[peer as usize].state != PeerState::Ready {
            if self.peers[peer as usize].has_work() {
                self.ensure_connection(peer);
            }
            return false;
        }
        let mut moved = false;
        while let Some(&reply) = self.peers[peer as usize].replies.front() {
            let head = Head::new(reply.kind, 0);
            let words = &reply.words[..head.words()];
            if !self.transport.push(peer, head, reply.operation, words, Piece::EMPTY) {
                return moved;
            }
            self.peers[peer as usize].replies.pop_front();
            moved = true;
        }
        loop {
            let queued = self.pump_queue(peer);
            let streamed = self.pump_stream(peer);
            let served = self.pump_serving(peer);
            moved |= queued || streamed || served;
            if !queued && !streamed && !served {
                self.peers[peer as usize].settle();
                return moved;
            }
        }
    }

    /// Pushes one packet of the send at the head of the queue.
    fn pump_queue(&mut self, peer: PeerIndex) -> bool {
        let Some(&index) = self.peers[peer as usize].queue.front() else {
            return false;
        };
        if index & ONE_SIDED != 0 {
            return self.pump_remote(peer, index & !ONE_SIDED);
        }
        // A message finds done what was written before it.
        if self.peers[peer as usize].window.under_way > 0 {
            return false;
        }
        let send = &self.sends[index];
        match send.stage {
            SendStage::Queued => {
                let fenced = send.flags.contains(Flags::FENCE);
                let record = &self.peers[peer as usize];
                if fenced && record.has_unfinished()
                    || record.fenced
                        && self.is_behind_a_fence(peer, Earlier::Send(self.sends.name(index)))
                {
                    return false;
                }
                self.push_first(peer, index)
            }
            _ => self.push_prefix(peer, index),
        }
    }

    /// Pushes the first packet of a send, and decides how it is cut.
    fn push_first(&mut self, peer: PeerIndex, index: u32) -> bool {
        if self.datagrams.is_some() {
            return self.push_datagram(peer, index);
        }
        let total = self.sends[index].total;
        let contiguous = self.sends[index].pieces.view().contiguous(0, total);
        let streaming = self.peers[peer as usize].is_streaming();
        let Limits { single, fragment, .. } = self.limits;
        let single = if streaming { fragment } else { single };
        let one_piece = contiguous.len() == total;
        // What is injected is not left to be read: its sender was told that it is done, and may be gone.
        let reachable = one_piece && !self.sends[index].flags.contains(Flags::INJECT);
        let readable = reachable && total > 0 && self.transport.is_readable_by(peer);
        // What is shown is cut by the transport.
        let shown = self.shown_flag(peer) != 0;
        let part = if shown { fragment } else { Cut::to(streaming).part_of(total, fragment) };
        (self.sends[index].part, self.sends[index].shown) = (part, shown);
        let lent = reachable && self.lend(peer, index, contiguous, streaming);
        let readable = readable && total >= self.limits.single_copy_from(streaming) && !lent;
        let pushed = if lent || readable && self.leaves_to_read(index, streaming) {
            self.push_long(peer, index, 0, streaming)
        } else {
            let cost = total as u64 + ENVELOPE_COST;
            let whole = one_piece
                && total <= single.max(self.sends[index].part)
                && self.has_credit(peer, cost)
                && self.push_whole(peer, index, contiguous, cost);
            // Without credit, or without room for all of it at once: there may be for some.
            whole || {
                let prefix = self.prefix_within_credit(peer, total.min(self.limits.prefix));
                self.push_long(peer, index, prefix, streaming)
            }
        };
        if pushed {
            self.peers[peer as usize].note_send();
        }
        pushed
    }

    /// The head's flag of a packet that is shown while it is copied in, if its receiver waits for it.
    #[inline(always)]
    pub(crate) fn shown_flag(&self, peer: PeerIndex) -> u8 {
        let waits = self.limits.shows()
            && self.datagrams.is_none()
            && !self.peers[peer as usize].is_streaming();
        if waits { wire::WAITS } else { 0 }
    }

    /// Whether a message is known to go as one packet.
    #[inline]
    pub(crate) fn goes_whole(&mut self, peer: PeerIndex, total: usize) -> bool {
        let Limits { single, fragment, contested, .. } = self.limits;
        if total <= single || total > fragment || self.datagrams.is_some() {
            return total <= single;
        }
        let streaming = self.peers[peer as usize].is_streaming();
        let whole = streaming || self.limits.shows();
        if total < self.limits.single_copy_from(streaming) || !self.transport.is_readable_by(peer) {
            return whole;
        }
        contested
            && self.contests.of(Discipline::CopiedMessages).take_settled(
                total,
                streaming,
                |manner| match manner {
                    Manner::Direct => false,
                    Manner::Packets => whole,
                },
            )
    }

    /// Whether a send that its receiver can read is left to be read.
    #[inline]
    fn leaves_to_read(&mut self, index: u32, streaming: bool) -> bool {
        !self.limits.contested || self.goes_directly(index, Discipline::CopiedMessages, streaming)
    }

    /// Whether a send should go directly, and not as packets, by what is known of its length.
    #[inline]
    pub(crate) fn goes_directly(
        &mut self,
        index: u32,
        discipline: Discipline,
        streaming: bool,
    ) -> bool {
        let send = &mut self.sends[index];
        let (manner, run) = self.contests.of(discipline).choose(send.total, streaming);
        send.run = run;
        if manner != Manner::Direct && run.is_some() {
            // What goes directly ends with the receiver's word: packets are timed until the same moment.
            send.flags |= Flags::DELIVERY_COMPLETE;
        }
        manner == Manner::Direct
    }

    /// Pushes a send as one packet that is charged `cost`.
    pub(crate) fn push_whole(
        &mut self,
        peer: PeerIndex,
        index: u32,
        piece: Piece,
        cost: u64,
    ) -> bool {
        let name = self.sends.name(index);
        let send = &self.sends[index];
        let (mut words, mut count) = ([0; 2], 0);
        let mut word = |value| {
            words[count] = value;
            count += 1;
        };
        if send.flags.contains(Flags::REMOTE_CQ_DATA) {
            word(send.data);
        }
        if send.wants_acknowledgement() {
            word(name);
        }
        // Who is told of the match is told when all of it is there.
        let shown = piece.len() > self.limits.short && !send.flags.contains(Flags::MATCH_COMPLETE);
        let shown = if shown { self.shown_flag(peer) } else { 0 };
        let head = Head::new(Kind::Eager, send.head_flags() | shown);
        self.confirm_last(peer, index, piece.len());
        let tag = self.sends[index].tag;
        if !self.transport.push(peer, head, tag, &words[..count], piece) {
            return false;
        }
        self.peers[peer as usize].credit.charged += cost;
        self.leave_queue(peer, index, false);
        true
    }

    /// Takes a send whose prefix has left off its peer's queue.
    fn leave_queue(&mut self, peer: PeerIndex, index: u32, rendezvous: bool) {
        self.peers[peer as usize].queue.pop_front();
        if !rendezvous && self.awaits_confirmation(peer, index) {
            return self.await_confirmation(peer, index);
        }
        let send = &mut self.sends[index];
        if !rendezvous && !send.wants_acknowledgement() {
            return self.finish_send(index);
        }
        self.peers[peer as usize].awaiting += 1;
        if send.consented {
            send.stage = SendStage::Streaming;
            self.peers[peer as usize].streams.push_back(index);
        } else {
            send.stage = if rendezvous { SendStage::AwaitConsent } else { SendStage::AwaitFinish };
        }
    }

    /// Pushes the first packet of a long message: what it is, and the start of
    /// its prefix; without one, where the receiver may read it.
    fn push_long(&mut self, peer: PeerIndex, index: u32, prefix: usize, streaming: bool) -> bool {
        let total = self.sends[index].total;
        let Some(part) = self.next_part(peer, index, 0, prefix) else {
            return false;
        };
        let name = self.sends.name(index);
        let send = &self.sends[index];
        let whole = send.pieces.view().contiguous(0, total);
        // Where the peer cannot or is not to read it, the address would only tell it how our memory lies.
        let key = send.lent.as_ref().map_or(0, Loan::remote_key);
        let readable = key != 0 || self.transport.is_readable_by(peer);
        let told =
            prefix == 0 && whole.len() == total && readable && !send.flags.contains(Flags::INJECT);
        let remote = if told { whole.as_ptr() as u64 } else { 0 };
        let flags = send.head_flags() | if streaming { 0 } else { wire::WAITS };
        let words = [name, total as u64, prefix as u64 | u64::from(key) << 32, send.data, remote];
        let tag = send.tag;
        self.confirm_last(peer, index, part.len());
        if !self.transport.push(peer, Head::new(Kind::Long, flags), tag, &words, part) {
            return false;
        }
        if prefix > 0 {
            self.peers[peer as usize].credit.charged += prefix as u64 + ENVELOPE_COST;
        }
        self.peers[peer as usize].window.longs += 1;
        let send = &mut self.sends[index];
        send.prefix = prefix;
        send.sent = part.len();
        send.stage = SendStage::Prefix;
        if send.sent == prefix {
            self.leave_queue(peer, index, prefix < total || prefix == 0);
        }
        true
    }

    /// Pushes a further packet of the prefix at the head of the queue.
    fn push_prefix(&mut self, peer: PeerIndex, index: u32) -> bool {
        let (sent, prefix) = (self.sends[index].sent, self.sends[index].prefix);
        if !self.push_part(peer, index, sent, prefix) {
            return false;
        }
        if self.sends[index].sent == prefix {
            let rendezvous = prefix < self.sends[index].total;
            self.leave_queue(peer, index, rendezvous);
        }
        true
    }

    /// Pushes one packet of the oldest consented message.
    fn pump_stream(&mut self, peer: PeerIndex) -> bool {
        let Some(&index) = self.peers[peer as usize].streams.front() else {
            return false;
        };
        let (sent, until) = (self.sends[index].sent, self.sends[index].until);
        if !self.push_part(peer, index, sent, until) {
            return false;
        }
        if self.sends[index].sent == until {
            self.sends[index].stage = SendStage::AwaitFinish;
            self.peers[peer as usize].streams.pop_front();
        }
        true
    }

    fn push_part(&mut self, peer: PeerIndex, index: u32, sent: usize, end: usize) -> bool {
        let Some(part) = self.next_part(peer, index, sent, end) else {
            return false;
        };
        let name = self.sends.name(index);
        // Further on both sides copy at once, each another packet: who looked at the one that is being
        // filled would only take its lines away.
        let send = &self.sends[index];
        let flags = if send.shown && sent < send.prefix { wire::WAITS } else { 0 };
        let head = Head::new(Kind::Part, flags);
        self.confirm_last(peer, index, sent + part.len());
        if !self.transport.push(peer, head, name, &[sent as u64], part) {
            return false;
        }
        self.sends[index].sent = sent + part.len();
        true
    }

    /// The part of the message from `sent` on that one packet should carry, if
    /// there is room for it now.
    fn next_part(&mut self, peer: PeerIndex, index: u32, sent: usize, end: usize) -> Option<Piece> {
        let send = &self.sends[index];
        let piece = send.pieces.view().contiguous(sent, send.part.min(end - sent));
        fit(&mut self.transport, peer, piece)
    }
}

/// As much of `piece` as one packet has room for now, if it has any.
pub(crate) fn fit<T: Transport>(transport: &mut T, peer: PeerIndex, piece: Piece) -> Option<Piece> {
    match transport.room(peer, piece.len()) {
        Room::Full => None,
        Room::Bytes(0) if !piece.is_empty() => None,
        Room::Bytes(bytes) => Some(piece.part(0, bytes)),
    }
}
