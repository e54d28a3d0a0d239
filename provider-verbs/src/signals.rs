//! Threads of ours that no signal of the application's reaches.

use std::mem::MaybeUninit;

/// Runs `start` with every signal blocked, so that a thread begun there never runs one of the
/// application's handlers.
pub fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that it is given. pthread_sigmask reads it, writes
    // the previous mask of this thread alone to `before`, and fails only for a bad `how`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
