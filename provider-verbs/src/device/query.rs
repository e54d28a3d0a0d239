//! The calls into libibverbs that read devices, ports and GIDs.

#![allow(unsafe_code)]

use std::{ffi::CStr, io, mem, net::Ipv6Addr, os::fd::RawFd, path::Path, ptr::NonNull};

use rdma_core_sys::{Library, verbs::*};

use super::{
    Device, DeviceError, Gid, GidKind, LinkLayer, Location, Model, NodeType, Port, PortState,
    absence,
};
use crate::error::error_of;

/// Of a port's flags: IBV_QPF_GRH_REQUIRED, which is no name that the bindings have.
const GRH_REQUIRED: u8 = 1;

/// Reads every wanted device that can be opened; an error if that is none.
pub fn devices(
    library: &'static Library,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Device>, DeviceError> {
    let Some(list) = DeviceList::get(library).filter(|list| list.count > 0) else {
        return Err(absence::explain(Path::new(absence::SYSFS), Path::new(absence::DEVICE_FILES)));
    };
    let (mut devices, mut errors, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..list.count {
        let name = list.name(index);
        if !is_wanted(&name) {
            others.push(name);
            continue;
        }
        match OpenDevice::open(&list, index).and_then(|open| open.read()) {
            Ok(device) => devices.push(device),
            Err(error) => errors.push(error),
        }
    }
    if devices.is_empty() {
        let missing = || DeviceError::NoneWanted { found: others.join(", ") };
        return Err(errors.into_iter().next().unwrap_or_else(missing));
    }
    for error in errors {
        // A container may have one of a host's devices, and sees the names of all.
        tracing::info!("device left out: {error}");
    }
    Ok(devices)
}

/// Opens the device called `wanted`, or the first with an active port.
pub fn open(
    library: &'static Library,
    wanted: Option<&str>,
) -> Result<(OpenDevice, Device), DeviceError> {
    let Some(list) = DeviceList::get(library).filter(|list| list.count > 0) else {
        return Err(absence::explain(Path::new(absence::SYSFS), Path::new(absence::DEVICE_FILES)));
    };
    let (mut found, mut failed) = (Vec::new(), None);
    for index in 0..list.count {
        let name = list.name(index);
        if wanted.is_some_and(|wanted| wanted != name) {
            found.push(name);
            continue;
        }
        let open = OpenDevice::open(&list, index).and_then(|open| {
            let device = open.read()?;
            Ok((open, device))
        });
        match open {
            Ok((_, device)) if wanted.is_none() && device.active_port().is_none() => {
                found.push(format!("{} (no port is active)", device.name));
            }
            Ok(chosen) => match chosen.1.lacks() {
                None => return Ok(chosen),
                Some(lack) => failed = Some(DeviceError::Lacks { device: name, lack }),
            },
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Err(DeviceError::NotFound {
            wanted: wanted.unwrap_or("a device with an active port").into(),
            found: found.join(", "),
        }),
    }
}

/// The array that ibv_get_device_list(3) allocates, freed with the value.
struct DeviceList {
    library: &'static Library,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// `None` where libibverbs answers with an error, as it does without kernel support.
    fn get(library: &'static Library) -> Option<Self> {
        let mut count = 0;
        // SAFETY: `count` is writable for the call.
        let first = unsafe { library.verbs.ibv_get_device_list(&mut count) };
        Some(Self { library, first: NonNull::new(first)?, count: usize::try_from(count).ok()? })
    }

    fn handles(&self) -> &[*mut ibv_device] {
        // SAFETY: the array has `count` entries and lives as long as the list.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    fn name(&self, index: usize) -> String {
        let handle = self.handles()[index];
        // SAFETY: the list that holds the device is alive, and the array is zero-terminated by libibverbs.
        let name = unsafe { CStr::from_ptr((&raw const (*handle).name).cast()) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed once.
        unsafe { self.library.verbs.ibv_free_device_list(self.first.as_ptr()) }
    }
}

/// An open device, closed with the value.
pub struct OpenDevice {
    pub library: &'static Library,
    pub context: NonNull<ibv_context>,
    pub name: String,
}

impl OpenDevice {
    fn open(list: &DeviceList, index: usize) -> Result<Self, DeviceError> {
        let (library, handle, name) = (list.library, list.handles()[index], list.name(index));
        // SAFETY: as in `DeviceList::name`.
        let file = unsafe { CStr::from_ptr((&raw const (*handle).dev_name).cast()) };
        let file = file.to_string_lossy();
        // SAFETY: the list that holds the device is alive.
        let context = unsafe { library.verbs.ibv_open_device(handle) };
        match NonNull::new(context) {
            Some(context) => Ok(Self { library, context, name }),
            None => Err(absence::explain_open(&name, &file, io::Error::last_os_error())),
        }
    }

    pub fn read(&self) -> Result<Device, DeviceError> {
        let attributes = self.attributes()?;
        let mut ports = (1..=attributes.phys_port_cnt)
            .map(|number| self.port(number))
            .collect::<Result<Vec<_>, _>>()?;
        let capacity = ports.iter().map(|(_, gid_capacity)| gid_capacity).sum();
        for entry in self.gid_entries(capacity)? {
            let owner = ports.iter_mut().find(|(port, _)| u32::from(port.number) == entry.port_num);
            if let Some((port, _)) = owner {
                port.gids.push(gid(&entry));
            }
        }
        // SAFETY: an open context's device is alive.
        let node_type = unsafe { (*(*self.context.as_ptr()).device).node_type };
        Ok(Device {
            name: self.name.clone(),
            node_type: node_type_of(node_type),
            node_guid: u64::from_be(attributes.node_guid),
            model: model_of(&attributes),
            location: Location::of(Path::new(absence::SYSFS), &self.name),
            shares_receives: attributes.max_srq > 0,
            has_groups: attributes.max_mcast_grp > 0,
            ports: ports.into_iter().map(|(port, _)| port).collect(),
        })
    }

    pub fn attributes(&self) -> Result<ibv_device_attr, DeviceError> {
        // SAFETY: the structure holds integers only, which may be zero.
        let mut attributes: ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and the structure is writable.
        let status =
            unsafe { self.library.verbs.ibv_query_device(self.context.as_ptr(), &mut attributes) };
        self.check("ibv_query_device", status)?;
        Ok(attributes)
    }

    /// Events are looked for, and not waited for.
    pub fn do_not_block(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is open.
        let fd = unsafe { self.context.as_ref().async_fd };
        self.check("fcntl", do_not_block(fd))
    }

    fn port_attributes(&self, number: u8) -> Result<ibv_port_attr, DeviceError> {
        // SAFETY: the structure holds integers only, which may be zero.
        let mut attributes: ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and the structure is writable.
        let status = unsafe {
            self.library.verbs.query_port(self.context.as_ptr(), number, &mut attributes)
        };
        self.check("ibv_query_port", status)?;
        Ok(attributes)
    }

    /// A port without its GIDs, and the capacity of its GID table.
    fn port(&self, number: u8) -> Result<(Port, usize), DeviceError> {
        let attributes = self.port_attributes(number)?;
        let port = Port {
            number,
            link_layer: link_layer_of(attributes.link_layer, self.context),
            state: state_of(attributes.state),
            mtu_bytes: mtu_bytes_of(attributes.active_mtu),
            mtu_bytes_max: mtu_bytes_of(attributes.max_mtu),
            speed: speed_of(attributes.active_width, attributes.active_speed),
            lid: attributes.lid,
            grh_required: attributes.flags & GRH_REQUIRED != 0,
            gids: Vec::new(),
        };
        Ok((port, usize::try_from(attributes.gid_tbl_len).unwrap_or(0)))
    }

    /// The P_Keys of a port, in order of their indices, to the first that is enough.
    pub fn partition_keys(
        &self,
        port: u8,
        is_enough: impl Fn(u16) -> bool,
    ) -> Result<Vec<u16>, DeviceError> {
        let count = self.port_attributes(port)?.pkey_tbl_len;
        let mut keys = Vec::new();
        for key in (0..count).map_while(|index| self.partition_key(port, index)) {
            keys.push(key);
            if is_enough(key) {
                break;
            }
        }
        Ok(keys)
    }

    /// One of them.
    pub fn partition_key(&self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0;
        // SAFETY: the context is open, and the key is writable.
        let failed = unsafe {
            let context = self.context.as_ptr();
            self.library.verbs.ibv_query_pkey(context, port, index.into(), &mut key)
        };
        (failed == 0).then(|| u16::from_be(key))
    }

    fn gid_entries(&self, capacity: usize) -> Result<Vec<ibv_gid_entry>, DeviceError> {
        let mut entries: Vec<ibv_gid_entry> = Vec::with_capacity(capacity);
        // SAFETY: the context is open, and the vector has room for `capacity` entries.
        let count = unsafe {
            let first = entries.as_mut_ptr();
            self.library.verbs.query_gid_table(self.context.as_ptr(), first, capacity)
        };
        match usize::try_from(count) {
            Ok(count) => {
                // SAFETY: libibverbs wrote that many entries, which it bounds by the capacity.
                unsafe { entries.set_len(count.min(capacity)) };
                Ok(entries)
            }
            Err(_) => {
                let status = i32::try_from(-count).unwrap_or(libc::EIO);
                self.check("ibv_query_gid_table", status)?;
                Ok(Vec::new())
            }
        }
    }

    fn check(&self, call: &'static str, status: i32) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        Err(DeviceError::Query { device: self.name.clone(), call, source: error_of(status) })
    }
}

/// Has whoever reads a channel be told that there is nothing. As fcntl(2) answers.
pub fn do_not_block(channel: RawFd) -> i32 {
    // SAFETY: the calls take numbers; one that is no descriptor is refused.
    unsafe {
        let flags = libc::fcntl(channel, libc::F_GETFL);
        libc::fcntl(channel, libc::F_SETFL, flags | libc::O_NONBLOCK)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nothing that was made on it is left.
        let status = unsafe { self.library.verbs.ibv_close_device(self.context.as_ptr()) };
        if let Err(error) = self.check("ibv_close_device", status) {
            tracing::warn!("{error}");
        }
    }
}

fn model_of(attributes: &ibv_device_attr) -> Model {
    let firmware = attributes.fw_ver.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
    Model {
        vendor_id: attributes.vendor_id,
        part_id: attributes.vendor_part_id,
        hardware_version: attributes.hw_ver,
        firmware: String::from_utf8_lossy(&firmware.collect::<Vec<_>>()).into_owned(),
    }
}

fn gid(entry: &ibv_gid_entry) -> Gid {
    // SAFETY: every bit pattern of the union is a valid array of bytes.
    let raw = unsafe { entry.gid.raw };
    let kind = match entry.gid_type {
        IBV_GID_TYPE_IB => GidKind::InfiniBand,
        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::Unknown,
    };
    let interface = interface_name(entry.ndev_ifindex);
    Gid { index: entry.gid_index, kind, address: Ipv6Addr::from(raw), interface }
}

fn interface_name(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that if_indextoname(3) asks for.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    CStr::from_bytes_until_nul(&name).ok().map(|name| name.to_string_lossy().into_owned())
}

fn node_type_of(value: ibv_node_type) -> NodeType {
    match value {
        IBV_NODE_CA => NodeType::ChannelAdapter,
        IBV_NODE_SWITCH => NodeType::Switch,
        IBV_NODE_ROUTER => NodeType::Router,
        IBV_NODE_RNIC => NodeType::RdmaNic,
        IBV_NODE_USNIC => NodeType::Usnic,
        IBV_NODE_USNIC_UDP => NodeType::UsnicUdp,
        IBV_NODE_UNSPECIFIED => NodeType::Unspecified,
        _ => NodeType::Unknown,
    }
}

/// Old drivers leave the link layer unspecified, which ibv_query_port(3) lets mean InfiniBand
/// on InfiniBand's transport.
fn link_layer_of(value: u8, context: NonNull<ibv_context>) -> LinkLayer {
    // SAFETY: an open context's device is alive.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    match u32::from(value) {
        IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
        IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
        _ if transport == IBV_TRANSPORT_IB => LinkLayer::InfiniBand,
        _ => LinkLayer::Unspecified,
    }
}

fn state_of(value: ibv_port_state) -> PortState {
    match value {
        IBV_PORT_DOWN => PortState::Down,
        IBV_PORT_INIT => PortState::Initializing,
        IBV_PORT_ARMED => PortState::Armed,
        IBV_PORT_ACTIVE => PortState::Active,
        IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
        _ => PortState::Unknown,
    }
}

/// The header counts powers of two from 256 (1) to 4096 (5).
pub(crate) fn mtu_bytes_of(value: ibv_mtu) -> u32 {
    match value {
        IBV_MTU_256..=IBV_MTU_4096 => 128 << value,
        _ => 0,
    }
}

/// Bits per second, by the codes that libibverbs has no names for: lanes, and what each carries (SDR,
/// DDR, QDR, FDR10, FDR, EDR, HDR, NDR).
fn speed_of(width: u8, speed: u8) -> u64 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match speed {
        1 => 2_500_000_000,
        2 => 5_000_000_000,
        4 | 8 => 10_000_000_000,
        16 => 14_000_000_000,
        32 => 25_000_000_000,
        64 => 50_000_000_000,
        128 => 100_000_000_000,
        _ => 0,
    };
    lanes * lane
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_width_and_speed_become_a_rate() {
        assert_eq!(speed_of(1, 1), 2_500_000_000, "soft-RoCE says 1x SDR");
        assert_eq!(speed_of(2, 32), 100_000_000_000, "4x EDR");
        assert_eq!(speed_of(2, 128), 400_000_000_000, "4x NDR");
        assert_eq!((speed_of(0, 32), speed_of(2, 0)), (0, 0));
    }

    #[test]
    fn mtu_codes_become_bytes() {
        assert_eq!(mtu_bytes_of(IBV_MTU_256), 256);
        assert_eq!(mtu_bytes_of(IBV_MTU_1024), 1024);
        assert_eq!(mtu_bytes_of(IBV_MTU_4096), 4096);
        assert_eq!(mtu_bytes_of(0), 0);
        assert_eq!(mtu_bytes_of(200), 0);
    }

    #[test]
    fn a_gid_entry_becomes_an_address() {
        let entry = ibv_gid_entry {
            gid: ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1] },
            gid_index: 3,
            port_num: 1,
            gid_type: IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: 0,
        };
        let gid = gid(&entry);
        assert_eq!((gid.index, gid.kind), (3, GidKind::RoceV2));
        assert_eq!(gid.address.to_ipv4_mapped(), Some([10, 9, 0, 1].into()));
        assert_eq!(gid.interface, None);
    }

    #[test]
    fn the_loopback_interface_has_a_name() {
        let name = interface_name(1);
        assert!(name.is_none_or(|name| !name.is_empty()));
        assert_eq!(interface_name(u32::MAX), None);
    }
}
