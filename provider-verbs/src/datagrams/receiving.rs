//! Receiving: datagrams wait in their buffers, in the order of their coming.

use std::collections::VecDeque;

use kestrel_core::{
    memory::Piece,
    transport::{Arrival, PeerIndex},
    wire::{Head, Kind},
};

use super::{DEPTHS, HEAD_BYTES, UdTransport, groups::SOURCE_BYTES, peers::Speaker};
use crate::{
    receive_pool::BufferIndex,
    verbs::{Completion, Completions, GRH_BYTES, Queues, Region, Status, Verbs},
};

/// Free buffers that wait at most until they are posted.
const RETURNED_MAX: usize = 16;
/// Datagrams that wait for their sender to be adopted.
const STRANGERS_MAX: usize = 64;

/// A datagram in its buffer, checked for form.
#[derive(Clone, Copy)]
pub(super) struct Packet {
    pub(super) peer: PeerIndex,
    pub(super) buffer: BufferIndex,
    /// Bytes in front of its words, and in all, behind the route header.
    pub(super) front: usize,
    pub(super) bytes: usize,
}

/// A datagram whose sender nobody knows yet.
pub(super) struct Stranger {
    /// What its sender is known by: its pass, or the incarnation of one who speaks to a group.
    pub(super) pass: u64,
    pub(super) buffer: BufferIndex,
    /// Bytes in front of its words: with a group's there are more.
    pub(super) front: usize,
    pub(super) bytes: usize,
    /// The queue pair that sent it.
    pub(super) sender: u32,
}

impl Stranger {
    /// Whether it came directly from that queue pair, with that pass. A pass may be what somebody else calls
    /// its incarnation.
    pub(super) fn is_from(&self, pass: u64, queue_pair: u32) -> bool {
        (self.pass, self.front) == (pass, HEAD_BYTES) && may_be(self.sender, queue_pair)
    }

    /// Whether it came by a group, from who calls itself that.
    pub(super) fn is_overheard_from(&self, incarnation: u64) -> bool {
        (self.pass, self.front) == (incarnation, HEAD_BYTES + SOURCE_BYTES)
    }
}

/// Whether a device tells of that queue pair. It is held to the lower 16 bits, since rdma-core's driver of
/// Broadcom's devices masks the upper ones with the wrong constant: the pass tells senders apart.
fn may_be(told: u32, queue_pair: u32) -> bool {
    (told ^ queue_pair) & 0xffff == 0
}

impl<V: Verbs> UdTransport<V> {
    /// Fetches completions of receives. Returns whether there were any.
    pub(super) fn poll_receives(&mut self) -> bool {
        self.poll_burst() > 0
    }

    /// Fetches what has completed by now, and not all that comes meanwhile: the buffers of strays are
    /// posted again at once, so that of these there may be no end.
    pub(super) fn poll_what_is_there(&mut self) {
        let mut left = DEPTHS.receives as usize;
        while left > 0 {
            match self.poll_burst() {
                0 => return,
                count => left = left.saturating_sub(count),
            }
        }
    }

    fn poll_burst(&mut self) -> usize {
        let mut completions = Completions::new();
        self.shared.queues.poll_receives(&mut completions);
        for completion in &completions {
            self.receive_completed(completion);
        }
        completions.len()
    }

    fn receive_completed(&mut self, completion: &Completion) {
        let buffer = completion.request as BufferIndex;
        let bytes = (completion.bytes as usize).saturating_sub(GRH_BYTES);
        if completion.status != Status::SUCCESS || bytes < HEAD_BYTES {
            return self.drop_stray(buffer);
        }
        let pass = self.word_of(buffer, 8);
        let is_to_group = self.groups.hears(pass);
        let front = HEAD_BYTES + if is_to_group { SOURCE_BYTES } else { 0 };
        let head = Head::from_word(self.word_of(buffer, 0) as u32);
        // Nobody says goodbye by a datagram: anybody could, for anybody.
        if head.kind != Kind::Eager as u8 || bytes < front + head.words() * 8 {
            return self.drop_stray(buffer);
        }
        let sender = completion.sender;
        let stranger = Stranger { pass, buffer, front, bytes, sender };
        match self.passes.get(&pass) {
            _ if is_to_group => self.group_arrived(stranger),
            Some(&Speaker { peer, queue_pair }) if may_be(sender, queue_pair) => {
                self.arrived.push_back(Packet { peer, buffer, front, bytes });
            }
            Some(_) => self.drop_stray(buffer),
            None => self.keep_stranger(stranger),
        }
    }

    /// Keeps a datagram until its sender is known, or others need its place.
    pub(super) fn keep_stranger(&mut self, stranger: Stranger) {
        self.strangers.push_back(stranger);
        if self.strangers.len() > STRANGERS_MAX
            && let Some(oldest) = self.strangers.pop_front()
        {
            self.drop_stray(oldest.buffer);
        }
    }

    pub(super) fn word_of(&self, buffer: BufferIndex, offset: usize) -> u64 {
        let (region, start) = self.shared.receives.buffer(buffer);
        region.memory().word(start + GRH_BYTES + offset)
    }

    pub(super) fn drop_stray(&mut self, buffer: BufferIndex) {
        self.strays += 1;
        self.give_back(buffer);
    }

    /// A buffer whose content nobody needs.
    pub(super) fn give_back(&mut self, buffer: BufferIndex) {
        self.returned.push(buffer);
        if self.returned.len() < RETURNED_MAX {
            return;
        }
        let posted = self.shared.receives.post(&self.returned);
        // In error it would hand them back at once.
        let provided = if self.failed { Ok(()) } else { self.queue.provide(u32::MAX) };
        if let Err(error) = posted.and(provided) {
            // The queue is as deep as there are buffers, so this is a device that is gone.
            tracing::error!("no receive buffer can be posted: {error}");
        }
        self.returned.clear();
    }

    /// `peer` has been adopted: what it sent before that is there.
    pub(super) fn admit_strangers(&mut self, peer: PeerIndex, is_its: impl Fn(&Stranger) -> bool) {
        let (known, unknown): (VecDeque<_>, _) =
            std::mem::take(&mut self.strangers).into_iter().partition(is_its);
        self.strangers = unknown;
        let packet =
            |Stranger { buffer, front, bytes, .. }: Stranger| Packet { peer, buffer, front, bytes };
        self.arrived.extend(known.into_iter().map(packet));
    }

    /// Puts the oldest datagram of `peer` first.
    pub(super) fn bring_forward(&mut self, peer: PeerIndex) -> Option<()> {
        let place = self.arrived.iter().position(|packet| packet.peer == peer)?;
        let packet = self.arrived.remove(place)?;
        self.arrived.push_front(packet);
        Some(())
    }

    pub(super) fn next_arrival(&mut self) -> Option<Arrival> {
        let packet = *self.arrived.front()?;
        let Packet { peer, buffer, front, bytes } = packet;
        let head = Head::from_word(self.word_of(buffer, 0) as u32);
        let payload = front + head.words() * 8;
        let length = bytes - payload;
        let tiny = (length == 8).then(|| self.word_of(buffer, payload));
        let word = self.word_of(buffer, 16);
        self.current = Some(packet);
        Some(Arrival { peer, head, word, length, tiny })
    }

    pub(super) fn current_word(&self, index: usize) -> u64 {
        self.current.map_or(0, |packet| self.word_of(packet.buffer, packet.front + index * 8))
    }

    pub(super) fn copy_current(&self, offset: usize, to: Piece) {
        if let Some(Packet { buffer, front, bytes, .. }) = self.current {
            let head = Head::from_word(self.word_of(buffer, 0) as u32);
            let from = front + head.words() * 8 + offset;
            let (region, start) = self.shared.receives.buffer(buffer);
            let to = to.part(0, to.len().min(bytes.saturating_sub(from)));
            region.memory().copy_out(start + GRH_BYTES + from, to);
        }
    }

    pub(super) fn consume_current(&mut self) {
        // None: its peer was let go of.
        if let Some(packet) = self.current.take() {
            self.arrived.pop_front();
            self.give_back(packet.buffer);
        }
    }

    /// Drops what `peer` sent and nobody has consumed.
    pub(super) fn drop_arrived(&mut self, peer: PeerIndex) {
        self.current.take_if(|current| current.peer == peer);
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.arrived).into_iter().partition(|packet| packet.peer == peer);
        self.arrived = kept;
        gone.into_iter().for_each(|packet| self.give_back(packet.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::may_be;

    #[test]
    fn a_queue_pair_whose_upper_bits_were_lost_is_itself() {
        // As bnxt_re's driver masks bits 16 to 23: with 0x18.
        assert!(may_be(0x18_1234, 0xff_1234) && may_be(0x1234, 0x1234));
        assert!(!may_be(0x18_1234, 0xff_1235));
    }
}
