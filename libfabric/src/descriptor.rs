//! The descriptor of a queue or counter (FI_WAIT_FD). Reference: fi_poll(3), `fi_trywait`.
//!
//! "Applications must call fi_trywait prior to blocking", or else it "may result in the wait object not being
//! signaled". Programs that never do, or not before the first time, are served all the same, as other providers do: the
//! descriptor can be read from the moment on at which it is told until somebody looks. And as long as nobody has called
//! fi_trywait, a read that finds nothing makes ready for a wait, and behind any other it can be read. Not in a domain
//! for one thread (FI_THREAD_DOMAIN): there completion queues and counters tell nobody of what their own thread completes.

use std::{
    ffi::{c_int, c_void},
    os::fd::RawFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kestrel_core::{domain::Sharing, error::Errno};

use crate::{
    abi::constants::command,
    outcome::Failure,
    waiting::{Outside, Signal, Waitable, sleep},
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
    /// Who waits unasked, whichever thread that is.
    unasked: Arc<()>,
}

impl Descriptor {
    pub fn new(sharing: Sharing) -> Result<Descriptor, Failure> {
        let (outside, nudge) = (Outside::new()?, Signal::new()?);
        outside.add(nudge.fd());
        Ok(Descriptor {
            outside,
            nudge,
            is_told: AtomicBool::new(false),
            asks: AtomicBool::new(sharing == Sharing::Exclusive),
            unasked: Arc::default(),
        })
    }

    /// Makes it readable also when that one is, which is open as long as this.
    pub fn add(&self, fd: RawFd) {
        self.outside.add(fd);
    }

    /// FI_GETWAIT.
    ///
    /// # Safety
    /// As [`Outside::tell`].
    unsafe fn tell(&self, wait_obj: u32, argument: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the caller vouches for it.
        unsafe { self.outside.tell(wait_obj, argument) }?;
        if !self.is_told.swap(true, Ordering::Relaxed) && !self.asks.load(Ordering::Relaxed) {
            self.nudge.raise();
        }
        Ok(())
    }

    /// `fi_control` of what is waited for so, or of what has no descriptor.
    ///
    /// # Safety
    /// `argument` is null, or what the command takes.
    pub unsafe fn control(
        this: Option<&Descriptor>,
        wait_obj: u32,
        command: c_int,
        argument: *mut c_void,
    ) -> Result<(), Failure> {
        if argument.is_null() {
            return Err(Failure::null("the argument"));
        }
        match (command, this) {
            // SAFETY: the argument of this command is that of the wait object.
            (command::GETWAIT, Some(descriptor)) => unsafe { descriptor.tell(wait_obj, argument) },
            (command::GETWAITOBJ, _) => {
                // SAFETY: the argument of this command is an `enum fi_wait_obj *`.
                unsafe { argument.cast::<u32>().write(wait_obj) };
                Ok(())
            }
            _ => Err(Failure::new(Errno::NOSYS, format!("command {command}"))),
        }
    }

    /// fi_trywait. False: the application must look before it waits.
    pub fn try_wait(&self, queue: &dyn Waitable) -> bool {
        if !self.asks.swap(true, Ordering::SeqCst) {
            self.outside.end_for(&self.unasked());
        }
        self.nudge.lower();
        self.outside.begin([queue].into_iter())
    }

    /// The application looks. Cost: three loads, and a lock while somebody waits.
    #[inline(always)]
    pub fn look(&self) {
        self.outside.end();
        if !self.outside.is_parents() {
            self.nudge.lower();
        }
    }

    /// The application has looked, and may wait now. Cost: two loads, for who asks; for others a lock and a system call
    /// where there was nothing, and several behind something.
    #[inline(always)]
    pub fn has_looked<W: Waitable>(
        &self,
        is_empty: impl FnOnce() -> bool,
        queue: impl FnOnce() -> W,
    ) {
        if self.is_told.load(Ordering::Relaxed) && !self.asks.load(Ordering::Relaxed) {
            self.make_ready(is_empty(), queue);
        }
    }

    #[cold]
    fn make_ready<W: Waitable>(&self, is_empty: bool, queue: impl FnOnce() -> W) {
        if self.outside.is_parents() {
            return;
        }
        let who = self.unasked();
        if !is_empty {
            self.outside.end_for(&who);
            return self.nudge.raise();
        }
        // What is armed stays so until something rings, which reads that find nothing do not end.
        if self.outside.waits_for(&who) && !self.rings() {
            return;
        }
        let queue = queue();
        if !self.outside.begin_for(&who, [&queue as &dyn Waitable].into_iter()) {
            self.nudge.raise();
        }
        // Another thread has begun to ask meanwhile.
        if self.asks.load(Ordering::SeqCst) {
            self.outside.end_for(&who);
        }
    }

    fn rings(&self) -> bool {
        sleep(&[self.outside.fd()], Some(Duration::ZERO))
    }

    fn unasked(&self) -> Weak<()> {
        Arc::downgrade(&self.unasked)
    }
}
