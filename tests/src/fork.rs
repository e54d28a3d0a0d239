//! Forked children, which run what a test gives them and end with its answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::process::eventually;

/// Forks, runs `life` in the child, which ends with its answer, or with 101 if it panics; the
/// child's PID.
pub fn fork(life: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `life`, which is what is tested: it may allocate (glibc's malloc
    // survives a fork), takes no lock that another thread here may hold, and never returns.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // A panic that left here would be caught by the child's copy of the test harness,
            // and its process would end well.
            let code = catch_unwind(AssertUnwindSafe(life)).unwrap_or(101);
            // SAFETY: ends the child without running what the parent registered.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

/// The exit code of a child, which has to end.
pub fn wait(child: i32) -> i32 {
    let mut status = 0;
    eventually("a forked child ends", || {
        // SAFETY: waitpid writes the status to our own integer.
        unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) == child }
    });
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}
