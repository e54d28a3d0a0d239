//! Tells a provider that it has been carried into a forked child, where the control thread is
//! not, and where sockets and queue pairs are the parent's.
//!
//! A `pthread_atfork` handler counts forks; who remembers the count of its making can compare.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

extern "C" fn in_child() {
    // A child has one thread, and the parent's others are not here to see this: relaxed.
    FORKS.fetch_add(1, Ordering::Relaxed);
    kestrel_core::protocol::atomic::cell::release_in_child();
}

/// The count so far. The first call arranges for forks to be counted.
pub fn forks() -> u32 {
    REGISTERED.call_once(|| {
        // SAFETY: pthread_atfork takes optional function pointers. `in_child` is a plain function
        // of this image, whose registration goes with the image, and does an atomic addition and
        // a few stores.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            tracing::warn!(errno = failed, "forks will not be noticed: pthread_atfork failed");
        }
    });
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process was forked since the count was `then`. Cost: one load.
#[inline(always)]
pub fn forked_since(then: u32) -> bool {
    FORKS.load(Ordering::Relaxed) != then
}
