//! Threads of ours, in which the application's signal handlers do not run.

use std::{
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    thread::{Builder, JoinHandle, sleep},
    time::Duration,
};

use crate::contained::contained;

/// The pause after a turn that met a bug.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// Takes turns until one breaks. A bug that one of them meets must not take with it what all others rely on the
/// thread for: after a pause the next follows, and finds what that one has left.
pub fn take_turns(thread: &str, mut turn: impl FnMut() -> ControlFlow<()>) {
    loop {
        match contained(thread, &mut turn) {
            Some(ControlFlow::Continue(())) => {}
            Some(ControlFlow::Break(())) => return,
            None => sleep(PANIC_PAUSE),
        }
    }
}

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_panics_is_followed_by_others() {
        let mut turns = 0;
        take_turns("a test", || {
            turns += 1;
            match turns {
                2 => panic!("in the middle of a turn"),
                4 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        assert_eq!(turns, 4);
    }
}
