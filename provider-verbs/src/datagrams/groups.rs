//! Multicast: one datagram to all who hear a group.
//!
//! Whoever hears it need not have met its sender. So such a datagram says who that is: behind the
//! head follow the sender's incarnation and its address. In the pass's place is one that all who
//! have the same key make of the group's address.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use kestrel_core::{
    address::Address,
    error::Cause,
    group::Spread,
    memory::Piece,
    transport::{Multicast, PeerIndex, TransportEvent},
    wire::Head,
};

use super::{
    HEAD_BYTES, UdTransport,
    peers::Unused,
    receiving::{Packet, Stranger},
    sources::Sources,
};
use crate::{
    control::{proof, wire},
    verbs::{Destination, EVERYBODY, Group, GroupRequest, QueuePair, Verbs},
};

/// Bytes behind the head of a datagram to a group: the sender's incarnation and address.
pub(super) const SOURCE_BYTES: usize = 8 + wire::ADDRESS_BYTES;

/// The groups of an endpoint.
pub(super) struct Groups<V: Verbs> {
    joined: HashMap<IpAddr, Membership<V>>,
    /// What datagrams of the groups that are heard carry.
    passes: HashMap<u64, IpAddr>,
    /// Boxed, so that an endpoint of datagrams is not larger than others.
    sources: Box<Sources>,
}

struct Membership<V: Verbs> {
    group: V::Group,
    pass: u64,
    receives: bool,
}

impl<V: Verbs> Default for Groups<V> {
    fn default() -> Self {
        let (joined, passes, sources) = Default::default();
        Groups { joined, passes, sources }
    }
}

impl<V: Verbs> Groups<V> {
    /// Whether datagrams that carry this are to a group that is heard.
    pub(super) fn hears(&self, pass: u64) -> bool {
        self.passes.contains_key(&pass)
    }
}

impl<V: Verbs> UdTransport<V> {
    pub(super) fn leave_all_groups(&mut self) {
        let all: Vec<IpAddr> = self.groups.joined.keys().copied().collect();
        all.into_iter().for_each(|ip| self.leave(Address::new(ip, 0)));
    }

    /// A datagram to a group: its sender's, or of one that is to be recognized first.
    pub(super) fn group_arrived(&mut self, stranger: Stranger) {
        let Stranger { buffer, front, bytes, .. } = stranger;
        let incarnation = self.word_of(buffer, HEAD_BYTES);
        if incarnation == self.incarnation {
            return self.give_back(buffer);
        }
        match self.groups.sources.get(incarnation) {
            Some(Some(peer)) => {
                return self.arrived.push_back(Packet { peer, buffer, front, bytes });
            }
            Some(None) => {}
            None => {
                let Some(address) = self.source_of(buffer) else {
                    return self.drop_stray(buffer);
                };
                self.groups.sources.insert(incarnation, None);
                let address = Address::from(address);
                self.tell(TransportEvent::Overheard { ticket: incarnation, address });
            }
        }
        self.keep_stranger(Stranger { pass: incarnation, ..stranger });
    }

    fn source_of(&self, buffer: u32) -> Option<SocketAddr> {
        let mut bytes = [0; wire::ADDRESS_BYTES];
        for (nth, part) in bytes.chunks_exact_mut(8).enumerate() {
            let word = self.word_of(buffer, HEAD_BYTES + 8 + nth * 8);
            part.copy_from_slice(&word.to_le_bytes());
        }
        wire::address_of(&bytes).ok()
    }

    /// A peer was let go of: should it send again, it is recognized anew.
    pub(super) fn forget_source(&mut self, peer: PeerIndex) {
        self.groups.sources.forget(peer);
    }
}

impl<V: Verbs> Multicast for UdTransport<V> {
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Cause> {
        let ip = group.ip();
        if self.groups.joined.contains_key(&ip) {
            let reason = format!("{ip} was joined already, by another port");
            return Err(Cause { errno: kestrel_core::error::Errno::INVAL, reason });
        }
        let group = self.shared.device.join_group(GroupRequest {
            group: ip,
            own: self.address.ip(),
            hears: receives,
            marks: self.shared.origin.marks,
            managed: self.manages_groups,
        })?;
        let pass = proof::group_pass(&self.auth_key, ip);
        if receives {
            self.queue.pair().attach(group.address())?;
            self.groups.passes.insert(pass, ip);
        }
        self.groups.joined.insert(ip, Membership { group, pass, receives });
        Ok(Spread::Carried)
    }

    fn leave(&mut self, group: Address) {
        let ip = group.ip();
        let Some(Membership { group, pass, receives }) = self.groups.joined.remove(&ip) else {
            return;
        };
        if receives {
            self.groups.passes.remove(&pass);
            if self.groups.passes.is_empty() {
                *self.groups.sources = Sources::default();
            }
            self.queue.pair().detach(group.address());
        }
        self.retire(Unused::Group(group));
    }

    fn recognize(&mut self, peer: PeerIndex, incarnation: u64) {
        self.groups.sources.insert(incarnation, Some(peer));
        self.admit_strangers(peer, |it| it.is_overheard_from(incarnation));
    }

    fn push_to_group(
        &mut self,
        group: Address,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let Some(membership) = self.groups.joined.get(&group.ip()) else {
            return false;
        };
        let (handle, pass) = (membership.group.name(), membership.pass);
        let to = Destination { handle, queue_pair: EVERYBODY, key: self.key };
        let mut front = Vec::with_capacity(SOURCE_BYTES / 8 + words.len());
        front.push(self.incarnation);
        let own = wire::address_bytes(self.address.socket_addr());
        front.extend(own.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().expect("8"))));
        front.extend_from_slice(words);
        self.post_datagram(to, [head.to_word().into(), pass, word], &front, payload)
    }

    fn group_room(&self) -> usize {
        if self.failed { 0 } else { self.queue.room(&self.sends).min(self.sends.free_count()) }
    }
}
