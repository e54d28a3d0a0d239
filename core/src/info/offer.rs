//! What a transport can do: the template of an [`Info`], and the most that
//! hints may ask for.

use super::attributes::{
    DomainAttributes, EndpointAttributes, FabricAttributes, Info, ReceiveAttributes,
    TransmitAttributes,
};
use super::modes::{CompletionOrder, MemoryRegionMode, MessageOrder, Mode};
use super::values::{
    AddressVectorKind, ApiVersion, EndpointType, Progress, ResourceManagement, Threading,
};
use crate::address::AddressFormat;
use crate::auth_key::KEYS_MAX;
use crate::config::Config;
use crate::flags::Flags;
use crate::one_sided::RMA_IOV_LIMIT;
use crate::operation::{IOV_LIMIT, MESSAGE_MAX};
use crate::scalable_endpoint::CONTEXTS_MAX;

/// Capabilities that apply to sending. Reference: fi_endpoint(3), "TRANSMIT CONTEXT ATTRIBUTES".
pub const TX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::SEND)
    .union(Flags::TRIGGER)
    .union(Flags::FENCE)
    .union(Flags::RMA_PMEM)
    .union(Flags::MULTICAST)
    .union(Flags::NAMED_RX_CTX)
    .union(Flags::COLLECTIVE);

/// Capabilities that apply to receiving. Reference: fi_endpoint(3), "RECEIVE CONTEXT ATTRIBUTES".
pub const RX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::RECV)
    .union(Flags::TRIGGER)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::TAGGED_DIRECTED_RECV)
    .union(Flags::VARIABLE_MSG)
    .union(Flags::MULTI_RECV)
    .union(Flags::TAGGED_MULTI_RECV)
    .union(Flags::SOURCE)
    .union(Flags::RMA_EVENT)
    .union(Flags::RMA_PMEM)
    .union(Flags::SOURCE_ERR)
    .union(Flags::COLLECTIVE);

/// Capabilities of a domain. Reference: fi_domain(3), `caps`.
pub const DOMAIN_CAPS: Flags = Flags::LOCAL_COMM
    .union(Flags::REMOTE_COMM)
    .union(Flags::SHARED_AV)
    .union(Flags::AV_USER_ID)
    .union(Flags::DIRECTED_RECV);

/// What nobody has whose keys are those of an address vector (FI_AV_AUTH_KEY): a message to a group
/// proves one key, and neither the group's address nor its number, which no vector has, says which.
pub const UNKEYED_CAPS: Flags = Flags::MULTICAST;

/// Capabilities that endpoints of datagrams can have: no tags, nothing one-sided, no fence.
pub const DATAGRAM_CAPS: Flags = Flags::MSG
    .union(Flags::SEND)
    .union(Flags::RECV)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::MULTI_RECV)
    .union(Flags::SOURCE)
    .union(Flags::SOURCE_ERR)
    .union(Flags::TRIGGER)
    .union(Flags::MULTICAST)
    .union(Flags::SHARED_AV)
    .union(Flags::AV_USER_ID)
    .union(Flags::LOCAL_COMM)
    .union(Flags::REMOTE_COMM);

/// Capabilities that have to do with one-sided operations.
pub const ONE_SIDED_CAPS: Flags = Flags::RMA
    .union(Flags::ATOMIC)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::RMA_EVENT)
    .union(Flags::RMA_PMEM);

/// Capabilities that socket endpoints can have.
const SOCKET_CAPS: Flags = Flags::MSG
    .union(Flags::SEND)
    .union(Flags::RECV)
    .union(Flags::LOCAL_COMM)
    .union(Flags::REMOTE_COMM);

/// Completion levels that somebody has to tell of.
const ANSWERED: Flags =
    Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE).union(Flags::COMMIT_COMPLETE);

/// The protocol of streams: see [`crate::socket_endpoint`].
const PROTOCOL_STREAM: u32 = 1 << 31 | 0x6b73; // "ks"

/// The protocol between two kestrels: "provider specific protocols will be
/// indicated by having the upper bit of the protocol value set to one".
pub const PROTOCOL_KESTREL: u32 = 1 << 31 | 0x6b65; // "ke"

/// Counts up when the wire format changes.
pub const PROTOCOL_VERSION: u32 = crate::wire::VERSION as u32;

/// "A generic, unstructured tag and mask can be achieved by requesting a bit
/// array consisting of alternating 1's and 0's": all 64 bits, in any mask.
pub const TAG_FORMAT_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The longest authorization key, in bytes.
pub const AUTH_KEY_SIZE_MAX: usize = 512;

/// The most outstanding operations that may be asked for.
pub const TX_SIZE_MAX: usize = 65_536;
/// The most posted receives that may be asked for.
pub const RX_SIZE_MAX: usize = 65_536;

/// The most bytes that an inject may be asked to take.
pub const INJECT_SIZE_MAX: usize = 64 << 10;

/// Objects of one kind in a domain. Memory is the only true limit.
const OBJECT_COUNT_MAX: usize = 1 << 20;
/// An error's data is at most a raw address (28 bytes), or a rejection's data.
const ERR_DATA_MAX: usize = 256;

const ADDRESS_FORMATS: &[AddressFormat] = &[
    AddressFormat::SockAddr,
    AddressFormat::In,
    AddressFormat::In6,
    AddressFormat::Str,
    AddressFormat::SockAddrIp,
];

/// What a transport can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What is returned where nothing is asked for.
    pub template: Info,
    /// The most that may be asked for: every size is an upper bound, every
    /// set holds all that exists, and every model is the strictest one.
    pub maximum: Info,
    /// The formats that addresses may be asked in.
    pub address_formats: &'static [AddressFormat],
    /// What an application must do to register memory if it is a target of
    /// one-sided operations. The template's mode is what suits us best.
    pub memory_region_mode_required: MemoryRegionMode,
}

impl Offer {
    /// The offer for reliable datagrams, over all transports together.
    ///
    /// - Messages and tagged messages, directed receives, multi-receive,
    ///   sources, by the application's own names if it likes, fences, shared address vectors, local and remote peers; one-sided reads and writes and
    ///   atomics, and counters of what peers do.
    /// - No mode is required of the application, and registration of targets of
    ///   one-sided operations alone: with keys of ours or its own, addresses or offsets.
    /// - Every threading model; manual progress unless automatic is asked for.
    /// - All operations to one peer keep their order among each other, at any
    ///   length. Completions do for who asks for it, of one peer, and so does received data.
    /// - 1024 operations each way by default, 65,536 at most; 16,384 bytes
    ///   injected; 8 buffers an operation; 2^40 bytes a message.
    pub fn rdm() -> Self {
        let template = rdm_template();
        let mut maximum = template.clone();
        maximum.transmit.size = TX_SIZE_MAX;
        maximum.transmit.op_flags = Flags::INJECT
            | Flags::COMPLETION
            | Flags::INJECT_COMPLETE
            | Flags::TRANSMIT_COMPLETE
            | Flags::DELIVERY_COMPLETE
            | Flags::MATCH_COMPLETE
            | Flags::COMMIT_COMPLETE;
        maximum.receive.size = RX_SIZE_MAX;
        // Who has it must claim or discard every message, so nobody gets it unasked.
        maximum.caps |= Flags::VARIABLE_MSG;
        maximum.receive.caps |= Flags::VARIABLE_MSG;
        // Operations that a counter starts come from any thread, which costs who has no use for it.
        for caps in [&mut maximum.caps, &mut maximum.transmit.caps, &mut maximum.receive.caps] {
            *caps |= Flags::TRIGGER;
        }
        // Completions that wait for each other are for who needs that, and data that comes in packets.
        maximum.transmit.completion_order = CompletionOrder::STRICT;
        maximum.receive.completion_order = CompletionOrder::STRICT | CompletionOrder::DATA;
        // Nor does anybody want errors that has not asked for them, or buffers that come back late.
        for caps in [&mut maximum.caps, &mut maximum.receive.caps] {
            *caps |= Flags::SOURCE_ERR | Flags::TAGGED_MULTI_RECV;
            // Less than what is offered anyway.
            *caps |= Flags::TAGGED_DIRECTED_RECV;
        }
        maximum.receive.op_flags = Flags::COMPLETION | Flags::MULTI_RECV | Flags::TRANSMIT_COMPLETE;
        maximum.domain.control_progress = Progress::Auto;
        maximum.domain.data_progress = Progress::Auto;
        Offer {
            template,
            maximum,
            address_formats: ADDRESS_FORMATS,
            memory_region_mode_required: MemoryRegionMode::empty(),
        }
    }

    /// The offer for connected endpoints: the same, for one peer each.
    pub fn msg() -> Self {
        let mut offer = Offer::rdm();
        for info in [&mut offer.template, &mut offer.maximum] {
            info.endpoint.kind = EndpointType::Msg;
            // There is one source, and no address vector that it could be in.
            for caps in [&mut info.caps, &mut info.receive.caps, &mut info.transmit.caps] {
                caps.remove(Flags::DIRECTED_RECV | Flags::TAGGED_DIRECTED_RECV);
                caps.remove(Flags::SOURCE | Flags::SOURCE_ERR);
                caps.remove(Flags::NAMED_RX_CTX);
                caps.remove(Flags::SHARED_AV | Flags::AV_USER_ID);
            }
            (info.domain.max_ep_tx_ctx, info.domain.max_ep_rx_ctx) = (1, 1);
            info.domain.max_ep_auth_key = 0;
        }
        offer
    }

    /// The offer for datagrams of up to `message_max` bytes: messages alone, in no order, that may
    /// be lost. "FI_EP_DGRAM: Supports a connectionless, unreliable datagram communication."
    pub fn datagrams(message_max: usize) -> Self {
        let mut offer = Offer::rdm();
        offer.maximum.transmit.op_flags.remove(ANSWERED);
        for info in [&mut offer.template, &mut offer.maximum] {
            for caps in [&mut info.caps, &mut info.transmit.caps, &mut info.receive.caps] {
                *caps &= DATAGRAM_CAPS;
            }
            info.transmit.message_order = MessageOrder::empty();
            info.receive.message_order = MessageOrder::empty();
            info.transmit.rma_iov_limit = 0;
            // Nobody's memory is reached, so nothing about registration matters.
            info.domain.memory_region_mode = MemoryRegionMode::empty();
            (info.domain.max_ep_tx_ctx, info.domain.max_ep_rx_ctx) = (1, 1);
            let endpoint = &mut info.endpoint;
            endpoint.kind = EndpointType::Dgram;
            endpoint.max_msg_size = message_max;
            endpoint.tag_format = 0;
            endpoint.max_order_raw_size = 0;
            endpoint.max_order_war_size = 0;
            endpoint.max_order_waw_size = 0;
        }
        offer
    }

    /// The offer for streams of bytes to one peer. "FI_EP_SOCK_STREAM: Data streaming endpoint
    /// with TCP socket-like semantics." The longest message is one call's: a send takes what fits.
    pub fn stream() -> Self {
        let mut offer = Offer::msg().synchronous(EndpointType::SockStream);
        for info in [&mut offer.template, &mut offer.maximum] {
            info.endpoint.protocol = PROTOCOL_STREAM;
            info.transmit.message_order = MessageOrder::SAS;
            info.receive.message_order = MessageOrder::SAS;
        }
        offer
    }

    /// The offer for datagrams of socket endpoints. "FI_EP_SOCK_DGRAM: A connectionless,
    /// unreliable datagram endpoint with UDP socket-like semantics."
    pub fn socket_datagrams(message_max: usize) -> Self {
        Offer::datagrams(message_max).synchronous(EndpointType::SockDgram)
    }

    /// What is left where calls are over when they return: messages, and nothing that a
    /// completion would tell.
    fn synchronous(mut self, kind: EndpointType) -> Self {
        self.maximum.receive.op_flags = Flags::COMPLETION;
        self.maximum.transmit.op_flags.remove(ANSWERED);
        for info in [&mut self.template, &mut self.maximum] {
            for caps in [&mut info.caps, &mut info.transmit.caps, &mut info.receive.caps] {
                *caps &= SOCKET_CAPS;
            }
            info.transmit.completion_order = CompletionOrder::empty();
            info.receive.completion_order = CompletionOrder::empty();
            info.endpoint.kind = kind;
            info.endpoint.tag_format = 0;
            info.endpoint.max_order_raw_size = 0;
            info.endpoint.max_order_war_size = 0;
            info.endpoint.max_order_waw_size = 0;
            info.transmit.rma_iov_limit = 0;
            info.domain.memory_region_mode = MemoryRegionMode::empty();
            (info.domain.max_ep_stx_ctx, info.domain.max_ep_srx_ctx) = (0, 0);
        }
        self
    }

    /// The same offer with multicast groups.
    #[must_use]
    pub fn with_groups(mut self) -> Self {
        self.maximum.transmit.op_flags |= Flags::MULTICAST;
        for info in [&mut self.template, &mut self.maximum] {
            info.caps |= Flags::MULTICAST;
            info.transmit.caps |= Flags::MULTICAST;
        }
        self
    }

    /// The same offer to peers of this host alone.
    #[must_use]
    pub fn of_one_host(mut self) -> Self {
        for info in [&mut self.template, &mut self.maximum] {
            info.caps.remove(Flags::REMOTE_COMM);
            info.domain.caps.remove(Flags::REMOTE_COMM);
        }
        self
    }

    /// The same offer without one-sided operations.
    #[must_use]
    pub fn of_messages(mut self) -> Self {
        for info in [&mut self.template, &mut self.maximum] {
            // Of registration only what matters for buffers of one's own.
            info.domain.memory_region_mode &= MemoryRegionMode::ALLOCATED;
            info.transmit.rma_iov_limit = 0;
            for caps in [&mut info.caps, &mut info.transmit.caps, &mut info.receive.caps] {
                caps.remove(ONE_SIDED_CAPS);
            }
        }
        self
    }

    /// The same offer from a device of its own: discovery has one domain per device.
    #[must_use]
    pub fn named(mut self, fabric: &str, domain: &str) -> Self {
        for info in [&mut self.template, &mut self.maximum] {
            info.fabric.name = fabric.to_owned();
            info.domain.name = domain.to_owned();
        }
        self
    }

    /// The same offer with the queue sizes and the inject size that the user configured.
    #[must_use]
    pub fn sized(mut self, tx_size: usize, rx_size: usize, inject_size: usize) -> Self {
        self.template.transmit.size = tx_size;
        self.template.receive.size = rx_size;
        self.maximum.transmit.size = self.maximum.transmit.size.max(tx_size);
        self.maximum.receive.size = self.maximum.receive.size.max(rx_size);
        let inject_size = inject_size.min(self.maximum.endpoint.max_msg_size);
        self.template.transmit.inject_size = inject_size;
        self.maximum.transmit.inject_size = inject_size;
        self
    }
}

fn rdm_template() -> Info {
    let config = Config::default();
    let caps = Flags::MSG
        | Flags::TAGGED
        | Flags::SEND
        | Flags::RECV
        | Flags::NAMED_RX_CTX
        | Flags::DIRECTED_RECV
        | Flags::MULTI_RECV
        | Flags::SOURCE
        | Flags::FENCE
        | Flags::RMA
        | Flags::ATOMIC
        | Flags::READ
        | Flags::WRITE
        | Flags::REMOTE_READ
        | Flags::REMOTE_WRITE
        | Flags::RMA_EVENT
        | Flags::RMA_PMEM
        | Flags::AV_USER_ID
        | Flags::SHARED_AV
        | Flags::LOCAL_COMM
        | Flags::REMOTE_COMM;
    Info {
        caps,
        mode: Mode::empty(),
        address_format: AddressFormat::In,
        source: None,
        destination: None,
        handle: 0,
        transmit: TransmitAttributes {
            caps: caps & TX_CAPS,
            message_order: MessageOrder::all(),
            completion_order: CompletionOrder::empty(),
            inject_size: config.inject_size,
            size: config.tx_size,
            iov_limit: IOV_LIMIT,
            rma_iov_limit: RMA_IOV_LIMIT,
            ..Default::default()
        },
        receive: ReceiveAttributes {
            caps: caps & RX_CAPS,
            message_order: MessageOrder::all(),
            completion_order: CompletionOrder::empty(),
            size: config.rx_size,
            iov_limit: IOV_LIMIT,
            ..Default::default()
        },
        endpoint: rdm_endpoint(),
        domain: rdm_domain(),
        fabric: FabricAttributes {
            name: "kestrel".to_owned(),
            provider_version: ApiVersion::new(0, 1),
            api_version: ApiVersion::NATIVE,
        },
        nic: None,
    }
}

fn rdm_endpoint() -> EndpointAttributes {
    EndpointAttributes {
        kind: EndpointType::Rdm,
        protocol: PROTOCOL_KESTREL,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: MESSAGE_MAX,
        msg_prefix_size: 0,
        max_order_raw_size: usize::MAX,
        max_order_war_size: usize::MAX,
        max_order_waw_size: usize::MAX,
        tag_format: TAG_FORMAT_GENERIC,
        tx_ctx_count: 1,
        rx_ctx_count: 1,
        auth_key: Vec::new(),
    }
}

fn rdm_domain() -> DomainAttributes {
    DomainAttributes {
        name: "kestrel".to_owned(),
        threading: Threading::Safe,
        control_progress: Progress::Manual,
        data_progress: Progress::Manual,
        resource_management: ResourceManagement::Enabled,
        address_vector_kind: AddressVectorKind::Unspec,
        memory_region_mode: MemoryRegionMode::BASIC_EQUIVALENT,
        mr_key_size: 8,
        cq_data_size: 8,
        cq_count: OBJECT_COUNT_MAX,
        endpoint_count: OBJECT_COUNT_MAX,
        tx_ctx_count: OBJECT_COUNT_MAX,
        rx_ctx_count: OBJECT_COUNT_MAX,
        max_ep_tx_ctx: CONTEXTS_MAX,
        max_ep_rx_ctx: CONTEXTS_MAX,
        max_ep_stx_ctx: OBJECT_COUNT_MAX,
        max_ep_srx_ctx: OBJECT_COUNT_MAX,
        counter_count: OBJECT_COUNT_MAX,
        mr_iov_limit: IOV_LIMIT,
        caps: DOMAIN_CAPS,
        mode: Mode::empty(),
        max_err_data: ERR_DATA_MAX,
        mr_count: OBJECT_COUNT_MAX,
        traffic_class: 0,
        auth_key: Vec::new(),
        vector_keys: false,
        max_ep_auth_key: KEYS_MAX,
    }
}
