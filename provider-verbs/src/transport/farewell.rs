//! The end of connections that the connection manager made, and signs of life on them.
//!
//! The manager says that a connection is over, not how. So the end that lets go has a last word on
//! the queue pair: who received writes how many packets came, behind the credit, and who sent says
//! goodbye by a packet of nothing. Where there is no last word, the peer died.

use std::time::{Duration, Instant};

use kestrel_core::{fork_guard, memory::Piece, transport::PeerIndex};

use super::{
    CREDIT_BYTES, Owner, RcTransport, ReceiveLane, SendLane,
    lane::{COUNT_BYTES, Promise, count_word},
};
use crate::{
    control::{Command, LAST_WORD_MAX},
    receipt::Receipt,
    receive_pool::BUFFER_BYTES,
    send_pool::SendPool,
    send_queue::SendQueue,
    station::StationEvent,
    verbs::{RemoteMemory, Verb, Verbs},
};

/// How long a queue pair that is in error is kept, so that all that it took off the shared queue
/// has come back.
pub(super) const RETIRED_FOR: Duration = Duration::from_millis(20);

const _: () = assert!(COUNT_BYTES <= BUFFER_BYTES);

/// A queue pair on its way out, in error.
pub(super) struct Retired<V: Verbs> {
    pub(super) queue: SendQueue<V>,
    /// The memory that its peer could write to.
    pub(super) _credit: Option<V::Region>,
    /// What was promised to it, of a connection that received.
    pub(super) promise: Option<Promise>,
    /// The connection that ends when the last word has arrived: not in error until then.
    pub(super) saying: Option<u64>,
    pub(super) until: Instant,
}

impl<V: Verbs> RcTransport<V> {
    /// Lets go of a lane with a last word; true if there is one.
    pub(super) fn part_from_receiver(&mut self, mut lane: SendLane<V>) -> Option<SendLane<V>> {
        let may = lane.managed.is_some() && !lane.failed && self.links.contains_key(&lane.link);
        let goodbye = |queue: &mut SendQueue<V>, pool: &mut SendPool<V>| {
            let nothing = SendPool::<V>::INLINE;
            queue.has_room(pool) && queue.post(pool, nothing, 0, Verb::Send, true).is_ok()
        };
        if !may || !goodbye(&mut lane.queue, &mut self.sends) {
            return Some(lane);
        }
        self.retire_with_word(lane.queue, Some(lane.credit), None, lane.link);
        None
    }

    /// The same for one that receives.
    pub(super) fn part_from_sender(&mut self, mut lane: ReceiveLane<V>) -> Option<ReceiveLane<V>> {
        let may = lane.managed.is_some()
            && !lane.failed
            && self.links.contains_key(&lane.link)
            && lane.queue.has_room(&self.sends);
        let inline = lane.queue.takes_inline(COUNT_BYTES);
        let Some(slot) = may.then(|| self.sends.take_for(inline)).flatten() else {
            return Some(lane);
        };
        self.sends.write(slot, &[count_word(lane.received)], &[], Piece::EMPTY);
        let RemoteMemory { address, key } = lane.credit_at();
        let at = Verb::Write(RemoteMemory { address: address + CREDIT_BYTES as u64, key });
        if lane.queue.post(&mut self.sends, slot, COUNT_BYTES, at, true).is_err() {
            return Some(lane);
        }
        self.returned.extend(lane.buffers());
        let promise = Some(lane.promise());
        self.retire_with_word(lane.queue, None, promise, lane.link);
        None
    }

    fn retire_with_word(
        &mut self,
        queue: SendQueue<V>,
        credit: Option<V::Region>,
        promise: Option<Promise>,
        link: u64,
    ) {
        self.links.remove(&link);
        self.owners.insert(queue.number(), Owner::Retired);
        // Whether we look after it in time is the application's to say.
        self.control.command(Command::HangUpSoon { link });
        let until = Instant::now() + LAST_WORD_MAX;
        let saying = Some(link);
        self.retired.push(Retired { queue, _credit: credit, promise, saying, until });
    }

    /// Ends connections whose last word has arrived, or took too long.
    pub(super) fn let_go(&mut self, now: Instant) {
        for retired in &mut self.retired {
            if let Some(link) = retired.saying
                && (retired.queue.is_idle() || retired.until <= now)
            {
                retired.saying = None;
                retired.until = now + RETIRED_FOR;
                self.control.command(Command::HangUp { link, receipt: Receipt::default() });
                retired.queue.fail();
            }
        }
    }

    /// Has the last word on all connections of the manager: with those first who sent to us.
    pub(super) fn say_last_words(&mut self) {
        let is_managed = |peer: &super::Peer<V>| {
            peer.send.as_ref().is_some_and(|lane| lane.managed.is_some())
                || peer.receive.as_ref().is_some_and(|lane| lane.managed.is_some())
        };
        let managed = |(peer, record)| is_managed(record).then_some(peer as PeerIndex);
        let managed: Vec<_> = self.peers.iter().enumerate().filter_map(managed).collect();
        if managed.is_empty() && self.retired.iter().all(|retired| retired.saying.is_none()) {
            return;
        }
        while self.poll_receives() {}
        managed.iter().for_each(|peer| self.drop_receive_lane(*peer));
        managed.iter().for_each(|peer| self.drop_send_lane(*peer));
        let deadline = Instant::now() + LAST_WORD_MAX;
        while self.retired.iter().any(|retired| retired.saying.is_some()) {
            self.reap_sends();
            self.let_go(Instant::now());
            self.hear_ends();
            if Instant::now() > deadline {
                break;
            }
            std::thread::yield_now();
        }
        self.let_go(deadline + LAST_WORD_MAX);
    }

    /// What was told of the end of connections, and the engine has not heard: it is about to go.
    pub(super) fn forsake_ended(&mut self) {
        for peer in self.events.iter().filter_map(|told| told.event.end_of()) {
            if let Some(lane) = &mut self.peers[peer as usize].send {
                lane.failed = true;
            }
        }
    }

    /// Takes the news of connections that end while we go ourselves; there is no use for other news.
    pub(super) fn hear_ends(&mut self) {
        while let Some(event) = self.shared.pop() {
            let (StationEvent::Closed { link, .. }
            | StationEvent::Disconnected { link }
            | StationEvent::Lost { link, .. }) = event
            else {
                continue;
            };
            if let Some(Owner::Send(peer)) = self.links.remove(&link)
                && let Some(lane) = &mut self.peers[peer as usize].send
            {
                lane.failed = true;
            }
            self.nobody_hears(link);
        }
    }

    /// The peer of a connection that was to have a last word is gone by itself.
    fn nobody_hears(&mut self, link: u64) {
        let now = Instant::now();
        for retired in self.retired.iter_mut().filter(|retired| retired.saying == Some(link)) {
            (retired.saying, retired.until) = (None, now + RETIRED_FOR);
            retired.queue.fail();
        }
    }

    /// The manager says that a connection is over: whose, and whether it was ended in order.
    pub(super) fn managed_end(&mut self, link: u64) -> Option<(PeerIndex, bool)> {
        while self.poll_receives() {}
        let Some(owner) = self.links.remove(&link) else {
            self.nobody_hears(link);
            return None;
        };
        match owner {
            Owner::Send(peer) | Owner::Receive(peer) => Some((peer, self.had_last_word(owner))),
            Owner::Window(_) | Owner::Retired => None,
        }
    }

    /// Whether the peer had its last word on a connection. Who sends and receives may hear of the
    /// ends in either order, so the count is always looked at.
    pub(super) fn had_last_word(&mut self, owner: Owner) -> bool {
        let (peer, receives) = match owner {
            Owner::Send(peer) => (peer, false),
            Owner::Receive(peer) => (peer, true),
            Owner::Window(_) | Owner::Retired => return false,
        };
        let record = self.peer(peer);
        let counted = record.send.as_mut().is_some_and(SendLane::take_count);
        let goodbye = record.receive.as_ref().is_some_and(ReceiveLane::has_goodbye);
        counted || (receives && goodbye)
    }

    /// Asks the devices of peers for a sign of life, where none is awaited anyway: it fails, if
    /// there is nobody to give it.
    pub(super) fn probe(&mut self) {
        // What the device refuses is told by those whose it is.
        self.post_held();
        for peer in &mut self.peers {
            if let Some(lane) = peer.send.as_mut().filter(|lane| lane.is_probed && !lane.failed) {
                lane.probe(&mut self.sends);
            }
            if let Some(lane) = peer.receive.as_mut().filter(|lane| lane.is_probed && !lane.failed)
            {
                lane.queue.probe(&mut self.sends);
            }
        }
    }

    /// From now on the peer's device alone says whether it is there.
    pub(super) fn rely_on_device(&mut self, link: u64, reason: &str) {
        let (peer, is_probed) = match self.links.get(&link) {
            Some(&Owner::Send(peer)) => {
                (peer, self.peer(peer).send.as_mut().map(|lane| &mut lane.is_probed))
            }
            Some(&Owner::Receive(peer)) => {
                (peer, self.peer(peer).receive.as_mut().map(|lane| &mut lane.is_probed))
            }
            _ => return,
        };
        tracing::info!(
            peer,
            "TCP does not reach a peer ({reason}): its device is asked from now on"
        );
        if let Some(is_probed) = is_probed {
            *is_probed = true;
        }
    }
}

impl<V: Verbs> Drop for RcTransport<V> {
    /// Says goodbye. Not in a forked child, where all of it is the parent's.
    fn drop(&mut self) {
        if fork_guard::forked(self.forks) {
            std::mem::forget(std::mem::take(&mut self.peers));
            std::mem::forget(std::mem::take(&mut self.retired));
            std::mem::forget(std::mem::take(&mut self.offers));
            std::mem::forget(std::mem::take(&mut self.events));
            std::mem::forget(self.shared.clone());
            return;
        }
        self.linger();
        self.say_last_words();
        self.end_links();
        self.control.unregister(self.station);
        // Queue pairs go before the buffers that they use.
        self.peers.clear();
        self.retired.clear();
        self.offers.clear();
        self.events.clear();
        while self.shared.pop().is_some() {}
        self.drop_sends();
    }
}
