//! Why verbs refused something.

use std::{io, net::IpAddr};

use kestrel_core::error::{Cause, Errno, HasErrno};

use crate::device::LinkLayer;

/// Why verbs refused something.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    #[error("{call} on {device} failed: {source}")]
    Call { device: String, call: &'static str, source: io::Error },
    /// Something that devices keep in memory of the process, which counts as locked.
    #[error("{call} on {device} failed: {source}: {}", shortage(source, *.limit))]
    Exhausted { device: String, call: &'static str, limit: Option<u64>, source: io::Error },
    #[error(
        "no memory of {bytes} bytes can be registered with {device}: {source}: {}",
        shortage(source, *.limit)
    )]
    LockedMemory { device: String, bytes: usize, limit: Option<u64>, source: io::Error },
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
    #[error("{device}: {whose} has no LID, which a subnet manager gives: does one run?")]
    NoLid { device: String, whose: &'static str },
    #[error("{device} cannot join {group}: {source}")]
    Group { device: String, group: IpAddr, source: io::Error },
    #[error("{device} has no queue pairs of datagrams (UD) for programs: {source}")]
    NoDatagrams { device: String, source: io::Error },
    #[error("{device}: no connection manager (rdma_cm): {reason}")]
    NoManager { device: String, reason: String },
    #[error("{at} is reached through {theirs}, and not through {device}")]
    OtherDevice { device: String, at: IpAddr, theirs: String },
    #[error("{device} has failed: {what}")]
    Gone { device: String, what: String },
    #[error("{gid} cannot be reached from GID {index} of {device}: {source}")]
    Path { device: String, index: u8, gid: String, source: io::Error },
}

/// The limit on locked memory in bytes; none: there is none.
pub fn locked_memory_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

fn shortage(source: &io::Error, limit: Option<u64>) -> String {
    if source.raw_os_error() == Some(libc::EAGAIN) {
        return "the control group of this process has no more of the device (rdma.max)".into();
    }
    match limit {
        None => "the device or the host has no more of it; locked memory (RLIMIT_MEMLOCK) is \
                 unlimited"
            .into(),
        Some(bytes) => format!(
            "the limit on locked memory (RLIMIT_MEMLOCK) is {} KiB: raise it with ulimit -l, in \
             /etc/security/limits.conf, or as LimitMEMLOCK of the service that starts the job",
            bytes >> 10
        ),
    }
}

impl VerbsError {
    /// A call of libibverbs that failed.
    pub fn of_call(device: &str, call: &'static str, source: io::Error) -> VerbsError {
        VerbsError::of_limited_call(device, call, source, locked_memory_max())
    }

    /// The kernel says no more than ENOMEM of a limit that is reached, and EAGAIN of one of a control group.
    fn of_limited_call(
        device: &str,
        call: &'static str,
        source: io::Error,
        limit: Option<u64>,
    ) -> VerbsError {
        let device = device.to_owned();
        let makes = call.starts_with("ibv_create_") || call.starts_with("ibv_alloc_");
        if makes && matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) {
            return VerbsError::Exhausted { device, call, limit, source };
        }
        VerbsError::Call { device, call, source }
    }
}

impl HasErrno for VerbsError {
    fn errno(&self) -> Errno {
        match self {
            VerbsError::Call { source, .. } | VerbsError::Group { source, .. } => source.errno(),
            VerbsError::NoManager { .. } | VerbsError::NoDatagrams { .. } => Errno::OPNOTSUPP,
            VerbsError::Gone { .. } => Errno::NODEV,
            VerbsError::LockedMemory { .. } | VerbsError::Exhausted { .. } => Errno::NOMEM,
            VerbsError::LinkLayers { .. }
            | VerbsError::Partitions { .. }
            | VerbsError::LimitedMembers { .. }
            | VerbsError::Subnets { .. }
            | VerbsError::NoLid { .. }
            | VerbsError::OtherDevice { .. }
            | VerbsError::Path { .. } => Errno::NETUNREACH,
        }
    }
}

impl From<VerbsError> for Cause {
    fn from(error: VerbsError) -> Cause {
        Cause::of(&error)
    }
}

/// Why a call of verbs failed that returns its number, or -1 with `errno`.
pub fn error_of(number: i32) -> io::Error {
    match number {
        -1 => io::Error::last_os_error(),
        number => io::Error::from_raw_os_error(number.abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKING: [&str; 6] = [
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_srq",
        "ibv_create_qp",
        "ibv_create_ah",
    ];

    fn failed(call: &'static str, number: i32, limit: Option<u64>) -> VerbsError {
        let source = io::Error::from_raw_os_error(number);
        VerbsError::of_limited_call("mlx5_0", call, source, limit)
    }

    #[test]
    fn a_limit_that_is_reached_is_named_with_the_way_to_raise_it() {
        for call in MAKING {
            let error = failed(call, libc::ENOMEM, Some(64 << 10));
            let text = error.to_string();
            for part in [call, "mlx5_0", "RLIMIT_MEMLOCK) is 64 KiB", "ulimit -l", "limits.conf"] {
                assert!(text.contains(part), "{text}");
            }
            assert_eq!(error.errno(), Errno::NOMEM);
        }
        let source = io::Error::from_raw_os_error(libc::EAGAIN);
        let error = VerbsError::of_limited_call("mlx5_0", "ibv_create_qp", source, None);
        assert!(error.to_string().contains("rdma.max"), "{error}");
        assert_eq!(error.errno(), Errno::NOMEM);
        let (bytes, limit) = (4096, Some(64 << 10));
        let source = io::Error::from_raw_os_error(libc::ENOMEM);
        let error = VerbsError::LockedMemory { device: "mlx5_0".into(), bytes, limit, source };
        let text = error.to_string();
        for part in ["4096 bytes", "RLIMIT_MEMLOCK) is 64 KiB", "ulimit -l"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_limit_is_not_blamed_where_it_is_none() {
        let unlimited = failed("ibv_create_cq", libc::ENOMEM, None).to_string();
        assert!(unlimited.contains("unlimited") && !unlimited.contains("ulimit"), "{unlimited}");
        for (call, number) in [("ibv_create_qp", libc::EINVAL), ("ibv_post_send", libc::ENOMEM)] {
            let error = failed(call, number, Some(64 << 10));
            assert!(matches!(error, VerbsError::Call { .. }), "{error}");
        }
    }
}
