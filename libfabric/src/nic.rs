//! Adapters, as part of what discovery answers. Reference: fi_nic(3).
//!
//! fi_freeinfo closes one through its table, and fi_dupinfo asks it for a copy (FI_DUP). A utility
//! provider may copy one by itself, table and all: so every part is in libc's memory, and what closes
//! one knows nothing of it but its layout.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
};

use kestrel_core::{error::Errno, info};

use crate::{
    abi::{
        constants::{NOSYS, command},
        control::OpsFid,
        fid::{Fid, FidNic, class},
        info::{BusAttr, DeviceAttr, LinkAttr},
    },
    answer::{allocate, copy_text},
    hints,
    outcome::{Failure, done},
    words,
};

/// FI_LINK_DOWN and FI_LINK_UP.
const LINK_DOWN: u32 = 1;
const LINK_UP: u32 = 2;
/// FI_BUS_PCI. Of a bus that is not known all is zero.
const BUS_PCI: u32 = 1;

static FID: OpsFid = OpsFid { close, control, tostr, ..OpsFid::refusing::<NOSYS>() };

/// An adapter that `fi_close` frees.
pub fn create(found: &info::Nic) -> Result<*mut FidNic, Failure> {
    // SAFETY: all of these are null pointers and zeroes until they are written.
    let (nic, device, bus, link) = unsafe {
        (
            allocate::<FidNic>()?,
            allocate::<DeviceAttr>()?,
            allocate::<BusAttr>()?,
            allocate::<LinkAttr>()?,
        )
    };
    let or_null = |text: &str| if text.is_empty() { Ok(null_mut()) } else { copy_text(text) };
    // SAFETY: just allocated, each for its type.
    unsafe {
        device.write(DeviceAttr {
            name: or_null(&found.name)?,
            device_id: or_null(&found.device_id)?,
            device_version: or_null(&found.device_version)?,
            vendor_id: or_null(&found.vendor_id)?,
            driver: or_null(&found.driver)?,
            firmware: or_null(&found.firmware)?,
        });
        if let Some(pci) = found.pci {
            bus.write(BusAttr {
                bus_type: BUS_PCI,
                domain_id: pci.domain,
                bus_id: pci.bus,
                device_id: pci.device,
                function_id: pci.function,
            });
        }
        link.write(LinkAttr {
            address: or_null(&found.address)?,
            mtu: found.mtu,
            speed: found.speed as usize,
            state: if found.is_up { LINK_UP } else { LINK_DOWN },
            network_type: or_null(&found.network)?,
        });
        nic.write(FidNic {
            fid: Fid { fclass: class::NIC, context: null_mut(), ops: &raw const FID },
            device_attr: device,
            bus_attr: bus,
            link_attr: link,
            prov_attr: null_mut(),
        });
    }
    Ok(nic)
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    done("fi_close", || {
        // SAFETY: C passes an adapter, every part of which is null or libc's, and nobody else's.
        unsafe {
            let nic = fid.cast::<FidNic>().read();
            if let Some(device) = nic.device_attr.as_ref() {
                let DeviceAttr { name, device_id, device_version, vendor_id, driver, firmware } =
                    *device;
                for text in [name, device_id, device_version, vendor_id, driver, firmware] {
                    libc::free(text.cast());
                }
            }
            if let Some(link) = nic.link_attr.as_ref() {
                libc::free(link.address.cast());
                libc::free(link.network_type.cast());
            }
            for part in [nic.device_attr.cast(), nic.bus_attr.cast(), nic.link_attr.cast()] {
                libc::free(part);
            }
            libc::free(fid.cast());
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        if command != command::DUP {
            return Err(Failure::new(Errno::NOSYS, format!("command {command} of an adapter")));
        }
        // SAFETY: C passes an adapter, and the argument of this command is a `struct fid **`.
        let (nic, place) =
            unsafe { (&*fid.cast::<FidNic>(), argument.cast::<*mut FidNic>().as_mut()) };
        let place = place.ok_or_else(|| Failure::null("where the copy goes"))?;
        // SAFETY: its parts are null or valid.
        *place = create(&unsafe { read(nic) })?;
        Ok(())
    })
}

/// What [`create`] made of this.
///
/// # Safety
/// The parts of an adapter are null or valid, and its texts null or C strings.
unsafe fn read(nic: &FidNic) -> info::Nic {
    // SAFETY: the caller vouches for it, here and below.
    let (device, bus, link) =
        unsafe { (nic.device_attr.as_ref(), nic.bus_attr.as_ref(), nic.link_attr.as_ref()) };
    // SAFETY: as above.
    let text = |text: *mut c_char| unsafe { hints::text(text) }.unwrap_or_default();
    let mut found = info::Nic::default();
    if let Some(device) = device {
        found.name = text(device.name);
        found.device_id = text(device.device_id);
        found.device_version = text(device.device_version);
        found.vendor_id = text(device.vendor_id);
        found.driver = text(device.driver);
        found.firmware = text(device.firmware);
    }
    found.pci = bus.filter(|bus| bus.bus_type == BUS_PCI).map(|bus| info::PciAddress {
        domain: bus.domain_id,
        bus: bus.bus_id,
        device: bus.device_id,
        function: bus.function_id,
    });
    if let Some(link) = link {
        found.address = text(link.address);
        (found.mtu, found.speed, found.is_up) =
            (link.mtu, link.speed as u64, link.state == LINK_UP);
        found.network = text(link.network_type);
    }
    found
}

/// `fi_tostr` of an info that has one: it appends to what is in the buffer. libfabric tells how much
/// room is behind that, and others may tell how long the whole buffer is, so that no more is used than
/// is there either way.
unsafe extern "C" fn tostr(fid: *const Fid, buffer: *mut c_char, length: usize) -> c_int {
    done("fi_tostr", || {
        if buffer.is_null() {
            return Err(Failure::null("where the text goes"));
        }
        // SAFETY: C passes an adapter, and a string in a buffer of at least that many bytes.
        unsafe {
            let used = libc::strnlen(buffer, length);
            let text = describe(&read(&*fid.cast::<FidNic>()));
            words::tell(&text, buffer.add(used), length - used);
        }
        Ok(())
    })
}

fn describe(nic: &info::Nic) -> String {
    let or_null = |text: &str| if text.is_empty() { "(null)".to_owned() } else { text.to_owned() };
    let mut lines = vec!["nic:".to_owned(), "    fi_device_attr:".to_owned()];
    for (name, value) in [
        ("name", &nic.name),
        ("device_id", &nic.device_id),
        ("device_version", &nic.device_version),
        ("vendor_id", &nic.vendor_id),
        ("driver", &nic.driver),
        ("firmware", &nic.firmware),
    ] {
        lines.push(format!("        {name}: {}", or_null(value)));
    }
    lines.push("    fi_bus_attr:".to_owned());
    match nic.pci {
        None => lines.push("        bus_type: FI_BUS_UNKNOWN".to_owned()),
        Some(info::PciAddress { domain, bus, device, function }) => lines.extend([
            "        bus_type: FI_BUS_PCI".to_owned(),
            "        fi_pci_attr:".to_owned(),
            format!("            domain_id: {domain}"),
            format!("            bus_id: {bus}"),
            format!("            device_id: {device}"),
            format!("            function_id: {function}"),
        ]),
    }
    lines.push("    fi_link_attr:".to_owned());
    lines.push(format!("        address: {}", or_null(&nic.address)));
    lines.push(format!("        mtu: {}", nic.mtu));
    lines.push(format!("        speed: {}", nic.speed));
    let state = if nic.is_up { "FI_LINK_UP" } else { "FI_LINK_DOWN" };
    lines.push(format!("        state: {state}"));
    lines.push(format!("        network_type: {}", or_null(&nic.network)));
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn adapter() -> info::Nic {
        info::Nic {
            name: "rxe0".into(),
            vendor_id: "0x15b3".into(),
            address: "fe80::1".into(),
            driver: "mlx5_core".into(),
            pci: Some(info::PciAddress { domain: 1, bus: 0x3b, device: 2, function: 3 }),
            mtu: 4096,
            speed: 400_000_000_000,
            is_up: true,
            network: "Ethernet".into(),
            ..info::Nic::default()
        }
    }

    /// As libfabric has it copied by fi_dupinfo, printed by fi_tostr and closed by fi_freeinfo.
    #[test]
    fn an_adapter_is_copied_printed_and_closed_through_its_table() {
        let nic = create(&adapter()).unwrap();
        let mut copy: *mut FidNic = null_mut();
        // SAFETY: all of these are adapters until they are closed.
        unsafe {
            let ops = &*(*nic).fid.ops;
            assert_eq!((*nic).fid.fclass, class::NIC);
            let place = (&raw mut copy).cast::<c_void>();
            assert_eq!((ops.control)(nic.cast(), command::DUP, place), 0);
            assert_eq!((ops.control)(nic.cast(), command::DUP, null_mut()), -22);
            assert_eq!((ops.control)(nic.cast(), command::ENABLE, place), -NOSYS);
            assert_eq!(read(&*copy), adapter());
            assert!((*(*copy).device_attr).firmware.is_null());
            assert_eq!((ops.close)(nic.cast()), 0);
            let mut text = [0 as c_char; 1024];
            let ops = &*(*copy).fid.ops;
            assert_eq!((ops.tostr)(copy.cast(), text.as_mut_ptr(), text.len()), 0);
            let text = CStr::from_ptr(text.as_ptr()).to_str().unwrap();
            for line in [
                "name: rxe0",
                "vendor_id: 0x15b3",
                "driver: mlx5_core",
                "firmware: (null)",
                "bus_type: FI_BUS_PCI",
                "domain_id: 1",
                "bus_id: 59",
                "device_id: 2",
                "function_id: 3",
                "mtu: 4096",
                "speed: 400000000000",
            ] {
                assert!(text.contains(line), "{text}");
            }
            assert!(text.contains("state: FI_LINK_UP") && text.contains("Ethernet"), "{text}");
            assert_eq!((ops.close)(copy.cast()), 0);
        }
    }
}
