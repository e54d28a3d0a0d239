//! An endpoint that has its authorization keys from its address vector: which key an address is
//! meant by, and receives from whoever has proved a key. Reference: fi_av(3),
//! `fi_av_insert_auth_key`.
//!
//! A peer is an address and a key: the same endpoint by two keys is two peers, with a connection
//! each. So whatever is known of a peer, messages included, came by the key that it has proved.

use super::{Engine, Setup, peer::Peer};
use crate::{
    address::Address,
    address_vector::auth_key_number,
    auth_key::{AuthKey, KeyNumber, ONLY_KEY},
    connection::manager::Manager,
    endpoint::PostError,
    flags::Flags,
    tag_match::{SourceIndex, group_source},
    transport::{PeerIndex, Transport},
};

impl Setup {
    /// The key that a peer has proved, of an endpoint that has its keys from the vector, and whose
    /// address it comes from.
    #[cold]
    pub(crate) fn who(&self, peers: &[Peer], peer: PeerIndex) -> (Option<&AuthKey>, Address) {
        let Peer { key, source, .. } = peers[peer as usize];
        let key = self.keys.as_ref().and_then(|keys| keys.ring.get(key));
        (key, peers[source as usize].address)
    }
}

impl<T: Transport> Engine<T> {
    /// The key that `fi_addr` is meant by; none if it is not for this endpoint.
    pub(super) fn key_at(&self, fi_addr: u64) -> Option<KeyNumber> {
        let Some(keys) = &self.setup.keys else {
            return Some(ONLY_KEY);
        };
        let key = self.setup.address_vector.key_of(fi_addr)?;
        keys.ring.get(key).map(|key| key.number)
    }

    /// In the matcher, those who have proved a key are a group: 0 of an endpoint that has one key.
    pub(crate) fn group_of(&self, key: KeyNumber) -> u32 {
        let place = self.setup.keys.as_ref().and_then(|keys| keys.ring.place_of(key));
        place.map_or(0, |place| place as u32 + 1)
    }

    /// The source of a receive from a peer, or with FI_AUTH_KEY from a key.
    #[cold]
    #[inline(never)]
    pub(super) fn keyed_source_at(&mut self, fi_addr: u64, flags: Flags) -> Option<SourceIndex> {
        if !flags.contains(Flags::AUTH_KEY) {
            let peer = self.peer_at(fi_addr & self.routes.source_mask)?;
            return Some(self.peers[peer as usize].matched_as);
        }
        match self.group_of(auth_key_number(fi_addr)?) {
            0 => None,
            group => Some(group_source(group)),
        }
    }

    /// What is wrong with an address that has no peer: a connection looks at none.
    #[cold]
    #[inline(never)]
    pub(crate) fn no_peer(&self, address: u64) -> PostError {
        if matches!(self.manager.as_deref(), Some(Manager::Connection(_))) {
            return PostError::NotConnected;
        }
        let known = self.setup.address_vector.get(address).is_some();
        match &self.setup.keys {
            Some(_) if known => PostError::NotByOurKeys { address },
            _ => PostError::UnknownAddress { address },
        }
    }

    /// What is wrong with an address that has no peer, for a call that pushes nothing: what an earlier
    /// one kept back leaves.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse_nobody(&mut self, address: u64) -> PostError {
        self.flush();
        self.no_peer(address)
    }

    /// What is wrong with whom a receive is from. Where a key is meant it is none of ours, whatever
    /// an address of that number was inserted for.
    #[cold]
    #[inline(never)]
    pub(crate) fn no_source(&self, address: u64, flags: Flags) -> PostError {
        if flags.contains(Flags::AUTH_KEY) {
            return PostError::UnknownAddress { address };
        }
        self.no_peer(address)
    }
}
