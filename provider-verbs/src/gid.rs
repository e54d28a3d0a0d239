//! Which entry of a port's GID table an endpoint goes by.

use std::net::{IpAddr, Ipv6Addr};

use crate::{
    device::{Gid, GidKind, LinkLayer, Port},
    verbs::LocalPort,
};

/// Chooses the GID of a port: what was asked for; on InfiniBand the first; on Ethernet RoCE v2
/// before v1, and an address that is routed before one of the link alone.
pub fn choose(port: &Port, asked: Option<u8>) -> Option<&Gid> {
    if let Some(asked) = asked {
        return port.gids.iter().find(|gid| gid.index == u32::from(asked));
    }
    let usable = usable(port);
    if port.link_layer == LinkLayer::InfiniBand {
        return usable.min_by_key(|gid| gid.index);
    }
    usable.min_by_key(|gid| (gid.kind != GidKind::RoceV2, is_link_local(gid.address), gid.index))
}

/// The GID of an endpoint at that address: the one that is the address, of RoCE v2 before v1. None on
/// InfiniBand, whose GIDs are no addresses of networks.
pub fn at(port: &Port, own: IpAddr) -> Option<&Gid> {
    let own = own.to_canonical();
    let is_own = |gid: &&Gid| is_ip(gid) && IpAddr::V6(gid.address).to_canonical() == own;
    usable(port).filter(is_own).min_by_key(|gid| (gid.kind != GidKind::RoceV2, gid.index))
}

/// A port as it is now, by the GID that it was opened with: a subnet manager that comes late, or anew, gives
/// LIDs, and links change.
pub fn refreshed(opened: &LocalPort, now: &Port) -> LocalPort {
    let (lid, mtu_bytes, grh_required) = (now.lid, now.mtu_bytes.max(256), now.grh_required);
    LocalPort { lid, mtu_bytes, grh_required, ..*opened }
}

/// The same, as an endpoint at that address goes by it, if the table has a GID for it.
pub fn port_at(opened: &LocalPort, now: &Port, own: IpAddr) -> LocalPort {
    let port = refreshed(opened, now);
    let by =
        |gid: &Gid| LocalPort { gid_index: gid.index as u8, gid: gid.address.octets(), ..port };
    at(now, own).map_or(port, by)
}

/// The index is a byte where it is used.
fn usable(port: &Port) -> impl Iterator<Item = &Gid> {
    port.gids.iter().filter(|gid| gid.index <= u32::from(u8::MAX))
}

fn is_ip(gid: &Gid) -> bool {
    matches!(gid.kind, GidKind::RoceV1 | GidKind::RoceV2)
}

/// The IP address that a GID stands for on Ethernet.
pub fn ip_of(gid: &Gid) -> Option<IpAddr> {
    (is_ip(gid) && !is_link_local(gid.address)).then(|| IpAddr::V6(gid.address).to_canonical())
}

fn is_link_local(address: Ipv6Addr) -> bool {
    let v4 = address.to_ipv4_mapped();
    address.is_unicast_link_local() || v4.is_some_and(|v4| v4.is_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::PortState;

    fn port(link_layer: LinkLayer, gids: &[(u32, GidKind, &str)]) -> Port {
        let gid = |&(index, kind, address): &(u32, GidKind, &str)| Gid {
            index,
            kind,
            address: address.parse().unwrap(),
            interface: None,
        };
        Port {
            number: 1,
            link_layer,
            state: PortState::Active,
            mtu_bytes: 4096,
            mtu_bytes_max: 4096,
            speed: 100_000_000_000,
            lid: 0,
            grh_required: false,
            gids: gids.iter().map(gid).collect(),
        }
    }

    #[test]
    fn what_is_routed_goes_before_what_is_not() {
        use GidKind::{RoceV1, RoceV2};
        let all = [
            (0, RoceV1, "fe80::1"),
            (1, RoceV2, "fe80::1"),
            (2, RoceV1, "::ffff:10.9.0.1"),
            (3, RoceV2, "::ffff:169.254.1.1"),
            (4, RoceV2, "::ffff:10.9.0.1"),
            (5, RoceV2, "fd00::1"),
        ];
        let chosen = |gids| choose(&port(LinkLayer::Ethernet, gids), None).map(|gid| gid.index);
        assert_eq!(chosen(&all), Some(4));
        assert_eq!(chosen(&all[..4]), Some(1), "link-local if alone");
        assert_eq!(chosen(&all[..1]), Some(0), "version 1 if alone");
        assert_eq!(chosen(&[]), None);
        let port = port(LinkLayer::Ethernet, &all);
        assert_eq!(choose(&port, Some(2)).unwrap().index, 2);
        assert_eq!(choose(&port, Some(9)), None);
        assert_eq!(ip_of(&port.gids[4]), Some([10, 9, 0, 1].into()));
        assert_eq!(ip_of(&port.gids[1]), None);
    }

    #[test]
    fn an_address_goes_by_its_own_gid() {
        use GidKind::{InfiniBand, RoceV1, RoceV2};
        let all = [
            (0, RoceV1, "::ffff:10.9.0.1"),
            (1, RoceV2, "::ffff:10.9.0.1"),
            (2, RoceV1, "::ffff:10.9.1.1"),
            (3, RoceV2, "2001:db8::7"),
            (4, RoceV2, "fe80::7"),
            (256, RoceV2, "::ffff:10.9.2.1"),
        ];
        let port_of = |gids| port(LinkLayer::Ethernet, gids);
        let ethernet = port_of(&all);
        let index = |own: &str| at(&ethernet, own.parse().unwrap()).map(|gid| gid.index);
        assert_eq!(index("10.9.0.1"), Some(1), "version 2 before 1");
        assert_eq!(index("::ffff:10.9.0.1"), Some(1), "however it is written");
        assert_eq!(index("10.9.1.1"), Some(2));
        assert_eq!(index("2001:db8::7"), Some(3));
        assert_eq!(index("fe80::7"), Some(4));
        assert_eq!(index("10.9.2.1"), None, "an index is a byte");
        assert_eq!(index("10.9.3.1"), None);
        let infiniband = port(LinkLayer::InfiniBand, &[(0, InfiniBand, "fe80::7")]);
        assert_eq!(at(&infiniband, "fe80::7".parse().unwrap()), None);
    }

    #[test]
    fn a_port_is_used_as_it_is_now() {
        let gids = [(0, GidKind::InfiniBand, "fe80::7")];
        let table = port(LinkLayer::InfiniBand, &gids);
        let opened = LocalPort {
            number: 1,
            link_layer: LinkLayer::InfiniBand,
            lid: 0,
            partition_key: 0xffff,
            partition_key_index: 0,
            gid_index: 0,
            gid: table.gids[0].address.octets(),
            mtu_bytes: 4096,
            grh_required: false,
            reads_max: 16,
        };
        let now = Port { lid: 17, mtu_bytes: 2048, grh_required: true, ..table };
        let expected = LocalPort { lid: 17, mtu_bytes: 2048, grh_required: true, ..opened };
        assert_eq!(port_at(&opened, &now, [10, 9, 0, 1].into()), expected);
        assert_eq!(refreshed(&opened, &Port { mtu_bytes: 0, ..now }).mtu_bytes, 256);
    }

    #[test]
    fn infiniband_takes_the_first() {
        let gids = [(1, GidKind::InfiniBand, "fe80::2"), (0, GidKind::InfiniBand, "fe80::1")];
        assert_eq!(choose(&port(LinkLayer::InfiniBand, &gids), None).unwrap().index, 0);
    }
}
