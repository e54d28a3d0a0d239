#![doc = include_str!("../README.md")]
//!
//! # The map
//!
//! This crate is the facade: it composes what the crates below offer.
//! [`discovery`] says what there is, [`settings`] what the environment asks for,
//! [`objects`] opens domains and endpoints, [`address_vectors`] what they share with other
//! processes. [`composite`] puts two transports behind
//! one endpoint: shared memory, and RDMA ([`rdma`]). Everything else is re-exported
//! from [`kestrel_core`], over those two.

#![deny(unsafe_code)]

pub mod address_vectors;
pub mod composite;
pub mod discovery;
pub mod objects;
pub mod rdma;
pub mod settings;

pub use discovery::{DiscoveryError, discover, discover_at};
pub use kestrel_core::{
    address::Address,
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC},
    completion_queue::{Entry, ErrorEntry, ReadError},
    connection::ConnectionError,
    endpoint::{OptionName, PostError},
    error::{Errno, HasErrno},
    event_queue::{EventQueue, EventQueueAttributes},
    flags::Flags,
    info::{Hints, Info},
    memory::{Piece, Pieces},
    operation::{ReceivePost, SendPost},
    socket_endpoint::{Readiness, SocketError},
};
pub use objects::{
    CompletionQueue, Counter, Domain, Endpoint, PassiveEndpoint, Provider, ScalableEndpoint,
    SharedReceive, SharedTransmit, SocketEndpoint, open_domain, open_endpoint,
    open_passive_endpoint, open_scalable_endpoint, open_socket, traffic,
};
