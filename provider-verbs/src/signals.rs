//! Threads of ours that no signal of the application's reaches.

use std::mem::MaybeUninit;

/// Runs `start` with the signals blocked that are sent, so that a thread begun there never runs the
/// application's handlers of those. Faults of the thread's own, which some applications mend by a handler,
/// stay as they are: the kernel ends a process whose thread has blocked them.
pub fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
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
