//! Tells an object that it has been carried into a forked child.
//!
//! A child inherits our memory and descriptors, and none of our threads. It must not talk to a
//! control thread that is not there, nor on the parent's behalf. So every object remembers the
//! generation in which it was made, a `pthread_atfork` handler moves the generation on in the
//! child, and the two are compared at each door.
//!
//! A child that goes on without `exec` must not keep our connections up either, or their peers would
//! not hear that this process is gone before the child is, too: see [`Unshared`].
//!
//! Not noticed: a raw `clone(2)` or glibc's `_Fork`, which run no handlers. `vfork` and
//! `posix_spawn` run none either, and need none, since only `exec` or `_exit` may follow.

mod unshared;

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

pub use self::unshared::{Mark, Unshared};
use crate::protocol::atomic::cell;

/// Counts the forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(1);
static REGISTERED: Once = Once::new();

extern "C" fn in_child() {
    // A child has one thread, and the others of the parent are not here to see this: relaxed.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    cell::release_in_child();
    unshared::replace_in_child();
}

/// The current generation, to be kept by an object and given to [`forked`] later.
///
/// The first call arranges for forks to be noticed.
pub fn generation() -> u32 {
    REGISTERED.call_once(|| {
        // SAFETY: pthread_atfork takes optional function pointers. `in_child` is a plain function
        // of this image: glibc drops the registration when the image is unloaded. In the child it
        // does atomic operations, and system calls that are async-signal-safe.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            tracing::warn!(errno = failed, "forks will not be noticed: pthread_atfork failed");
        }
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Whether this process is a child of the one in which `created` was taken.
///
/// Cost: one relaxed load of a line that nobody writes.
#[inline]
pub fn forked(created: u32) -> bool {
    GENERATION.load(Ordering::Relaxed) != created
}

/// Whether this process was forked from one that used kestrel.
pub fn is_child() -> bool {
    forked(1)
}
