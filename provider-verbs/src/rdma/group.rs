//! Multicast groups on Ethernet: the queue pair is attached to the group, and the host joins it as
//! for any socket, so that switches and the network interface let its packets through.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rdma_core_sys::verbs::*;

use super::Rdma;
use crate::{
    device::LinkLayer,
    verbs::{VerbsError, group_gid},
};

impl Rdma {
    /// Whether groups can be joined.
    pub(super) fn check_groups(&self) -> Result<(), VerbsError> {
        match self.port.link_layer {
            LinkLayer::InfiniBand => Err(VerbsError::NoGroups { device: self.open.name.clone() }),
            _ => Ok(()),
        }
    }

    pub(super) fn no_group(&self, group: IpAddr, source: io::Error) -> VerbsError {
        VerbsError::Group { device: self.open.name.clone(), group, source }
    }

    /// A socket by which the host is in the group, on the device's own network: as long as it is
    /// open.
    pub(super) fn membership(&self, group: IpAddr) -> io::Result<UdpSocket> {
        match group {
            IpAddr::V4(group) => {
                let own = Ipv6Addr::from(self.port.gid).to_ipv4_mapped();
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.join_multicast_v4(&group, &own.unwrap_or(Ipv4Addr::UNSPECIFIED))?;
                Ok(socket)
            }
            IpAddr::V6(group) => {
                let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
                socket.join_multicast_v6(&group, 0)?;
                Ok(socket)
            }
        }
    }
}

/// How the host is in the groups that a queue pair hears.
#[derive(Default)]
pub(super) struct Memberships(Mutex<HashMap<IpAddr, UdpSocket>>);

impl Memberships {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, UdpSocket>> {
        // Nothing panics under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, group: IpAddr, membership: UdpSocket) {
        self.lock().insert(group, membership);
    }

    /// Whether there was one.
    pub(super) fn end(&self, group: IpAddr) -> bool {
        self.lock().remove(&group).is_some()
    }
}

/// The group as the device is told.
pub(super) fn gid_of(group: IpAddr) -> ibv_gid {
    ibv_gid { raw: group_gid(group) }
}
