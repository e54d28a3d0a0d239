//! The descriptor of a completion queue (FI_WAIT_FD). Reference: fi_poll(3), `fi_trywait`.
//!
//! "Applications must call fi_trywait prior to blocking", or else it "may result in the wait object not being
//! signaled". Programs that never do, or not before the first time, are served all the same, as other providers do: the
//! descriptor can be read from the moment on at which it is told until somebody looks. And as long as nobody has called
//! fi_trywait, a read that finds nothing makes ready for a wait, and behind any other it can be read.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, Ordering},
};

use kestrel_core::fork_guard;

use crate::{
    outcome::Failure,
    waiting::{Outside, Signal, Waitable},
};

/// What an application waits on.
pub struct Descriptor {
    outside: Outside,
    /// Readable where the application has to look, and would not be told.
    nudge: Signal,
    /// The application has the descriptor.
    is_told: AtomicBool,
    /// It asks before it waits.
    asks: AtomicBool,
    /// Tells a forked child that all of this is its parent's.
    generation: u32,
}

impl Descriptor {
    pub fn new() -> Result<Descriptor, Failure> {
        let (outside, nudge) = (Outside::new()?, Signal::new()?);
        outside.add(nudge.fd());
        Ok(Descriptor {
            outside,
            nudge,
            is_told: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            generation: fork_guard::generation(),
        })
    }

    /// FI_GETWAIT.
    ///
    /// # Safety
    /// As [`Outside::tell`].
    pub unsafe fn tell(&self, wait_obj: u32, argument: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the caller vouches for it.
        unsafe { self.outside.tell(wait_obj, argument) }?;
        if !self.is_told.swap(true, Ordering::Relaxed) && !self.asks.load(Ordering::Relaxed) {
            self.nudge.raise();
        }
        Ok(())
    }

    /// fi_trywait. False: the application must look before it waits.
    pub fn try_wait(&self, queue: &dyn Waitable) -> bool {
        self.asks.store(true, Ordering::Relaxed);
        self.nudge.lower();
        self.outside.begin([queue].into_iter())
    }

    /// The application looks. Cost: three loads.
    #[inline(always)]
    pub fn look(&self) {
        self.outside.end();
        if !fork_guard::forked(self.generation) {
            self.nudge.lower();
        }
    }

    /// Whether it waits without asking.
    #[inline(always)]
    pub fn is_waited_for_unasked(&self) -> bool {
        let unasked = self.is_told.load(Ordering::Relaxed) && !self.asks.load(Ordering::Relaxed);
        unasked && !fork_guard::forked(self.generation)
    }

    /// The application may wait now: behind a read that has found nothing, or may have left something.
    #[cold]
    pub fn make_ready(&self, is_empty: bool, queue: &dyn Waitable) {
        if !is_empty || !self.outside.begin([queue].into_iter()) {
            self.nudge.raise();
        }
    }
}
