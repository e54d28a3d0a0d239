//! From an address to a peer, which is made if it is new.

use rustc_hash::FxHashMap;

use super::{Engine, peer::PeerState};
use crate::{
    address::Address,
    address_vector::{FI_ADDR_UNSPEC, FiAddr, LOOK_EACH_TIME},
    auth_key::KeyNumber,
    flags::Flags,
    scalable_endpoint::context_address,
    tag_match::{ANY_SOURCE, SourceIndex},
    transport::{PeerIndex, Transport},
};

pub(super) const NO_ROUTE: PeerIndex = u32::MAX;

/// The peers of addresses in the vector, as far as these were used.
pub(super) struct Routes {
    pub by_fi_addr: Vec<PeerIndex>,
    /// Those of addresses that name a receive context.
    pub named: FxHashMap<FiAddr, PeerIndex>,
    /// The bits of an address that are not of a receive context.
    pub source_mask: FiAddr,
    /// The count of removals that they are right for, without another look.
    valid_for: u64,
    /// The count of removals everywhere when they were last made anew: what counts where other processes
    /// share the vector, which has to be asked each time.
    made_for: u64,
}

impl Routes {
    pub fn new(source_mask: FiAddr) -> Routes {
        let (by_fi_addr, named) = (Vec::new(), FxHashMap::default());
        Routes { by_fi_addr, named, source_mask, valid_for: 0, made_for: 0 }
    }
}

impl<T: Transport> Engine<T> {
    /// The peer at `fi_addr`, or none if the address vector does not know it.
    #[inline(always)]
    pub(crate) fn peer_at(&mut self, fi_addr: u64) -> Option<PeerIndex> {
        if let Some(&peer) = self.routes.by_fi_addr.get(fi_addr as usize)
            && peer != NO_ROUTE
            && self.routes.valid_for == self.setup.address_vector.removals()
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
        self.peer_at(fi_addr & self.routes.source_mask)
    }

    #[cold]
    #[inline(never)]
    fn find_route(&mut self, fi_addr: u64) -> Option<PeerIndex> {
        let vector = &self.setup.address_vector;
        let removals = vector.removals_everywhere();
        if self.routes.made_for != removals {
            self.routes.made_for = removals;
            self.routes.by_fi_addr.fill(NO_ROUTE);
            self.routes.named.clear();
        }
        // Of a vector that other processes share this comes each time.
        if vector.removals() != LOOK_EACH_TIME {
            self.routes.valid_for = removals;
        }
        let index = fi_addr as usize;
        if let Some(&peer) = self.routes.by_fi_addr.get(index).filter(|&&peer| peer != NO_ROUTE) {
            return Some(peer);
        }
        // Receive-context bits make large numbers.
        if let Some(&peer) = self.routes.named.get(&fi_addr) {
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
            self.routes.named.insert(fi_addr, peer);
            return Some(peer);
        }
        if self.routes.by_fi_addr.len() <= index {
            self.routes.by_fi_addr.resize(index + 1, NO_ROUTE);
        }
        self.routes.by_fi_addr[index] = peer;
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
        record.takes_turns = self.datagrams.is_some() && self.orders.transmit.is_some();
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
