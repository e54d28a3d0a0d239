//! Multicast groups that a device joins, and the ways to all who hear them.
//!
//! On Ethernet a group's GID is its IP address, and the host joins it as for any socket, so that
//! switches and the network interface let its packets through. On InfiniBand it is the subnet's
//! manager that makes groups and names them; the kernel's connection manager asks it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::transport::wait_any;
use rdma_core_sys::rdmacm::*;
use rustix::net::sockopt;

use super::{
    Rdma, RdmaAddressHandle, RdmaManager, manager::RdmaId, path::of_c,
    socket_address::SocketAddress,
};
use crate::{
    device::LinkLayer,
    manager::Manager,
    partition,
    path::{self, Route},
    verbs::{AddressHandle, Group, GroupAddress, GroupRequest, Verbs, VerbsError, group_gid},
};

/// How long a subnet's manager may take to answer. The kernel asks it more than once in that time.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A group that was joined.
pub struct RdmaGroup {
    handle: RdmaAddressHandle,
    address: GroupAddress,
    /// Dropped last.
    _membership: Membership,
}

/// How this host is in a group.
enum Membership {
    /// It only sends there, for which nobody has to be asked.
    None,
    /// By a socket, as long as it is open.
    Socket {
        _open: UdpSocket,
    },
    Managed {
        _joined: ManagedMembership,
    },
}

impl RdmaGroup {
    pub(super) fn join(device: &Arc<Rdma>, request: &GroupRequest) -> Result<Self, VerbsError> {
        let infiniband = device.port.link_layer == LinkLayer::InfiniBand;
        if !infiniband && !request.managed {
            return Self::join_by_socket(device, request);
        }
        match Self::join_managed(device, request) {
            Err(error) if !infiniband => {
                tracing::info!(group = %request.group, "it is joined by a socket: {error}");
                Self::join_by_socket(device, request)
            }
            joined => joined,
        }
    }

    fn join_by_socket(device: &Arc<Rdma>, request: &GroupRequest) -> Result<Self, VerbsError> {
        let failed = |source| device.no_group(request.group, source);
        let address = GroupAddress { gid: group_gid(request.group), lid: 0 };
        let port = device.port_at(request.own);
        let route = path::by_gid(&port, address.gid, request.marks);
        let handle = RdmaAddressHandle::along(device, &route).map_err(failed)?;
        let membership = match request.hears {
            true => Membership::Socket {
                _open: enter(request.group, device.interface_at(request.own)).map_err(failed)?,
            },
            false => Membership::None,
        };
        Ok(RdmaGroup { handle, address, _membership: membership })
    }

    /// On InfiniBand who only sends joins as well: there is no way to a group before.
    fn join_managed(device: &Arc<Rdma>, request: &GroupRequest) -> Result<Self, VerbsError> {
        let manager = Arc::new(RdmaManager::new(device)?);
        let joined = ManagedMembership::ask(&manager, request)?;
        let failed = |source| device.no_group(request.group, source);
        let told = answer(&manager).map_err(failed)?;
        let global = told.global.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        let address = GroupAddress { gid: global.gid, lid: told.lid };
        let (ours, theirs) = (device.port.partition_key, partition::of_group(global.gid));
        // Our queue pairs are in one partition, and nobody of another would hear them.
        if let Some(theirs) = theirs.filter(|theirs| !partition::is_same(ours, *theirs)) {
            let device = device.open.name.clone();
            return Err(VerbsError::Partitions { device, ours, theirs });
        }
        let by_gid = path::by_gid(&device.port_at(request.own), address.gid, request.marks);
        // The group's, and not ours to choose.
        let Route { lid, service_level, static_rate, .. } = told;
        let route = Route { lid, service_level, static_rate, ..by_gid };
        let handle = RdmaAddressHandle::along(device, &route).map_err(failed)?;
        let (gid, lid) = (Ipv6Addr::from(address.gid), address.lid);
        tracing::info!(group = %request.group, %gid, lid, "joined through rdma_cm");
        let membership = Membership::Managed { _joined: joined };
        Ok(RdmaGroup { handle, address, _membership: membership })
    }
}

impl Group for RdmaGroup {
    fn name(&self) -> u64 {
        self.handle.name()
    }

    fn address(&self) -> GroupAddress {
        self.address
    }
}

/// An id of the connection manager that is in a group, or has asked for it.
struct ManagedMembership {
    id: RdmaId,
    group: SocketAddr,
}

impl ManagedMembership {
    fn ask(manager: &Arc<RdmaManager>, request: &GroupRequest) -> Result<Self, VerbsError> {
        let id = manager.bind_in(RDMA_PS_UDP, 0, SocketAddr::new(request.own, 0))?;
        let group = SocketAddr::new(request.group, 0);
        let mut address = SocketAddress::from(group);
        // SAFETY: the id is alive, and the address is one.
        id.call("rdma_join_multicast", unsafe {
            let at = address.as_mut_ptr();
            manager.cm().rdma_join_multicast(id.as_ptr(), at, ptr::null_mut())
        })?;
        Ok(ManagedMembership { id, group })
    }
}

impl Drop for ManagedMembership {
    fn drop(&mut self) {
        let mut address = SocketAddress::from(self.group);
        // SAFETY: the id is alive, and has asked for the group; its events are acknowledged.
        let failed = unsafe {
            self.id.manager().cm().rdma_leave_multicast(self.id.as_ptr(), address.as_mut_ptr())
        };
        if failed != 0 {
            tracing::debug!("rdma_leave_multicast: {}", io::Error::last_os_error());
        }
    }
}

/// The way to a group, as the connection manager tells it once it has joined.
fn answer(manager: &RdmaManager) -> io::Result<Route> {
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        let read = manager.take(|event| match event.event {
            // SAFETY: the event has these parameters.
            RDMA_CM_EVENT_MULTICAST_JOIN => Some(Ok(of_c(unsafe { &event.param.ud.ah_attr }))),
            RDMA_CM_EVENT_MULTICAST_ERROR => {
                Some(Err(io::Error::from_raw_os_error(event.status.abs())))
            }
            _ => None,
        });
        if let Some(told) = read.flatten() {
            return told;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        wait_any(&[manager.channel()], Some(left));
    }
}

impl Rdma {
    fn no_group(&self, group: IpAddr, source: io::Error) -> VerbsError {
        VerbsError::Group { device: self.open.name.clone(), group, source }
    }
}

/// A socket by which the host is in the group on that interface; 0: where the kernel sends it to.
fn enter(group: IpAddr, interface: u32) -> io::Result<UdpSocket> {
    match group {
        IpAddr::V4(group) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            // The standard library joins by an address alone, which an interface may not have.
            sockopt::set_ip_add_membership_with_ifindex(
                &socket,
                &group,
                &Ipv4Addr::UNSPECIFIED,
                interface,
            )?;
            Ok(socket)
        }
        IpAddr::V6(group) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v6(&group, interface)?;
            Ok(socket)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel says that the host is in the group on that interface.
    fn is_member(group: IpAddr, interface: &str) -> bool {
        let (file, address) = match group {
            IpAddr::V4(v4) => {
                ("/proc/net/igmp", format!("{:08X}", u32::from_ne_bytes(v4.octets())))
            }
            IpAddr::V6(v6) => ("/proc/net/igmp6", format!("{:032x}", v6.to_bits())),
        };
        let mut at = String::new();
        std::fs::read_to_string(file).unwrap().lines().any(|line| {
            let mut words = line.split_whitespace();
            // Of version 4 an interface has a line of its own, in front of its groups'.
            if !line.starts_with('\t') {
                at = words.nth(1).unwrap_or_default().to_owned();
            }
            at == interface && words.any(|word| word == address)
        })
    }

    #[test]
    fn a_group_is_joined_on_the_interface_that_is_named() {
        let index = crate::rdma::interface_index("lo");
        assert_ne!(index, 0, "every network namespace has it");
        for group in ["239.77.3.5", "ff15::4b53:5456"] {
            let group: IpAddr = group.parse().unwrap();
            let joined = enter(group, index);
            if group.is_ipv6() && joined.is_err() {
                println!("no IPv6 here: {joined:?}");
                continue;
            }
            assert!(is_member(group, "lo"), "{group}");
            drop(joined);
            assert!(!is_member(group, "lo"), "{group}");
        }
        assert!(enter([239, 77, 3, 5].into(), u32::MAX >> 1).is_err(), "no such interface");
    }
}
