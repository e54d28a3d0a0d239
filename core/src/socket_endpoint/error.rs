//! What can be wrong with a call on a socket endpoint.

use crate::{
    connection::ConnectionError,
    domain::OpenError,
    endpoint::{EndpointError, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
};

/// Why a call was refused. Nothing was sent or received then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Nothing has arrived, or what is taken fills the buffer: try again when the descriptor says so.
    #[error("nothing can be sent or received now")]
    Again,
    /// The stream has no peer yet, or never had one.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// This side has shut the stream down.
    #[error("the stream was shut down here")]
    ShutDown,
    /// The peer is gone. What it sent may not be whole, unless its end was received before.
    #[error("the peer is gone")]
    Reset,
    /// The stream is over, and the peer does not have all that was taken.
    #[error("{bytes} bytes that were taken were not delivered")]
    NotDelivered {
        /// How many, from the end of what was sent.
        bytes: usize,
    },
    /// Longer than a datagram, or what can be injected, may be.
    #[error("{length} bytes are longer than the limit of {limit}")]
    TooLong {
        /// Units: bytes.
        length: usize,
        /// Units: bytes.
        limit: usize,
    },
    /// The flags make no sense for this call.
    #[error("flags {flags:?} do not fit the call")]
    BadFlags {
        /// As given.
        flags: Flags,
    },
    /// The object has no place at a socket endpoint of this type.
    #[error("a socket endpoint of this type is not bound to a {object}")]
    NotForThisType {
        /// Which object.
        object: &'static str,
    },
    /// The system has no descriptor left to wait on.
    #[error("no descriptor to wait on: {reason}")]
    NoDescriptor {
        /// The system's words.
        reason: String,
    },
    /// The endpoint below cannot be used.
    #[error(transparent)]
    Post(#[from] PostError),
    /// It could not be connected.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// It could not be set up.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl HasErrno for SocketError {
    fn errno(&self) -> Errno {
        match self {
            SocketError::Again => Errno::AGAIN,
            SocketError::NotConnected => Errno::NOTCONN,
            SocketError::ShutDown => Errno::SHUTDOWN,
            SocketError::Reset => Errno::CONNRESET,
            SocketError::NotDelivered { .. } => Errno::TIMEDOUT,
            SocketError::TooLong { .. } => Errno::MSGSIZE,
            SocketError::BadFlags { .. } => Errno::BADFLAGS,
            SocketError::NotForThisType { .. } => Errno::INVAL,
            SocketError::NoDescriptor { .. } => Errno::MFILE,
            SocketError::Post(error) => error.errno(),
            SocketError::Connection(error) => error.errno(),
            SocketError::Endpoint(error) => error.errno(),
            SocketError::Open(error) => error.errno(),
        }
    }
}
