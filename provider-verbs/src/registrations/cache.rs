//! Registrations that an endpoint keeps: whoever sends from the same buffer again, or receives into it,
//! need not wait for the device and the kernel once more.
//!
//! A registration is used again only if the [monitor](super::monitor) knows that the same memory is there
//! still; without a monitor none is kept. What was unmapped is deregistered at the next use of the cache,
//! or at the endpoint's next round. The one that was used the longest time ago makes room for another.

use std::sync::Arc;

use kestrel_core::{
    memory::Piece,
    window::{Access, Loan, Registration},
};

use super::{
    Registered,
    kept::{Holding, KeptRegistrations, Purpose, Room},
    monitor::{MemoryMonitor, Watcher as _},
};
use crate::{error::locked_memory_max, verbs::Verbs};

/// The registrations that are kept, once one is wanted.
enum State<V: Verbs> {
    NotYet,
    Keeping {
        monitor: Arc<MemoryMonitor>,
        kept: KeptRegistrations<V>,
    },
    /// There is no monitor, or nothing is to be kept.
    Never,
}

/// Registers the application's memory for the operations of an endpoint, and keeps what it may.
pub struct RegistrationCache<V: Verbs> {
    device: Arc<V>,
    room: Room,
    state: State<V>,
}

impl<V: Verbs> RegistrationCache<V> {
    /// One that keeps so many bytes at most; 0: none. Of locked memory that is limited all endpoints of the
    /// process leave three quarters to others.
    pub fn new(device: Arc<V>, limit: usize) -> Self {
        let all = locked_memory_max().map_or(usize::MAX, |max| (max / 4) as usize);
        let state = if limit == 0 { State::Never } else { State::NotYet };
        RegistrationCache { device, room: Room { own: limit, all }, state }
    }

    /// Registers memory until the value is dropped, and for nothing else.
    pub fn register(
        &mut self,
        memory: Piece,
        access: Access,
        local_write: bool,
    ) -> Option<Registered<V>> {
        match &mut self.state {
            State::Keeping { kept, .. } => kept.register(&self.device, memory, access, local_write),
            State::NotYet | State::Never => {
                Registered::new(&self.device, memory, access, local_write)
            }
        }
    }

    /// A registration of the buffer of an operation of ours, which is registered for it if none is kept: a
    /// loss, unless it was to be registered `anyway`.
    #[inline(never)]
    pub fn registration(
        &mut self,
        memory: Piece,
        written: bool,
        anyway: bool,
    ) -> Option<Holding<V>> {
        let purpose = if written { Purpose::Receive } else { Purpose::Send };
        self.look_for(memory, purpose, anyway).or_else(|| {
            let made = self.register(memory, Access::default(), written)?;
            Some(Holding { registration: Arc::new(made), kept: false })
        })
    }

    /// Lends a message: `anyway`, or if that costs no registration for it alone.
    pub fn lend(&mut self, message: Piece, anyway: bool) -> Option<Loan> {
        if let Some(Holding { registration, kept }) = self.look_for(message, Purpose::Lend, anyway)
        {
            let registration: Arc<dyn Registration> = registration;
            return Some(if kept { Loan::kept(&registration) } else { Loan::new(registration) });
        }
        if !anyway {
            return None;
        }
        let access = Access { read: true, ..Access::default() };
        self.register(message, access, false).map(|made| Loan::new(made.shared()))
    }

    /// Ends the registration that a loan is by, if it is kept.
    pub fn take_back(&mut self, loan: &Loan) {
        if let State::Keeping { kept, .. } = &mut self.state {
            kept.take_back(loan);
        }
    }

    /// Deregisters what was unmapped since.
    #[inline]
    pub fn sweep(&mut self) {
        if let State::Keeping { monitor, kept } = &mut self.state {
            kept.sweep(&**monitor);
        }
    }

    fn look_for(&mut self, memory: Piece, purpose: Purpose, anyway: bool) -> Option<Holding<V>> {
        if let State::NotYet = self.state {
            self.state = Self::begin(self.room);
        }
        let State::Keeping { monitor, kept } = &mut self.state else {
            return None;
        };
        kept.look_for(&self.device, &**monitor, (memory, purpose, anyway))
    }

    fn begin(room: Room) -> State<V> {
        match MemoryMonitor::of_process() {
            Ok(monitor) => {
                let kept = KeptRegistrations::new(room, monitor.position());
                State::Keeping { monitor, kept }
            }
            Err(error) => {
                tracing::info!(
                    "buffers are registered anew for each operation, since the kernel does not tell when \
                     they are unmapped: userfaultfd: {error}"
                );
                State::Never
            }
        }
    }
}
