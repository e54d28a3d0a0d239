//! Sending: a packet is written into a bounce buffer and posted; small ones go inline.

use std::time::{Duration, Instant};

use kestrel_core::{
    error::{Cause, Errno},
    memory::Piece,
    transport::{PeerIndex, Room, TransportEvent},
    wire::{Head, Kind},
};

use super::{BUFFER_BYTES, FRONT_BYTES, HEAD_BYTES, Owner, RcTransport, farewell::Retired};
use crate::{
    send_pool::SlotIndex,
    verbs::{Completion, Completions, Queues, Status, Verb, Verbs, VerbsError},
};

/// How long closing waits for what was sent to be acknowledged.
const LINGER_MAX: Duration = Duration::from_secs(1);

impl<V: Verbs> RcTransport<V> {
    /// Whether a packet to `peer` could go now: credit, a place in the queue, and a buffer if
    /// it needs one.
    #[inline(always)]
    pub(super) fn can_send(&mut self, peer: PeerIndex, with_buffer: bool) -> bool {
        let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.send.as_mut())
        else {
            return false;
        };
        if lane.failed || !lane.has_credit() {
            return false;
        }
        if lane.queue.has_room(&self.sends) && (!with_buffer || lane.queue.may_take(&self.sends)) {
            return true;
        }
        self.can_send_after_reaping(peer, with_buffer)
    }

    #[cold]
    #[inline(never)]
    fn can_send_after_reaping(&mut self, peer: PeerIndex, with_buffer: bool) -> bool {
        self.reap_sends();
        self.send_lane(peer).is_some_and(|lane| {
            let has_buffer = !with_buffer || lane.queue.may_take(&self.sends);
            has_buffer && !lane.failed && lane.queue.has_room(&self.sends)
        })
    }

    /// How much can go to `peer` where it gets no buffer: what goes inline, if that is all, or has to be all
    /// since others keep the buffers.
    #[cold]
    #[inline(never)]
    pub(super) fn room_inline(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        if !self.can_send(peer, false) {
            return Room::Full;
        }
        let lane = self.peers[peer as usize].send.as_mut();
        let room = lane.and_then(|lane| {
            let inline = lane.queue.inline_bytes_max().checked_sub(FRONT_BYTES)?;
            let goes = wanted <= inline || inline > 0 && lane.hunger.is_long(lane.queue.share());
            goes.then_some(wanted.min(inline))
        });
        room.map_or(Room::Full, Room::Bytes)
    }

    #[inline(always)]
    pub(super) fn send_packet(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let length = HEAD_BYTES + size_of_val(words) + payload.len();
        assert!(length <= BUFFER_BYTES, "a packet of {length} bytes");
        let inline = self.send_lane(peer).is_some_and(|lane| lane.queue.takes_inline(length));
        if !self.can_send(peer, !inline) {
            return false;
        }
        let Some(slot) = (if inline { self.take_inline() } else { self.sends.take() }) else {
            return false;
        };
        self.sends.write(slot, &[head.to_word().into(), word], words, payload);
        self.hold_packet(peer, slot, length, head.kind == Kind::Bye as u8)
    }

    #[inline(always)]
    pub(super) fn take_inline(&mut self) -> Option<SlotIndex> {
        self.sends.take_inline().or_else(|| {
            self.post_held();
            self.sends.take_inline()
        })
    }

    /// Holds a packet back until the end of the call, or until as many are held back as can be.
    #[inline(always)]
    fn hold_packet(&mut self, peer: PeerIndex, slot: SlotIndex, length: usize, last: bool) -> bool {
        let Some(lane) = self.peers[peer as usize].send.as_mut() else {
            return false;
        };
        let signal = last || std::mem::take(&mut lane.confirms_next);
        if lane.queue.holds_nothing() {
            self.holding.push(Owner::Send(peer));
        }
        lane.queue.hold(&mut self.sends, slot, length, Verb::Send, signal);
        lane.sent = lane.sent.wrapping_add(1);
        if last || lane.queue.is_held_full() {
            self.post_held();
        }
        true
    }

    /// Posts what is held back, for each queue pair as one chain.
    #[inline(always)]
    pub(super) fn post_held(&mut self) {
        while let Some(owner) = self.holding.pop() {
            // None is there: its connection is over.
            match owner {
                Owner::Send(peer) => {
                    let lane = self.peers[peer as usize].send.as_mut();
                    if let Some(Err(error)) = lane.map(|lane| lane.queue.post_held()) {
                        self.post_failed(peer, &error);
                    }
                }
                Owner::Window(peer) => self.post_deeds(peer),
                Owner::Receive(_) | Owner::Retired => {}
            }
        }
        self.sends.free_inline();
    }

    #[cold]
    #[inline(never)]
    fn post_failed(&mut self, peer: PeerIndex, error: &VerbsError) {
        let Some(lane) = self.peers[peer as usize].send.as_mut() else {
            return;
        };
        if !std::mem::replace(&mut lane.failed, true) {
            let reason = Cause::of(error);
            self.tell(TransportEvent::Broken { peer, reason });
        }
    }

    /// Takes completions of sends: buffers come back, and errors show.
    pub(super) fn reap_sends(&mut self) {
        while self.reap_burst() {}
    }

    /// Takes a burst of them. Returns whether there was any.
    #[inline(always)]
    pub(super) fn reap_burst(&mut self) -> bool {
        let mut completions = Completions::new();
        self.shared.queues.poll_sends(&mut completions);
        for completion in &completions {
            self.send_completed(completion);
        }
        !completions.is_empty()
    }

    #[inline(always)]
    fn send_completed(&mut self, completion: &Completion) {
        let number = completion.request as u32;
        let owner = self.owners.get(&completion.queue_pair).copied();
        match owner {
            Some(Owner::Send(peer)) => {
                if let Some(lane) = &mut self.peers[peer as usize].send {
                    lane.queue.completed(number, &mut self.sends);
                    if completion.status == Status::SUCCESS {
                        lane.confirm_request(number);
                    }
                }
            }
            Some(Owner::Receive(peer)) => {
                if let Some(lane) = &mut self.peers[peer as usize].receive {
                    lane.queue.completed(number, &mut self.sends);
                    // A queue pair in error takes nothing more, as is about to be told.
                    if lane.due && completion.status == Status::SUCCESS {
                        self.write_due_credit(peer);
                    }
                }
            }
            Some(Owner::Window(peer)) => return self.reach_completed(peer, completion),
            Some(Owner::Retired) => {
                let number_of =
                    |retired: &&mut Retired<V>| retired.queue.number() == completion.queue_pair;
                if let Some(retired) = self.retired.iter_mut().find(number_of) {
                    retired.queue.completed(number, &mut self.sends);
                }
            }
            None => {}
        }
        if let Some(owner) = owner
            && completion.status != Status::SUCCESS
        {
            self.queue_pair_failed(owner, completion.status);
        }
    }

    /// A queue pair is in error: the connection is over.
    #[cold]
    #[inline(never)]
    pub(super) fn queue_pair_failed(&mut self, owner: Owner, status: Status) {
        let (peer, failed) = match owner {
            Owner::Send(peer) => {
                (peer, self.peers[peer as usize].send.as_mut().map(|lane| &mut lane.failed))
            }
            Owner::Receive(peer) => {
                (peer, self.peers[peer as usize].receive.as_mut().map(|lane| &mut lane.failed))
            }
            Owner::Window(_) | Owner::Retired => return,
        };
        let Some(failed) = failed else { return };
        if std::mem::replace(failed, true) {
            return;
        }
        if status == Status::RETRIES_EXCEEDED || status == Status::FLUSHED {
            // What the manager has to say of it may be on its way, or lost.
            let in_order = self.had_last_word(owner);
            let silent = match status {
                Status::RETRIES_EXCEEDED => {
                    "; FI_KESTREL_PEER_TIMEOUT is how long a peer may be silent"
                }
                _ => "",
            };
            return self.tell_end(peer, in_order, format!("{status}{silent}"));
        }
        let reason = format!("the connection failed: {status}");
        let reason = Cause { errno: Errno::CONNABORTED, reason };
        self.tell(TransportEvent::Broken { peer, reason });
    }

    /// Waits until what was sent has reached the peers' devices, where it survives us. Of who is gone
    /// nothing is awaited: where many close one after the other, each would wait for those before it.
    pub(super) fn linger(&mut self) {
        let deadline = Instant::now() + LINGER_MAX;
        self.post_held();
        self.forsake_ended();
        loop {
            self.hear_ends();
            self.reap_sends();
            let mut busy = false;
            for lane in self.peers.iter_mut().filter_map(|peer| peer.send.as_mut()) {
                if !lane.failed && !lane.queue.is_idle() {
                    lane.queue.flush(&mut self.sends);
                    busy = true;
                }
            }
            if !busy {
                return;
            }
            if Instant::now() > deadline {
                let under_way = self.sends.under_way();
                tracing::info!(under_way, "closed before peers had all that was sent to them");
                return;
            }
            std::thread::yield_now();
        }
    }
}
