//! Where in its machine a device is, and who drives it: read off sysfs.

use std::{fs, path::Path};

use kestrel_core::info::PciAddress;

/// What the kernel says of the hardware behind a device: nothing, where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The kernel's driver of the hardware, as `mlx5_core`; empty if there is none.
    pub driver: String,
    /// Its place, if that is a PCI bus.
    pub pci: Option<PciAddress>,
}

impl Location {
    /// Of a device of this name, in whose folder of `sysfs` the hardware is a link.
    pub fn of(sysfs: &Path, device: &str) -> Location {
        let hardware = sysfs.join(device).join("device");
        let last = |link: &Path| {
            let target = fs::read_link(link).ok()?;
            Some(target.file_name()?.to_str()?.to_owned())
        };
        Location {
            driver: last(&hardware.join("driver")).unwrap_or_default(),
            pci: last(&hardware).and_then(|name| pci_address(&name)),
        }
    }
}

/// What a device of PCI is called: `0000:3b:00.1`, in hexadecimal digits.
fn pci_address(name: &str) -> Option<PciAddress> {
    let (domain, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    Some(PciAddress {
        domain: u16::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
        device: u8::from_str_radix(device, 16).ok()?,
        function: u8::from_str_radix(function, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_device_is_where_its_link_leads() {
        let name = format!("kestrel-location-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let hardware = root.join("pci0000:3a/0000:3b:00.1");
        for folder in [&hardware, &root.join("class/mlx5_0"), &root.join("class/rxe0")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink("../../../bus/pci/drivers/mlx5_core", hardware.join("driver")).unwrap();
        symlink("../../pci0000:3a/0000:3b:00.1", root.join("class/mlx5_0/device")).unwrap();
        let found = Location::of(&root.join("class"), "mlx5_0");
        let pci = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        assert_eq!(found, Location { driver: "mlx5_core".into(), pci: Some(pci) });
        for without in ["rxe0", "nobody"] {
            assert_eq!(Location::of(&root.join("class"), without), Location::default());
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_is_not_on_pci_has_no_address_there() {
        assert!(pci_address("ffff:ff:1f.7").is_some());
        for name in ["virtio3", "0000:3b:00", "10000:3b:00.0", "0000:3b:zz.0", ""] {
            assert_eq!(pci_address(name), None, "{name}");
        }
    }
}
