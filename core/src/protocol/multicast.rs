//! Multicast groups of an endpoint of datagrams. Reference: fi_cm(3), `fi_join`.
//!
//! Either the transport carries a datagram to all who have joined, or it lists them, and each is
//! sent to ([`super::members`]); here is what the endpoint has joined, and by which numbers. What
//! comes from a group is received like any other datagram, from its sender.

use crate::{
    address::Address,
    endpoint::{GroupError, PostError},
    engine::Engine,
    flags::Flags,
    group::Spread,
    memory::{Piece, Pieces},
    operation::{SendPost, in_one_piece},
    protocol::members::Listed,
    transport::Transport,
    wire::{self, Head, Kind},
};

/// A group that the endpoint has joined.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) address: Address,
    /// Whether it may send there.
    sends: bool,
    spread: Spread,
    /// Who hears it, of a group that is listed.
    pub(crate) members: Vec<Listed>,
}

impl<T: Transport> Engine<T> {
    /// Joins a group: the number by which messages are sent there.
    pub(crate) fn join_group(
        &mut self,
        address: Address,
        sends: bool,
        receives: bool,
    ) -> Result<u64, GroupError> {
        let Some(datagrams) = self.datagrams.as_mut() else {
            return Err(GroupError::NotForThisType);
        };
        let joined = datagrams.groups.iter().flatten();
        if joined.into_iter().any(|group| group.address == address) {
            return Err(GroupError::Joined { group: address });
        }
        let spread = self.transport.join(address, receives)?;
        let free = datagrams.groups.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            datagrams.groups.push(None);
            datagrams.groups.len() - 1
        });
        datagrams.groups[place] = Some(Group { address, sends, spread, members: Vec::new() });
        Ok(place as u64)
    }

    /// Leaves a group. What had come from it is still received.
    pub(crate) fn leave_group(&mut self, group: u64) {
        let groups = self.datagrams.as_mut().map(|datagrams| &mut datagrams.groups);
        let place = groups.and_then(|groups| groups.get_mut(group as usize));
        if let Some(Group { address, .. }) = place.and_then(Option::take) {
            self.transport.leave(address);
        }
    }

    /// A group that was joined.
    pub(crate) fn group_mut(&mut self, place: usize) -> Option<&mut Group> {
        self.datagrams.as_mut()?.groups.get_mut(place)?.as_mut()
    }

    /// Whether it has joined groups whose datagrams the transport carries, and holds none of them.
    pub(crate) fn sends_to_carried_groups(&self) -> bool {
        let groups = self.datagrams.as_ref().map(|datagrams| datagrams.groups.iter().flatten());
        groups.into_iter().flatten().any(|group| group.sends && group.spread == Spread::Carried)
    }

    /// Sends to a group: to whoever is there and takes it.
    #[cold]
    pub(crate) fn send_to_group(&mut self, post: SendPost<'_>) -> Result<(), PostError> {
        post.check_length(self.message_max())?;
        let place = post.to as usize;
        let Some(group) = self.group_mut(place).filter(|group| group.sends) else {
            return Err(PostError::UnknownAddress { address: post.to });
        };
        let (address, spread) = (group.address, group.spread);
        self.is_full_of_datagrams()?;
        let (piece, _gathered) = in_one_piece(post.pieces)?;
        let post = SendPost { pieces: Pieces::One(piece), ..post };
        match spread {
            Spread::Listed => self.send_to_members(place, &post, piece),
            Spread::Carried if !self.push_to_all(address, &post, piece) => {
                return Err(self.no_place());
            }
            Spread::Carried => {}
        }
        // Datagrams to peers and to groups are in one line.
        let attachment = post.attachment.and_then(Option::take);
        self.report_sent_behind(0, post.flags, post.context, attachment);
        Ok(())
    }

    fn push_to_all(&mut self, group: Address, post: &SendPost<'_>, piece: Piece) -> bool {
        let data = [post.data];
        let (flags, words) = match post.flags.contains(Flags::REMOTE_CQ_DATA) {
            true => (wire::DATA, &data[..]),
            false => (0, &data[..0]),
        };
        self.transport.push_to_group(group, Head::new(Kind::Eager, flags), post.tag, words, piece)
    }
}
