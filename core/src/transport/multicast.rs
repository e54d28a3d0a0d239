//! Groups, and datagrams to all who hear one.

use super::PeerIndex;
use crate::error::Cause;
use crate::{
    address::Address,
    error::Errno,
    group::{Member, Spread},
    memory::Piece,
    wire::Head,
};

/// What fi_join(3) asks of a transport. A group is either *listed*: its members are known, and each is
/// sent a datagram; or *carried*, by the network: see [`Spread`]. Unless a transport says otherwise,
/// none can be joined.
pub trait Multicast {
    /// Joins a multicast group, to hear it if `receives`. Sending takes joining as well. Whoever
    /// sends to it from when this has returned is heard. Cold.
    fn join(&mut self, group: Address, _receives: bool) -> Result<Spread, Cause> {
        let reason = format!("nothing carries datagrams to {group}");
        Err(Cause { errno: Errno::OPNOTSUPP, reason })
    }

    /// Who hears a group that is listed, but for ourselves, if that has changed since the last
    /// call; each address once. Cost: one load if it has not.
    fn members(&mut self, _group: Address) -> Option<Vec<Member>> {
        None
    }

    /// Takes a member that is gone from the list of its group, for everybody. Cold.
    fn expel(&mut self, _group: Address, _member: Member) {}

    /// Whether certainly nobody is at `address`, where a listed member was. Cold.
    fn is_deserted(&self, _address: Address) -> bool {
        false
    }

    /// Leaves a group that was joined.
    fn leave(&mut self, _group: Address) {}

    /// Takes up a [`super::TransportEvent::Overheard`] as `peer`: datagrams to groups are told apart by
    /// their senders.
    fn recognize(&mut self, _peer: PeerIndex, _ticket: u64) {}

    /// Pushes a datagram to all who hear a group that is carried, but for ourselves. Returns false
    /// if there is no room now.
    fn push_to_group(
        &mut self,
        _group: Address,
        _head: Head,
        _word: u64,
        _words: &[u64],
        _payload: Piece,
    ) -> bool {
        false
    }

    /// How many such packets find room now, at least.
    fn group_room(&self) -> usize {
        usize::MAX
    }
}
