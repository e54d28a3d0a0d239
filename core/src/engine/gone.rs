//! Peers that are gone, and whose places others get.
//!
//! What is known of a peer is some 1 KiB, here and at the same index in the transport, and servers
//! have clients that come at new addresses for ever. So a place is given back when it is sure that
//! nothing means the one that had it:
//!
//! - G1: nobody here names the peer. It is not connected, nor on its way to be, and no operation, no
//!   message, no receive and no line of what is to be done is its own, nor has it as its source.
//! - G2: the transport promises that nothing which is still to come names it
//!   ([`Transport::forget_peer`]): no event, no packet. Where it cannot, as while it looks for the
//!   peer, the place stays, until the next look.
//!
//! Therefore an index needs no generation, which every packet would have to be compared with. And who
//! names a peer is looked for, in all tables, instead of counted: nothing that is posted, or arrives,
//! pays for it. There is a look when the table is full, and as long again as it was in use after the
//! look before. So as many peers have come since as are looked at, and the table is no longer than
//! twice what was in use at once. It does not shrink.
//!
//! A look is only for a poll, after its events, where nothing is under way: what a function holds on
//! its stack is in no table.
//!
//! Of an address in the vector the route goes as well. It is found anew when the address is used again,
//! as one that never was: so who died and has restarted is reached, and costs until then what the vector
//! takes for it.

use super::{
    Engine,
    peer::{Peer, PeerState},
    route::NO_ROUTE,
};
use crate::{
    address::Address,
    auth_key::{KeyNumber, ONLY_KEY},
    protocol::receive::Posted,
    tag_match::who,
    transport::{PeerIndex, Transport},
};

/// Peers for which nobody is looked at: their places cost little.
const FEW: usize = 64;

/// The places that nobody has.
pub(crate) struct Vacancies {
    places: Vec<PeerIndex>,
    /// With fewer places in all there is no look.
    look_at: usize,
}

impl Default for Vacancies {
    fn default() -> Self {
        Vacancies { places: Vec::new(), look_at: FEW }
    }
}

impl Peer {
    /// Whether it is connected, or on its way to be, or anything is to be done with it.
    fn is_there(&self) -> bool {
        let connected = self.state != PeerState::Idle || self.incarnation.is_some();
        let works = self.in_backlog || self.has_work() || self.has_unfinished();
        let holds = self.flow.held > 0 || !self.incoming.is_empty() || !self.unconfirmed.is_over();
        connected || works || holds
    }
}

/// Which peers somebody names, by their indices.
struct Named(Vec<bool>);

impl Named {
    /// What is no peer's index, as the source of receives from everyone, is none.
    fn add(&mut self, peer: PeerIndex) {
        if let Some(named) = self.0.get_mut(peer as usize) {
            *named = true;
        }
    }

    fn add_all(&mut self, peers: impl IntoIterator<Item = PeerIndex>) {
        peers.into_iter().for_each(|peer| self.add(peer));
    }
}

impl<T: Transport> Engine<T> {
    /// A place for a new peer.
    pub(super) fn settle_peer(&mut self, address: Address, key: KeyNumber) -> PeerIndex {
        let vacant = self.vacancies.places.pop();
        let place = vacant.unwrap_or(self.peers.len() as PeerIndex);
        let record = Peer::new(address, key, place);
        match vacant {
            Some(place) => self.peers[place as usize] = record,
            None => self.peers.push(record),
        }
        // The one before may have had another key.
        if vacant.is_some() || key != ONLY_KEY {
            self.transport.choose_key(place, key);
        }
        place
    }

    /// Gives back the places of peers that are gone, if it is time for a look. Not in the middle of
    /// anything.
    #[cold]
    pub(super) fn give_back_places(&mut self) {
        let Vacancies { places, look_at } = &self.vacancies;
        if !places.is_empty() || self.peers.len() < *look_at {
            return;
        }
        let Named(mut in_use) = self.named_peers();
        // Whose messages come from somebody else goes first: if it stays, so does who that is.
        let (own, others): (Vec<PeerIndex>, Vec<PeerIndex>) = (0..self.peers.len() as PeerIndex)
            .filter(|&peer| !in_use[peer as usize])
            .partition(|&peer| self.peers[peer as usize].source == peer);
        for peer in others.into_iter().chain(own) {
            let source = self.peers[peer as usize].source;
            if !in_use[peer as usize] && !self.vacate(peer) {
                (in_use[peer as usize], in_use[source as usize]) = (true, true);
            }
        }
        let in_use_after = self.peers.len() - self.vacancies.places.len();
        self.vacancies.look_at = (2 * in_use_after).max(FEW);
        let is_in_use = |peer: PeerIndex| in_use[peer as usize];
        for route in &mut self.routes.by_fi_addr {
            if *route != NO_ROUTE && !is_in_use(*route) {
                *route = NO_ROUTE;
            }
        }
        self.routes.named.retain(|_, route| is_in_use(*route));
    }

    /// Gives back the place of a peer that nobody here names, unless the transport may.
    fn vacate(&mut self, peer: PeerIndex) -> bool {
        if !self.transport.forget_peer(peer) {
            return false;
        }
        let Peer { address, key, source, .. } = self.peers[peer as usize];
        self.by_address.remove(&(address, key));
        self.further_contexts.move_over(peer, source, peer);
        // What it has allocated goes.
        self.peers[peer as usize] = Peer::new(address, key, peer);
        self.vacancies.places.push(peer);
        true
    }

    /// Whom anything in here names.
    fn named_peers(&mut self) -> Named {
        let mut named = Named(self.peers.iter().map(Peer::is_there).collect());
        named.add_all(self.sends.indices().map(|at| self.sends[at].peer));
        named.add_all(self.remotes.indices().map(|at| self.remotes[at].peer));
        named.add_all(self.incoming.indices().map(|at| self.incoming[at].peer));
        named.add_all(self.unexpected.indices().map(|at| self.unexpected[at].peer));
        named.add_all(self.copies.pulls.iter().map(|pull| pull.peer()));
        named.add_all(self.copies.helps.iter().map(|help| help.peer()));
        named.add_all(self.backlog.iter().chain(&self.confirming).copied());
        named.add_all(self.orders.transmit.iter().flat_map(|order| order.lines_in_use()));
        named.add_all(self.orders.receive.iter().flat_map(|order| order.lines_in_use()));
        named.add_all(self.orders.data.iter().flat_map(|order| order.peers()));
        named.add_all(self.buffering.iter().flat_map(|buffering| buffering.peers()));
        named.add_all(self.datagrams.iter().flat_map(|datagrams| datagrams.peers()));
        named.add_all(self.manager.iter().flat_map(|manager| manager.peers()));
        for family in Posted::ALL {
            let posted = self.posted_in(family).map(|matcher| matcher.posted());
            named.add_all(posted.into_iter().flatten().map(|(_, source)| who(source)));
        }
        let parked = self.tagged.unexpected().chain(self.untagged.unexpected());
        named.add_all(parked.map(|(_, source)| who(source)));
        self.add_sources(&mut named);
        named
    }

    /// Those too that somebody else's messages come from.
    fn add_sources(&self, Named(named): &mut Named) {
        for peer in 0..self.peers.len() {
            let mut at = peer;
            while named[at] {
                let source = self.peers[at].source as usize;
                if std::mem::replace(&mut named[source], true) {
                    break;
                }
                at = source;
            }
        }
    }
}
