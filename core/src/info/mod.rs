//! Discovery: what an application asks for, what a transport can do, and the
//! attributes that both agree on. Reference: fi_getinfo(3).
//!
//! - [`Hints`]: what is asked for; everything is optional.
//! - [`Offer`]: what a transport can do: what it gives to who asks for
//!   nothing, and the most that may be asked for.
//! - [`mod@negotiate`]: from both to an [`Info`], or to every [`Rejection`].
//!
//! ```
//! use kestrel_core::flags::Flags;
//! use kestrel_core::info::{ApiVersion, Hints, Offer, Threading, negotiate};
//!
//! let hints = Hints::new().caps(Flags::TAGGED).threading(Threading::Domain);
//! let info = negotiate(&Offer::rdm(), Some(&hints), ApiVersion::NATIVE).unwrap();
//! assert_eq!(info.domain.threading, Threading::Domain);
//!
//! let rejected = negotiate(&Offer::rdm(), Some(&hints.tx_size(100_000)), ApiVersion::NATIVE);
//! assert_eq!(
//!     rejected.unwrap_err()[0].to_string(),
//!     "hint tx_attr->size asks for 100000, kestrel offers at most 65536",
//! );
//! ```
//!
//! Values are libfabric's own, so that the C door translates none of them.

mod attributes;
mod hints;
mod modes;
mod negotiate;
mod offer;
mod rejection;
mod traffic_class;
mod values;

pub use attributes::{
    DomainAttributes, EndpointAttributes, FabricAttributes, Info, Nic, PciAddress,
    ReceiveAttributes, SHARED_CONTEXT, TransmitAttributes,
};
pub use hints::{DomainHints, EndpointHints, FabricHints, Hints, ReceiveHints, TransmitHints};
pub use modes::{CompletionOrder, MemoryRegionMode, MessageOrder, Mode};
pub use negotiate::negotiate;
pub use offer::{
    AUTH_KEY_SIZE_MAX, DATAGRAM_CAPS, INJECT_SIZE_MAX, Offer, PROTOCOL_KESTREL, PROTOCOL_VERSION,
    RX_CAPS, RX_SIZE_MAX, TAG_FORMAT_GENERIC, TX_CAPS, TX_SIZE_MAX, UNKEYED_CAPS,
};
pub use rejection::Rejection;
pub use traffic_class::{dscp_of_traffic_class, dscp_on_the_wire, traffic_class_of_dscp};
pub use values::{
    AddressVectorKind, ApiVersion, CompletionFormat, EndpointType, Progress, ResourceManagement,
    Threading, UnknownValue,
};
