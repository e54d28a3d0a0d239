//! Why verbs refused something.

use std::{io, net::IpAddr};

use kestrel_core::{error::Errno, transport::Unreachable};

use crate::device::LinkLayer;

/// Why verbs refused something.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    #[error("{call} on {device} failed: {source}{}", advice(.call, .source))]
    Call { device: String, call: &'static str, source: io::Error },
    #[error(
        "no memory of {bytes} bytes can be registered with {device}: {source}; the limit on locked \
         memory (RLIMIT_MEMLOCK) is {limit}: raise it with ulimit -l, or in \
         /etc/security/limits.conf"
    )]
    LockedMemory { device: String, bytes: usize, limit: String, source: io::Error },
    #[error("{device} has an own link layer {ours:?}, and the peer's is {theirs:?}")]
    LinkLayers { device: String, ours: LinkLayer, theirs: LinkLayer },
    #[error(
        "{device} reaches nobody in partition {theirs:#06x}: it is used in partition {ours:#06x}"
    )]
    Partitions { device: String, ours: u16, theirs: u16 },
    #[error(
        "{device} and its peer are both limited members of their partition ({ours:#06x}, \
         {theirs:#06x}), and such members cannot talk: one of them has to be a full one (0x8000)"
    )]
    LimitedMembers { device: String, ours: u16, theirs: u16 },
    #[error(
        "{device} is in InfiniBand subnet {ours:016x}, and the peer in {theirs:016x}: only the \
         subnet manager knows the way to the router between them; FI_KESTREL_CONNECT_BY=rdma_cm \
         asks it, for connections"
    )]
    Subnets { device: String, ours: u64, theirs: u64 },
    #[error("{device} cannot join {group}: {source}")]
    Group { device: String, group: IpAddr, source: io::Error },
    #[error("{device}: no connection manager (rdma_cm): {reason}")]
    NoManager { device: String, reason: String },
    #[error("{at} is reached through {theirs}, and not through {device}")]
    OtherDevice { device: String, at: IpAddr, theirs: String },
    #[error("{gid} cannot be reached from GID {index} of {device}: {source}")]
    Path { device: String, index: u8, gid: String, source: io::Error },
}

fn advice(call: &str, source: &io::Error) -> &'static str {
    if call == "ibv_create_qp" && source.raw_os_error() == Some(libc::ENOMEM) {
        " (the device has no queue pair left, or RLIMIT_MEMLOCK is too small: ulimit -l)"
    } else {
        ""
    }
}

impl VerbsError {
    /// The number that C callers know.
    pub fn errno(&self) -> Errno {
        match self {
            VerbsError::Call { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::IO.0)),
            VerbsError::Group { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::IO.0)),
            VerbsError::NoManager { .. } => Errno::OPNOTSUPP,
            VerbsError::LockedMemory { .. } => Errno::NOMEM,
            VerbsError::LinkLayers { .. }
            | VerbsError::Partitions { .. }
            | VerbsError::LimitedMembers { .. }
            | VerbsError::Subnets { .. }
            | VerbsError::OtherDevice { .. }
            | VerbsError::Path { .. } => Errno::NETUNREACH,
        }
    }
}

impl From<VerbsError> for Unreachable {
    fn from(error: VerbsError) -> Unreachable {
        Unreachable { errno: error.errno(), reason: error.to_string() }
    }
}
