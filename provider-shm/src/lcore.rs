//! Claims a core for one spinning thread a host.
//!
//! Eight ranks must never start eight spinning helpers on two cores. A claim is an abstract unix
//! socket's name, `"\0kestrel/core/N"`: the kernel grants a name once, and takes it back when the
//! holder closes it or dies, so nothing stale can be left behind. Names are per network
//! namespace: containers with networks of their own do not see each other's claims.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use thiserror::Error;

/// A core that is ours until this is dropped, or every process that inherited it is gone.
#[derive(Debug)]
pub struct CoreClaim {
    core: usize,
    _name: OwnedFd,
}

/// Why a core could not be claimed.
#[derive(Debug, Error)]
pub enum CoreClaimError {
    #[error("core {core} is claimed by another kestrel process of this host")]
    Taken { core: usize },
    #[error("cannot claim core {core}: {source}")]
    Socket { core: usize, source: io::Error },
}

impl CoreClaim {
    /// Claims `core` (the kernel's number) for the caller.
    pub fn new(core: usize) -> Result<CoreClaim, CoreClaimError> {
        let claim = || {
            let address =
                SocketAddrUnix::new_abstract_name(format!("kestrel/core/{core}").as_bytes())?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let name = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            bind(&name, &address)?;
            Ok(name)
        };
        match claim() {
            Ok(name) => Ok(CoreClaim { core, _name: name }),
            Err(Errno::ADDRINUSE) => Err(CoreClaimError::Taken { core }),
            Err(errno) => Err(CoreClaimError::Socket { core, source: errno.into() }),
        }
    }

    pub fn core(&self) -> usize {
        self.core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_claimed_once_and_can_be_claimed_again_after_release() {
        // A number that no machine has, and that differs between runs of this test at once.
        let core = 1_000_000 + std::process::id() as usize;
        let claim = CoreClaim::new(core).unwrap();
        assert_eq!(claim.core(), core);
        assert!(
            matches!(CoreClaim::new(core), Err(CoreClaimError::Taken { core: c }) if c == core)
        );
        drop(claim);
        CoreClaim::new(core).unwrap();
    }
}
