//! Waiting for several things at once, inside a call or outside on one descriptor.
//! Reference: fi_poll(3).
//!
//! What is waited for is a [`Waitable`]. Before a wait each is armed: it says what it
//! will make readable, or that there is something already.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kestrel_core::{error::Errno, fork_guard};

use crate::{abi::constants::wait, outcome::Failure};

/// How an application waits for an object. Reference: `enum fi_wait_obj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// It does not: it polls.
    None,
    /// Inside our calls.
    Inside,
    /// Through a wait set.
    Set,
    /// On a descriptor.
    Descriptor,
}

impl WaitKind {
    pub fn of(wait_obj: u32) -> Result<WaitKind, Failure> {
        match wait_obj {
            wait::NONE => Ok(WaitKind::None),
            wait::UNSPEC | wait::YIELD => Ok(WaitKind::Inside),
            wait::SET => Ok(WaitKind::Set),
            wait::FD => Ok(WaitKind::Descriptor),
            other => {
                let reason = format!("wait object {other} is neither UNSPEC, SET, FD nor YIELD");
                Err(Failure::new(Errno::NOSYS, reason))
            }
        }
    }

    /// "It is invalid for applications to call this function if the EQ has been configured with a wait
    /// object of FI_WAIT_NONE or FI_WAIT_SET" (fi_eq(3); fi_cq(3) and fi_cntr(3) say the same).
    pub fn check_blocking(self) -> Result<(), Failure> {
        let reason = match self {
            WaitKind::Inside | WaitKind::Descriptor => return Ok(()),
            WaitKind::None => "it was opened with FI_WAIT_NONE and cannot be waited for",
            WaitKind::Set => "it was opened with FI_WAIT_SET: its wait set is waited for",
        };
        Err(Failure::new(Errno::INVAL, reason))
    }
}

/// A time-out as C gives it: negative is for ever. Units: milliseconds.
pub fn timeout(timeout_ms: i32) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// A sleeper looks again this often while something waits for what rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How long to sleep of what is left.
pub fn rest(left: Option<Duration>, looks_again: bool) -> Option<Duration> {
    match looks_again {
        true => Some(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))),
        false => left,
    }
}

/// What an armed object makes readable when something happens.
pub trait Armed: Send {
    fn descriptors(&self) -> Vec<RawFd>;
    /// Whether a sleeper must look again by itself, soon.
    fn looks_again(&self) -> bool;
}

/// Something that happens now and then.
pub trait Waitable: Send + Sync {
    /// Drives progress, and answers whether there is something to see.
    fn is_ready(&self) -> bool;
    /// Drives progress alone.
    fn drive(&self);
    /// None: something may be there, look again before waiting.
    fn arm(&self) -> Option<Box<dyn Armed>>;
}

/// Waits on descriptors. Answers whether one became readable in time.
pub fn sleep(descriptors: &[RawFd], left: Option<Duration>) -> bool {
    let entry = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = descriptors.iter().map(entry).collect();
    // Rounded up, so that a short rest is slept and not spun.
    let milliseconds =
        left.map_or(-1, |left| left.as_nanos().div_ceil(1_000_000).min(1 << 30) as i32);
    // SAFETY: the array is as long as its count says. EINTR counts as "look again".
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) != 0 }
}

/// One descriptor that stands for many: what FI_GETWAIT gives an application that waits
/// outside. Between a successful `fi_trywait` and its thread's next look everything is armed.
pub struct Outside {
    epoll: OwnedFd,
    armed: Mutex<Watch>,
    is_armed: AtomicBool,
    /// Tells a forked child that the waits are its parent's.
    generation: u32,
}

/// What is armed, by the thread that may be asleep on the descriptor. Each has its own, though they share
/// the descriptor: what one thread has seen and disarms may be news to another.
#[derive(Default)]
struct Watch(Vec<(usize, Vec<Box<dyn Armed>>)>);

impl Watch {
    /// The calling thread is awake: what was armed for it. Nothing rings any more once all are.
    fn leave(&mut self, thread: usize) -> Option<Vec<Box<dyn Armed>>> {
        let place = self.0.iter().position(|(other, _)| *other == thread)?;
        Some(self.0.swap_remove(place).1)
    }
}

/// What tells the calling thread from others. A thread that begins later may have that of one that is
/// over, and so takes its place.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Outside {
    pub fn new() -> Result<Outside, Failure> {
        // SAFETY: takes a flag only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Failure::new(Errno::MFILE, "no descriptor is left to wait on"));
        }
        // SAFETY: a new descriptor, ours alone.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let (armed, is_armed) = Default::default();
        Ok(Outside { epoll, armed, is_armed, generation: fork_guard::generation() })
    }

    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Arms everything. False: the application must look before it waits.
    pub fn begin<'a>(&self, all: impl Iterator<Item = &'a dyn Waitable>) -> bool {
        let (thread, mut watch) = (this_thread(), self.watch());
        let earlier = watch.leave(thread);
        let armed: Option<Vec<_>> = all.map(|waitable| self.arm(waitable)).collect();
        let answer = armed.is_some();
        watch.0.extend(armed.map(|armed| (thread, armed)));
        // Not before all of it is armed anew.
        drop(earlier);
        self.is_armed.store(!watch.0.is_empty(), Ordering::Relaxed);
        answer
    }

    /// None: there is something to see, or would be, if somebody looked again.
    fn arm(&self, waitable: &dyn Waitable) -> Option<Box<dyn Armed>> {
        let armed = if waitable.is_ready() { None } else { waitable.arm() }?;
        if armed.looks_again() {
            return None;
        }
        armed.descriptors().into_iter().for_each(|fd| self.add(fd));
        Some(armed)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        // Nothing that is done under it panics half-way.
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a descriptor that may be there already; closing it takes it off.
    pub fn add(&self, fd: RawFd) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event is valid; a descriptor that is there already is refused.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    /// The application looks: nobody need ring for this thread any more. Cost: one load, where none
    /// waits.
    #[inline(always)]
    pub fn end(&self) {
        if self.is_armed.load(Ordering::Relaxed) {
            self.disarm();
        }
    }

    #[cold]
    fn disarm(&self) {
        // Another thread of the parent may have had the lock, and always has it here.
        if fork_guard::forked(self.generation) {
            return;
        }
        let mut watch = self.watch();
        drop(watch.leave(this_thread()));
        self.is_armed.store(!watch.0.is_empty(), Ordering::Relaxed);
    }
}

impl Drop for Outside {
    /// In a forked child the bells are the parent's, who has yet to hear them.
    fn drop(&mut self) {
        if fork_guard::forked(self.generation) {
            let watch = self.armed.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(watch));
        }
    }
}

/// A descriptor that is readable as long as we say so.
pub struct Signal {
    event: OwnedFd,
    /// Whether it may be readable, or is about to be.
    is_raised: AtomicBool,
}

impl Signal {
    pub fn new() -> Result<Signal, Failure> {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Failure::new(Errno::MFILE, "no descriptor is left to wait on"));
        }
        // SAFETY: a new descriptor, ours alone.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signal { event, is_raised: AtomicBool::new(false) })
    }

    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Makes it readable.
    pub fn raise(&self) {
        // SAFETY: an eventfd takes 8 bytes; a full counter is readable all the same.
        unsafe { libc::write(self.fd(), (&raw const ONE).cast(), size_of::<u64>()) };
        // Afterwards: it is never readable for good while this says that it is not.
        self.is_raised.store(true, Ordering::Release); // S1: pairs with S2
    }

    /// Makes it silent. Who does so while others raise it looks afterwards whether it was for
    /// something. Cost: a load, where it is silent.
    pub fn lower(&self) {
        // S2: pairs with S1.
        if !self.is_raised.load(Ordering::Relaxed) || !self.is_raised.swap(false, Ordering::Acquire)
        {
            return;
        }
        let mut count = 0_u64;
        // SAFETY: an eventfd gives 8 bytes, or nothing if it is silent.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

static ONE: u64 = 1;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use kestrel_tests::fork;

    use super::*;

    static ENDED: AtomicI32 = AtomicI32::new(0);

    /// Something that nothing happens to; a wait for it.
    struct Quiet;

    impl Waitable for Quiet {
        fn is_ready(&self) -> bool {
            false
        }
        fn drive(&self) {}
        fn arm(&self) -> Option<Box<dyn Armed>> {
            Some(Box::new(Quiet))
        }
    }

    impl Armed for Quiet {
        fn descriptors(&self) -> Vec<RawFd> {
            Vec::new()
        }
        fn looks_again(&self) -> bool {
            false
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            ENDED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The test hangs otherwise.
    #[test]
    fn a_forked_child_ends_no_wait_of_its_parents() {
        let outside = Outside::new().unwrap_or_else(|_| panic!("a descriptor"));
        assert!(outside.begin([&*Box::leak(Box::new(Quiet)) as &dyn Waitable].into_iter()));
        // As another thread may have it.
        let held = outside.watch();
        let child = fork::fork(|| {
            outside.end();
            ENDED.load(Ordering::Relaxed)
        });
        assert_eq!(fork::wait(child), 0);
        drop(held);
        let child = fork::fork(move || {
            drop(outside);
            ENDED.load(Ordering::Relaxed)
        });
        assert_eq!(fork::wait(child), 0);
        assert_eq!(ENDED.load(Ordering::Relaxed), 1, "in the parent it went");
    }
}
