//! RDMA devices as discovery and the doctor need to see them.
//!
//! - [`devices`]: the list, or a reason for its absence.
//! - [`Device`], [`Port`], [`Gid`]: plain data, read once; nothing stays open.

mod absence;
pub(crate) use absence::SYSFS;
mod location;
pub use location::Location;
pub(crate) mod query;

use std::{fmt, net::Ipv6Addr};

use kestrel_core::error::{Errno, HasErrno};
use rdma_core_sys::{Library, LoadError};

/// Lists the RDMA devices of this machine that are wanted, by their names, and that this process may use:
/// never an empty list. Others are not opened.
///
/// A device that cannot be opened while others can is left out, with a line in the log.
/// Cost: system calls, and loading rdma-core the first time.
/// # Errors
/// [`DeviceError`] says why there is no device to use.
/// # Reference
/// ibv_get_device_list(3), ibv_query_port(3), ibv_query_gid_table(3)
pub fn devices(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Device>, DeviceError> {
    query::devices(Library::open()?, is_wanted)
}

/// Why this process can use no RDMA device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Library(#[from] LoadError),
    #[error(
        "the kernel has no RDMA support: {sysfs} is not there \
         (modules ib_core and ib_uverbs not loaded, or not built)"
    )]
    NoKernelSupport { sysfs: String },
    #[error("no RDMA device: {sysfs} is empty (soft-RoCE: rdma link add rxe0 type rxe netdev …)")]
    NoDevice { sysfs: String },
    #[error(
        "{device} is there, but {folder} has no device file for it: \
         load ib_uverbs, or pass {folder} into this container"
    )]
    NoDeviceFile { device: String, folder: String },
    #[error("no permission to open {path}, the file of {device}: grant this user read and write")]
    Permission { device: String, path: String },
    #[error("libibverbs knows no driver for {device}: install its provider (ibverbs-providers)")]
    NoDriver { device: String },
    #[error("{wanted} is not among the RDMA devices: {found}")]
    NotFound { wanted: String, found: String },
    #[error("none of the RDMA devices is wanted: {found}")]
    NoneWanted { found: String },
    #[error("{device} cannot be used: {lack}")]
    Lacks { device: String, lack: Lack },
    #[error("port {port} of {device} has no GID {}", match index {
        Some(index) => format!("{index} (FI_KESTREL_GID_INDEX)"),
        None => "that can be used: no address on its network?".into(),
    })]
    NoGid { device: String, port: u8, index: Option<u8> },
    #[error(
        "port {port} of {device} is not in partition {wanted:#06x} (FI_KESTREL_PKEY); its P_Key \
         table: {table}"
    )]
    NoPartition { device: String, port: u8, wanted: u16, table: String },
    #[error("{call} on {device} failed: {source}")]
    Query { device: String, call: &'static str, source: std::io::Error },
}

impl HasErrno for DeviceError {
    fn errno(&self) -> Errno {
        match self {
            Self::Permission { .. } => Errno::ACCES,
            Self::Query { .. } => Errno::IO,
            Self::Library(_)
            | Self::NoKernelSupport { .. }
            | Self::NoDevice { .. }
            | Self::NoDeviceFile { .. }
            | Self::NoDriver { .. }
            | Self::NotFound { .. }
            | Self::NoneWanted { .. }
            | Self::Lacks { .. }
            | Self::NoGid { .. }
            | Self::NoPartition { .. } => Errno::NODEV,
        }
    }
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    pub node_type: NodeType,
    pub node_guid: u64,
    /// What its maker says of it.
    pub model: Model,
    pub location: Location,
    /// It has shared receive queues (SRQ).
    pub shares_receives: bool,
    /// Its queue pairs can be attached to multicast groups.
    pub has_groups: bool,
    /// In order of their numbers, which start at 1.
    pub ports: Vec<Port>,
}

/// What every endpoint needs of its device, and one does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    #[error(
        "it speaks iWARP, and not RoCE or InfiniBand (some do where the driver is told so: Intel's E810 by \
         devlink's parameter enable_roce)"
    )]
    SpeaksIwarp,
    #[error(
        "it has no reliable connections of InfiniBand's kind, as adapters of InfiniBand and RoCE have"
    )]
    IsNoAdapter,
}

impl Device {
    /// What no endpoint can do without, and it does not have, whatever its ports are.
    pub fn lacks(&self) -> Option<Lack> {
        match self.node_type {
            NodeType::RdmaNic => Some(Lack::SpeaksIwarp),
            NodeType::ChannelAdapter => None,
            _ => Some(Lack::IsNoAdapter),
        }
    }

    /// The first port that carries messages.
    pub fn active_port(&self) -> Option<&Port> {
        self.ports.iter().find(|port| port.state == PortState::Active)
    }
}

/// Who made a device, and what it is, as its driver tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The maker's number among those of PCI.
    pub vendor_id: u32,
    /// The maker's number for the device.
    pub part_id: u32,
    pub hardware_version: u32,
    pub firmware: String,
}

/// What a device is to its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    /// InfiniBand or RoCE.
    ChannelAdapter,
    Switch,
    Router,
    /// iWARP.
    RdmaNic,
    Usnic,
    UsnicUdp,
    Unspecified,
    Unknown,
}

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub number: u8,
    pub link_layer: LinkLayer,
    pub state: PortState,
    /// The path MTU in use, in bytes; 0 if the device names none.
    pub mtu_bytes: u32,
    pub mtu_bytes_max: u32,
    /// The data rate of all lanes together; 0 if its code is unknown. Units: bits per second.
    pub speed: u64,
    /// The local identifier on InfiniBand's own link layer; 0 on Ethernet.
    pub lid: u16,
    /// Packets need a global route header within their subnet, too, as on virtual functions.
    pub grh_required: bool,
    /// The entries of the GID table that are in use.
    pub gids: Vec<Gid>,
}

/// What carries the packets of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    InfiniBand,
    Ethernet,
    Unspecified,
}

/// The logical state of a port: only [`PortState::Active`] carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    Down,
    Initializing,
    Armed,
    Active,
    ActiveDefer,
    Unknown,
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    pub kind: GidKind,
    /// On RoCE an IPv4 address appears as `::ffff:a.b.c.d`.
    pub address: Ipv6Addr,
    /// The network interface behind it, on Ethernet.
    pub interface: Option<String>,
}

/// How packets to a GID travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    InfiniBand,
    RoceV1,
    /// Routable: over UDP.
    RoceV2,
    Unknown,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}, GUID {:016x}", self.name, self.node_type, self.node_guid)?;
        for port in &self.ports {
            write!(f, "\n  {port}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, link_layer, state, mtu_bytes, mtu_bytes_max, .. } = self;
        write!(f, "port {number}: {link_layer:?}, {state:?}, ")?;
        write!(f, "MTU {mtu_bytes} of {mtu_bytes_max} bytes")?;
        if self.link_layer == LinkLayer::InfiniBand {
            write!(f, ", LID {}", self.lid)?;
        }
        for gid in &self.gids {
            write!(f, "\n    {gid}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {}: {} ({}", self.index, self.address, self.kind)?;
        match &self.interface {
            Some(interface) => write!(f, ", {interface})"),
            None => write!(f, ")"),
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "of unknown type",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_lists_devices_or_says_why_not() {
        match devices(|_| true) {
            Ok(devices) => {
                assert!(!devices.is_empty());
                for device in devices {
                    assert!(!device.name.is_empty());
                    assert!(device.ports.iter().all(|port| port.number >= 1));
                }
            }
            Err(error) => {
                println!("no RDMA device here: {error}");
                assert!(error.to_string().len() > 20, "an explanation: {error}");
                assert!([Errno::NODEV, Errno::ACCES, Errno::IO].contains(&error.errno()));
            }
        }
    }

    #[test]
    fn a_partition_that_is_missing_is_named_with_those_that_are_there() {
        let table = "0xffff, 0x8001".to_owned();
        let device = "mlx5_0".to_owned();
        let error = DeviceError::NoPartition { device, port: 1, wanted: 0x8002, table };
        for part in ["FI_KESTREL_PKEY", "0x8002", "0xffff, 0x8001", "port 1 of mlx5_0"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_device_prints_ports_and_addresses() {
        let device = Device {
            name: "rxe0".to_string(),
            node_type: NodeType::ChannelAdapter,
            node_guid: 0x12,
            model: Model::default(),
            location: Location::default(),
            shares_receives: true,
            has_groups: true,
            ports: vec![Port {
                number: 1,
                link_layer: LinkLayer::Ethernet,
                state: PortState::Active,
                mtu_bytes: 1024,
                mtu_bytes_max: 4096,
                speed: 100_000_000_000,
                lid: 0,
                grh_required: false,
                gids: vec![Gid {
                    index: 1,
                    kind: GidKind::RoceV2,
                    address: "::ffff:10.9.0.1".parse().unwrap(),
                    interface: Some("d0".to_string()),
                }],
            }],
        };
        assert_eq!(
            device.to_string(),
            "rxe0: ChannelAdapter, GUID 0000000000000012\n  \
             port 1: Ethernet, Active, MTU 1024 of 4096 bytes\n    \
             GID 1: ::ffff:10.9.0.1 (RoCE v2, d0)"
        );
    }
}
