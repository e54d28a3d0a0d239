//! Paths to peers: what routes packets to them, and whether there can be a path at all.
//!
//! Nothing here asks a device, so that the real one and the fake decide alike.

use std::{io, net::Ipv6Addr};

use crate::{
    device::LinkLayer,
    partition::{self, FULL_MEMBER},
    verbs::{LocalPort, Origin, PathEnd, VerbsError},
};

/// Hops that packets may take between routers.
const HOPS: u8 = 64;

/// What packets are marked with, for those on their way to go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The byte of that name in headers: a code point (DSCP), and two bits of congestion notification. None:
    /// as the connection manager says, or 0.
    pub traffic_class: Option<u8>,
    /// What InfiniBand's switches go by. None: the upper three bits of the class.
    pub service_level: Option<u8>,
}

impl Marks {
    pub fn of_code_point(dscp: u8) -> Marks {
        Marks { traffic_class: Some(dscp << 2), service_level: None }
    }

    pub fn code_point(self) -> Option<u8> {
        self.traffic_class.map(|class| class >> 2)
    }
}

/// What routes packets: a device's address vector. Reference: ibv_create_ah(3)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The port that packets leave through.
    pub port: u8,
    /// Where they go to within the subnet. Of InfiniBand alone.
    pub lid: u16,
    pub service_level: u8,
    pub source_path_bits: u8,
    pub static_rate: u8,
    /// Their global route header, if they have one.
    pub global: Option<GlobalRoute>,
}

/// A global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    pub gid: [u8; 16],
    /// The entry of the own port's GID table that stands for the sender.
    pub gid_index: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The path to a peer: what the connection manager has said, or else, within an InfiniBand subnet, by
/// LID, with a global route header only where the port needs it; elsewhere by GID.
///
/// # Errors
/// Why there can be none. Another subnet is one reason: the LID that packets need is then the
/// router's, and the peer cannot tell it.
pub fn to_peer(device: &str, from: &Origin, peer: &PathEnd) -> Result<Route, VerbsError> {
    let port = &from.port;
    check_partition(device, port, peer)?;
    if let Some(agreed) = from.agreed {
        return Ok(agreed);
    }
    let by_gid = Route { lid: peer.lid, ..by_gid(port, peer.gid, from.marks) };
    if port.link_layer != LinkLayer::InfiniBand {
        return Ok(by_gid);
    }
    let (ours, theirs) = (subnet_of(port.gid), subnet_of(peer.gid));
    if ours != theirs {
        return Err(VerbsError::Subnets { device: device.into(), ours, theirs });
    }
    if port.grh_required {
        return Ok(by_gid);
    }
    if let Some(whose) = [(port.lid, "it"), (peer.lid, "the peer")].iter().find(|end| end.0 == 0) {
        return Err(VerbsError::NoLid { device: device.into(), whose: whose.1 });
    }
    Ok(Route { global: None, ..by_gid })
}

/// The path of packets with a global route header, marked with zeroes if with nothing.
pub fn by_gid(port: &LocalPort, gid: [u8; 16], marks: Marks) -> Route {
    let traffic_class = marks.traffic_class.unwrap_or(0);
    let service_level = marks.service_level.unwrap_or(traffic_class >> 5);
    let (flow_label, hop_limit) = (0, HOPS);
    let gid_index = port.gid_index;
    Route {
        port: port.number,
        lid: 0,
        service_level,
        source_path_bits: 0,
        static_rate: 0,
        global: Some(GlobalRoute { gid, gid_index, flow_label, hop_limit, traffic_class }),
    }
}

/// Whether packets that find a way are taken there.
fn check_partition(device: &str, port: &LocalPort, peer: &PathEnd) -> Result<(), VerbsError> {
    let device = || device.to_owned();
    let infiniband = |layer| layer == LinkLayer::InfiniBand;
    if infiniband(port.link_layer) != infiniband(peer.link_layer) {
        let (ours, theirs) = (port.link_layer, peer.link_layer);
        return Err(VerbsError::LinkLayers { device: device(), ours, theirs });
    }
    let (ours, theirs) = (port.partition_key, peer.partition_key);
    if infiniband(port.link_layer) && !partition::is_same(ours, theirs) {
        return Err(VerbsError::Partitions { device: device(), ours, theirs });
    }
    if infiniband(port.link_layer) && (ours | theirs) & FULL_MEMBER == 0 {
        return Err(VerbsError::LimitedMembers { device: device(), ours, theirs });
    }
    Ok(())
}

/// The prefix of a GID.
fn subnet_of(gid: [u8; 16]) -> u64 {
    (u128::from_be_bytes(gid) >> 64) as u64
}

/// The device found no way.
pub fn none(device: &str, port: &LocalPort, peer: &PathEnd, source: io::Error) -> VerbsError {
    let gid = Ipv6Addr::from(peer.gid).to_string();
    VerbsError::Path { device: device.into(), index: port.gid_index, gid, source }
}

#[cfg(test)]
mod tests {
    use kestrel_core::error::{Errno, HasErrno};

    use super::*;
    use crate::verbs::Agreement;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    fn port(link_layer: LinkLayer) -> LocalPort {
        LocalPort {
            number: 2,
            link_layer,
            lid: 17,
            partition_key: 0xffff,
            partition_key_index: 0,
            gid_index: 3,
            gid: gid("fe80::17"),
            mtu_bytes: 4096,
            grh_required: false,
            reads_max: 16,
        }
    }

    fn from(port: LocalPort) -> Origin {
        Origin { port, marks: Marks::of_code_point(46), agreed: None }
    }

    fn peer(link_layer: LinkLayer) -> PathEnd {
        PathEnd {
            queue_pair: 7,
            first_packet: 0,
            lid: 18,
            partition_key: 0xffff,
            link_layer,
            gid: gid("fe80::18"),
            mtu_bytes: 4096,
            reads_max: 16,
        }
    }

    #[test]
    fn the_service_level_follows_the_class_or_is_set() {
        let marked = |traffic_class, service_level| {
            let marks = Marks { traffic_class, service_level };
            let route = by_gid(&port(LinkLayer::Ethernet), gid("fe80::18"), marks);
            (route.global.unwrap().traffic_class, route.service_level)
        };
        assert_eq!(marked(None, None), (0, 0));
        assert_eq!(marked(Some(184), None), (184, 5));
        assert_eq!(marked(Some(106), None), (106, 3), "the lower bits as well");
        assert_eq!(marked(Some(184), Some(0)), (184, 0));
        assert_eq!(marked(None, Some(2)), (0, 2));
    }

    #[test]
    fn within_a_subnet_packets_go_by_lid() {
        let ours = from(port(LinkLayer::InfiniBand));
        let route = to_peer("ib0", &ours, &peer(LinkLayer::InfiniBand)).unwrap();
        assert_eq!((route.port, route.lid, route.service_level), (2, 18, 5));
        assert_eq!(route.global, None);
    }

    #[test]
    fn a_port_that_needs_the_global_header_has_lid_and_gid() {
        let ours = from(LocalPort { grh_required: true, ..port(LinkLayer::InfiniBand) });
        let route = to_peer("ib0", &ours, &peer(LinkLayer::InfiniBand)).unwrap();
        let global = route.global.unwrap();
        assert_eq!((route.lid, global.gid, global.gid_index), (18, gid("fe80::18"), 3));
    }

    #[test]
    fn on_ethernet_packets_go_by_gid_whatever_its_prefix() {
        let ours = LocalPort { lid: 0, ..port(LinkLayer::Ethernet) };
        let far = gid("::ffff:10.9.0.1");
        let theirs = PathEnd { lid: 0, gid: far, ..peer(LinkLayer::Ethernet) };
        let route = to_peer("rxe0", &from(ours), &theirs).unwrap();
        let global = route.global.unwrap();
        assert_eq!((route.lid, route.service_level), (0, 5));
        assert_eq!((global.gid, global.gid_index, global.traffic_class), (far, 3, 46 << 2));
        assert_eq!(by_gid(&ours, far, Marks::of_code_point(46)), route);
    }

    #[test]
    fn another_subnet_is_an_error_that_names_both_and_who_knows() {
        let theirs = PathEnd { gid: gid("fec0:0:0:9::18"), ..peer(LinkLayer::InfiniBand) };
        let ours = from(port(LinkLayer::InfiniBand));
        let error = to_peer("mlx5_0", &ours, &theirs).unwrap_err();
        let text = error.to_string();
        for part in ["fe80000000000000", "fec0000000000009", "FI_KESTREL_CONNECT_BY=rdma_cm"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(error.errno(), Errno::NETUNREACH);
    }

    /// The router's LID, the service level, the entries of tables: all as it was agreed on.
    #[test]
    fn what_the_connection_manager_said_leads_to_other_subnets_and_partitions() {
        let theirs = PathEnd { gid: gid("fec0:0:0:9::18"), ..peer(LinkLayer::InfiniBand) };
        let theirs = PathEnd { partition_key: 0x0005, ..theirs };
        let ours = from(port(LinkLayer::InfiniBand));
        let route =
            Route { lid: 99, service_level: 3, ..by_gid(&ours.port, theirs.gid, Marks::default()) };
        let (partition_key, partition_key_index) = (0x8005, 4);
        let (mtu_bytes, is_narrowed) = (1024, false);
        let agreement =
            Agreement { route, partition_key, partition_key_index, mtu_bytes, is_narrowed };
        let along = ours.along(Some(&agreement));
        assert_eq!(along.port.mtu_bytes, 1024, "narrower than both ends");
        let wider = Agreement { mtu_bytes: 1 << 20, ..agreement };
        assert_eq!(ours.along(Some(&wider)).port.mtu_bytes, ours.port.mtu_bytes);
        assert_eq!(along.port.partition_key_index, 4);
        assert_eq!(to_peer("mlx5_0", &along, &theirs).unwrap(), route);
        let other = PathEnd { partition_key: 0x8006, ..theirs };
        let refused = to_peer("mlx5_0", &along, &other);
        assert!(matches!(refused, Err(VerbsError::Partitions { .. })), "{refused:?}");
        assert_eq!(ours.along(None), ours);
    }

    #[test]
    fn who_has_no_lid_is_an_error_that_says_who() {
        let layer = LinkLayer::InfiniBand;
        let ours = from(LocalPort { lid: 0, ..port(layer) });
        let text = to_peer("ib0", &ours, &peer(layer)).unwrap_err().to_string();
        assert!(text.contains("it has no LID"), "{text}");
        let theirs = PathEnd { lid: 0, ..peer(layer) };
        let text = to_peer("ib0", &from(port(layer)), &theirs).unwrap_err().to_string();
        assert!(text.contains("the peer has no LID") && text.contains("subnet manager"), "{text}");
        // A virtual function may have none of its own.
        let function = from(LocalPort { lid: 0, grh_required: true, ..port(layer) });
        to_peer("ib0", &function, &theirs).unwrap();
    }

    #[test]
    fn one_member_of_a_partition_at_least_is_a_full_one() {
        let between = |ours: u16, theirs: u16, layer| {
            let ours = from(LocalPort { partition_key: ours, ..port(layer) });
            let theirs = PathEnd { partition_key: theirs, ..peer(layer) };
            to_peer("mlx5_0", &ours, &theirs)
        };
        let infiniband = LinkLayer::InfiniBand;
        for (ours, theirs) in [(0x8001, 0x8001), (0x8001, 0x0001), (0x0001, 0x8001)] {
            between(ours, theirs, infiniband).unwrap();
        }
        let limited = between(0x0001, 0x0001, infiniband).unwrap_err().to_string();
        assert!(limited.contains("both limited members"), "{limited}");
        let other = between(0x8001, 0x8002, infiniband).unwrap_err().to_string();
        assert!(other.contains("0x8001") && other.contains("0x8002"), "{other}");
        between(0x0001, 0x0002, LinkLayer::Ethernet).unwrap();
    }

    #[test]
    fn link_layers_have_to_be_the_same() {
        for (ours, theirs) in [
            (LinkLayer::InfiniBand, LinkLayer::Ethernet),
            (LinkLayer::Ethernet, LinkLayer::InfiniBand),
        ] {
            let refused = to_peer("rxe0", &from(port(ours)), &peer(theirs));
            assert!(matches!(refused, Err(VerbsError::LinkLayers { .. })), "{refused:?}");
        }
    }
}
