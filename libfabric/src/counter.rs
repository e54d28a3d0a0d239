//! Counters. Reference: fi_cntr(3).

use std::{
    ffi::{c_int, c_void},
    sync::{Arc, Mutex, PoisonError},
};

use kestrel::Counter;
use kestrel::Provider;
use kestrel_core::{
    completion_counter::{CompletionCounter, CounterWait, WaitError},
    error::Errno,
};

use crate::{
    abi::{
        attributes::CntrAttr,
        constants::{BADF, NOSYS, command, wait},
        control::{OpsCntr, OpsFid},
        fid::{Fid, FidCntr, FidDomain, class},
    },
    descriptor::Descriptor,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    wait_kind::{WaitKind, no_descriptor},
    wait_set::{self, Membership},
    waiting::{self, Armed, Thread, Waitable, this_thread},
};

/// What we keep of a counter.
pub struct State {
    pub counter: Arc<Counter>,
    /// What the application waits on outside, if it asked for that, and what it has seen.
    outside: Option<(Descriptor, Watched)>,
    kind: WaitKind,
    wait_obj: u32,
    _set: Option<Membership>,
    _domain: Use,
}

impl State {
    fn look(&self) {
        if let Some((descriptor, _)) = &self.outside {
            descriptor.look();
        }
    }

    /// The application has looked, and may wait outside now.
    fn has_seen(&self, what: impl FnOnce(&mut Seen)) {
        if let Some((descriptor, watched)) = &self.outside {
            watched.seen(what);
            descriptor.has_looked(|| true, || watched);
        }
    }
}

/// What was seen of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    value: u64,
    errors: u64,
    /// How often it had been set.
    sets: u64,
}

/// Whose look at a counter it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    /// Each thread's own: a change that one thread has seen is news to another, which would sleep over it.
    Each,
    /// Anybody's: "updated since the last call" of `fi_poll`, whoever called it.
    All,
}

/// A counter among other things that are waited for: ready when it has changed.
struct Watched {
    counter: Arc<Counter>,
    looks: Looks,
    seen: Mutex<Vec<(Thread, Seen)>>,
}

impl Watched {
    fn new(counter: &Arc<Counter>, looks: Looks) -> Watched {
        Watched { counter: counter.clone(), looks, seen: Mutex::default() }
    }

    /// What the calling thread has seen, which `look` may change. Who is new has seen nothing.
    fn seen<R>(&self, look: impl FnOnce(&mut Seen) -> R) -> R {
        let thread = match self.looks {
            Looks::Each => this_thread(),
            Looks::All => Thread::new(),
        };
        // Nothing that is done under it panics half-way.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let place = seen.iter().position(|(other, _)| other.ptr_eq(&thread));
        let place = place.unwrap_or_else(|| {
            // Threads that are over look no more.
            seen.retain(|(other, _)| other.strong_count() > 0);
            seen.push((thread, Seen::default()));
            seen.len() - 1
        });
        look(&mut seen[place].1)
    }
}

impl Waitable for Watched {
    fn is_ready(&self) -> bool {
        let (value, cell) = (self.counter.read(), self.counter.counter());
        let now = Seen { value, errors: cell.read_error(), sets: cell.sets() };
        self.seen(|seen| std::mem::replace(seen, now) != now)
    }

    fn drive(&self) {
        self.counter.read();
    }

    fn arm(&self) -> Option<Box<dyn Armed>> {
        let Seen { value, errors, sets } = self.seen(|seen| *seen);
        let wait = self.counter.prepare_nap((value, errors))?;
        let was_set = sets != self.counter.counter().sets();
        if was_set { None } else { Some(Box::new(Waiting(wait))) }
    }
}

struct Waiting(CounterWait<Provider>);

impl Armed for Waiting {
    fn descriptors(&self) -> Vec<i32> {
        self.0.descriptors()
    }

    fn looks_again(&self) -> bool {
        self.0.looks_again()
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidCntr>, control, ..FID_NOSYS };
static OPERATIONS: OpsCntr =
    OpsCntr { read, readerr, add, set, wait, adderr, seterr, ..OpsCntr::refusing::<NOSYS>() };
static CLOSED: OpsCntr = OpsCntr::refusing::<BADF>();

impl Header for FidCntr {
    type State = State;
    const NAME: &'static str = "counter";

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
        Ok(state.counter.close()?)
    }
}

/// What is polled in a poll set.
pub fn pollable(state: &State) -> Arc<dyn Waitable> {
    Arc::new(Watched::new(&state.counter, Looks::All))
}

/// Makes ready for a wait outside: `fi_trywait` on a counter. Not before the application
/// has seen the last change: by reading it, or by an earlier call of this.
pub fn try_wait(state: &State) -> Result<bool, Failure> {
    let Some((descriptor, watched)) = &state.outside else {
        return Err(no_descriptor("counter"));
    };
    Ok(descriptor.try_wait(watched))
}

/// Reference: fi_cntr(3), `fi_cntr_open`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    cntr: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    done("fi_cntr_open", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        let (place, parent, attr) =
            unsafe { (object::out(cntr)?, object::owned(domain)?, attr.as_ref()) };
        let wait_obj = attr.map_or(wait::UNSPEC, |attr| attr.wait_obj);
        let kind = WaitKind::of(wait_obj)?;
        if let Some(attr) = attr {
            if attr.flags != 0 {
                return Err(Failure::flags("fi_cntr_open", attr.flags));
            }
            if attr.events != 0 {
                let reason = format!("events {} of a counter are not known", attr.events);
                return Err(Failure::new(Errno::INVAL, reason));
            }
        }
        let counter = CompletionCounter::open(&parent.domain);
        let outside = match kind {
            WaitKind::Descriptor => {
                let descriptor = Descriptor::new(parent.domain.sharing())?;
                Some((descriptor, Watched::new(&counter, Looks::Each)))
            }
            _ => None,
        };
        let in_use = Use::of(&parent.uses)?;
        let mut state = State { counter, outside, kind, wait_obj, _set: None, _domain: in_use };
        if let (Some(attr), WaitKind::Set) = (attr, kind) {
            let member = Arc::new(Watched::new(&state.counter, Looks::Each));
            // SAFETY: C passes an open wait set or null.
            state._set = Some(unsafe { wait_set::join(attr.wait_set, member) }?);
        }
        let fid = object::fid::<FidCntr>(class::CNTR, context);
        *place = object::create(FidCntr { fid, ops: &raw const OPERATIONS }, state);
        Ok(())
    })
}

unsafe extern "C" fn control(cntr: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open counter.
        let state = unsafe { object::owned(cntr.cast::<FidCntr>()) }?;
        if argument.is_null() {
            return Err(Failure::null("the argument"));
        }
        match command {
            // "Returns the current default operational flags associated with the counter", and
            // "Modifies" them: no flag is defined for what counters do.
            command::GETOPSFLAG => {
                // SAFETY: the argument of these commands is a `uint64_t *`.
                unsafe { argument.cast::<u64>().write(0) };
            }
            command::SETOPSFLAG => {
                // SAFETY: as above.
                let flags = unsafe { argument.cast::<u64>().read() };
                if flags != 0 {
                    return Err(Failure::flags("FI_SETOPSFLAG of a counter", flags));
                }
            }
            _ => {
                let descriptor = state.outside.as_ref().map(|(descriptor, _)| descriptor);
                // SAFETY: C passes what the command takes.
                unsafe { Descriptor::control(descriptor, state.wait_obj, command, argument) }?;
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn read(cntr: *mut FidCntr) -> u64 {
    // SAFETY: C passes an open counter, here and below.
    let state = unsafe { object::state(cntr) };
    state.look();
    let value = state.counter.read();
    state.has_seen(|seen| seen.value = value);
    value
}

unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: as above.
    let state = unsafe { object::state(cntr) };
    state.look();
    // Who reads nothing else drives progress, too.
    state.counter.read();
    let errors = state.counter.counter().read_error();
    state.has_seen(|seen| seen.errors = errors);
    errors
}

unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    done("fi_cntr_add", || {
        // SAFETY: as above.
        unsafe { object::owned(cntr) }?.counter.counter().add(value);
        Ok(())
    })
}

unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    done("fi_cntr_set", || {
        // SAFETY: as above.
        unsafe { object::owned(cntr) }?.counter.counter().set(value);
        Ok(())
    })
}

unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    done("fi_cntr_adderr", || {
        // SAFETY: as above.
        unsafe { object::owned(cntr) }?.counter.counter().add_error(value);
        Ok(())
    })
}

unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    done("fi_cntr_seterr", || {
        // SAFETY: as above.
        unsafe { object::owned(cntr) }?.counter.counter().set_error(value);
        Ok(())
    })
}

unsafe extern "C" fn wait(cntr: *mut FidCntr, threshold: u64, timeout_ms: c_int) -> c_int {
    guarded("fi_cntr_wait", || {
        // SAFETY: as above.
        let state = unsafe { object::owned(cntr) }?;
        state.kind.check_waiting()?;
        state.look();
        let outcome = state.counter.wait(threshold, waiting::timeout(timeout_ms));
        state.has_seen(|_| {});
        match outcome {
            Ok(()) => Ok(0),
            Err(WaitError::TimedOut { .. }) => Ok(-Errno::TIMEDOUT.0),
            Err(error) => Err(error.into()),
        }
    })
}
