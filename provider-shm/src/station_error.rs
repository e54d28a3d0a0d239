//! Why a station could not be opened, or connected.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use kestrel_core::error::{Errno, HasErrno};
use thiserror::Error;

use crate::{
    control::wire::{KEY_BYTES_MAX, RejectReason, VERSION, WireError},
    doorbell::DoorbellError,
    limits::{OutOfDescriptors, is_out_of_descriptors},
    region::RegionError,
    station::PORT_ATTEMPTS,
};

/// Why a station could not be opened.
#[derive(Debug, Error)]
pub enum StationError {
    #[error("the address {address} is in use on this host")]
    AddressInUse { address: SocketAddr },
    #[error("no free port of {ip} was found in {PORT_ATTEMPTS} random attempts")]
    NoFreePort { ip: IpAddr },
    #[error("the key has {bytes} bytes, at most {KEY_BYTES_MAX} are allowed")]
    KeyTooLong { bytes: usize },
    #[error("no address was given, and the default one is unspecified")]
    NoAddress,
    #[error("{0}")]
    OutOfDescriptors(OutOfDescriptors),
    #[error("{call}: {source}")]
    System { call: &'static str, source: io::Error },
    #[error("this process was forked from one that uses kestrel while that was opening a station")]
    Forked,
}

impl StationError {
    pub(crate) fn system(call: &'static str, source: io::Error, need: u32) -> StationError {
        match is_out_of_descriptors(&source) {
            true => StationError::OutOfDescriptors(OutOfDescriptors::needing(need)),
            false => StationError::System { call, source },
        }
    }
}

impl HasErrno for StationError {
    fn errno(&self) -> Errno {
        match self {
            StationError::AddressInUse { .. } | StationError::NoFreePort { .. } => Errno::ADDRINUSE,
            StationError::KeyTooLong { .. } => Errno::INVAL,
            StationError::NoAddress => Errno::ADDRNOTAVAIL,
            StationError::OutOfDescriptors(_) => Errno::MFILE,
            StationError::System { source, .. } => source.errno(),
            StationError::Forked => Errno::PERM,
        }
    }
}

/// Why a connection was not made.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error(
        "no endpoint listens at {to} on this host (looked for {} ms, however long \
         FI_KESTREL_CONNECT_TIMEOUT is: it has to be there first; one of another host or network \
         namespace cannot be seen)",
        .waited.as_millis()
    )]
    HostUnreachable { to: SocketAddr, waited: Duration },
    #[error(
        "{to} did not answer within {} ms (FI_KESTREL_CONNECT_TIMEOUT); the last obstacle: {obstacle}",
        .after.as_millis()
    )]
    TimedOut { to: SocketAddr, after: Duration, obstacle: &'static str },
    #[error("{to} refused: {reason}")]
    Refused { to: SocketAddr, reason: RejectReason },
    #[error("{to} belongs to user {theirs}, and we are {ours}")]
    WrongUser { to: SocketAddr, theirs: u32, ours: u32 },
    #[error(
        "cannot tell whether {to} belongs to our user: neither it nor we have a name in our user \
         namespace"
    )]
    UserUnknown { to: SocketAddr },
    #[error("{to} answered with something that is no kestrel: {source}")]
    BadAnswer { to: SocketAddr, source: WireError },
    #[error("{to} speaks version {theirs} of the protocol, and we speak {VERSION}")]
    OtherVersion { to: SocketAddr, theirs: u16 },
    #[error("{to} passed a bad doorbell: {source}")]
    BadDoorbell { to: SocketAddr, source: DoorbellError },
    #[error("no lane to {to}: {source}")]
    Memory { to: SocketAddr, source: RegionError },
    #[error("no connection to {to}: {source}")]
    OutOfDescriptors { to: SocketAddr, source: OutOfDescriptors },
    #[error("no connection to {to}: {call}: {source}")]
    System { to: SocketAddr, call: &'static str, source: io::Error },
    #[error("the endpoint was closed")]
    Closed,
    #[error("this process is a forked child of the one that opened the endpoint")]
    Forked,
}

impl HasErrno for ConnectError {
    fn errno(&self) -> Errno {
        match self {
            ConnectError::HostUnreachable { .. } => Errno::HOSTUNREACH,
            ConnectError::TimedOut { .. } => Errno::TIMEDOUT,
            ConnectError::Refused { .. } => Errno::CONNREFUSED,
            ConnectError::WrongUser { .. } | ConnectError::UserUnknown { .. } => Errno::ACCES,
            ConnectError::BadAnswer { .. }
            | ConnectError::BadDoorbell { .. }
            | ConnectError::OtherVersion { .. } => Errno::OPNOTSUPP,
            ConnectError::Memory { source, .. } => source.errno(),
            ConnectError::OutOfDescriptors { .. } => Errno::MFILE,
            ConnectError::System { source, .. } => source.errno(),
            ConnectError::Closed => Errno::SHUTDOWN,
            ConnectError::Forked => Errno::PERM,
        }
    }
}
