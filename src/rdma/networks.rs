//! Which of several devices a job is to be on, where nobody names any: those of one network.
//!
//! MPIs spread the ranks of a host over the devices that they are told of. Ranks on devices of networks that do
//! not meet reach nobody, as on InfiniBand beside an adapter of Ethernet for storage or management.

use kestrel_verbs::device::{LinkLayer, Port};

use super::RdmaDevice;

/// A network, as far as a port tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// A subnet of InfiniBand, by its prefix.
    InfiniBand(u64),
    /// Ethernet: whatever is on it may be routed to.
    Ethernet,
}

impl Network {
    pub(super) fn of(port: &Port) -> Network {
        match port.link_layer {
            LinkLayer::InfiniBand => {
                let gid = port.gids.first().map_or(0, |gid| gid.address.to_bits());
                Network::InfiniBand((gid >> 64) as u64)
            }
            LinkLayer::Ethernet | LinkLayer::Unspecified => Network::Ethernet,
        }
    }
}

/// Leaves the devices of the network whose devices are fastest together, the fastest first, and without those that
/// are less than half as fast as that one. All hosts of a job choose alike, if they are alike.
///
/// Returns what was left out as well.
pub(super) fn choose(offered: Vec<RdmaDevice>) -> (Vec<RdmaDevice>, Vec<RdmaDevice>) {
    let speed_of = |network: Network| -> u64 {
        let on_it = offered.iter().filter(|device| device.network == network);
        on_it.map(speed).sum()
    };
    let networks = offered.iter().map(|device| device.network);
    let Some(best) = networks.max_by_key(|&it| (speed_of(it), std::cmp::Reverse(it))) else {
        return (offered, Vec::new());
    };
    let on_it = offered.iter().filter(|device| device.network == best);
    let fastest = on_it.map(speed).max().unwrap_or(0);
    let suits = |device: &RdmaDevice| device.network == best && speed(device) >= fastest / 2;
    let (mut chosen, others): (Vec<_>, Vec<_>) = offered.into_iter().partition(suits);
    // Stable: those that are equal stay in order.
    chosen.sort_by_key(|device| std::cmp::Reverse(speed(device)));
    (chosen, others)
}

/// Of a link; one whose speed is not known has one that is newer than what knows of it. Units: bits per second.
fn speed(device: &RdmaDevice) -> u64 {
    match device.nic.speed {
        0 => 1 << 50,
        speed => speed,
    }
}

#[cfg(test)]
mod tests {
    use kestrel_core::info::Nic;

    use super::*;

    fn device(name: &str, network: Network, gigabits: u64) -> RdmaDevice {
        RdmaDevice {
            name: name.into(),
            addresses: Vec::new(),
            datagram_max: 0,
            has_groups: false,
            network,
            nic: Nic { speed: gigabits * 1_000_000_000, ..Nic::default() },
        }
    }

    #[test]
    fn a_job_is_on_the_fastest_network() {
        use Network::{Ethernet, InfiniBand};
        let chosen = |devices: &[(&str, Network, u64)]| {
            let all = devices.iter().map(|&(name, network, speed)| device(name, network, speed));
            let (chosen, others) = choose(all.collect());
            assert_eq!(chosen.len() + others.len(), devices.len());
            chosen.into_iter().map(|device| device.name).collect::<Vec<_>>()
        };
        assert!(chosen(&[]).is_empty());
        assert_eq!(chosen(&[("rxe0", Ethernet, 2), ("rxe1", Ethernet, 2)]), ["rxe0", "rxe1"]);
        let host = [
            ("mlx5_0", Ethernet, 25),
            ("mlx5_1", InfiniBand(7), 200),
            ("mlx5_2", InfiniBand(7), 400),
            ("mlx5_3", InfiniBand(8), 400),
            ("mlx5_4", InfiniBand(7), 100),
        ];
        assert_eq!(chosen(&host), ["mlx5_2", "mlx5_1"]);
        assert_eq!(chosen(&[host[0], host[1]]), ["mlx5_1"]);
        let equal = [("b", Ethernet, 100), ("a", InfiniBand(9), 100), ("c", InfiniBand(8), 100)];
        assert_eq!(chosen(&equal), ["c"], "by a rule that every host has");
        let unknown = ("x", InfiniBand(7), 0);
        assert_eq!(chosen(&[host[0], host[3], unknown]), ["x"], "whose speed nobody knows yet");
    }
}
