//! What discovery returns: [`Info`] and the attributes in it. Reference:
//! fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_fabric(3).
//!
//! The names are libfabric's, spelled out where they are short.

use super::modes::{CompletionOrder, MemoryRegionMode, MessageOrder, Mode};
use super::values::{
    AddressVectorKind, ApiVersion, EndpointType, Progress, ResourceManagement, Threading,
};
use crate::address::{Address, AddressFormat};
use crate::flags::Flags;

/// As a count of contexts: the endpoint uses a shared one. libfabric's `FI_SHARED_CONTEXT`.
pub const SHARED_CONTEXT: usize = usize::MAX;

/// One way to communicate: opening a fabric, a domain or an endpoint takes one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// What it can do. Reference: fi_getinfo(3), "CAPABILITIES".
    pub caps: Flags,
    /// What it needs of the application; kestrel needs nothing.
    pub mode: Mode,
    /// How addresses are written.
    pub address_format: AddressFormat,
    /// Where an endpoint will be. Without a port one is chosen when it is enabled.
    pub source: Option<Address>,
    /// The peer that was asked for.
    pub destination: Option<Address>,
    /// A connection request or a passive endpoint; opaque here.
    pub handle: u64,
    /// How an endpoint sends.
    pub transmit: TransmitAttributes,
    /// How an endpoint receives.
    pub receive: ReceiveAttributes,
    /// What kind of endpoint it is.
    pub endpoint: EndpointAttributes,
    /// The domain that it belongs to.
    pub domain: DomainAttributes,
    /// The fabric of that domain.
    pub fabric: FabricAttributes,
    /// The adapter that its packets travel through, if they do.
    pub nic: Option<Nic>,
}

/// An adapter, as far as it is known; texts are empty where they are not. Reference: fi_nic(3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The system's name of the device.
    pub name: String,
    /// The vendor's number of the device.
    pub device_id: String,
    /// Its revision.
    pub device_version: String,
    /// The vendor's number.
    pub vendor_id: String,
    /// The system's name of what drives the hardware.
    pub driver: String,
    /// The version of its firmware.
    pub firmware: String,
    /// Where the hardware is, if it is on a PCI bus.
    pub pci: Option<PciAddress>,
    /// The address of the link.
    pub address: String,
    /// How much one packet holds. Units: bytes.
    pub mtu: usize,
    /// The data rate of the link as it is; 0 if that is not known. Units: bits per second.
    pub speed: u64,
    /// Whether the link carries messages.
    pub is_up: bool,
    /// What the link is part of, as "Ethernet".
    pub network: String,
}

/// The place of a device on a PCI bus. Reference: `struct fi_pci_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// The segment.
    pub domain: u16,
    /// The bus in it.
    pub bus: u8,
    /// The slot.
    pub device: u8,
    /// The part of the device.
    pub function: u8,
}

impl Info {
    /// The format that says most about both addresses: where they are of two families FI_SOCKADDR,
    /// whose "specific socket address format will be determined at run time"; none without any.
    pub fn format_of_addresses(&self) -> Option<AddressFormat> {
        let formats = [self.source, self.destination].map(|it| it.map(|address| address.format()));
        match formats {
            [Some(ours), Some(theirs)] if ours != theirs => Some(AddressFormat::SockAddr),
            [ours, theirs] => ours.or(theirs),
        }
    }
}

/// Reference: `struct fi_tx_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransmitAttributes {
    /// What of [`Info::caps`] concerns sending.
    pub caps: Flags,
    /// What sending needs of the application.
    pub mode: Mode,
    /// Flags of every operation that is given none of its own.
    pub op_flags: Flags,
    /// Which operations to one peer keep their order.
    pub message_order: MessageOrder,
    /// In which order sends complete.
    pub completion_order: CompletionOrder,
    /// The largest message, in bytes, that an inject takes.
    pub inject_size: usize,
    /// How many operations may be outstanding.
    pub size: usize,
    /// How many buffers one operation may gather.
    pub iov_limit: usize,
    /// How many remote ranges one operation may name.
    pub rma_iov_limit: usize,
    /// What packets are marked with: a label `FI_TC_…`, or a code point under `FI_TC_DSCP`.
    pub traffic_class: u32,
}

/// Reference: `struct fi_rx_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// What of [`Info::caps`] concerns receiving.
    pub caps: Flags,
    /// What receiving needs of the application.
    pub mode: Mode,
    /// Flags of every operation that is given none of its own.
    pub op_flags: Flags,
    /// Which operations of one peer keep their order.
    pub message_order: MessageOrder,
    /// In which order receives complete, and their data is written.
    pub completion_order: CompletionOrder,
    /// How many bytes of unexpected messages to expect; a hint, no limit.
    pub total_buffered_recv: usize,
    /// How many receives may be posted.
    pub size: usize,
    /// How many buffers one receive may scatter to.
    pub iov_limit: usize,
}

/// Reference: `struct fi_ep_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointAttributes {
    /// The service that it gives.
    pub kind: EndpointType,
    /// What it says on the wire, as libfabric numbers it.
    pub protocol: u32,
    /// Which version of that: peers have the same.
    pub protocol_version: u32,
    /// The largest message, in bytes.
    pub max_msg_size: usize,
    /// How many bytes a buffer has in front for the provider: none.
    pub msg_prefix_size: usize,
    /// Up to how many bytes a read after a write sees that write; `usize::MAX` is any number.
    pub max_order_raw_size: usize,
    /// Up to how many bytes a write after a read leaves that read alone.
    pub max_order_war_size: usize,
    /// Up to how many bytes the later of two writes stays.
    pub max_order_waw_size: usize,
    /// Which tag bits count, and how they group.
    pub tag_format: u64,
    /// How many transmit contexts it has; [`SHARED_CONTEXT`]: a shared one.
    pub tx_ctx_count: usize,
    /// How many receive contexts it has; [`SHARED_CONTEXT`]: a shared one.
    pub rx_ctx_count: usize,
    /// Only endpoints with the same key communicate; empty: the domain's.
    pub auth_key: Vec<u8>,
}

/// Reference: `struct fi_domain_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainAttributes {
    /// What it is found by: `kestrel-shm`, or an RDMA device's name.
    pub name: String,
    /// What the application serialises.
    pub threading: Threading,
    /// Whose threads drive connections, insertions and registrations.
    pub control_progress: Progress,
    /// Whose threads drive messages and one-sided operations.
    pub data_progress: Progress,
    /// Whether queues are protected from overrun.
    pub resource_management: ResourceManagement,
    /// Which address vectors it takes; unspecified: both.
    pub address_vector_kind: AddressVectorKind,
    /// What the application must do to register memory.
    pub memory_region_mode: MemoryRegionMode,
    /// Bytes of a remote key.
    pub mr_key_size: usize,
    /// Bytes of remote completion data.
    pub cq_data_size: usize,
    /// How many completion queues it serves well.
    pub cq_count: usize,
    /// How many endpoints it has at most.
    pub endpoint_count: usize,
    /// How many transmit contexts all its endpoints have together.
    pub tx_ctx_count: usize,
    /// How many receive contexts all its endpoints have together.
    pub rx_ctx_count: usize,
    /// How many transmit contexts a scalable endpoint may have.
    pub max_ep_tx_ctx: usize,
    /// How many receive contexts a scalable endpoint may have.
    pub max_ep_rx_ctx: usize,
    /// How many endpoints may share a transmit context; 0: no sharing.
    pub max_ep_stx_ctx: usize,
    /// How many endpoints may share a receive context; 0: no sharing.
    pub max_ep_srx_ctx: usize,
    /// How many counters it serves well.
    pub counter_count: usize,
    /// How many ranges a region may have.
    pub mr_iov_limit: usize,
    /// What concerns the domain as a whole, as whom it reaches.
    pub caps: Flags,
    /// What the domain needs of the application.
    pub mode: Mode,
    /// Bytes of error data that a completion or event may carry.
    pub max_err_data: usize,
    /// How many regions it serves well.
    pub mr_count: usize,
    /// That of endpoints which name none.
    pub traffic_class: u32,
    /// The key of endpoints that are given none of their own.
    pub auth_key: Vec<u8>,
    /// Endpoints and regions have the keys of address vectors instead (FI_AV_AUTH_KEY).
    pub vector_keys: bool,
    /// The most keys of one endpoint.
    pub max_ep_auth_key: usize,
}

/// Reference: `struct fi_fabric_attr`. The provider's name is libfabric's to fill in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricAttributes {
    /// What it is found by.
    pub name: String,
    /// Kestrel's own version.
    pub provider_version: ApiVersion,
    /// The version of the interface that the application speaks.
    pub api_version: ApiVersion,
}
