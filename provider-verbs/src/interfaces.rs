//! Network interfaces of this host: which of them is an InfiniBand port's (IP over InfiniBand), and
//! their addresses.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::{device::SYSFS, rdma::interface_addresses};

/// What `type` says of an interface that is IP over InfiniBand (ARPHRD_INFINIBAND).
const ARP_INFINIBAND: u64 = 32;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    /// It is switched on, and has a carrier.
    pub is_running: bool,
    pub is_loopback: bool,
    pub ip: IpAddr,
}

/// The addresses of a host, and where its kernel says which interface is whose.
#[derive(Clone, Debug)]
pub struct Interfaces {
    sysfs: PathBuf,
    addresses: Vec<InterfaceAddress>,
    /// The kernel has said which there are.
    are_known: bool,
}

impl Interfaces {
    /// Those of this host as it is now.
    pub fn of_host() -> Interfaces {
        let found = interface_addresses();
        let are_known = found.is_some();
        Interfaces { are_known, ..Interfaces::new(Path::new(SYSFS), found.unwrap_or_default()) }
    }

    /// `sysfs` has a folder for each RDMA device.
    pub fn new(sysfs: &Path, addresses: Vec<InterfaceAddress>) -> Interfaces {
        Interfaces { sysfs: sysfs.into(), addresses, are_known: true }
    }

    /// The same with those alone that may be used, by their names.
    pub fn only(mut self, may: impl Fn(&str) -> bool) -> Interfaces {
        self.addresses.retain(|at| may(&at.interface));
        self
    }

    /// The addresses at which IP over InfiniBand reaches a device's port, version 4 first, without
    /// those of the link alone.
    pub fn over_infiniband(&self, device: &str, port: u8) -> Vec<IpAddr> {
        let interfaces = self.interfaces_of(device, port);
        let is_its = |at: &&InterfaceAddress| at.is_running && interfaces.contains(&at.interface);
        let mut found: Vec<IpAddr> = self.addresses.iter().filter(is_its).map(|at| at.ip).collect();
        found.retain(|ip| !is_link_local(ip));
        found.sort_by_key(IpAddr::is_ipv6);
        found
    }

    /// The interface that has one of these addresses, the first that is found.
    pub fn having(&self, wanted: &[IpAddr]) -> Option<&str> {
        let holds = |ip: &IpAddr| self.addresses.iter().find(|at| at.ip == ip.to_canonical());
        wanted.iter().find_map(holds).map(|at| at.interface.as_str())
    }

    /// Whether this host, or the network namespace of this process, has that address, as far as is known.
    pub fn have(&self, ip: IpAddr) -> bool {
        !self.are_known || self.having(&[ip]).is_some()
    }

    /// An address of this host: where endpoints are if their device has none of its own. Not one that other
    /// hosts have as well, which would be taken for one host: those of the link alone, and, if there is any
    /// other, those of bridges, which containers and virtual machines are given.
    pub fn first(&self) -> Option<IpAddr> {
        let serves =
            |at: &&InterfaceAddress| at.is_running && !at.is_loopback && !is_link_local(&at.ip);
        let best = |at: &&InterfaceAddress| (self.is_bridge(&at.interface), at.ip.is_ipv6());
        self.addresses.iter().filter(serves).min_by_key(best).map(|at| at.ip)
    }

    fn is_bridge(&self, interface: &str) -> bool {
        self.sysfs.join("../net").join(interface).join("bridge").exists()
    }

    /// The interfaces that are IP over InfiniBand on that port, and bonds of them.
    fn interfaces_of(&self, device: &str, port: u8) -> Vec<String> {
        let folder = self.sysfs.join(device).join("device/net");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_its = |at: &PathBuf| {
            let of_port = number_in(&at.join("dev_port")).or_else(|| number_in(&at.join("dev_id")));
            number_in(&at.join("type")) == Some(ARP_INFINIBAND)
                && of_port == Some(u64::from(port).wrapping_sub(1))
        };
        let its: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_its).collect();
        let bonds = its.iter().filter_map(|at| fs::read_link(at.join("master")).ok());
        let name = |at: &PathBuf| Some(at.file_name()?.to_str()?.to_owned());
        its.iter().filter_map(name).chain(bonds.filter_map(|at| name(&at))).collect()
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// The number in a file of sysfs, which some write hexadecimal.
fn number_in(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as sysfs has it, removed with the value.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str) -> Sysfs {
            let name = format!("kestrel-interfaces-{name}-{}", std::process::id());
            Sysfs(std::env::temp_dir().join(name))
        }

        fn interface(self, at: &str, files: &[(&str, &str)]) -> Sysfs {
            let folder = self.0.join(at);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in files {
                fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
            self
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn running(interface: &str, ip: &str) -> InterfaceAddress {
        let (interface, ip) = (interface.to_owned(), ip.parse().unwrap());
        InterfaceAddress { interface, is_running: true, is_loopback: false, ip }
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn each_port_has_the_addresses_of_its_own_interfaces() {
        let sysfs = Sysfs::new("ports")
            .interface("mlx5_0/device/net/ib0", &[("type", "32"), ("dev_port", "0")])
            .interface("mlx5_0/device/net/ib1", &[("type", "32"), ("dev_port", "1")])
            .interface("mlx5_0/device/net/eth9", &[("type", "1"), ("dev_port", "0")])
            // As kernels say it that have no dev_port.
            .interface("mlx4_0/device/net/ib2", &[("type", "32"), ("dev_id", "0x1")]);
        let mut addresses = vec![
            running("eth0", "10.0.0.1"),
            running("ib0", "fe80::1"),
            running("ib0", "fd00::1"),
            running("ib0", "10.9.0.1"),
            running("ib1", "10.9.1.1"),
            running("eth9", "10.9.9.1"),
            running("ib2", "10.9.2.1"),
        ];
        let down = InterfaceAddress { is_running: false, ..running("ib0", "10.9.0.2") };
        addresses.push(down);
        let interfaces = Interfaces::new(&sysfs.0, addresses);
        assert_eq!(interfaces.over_infiniband("mlx5_0", 1), ips(&["10.9.0.1", "fd00::1"]));
        assert_eq!(interfaces.over_infiniband("mlx5_0", 2), ips(&["10.9.1.1"]));
        assert_eq!(interfaces.over_infiniband("mlx4_0", 2), ips(&["10.9.2.1"]));
        assert_eq!(interfaces.over_infiniband("mlx4_0", 1), ips(&[]));
        assert_eq!(interfaces.over_infiniband("mlx5_7", 1), ips(&[]));
    }

    #[test]
    fn the_last_resort_is_an_interface_that_runs() {
        let idle = InterfaceAddress { is_running: false, ..running("eth0", "10.0.0.1") };
        let own = InterfaceAddress { is_loopback: true, ..running("lo", "127.0.0.1") };
        let all = vec![own, idle, running("eth1", "fd00::1"), running("eth1", "10.0.1.1")];
        let first = |addresses: &[InterfaceAddress]| {
            Interfaces::new(Path::new("/nowhere"), addresses.to_vec()).first()
        };
        assert_eq!(first(&all), Some([10, 0, 1, 1].into()));
        assert_eq!(first(&all[..3]), Some("fd00::1".parse().unwrap()));
        assert_eq!(first(&all[..2]), None);
    }

    /// As that of a management controller, or of containers: of another host it is another endpoint's.
    #[test]
    fn the_last_resort_is_no_address_that_every_host_has() {
        let sysfs = Sysfs::new("bridges")
            .interface("infiniband", &[])
            .interface("net/docker0/bridge", &[])
            .interface("net/eth0", &[]);
        let all = [
            running("usb0", "169.254.3.1"),
            running("usb0", "fe80::3"),
            running("docker0", "172.17.0.1"),
            running("eth0", "10.0.0.1"),
        ];
        let first = |addresses: &[InterfaceAddress]| {
            Interfaces::new(&sysfs.0.join("infiniband"), addresses.to_vec()).first()
        };
        assert_eq!(first(&all), Some([10, 0, 0, 1].into()));
        assert_eq!(first(&all[..3]), Some([172, 17, 0, 1].into()), "where there is no other");
        assert_eq!(first(&all[..2]), None);
    }

    #[test]
    fn a_bond_has_the_addresses_of_its_interfaces() {
        let sysfs = Sysfs::new("bonds")
            .interface("mlx5_0/device/net/ib0", &[("type", "32"), ("dev_port", "0")]);
        std::os::unix::fs::symlink("../bond0", sysfs.0.join("mlx5_0/device/net/ib0/master"))
            .unwrap();
        let addresses = vec![running("eth0", "10.0.0.1"), running("bond0", "10.9.0.1")];
        let interfaces = Interfaces::new(&sysfs.0, addresses);
        assert_eq!(interfaces.over_infiniband("mlx5_0", 1), ips(&["10.9.0.1"]));
    }

    #[test]
    fn an_interface_is_found_by_its_addresses() {
        let all = vec![running("eth0", "10.0.0.1"), running("eth1", "fe80::7")];
        let interfaces = Interfaces::new(Path::new("/nowhere"), all);
        let having = |texts: &[&str]| interfaces.having(&ips(texts)).map(str::to_owned);
        assert_eq!(having(&["10.0.0.2", "fe80::7", "10.0.0.1"]).as_deref(), Some("eth1"));
        assert_eq!(having(&["::ffff:10.0.0.1"]).as_deref(), Some("eth0"));
        assert_eq!(having(&["10.0.0.2"]), None);
    }

    #[test]
    fn where_nothing_is_known_no_address_is_refused() {
        let known = Interfaces::new(Path::new("/nowhere"), Vec::new());
        let unknown = Interfaces { are_known: false, ..known.clone() };
        let ip = IpAddr::from([10, 9, 0, 1]);
        assert_eq!((known.have(ip), unknown.have(ip)), (false, true));
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let all = interface_addresses().unwrap_or_default();
        let own = all.iter().find(|at| at.ip == IpAddr::from([127, 0, 0, 1]));
        assert!(own.is_none_or(|own| own.is_loopback), "{own:?}");
    }
}
