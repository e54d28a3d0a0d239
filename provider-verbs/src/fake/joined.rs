//! How queue pairs are joined, and whether packets pass between two.

use crate::{partition, path::Route, verbs::LocalPort};

/// How a queue pair is joined with its peer's.
#[derive(Clone, Copy)]
pub(super) struct Joined {
    pub peer: u32,
    pub port: LocalPort,
    pub route: Route,
    pub mtu_bytes: u32,
}

impl Joined {
    /// A device drops packets of other partitions, and those that come from elsewhere than what the
    /// queue pair is joined with; those that are longer than its own end the connection.
    pub fn fits(&self, back: &Joined) -> bool {
        partition::is_same(self.port.partition_key, back.port.partition_key)
            && self.mtu_bytes == back.mtu_bytes
            && leads(&self.route, back.port.lid, &[back.port.gid])
            && leads(&back.route, self.port.lid, &[self.port.gid])
    }
}

pub(super) fn leads(route: &Route, lid: u16, gids: &[[u8; 16]]) -> bool {
    route.lid == lid && route.global.is_none_or(|global| gids.contains(&global.gid))
}
