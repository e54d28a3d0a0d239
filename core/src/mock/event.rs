//! What a station is told, at its own time.

use std::sync::Arc;

use super::{MockTransport, lane::Lane, lock, peer::Peer};
use crate::{
    error::Cause,
    transport::{PeerIndex, TransportEvent},
};

pub(super) struct Event {
    /// Looks until it shows.
    pub(super) looks: usize,
    pub(super) what: What,
}

pub(super) enum What {
    Connected { peer: PeerIndex, lane: Arc<Lane> },
    Failed { peer: PeerIndex, reason: Cause },
    Incoming { lane: Arc<Lane> },
    Died { incarnation: u64 },
    HungUp { lane: Arc<Lane> },
}

impl MockTransport {
    fn has_packet(&self) -> bool {
        let lanes = self.peers.iter().filter_map(|peer| peer.receive.as_ref());
        lanes.into_iter().any(|lane| !lock(&lane.queue).packets.is_empty())
    }

    /// Whether a sleeper would have to wake.
    pub(super) fn has_something(&self) -> bool {
        let event = !self.ready.is_empty() || !lock(&self.station.events).is_empty();
        event || self.has_packet()
    }

    pub(super) fn translate(&mut self, what: What) {
        match what {
            What::Connected { peer, lane } => {
                let incarnation = lane.to.incarnation;
                let record = self.peer(peer);
                record.connecting -= 1;
                record.send = Some(lane);
                self.ready.push_back(TransportEvent::Connected { peer, incarnation });
            }
            What::Failed { peer, reason } => {
                self.peer(peer).connecting -= 1;
                self.ready.push_back(TransportEvent::Failed { peer, reason });
            }
            What::Incoming { lane } => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                let (address, incarnation) = (lane.from.address, lane.from.incarnation);
                let key = lane.key;
                self.offers.insert(ticket, lane);
                let event = TransportEvent::Incoming { ticket, address, incarnation, key };
                self.ready.push_back(event);
            }
            What::Died { incarnation } => {
                let knows = |(_, peer): &(usize, &Peer)| peer.knows(incarnation);
                let dead = self.peers.iter().enumerate().filter(knows);
                let died = |(peer, _)| TransportEvent::Died { peer: peer as PeerIndex };
                self.ready.extend(dead.map(died));
            }
            What::HungUp { lane } => {
                // Nobody, if this end let go of it first.
                let user = self.peers.iter().position(|peer| peer.uses(&lane));
                let closed = |peer| TransportEvent::Closed { peer: peer as PeerIndex };
                self.ready.extend(user.map(closed));
            }
        }
    }

    /// Whether nothing names a peer any more; the end of what it was is not told.
    pub(super) fn forget_gone(&mut self, peer: PeerIndex) -> bool {
        if self.peers.get(peer as usize).is_some_and(Peer::is_there) {
            return false;
        }
        self.ready.retain(|event| event.end_of() != Some(peer));
        !self.ready.iter().any(|event| event.outcome_of() == Some(peer))
    }
}
