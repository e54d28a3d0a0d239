//! The few socket calls that rustix lacks, or has in a form that does not serve.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Who is at the other end of a unix socket, as the kernel saw it connect or listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    /// In our PID namespace; none if it is not visible there.
    pub pid: Option<i32>,
    /// In our user namespace; the overflow uid if it has no name there.
    pub uid: u32,
}

/// SO_PEERCRED. rustix has it with a PID that is never zero, but across PID namespaces it is.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a `ucred`, `len` is its size, and both are ours to write.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { pid: (found.pid > 0).then_some(found.pid), uid: found.uid })
}

/// SO_PEERPIDFD (Linux 6.5): the peer's process, whatever its PID is called by now.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an `int`, `len` is its size, and both are ours to write.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    if found < 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the kernel has just installed this descriptor for us, and nobody else knows it. It
    // is close-on-exec, as every pidfd is (pidfd_open(2)).
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}
