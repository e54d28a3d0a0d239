//! Waiting for several things at once, inside a call or outside on one descriptor.
//! Reference: fi_poll(3).
//!
//! What is waited for is a [`Waitable`]. Before a wait each is armed: it says what it
//! will make readable, or that there is something already.

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kestrel_core::{
    error::Errno,
    fork_guard,
    transport::{Bell, EventBell},
};

use crate::{
    abi::{
        attributes::{PollFd, WaitPollFd},
        constants::wait,
    },
    outcome::Failure,
};

/// A time-out as C gives it: negative is for ever. Units: milliseconds.
pub fn timeout(timeout_ms: i32) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
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

impl<W: Waitable + ?Sized> Waitable for &W {
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }
    fn drive(&self) {
        (**self).drive();
    }
    fn arm(&self) -> Option<Box<dyn Armed>> {
        (**self).arm()
    }
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
    watch: Mutex<Watch>,
    is_armed: AtomicBool,
    /// Tells a forked child that the waits are its parent's.
    generation: u32,
}

/// What is armed, by the thread that may be asleep on the descriptor. Each has its own, though they share
/// the descriptor: what one thread has seen and disarms may be news to another.
struct Watch {
    waits: Vec<(Thread, Vec<Box<dyn Armed>>)>,
    /// What all of them wait for.
    bells: Bells,
}

impl Watch {
    /// The calling thread is awake: what was armed for it. Nothing rings any more once all are. Threads
    /// that are over wake no more, and peers would ring for them for ever.
    fn leave(&mut self, thread: &Thread) -> Option<Vec<Box<dyn Armed>>> {
        let place = self.waits.iter().position(|(other, _)| other.ptr_eq(thread));
        let earlier = place.map(|place| self.waits.swap_remove(place).1);
        self.waits.retain(|(other, _)| other.strong_count() > 0);
        earlier
    }
}

/// What tells one who waits from others, a thread mostly, and whether it is over.
pub type Thread = Weak<()>;

/// The calling thread; nobody, if it is just ending.
pub fn this_thread() -> Thread {
    thread_local!(static HERE: Arc<()> = Arc::default());
    HERE.try_with(Arc::downgrade).unwrap_or_default()
}

/// The descriptors of what is armed, in an epoll set of their own.
///
/// One that is closed stays in the set, and may be readable there for ever, as long as anybody has the
/// file that it stood for: every peer has that of a bell, and so does a forked child. Without a
/// descriptor it cannot be taken off any more, but the set can.
struct Bells {
    set: OwnedFd,
    members: Vec<RawFd>,
}

impl Bells {
    /// Of nothing, in the set of an [`Outside`].
    fn within(epoll: &OwnedFd) -> Result<Bells, Failure> {
        let set = new_set()?;
        match add(epoll, set.as_raw_fd()) {
            Added::Refused => Err(Failure::new(Errno::NOSPC, "the kernel watches no more")),
            Added::New | Added::There => Ok(Bells { set, members: Vec::new() }),
        }
    }

    /// Has the set hold `all`, and nothing that was closed. False: the kernel does not watch all of
    /// them, since sets are too deep in each other, or too many.
    fn hold(&mut self, mut all: Vec<RawFd>, epoll: &OwnedFd) -> bool {
        all.sort_unstable();
        all.dedup();
        let mut is_stale = self.members.iter().any(|member| all.binary_search(member).is_err());
        let mut is_whole = true;
        for fd in &all {
            let added = add(&self.set, *fd);
            // One that is new, though it was there, has the number of one that was closed.
            is_stale |= added == Added::New && self.members.binary_search(fd).is_ok();
            is_whole &= added != Added::Refused;
        }
        if is_stale {
            // Without a descriptor for another set this one has to do.
            let Ok(fresh) = Bells::within(epoll) else { return is_whole };
            is_whole = all.iter().all(|&fd| add(&fresh.set, fd) != Added::Refused);
            let old = std::mem::replace(&mut self.set, fresh.set);
            let (set, fd) = (epoll.as_raw_fd(), old.as_raw_fd());
            // SAFETY: both are open; a forked child may have the old one as well.
            unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        }
        self.members = all;
        is_whole
    }
}

fn new_set() -> Result<OwnedFd, Failure> {
    // SAFETY: takes a flag only.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(Failure::new(Errno::MFILE, "no descriptor is left to wait on"));
    }
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What became of a descriptor that is to be in a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    New,
    There,
    Refused,
}

fn add(set: &OwnedFd, fd: RawFd) -> Added {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    // SAFETY: the event is valid; a descriptor that is there already is refused.
    match unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
        0 => Added::New,
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST) => Added::There,
        _ => Added::Refused,
    }
}

impl Outside {
    pub fn new() -> Result<Outside, Failure> {
        let epoll = new_set()?;
        let watch = Watch { waits: Vec::new(), bells: Bells::within(&epoll)? };
        let (watch, is_armed) = (Mutex::new(watch), AtomicBool::new(false));
        Ok(Outside { epoll, watch, is_armed, generation: fork_guard::generation() })
    }

    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Whether it is the parent's, of a forked child.
    #[inline(always)]
    pub fn is_parents(&self) -> bool {
        fork_guard::forked(self.generation)
    }

    /// What FI_GETWAIT gives. A list has one entry, and never changes.
    ///
    /// # Safety
    /// `argument` is what the command takes for that wait object: an `int *`, or a `struct fi_wait_pollfd *` whose
    /// array has as many entries as it says.
    pub unsafe fn tell(&self, wait_obj: u32, argument: *mut c_void) -> Result<(), Failure> {
        if wait_obj != wait::POLLFD {
            // SAFETY: the caller vouches for it.
            unsafe { argument.cast::<c_int>().write(self.fd()) };
            return Ok(());
        }
        // SAFETY: as above.
        let list = unsafe { &mut *argument.cast::<WaitPollFd>() };
        // Not 0: with that an application has nothing yet, and looks whether it differs.
        list.change_index = 1;
        let room = std::mem::replace(&mut list.nfds, 1);
        if room == 0 {
            return Err(Failure::new(Errno::TOOSMALL, "there is one descriptor"));
        }
        if list.fd.is_null() {
            return Err(Failure::null("the list of descriptors"));
        }
        // SAFETY: as above.
        unsafe { list.fd.write(PollFd { fd: self.fd(), events: libc::POLLIN, revents: 0 }) };
        Ok(())
    }

    /// Arms everything for the calling thread. False: the application must look before it waits.
    pub fn begin<'a>(&self, all: impl Iterator<Item = &'a dyn Waitable>) -> bool {
        self.begin_for(&this_thread(), all)
    }

    /// The same for somebody who need not be a thread.
    pub fn begin_for<'a>(&self, who: &Thread, all: impl Iterator<Item = &'a dyn Waitable>) -> bool {
        // The set of a forked child is its parent's, too, and so is what was armed.
        if self.is_parents() {
            return false;
        }
        let mut watch = self.watch();
        let earlier = watch.leave(who);
        let armed: Option<Vec<_>> = all.map(arm).collect();
        let mut answer = false;
        if let Some(armed) = armed {
            watch.waits.push((who.clone(), armed));
            let Watch { waits, bells } = &mut *watch;
            let armed = waits.iter().flat_map(|(_, armed)| armed);
            answer = bells.hold(armed.flat_map(|one| one.descriptors()).collect(), &self.epoll);
        }
        if !answer {
            watch.leave(who);
        }
        // Not before all of it is armed anew.
        drop(earlier);
        self.is_armed.store(!watch.waits.is_empty(), Ordering::Relaxed);
        answer
    }

    /// Whether everything is armed for it.
    pub fn waits_for(&self, who: &Thread) -> bool {
        self.watch().waits.iter().any(|(other, _)| other.ptr_eq(who))
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        // Nothing that is done under it panics half-way.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a descriptor that is open as long as this.
    pub fn add(&self, fd: RawFd) {
        add(&self.epoll, fd);
    }

    /// The application looks: nobody need ring for this thread any more. Cost: one load, where none
    /// waits.
    #[inline(always)]
    pub fn end(&self) {
        if self.is_armed.load(Ordering::Relaxed) {
            self.end_for(&this_thread());
        }
    }

    /// The same for somebody who need not be a thread.
    #[cold]
    pub fn end_for(&self, who: &Thread) {
        // Another thread of the parent may have had the lock, and always has it here.
        if self.is_parents() {
            return;
        }
        let mut watch = self.watch();
        drop(watch.leave(who));
        self.is_armed.store(!watch.waits.is_empty(), Ordering::Relaxed);
    }
}

/// None: there is something to see, or would be, if somebody looked again.
fn arm(waitable: &dyn Waitable) -> Option<Box<dyn Armed>> {
    let armed = if waitable.is_ready() { None } else { waitable.arm() };
    armed.filter(|armed| !armed.looks_again())
}

impl Drop for Outside {
    /// In a forked child the bells are the parent's, who has yet to hear them.
    fn drop(&mut self) {
        if self.is_parents() {
            let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(&mut watch.waits));
        }
    }
}

/// A descriptor that is readable as long as we say so.
pub struct Signal {
    event: EventBell,
    /// Whether it may be readable, or is about to be.
    is_raised: AtomicBool,
}

impl Signal {
    pub fn new() -> Result<Signal, Failure> {
        let event = EventBell::new()
            .map_err(|_| Failure::new(Errno::MFILE, "no descriptor is left to wait on"))?;
        Ok(Signal { event, is_raised: AtomicBool::new(false) })
    }

    pub fn fd(&self) -> RawFd {
        self.event.fd()
    }

    /// Makes it readable.
    pub fn raise(&self) {
        self.event.ring();
        // Afterwards: it is never readable for good while this says that it is not.
        self.is_raised.store(true, Ordering::Release); // S1: pairs with S2
    }

    /// Makes it silent. Who does so while others raise it looks afterwards whether it was for
    /// something. Returns whether it was readable. Cost: a load, where it is silent.
    pub fn lower(&self) -> bool {
        // S2: pairs with S1.
        if !self.is_raised.load(Ordering::Relaxed) || !self.is_raised.swap(false, Ordering::Acquire)
        {
            return false;
        }
        self.event.drain();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use kestrel_tests::fork;

    use super::*;

    static ENDED: AtomicI32 = AtomicI32::new(0);

    /// Something that nothing happens to, with a descriptor of its own.
    struct Deep(RawFd);

    impl Waitable for Deep {
        fn is_ready(&self) -> bool {
            false
        }
        fn drive(&self) {}
        fn arm(&self) -> Option<Box<dyn Armed>> {
            Some(Box::new(Deep(self.0)))
        }
    }

    impl Armed for Deep {
        fn descriptors(&self) -> Vec<RawFd> {
            vec![self.0]
        }
        fn looks_again(&self) -> bool {
            false
        }
    }

    /// Sets within each other; the last holds all others.
    fn nested(count: usize) -> Vec<OwnedFd> {
        let new = |_| new_set().unwrap_or_else(|_| panic!("a descriptor"));
        let sets: Vec<OwnedFd> = (0..count).map(new).collect();
        for pair in sets.windows(2) {
            assert!(add(&pair[1], pair[0].as_raw_fd()) == Added::New);
        }
        sets
    }

    /// The kernel lets five sets lie within each other: of more none would wake the application.
    #[test]
    fn who_would_not_be_woken_does_not_wait() {
        for (depth, waits) in [(2, true), (3, false)] {
            let outside = Outside::new().unwrap_or_else(|_| panic!("a descriptor"));
            let application = nested(1).remove(0);
            assert!(add(&application, outside.fd()) == Added::New);
            let bells = nested(depth);
            let bell = Deep(bells[depth - 1].as_raw_fd());
            for _ in 0..2 {
                assert_eq!(outside.begin([&bell as &dyn Waitable].into_iter()), waits, "{depth}");
            }
            assert_eq!(outside.watch().waits.len(), usize::from(waits));
        }
    }

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
