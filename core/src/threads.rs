//! Threads of ours, in which the application's signal handlers do not run.

use std::{
    io,
    mem::MaybeUninit,
    thread::{Builder, JoinHandle},
};

/// Starts a thread with the signals blocked that are sent, so that it never runs the application's
/// handlers of those. Faults of the thread's own, which some applications mend by a handler, stay as they
/// are: the kernel ends a process whose thread has blocked them.
pub fn start<R: Send + 'static>(
    thread: Builder,
    run: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
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
    // It inherits the mask.
    let started = thread.spawn(run);
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}

/// What a thread does to itself.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
