//! What an application asks discovery for. Everything is optional: `None`,
//! an empty set and 0 all mean "whatever suits the provider", as in
//! fi_getinfo(3): "hints that are set to zero are treated as a wildcard".
//!
//! [`Hints`] has builder methods for what is asked for most; the rest is set
//! in the fields, which is what the C door does.

use super::modes::{CompletionOrder, MemoryRegionMode, MessageOrder, Mode};
use super::values::{
    AddressVectorKind, ApiVersion, EndpointType, Progress, ResourceManagement, Threading,
};
use crate::address::{Address, AddressFormat};
use crate::flags::Flags;

/// What is asked for of an [`Info`](super::Info).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct Hints {
    pub caps: Flags,
    /// What the application is ready to do: the one hint whose zero is no
    /// wildcard. "Mode bits that are set to zero indicate the application does
    /// not support any modes."
    pub mode: Mode,
    pub address_format: AddressFormat,
    pub source: Option<Address>,
    pub destination: Option<Address>,
    pub handle: u64,
    pub transmit: TransmitHints,
    pub receive: ReceiveHints,
    pub endpoint: EndpointHints,
    pub domain: DomainHints,
    pub fabric: FabricHints,
}

/// What is asked for of [`TransmitAttributes`](super::TransmitAttributes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct TransmitHints {
    pub caps: Flags,
    /// Empty: that of [`Hints`] counts.
    pub mode: Mode,
    pub op_flags: Flags,
    pub message_order: MessageOrder,
    pub completion_order: CompletionOrder,
    pub inject_size: Option<usize>,
    pub size: Option<usize>,
    pub iov_limit: Option<usize>,
    pub rma_iov_limit: Option<usize>,
    pub traffic_class: Option<u32>,
}

/// What is asked for of [`ReceiveAttributes`](super::ReceiveAttributes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct ReceiveHints {
    pub caps: Flags,
    /// Empty: that of [`Hints`] counts.
    pub mode: Mode,
    pub op_flags: Flags,
    pub message_order: MessageOrder,
    pub completion_order: CompletionOrder,
    pub total_buffered_recv: Option<usize>,
    pub size: Option<usize>,
    pub iov_limit: Option<usize>,
}

/// What is asked for of [`EndpointAttributes`](super::EndpointAttributes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct EndpointHints {
    pub kind: EndpointType,
    pub protocol: Option<u32>,
    pub protocol_version: Option<u32>,
    pub max_msg_size: Option<usize>,
    pub max_order_raw_size: Option<usize>,
    pub max_order_war_size: Option<usize>,
    pub max_order_waw_size: Option<usize>,
    pub tag_format: Option<u64>,
    pub tx_ctx_count: Option<usize>,
    pub rx_ctx_count: Option<usize>,
    /// Empty: none is asked for.
    pub auth_key: Vec<u8>,
}

/// What is asked for of [`DomainAttributes`](super::DomainAttributes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct DomainHints {
    pub name: Option<String>,
    pub threading: Threading,
    pub control_progress: Progress,
    pub data_progress: Progress,
    pub resource_management: ResourceManagement,
    pub address_vector_kind: AddressVectorKind,
    /// None: nothing is asked for, and the answer is what suits us (`BASIC_EQUIVALENT`). An empty one is
    /// an answer: remote addresses are offsets, and keys the application's own.
    pub memory_region_mode: Option<MemoryRegionMode>,
    pub mr_key_size: Option<usize>,
    pub cq_data_size: Option<usize>,
    pub cq_count: Option<usize>,
    pub endpoint_count: Option<usize>,
    pub tx_ctx_count: Option<usize>,
    pub rx_ctx_count: Option<usize>,
    pub max_ep_tx_ctx: Option<usize>,
    pub max_ep_rx_ctx: Option<usize>,
    pub max_ep_stx_ctx: Option<usize>,
    pub max_ep_srx_ctx: Option<usize>,
    pub counter_count: Option<usize>,
    /// The largest number of a group of peers (FI_PEER_GROUP), of which there are none.
    pub max_group_id: Option<u32>,
    pub mr_iov_limit: Option<usize>,
    pub caps: Flags,
    /// Empty: that of [`Hints`] counts.
    pub mode: Mode,
    pub max_err_data: Option<usize>,
    pub mr_count: Option<usize>,
    pub traffic_class: Option<u32>,
    /// Empty: none is asked for.
    pub auth_key: Vec<u8>,
    /// Keys are to be those of address vectors (FI_AV_AUTH_KEY).
    pub vector_keys: bool,
    pub max_ep_auth_key: Option<usize>,
}

/// What is asked for of [`FabricAttributes`](super::FabricAttributes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each asks for what has its name there")]
pub struct FabricHints {
    pub name: Option<String>,
    pub provider_version: Option<ApiVersion>,
    pub api_version: Option<ApiVersion>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident: $kind:ty => $($field:ident).+;)*) => {
        $($(#[$doc])*
        #[doc = concat!("Asks for `", stringify!($($field).+), "`.")]
        #[must_use]
        pub fn $method(mut self, $method: $kind) -> Self {
            self.$($field).+ = $method.into();
            self
        })*
    };
}

impl Default for Hints {
    fn default() -> Self {
        Hints::new()
    }
}

impl Hints {
    /// Hints that ask for nothing.
    pub fn new() -> Self {
        Hints {
            caps: Flags::empty(),
            mode: Mode::empty(),
            address_format: AddressFormat::Unspec,
            source: None,
            destination: None,
            handle: 0,
            transmit: TransmitHints::default(),
            receive: ReceiveHints::default(),
            endpoint: EndpointHints::default(),
            domain: DomainHints::default(),
            fabric: FabricHints::default(),
        }
    }

    setters! {
        caps: Flags => caps;
        mode: Mode => mode;
        address_format: AddressFormat => address_format;
        source: Address => source;
        destination: Address => destination;
        endpoint_type: EndpointType => endpoint.kind;
        threading: Threading => domain.threading;
        data_progress: Progress => domain.data_progress;
        control_progress: Progress => domain.control_progress;
        resource_management: ResourceManagement => domain.resource_management;
        address_vector_kind: AddressVectorKind => domain.address_vector_kind;
        memory_region_mode: MemoryRegionMode => domain.memory_region_mode;
        domain_name: String => domain.name;
        cq_data_size: usize => domain.cq_data_size;
        /// The key of endpoints: with another, they do not communicate.
        auth_key: Vec<u8> => endpoint.auth_key;
        max_msg_size: usize => endpoint.max_msg_size;
        inject_size: usize => transmit.inject_size;
        /// How many operations may be outstanding.
        tx_size: usize => transmit.size;
        /// How many receives may be posted.
        rx_size: usize => receive.size;
        /// What packets are marked with: a label `FI_TC_…`, or a code point under `FI_TC_DSCP`.
        traffic_class: u32 => transmit.traffic_class;
        tx_op_flags: Flags => transmit.op_flags;
        rx_op_flags: Flags => receive.op_flags;
    }

    /// Sets the order of completions for both directions; that of data is one of receiving.
    #[must_use]
    pub fn completion_order(mut self, order: CompletionOrder) -> Self {
        self.transmit.completion_order = order - CompletionOrder::DATA;
        self.receive.completion_order = order;
        self
    }

    /// Sets the order of messages for both directions: one without the other orders nothing.
    #[must_use]
    pub fn message_order(mut self, order: MessageOrder) -> Self {
        self.transmit.message_order = order;
        self.receive.message_order = order;
        self
    }
}
