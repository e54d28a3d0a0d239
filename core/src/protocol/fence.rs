//! Fences where an endpoint is several peers: one for each receive context that is named, and for
//! each key.
//!
//! "The fenced operation, and any operation posted after the fenced operation will be deferred until
//! all previous operations targeting the same peer endpoint have completed" (fi_tagged(3)). To one
//! peer operations leave in the order of their posting, so who comes first in its queue looks
//! whether those before it are complete. What was posted to other peers of the endpoint is
//! remembered here, and whoever was not among it waits.

use std::collections::HashSet;

use crate::{
    address::Address,
    engine::{Engine, peer::Peer},
    scalable_endpoint::endpoint_address,
    transport::{PeerIndex, Transport},
};

/// What was posted before a fenced operation, and after the fences before that.
pub(crate) struct Fence {
    endpoint: Address,
    fenced: Earlier,
    /// What is complete is taken off from behind, so the last is not, when it was looked at.
    before: Vec<Earlier>,
}

/// An operation by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Earlier {
    Send(u64),
    OneSided(u64),
}

impl Peer {
    /// The endpoint that it is a receive context of.
    fn endpoint(&self) -> Address {
        endpoint_address(self.address, self.named.into()).unwrap_or(self.address)
    }
}

impl<T: Transport> Engine<T> {
    /// An operation with a fence is about to be queued for `peer`, with this name.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_fence(&mut self, peer: PeerIndex, fenced: Earlier) {
        self.peers[peer as usize].fences = true;
        if !self.setup.names_contexts && self.setup.keys.is_none() {
            return;
        }
        let endpoint = self.peers[peer as usize].endpoint();
        let fences = self.fences.iter().filter(|fence| fence.endpoint == endpoint);
        let known: HashSet<Earlier> = fences.flat_map(|fence| &fence.before).copied().collect();
        let goes_there = |peer: PeerIndex| self.peers[peer as usize].endpoint() == endpoint;
        let sends = self.sends.indices().filter(|&send| goes_there(self.sends[send].peer));
        let sends = sends.map(|send| Earlier::Send(self.sends.name(send)));
        let remotes = self.remotes.indices().filter(|&at| goes_there(self.remotes[at].peer));
        let remotes = remotes.map(|at| Earlier::OneSided(self.remotes.name(at)));
        let is_new = |operation: &Earlier| *operation != fenced && !known.contains(operation);
        let before: Vec<Earlier> = sends.chain(remotes).filter(is_new).collect();
        if !before.is_empty() {
            self.fences.push(Fence { endpoint, fenced, before });
            self.fence_off(endpoint, true);
        }
    }

    /// An operation for `peer` is canceled. If it has a fence, that keeps nothing any more; what it
    /// kept the next one waits for.
    pub(crate) fn drop_fence(&mut self, peer: PeerIndex, canceled: Earlier) {
        let Some(at) = self.fences.iter().position(|fence| fence.fenced == canceled) else {
            return;
        };
        let Fence { endpoint, mut before, .. } = self.fences.remove(at);
        if let Some(next) = self.fences[at..].iter_mut().find(|fence| fence.endpoint == endpoint) {
            next.before.append(&mut before);
        }
        // Where it was the last, nobody waits.
        self.oldest_fence(peer);
    }

    /// Whether a fence keeps the operation at the head of its peer's queue from leaving.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_behind_a_fence(&mut self, peer: PeerIndex, operation: Earlier) -> bool {
        self.oldest_fence(peer).is_some_and(|fence| !fence.before.contains(&operation))
    }

    /// Of the fences before `peer` the first that something before it is not complete of: what is
    /// none of that was posted behind it.
    #[cold]
    #[inline(never)]
    pub(crate) fn oldest_fence(&mut self, peer: PeerIndex) -> Option<&Fence> {
        let endpoint = self.peers[peer as usize].endpoint();
        let (sends, remotes) = (&self.sends, &self.remotes);
        let is_over = |operation: &mut Earlier| match *operation {
            Earlier::Send(name) => sends.index_of(name).is_none(),
            Earlier::OneSided(name) => remotes.index_of(name).is_none(),
        };
        while let Some(at) = self.fences.iter().position(|fence| fence.endpoint == endpoint) {
            let before = &mut self.fences[at].before;
            while before.pop_if(is_over).is_some() {}
            if !before.is_empty() {
                return self.fences.get(at);
            }
            self.fences.remove(at);
        }
        self.fence_off(endpoint, false);
        None
    }

    /// Has all peers of an endpoint look at its fences before anything leaves, or no more.
    fn fence_off(&mut self, endpoint: Address, fenced: bool) {
        for record in self.peers.iter_mut().filter(|record| record.endpoint() == endpoint) {
            record.fenced = fenced;
            record.settle();
        }
    }

    /// `peer` is new, or named as receive context `context` of its endpoint, and may have come
    /// behind a fence.
    pub(crate) fn note_named(&mut self, peer: PeerIndex, context: u64) {
        let record = &mut self.peers[peer as usize];
        // It is as many ports higher than its endpoint, so it is no more than a port.
        record.named = context as u16;
        let endpoint = record.endpoint();
        record.fenced = self.fences.iter().any(|fence| fence.endpoint == endpoint);
        record.settle();
    }
}
