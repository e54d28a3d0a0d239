//! Why memory regions are refused. Reference: fi_mr(3).

use crate::bind_count::BindError;
use crate::error::{Errno, HasErrno};

/// Why a region could not be registered or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its message")]
pub enum MemoryRegionError {
    #[error("{count} ranges were given: 1 to {count_max} are possible")]
    RangeCount { count: usize, count_max: usize },
    #[error("range {index}, {len} bytes from {address:#x} on, passes the end of memory")]
    BadRange { index: usize, address: u64, len: u64 },
    #[error("access {access:#x} has bits that mean nothing")]
    UnknownAccess { access: u64 },
    #[error("offset {offset} is not 0")]
    Offset { offset: u64 },
    #[error("memory region flags {flags:#x} are not supported")]
    UnsupportedFlags { flags: u64 },
    #[error("key {key:#x} is in use")]
    KeyInUse { key: u64 },
    #[error("key {key:#x} stands for 'no key'")]
    ReservedKey { key: u64 },
    #[error("key {key:#x} is not this registry's")]
    NotRegistered { key: u64 },
    #[error("a counter is bound to the region with key {key:#x} already")]
    CounterBound { key: u64 },
    #[error("the counter belongs to another domain than the region")]
    OtherDomain,
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl HasErrno for MemoryRegionError {
    fn errno(&self) -> Errno {
        match self {
            MemoryRegionError::KeyInUse { .. } => Errno::NOKEY,
            MemoryRegionError::UnsupportedFlags { .. } => Errno::BADFLAGS,
            MemoryRegionError::OtherDomain => Errno::DOMAIN,
            MemoryRegionError::Bind(error) => error.errno(),
            MemoryRegionError::RangeCount { .. }
            | MemoryRegionError::BadRange { .. }
            | MemoryRegionError::UnknownAccess { .. }
            | MemoryRegionError::Offset { .. }
            | MemoryRegionError::ReservedKey { .. }
            | MemoryRegionError::CounterBound { .. }
            | MemoryRegionError::NotRegistered { .. } => Errno::INVAL,
        }
    }
}
