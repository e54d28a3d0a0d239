//! Connections that come and go.

use std::{sync::Arc, time::Instant};

use kestrel_core::{
    address::Address,
    transport::{PeerIndex, TransportEvent},
};

use super::{
    Owner, Peer, RcTransport, ReceiveLane, SendLane,
    farewell::{RETIRED_FOR, Retired},
    lane::Promise,
    receiving::{Early, TOO_MANY_PACKETS, WROTE_ASTRAY},
};
use crate::{
    control::{CREDIT_WRITES_MAX, Command},
    receipt::Receipt,
    receive_pool::WINDOW_MIN,
    send_queue::SendQueue,
    station::{PeerIdentity, ReceiveEnd, SendEnd, StationEvent},
    verbs::{QueuePair, Verbs},
};

/// An event, and the connection that goes into use when it is told: what comes before it is
/// about earlier ones.
pub(super) struct Told<V: Verbs> {
    pub(super) event: TransportEvent,
    end: Option<SendEnd<V>>,
}

impl<V: Verbs> Peer<V> {
    /// Whether there is a connection or a window, or it is looked for.
    fn is_there(&self) -> bool {
        let connected = self.send.is_some() || self.receive.is_some();
        connected || self.connecting || self.window.is_some() || self.guest.is_some()
    }
}

impl<V: Verbs> RcTransport<V> {
    pub(super) fn tell(&mut self, event: TransportEvent) {
        self.events.push_back(Told { event, end: None });
    }

    /// The peer's connection is over: it was closed in order, or it was lost.
    pub(super) fn tell_end(&mut self, peer: PeerIndex, in_order: bool, lost: impl Into<String>) {
        self.tell(match in_order {
            true => TransportEvent::Closed { peer },
            false => TransportEvent::Lost { peer, reason: lost.into() },
        });
    }

    pub(super) fn next_event(&mut self) -> Option<TransportEvent> {
        while self.events.is_empty() {
            let event = self.shared.pop()?;
            self.translate(event);
        }
        let Told { event, end } = self.events.pop_front()?;
        if let (TransportEvent::Connected { peer, .. }, Some(end)) = (&event, end) {
            self.install(*peer, end);
        }
        Some(event)
    }

    fn translate(&mut self, event: StationEvent<V>) {
        match event {
            StationEvent::Connected { request: peer, end } => {
                self.peer(peer).connecting = false;
                let incarnation = end.peer.incarnation;
                let event = TransportEvent::Connected { peer, incarnation };
                self.events.push_back(Told { event, end: Some(end) });
            }
            StationEvent::Failed { request: peer, error } => {
                self.peer(peer).connecting = false;
                self.tell(TransportEvent::Failed { peer, reason: error.into() });
            }
            StationEvent::Incoming { end } => self.offer(end),
            StationEvent::Left { end } => {
                while self.poll_receives() {}
                let early = self.early.get(&end.queue_pair.number());
                if early.is_some_and(|early| !early.packets.is_empty()) {
                    self.offer(end);
                } else {
                    self.abandon(end.queue_pair, end.share);
                }
            }
            StationEvent::Abandoned { queue_pair, share, place } => {
                self.abandon(queue_pair, place);
                // Its host may have another handshake.
                drop(share);
            }
            // Of endpoints of datagrams alone.
            StationEvent::Found { .. } | StationEvent::Heard { .. } => {}
            StationEvent::Closed { link, receipt } => {
                if let Some(peer) = self.peer_of_link(link) {
                    if let Some(lane) = &mut self.peer(peer).send {
                        lane.take_receipt(receipt);
                    }
                    self.tell(TransportEvent::Closed { peer });
                    self.learn_what_went();
                }
            }
            StationEvent::Disconnected { link } => {
                if let Some((peer, in_order)) = self.managed_end(link) {
                    self.tell_end(peer, in_order, "its process is gone, or gave it up");
                    self.learn_what_went();
                }
            }
            StationEvent::GivenUp { reason } => {
                self.tell(TransportEvent::Down { reason: reason.into(), wholly: true });
            }
            StationEvent::Probe => {
                self.shared.note_probe();
                self.probe();
            }
            StationEvent::Mute { link, reason } => self.rely_on_device(link, &reason),
            StationEvent::Lost { link, reason } => {
                if let Some(peer) = self.peer_of_link(link) {
                    self.tell(TransportEvent::Lost { peer, reason });
                    self.learn_what_went();
                }
            }
        }
    }

    /// Somebody has connected.
    fn offer(&mut self, end: ReceiveEnd<V>) {
        let PeerIdentity { incarnation, key, .. } = end.peer;
        let ticket = end.link;
        let address = Address::from(end.peer.address);
        self.offers.insert(ticket, end);
        self.tell(TransportEvent::Incoming { ticket, address, incarnation, key });
    }

    /// Nothing comes of a connection that somebody began.
    fn abandon(&mut self, queue_pair: V::QueuePair, share: Arc<()>) {
        let queue = SendQueue::new(queue_pair, CREDIT_WRITES_MAX);
        self.retire(queue, None, Some(Promise { window: WINDOW_MIN, _share: share }));
    }

    /// Before it is told that a connection is over: all that the peer's device has acknowledged counts as
    /// sent, however long ago it was. What else is found comes behind that news.
    fn learn_what_went(&mut self) {
        self.reap_sends();
    }

    /// Whose connection has ended; nobody's, if this end let go of it first.
    fn peer_of_link(&mut self, link: u64) -> Option<PeerIndex> {
        match self.links.remove(&link)? {
            Owner::Send(peer) | Owner::Receive(peer) => Some(peer),
            Owner::Window(_) | Owner::Retired => None,
        }
    }

    /// What was to be told of the end of connections that are gone by now.
    pub(super) fn forget_ends_of(&mut self, gone: PeerIndex) {
        self.events.retain(|told| told.event.end_of() != Some(gone));
    }

    /// Whether nothing names a peer any more. Its connections and windows are no longer called its
    /// own where they are let go of; what then comes of them is nobody's.
    pub(super) fn forget_gone(&mut self, gone: PeerIndex) -> bool {
        if self.peers.get(gone as usize).is_some_and(Peer::is_there) {
            return false;
        }
        self.forget_ends_of(gone);
        !self.events.iter().any(|told| told.event.outcome_of() == Some(gone))
    }

    fn install(&mut self, peer: PeerIndex, end: SendEnd<V>) {
        self.drop_send_lane(peer);
        let lane = SendLane::new(end);
        self.owners.insert(lane.queue.number(), Owner::Send(peer));
        self.links.insert(lane.link, Owner::Send(peer));
        self.peer(peer).send = Some(lane);
    }

    pub(super) fn adopt_offer(&mut self, peer: PeerIndex, ticket: u64) {
        let Some(offer) = self.offers.remove(&ticket) else {
            return;
        };
        self.drop_receive_lane(peer);
        let mut lane = ReceiveLane::new(offer);
        let number = lane.queue.number();
        self.owners.insert(number, Owner::Receive(peer));
        self.links.insert(lane.link, Owner::Receive(peer));
        let Early { packets, wrote } = self.early.remove(&number).unwrap_or_default();
        let mut covered = true;
        for filled in packets {
            covered &= lane.arrive(filled);
        }
        self.peer(peer).receive = Some(lane);
        self.note_ready(peer);
        if !covered {
            self.broke(peer, TOO_MANY_PACKETS);
        }
        if wrote {
            self.broke(peer, WROTE_ASTRAY);
        }
    }

    pub(super) fn drop_send_lane(&mut self, peer: PeerIndex) {
        self.post_held();
        let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.send.take()) else {
            return;
        };
        if let Some(lane) = self.part_from_receiver(lane) {
            self.end_link(lane.link, self.receipt_for(peer));
            self.retire(lane.queue, Some(lane.credit), None);
        }
        self.drop_window(peer);
    }

    pub(super) fn drop_receive_lane(&mut self, peer: PeerIndex) {
        let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.receive.take())
        else {
            return;
        };
        // What was handed out of it is gone with its connection; what was of another is not.
        self.current.take_if(|current| current.peer == peer);
        if let Some(lane) = self.part_from_sender(lane) {
            self.end_link(lane.link, lane.receipt());
            self.returned.extend(lane.buffers());
            let promise = Some(lane.promise());
            self.retire(lane.queue, None, promise);
        }
        // Packets that it comes across are nobody's by now, and their buffers come back.
        self.dismiss_guest(peer);
    }

    fn end_link(&mut self, link: u64, receipt: Receipt) {
        // Not there: it was the other side that ended it.
        if self.links.remove(&link).is_some() {
            self.control.command(Command::HangUp { link, receipt });
        }
    }

    /// What came from a peer.
    pub(super) fn receipt_for(&self, peer: PeerIndex) -> Receipt {
        let lane = self.peers.get(peer as usize).and_then(|peer| peer.receive.as_ref());
        lane.map_or(Receipt::default(), ReceiveLane::receipt)
    }

    /// Tells all peers that it is over, and what came from them: on both connections, since either may
    /// be heard of first.
    pub(super) fn end_links(&mut self) {
        for peer in 0..self.peers.len() as PeerIndex {
            let receipt = self.receipt_for(peer);
            let Peer { send, receive, .. } = &self.peers[peer as usize];
            let links =
                [send.as_ref().map(|lane| lane.link), receive.as_ref().map(|lane| lane.link)];
            links.into_iter().flatten().for_each(|link| self.end_link(link, receipt));
        }
    }

    /// A queue pair that is no longer used goes into error, and some time later away.
    fn retire(&mut self, queue: SendQueue<V>, credit: Option<V::Region>, promise: Option<Promise>) {
        queue.fail();
        self.owners.insert(queue.number(), Owner::Retired);
        let early = self.early.remove(&queue.number()).unwrap_or_default();
        self.returned.extend(early.packets.iter().map(|filled| filled.buffer));
        let until = Instant::now() + RETIRED_FOR;
        self.retired.push(Retired { queue, _credit: credit, promise, saying: None, until });
    }

    /// Destroys retired queue pairs whose time has come. What they had taken off the shared
    /// queue has come back by then, and is taken off the completion queues before.
    #[cold]
    pub(super) fn bury(&mut self, now: Instant) {
        let is_due = |retired: &Retired<V>| retired.saying.is_none() && retired.until <= now;
        if !self.retired.iter().any(is_due) {
            return;
        }
        self.reap_sends();
        while self.poll_receives() {}
        self.post_returned();
        let (due, kept) = std::mem::take(&mut self.retired).into_iter().partition(is_due);
        self.retired = kept;
        let due: Vec<Retired<V>> = due;
        for retired in due {
            self.owners.remove(&retired.queue.number());
            retired.queue.destroy(&mut self.sends);
            if let Some(promise) = retired.promise {
                self.shared.receives.return_window(promise.window);
            }
        }
    }
}
