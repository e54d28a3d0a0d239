//! Why a connection was not made.

use std::{io, net::SocketAddr, time::Duration};

use kestrel_core::error::{Cause, Errno, HasErrno};
use thiserror::Error;

use super::wire::{RejectReason, VERSION, WireError, text_of};
use crate::verbs::VerbsError;

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error(
        "no endpoint listens at {to} (looked for {} ms, however long FI_KESTREL_CONNECT_TIMEOUT is: it has \
         to be there first)",
        .waited.as_millis()
    )]
    Nobody { to: SocketAddr, waited: Duration },
    #[error("{to} cannot be reached: {source}")]
    Route { to: SocketAddr, source: io::Error },
    #[error(
        "{to} did not answer within {} ms (FI_KESTREL_CONNECT_TIMEOUT); the last obstacle: {obstacle}",
        .after.as_millis()
    )]
    TimedOut { to: SocketAddr, after: Duration, obstacle: String },
    #[error("{to} refused: {reason}")]
    Refused { to: SocketAddr, reason: RejectReason },
    #[error("{to} answered with something that is no kestrel's: {source}")]
    BadAnswer { to: SocketAddr, source: WireError },
    #[error(
        "{to} speaks version {} of the protocol, and we speak {}",
        text_of(*theirs),
        text_of(VERSION)
    )]
    OtherVersion { to: SocketAddr, theirs: u16 },
    #[error("{to} does not prove that it has our key")]
    Unproven { to: SocketAddr },
    #[error("{to} answered in the name of {named}")]
    OtherEndpoint { to: SocketAddr, named: SocketAddr },
    #[error("{to} has packets of {theirs} bytes, and ours have {ours}")]
    OtherLimits { to: SocketAddr, ours: u32, theirs: u32 },
    #[error("no connection to {to}: {source}")]
    Verbs { to: SocketAddr, source: VerbsError },
    #[error("no connection to {to}: {call}: {source}")]
    System { to: SocketAddr, call: &'static str, source: io::Error },
}

impl HasErrno for ConnectError {
    fn errno(&self) -> Errno {
        match self {
            ConnectError::Nobody { .. } | ConnectError::Route { .. } => Errno::HOSTUNREACH,
            ConnectError::TimedOut { .. } => Errno::TIMEDOUT,
            ConnectError::Refused {
                reason: RejectReason::Path | RejectReason::Subnet | RejectReason::Partition,
                ..
            } => Errno::NETUNREACH,
            ConnectError::Refused { reason: RejectReason::Resources, .. } => Errno::NOBUFS,
            ConnectError::Refused { .. } | ConnectError::Unproven { .. } => Errno::CONNREFUSED,
            ConnectError::BadAnswer { .. }
            | ConnectError::OtherVersion { .. }
            | ConnectError::OtherEndpoint { .. }
            | ConnectError::OtherLimits { .. } => Errno::OPNOTSUPP,
            ConnectError::Verbs { source, .. } => source.errno(),
            ConnectError::System { source, .. } => source.errno(),
        }
    }
}

impl From<ConnectError> for Cause {
    fn from(error: ConnectError) -> Cause {
        Cause::of(&error)
    }
}
