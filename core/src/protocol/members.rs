//! Groups that the transport lists: a datagram goes to each member, as one to a peer does.
//!
//! A member is an endpoint, and no other that was or will be at its address. What is sent to it
//! while it is looked for is held for it alone, in one copy for all; where it finds no room it is
//! dropped for that member alone. Neither is seen by who sent it: to a group a send is one, and
//! complete when it is posted.
//!
//! Members leave their group, but for those that are killed. Who meets one takes it from the list:
//! nobody is at its address, or another incarnation answers there. That one was asked after the
//! member was read from the list, so it cannot be an earlier one; where it may be, as of a peer
//! that was connected before, it is asked again.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    address::Address,
    auth_key::ONLY_KEY,
    engine::{Engine, peer::PeerState},
    flags::Flags,
    group::Member,
    memory::{Piece, Pieces},
    operation::{Copied, SendPost, copied},
    protocol::datagram::HELD_MAX,
    transport::{PeerIndex, Transport},
};

/// A member of a group that is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    member: Member,
    peer: PeerIndex,
    /// Whether a connection to its address was begun since it was read from the list.
    asked: bool,
}

impl Listed {
    pub(crate) fn peer(&self) -> PeerIndex {
        self.peer
    }
}

/// A datagram that is held for members.
#[derive(Debug)]
pub(crate) struct Held {
    flags: Flags,
    tag: u64,
    data: u64,
    /// Of the bytes.
    piece: Piece,
    _bytes: Copied,
}

impl Held {
    fn copy_of(post: &SendPost<'_>, piece: Piece) -> Option<Arc<Held>> {
        let (piece, bytes) = copied(Pieces::One(piece)).ok()?;
        let SendPost { flags, tag, data, .. } = *post;
        Some(Arc::new(Held { flags, tag, data, piece, _bytes: bytes }))
    }

    /// What it was posted as, less what reports it.
    fn post(&self) -> SendPost<'_> {
        SendPost {
            pieces: Pieces::One(self.piece),
            to: 0,
            tag: self.tag,
            data: self.data,
            context: 0,
            flags: self.flags,
            region: None,
            attachment: None,
        }
    }
}

/// What waits for members, each with the incarnation that it is for.
pub(crate) type HeldForMembers = HashMap<PeerIndex, VecDeque<(u64, Arc<Held>)>>;

impl<T: Transport> Engine<T> {
    /// Sends a datagram to each member of a group.
    pub(super) fn send_to_members(&mut self, place: usize, post: &SendPost<'_>, piece: Piece) {
        // Who died or was found before the list is read is not taken for who is there by then.
        if self.has_event() {
            self.take_events();
        }
        self.refresh_members(place);
        let Some(group) = self.group_mut(place) else { return };
        let (address, mut members) = (group.address, std::mem::take(&mut group.members));
        let mut copy = None;
        members.retain_mut(|listed| self.send_to_member(address, listed, post, piece, &mut copy));
        if let Some(group) = self.group_mut(place) {
            group.members = members;
        }
    }

    /// Sends, holds or drops a datagram. False if the member is gone.
    fn send_to_member(
        &mut self,
        group: Address,
        listed: &mut Listed,
        post: &SendPost<'_>,
        piece: Piece,
        copy: &mut Option<Arc<Held>>,
    ) -> bool {
        let Listed { member, peer, .. } = *listed;
        let record = &self.peers[peer as usize];
        if record.state == PeerState::Ready && record.incarnation == Some(member.incarnation) {
            if !(record.queue.is_empty() && self.push_eager(peer, post, piece)) {
                self.count_dropped_send();
            }
            return true;
        }
        if !self.seek_member(group, listed) {
            return false;
        }
        let Some(datagrams) = &mut self.datagrams else { return true };
        let held = datagrams.held.entry(peer).or_default();
        // Without memory it is dropped, as datagrams may be.
        let has_room = held.len() < HELD_MAX;
        if has_room && copy.is_none() {
            *copy = Held::copy_of(post, piece);
        }
        match copy {
            Some(copy) if has_room => held.push_back((member.incarnation, copy.clone())),
            _ => self.count_dropped_send(),
        }
        true
    }

    /// Looks for a member that is not connected. False if it is gone.
    #[cold]
    fn seek_member(&mut self, group: Address, listed: &mut Listed) -> bool {
        let Listed { member, peer, .. } = *listed;
        let state = self.peers[peer as usize].state;
        if state == PeerState::Connecting {
            return true;
        }
        if self.transport.is_deserted(member.address) {
            self.transport.expel(group, member);
            return false;
        }
        if state == PeerState::Ready {
            // Another one was there, as a rule until now: that it is gone is about to be told.
            self.drain_whole(peer);
            self.peer_died(peer);
        }
        listed.asked = true;
        self.ensure_connection(peer);
        true
    }

    /// Reads who the members are, if that has changed.
    fn refresh_members(&mut self, place: usize) {
        let Some(address) = self.group_mut(place).map(|group| group.address) else { return };
        let Some(members) = self.transport.members(address) else { return };
        let Some(group) = self.group_mut(place) else { return };
        let earlier = std::mem::take(&mut group.members);
        let known: HashMap<Member, Listed> =
            earlier.into_iter().map(|listed| (listed.member, listed)).collect();
        let listed = |&member: &Member| {
            known.get(&member).copied().or_else(|| self.new_member(address, member))
        };
        let members = members.iter().filter_map(listed).collect();
        if let Some(group) = self.group_mut(place) {
            group.members = members;
        }
    }

    /// A member that was not there before. A peer has a place as long as it is listed, so nobody
    /// becomes one by standing in a list alone.
    fn new_member(&mut self, group: Address, member: Member) -> Option<Listed> {
        let is_known = self.by_address.contains_key(&(member.address, ONLY_KEY));
        if !is_known && self.transport.is_deserted(member.address) {
            self.transport.expel(group, member);
            return None;
        }
        Some(Listed { member, peer: self.peer_of(member.address, ONLY_KEY), asked: false })
    }

    /// A peer is connected: what was held for it leaves, and other incarnations are no members.
    #[cold]
    pub(crate) fn member_connected(&mut self, peer: PeerIndex, incarnation: u64) {
        let Some(datagrams) = &mut self.datagrams else { return };
        for group in datagrams.groups.iter_mut().flatten() {
            let address = group.address;
            group.members.retain(|&Listed { member, peer: at, asked }| {
                let gone = at == peer && asked && member.incarnation != incarnation;
                if gone {
                    self.transport.expel(address, member);
                }
                !gone
            });
        }
        for (wanted, held) in datagrams.held.remove(&peer).unwrap_or_default() {
            if wanted != incarnation || !self.push_eager(peer, &held.post(), held.piece) {
                self.count_dropped_send();
            }
        }
    }

    /// A peer is not found, or lost: what was held for it is dropped.
    pub(crate) fn drop_held_for(&mut self, peer: PeerIndex) {
        if let Some(datagrams) = &mut self.datagrams {
            let held = datagrams.held.remove(&peer).unwrap_or_default();
            datagrams.dropped.sent += held.len() as u64;
        }
    }
}
