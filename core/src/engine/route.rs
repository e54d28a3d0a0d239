//! From an address to a peer, which is made if it is new.

use super::{Engine, peer::PeerState};
use crate::{
    address::Address,
    address_vector::{FI_ADDR_UNSPEC, LOOK_EACH_TIME},
    auth_key::KeyNumber,
    flags::Flags,
    scalable_endpoint::context_address,
    tag_match::{ANY_SOURCE, SourceIndex},
    transport::{PeerIndex, Transport},
};

pub(super) const NO_ROUTE: PeerIndex = u32::MAX;

impl<T: Transport> Engine<T> {
    /// The peer at `fi_addr`, or none if the address vector does not know it.
    #[inline(always)]
    pub(crate) fn peer_at(&mut self, fi_addr: u64) -> Option<PeerIndex> {
        if let Some(&peer) = self.routes.get(fi_addr as usize)
            && peer != NO_ROUTE
            && self.routes_valid_for == self.setup.address_vector.removals()
        {
            return Some(peer);
        }
        self.find_route(fi_addr)
    }

    /// The source that a receive directed at `fi_addr` matches.
    #[inline(always)]
    pub(crate) fn source_at(&mut self, fi_addr: u64, flags: Flags) -> Option<SourceIndex> {
        if fi_addr == FI_ADDR_UNSPEC {
            return Some(ANY_SOURCE);
        }
        if self.setup.keys.is_some() {
            return self.keyed_source_at(fi_addr, flags);
        }
        self.peer_at(fi_addr & self.source_mask)
    }

    #[cold]
    #[inline(never)]
    fn find_route(&mut self, fi_addr: u64) -> Option<PeerIndex> {
        let vector = &self.setup.address_vector;
        let removals = vector.removals_everywhere();
        if self.routes_made_for != removals {
            self.routes_made_for = removals;
            self.routes.fill(NO_ROUTE);
            self.named_routes.clear();
        }
        // Of a vector that other processes share this comes each time.
        if vector.removals() != LOOK_EACH_TIME {
            self.routes_valid_for = removals;
        }
        let index = fi_addr as usize;
        if let Some(&peer) = self.routes.get(index).filter(|&&peer| peer != NO_ROUTE) {
            return Some(peer);
        }
        // Receive-context bits make large numbers.
        if let Some(&peer) = self.named_routes.get(&fi_addr) {
            return Some(peer);
        }
        let context = if self.setup.names_contexts { vector.rx_index(fi_addr) } else { 0 };
        let address = context_address(vector.get(fi_addr)?, context)?;
        let is_named = index >= vector.capacity();
        let key = self.key_at(fi_addr)?;
        let peer = self.peer_of(address, key);
        if context > 0 {
            self.note_named(peer, context);
        }
        if is_named {
            self.named_routes.insert(fi_addr, peer);
            return Some(peer);
        }
        if self.routes.len() <= index {
            self.routes.resize(index + 1, NO_ROUTE);
        }
        self.routes[index] = peer;
        Some(peer)
    }

    /// The peer with `address` that is spoken to by that key, made if it is new.
    pub(crate) fn peer_of(&mut self, address: Address, key: KeyNumber) -> PeerIndex {
        if let Some(&peer) = self.by_address.get(&(address, key)) {
            return peer;
        }
        let peer = self.settle_peer(address, key);
        let flow = self.no_flow();
        let record = &mut self.peers[peer as usize];
        record.flow = flow;
        record.takes_turns = self.datagrams.is_some() && self.transmit_order.is_some();
        self.by_address.insert((address, key), peer);
        self.note_named(peer, 0);
        self.attribute_at_once(peer, peer);
        peer
    }

    /// Starts connecting to `peer` if nothing of the kind is under way.
    pub(crate) fn ensure_connection(&mut self, peer: PeerIndex) {
        let record = &mut self.peers[peer as usize];
        if record.state == PeerState::Idle {
            record.state = PeerState::Connecting;
            self.transport.connect(peer, record.address);
        }
    }
}
