//! A region as an adapter knows it, so that peers reach it without our processor.
//!
//! It is registered with the adapter when the first peer asks, with the access that the region
//! has, and deregistered when the region is closed, before the close returns. A region whose use
//! is counted is not: an adapter counts nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MemoryRegion;
use crate::{
    flags::Flags,
    memory::Piece,
    window::{Access, Lease, Registration},
};

/// What became of a region's registration with the adapter.
#[derive(Default)]
enum State {
    /// Nobody has asked.
    #[default]
    Unasked,
    /// It is registered.
    Registered(Arc<dyn Registration>),
    /// It cannot be, or may not any more.
    Never,
}

/// A region's registration with the adapter.
#[derive(Default)]
pub struct Adapter {
    state: Mutex<State>,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Adapter")
    }
}

impl Adapter {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is one value, replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deregisters for good: no adapter touches the memory when this returns.
    pub(super) fn revoke(&self) {
        *self.lock() = State::Never;
    }
}

impl MemoryRegion {
    /// What a peer may reach of the region by an adapter, if `permitted` and the region allow
    /// any of it. The first time `register` registers it.
    pub(crate) fn lease(
        &self,
        permitted: Flags,
        register: impl FnOnce(Piece, Access, bool) -> Option<Arc<dyn Registration>>,
    ) -> Option<Lease> {
        let flags = self.access & permitted;
        let access = Access {
            read: flags.contains(Flags::REMOTE_READ),
            write: flags.contains(Flags::REMOTE_WRITE),
        };
        let kind = if access.write { Flags::REMOTE_WRITE } else { Flags::REMOTE_READ };
        // Closing waits for this, and deregisters after it.
        let entered = self.access_as(kind).ok()?;
        let whole = entered.contiguous(0, self.len);
        let mut state = self.adapter.lock();
        let counted = self.flags.contains(Flags::RMA_EVENT) || self.events.all().next().is_some();
        let fits = (access.read || access.write) && whole.len() as u64 == self.len;
        if counted || !fits {
            return None;
        }
        if matches!(*state, State::Unasked) {
            let allowed = Access {
                read: self.access.contains(Flags::REMOTE_READ),
                write: self.access.contains(Flags::REMOTE_WRITE),
            };
            let local_write = self.access.intersects(Flags::RECV | Flags::READ);
            *state = register(whole, allowed, local_write).map_or(State::Never, State::Registered);
        }
        let State::Registered(registration) = &*state else {
            return None;
        };
        Some(Lease {
            base: self.base,
            length: self.len,
            address: whole.as_ptr().addr() as u64,
            remote_key: registration.remote_key(),
            access,
        })
    }
}
