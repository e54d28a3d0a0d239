//! What can go wrong with an address vector.

use crate::address::{Address, AddressError};
use crate::bind_count::BindError;
use crate::error::{Errno, HasErrno};

use super::FiAddr;

/// Why an address vector refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its message")]
pub enum AddressVectorError {
    #[error("address vector flags {flags:#x} are not supported")]
    UnsupportedFlags { flags: u64 },
    #[error("{bits} receive-context bits were asked for: at most {bits_max} are possible")]
    TooManyRxCtxBits { bits: u32, bits_max: u32 },
    #[error(transparent)]
    BadAddress(#[from] AddressError),
    #[error("{address} names no host: nothing can be sent there")]
    Wildcard { address: Address },
    #[error("{fi_addr:#x} was not inserted, or was removed")]
    NotInserted { fi_addr: FiAddr },
    #[error("it holds {count} addresses, as many as fit")]
    Full { count: u64 },
    #[error("no memory for another address after {count}")]
    OutOfMemory { count: usize },
    #[error("{service_count} services from {base} on would pass port 65535")]
    PortRange { base: Address, service_count: usize },
    #[error("{node_count} nodes from {base} on would pass the last address")]
    NodeRange { base: Address, node_count: usize },
    #[error("host name '{name}' ends in no number to count up")]
    NoNumericSuffix { name: String },
    #[error("'{name}' was not resolved: {reason}")]
    Unresolved { name: String, reason: String },
    #[error("user ids are set by fi_av_set_user_id here, not at insertion")]
    UserIdAtInsertion,
    #[error("it was opened without FI_AV_USER_ID")]
    NoUserIds,
    #[error("it takes no authorization keys: its domain was not opened with FI_AV_AUTH_KEY")]
    NoAuthKeys,
    #[error("an authorization key of {size} bytes: 1 to {size_max} are possible")]
    AuthKeySize { size: usize, size_max: usize },
    #[error("it has {count} authorization keys: an endpoint takes 1 to {count_max}")]
    AuthKeyCount { count: usize, count_max: usize },
    #[error("{endpoints} endpoints are enabled with authorization key {fi_addr:#x}")]
    AuthKeyInUse { fi_addr: FiAddr, endpoints: usize },
    #[error("a vector with a name, which other processes read, takes no authorization keys")]
    AuthKeysWithName,
    #[error("FI_READ is for vectors with a name")]
    ReadOnlyWithoutName,
    #[error("it was opened with FI_READ")]
    ReadOnly,
    #[error("another process keeps it: {reason}")]
    Locked { reason: String },
    #[error("{words} words of shared memory are no address vector of this version")]
    ForeignMemory { words: usize },
    #[error("FI_SYNC_ERR applies to synchronous insertions only")]
    SyncErrWithEvents,
    #[error("it was opened with FI_EVENT, and no event queue is bound to it")]
    NoEventQueue,
    #[error("an event queue is bound to it already")]
    EventQueueBound,
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl HasErrno for AddressVectorError {
    fn errno(&self) -> Errno {
        match self {
            AddressVectorError::UnsupportedFlags { .. } => Errno::BADFLAGS,
            AddressVectorError::BadAddress(error) => error.errno(),
            AddressVectorError::Wildcard { .. } => Errno::ADDRNOTAVAIL,
            AddressVectorError::OutOfMemory { .. } | AddressVectorError::Full { .. } => {
                Errno::NOMEM
            }
            AddressVectorError::NoEventQueue => Errno::NOEQ,
            AddressVectorError::Unresolved { .. } => Errno::NODATA,
            AddressVectorError::ReadOnly => Errno::ACCES,
            AddressVectorError::Locked { .. } => Errno::AGAIN,
            AddressVectorError::Bind(error) => error.errno(),
            AddressVectorError::AuthKeyInUse { .. } => Errno::BUSY,
            AddressVectorError::AuthKeysWithName => Errno::OPNOTSUPP,
            AddressVectorError::TooManyRxCtxBits { .. }
            | AddressVectorError::NotInserted { .. }
            | AddressVectorError::PortRange { .. }
            | AddressVectorError::NodeRange { .. }
            | AddressVectorError::NoNumericSuffix { .. }
            | AddressVectorError::UserIdAtInsertion
            | AddressVectorError::NoUserIds
            | AddressVectorError::NoAuthKeys
            | AddressVectorError::AuthKeySize { .. }
            | AddressVectorError::AuthKeyCount { .. }
            | AddressVectorError::ReadOnlyWithoutName
            | AddressVectorError::ForeignMemory { .. }
            | AddressVectorError::SyncErrWithEvents
            | AddressVectorError::EventQueueBound => Errno::INVAL,
        }
    }
}
