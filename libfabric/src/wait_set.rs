//! Wait sets of version 1.17. Reference: fi_poll(3), `fi_wait_open`.

use std::{
    ffi::{c_int, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use kestrel_core::{bind_count::BindCount, engine::sleep::rest, error::Errno};

use crate::{
    abi::{
        attributes::WaitAttr,
        constants::{BADF, command, wait},
        control::{OpsFid, OpsWait},
        fid::{Fid, FidFabric, FidWait, class},
    },
    fabric,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    wait_kind::{WaitKind, no_descriptor},
    waiting::{self, Armed, Outside, Signal, Waitable},
};

/// What we keep of a wait set.
pub struct State {
    members: Arc<Members>,
    /// Raised when there is a member more, which those who wait do not listen to: for those outside.
    joined: Signal,
    /// The same for each that waits inside.
    waiting: Waiting,
    outside: Option<Outside>,
    wait_obj: u32,
    uses: Arc<BindCount>,
    _fabric: Use,
}

/// What was opened with a set, and is not closed.
type Members = Mutex<Vec<Arc<dyn Waitable>>>;

type Waiting = Mutex<Vec<Arc<Signal>>>;

/// One that waits inside, until this is dropped.
struct Waiter<'a> {
    waiting: &'a Waiting,
    joined: Arc<Signal>,
}

impl<'a> Waiter<'a> {
    fn of(waiting: &'a Waiting) -> Result<Waiter<'a>, Failure> {
        let joined = Arc::new(Signal::new()?);
        lock(waiting).push(joined.clone());
        Ok(Waiter { waiting, joined })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(self.waiting).retain(|signal| !Arc::ptr_eq(signal, &self.joined));
    }
}

/// An object's place in a set, which it leaves when this is dropped.
pub struct Membership {
    set: Arc<Members>,
    member: Arc<dyn Waitable>,
    _set: Use,
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.set).retain(|member| !Arc::ptr_eq(member, &self.member));
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidWait>, control, ..FID_NOSYS };
static OPERATIONS: OpsWait = OpsWait { size: size_of::<OpsWait>(), wait };
static CLOSED: OpsWait = OpsWait::refusing::<BADF>();

impl Header for FidWait {
    type State = State;
    const NAME: &'static str = "wait set";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const CLOSED;
    }
    fn close(state: &State) -> Result<(), Failure> {
        Ok(state.uses.close()?)
    }
}

/// Reference: fi_poll(3), `fi_wait_open`.
pub unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    attr: *mut WaitAttr,
    wait: *mut *mut FidWait,
) -> c_int {
    done("fi_wait_open", || {
        // SAFETY: C passes an open fabric and valid pointers or null.
        let (place, parent, attr) = unsafe {
            let parent: &fabric::State = object::owned(fabric)?;
            (object::out(wait)?, parent, attr.as_ref())
        };
        let (wait_obj, flags) = attr.map_or((wait::UNSPEC, 0), |attr| (attr.wait_obj, attr.flags));
        if flags != 0 {
            return Err(Failure::flags("fi_wait_open", flags));
        }
        let outside = match WaitKind::of(wait_obj)? {
            WaitKind::Inside => None,
            WaitKind::Descriptor => Some(Outside::new()?),
            WaitKind::None | WaitKind::Set => {
                let reason = format!("wait object {wait_obj} cannot carry a wait set");
                return Err(Failure::new(Errno::INVAL, reason));
            }
        };
        let joined = Signal::new()?;
        if let Some(outside) = &outside {
            outside.add(joined.fd());
        }
        let state = State {
            members: Arc::default(),
            joined,
            waiting: Waiting::default(),
            outside,
            wait_obj,
            uses: Arc::default(),
            _fabric: Use::of(&parent.uses)?,
        };
        let fid = object::fid::<FidWait>(class::WAIT, std::ptr::null_mut());
        *place = object::create(FidWait { fid, ops: &raw const OPERATIONS }, state);
        Ok(())
    })
}

/// Adds an object that is being opened with `FI_WAIT_SET`.
///
/// # Safety
/// As [`object::checked`].
pub unsafe fn join(set: *mut FidWait, member: Arc<dyn Waitable>) -> Result<Membership, Failure> {
    // SAFETY: the caller vouches for it.
    let state = unsafe { object::checked::<FidWait>(set.cast()) }?;
    let joined = Use::of(&state.uses)?;
    lock(&state.members).push(member.clone());
    state.joined.raise();
    lock(&state.waiting).iter().for_each(|waiter| waiter.raise());
    Ok(Membership { set: state.members.clone(), member, _set: joined })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these panics half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// All of them.
    fn members(&self) -> Vec<Arc<dyn Waitable>> {
        lock(&self.members).clone()
    }

    /// Makes ready for a wait outside: `fi_trywait` on a set.
    pub fn try_wait(&self) -> Result<bool, Failure> {
        let outside = self.outside.as_ref().ok_or_else(|| no_descriptor("wait set"))?;
        // Those who join from now on raise it again.
        let somebody_joined = self.joined.lower();
        let members = self.members();
        let is_armed = outside.begin(members.iter().map(|member| &**member));
        // Another one that waits on the descriptor hears whatever is armed, but else of nobody who has joined.
        if somebody_joined && !is_armed {
            self.joined.raise();
        }
        Ok(is_armed)
    }

    /// Waits for any member. False: the time is over.
    fn wait(&self, timeout_ms: c_int) -> Result<bool, Failure> {
        if let Some(outside) = &self.outside {
            outside.end();
        }
        let (start, timeout) = (Instant::now(), waiting::timeout(timeout_ms));
        let mut waiter: Option<Waiter> = None;
        loop {
            if let Some(waiter) = &waiter {
                // Those who join from now on raise it again.
                waiter.joined.lower();
            }
            let members = self.members();
            if members.iter().any(|member| member.is_ready()) {
                return Ok(true);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            let Some(waiter) = &waiter else {
                // Who has joined since is looked at once more.
                waiter = Some(Waiter::of(&self.waiting)?);
                continue;
            };
            let armed: Option<Vec<Box<dyn Armed>>> =
                members.iter().map(|member| member.arm()).collect();
            let Some(armed) = armed else {
                std::thread::yield_now();
                continue;
            };
            let mut descriptors: Vec<i32> =
                armed.iter().flat_map(|one| one.descriptors()).collect();
            descriptors.push(waiter.joined.fd());
            let looks_again = armed.iter().any(|one| one.looks_again());
            waiting::sleep(&descriptors, rest(left, looks_again));
        }
    }
}

unsafe extern "C" fn wait(wait: *mut FidWait, timeout_ms: c_int) -> c_int {
    done("fi_wait", || {
        // SAFETY: C passes an open wait set.
        match unsafe { object::owned(wait) }?.wait(timeout_ms)? {
            true => Ok(()),
            false => Err(Failure::new(Errno::TIMEDOUT, "nothing happened in time")),
        }
    })
}

unsafe extern "C" fn control(wait: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open wait set.
        let state = unsafe { object::owned(wait.cast::<FidWait>()) }?;
        match (command, &state.outside) {
            (command::GETWAIT, Some(outside)) if !argument.is_null() => {
                // SAFETY: the argument of this command is that of the wait object.
                unsafe { outside.tell(state.wait_obj, argument) }
            }
            (command::GETWAITOBJ, _) if !argument.is_null() => {
                // SAFETY: the argument of this command is an `enum fi_wait_obj *`.
                unsafe { argument.cast::<u32>().write(state.wait_obj) };
                Ok(())
            }
            (command::GETWAIT, Some(_)) | (command::GETWAITOBJ, _) => {
                Err(Failure::null("the argument"))
            }
            _ => Err(Failure::new(Errno::NOSYS, format!("command {command}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A member that nothing happens to, and that a sleeper has to look at again.
    #[derive(Default)]
    struct Impatient {
        looks: AtomicU32,
    }

    impl Waitable for Impatient {
        fn is_ready(&self) -> bool {
            self.looks.fetch_add(1, Ordering::Relaxed);
            false
        }
        fn drive(&self) {}
        fn arm(&self) -> Option<Box<dyn Armed>> {
            Some(Box::new(Nap))
        }
    }

    struct Nap;

    impl Armed for Nap {
        fn descriptors(&self) -> Vec<i32> {
            Vec::new()
        }
        fn looks_again(&self) -> bool {
            true
        }
    }

    #[test]
    fn who_has_to_look_again_naps() {
        let (member, uses) = (Arc::new(Impatient::default()), Arc::new(BindCount::default()));
        let set = State {
            members: Arc::new(Mutex::new(vec![member.clone()])),
            joined: Signal::new().unwrap_or_else(|_| panic!("a descriptor")),
            waiting: Waiting::default(),
            outside: None,
            wait_obj: wait::UNSPEC,
            uses: Arc::default(),
            _fabric: Use::of(&uses).unwrap_or_else(|_| panic!("it is open")),
        };
        assert!(set.wait(200).is_ok_and(|is_ready| !is_ready));
        let looks = member.looks.load(Ordering::Relaxed);
        // At the start, when it had a signal of its own, and after each nap of a millisecond.
        assert!((3..=203).contains(&looks), "{looks}");
    }
}
