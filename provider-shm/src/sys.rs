//! The few socket and signal calls that rustix lacks, or has in a form that does not serve.

use std::io;
use std::mem::{MaybeUninit, size_of};
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

/// Runs `start` with the signals blocked that are sent, so that a thread begun there never runs the
/// application's handlers of those. Faults of the thread's own, which some applications mend by a handler,
/// stay as they are: the kernel ends a process whose thread has blocked them.
pub(crate) fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let mut sent = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that it is given, of which sigdelset takes some.
    // pthread_sigmask reads it, writes the previous mask of this thread alone to `before`, and fails
    // only for a bad `how`.
    unsafe {
        libc::sigfillset(sent.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(sent.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, sent.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: `before` was written above.
    let _restored = Mask(unsafe { before.assume_init() });
    start()
}

/// What a thread does to itself.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The mask that this thread gets back, also if `start` panics.
struct Mask(libc::sigset_t);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
