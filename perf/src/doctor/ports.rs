//! By which GID peers find each port of an RDMA device.

use kestrel::rdma::{self, GidKind, LinkLayer, RdmaPort};

use super::{Finding, Mark, finding};
use crate::session::Session;

const WHAT: &str = "GID";

/// A finding for each port; none where there is no device, of which another one tells.
pub fn gids(session: &Session) -> Vec<Finding> {
    let config = session.options.fabric.config();
    let ports = config.map(|config| rdma::ports(&config).unwrap_or_default());
    ports.unwrap_or_default().iter().map(gid_of).collect()
}

fn gid_of(port: &RdmaPort) -> Finding {
    let place = format!("{} port {}", port.device, port.number);
    let Some(gid) = &port.gid else {
        let advice = match port.link_layer {
            LinkLayer::InfiniBand => "the subnet manager gives it one: does one run (opensm)?",
            _ => "it has one when its network interface is up and has an address (ip addr add)",
        };
        return finding(Mark::Bad, WHAT, format!("{place} has none"), advice);
    };
    let found = format!("{place} goes by {gid}");
    if !port.is_active {
        return finding(
            Mark::Note,
            WHAT,
            format!("{found}; its link is not active"),
            "nothing is sent through it until its link is: see the cable, and ip link",
        );
    }
    if port.link_layer == LinkLayer::InfiniBand {
        return finding(Mark::Good, WHAT, found, "");
    }
    if port.address().is_none() {
        return finding(
            Mark::Bad,
            WHAT,
            found,
            "that is of the link alone, where peers do not find it: give its network interface an IP address (ip addr add)",
        );
    }
    match gid.kind {
        GidKind::RoceV2 => finding(Mark::Good, WHAT, found, ""),
        GidKind::RoceV1 => finding(
            Mark::Note,
            WHAT,
            found,
            "RoCE v1 passes no router, and only peers that have it as well are reached: have the adapter offer RoCE v2",
        ),
        _ => finding(Mark::Note, WHAT, found, "the kernel does not say how its packets travel"),
    }
}

#[cfg(test)]
mod tests {
    use kestrel::rdma::Gid;

    use super::*;

    fn port(link_layer: LinkLayer, gid: Option<(GidKind, &str)>) -> RdmaPort {
        let gid = gid.map(|(kind, address)| Gid {
            index: 3,
            kind,
            address: address.parse().unwrap(),
            interface: Some("eth0".into()),
        });
        RdmaPort { device: "mlx5_0".into(), number: 1, is_active: true, link_layer, gid }
    }

    #[test]
    fn a_gid_is_told_with_what_is_to_be_done_about_it() {
        use GidKind::{InfiniBand, RoceV1, RoceV2};
        use LinkLayer::Ethernet;
        let all = [
            (Ethernet, Some((RoceV2, "::ffff:10.9.0.1")), Mark::Good, ""),
            (Ethernet, Some((RoceV1, "::ffff:10.9.0.1")), Mark::Note, "RoCE v1 passes no router"),
            (Ethernet, Some((RoceV2, "fe80::1")), Mark::Bad, "of the link alone"),
            (Ethernet, Some((RoceV1, "::ffff:169.254.1.1")), Mark::Bad, "of the link alone"),
            (Ethernet, None, Mark::Bad, "ip addr add"),
            (LinkLayer::InfiniBand, Some((InfiniBand, "fe80::1")), Mark::Good, ""),
            (LinkLayer::InfiniBand, None, Mark::Bad, "opensm"),
        ];
        for (link_layer, gid, mark, advice) in all {
            let told = gid_of(&port(link_layer, gid));
            assert!(told.mark == mark && told.advice.contains(advice), "{}", told.advice);
            assert_eq!(told.advice.is_empty(), advice.is_empty(), "{}", told.advice);
        }
        let told = gid_of(&port(Ethernet, all[0].1)).found;
        assert_eq!(told, "mlx5_0 port 1 goes by GID 3: ::ffff:10.9.0.1 (RoCE v2, eth0)");
    }

    #[test]
    fn a_port_without_a_link_says_so() {
        let up = port(LinkLayer::Ethernet, Some((GidKind::RoceV2, "::ffff:10.9.0.1")));
        let told = gid_of(&RdmaPort { is_active: false, ..up });
        assert!(told.mark == Mark::Note && told.found.contains("not active"), "{}", told.found);
    }
}
