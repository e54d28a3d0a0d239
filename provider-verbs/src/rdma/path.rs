//! Address vectors of connections, and address handles of datagrams.

use std::{io, mem, sync::Arc};

use rdma_core_sys::verbs::*;

use super::{Rdma, queues::Handle};
use crate::{
    path::{self, GlobalRoute, Route},
    verbs::{AddressHandle, Origin, PathEnd, VerbsError},
};

/// A route as libibverbs takes it.
pub(super) fn to_c(route: &Route) -> ibv_ah_attr {
    // SAFETY: the structure holds integers only, which may be zero.
    let mut path: ibv_ah_attr = unsafe { mem::zeroed() };
    path.port_num = route.port;
    path.dlid = route.lid;
    path.sl = route.service_level;
    path.src_path_bits = route.source_path_bits;
    path.static_rate = route.static_rate;
    if let Some(global) = route.global {
        path.is_global = 1;
        path.grh.dgid.raw = global.gid;
        path.grh.sgid_index = global.gid_index;
        path.grh.flow_label = global.flow_label;
        path.grh.hop_limit = global.hop_limit;
        path.grh.traffic_class = global.traffic_class;
    }
    path
}

/// A route as libraries of rdma-core tell it.
pub(super) fn of_c(path: &ibv_ah_attr) -> Route {
    let global = || GlobalRoute {
        // SAFETY: the bytes of a GID, whichever way they are looked at.
        gid: unsafe { path.grh.dgid.raw },
        gid_index: path.grh.sgid_index,
        flow_label: path.grh.flow_label,
        hop_limit: path.grh.hop_limit,
        traffic_class: path.grh.traffic_class,
    };
    Route {
        port: path.port_num,
        lid: path.dlid,
        service_level: path.sl,
        source_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        global: (path.is_global != 0).then(global),
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
    pub(super) fn new(
        device: &Arc<Rdma>,
        from: &Origin,
        peer: &PathEnd,
    ) -> Result<Self, VerbsError> {
        let name = &device.open.name;
        let route = path::to_peer(name, from, peer)?;
        Self::along(device, &route).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOMEM) => VerbsError::of_call(name, "ibv_create_ah", source),
            _ => path::none(name, &from.port, peer, source),
        })
    }

    /// One that goes that way.
    pub(super) fn along(device: &Arc<Rdma>, route: &Route) -> io::Result<Self> {
        let mut path = to_c(route);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_survives_the_form_of_c() {
        let global = GlobalRoute {
            gid: std::array::from_fn(|nth| nth as u8),
            gid_index: 3,
            flow_label: 4,
            hop_limit: 5,
            traffic_class: 6,
        };
        let global = Some(global);
        let (port, lid, service_level) = (2, 0xc001, 7);
        let (source_path_bits, static_rate) = (1, 8);
        let route = Route { port, lid, service_level, source_path_bits, static_rate, global };
        assert_eq!(of_c(&to_c(&route)), route);
        let local = Route { global: None, ..route };
        assert_eq!(of_c(&to_c(&local)), local);
    }
}
