//! Poll sets: which of several queues and counters has something. Reference: fi_poll(3).

use std::{
    ffi::{c_int, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kestrel::{CompletionQueue, Counter};
use kestrel_core::{bind_count::BindCount, error::Errno};

use crate::{
    abi::{
        constants::BADF,
        control::{OpsFid, OpsPoll},
        fid::{Fid, FidCntr, FidCq, FidDomain, FidPoll, class},
    },
    completion_queue, counter,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    waiting::Waitable,
};

/// What we keep of a poll set.
pub struct State {
    members: Mutex<Vec<Member>>,
    uses: Arc<BindCount>,
    _domain: Use,
}

struct Member {
    /// The object, to find it again. It is not looked into.
    fid: usize,
    /// What the application gave the object when it opened it.
    context: usize,
    waitable: Arc<dyn Waitable>,
    bound: Bound,
}

/// The queue or counter, which cannot be closed while it is in the set.
enum Bound {
    Queue(Arc<CompletionQueue>),
    Counter(Arc<Counter>),
}

impl Bound {
    fn count(&self) -> &BindCount {
        match self {
            Bound::Queue(queue) => queue.binds(),
            Bound::Counter(counter) => counter.counter().binds(),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Counted when it was added, so this cannot fail.
        let _ = self.bound.count().unbind();
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidPoll>, ..FID_NOSYS };
static OPERATIONS: OpsPoll =
    OpsPoll { size: size_of::<OpsPoll>(), poll, poll_add: add, poll_del: remove };
static CLOSED: OpsPoll = OpsPoll::refusing::<BADF>();

impl Header for FidPoll {
    type State = State;
    const NAME: &'static str = "poll set";

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

impl State {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        // Nothing that is done under it panics half-way.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reference: fi_poll(3), `fi_poll_open`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut c_void,
    poll: *mut *mut FidPoll,
) -> c_int {
    done("fi_poll_open", || {
        // SAFETY: C passes an open domain and valid pointers or null; the attributes are
        // `struct fi_poll_attr`, which is one word of flags.
        let (place, parent, flags) = unsafe {
            (object::out(poll)?, object::owned(domain)?, attr.cast::<u64>().as_ref().copied())
        };
        if let Some(flags @ 1..) = flags {
            return Err(Failure::flags("fi_poll_open", flags));
        }
        let members = Mutex::default();
        let state = State { members, uses: Arc::default(), _domain: Use::of(&parent.uses)? };
        let fid = object::fid::<FidPoll>(class::POLL, std::ptr::null_mut());
        *place = object::create(FidPoll { fid, ops: &raw const OPERATIONS }, state);
        Ok(())
    })
}

/// "Calling fi_poll … returns the list of contexts associated with the fids that have
/// an event."
unsafe extern "C" fn poll(poll: *mut FidPoll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    guarded("fi_poll", || {
        let count = usize::try_from(count)
            .map_err(|_| Failure::new(Errno::INVAL, format!("{count} contexts")))?;
        if contexts.is_null() && count > 0 {
            return Err(Failure::null("where the contexts go"));
        }
        // SAFETY: C passes an open poll set.
        let state = unsafe { object::owned(poll) }?;
        let mut found = 0;
        for member in state.members().iter() {
            // "Progresses all completion queues and counters associated with a poll set".
            if found == count {
                member.waitable.drive();
                continue;
            }
            if member.waitable.is_ready() {
                // SAFETY: the array has `count` places.
                unsafe { contexts.add(found).write(member.context as *mut c_void) };
                found += 1;
            }
        }
        Ok(found as c_int)
    })
}

unsafe extern "C" fn add(poll: *mut FidPoll, fid: *mut Fid, flags: u64) -> c_int {
    done("fi_poll_add", || {
        if flags != 0 {
            return Err(Failure::flags("fi_poll_add", flags));
        }
        if fid.is_null() {
            return Err(Failure::null("the object"));
        }
        // SAFETY: C passes an open poll set and an open object.
        let (state, waitable, bound, context) = unsafe {
            let (waitable, bound) = if (*fid).ops == FidCntr::operations() {
                let member = object::checked::<FidCntr>(fid)?;
                (counter::pollable(member), Bound::Counter(member.counter.clone()))
            } else {
                let member = object::checked::<FidCq>(fid)?;
                (completion_queue::waitable(member), Bound::Queue(member.queue.clone()))
            };
            (object::owned(poll)?, waitable, bound, (*fid).context as usize)
        };
        let mut members = state.members();
        if members.iter().any(|member| member.fid == fid as usize) {
            return Err(Failure::new(Errno::INVAL, "the object is in the poll set already"));
        }
        bound.count().bind()?;
        members.push(Member { fid: fid as usize, context, waitable, bound });
        Ok(())
    })
}

unsafe extern "C" fn remove(poll: *mut FidPoll, fid: *mut Fid, flags: u64) -> c_int {
    done("fi_poll_del", || {
        if flags != 0 {
            return Err(Failure::flags("fi_poll_del", flags));
        }
        // SAFETY: C passes an open poll set.
        let mut members = unsafe { object::owned(poll) }?.members();
        let before = members.len();
        members.retain(|member| member.fid != fid as usize);
        if members.len() == before {
            return Err(Failure::new(Errno::INVAL, "the object is not in the poll set"));
        }
        Ok(())
    })
}
