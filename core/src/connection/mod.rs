//! Connections: endpoints with one peer each, and how two of them find each other.
//! Reference: fi_cm(3).
//!
//! A connected endpoint (`FI_EP_MSG`) is an engine like any other that talks to one peer
//! and has a private address vector with that peer in it; so nothing of the data path
//! knows of connections. What is different is how the peer comes about, in three packets
//! that every transport carries ([`crate::protocol::connect`]):
//!
//! ```text
//! caller                    listener            acceptor, opened from the request
//!   Request nonce, data ->    FI_CONNREQ
//!                             application      ->  accept
//!   FI_CONNECTED        <-----------------------  Accept nonce, data
//!   Established nonce   ----------------------->  FI_CONNECTED
//! ```
//!
//! or `Reject` from the listener. The acceptor has an address of its own; that it speaks for
//! the listener it proves with the nonce. Nobody is told of it: both ends go by the listener's,
//! as two ends of a connection between sockets do. In reading order: [`passive_endpoint`] listens,
//! [`request`] is what it hears, and [`manager`] is the part of it that lives in an engine;
//! the calls of an active endpoint are in [`crate::endpoint::connection`].

pub mod manager;
pub mod passive_endpoint;
pub mod request;

use std::hash::{BuildHasher, RandomState};

use crate::{
    bind_count::BindError,
    domain::OpenError,
    endpoint::{EndpointError, PostError},
    error::{Errno, HasErrno},
};

/// The most data of the application's that goes with a request or its answer: what
/// FI_OPT_CM_DATA_SIZE tells. Units: bytes.
pub const CM_DATA_SIZE: usize = 256;

/// "The fi_connect, fi_accept, and fi_reject calls will silently truncate any application
/// data which cannot fit into underlying protocol messages."
pub(crate) fn truncated(data: &[u8]) -> Vec<u8> {
    data[..data.len().min(CM_DATA_SIZE)].to_vec()
}

/// A number that only the two ends of a connection know.
pub(crate) fn nonce() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Why a call that manages connections was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The endpoint is of a type that has no connections.
    #[error("only FI_EP_MSG endpoints have connections")]
    Connectionless,
    /// "fi_connect may only be called on an endpoint once in its lifetime"; `fi_accept` as well.
    #[error("the endpoint was connected before: it can be once in its lifetime")]
    ConnectedBefore,
    /// The endpoint has no peer, or not yet.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The endpoint was not opened from a connection request.
    #[error("the endpoint was opened from no connection request")]
    NoRequest,
    /// The endpoint was opened from a connection request: it can only accept.
    #[error("the endpoint was opened from a connection request and can only accept it")]
    HasRequest,
    /// No such request was ever reported.
    #[error("the passive endpoint has reported no request {handle:#x}")]
    UnknownRequest {
        /// As given.
        handle: u64,
    },
    /// The request was answered, or whoever made it is gone.
    #[error("request {handle:#x} is over: it was answered, or its sender is gone")]
    RequestOver {
        /// As given.
        handle: u64,
    },
    /// No peer can be at this address.
    #[error("{address} names no port")]
    BadAddress {
        /// As given.
        address: crate::address::Address,
    },
    /// The passive endpoint listens, and this can only be done before.
    #[error("the passive endpoint listens: {what} can only be done before")]
    Listening {
        /// What was tried.
        what: &'static str,
    },
    /// The passive endpoint does not listen.
    #[error("the passive endpoint does not listen")]
    NotListening,
    /// The passive endpoint is closed, or an active endpoint took it over.
    #[error("the passive endpoint is closed, or an active one took it over")]
    Gone,
    /// The value of FI_BACKLOG is out of bounds.
    #[error("a backlog of {backlog} is not 1 or more")]
    BadBacklog {
        /// As given.
        backlog: i32,
    },
    /// An event queue is bound already.
    #[error("an event queue is bound already")]
    EventQueueBound,
    /// There is no event queue to report to.
    #[error("no event queue is bound")]
    NoEventQueue,
    /// The event queue cannot be bound.
    #[error("the event queue: {0}")]
    Bind(#[from] BindError),
    /// The address cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The endpoint could not be enabled.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint cannot be used.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl HasErrno for ConnectionError {
    fn errno(&self) -> Errno {
        match self {
            ConnectionError::Connectionless => Errno::NOSYS,
            ConnectionError::ConnectedBefore => Errno::ISCONN,
            ConnectionError::NotConnected => Errno::NOTCONN,
            ConnectionError::NoRequest
            | ConnectionError::HasRequest
            | ConnectionError::UnknownRequest { .. }
            | ConnectionError::BadAddress { .. }
            | ConnectionError::BadBacklog { .. }
            | ConnectionError::EventQueueBound => Errno::INVAL,
            ConnectionError::RequestOver { .. } => Errno::CONNABORTED,
            ConnectionError::Listening { .. }
            | ConnectionError::NotListening
            | ConnectionError::Gone => Errno::OPBADSTATE,
            ConnectionError::NoEventQueue => Errno::NOEQ,
            ConnectionError::Bind(error) => error.errno(),
            ConnectionError::Open(error) => error.errno(),
            ConnectionError::Endpoint(error) => error.errno(),
            ConnectionError::Post(error) => error.errno(),
        }
    }
}
