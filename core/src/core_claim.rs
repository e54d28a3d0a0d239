//! Claims a core for one spinning thread a host.
//!
//! Eight ranks must never start eight spinning helpers on two cores. A claim is an abstract unix
//! socket's name, `"\0kestrel/core/N"`: the kernel grants a name once, and takes it back when the
//! holder closes it or dies, so nothing stale can be left behind. Names are per network
//! namespace: containers with networks of their own do not see each other's claims.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::{
    error::{Cause, Errno},
    transport::CoreClaim,
};

/// A core that is ours until this is dropped, or every process that inherited it is gone.
#[derive(Debug)]
pub struct ClaimedCore {
    _name: OwnedFd,
}

impl ClaimedCore {
    /// Claims `core` (the kernel's number) for the caller.
    ///
    /// # Errors
    /// `BUSY`, also where the system refuses a socket: a helper that may sleep is better than no
    /// domain.
    pub fn new(core: usize) -> Result<ClaimedCore, Cause> {
        let claim = || {
            let name = format!("kestrel/core/{core}");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let name = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            bind(&name, &address)?;
            Ok(name)
        };
        claim().map(|name| ClaimedCore { _name: name }).map_err(|errno| {
            let reason = match errno {
                rustix::io::Errno::ADDRINUSE => {
                    format!("core {core} is claimed by another domain, of this process or another")
                }
                errno => format!("cannot claim core {core}: {errno}"),
            };
            Cause { errno: Errno::BUSY, reason }
        })
    }
}

impl CoreClaim for ClaimedCore {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_claimed_once_and_can_be_claimed_again_after_release() {
        // A number that no machine has, and that differs between runs of this test at once.
        let core = 1_000_000 + std::process::id() as usize;
        let claim = ClaimedCore::new(core).unwrap();
        assert_eq!(ClaimedCore::new(core).unwrap_err().errno, Errno::BUSY);
        drop(claim);
        ClaimedCore::new(core).unwrap();
    }
}
