//! Fences that cost one side nothing: the other side interrupts it instead.
//!
//! "Publish, then look whether the reader sleeps" needs a store-load fence on either side. The
//! side that publishes often leaves its fence out (a compiler fence remains); the side that goes
//! to sleep, seldom, issues [`heavy_fence`], which makes every running thread of every registered
//! process execute a full fence. membarrier(2): "Execute a memory barrier on all running threads
//! of all processes in the system that previously registered".
//!
//! Whether a process registered travels in the handshake (`PeerIdentity::asymmetric`): the pair
//! may leave the light fence out only if both did.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process. Called at the start of the control thread, again in a forked child.
pub(crate) fn register() {
    let offered = membarrier_query();
    let works = offered.contains_command(MembarrierCommand::GlobalExpedited)
        && offered.contains_command(MembarrierCommand::RegisterGlobalExpedited)
        && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
    if REGISTERED.swap(works, Ordering::SeqCst) != works || !works {
        tracing::debug!(works, "asymmetric fences (membarrier)");
    }
}

/// Whether this process registered, and so executes the fences of others.
///
/// Cost: one relaxed load.
#[inline]
pub fn asymmetric() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

/// A full fence here and, where [`asymmetric`], on every running thread of registered processes.
///
/// Cost: one system call and an interrupt to each core that runs a registered process: some
/// microseconds. For the way to sleep, not for the way of a message.
#[cold]
pub fn heavy_fence() {
    fence(Ordering::SeqCst);
    if asymmetric() && membarrier(MembarrierCommand::GlobalExpedited).is_err() {
        // It worked at registration and has no error that could come later but a seccomp filter
        // installed since. Peers were told that we fence heavily, so say that it is no more.
        tracing::error!("membarrier stopped working: a wake-up may be late");
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_fence_works_with_and_without_registration() {
        heavy_fence();
        register();
        heavy_fence();
        // Whatever this kernel offers, a second registration finds the same.
        let first = asymmetric();
        register();
        assert_eq!(asymmetric(), first);
    }
}
