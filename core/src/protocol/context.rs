//! Contexts of scalable endpoints on the wire: one that is not the first of its endpoint says
//! so, before all else, on each lane that it sends on.
//!
//! What it sends then counts as coming from the endpoint: it is reported and matched under the
//! address that peers have inserted. Reference: fi_endpoint(3): "The transmit and receive
//! contexts share the transport-level address."

use rustc_hash::FxHashMap;

use crate::{
    address::Address,
    engine::Engine,
    scalable_endpoint::{CONTEXTS_MAX, endpoint_address},
    transport::{PeerIndex, Transport},
};

/// The peers that are further contexts of an endpoint, by the peer that it is.
#[derive(Default)]
pub(crate) struct FurtherContexts(FxHashMap<PeerIndex, Vec<PeerIndex>>);

impl FurtherContexts {
    /// What `peer` sends came from one source until now, and comes from another one.
    pub(crate) fn move_over(&mut self, peer: PeerIndex, from: PeerIndex, to: PeerIndex) {
        if from != peer
            && let Some(contexts) = self.0.get_mut(&from)
        {
            contexts.retain(|&other| other != peer);
            if contexts.is_empty() {
                self.0.remove(&from);
            }
        }
        if to != peer {
            self.0.entry(to).or_default().push(peer);
        }
    }

    fn of(&self, source: PeerIndex) -> impl Iterator<Item = PeerIndex> {
        self.0.get(&source).into_iter().flatten().copied()
    }
}

impl<T: Transport> Engine<T> {
    /// `peer` is pair of contexts `index` of an endpoint, whose address is as many ports lower.
    /// False: it stays in its lane, since it cannot be told for the moment whether that is so.
    #[cold]
    pub(crate) fn arrive_context(&mut self, peer: PeerIndex, index: u64) -> bool {
        let record = &self.peers[peer as usize];
        let is_silent = record.flow.arrived == 0 && !record.has_announced;
        let is_first = record.source == peer && is_silent;
        let valid = is_first && (1..CONTEXTS_MAX as u64).contains(&index) && self.manager.is_none();
        let endpoint = endpoint_address(record.address, index).filter(|_| valid);
        match endpoint.map(|at| (at, self.transport.speaks_for(peer, at))) {
            Some((endpoint, Some(true))) => self.attribute_to_endpoint(peer, endpoint),
            Some((_, None)) => {
                self.leave_for_the_moment();
                return false;
            }
            _ => self.violation(peer, "it is not a context of the endpoint that it names"),
        }
        true
    }

    /// `peer` is a context of the endpoint at that address.
    fn attribute_to_endpoint(&mut self, peer: PeerIndex, endpoint: Address) {
        let key = self.peers[peer as usize].key;
        let source = self.peer_of(endpoint, key);
        self.forget_shared_source(peer);
        self.attribute_to(peer, source);
        self.note_shared_source(peer);
    }

    /// `peer` comes anew: whose context it is it has to say again.
    pub(crate) fn attribute_to_itself(&mut self, peer: PeerIndex) {
        let source = self.peers[peer as usize].source;
        if source != peer && !self.has_other_contexts(peer) {
            self.forget_shared_source(source);
        }
        self.attribute_at_once(peer, peer);
    }

    /// Whether another context of the endpoint that `peer` is part of is connected to us.
    pub(crate) fn has_other_contexts(&self, peer: PeerIndex) -> bool {
        let source = self.peers[peer as usize].source;
        let first = Some(source).filter(|&first| self.peers[first as usize].source == source);
        let mut contexts = self.further_contexts.of(source).chain(first);
        contexts.any(|other| other != peer && self.peers[other as usize].incarnation.is_some())
    }
}
