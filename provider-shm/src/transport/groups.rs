//! Multicast groups: what an endpoint has joined, and who else hears it.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use kestrel_core::{
    address::Address,
    error::{Cause, Errno, HasErrno},
    group::{Member, Spread},
    transport::Multicast,
};

use super::ShmTransport;
use crate::group_table::{GroupTable, GroupTables};

/// The groups of an endpoint.
pub(crate) struct Groups {
    tables: Arc<GroupTables>,
    auth_key: Vec<u8>,
    joined: HashMap<IpAddr, Joined>,
}

struct Joined {
    table: Arc<GroupTable>,
    receives: bool,
    /// The changes of the list when it was last read.
    seen: Option<u64>,
}

impl Groups {
    pub(crate) fn new(tables: Arc<GroupTables>, auth_key: &[u8]) -> Groups {
        Groups { tables, auth_key: auth_key.to_vec(), joined: HashMap::new() }
    }
}

impl ShmTransport {
    pub(super) fn itself(&self) -> Member {
        Member { address: self.address, incarnation: self.station.incarnation() }
    }

    pub(super) fn leave_all_groups(&mut self) {
        let all: Vec<IpAddr> = self.groups.joined.keys().copied().collect();
        all.into_iter().for_each(|ip| self.leave(Address::new(ip, 0)));
    }
}

impl Multicast for ShmTransport {
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Cause> {
        let ip = group.ip().to_canonical();
        if self.groups.joined.contains_key(&ip) {
            let reason = format!("{ip} was joined already, by another port");
            return Err(Cause { errno: Errno::INVAL, reason });
        }
        let refused = |error: crate::group_table::GroupError| {
            let reason = format!("{ip} cannot be joined: {error}");
            Cause { errno: error.errno(), reason }
        };
        let table = self.groups.tables.open(&self.groups.auth_key, ip).map_err(refused)?;
        if receives {
            let is_deserted = |address: Address| self.station.is_deserted(address.socket_addr());
            table.add(self.itself(), is_deserted).map_err(refused)?;
        }
        self.groups.joined.insert(ip, Joined { table, receives, seen: None });
        Ok(Spread::Listed)
    }

    fn leave(&mut self, group: Address) {
        if let Some(joined) = self.groups.joined.remove(&group.ip().to_canonical())
            && joined.receives
            // A forked child has its parent's lists before it.
            && !self.station.is_forked()
        {
            joined.table.remove(self.itself());
        }
    }

    fn members(&mut self, group: Address) -> Option<Vec<Member>> {
        let joined = self.groups.joined.get_mut(&group.ip().to_canonical())?;
        // Before the list is read, so that whoever joins meanwhile is read the next time.
        let changes = joined.table.changes();
        if joined.seen.replace(changes) == Some(changes) {
            return None;
        }
        Some(joined.table.members(self.address))
    }

    fn expel(&mut self, group: Address, member: Member) {
        if let Some(joined) = self.groups.joined.get(&group.ip().to_canonical()) {
            tracing::info!(address = %member.address, "a member of {group} is gone");
            joined.table.remove(member);
        }
    }

    fn is_deserted(&self, address: Address) -> bool {
        self.station.is_deserted(address.socket_addr())
    }
}
