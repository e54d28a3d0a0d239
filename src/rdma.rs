//! The far side: which RDMA devices there are, where they are reached, and what drives one.

mod networks;

use std::{fs, net::IpAddr};

use kestrel_core::{
    config::{Config, TransportChoice},
    error::{Cause, Errno},
    info::Nic,
};
use kestrel_verbs::{
    Device, DeviceError, Interfaces, VerbsOptions, VerbsProvider,
    datagrams::datagram_max,
    device::{Port, PortState},
    gid,
};
pub use kestrel_verbs::{
    can_keep_registrations,
    device::{Gid, GidKind, LinkLayer},
};
pub use networks::Network;

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
    /// What it is on.
    pub network: Network,
    /// What it is.
    pub nic: Nic,
}

impl RdmaDevice {
    /// What messages can use of a device: its port with an active link, whose addresses stand in its GID
    /// table; on InfiniBand, which has none there, those of IP over InfiniBand, or else any of the host, at
    /// which TCP finds it.
    ///
    /// # Errors
    /// Why there is nothing.
    fn of(device: &Device, host: &Host) -> Result<RdmaDevice, String> {
        if let Some(lack) = device.lacks() {
            return Err(lack.to_string());
        }
        let port = device.active_port().ok_or("no port of it is active")?;
        let mut has_groups = device.has_groups;
        let addresses = if port.link_layer == LinkLayer::InfiniBand {
            let own = host.interfaces.over_infiniband(&device.name, port.number);
            // Groups are the subnet manager's, whom the connection manager asks, which finds a port by such
            // an address alone.
            has_groups &= host.has_manager && !own.is_empty();
            if own.is_empty() { host.interfaces.first().into_iter().collect() } else { own }
        } else {
            host.addresses_of(port)?
        };
        if addresses.is_empty() {
            return Err("its active port has no address".into());
        }
        let (name, nic) = (device.name.clone(), nic(device));
        let (datagram_max, network) = (datagram_max(port.mtu_bytes), Network::of(port));
        Ok(RdmaDevice { name, addresses, datagram_max, has_groups, network, nic })
    }
}

/// What a device and its port with an active link are to who reads fi_nic(3).
fn nic(device: &Device) -> Nic {
    let (port, model) = (device.active_port(), &device.model);
    let number = |number: u32| if number == 0 { String::new() } else { format!("{number:#06x}") };
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
    /// The GID that endpoints go by: the one that is named, or else this unless their own address is another one
    /// of the port. None: it has none, and cannot be used.
    pub gid: Option<Gid>,
}

impl RdmaPort {
    fn of(device: &Device, port: &Port, gid_index: Option<u8>) -> RdmaPort {
        RdmaPort {
            device: device.name.clone(),
            number: port.number,
            is_active: port.state == PortState::Active,
            link_layer: port.link_layer,
            gid: gid::choose(port, gid_index).cloned(),
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

impl Host {
    /// This one, as it is now, by the interfaces that may be used.
    fn present(config: &Config) -> Host {
        let interfaces = Interfaces::of_host().only(|name| config.interface.admit(name));
        Host { interfaces, has_manager: kestrel_verbs::has_manager() }
    }

    /// The addresses of a port on Ethernet, the best first.
    ///
    /// # Errors
    /// It has some, and none of them is one of this network namespace.
    fn addresses_of(&self, port: &Port) -> Result<Vec<IpAddr>, String> {
        let mut all: Vec<IpAddr> = port.gids.iter().filter_map(gid::ip_of).collect();
        all.sort_by_key(IpAddr::is_ipv6);
        all.dedup();
        let ours: Vec<_> = all.iter().copied().filter(|ip| self.interfaces.have(*ip)).collect();
        match all.first() {
            Some(first) if ours.is_empty() => {
                Err(format!("its addresses, such as {first}, are none of this network namespace's"))
            }
            _ => Ok(ours),
        }
    }
}

/// The devices that the parameters allow: never an empty list. Where they name none, and `domain` is none either,
/// these are those of one network, the fastest.
///
/// Cost: system calls; loads rdma-core, unless shared memory alone is asked for.
///
/// # Errors
/// Why there are none.
pub fn devices(config: &Config, domain: Option<&str>) -> Result<Vec<RdmaDevice>, Cause> {
    let are_named = !config.device.are_any() || domain.is_some();
    choose(&all(config)?, &Host::present(config), are_named)
}

/// Of each device that the parameters allow and that is not offered, why; nothing where there is none.
///
/// Cost: as [`devices`].
pub fn left_out(config: &Config) -> Vec<String> {
    let are_named = !config.device.are_any();
    all(config).map_or(Vec::new(), |all| sort_out(&all, &Host::present(config), are_named).1)
}

/// Whether the kernel has an RDMA device for this process to see, be it of use or not.
pub(crate) fn is_there_any() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some())
}

/// All ports of the devices that the parameters allow and that can be used, those too that carry nothing
/// now.
///
/// Cost: as [`devices`].
///
/// # Errors
/// Why there are no devices.
pub fn ports(config: &Config) -> Result<Vec<RdmaPort>, Cause> {
    Ok(ports_of(&all(config)?, config.gid_index))
}

fn ports_of(all: &[Device], gid_index: Option<u8>) -> Vec<RdmaPort> {
    let of = |device| move |port| RdmaPort::of(device, port, gid_index);
    let usable = all.iter().filter(|device| device.lacks().is_none());
    usable.flat_map(|device| device.ports.iter().map(of(device))).collect()
}

fn all(config: &Config) -> Result<Vec<Device>, Cause> {
    if config.transport == TransportChoice::Shm {
        return Err(no_device("FI_KESTREL_TRANSPORT=shm".into()));
    }
    let found = kestrel_verbs::devices(|device| config.device.admit(device));
    found.map_err(|error| match error {
        DeviceError::NoneWanted { found } => {
            let wanted = &config.device;
            no_device(format!("FI_KESTREL_DEVICE={wanted}: the devices are {found}"))
        }
        error => Cause::of(&error),
    })
}

/// What is offered, and of each other device why it is not.
fn sort_out(all: &[Device], host: &Host, are_named: bool) -> (Vec<RdmaDevice>, Vec<String>) {
    let (mut offered, mut reasons) = (Vec::new(), Vec::new());
    for device in all {
        match RdmaDevice::of(device, host) {
            Ok(found) => offered.push(found),
            Err(why) => reasons.push(format!("{} is not offered: {why}", device.name)),
        }
    }
    if are_named {
        return (offered, reasons);
    }
    let (chosen, others) = networks::choose(offered);
    let best = chosen.first().map_or("", |device| device.name.as_str());
    reasons.extend(others.iter().map(|device| {
        format!(
            "{} is not offered: it is slower than {best}, or of another network; FI_KESTREL_DEVICE names \
             those to be used",
            device.name
        )
    }));
    (chosen, reasons)
}

fn choose(all: &[Device], host: &Host, are_named: bool) -> Result<Vec<RdmaDevice>, Cause> {
    let (offered, reasons) = sort_out(all, host, are_named);
    if offered.is_empty() {
        return Err(no_device(reasons.join("; ")));
    }
    reasons.iter().for_each(|reason| tracing::info!("{reason}"));
    Ok(offered)
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
    if !config.device.admit(name) {
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

    /// One whose devices have no interface of InfiniBand, and which has the addresses of all.
    fn plain() -> Host {
        let ours = ["10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4", "2001:db8::7"];
        let addresses = ours.map(|ip| running("eth0", ip)).to_vec();
        Host { interfaces: Interfaces::new(Path::new("/nowhere"), addresses), has_manager: true }
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
        Device {
            name: name.into(),
            node_type,
            node_guid: 1,
            model,
            location,
            shares_receives: true,
            has_groups: true,
            ports: vec![port],
        }
    }

    #[test]
    fn a_device_is_reached_at_what_is_routable_first_at_version_4() {
        let gids = ["fe80::1:2", "fe80::2", "2001:db8::7", "::ffff:10.9.0.1", "::ffff:10.9.0.1"];
        let all = [device("rxe0", PortState::Active, &gids)];
        let found = choose(&all, &plain(), false).unwrap();
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
            let found = choose(&all, &host(&sysfs, has_manager), false).unwrap();
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
        let mut all = several().to_vec();
        all.retain(|device| config.device.admit(&device.name));
        let mut host = plain();
        host.interfaces = host.interfaces.only(|name| config.interface.admit(name));
        choose(&all, &host, !config.device.are_any())
    }

    #[test]
    fn every_port_goes_by_one_gid() {
        let mut all = several().to_vec();
        all.push(device("bare0", PortState::Active, &[]));
        all.push(device("old0", PortState::Active, &["fe80::1:2", "::ffff:10.9.0.4"]));
        let found = |all: &[Device]| -> Vec<_> {
            let of = |port: RdmaPort| {
                (
                    port.device.clone(),
                    port.is_active,
                    port.gid.as_ref().map(|gid| gid.index),
                    port.address(),
                )
            };
            ports_of(all, None).into_iter().map(of).collect()
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
        assert_eq!(found(&all), expected);
        all[0].node_type = NodeType::RdmaNic;
        assert_eq!(found(&all), expected[1..], "whose GIDs say nothing");
    }

    #[test]
    fn only_what_is_usable_is_offered_and_of_others_it_is_told_why() {
        let mut all = several().to_vec();
        all.push(device("pod0", PortState::Active, &["::ffff:10.7.0.1"]));
        all.push(Device { node_type: NodeType::RdmaNic, ..all[2].clone() });
        all.push(Device { node_type: NodeType::Unspecified, ..all[2].clone() });
        let (offered, reasons) = sort_out(&all, &plain(), false);
        let names: Vec<_> = offered.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["rxe1", "rxe2"]);
        let told = [
            "down0 is not offered: no port of it is active",
            "mute0 is not offered: its active port has no address",
            "10.7.0.1, are none of this network namespace's",
            "iWARP",
            "no reliable connections",
        ];
        assert_eq!(reasons.len(), told.len());
        for (reason, told) in reasons.iter().zip(told) {
            assert!(reason.contains(told), "{reason}");
        }
        let refused = choose(&all[..2], &plain(), false).unwrap_err();
        assert_eq!(refused.errno, Errno::NODEV);
        assert!(refused.reason.contains("down0") && refused.reason.contains("mute0"), "{refused}");
    }

    #[test]
    fn devices_of_another_network_are_for_who_names_them() {
        let mut all = several().to_vec();
        all.push(infiniband("ib0"));
        all[4].ports[0].speed *= 4;
        let names = |are_named| {
            let (offered, reasons) = sort_out(&all, &plain(), are_named);
            let told = reasons.iter().filter(|why| why.contains("FI_KESTREL_DEVICE")).count();
            (offered.into_iter().map(|device| device.name).collect::<Vec<_>>(), told)
        };
        let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(false), (of(&["ib0"]), 2));
        assert_eq!(names(true), (of(&["rxe1", "rxe2", "ib0"]), 0));
    }

    #[test]
    fn groups_are_offered_where_the_device_has_them() {
        let mut all = [device("rxe1", PortState::Active, &["::ffff:10.9.0.2"])];
        assert!(choose(&all, &plain(), false).unwrap()[0].has_groups);
        all[0].has_groups = false;
        assert!(!choose(&all, &plain(), false).unwrap()[0].has_groups);
    }
}
