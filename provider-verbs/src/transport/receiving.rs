//! Receiving: packets wait in their buffers, in order for each peer, until they are consumed.

use kestrel_core::{
    error::{Cause, Errno},
    memory::Piece,
    transport::{Arrival, PeerIndex, TransportEvent},
    wire::Head,
};

use super::{CREDIT_BYTES, Came, Filled, HEAD_BYTES, Owner, RcTransport};
use crate::{
    control::Command,
    receive_pool::{BufferIndex, WINDOW_MIN},
    verbs::{Completion, Completions, EMPTY, Queues, Region, Status, Verb, Verbs, VerbsError},
};

/// Free buffers that wait at most until they are posted.
const RETURNED_MAX: usize = 16;
/// Packets that are kept for a connection that nobody has adopted yet: what it was granted, and one more, by
/// which it is known that it took more.
const EARLY_MAX: usize = WINDOW_MIN as usize + 1;
/// What peers do that take more buffers than they are granted, or take them by a write.
pub(super) const TOO_MANY_PACKETS: &str = "it sent more packets than it was granted";
pub(super) const WROTE_ASTRAY: &str = "it wrote with data where packets come";

/// The packet that was last handed out.
#[derive(Clone, Copy)]
pub(super) struct Current {
    pub(super) peer: PeerIndex,
    buffer: BufferIndex,
    /// Where its payload starts, and where it ends, in the packet.
    payload: usize,
    bytes: usize,
}

/// What came on a queue pair that nobody has adopted yet.
#[derive(Default)]
pub(super) struct Early {
    pub(super) packets: Vec<Filled>,
    /// A write with data took a buffer.
    pub(super) wrote: bool,
}

impl Current {
    /// What came without a packet of its own.
    pub(super) fn without_packet(peer: PeerIndex) -> Current {
        Current { peer, buffer: 0, payload: 0, bytes: 0 }
    }
}

impl<V: Verbs> RcTransport<V> {
    /// Fetches completions of receives. Returns whether there were any.
    #[inline(always)]
    pub(super) fn poll_receives(&mut self) -> bool {
        let mut completions = Completions::new();
        self.shared.queues.poll_receives(&mut completions);
        for completion in &completions {
            self.receive_completed(completion);
        }
        !completions.is_empty()
    }

    #[inline(always)]
    fn receive_completed(&mut self, completion: &Completion) {
        if completion.request == EMPTY {
            return self.guest_wrote(completion);
        }
        let buffer = completion.request as BufferIndex;
        let filled = Filled { buffer, bytes: completion.bytes };
        let owner = self.owners.get(&completion.queue_pair).copied();
        if completion.status != Status::SUCCESS {
            self.take_back(buffer);
            if let Some(owner) = owner {
                self.queue_pair_failed(owner, completion.status);
            }
            return;
        }
        if completion.immediate.is_some() {
            return self.wrote_astray(completion.queue_pair, owner, buffer);
        }
        match owner {
            Some(Owner::Receive(peer)) => {
                let lane = self.peers[peer as usize].receive.as_mut();
                let covered = lane.is_some_and(|lane| lane.arrive(filled));
                self.note_ready(peer);
                if !covered {
                    self.broke(peer, TOO_MANY_PACKETS);
                }
            }
            Some(Owner::Retired | Owner::Send(_) | Owner::Window(_)) => self.take_back(buffer),
            // It speaks before the engine has heard of it.
            None => self.arrived_early(completion.queue_pair, filled),
        }
    }

    /// Takes back a buffer from which nothing will be consumed.
    #[cold]
    fn take_back(&mut self, buffer: BufferIndex) {
        self.returned.push(buffer);
        self.has_strays = true;
    }

    /// Posts such buffers. Where they are all that there are, nothing comes until they are posted; and not
    /// as they come, or of looking for more there may be no end.
    pub(super) fn post_strays(&mut self) {
        if std::mem::take(&mut self.has_strays) {
            self.post_returned();
        }
    }

    /// A write has taken a buffer, and put nothing into it: it went where its key let it.
    #[cold]
    #[inline(never)]
    fn wrote_astray(&mut self, queue_pair: u32, owner: Option<Owner>, buffer: BufferIndex) {
        self.take_back(buffer);
        match owner {
            Some(Owner::Receive(peer)) => self.broke(peer, WROTE_ASTRAY),
            Some(Owner::Retired | Owner::Send(_) | Owner::Window(_)) => {}
            // It is told when the engine has heard of it.
            None => self.early.entry(queue_pair).or_default().wrote = true,
        }
    }

    /// Something waits that came from a peer.
    #[inline(always)]
    pub(super) fn note_ready(&mut self, peer: PeerIndex) {
        if !std::mem::replace(&mut self.peers[peer as usize].is_ready, true) {
            self.ready.push_back(peer);
        }
    }

    #[cold]
    #[inline(never)]
    fn arrived_early(&mut self, queue_pair: u32, filled: Filled) {
        let early = &mut self.early.entry(queue_pair).or_default().packets;
        if early.is_empty() {
            self.control.command(Command::Used { queue_pair });
        }
        if early.len() < EARLY_MAX {
            early.push(filled);
        } else {
            self.take_back(filled.buffer);
        }
    }

    /// Whether a packet waits for a peer that is still connected.
    pub(super) fn has_ready_packet(&self) -> bool {
        let waits = |peer: &PeerIndex| {
            let lane = self.peers[*peer as usize].receive.as_ref();
            lane.is_some_and(|lane| !lane.arrived.is_empty())
        };
        self.ready.iter().any(waits)
    }

    #[inline(always)]
    pub(super) fn next_arrival(&mut self) -> Option<Arrival> {
        if self.ready.is_empty() && !self.poll_receives() {
            return None;
        }
        loop {
            while let Some(&peer) = self.ready.front() {
                // A packet that is left where it is comes first again: its peer's turn ends
                // when one is consumed, or passed over.
                if let Some(arrival) = self.arrival_of(peer) {
                    return Some(arrival);
                }
                self.ready.pop_front();
                self.peers[peer as usize].is_ready = false;
            }
            if !self.poll_receives() {
                return None;
            }
        }
    }

    /// The first packet may stay where it is for long: others have their turn, and are looked for.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_first_over(&mut self) {
        self.poll_receives();
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// The oldest packet of `peer`, checked for form.
    #[inline(always)]
    pub(super) fn arrival_of(&mut self, peer: PeerIndex) -> Option<Arrival> {
        let lane = self.peers.get_mut(peer as usize)?.receive.as_mut()?;
        if lane.broken {
            return None;
        }
        let Filled { buffer, bytes } = match *lane.arrived.front()? {
            Came::Packet(filled) => filled,
            Came::Written(written) => return Some(self.tell_written(peer, written)),
        };
        let bytes = bytes as usize;
        let (region, start) = self.shared.receives.buffer(buffer);
        let memory = region.memory();
        let head = Head::from_word(memory.word(start) as u32);
        let payload = HEAD_BYTES + head.words() * 8;
        if bytes < payload {
            if let Some(buffer) = lane.take_goodbye() {
                self.returned.push(buffer);
                return self.written_behind_goodbye(peer);
            }
            self.broke(peer, "a packet is shorter than its kind");
            return None;
        }
        let length = bytes - payload;
        let tiny = (length == 8).then(|| memory.word(start + payload));
        let word = memory.word(start + 8);
        self.current = Some(Current { peer, buffer, payload, bytes });
        Some(Arrival { peer, head, word, length, tiny })
    }

    /// The oldest of what a peer has written and was not told when its goodbye came.
    #[cold]
    #[inline(never)]
    fn written_behind_goodbye(&mut self, peer: PeerIndex) -> Option<Arrival> {
        let lane = self.peers[peer as usize].receive.as_ref()?;
        match *lane.arrived.front()? {
            Came::Written(written) => Some(self.tell_written(peer, written)),
            // There is none: a goodbye is the last packet.
            Came::Packet(_) => None,
        }
    }

    #[inline(always)]
    pub(super) fn current_word(&self, index: usize) -> u64 {
        let Some(current) = &self.current else {
            return 0;
        };
        let (region, start) = self.shared.receives.buffer(current.buffer);
        region.memory().word(start + HEAD_BYTES + index * 8)
    }

    #[inline(always)]
    pub(super) fn copy_current(&self, offset: usize, to: Piece) {
        if let Some(current) = &self.current {
            let (region, start) = self.shared.receives.buffer(current.buffer);
            let from = current.payload + offset;
            let to = to.part(0, current.bytes.saturating_sub(from));
            region.memory().copy_out(start + from, to);
        }
    }

    #[inline(always)]
    pub(super) fn consume_current(&mut self) {
        // None: its connection is over.
        let Some(Current { peer, buffer, .. }) = self.current.take() else {
            return;
        };
        let Some(lane) = &mut self.peers[peer as usize].receive else {
            return;
        };
        let consumed = lane.arrived.pop_front();
        if self.ready.len() > 1 && self.ready.front() == Some(&peer) {
            self.ready.rotate_left(1);
        }
        if let Some(Came::Written(written)) = consumed {
            return self.written_was_told(peer, written);
        }
        lane.consumed = lane.consumed.wrapping_add(1);
        self.returned.push(buffer);
        if lane.wants_grant() {
            self.grant_packets(peer);
        } else if self.returned.len() >= RETURNED_MAX {
            self.post_returned();
        }
    }

    /// Posts the buffers that are free.
    pub(super) fn post_returned(&mut self) {
        if let Err(error) = self.shared.receives.post(&self.returned) {
            // The queue is as deep as there are buffers, so this is a device that is gone.
            tracing::error!("no receive buffer can be posted: {error}");
        }
        self.returned.clear();
    }

    /// Grants a peer that has used half of its window the rest of it again.
    fn grant_packets(&mut self, peer: PeerIndex) {
        self.post_returned();
        let pool = &self.shared.receives;
        let Some(lane) = &mut self.peers[peer as usize].receive else {
            return;
        };
        if lane.failed || lane.broken {
            return;
        }
        let wanted = lane.window_wanted(pool.lendable());
        if wanted < lane.window {
            pool.return_lent(lane.window - wanted);
            lane.window = wanted;
        } else if wanted > lane.window && pool.lend(wanted - lane.window) {
            lane.window = wanted;
        }
        let granted = lane.consumed.wrapping_add(lane.window);
        let more = granted.wrapping_sub(std::mem::replace(&mut lane.granted, granted));
        if let Err(error) = lane.queue.provide(more) {
            return self.receiving_failed(peer, &error);
        }
        self.write_credit(peer);
    }

    /// Writes credit of a peer that found no room, unless a later one has.
    pub(super) fn write_due_credit(&mut self, peer: PeerIndex) {
        let lane = self.peers[peer as usize].receive.as_mut();
        if lane.is_some_and(|lane| std::mem::take(&mut lane.due)) {
            self.write_credit(peer);
        }
    }

    /// Writes a peer's credit into its memory, now or when there is room to, and the credit before it is
    /// there: networks that route each packet anew may carry the later of two writes out first, and the
    /// earlier one would take back what the later one gave.
    pub(super) fn write_credit(&mut self, peer: PeerIndex) {
        let Some(lane) = self.peers[peer as usize].receive.as_mut() else {
            return;
        };
        // What is due is among what is written now: not twice.
        let was_due = std::mem::take(&mut lane.due);
        if !lane.queue.is_idle() {
            self.reap_sends();
        }
        let Some(lane) = self.peers[peer as usize].receive.as_mut() else {
            return;
        };
        if lane.failed || lane.broken {
            return;
        }
        let inline = lane.queue.takes_inline(CREDIT_BYTES);
        let may_write = lane.queue.is_idle() && lane.queue.has_room(&self.sends);
        let slot = if may_write { self.sends.take_for(inline) } else { None };
        let Some(slot) = slot else {
            lane.due = true;
            if !was_due {
                self.due.push(peer);
            }
            return;
        };
        self.sends.write(slot, &lane.credit_words(), &[], Piece::EMPTY);
        let to = Verb::Write(lane.credit_at());
        if let Err(error) = lane.queue.post(&mut self.sends, slot, CREDIT_BYTES, to, false) {
            self.receiving_failed(peer, &error);
        }
    }

    /// The device takes nothing more of a connection. What came before is still read.
    #[cold]
    #[inline(never)]
    fn receiving_failed(&mut self, peer: PeerIndex, error: &VerbsError) {
        if let Some(lane) = &mut self.peers[peer as usize].receive
            && !std::mem::replace(&mut lane.failed, true)
        {
            let reason = Cause::of(error);
            self.tell(TransportEvent::Broken { peer, reason });
        }
    }

    /// The peer, or its connection, does what it must not.
    #[cold]
    #[inline(never)]
    pub(super) fn broke(&mut self, peer: PeerIndex, what: &str) {
        if let Some(lane) = &mut self.peers[peer as usize].receive
            && !std::mem::replace(&mut lane.broken, true)
        {
            let reason = format!("{} broke the protocol: {what}", lane.peer.address);
            let reason = Cause { errno: Errno::CONNABORTED, reason };
            self.tell(TransportEvent::Broken { peer, reason });
        }
    }
}
