//! Ways to peers: address vectors of connections, and address handles of datagrams.

use std::{io, mem, net::Ipv6Addr, sync::Arc};

use rdma_core_sys::verbs::*;

use super::{Rdma, queues::Handle};
use crate::{
    device::LinkLayer,
    verbs::{AddressHandle, PathEnd, VerbsError},
};

/// Hops that packets may take between routers.
const HOPS: u8 = 64;

impl Rdma {
    /// The way to a peer: by LID within an InfiniBand subnet, else by GID. The code point is the
    /// upper part of the traffic class that headers carry, and its upper half the service level.
    pub(super) fn path_to(&self, peer: &PathEnd, dscp: u8) -> ibv_ah_attr {
        let port = &self.port;
        let same_subnet = peer.gid[..8] == port.gid[..8];
        if port.link_layer != LinkLayer::InfiniBand || !same_subnet {
            return ibv_ah_attr { dlid: peer.lid, ..self.path_by_gid(peer.gid, dscp) };
        }
        // SAFETY: the structure holds integers only, which may be zero.
        let mut path: ibv_ah_attr = unsafe { mem::zeroed() };
        path.port_num = port.number;
        path.dlid = peer.lid;
        path.sl = dscp >> 3;
        path
    }

    /// The way that packets with a global route header take.
    pub(super) fn path_by_gid(&self, gid: [u8; 16], dscp: u8) -> ibv_ah_attr {
        // SAFETY: as above.
        let mut path: ibv_ah_attr = unsafe { mem::zeroed() };
        path.port_num = self.port.number;
        path.sl = dscp >> 3;
        path.is_global = 1;
        path.grh.dgid.raw = gid;
        path.grh.sgid_index = self.port.gid_index;
        path.grh.hop_limit = HOPS;
        path.grh.traffic_class = dscp << 2;
        path
    }

    /// Whether there can be a way.
    pub(super) fn check_path(&self, peer: &PathEnd) -> Result<(), VerbsError> {
        let (device, port) = (self.open.name.clone(), &self.port);
        let infiniband = |layer| layer == LinkLayer::InfiniBand;
        if infiniband(port.link_layer) != infiniband(peer.link_layer) {
            let (ours, theirs) = (port.link_layer, peer.link_layer);
            return Err(VerbsError::LinkLayers { device, ours, theirs });
        }
        // The highest bit tells full from limited membership of the same partition.
        if infiniband(port.link_layer) && (port.partition_key ^ peer.partition_key) & 0x7fff != 0 {
            let (ours, theirs) = (port.partition_key, peer.partition_key);
            return Err(VerbsError::Partitions { device, ours, theirs });
        }
        Ok(())
    }

    /// The device found no way.
    pub(super) fn no_path(&self, peer: &PathEnd, source: io::Error) -> VerbsError {
        VerbsError::Path {
            device: self.open.name.clone(),
            index: self.port.gid_index,
            gid: Ipv6Addr::from(peer.gid).to_string(),
            source,
        }
    }
}

/// The way to a peer, which datagrams name.
pub struct RdmaAddressHandle {
    handle: Handle<ibv_ah>,
    /// Dropped last.
    _device: Arc<Rdma>,
}

// SAFETY: libibverbs serializes what has to be.
unsafe impl Send for RdmaAddressHandle {}

impl RdmaAddressHandle {
    pub(super) fn new(device: &Arc<Rdma>, peer: &PathEnd, dscp: u8) -> Result<Self, VerbsError> {
        device.check_path(peer)?;
        let path = device.path_to(peer, dscp);
        Self::along(device, path).map_err(|source| device.no_path(peer, source))
    }

    /// One that goes that way.
    pub(super) fn along(device: &Arc<Rdma>, mut path: ibv_ah_attr) -> io::Result<Self> {
        // SAFETY: the domain is alive, and the path is readable.
        let handle = unsafe {
            let verbs = device.verbs();
            let handle = verbs.ibv_create_ah(device.domain.as_ptr(), &mut path);
            Handle::new(handle, verbs.ibv_destroy_ah, "ibv_destroy_ah")
        };
        let handle = handle.ok_or_else(io::Error::last_os_error)?;
        Ok(RdmaAddressHandle { handle, _device: device.clone() })
    }
}

impl AddressHandle for RdmaAddressHandle {
    fn name(&self) -> u64 {
        self.handle.as_ptr().addr() as u64
    }
}
