//! Groups: the far side's, which reaches those of this host as well. Where it is not there they are
//! the near one's.

use kestrel_core::{
    address::Address,
    error::Cause,
    group::{Member, Spread},
    memory::Piece,
    transport::{Multicast, PeerIndex, Transport},
    wire::Head,
};

use super::Composite;

impl<N: Transport, F: Transport> Multicast for Composite<N, F> {
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Cause> {
        match &mut self.far {
            Some(far) => far.transport.join(group, receives),
            None => self.near.join(group, receives),
        }
    }

    fn recognize(&mut self, peer: PeerIndex, ticket: u64) {
        if let Some(far) = &mut self.far {
            far.transport.recognize(peer, ticket);
        }
    }

    fn leave(&mut self, group: Address) {
        match &mut self.far {
            Some(far) => far.transport.leave(group),
            None => self.near.leave(group),
        }
    }

    fn members(&mut self, group: Address) -> Option<Vec<Member>> {
        match &mut self.far {
            Some(far) => far.transport.members(group),
            None => self.near.members(group),
        }
    }

    fn expel(&mut self, group: Address, member: Member) {
        match &mut self.far {
            Some(far) => far.transport.expel(group, member),
            None => self.near.expel(group, member),
        }
    }

    fn is_deserted(&self, address: Address) -> bool {
        self.far.is_none() && self.near.is_deserted(address)
    }

    fn push_to_group(
        &mut self,
        group: Address,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        self.far.as_mut().is_some_and(|far| {
            let pushed = far.transport.push_to_group(group, head, word, words, payload);
            if pushed {
                far.sent.count(head, words, payload.len());
            }
            pushed
        })
    }

    fn group_room(&self) -> usize {
        self.far.as_ref().map_or(usize::MAX, |far| far.transport.group_room())
    }
}
