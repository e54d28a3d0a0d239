//! The far side: which RDMA devices there are, where they are reached, and what drives one.

use std::net::IpAddr;

use kestrel_core::{
    config::{Config, TransportChoice},
    error::{Cause, Errno},
    info::Nic,
};
pub use kestrel_verbs::device::{Gid, GidKind, LinkLayer};
use kestrel_verbs::{
    Device, Interfaces, VerbsOptions, VerbsProvider,
    datagrams::datagram_max,
    device::{Port, PortState},
    gid,
};

/// A device that discovery offers a domain for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// The kernel's name for it, and the domain's.
    pub name: String,
    /// The addresses of its network interface, the best first.
    pub addresses: Vec<IpAddr>,
    /// The longest datagram that it carries. Units: bytes.
    pub datagram_max: usize,
    /// Whether it can join multicast groups.
    pub has_groups: bool,
    /// What it is.
    pub nic: Nic,
}

impl RdmaDevice {
    /// What messages can use of a device, if there is anything: its port with an active link,
    /// whose addresses stand in its GID table; on InfiniBand, which has none there, those of IP over
    /// InfiniBand, or else any of the host, at which TCP finds it.
    fn of(device: &Device, host: &Host) -> Option<RdmaDevice> {
        let port = device.active_port();
        let infiniband = port.filter(|port| port.link_layer == LinkLayer::InfiniBand);
        let own = port.into_iter().flat_map(|port| port.gids.iter().filter_map(gid::ip_of));
        let mut addresses: Vec<IpAddr> = own.collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        // The connection manager finds a port by such an address alone.
        let mut is_managed = false;
        if let Some(port) = infiniband {
            addresses = host.interfaces.over_infiniband(&device.name, port.number);
            is_managed = host.has_manager && !addresses.is_empty();
            if addresses.is_empty() {
                addresses.extend(host.interfaces.first());
            }
        }
        if addresses.is_empty() {
            tracing::info!("{} is not offered: no active port of it has an address", device.name);
            return None;
        }
        let mtu_bytes = port.map_or(0, |port| port.mtu_bytes);
        let datagram_max = datagram_max(mtu_bytes);
        // On InfiniBand groups are the subnet manager's, whom the connection manager asks.
        let has_groups =
            is_managed || port.is_some_and(|port| port.link_layer == LinkLayer::Ethernet);
        let (name, nic) = (device.name.clone(), nic(device));
        Some(RdmaDevice { name, addresses, datagram_max, has_groups, nic })
    }
}

/// What a device and its port with an active link are to who reads fi_nic(3).
fn nic(device: &Device) -> Nic {
    let (port, model) = (device.active_port(), &device.model);
    let number = |number: u32| if number == 0 { String::new() } else { format!("{number:#x}") };
    Nic {
        name: device.name.clone(),
        device_id: number(model.part_id),
        device_version: number(model.hardware_version),
        vendor_id: number(model.vendor_id),
        driver: device.location.driver.clone(),
        firmware: model.firmware.clone(),
        pci: device.location.pci,
        address: port
            .and_then(|port| port.gids.first())
            .map_or_else(String::new, |gid| gid.address.to_string()),
        mtu: port.map_or(0, |port| port.mtu_bytes as usize),
        speed: port.map_or(0, |port| port.speed),
        is_up: port.is_some(),
        network: match port.map(|port| port.link_layer) {
            Some(LinkLayer::InfiniBand) => "InfiniBand",
            Some(LinkLayer::Ethernet) => "Ethernet",
            Some(LinkLayer::Unspecified) | None => "",
        }
        .to_owned(),
    }
}

/// A port of a device, and by which of its GIDs peers find what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// The kernel's name for the device.
    pub device: String,
    /// Counted from 1.
    pub number: u8,
    /// Whether it carries messages.
    pub is_active: bool,
    /// What carries its packets.
    pub link_layer: LinkLayer,
    /// The GID that endpoints go by unless their own address is another one of the port; none: it has none,
    /// and cannot be used.
    pub gid: Option<Gid>,
}

impl RdmaPort {
    fn of(device: &Device, port: &Port) -> RdmaPort {
        RdmaPort {
            device: device.name.clone(),
            number: port.number,
            is_active: port.state == PortState::Active,
            link_layer: port.link_layer,
            gid: gid::choose(port, None).cloned(),
        }
    }

    /// The address of its network that the GID stands for; none on InfiniBand, or if it is of the link
    /// alone.
    pub fn address(&self) -> Option<IpAddr> {
        self.gid.as_ref().and_then(gid::ip_of)
    }
}

/// What a host has besides devices.
struct Host {
    interfaces: Interfaces,
    /// librdmacm is there.
    has_manager: bool,
}

/// The devices that the parameters allow: never an empty list.
///
/// Cost: system calls; loads rdma-core, unless shared memory alone is asked for.
///
/// # Errors
/// Why there are none.
pub fn devices(config: &Config) -> Result<Vec<RdmaDevice>, Cause> {
    let all = all(config)?;
    let host =
        Host { interfaces: Interfaces::of_host(), has_manager: kestrel_verbs::has_manager() };
    choose(&all, &config.device, &host)
}

/// All ports of the devices that the parameters allow, those too that carry nothing now.
///
/// Cost: as [`devices`].
///
/// # Errors
/// Why there are no devices.
pub fn ports(config: &Config) -> Result<Vec<RdmaPort>, Cause> {
    Ok(ports_of(&all(config)?, &config.device))
}

fn ports_of(all: &[Device], name: &str) -> Vec<RdmaPort> {
    let of = |device| move |port| RdmaPort::of(device, port);
    let named = all.iter().filter(|device| is_named(device, name));
    named.flat_map(|device| device.ports.iter().map(of(device))).collect()
}

/// Whether a device may be used if it has to have that name, or any.
fn is_named(device: &Device, name: &str) -> bool {
    name.is_empty() || device.name == name
}

fn all(config: &Config) -> Result<Vec<Device>, Cause> {
    if config.transport == TransportChoice::Shm {
        return Err(no_device("FI_KESTREL_TRANSPORT=shm".into()));
    }
    kestrel_verbs::devices().map_err(|error| Cause::of(&error))
}

fn choose(all: &[Device], name: &str, host: &Host) -> Result<Vec<RdmaDevice>, Cause> {
    let named = |device: &&Device| is_named(device, name);
    let of = |device| RdmaDevice::of(device, host);
    let chosen: Vec<_> = all.iter().filter(named).filter_map(of).collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let names: Vec<_> = all.iter().map(|device| device.name.as_str()).collect();
    let names = names.join(", ");
    Err(no_device(match all.iter().any(|device| named(&device)) {
        true if name.is_empty() => format!("none of {names} has an active port with an address"),
        true => format!("FI_KESTREL_DEVICE={name}: it has no active port with an address"),
        false => format!("FI_KESTREL_DEVICE={name}: there is no such device; there are {names}"),
    }))
}

fn no_device(reason: String) -> Cause {
    Cause { errno: Errno::NODEV, reason }
}

/// Makes the device of that name ready for endpoints.
///
/// # Errors
/// There is no such device, or it cannot be used, and why.
pub fn open(config: &Config, name: &str, auth_key: &[u8]) -> Result<VerbsProvider, Cause> {
    if config.transport == TransportChoice::Shm {
        let reason = format!("FI_KESTREL_TRANSPORT=shm does not go with the domain {name}");
        return Err(no_device(reason));
    }
    if !config.device.is_empty() && config.device != name {
        let reason = format!("FI_KESTREL_DEVICE={} does not go with {name}", config.device);
        return Err(no_device(reason));
    }
    VerbsProvider::new(verbs_options(config, name, auth_key))
}

pub(crate) fn verbs_options(config: &Config, name: &str, auth_key: &[u8]) -> VerbsOptions {
    let (device, auth_key) = (Some(name.to_owned()), auth_key.to_vec());
    VerbsOptions { device, auth_key, ..VerbsOptions::from(config) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{fs, path::Path};

    use super::*;
    use kestrel_core::info::PciAddress;
    use kestrel_verbs::{
        InterfaceAddress,
        device::{Device, Gid, GidKind, LinkLayer, Location, Model, NodeType, Port, PortState},
    };

    fn running(interface: &str, ip: &str) -> InterfaceAddress {
        let (interface, ip) = (interface.to_owned(), ip.parse().unwrap());
        InterfaceAddress { interface, is_running: true, is_loopback: false, ip }
    }

    fn host(sysfs: &Path, has_manager: bool) -> Host {
        let addresses = vec![
            running("eth0", "10.0.0.1"),
            running("ib0", "fd00::9"),
            running("ib0", "10.9.0.1"),
        ];
        Host { interfaces: Interfaces::new(sysfs, addresses), has_manager }
    }

    /// One whose devices have no interface of their own.
    fn plain() -> Host {
        host(Path::new("/nowhere"), true)
    }

    fn device(name: &str, state: PortState, gids: &[&str]) -> Device {
        let gid = |(index, text): (usize, &&str)| Gid {
            index: index as u32,
            kind: if text.starts_with("fe80::1:") { GidKind::RoceV1 } else { GidKind::RoceV2 },
            address: text.parse().unwrap(),
            interface: None,
        };
        let port = Port {
            number: 1,
            link_layer: LinkLayer::Ethernet,
            state,
            mtu_bytes: 1024,
            mtu_bytes_max: 4096,
            speed: 25_000_000_000,
            lid: 0,
            grh_required: false,
            gids: gids.iter().enumerate().map(gid).collect(),
        };
        let node_type = NodeType::ChannelAdapter;
        let model = Model { vendor_id: 0x15b3, part_id: 0x1017, ..Model::default() };
        let pci = Some(PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 });
        let location = Location { driver: "mlx5_core".into(), pci };
        Device { name: name.into(), node_type, node_guid: 1, model, location, ports: vec![port] }
    }

    #[test]
    fn a_device_is_reached_at_what_is_routable_first_at_version_4() {
        let gids = ["fe80::1:2", "fe80::2", "2001:db8::7", "::ffff:10.9.0.1", "::ffff:10.9.0.1"];
        let all = [device("rxe0", PortState::Active, &gids)];
        let found = choose(&all, "", &plain()).unwrap();
        let expected: [IpAddr; 2] = [[10, 9, 0, 1].into(), "2001:db8::7".parse().unwrap()];
        assert_eq!(found[0].addresses, expected);
        assert_eq!((found[0].datagram_max, found[0].has_groups), (960, true));
        let Nic { name, vendor_id, device_id, firmware, mtu, is_up, network, .. } = &found[0].nic;
        let texts = [name, vendor_id, device_id, firmware, network].map(String::as_str);
        assert_eq!(texts, ["rxe0", "0x15b3", "0x1017", "", "Ethernet"]);
        assert_eq!((*mtu, *is_up), (1024, true));
        let pci = Some(PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 });
        assert_eq!((found[0].nic.driver.as_str(), found[0].nic.pci), ("mlx5_core", pci));
        assert_eq!(found[0].nic.speed, 25_000_000_000);
    }

    fn infiniband(name: &str) -> Device {
        let mut device = device(name, PortState::Active, &["fe80::2"]);
        device.ports[0].link_layer = LinkLayer::InfiniBand;
        device.ports[0].gids[0].kind = GidKind::InfiniBand;
        device
    }

    /// Two devices do not share an address, and who has an own one joins groups, if somebody asks the
    /// subnet manager.
    #[test]
    fn infiniband_is_reached_at_its_own_interfaces_first() {
        let name = format!("kestrel-discovery-{}", std::process::id());
        let sysfs = std::env::temp_dir().join(name);
        let folder = sysfs.join("mlx5_0/device/net/ib0");
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("type", "32\n"), ("dev_port", "0\n")] {
            fs::write(folder.join(file), text).unwrap();
        }
        let all = [infiniband("mlx5_0"), infiniband("mlx5_1")];
        let own: [IpAddr; 2] = [[10, 9, 0, 1].into(), "fd00::9".parse().unwrap()];
        for has_manager in [true, false] {
            let found = choose(&all, "", &host(&sysfs, has_manager)).unwrap();
            assert_eq!(found[0].addresses, own);
            assert_eq!(found[0].has_groups, has_manager);
            assert_eq!(found[1].addresses, [IpAddr::from([10, 0, 0, 1])], "the last resort");
            assert!(!found[1].has_groups, "the connection manager does not find the port there");
        }
        fs::remove_dir_all(&sysfs).unwrap();
    }

    fn several() -> [Device; 4] {
        [
            device("down0", PortState::Down, &["::ffff:10.9.0.1"]),
            device("mute0", PortState::Active, &["fe80::2"]),
            device("rxe1", PortState::Active, &["::ffff:10.9.0.2"]),
            device("rxe2", PortState::Active, &["::ffff:10.9.0.3"]),
        ]
    }

    /// What would be offered where there are several devices.
    pub(crate) fn chosen(config: &Config) -> Result<Vec<RdmaDevice>, Cause> {
        choose(&several(), &config.device, &plain())
    }

    #[test]
    fn every_port_goes_by_one_gid() {
        let mut all = several().to_vec();
        all.push(device("bare0", PortState::Active, &[]));
        all.push(device("old0", PortState::Active, &["fe80::1:2", "::ffff:10.9.0.4"]));
        let found = |name| -> Vec<_> {
            let of = |port: RdmaPort| {
                (
                    port.device.clone(),
                    port.is_active,
                    port.gid.as_ref().map(|gid| gid.index),
                    port.address(),
                )
            };
            ports_of(&all, name).into_iter().map(of).collect()
        };
        let ip = |last| Some(IpAddr::from([10, 9, 0, last]));
        let expected = [
            ("down0", false, Some(0), ip(1)),
            ("mute0", true, Some(0), None),
            ("rxe1", true, Some(0), ip(2)),
            ("rxe2", true, Some(0), ip(3)),
            ("bare0", true, None, None),
            ("old0", true, Some(1), ip(4)),
        ]
        .map(|(name, is_active, index, address)| (name.to_owned(), is_active, index, address));
        assert_eq!(found(""), expected);
        assert_eq!(found("rxe2"), expected[3..4]);
        assert_eq!(found("mlx5_0"), []);
    }

    #[test]
    fn only_what_is_usable_and_asked_for_is_offered() {
        let all = several();
        let names = |found: Vec<RdmaDevice>| -> Vec<String> {
            found.into_iter().map(|device| device.name).collect()
        };
        assert_eq!(names(choose(&all, "", &plain()).unwrap()), ["rxe1", "rxe2"]);
        assert_eq!(names(choose(&all, "rxe2", &plain()).unwrap()), ["rxe2"]);
        for (name, told) in [("down0", "active port"), ("mlx5_0", "no such device")] {
            let error = choose(&all, name, &plain()).unwrap_err();
            assert_eq!(error.errno, Errno::NODEV);
            assert!(error.reason.contains(told), "{}", error.reason);
        }
    }
}
