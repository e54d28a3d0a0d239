//! Memory of the application that a device reaches.
//!
//! - [`Registered`]: a registration, for one operation or for longer;
//! - [`cache`]: who makes them, and keeps some in [`kept`] for what comes later, by a [`guess`];
//! - [`monitor`]: which memory was unmapped since, so that they end: [`userfaultfd`] has the kernel tell
//!   it, [`invalidations`] passes it on, [`mappings`] knows what lies where.

mod cache;
mod guess;
mod invalidations;
mod kept;
mod mappings;
mod monitor;
#[allow(unsafe_code)]
mod userfaultfd;

use std::{mem::ManuallyDrop, sync::Arc};

use kestrel_core::{
    fork_guard,
    memory::Piece,
    window::{Access, Registration as CoreRegistration},
};

pub use self::{cache::RegistrationCache, kept::Holding};
use crate::verbs::{Registration, Verbs};

/// Whether the kernel tells when memory is unmapped, so that registrations can be kept.
///
/// # Errors
/// Why it does not.
pub fn can_keep_registrations() -> Result<(), String> {
    let monitor = monitor::MemoryMonitor::of_process();
    monitor.map(drop).map_err(|error| format!("not permitted: {error}"))
}

/// Memory of the application that the device reaches until this is dropped. Left alone in a forked
/// child, where it is the parent's.
pub struct Registered<V: Verbs> {
    registration: ManuallyDrop<V::Registration>,
    forks: u32,
}

impl<V: Verbs> Registered<V> {
    /// Registers memory that core vouches for until the registration is dropped.
    pub fn new(
        device: &Arc<V>,
        memory: Piece,
        access: Access,
        local_write: bool,
    ) -> Option<Registered<V>> {
        // SAFETY: the piece is promised to be valid until the registration is dropped, or until the
        // monitor has told that it is not.
        let made = unsafe { device.register(memory, access, local_write) };
        let made = made.inspect_err(|error| tracing::info!("not registered: {error}"));
        let registration = ManuallyDrop::new(made.ok()?);
        Some(Registered { registration, forks: fork_guard::generation() })
    }

    pub fn shared(self) -> Arc<dyn CoreRegistration> {
        Arc::new(self)
    }

    /// What requests of ours name it by.
    #[inline(always)]
    pub fn local_key(&self) -> u32 {
        self.registration.local_key()
    }
}

impl<V: Verbs> CoreRegistration for Registered<V> {
    fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }
}

impl<V: Verbs> Drop for Registered<V> {
    fn drop(&mut self) {
        if !fork_guard::forked(self.forks) {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.registration) };
        }
    }
}
