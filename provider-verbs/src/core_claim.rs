//! Claims a core for one spinning thread a host, by the same names as every kestrel transport.
//!
//! A claim is the name of an abstract unix socket, `"\0kestrel/core/N"`: the kernel grants it
//! once in a network namespace, and takes it back when the holder closes it or dies.

use std::os::fd::OwnedFd;

use kestrel_core::{
    error::Errno,
    transport::{CoreClaim, Unreachable},
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// A core that is ours until this is dropped.
#[derive(Debug)]
pub struct ClaimedCore {
    _name: OwnedFd,
}

impl ClaimedCore {
    /// Claims `core` (the kernel's number).
    pub fn new(core: usize) -> Result<ClaimedCore, Unreachable> {
        let claim = || {
            let name = format!("kestrel/core/{core}");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let name = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            bind(&name, &address)?;
            Ok(name)
        };
        match claim() {
            Ok(name) => Ok(ClaimedCore { _name: name }),
            Err(rustix::io::Errno::ADDRINUSE) => Err(Unreachable {
                errno: Errno::BUSY,
                reason: format!("core {core} is claimed by another kestrel process of this host"),
            }),
            Err(errno) => Err(Unreachable {
                errno: Errno(errno.raw_os_error()),
                reason: format!("cannot claim core {core}: {errno}"),
            }),
        }
    }
}

impl CoreClaim for ClaimedCore {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_claimed_once_and_can_be_claimed_again_after_release() {
        // A number that no machine has, and that differs between runs of this test at once.
        let core = 2_000_000 + std::process::id() as usize;
        let claim = ClaimedCore::new(core).unwrap();
        assert_eq!(ClaimedCore::new(core).unwrap_err().errno, Errno::BUSY);
        drop(claim);
        ClaimedCore::new(core).unwrap();
    }
}
