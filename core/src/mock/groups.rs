//! Multicast groups of a mock network: lists of who hears them.

use std::{collections::HashMap, net::IpAddr};

use super::{MockTransport, lock};
use crate::{
    address::Address,
    error::{Cause, Errno},
    group::{Member, Spread},
    transport::Multicast,
};

/// The groups of a network. Those with another key are others.
pub(super) type Groups = HashMap<(IpAddr, Vec<u8>), List>;

/// Who hears a group. Who dies stays in it, until others find out.
#[derive(Default)]
pub(super) struct List {
    changes: u64,
    members: Vec<Member>,
}

impl List {
    fn remove(&mut self, member: Member) {
        let before = self.members.len();
        self.members.retain(|&other| other != member);
        self.changes += u64::from(self.members.len() < before);
    }
}

/// What an endpoint has joined.
pub(super) struct Joined {
    auth_key: Vec<u8>,
    /// The changes of each group when it was last read.
    seen: HashMap<IpAddr, Option<u64>>,
}

impl Joined {
    pub(super) fn new(auth_key: &[u8]) -> Joined {
        Joined { auth_key: auth_key.to_vec(), seen: HashMap::new() }
    }

    fn name(&self, group: Address) -> (IpAddr, Vec<u8>) {
        (group.ip(), self.auth_key.clone())
    }
}

impl MockTransport {
    fn itself(&self) -> Member {
        let (address, incarnation) = (self.station.address, self.station.incarnation);
        Member { address, incarnation }
    }

    pub(super) fn leave_all_groups(&mut self) {
        let all: Vec<IpAddr> = self.joined.seen.keys().copied().collect();
        all.into_iter().for_each(|ip| self.leave(Address::new(ip, 0)));
    }

    pub(super) fn remove_member(&self, group: Address, member: Member) {
        if let Some(list) = lock(&self.network).groups.get_mut(&self.joined.name(group)) {
            list.remove(member);
        }
    }
}

impl Multicast for MockTransport {
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Cause> {
        if self.joined.seen.insert(group.ip(), None).is_some() {
            let reason = format!("{} was joined already, by another port", group.ip());
            return Err(Cause { errno: Errno::INVAL, reason });
        }
        if receives {
            let mut network = lock(&self.network);
            let list = network.groups.entry(self.joined.name(group)).or_default();
            list.members.push(self.itself());
            list.changes += 1;
        }
        Ok(Spread::Listed)
    }

    fn leave(&mut self, group: Address) {
        self.joined.seen.remove(&group.ip());
        // Who is killed leaves nothing: it stays in the list.
        if !self.dead() {
            self.remove_member(group, self.itself());
        }
    }

    fn members(&mut self, group: Address) -> Option<Vec<Member>> {
        let (network, itself) = (lock(&self.network), self.itself());
        let list = network.groups.get(&self.joined.name(group));
        let changes = list.map_or(0, |list| list.changes);
        let seen = self.joined.seen.get_mut(&group.ip())?;
        if seen.replace(changes) == Some(changes) {
            return None;
        }
        let members = list.map_or(&[][..], |list| &list.members);
        Some(members.iter().copied().filter(|&member| member != itself).collect())
    }

    fn expel(&mut self, group: Address, member: Member) {
        self.remove_member(group, member);
    }

    fn is_deserted(&self, address: Address) -> bool {
        !lock(&self.network).stations.contains_key(&address)
    }
}
