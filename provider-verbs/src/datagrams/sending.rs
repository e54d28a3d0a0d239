//! Sending: a packet is written into a bounce buffer and posted; small ones go inline.

use kestrel_core::{memory::Piece, transport::PeerIndex, wire::Head};

use super::{HEAD_BYTES, UdTransport, datagram_max};
use crate::verbs::{AddressHandle, Completions, Destination, Queues, Status, Verb, Verbs};

impl<V: Verbs> UdTransport<V> {
    /// Whether a packet could go now: a place in the queue, and a buffer if it needs one.
    pub(super) fn can_send(&mut self, with_buffer: bool) -> bool {
        if !self.has_place(with_buffer) {
            self.reap_sends();
        }
        self.has_place(with_buffer)
    }

    /// The same, with what has come back so far.
    pub(super) fn has_place(&self, with_buffer: bool) -> bool {
        let has_buffer = !with_buffer || self.sends.has_free();
        !self.failed && has_buffer && self.queue.has_room(&self.sends)
    }

    /// The longest message to a peer, if the way to it is known: packets of the smaller MTU pass.
    pub(super) fn longest_to(&self, peer: PeerIndex) -> Option<usize> {
        let way = self.peers.get(peer as usize)?.way.as_ref()?;
        Some(datagram_max(way.mtu_bytes.min(self.shared.origin.port.mtu_bytes)))
    }

    pub(super) fn send_datagram(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        if self.longest_to(peer).is_none_or(|longest| payload.len() > longest) {
            return false;
        }
        let Some(way) = &self.peers[peer as usize].way else {
            return false;
        };
        let (handle, queue_pair) = (way.handle.name(), way.queue_pair);
        let pass = self.peers[peer as usize].pass;
        let to = Destination { handle, queue_pair, key: self.key };
        self.post_datagram(to, [head.to_word().into(), pass, word], words, payload)
    }

    /// Posts a datagram, if there is room for it.
    pub(super) fn post_datagram(
        &mut self,
        to: Destination,
        head: [u64; HEAD_BYTES / 8],
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let length = HEAD_BYTES + size_of_val(words) + payload.len();
        let inline = self.queue.takes_inline(length);
        if !self.can_send(!inline) {
            return false;
        }
        let Some(slot) = self.sends.take_for(inline) else {
            return false;
        };
        self.sends.write(slot, &head, words, payload);
        // A signal for each: nothing else tells when a handle is not used any more.
        match self.queue.post(&mut self.sends, slot, length, Verb::Datagram(to), true) {
            Ok(()) => true,
            Err(error) => {
                tracing::info!("a datagram was not sent: {error}");
                false
            }
        }
    }

    /// Takes completions of sends. Once all that was posted on a queue pair in error has come
    /// back it is made usable again.
    pub(super) fn reap_sends(&mut self) {
        let mut completions = Completions::new();
        loop {
            self.shared.queues.poll_sends(&mut completions);
            if completions.is_empty() {
                break;
            }
            for completion in completions.drain(..) {
                self.queue.completed(completion.request as u32, &mut self.sends);
                if completion.status != Status::SUCCESS && !self.failed {
                    tracing::info!("datagrams are lost: {}", completion.status);
                    self.failed = true;
                }
            }
        }
        if self.failed && self.queue.is_idle() {
            // To renew it takes away what has come and was not looked at, with its buffers.
            self.queue.fail();
            // Nothing more comes to it.
            while self.poll_receives() {}
            match self.queue.renew().and_then(|()| self.queue.provide(u32::MAX)) {
                Ok(()) => (self.failed, self.mute) = (false, false),
                Err(error) if !std::mem::replace(&mut self.mute, true) => {
                    let address = self.address;
                    tracing::warn!(%address, "no datagram leaves: its queue pair cannot be reset: {error}");
                }
                Err(_) => {}
            }
        }
    }
}
