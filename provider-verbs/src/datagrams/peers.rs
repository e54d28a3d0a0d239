//! Who is found, who is heard, and who is gone.

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, ONLY_KEY},
    error::{Cause, Errno},
    transport::{PeerIndex, TransportEvent},
};

use super::{UdTransport, receiving::Stranger};
use crate::{
    control::{Command, proof},
    receipt::Receipt,
    station::{PeerIdentity, StationEvent, Way},
    verbs::Verbs,
};

/// Both directions of a peer.
pub(super) struct Peer<V: Verbs> {
    /// How it is sent to.
    pub(super) way: Option<Way<V>>,
    /// What datagrams to it carry.
    pub(super) pass: u64,
    /// Which key is proved to it.
    pub(super) key: KeyNumber,
    /// That it may send: its TCP connection, and what its datagrams carry.
    heard: Option<Heard>,
    pub(super) connecting: bool,
}

impl<V: Verbs> Peer<V> {
    fn is_there(&self) -> bool {
        self.way.is_some() || self.heard.is_some() || self.connecting
    }
}

#[derive(Clone, Copy)]
struct Heard {
    link: u64,
    pass: u64,
}

/// Who will send, and from which queue pair.
pub(super) struct Offer {
    peer: PeerIdentity,
    queue_pair: u32,
}

/// Whose datagrams carry a pass, if they come from that queue pair. The pass alone can be computed by
/// whoever has the key.
#[derive(Clone, Copy)]
pub(super) struct Speaker {
    pub(super) peer: PeerIndex,
    pub(super) queue_pair: u32,
}

/// What is not used any more, but may still be named.
pub(super) enum Unused<V: Verbs> {
    Way(V::AddressHandle),
    Group(V::Group),
}

/// A way that is not used any more.
pub(super) struct Retired<V: Verbs> {
    _unused: Unused<V>,
    /// The last send that may name it.
    last: u32,
}

/// An event, and the way that goes into use when it is told: what comes before it is about
/// earlier ones.
pub(super) struct Told<V: Verbs> {
    event: TransportEvent,
    way: Option<Way<V>>,
}

impl<V: Verbs> UdTransport<V> {
    pub(super) fn peer(&mut self, peer: PeerIndex) -> &mut Peer<V> {
        let index = peer as usize;
        if self.peers.len() <= index {
            let fresh =
                || Peer { way: None, pass: 0, key: ONLY_KEY, heard: None, connecting: false };
            self.peers.resize_with(index + 1, fresh);
        }
        &mut self.peers[index]
    }

    /// What tells a receiver who sent a datagram, by which key, and that it is the one meant.
    fn pass_of(&self, sender: u64, receiver: u64, key: KeyNumber) -> u64 {
        let key = self.keys.as_ref().and_then(|keys| keys.get(key));
        let proof = key.map_or(0, |key| proof::key_pass(key.bytes()));
        sender ^ receiver.rotate_left(32) ^ proof
    }

    pub(super) fn tell(&mut self, event: TransportEvent) {
        self.events.push_back(Told { event, way: None });
    }

    pub(super) fn next_event(&mut self) -> Option<TransportEvent> {
        while self.events.is_empty() {
            let event = self.shared.pop()?;
            self.translate(event);
        }
        let Told { event, way } = self.events.pop_front()?;
        if let (TransportEvent::Connected { peer, .. }, Some(way)) = (&event, way) {
            self.drop_way(*peer);
            self.links.insert(way.link, *peer);
            let pass = self.pass_of(self.incarnation, way.peer.incarnation, way.peer.key);
            let record = self.peer(*peer);
            (record.way, record.pass) = (Some(way), pass);
        }
        Some(event)
    }

    fn translate(&mut self, event: StationEvent<V>) {
        match event {
            StationEvent::Found { request: peer, way } => {
                self.peer(peer).connecting = false;
                let incarnation = way.peer.incarnation;
                let event = TransportEvent::Connected { peer, incarnation };
                self.events.push_back(Told { event, way: Some(way) });
            }
            StationEvent::Failed { request: peer, error } => {
                self.peer(peer).connecting = false;
                self.tell(TransportEvent::Failed { peer, reason: error.into() });
            }
            StationEvent::Heard { link, peer, queue_pair } => {
                self.offers.insert(link, Offer { peer, queue_pair });
                let (address, incarnation) = (Address::from(peer.address), peer.incarnation);
                let key = peer.key;
                self.tell(TransportEvent::Incoming { ticket: link, address, incarnation, key });
            }
            StationEvent::Closed { link, .. } => {
                if let Some(peer) = self.links.remove(&link) {
                    self.tell(TransportEvent::Closed { peer });
                }
            }
            StationEvent::GivenUp { reason } => {
                self.tell(TransportEvent::Down { reason: reason.into(), wholly: true });
            }
            // Of connections alone.
            StationEvent::Disconnected { .. } | StationEvent::Mute { .. } | StationEvent::Probe => {
            }
            StationEvent::Lost { link, reason } => {
                if let Some(peer) = self.links.remove(&link) {
                    self.tell(TransportEvent::Lost { peer, reason });
                }
            }
            // Of reliable endpoints alone.
            StationEvent::Connected { .. }
            | StationEvent::Incoming { .. }
            | StationEvent::Left { .. }
            | StationEvent::Abandoned { .. } => {}
        }
    }

    pub(super) fn adopt_offer(&mut self, peer: PeerIndex, ticket: u64) {
        let Some(Offer { peer: offer, queue_pair }) = self.offers.remove(&ticket) else {
            return;
        };
        let pass = self.pass_of(offer.incarnation, self.incarnation, offer.key);
        if self.passes.get(&pass).is_some_and(|other| other.peer != peer) {
            // It would take the other's datagrams for its own, and leave it unheard when it goes.
            self.control.command(Command::HangUp { link: ticket, receipt: Receipt::default() });
            let address = offer.address;
            let reason =
                format!("{address} broke the protocol: it names itself as another peer does");
            let reason = Cause { errno: Errno::CONNABORTED, reason };
            return self.tell(TransportEvent::Broken { peer, reason });
        }
        self.drop_heard(peer);
        self.links.insert(ticket, peer);
        self.passes.insert(pass, Speaker { peer, queue_pair });
        self.peer(peer).heard = Some(Heard { link: ticket, pass });
        let is_its = |it: &Stranger| it.is_from(pass, queue_pair);
        self.admit_strangers(peer, is_its);
    }

    pub(super) fn drop_way(&mut self, peer: PeerIndex) {
        let Some(way) = self.peers.get_mut(peer as usize).and_then(|peer| peer.way.take()) else {
            return;
        };
        self.end_link(way.link);
        self.retire(Unused::Way(way.handle));
    }

    /// A way goes when nothing that is under way names it.
    pub(super) fn retire(&mut self, unused: Unused<V>) {
        self.retired.push(Retired { _unused: unused, last: self.queue.posted() });
        self.bury_ways();
    }

    pub(super) fn drop_heard(&mut self, peer: PeerIndex) {
        let Some(heard) = self.peers.get_mut(peer as usize).and_then(|peer| peer.heard.take())
        else {
            return;
        };
        self.end_link(heard.link);
        self.passes.remove(&heard.pass);
        self.drop_arrived(peer);
    }

    fn end_link(&mut self, link: u64) {
        // Not there: it was the other side that ended it.
        if self.links.remove(&link).is_some() {
            self.control.command(Command::HangUp { link, receipt: Receipt::default() });
        }
    }

    /// What was to be told of the end of what is gone by now.
    pub(super) fn forget_ends_of(&mut self, gone: PeerIndex) {
        self.events.retain(|told| told.event.end_of() != Some(gone));
    }

    /// Whether nothing names a peer any more. Who was heard in a group alone is recognized anew,
    /// should it send again.
    pub(super) fn forget_gone(&mut self, gone: PeerIndex) -> bool {
        let is_there = self.peers.get(gone as usize).is_some_and(Peer::is_there);
        if is_there || self.arrived.iter().any(|packet| packet.peer == gone) {
            return false;
        }
        self.forget_source(gone);
        self.forget_ends_of(gone);
        !self.events.iter().any(|told| told.event.outcome_of() == Some(gone))
    }

    /// Destroys the ways that nothing under way names.
    pub(super) fn bury_ways(&mut self) {
        let over = self.queue.over();
        self.retired.retain(|retired| (over.wrapping_sub(retired.last) as i32) < 0);
    }
}
