//! Completion queues. Reference: fi_cq(3).

mod error;
mod format;
mod read;

use std::{
    ffi::{c_int, c_void},
    sync::{Arc, Mutex},
};

use kestrel::CompletionQueue;
use kestrel::Provider;
use kestrel_core::{
    address::AddressFormat,
    completion_queue::QueueWait,
    error::Errno,
    info::{ApiVersion, CompletionFormat},
};

use crate::{
    abi::{
        attributes::CqAttr,
        constants::BADF,
        control::{OpsCq, OpsFid},
        fid::{Fid, FidCq, FidDomain, class},
    },
    descriptor::Descriptor,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    wait_kind::{WaitKind, no_descriptor},
    wait_set::{self, Membership},
    waiting::{Armed, Waitable},
};

/// `FI_AFFINITY`: which core interrupts go to. There are none.
const AFFINITY: u64 = 1 << 29;

/// `FI_CQ_COND_THRESHOLD`: the last of the conditions that a wait may have.
const COND_THRESHOLD: u32 = 1;

/// What we keep of a completion queue.
pub struct State {
    pub queue: Arc<CompletionQueue>,
    /// What the application waits on outside, if it asked for that.
    descriptor: Option<Descriptor>,
    kind: WaitKind,
    wait_obj: u32,
    version: ApiVersion,
    /// How addresses are written on its domain.
    address_format: AddressFormat,
    /// Of errors that were read, for `fi_cq_strerror`.
    errors: Mutex<error::Kept>,
    _set: Option<Membership>,
    _domain: Use,
}

/// A queue among other things that are waited for.
struct Watched(Arc<CompletionQueue>);

impl Waitable for Watched {
    fn is_ready(&self) -> bool {
        self.0.poll()
    }

    fn drive(&self) {
        self.0.poll();
    }

    fn arm(&self) -> Option<Box<dyn Armed>> {
        Some(Box::new(Waiting(self.0.prepare_nap()?)))
    }
}

struct Waiting(QueueWait<Provider>);

impl Armed for Waiting {
    fn descriptors(&self) -> Vec<i32> {
        self.0.descriptors()
    }

    fn looks_again(&self) -> bool {
        self.0.looks_again()
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidCq>, control, ..FID_NOSYS };
static CONTEXT: OpsCq = read::table::<format::Context>();
static MESSAGE: OpsCq = read::table::<format::Message>();
static DATA: OpsCq = read::table::<format::Data>();
static TAGGED: OpsCq = read::table::<format::Tagged>();
static CLOSED: OpsCq = OpsCq::refusing::<BADF>();

impl Header for FidCq {
    type State = State;
    const NAME: &'static str = "completion queue";

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
        Ok(state.queue.close()?)
    }
}

/// What is waited for in a wait set or polled in a poll set.
pub fn waitable(state: &State) -> Arc<dyn Waitable> {
    Arc::new(Watched(state.queue.clone()))
}

/// Reference: fi_cq(3), `fi_cq_open`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    done("fi_cq_open", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        let (place, parent, attr) =
            unsafe { (object::out(cq)?, object::owned(domain)?, attr.as_mut()) };
        let attr = attr.ok_or_else(|| Failure::null("the completion queue's attributes"))?;
        if attr.flags & !AFFINITY != 0 {
            return Err(Failure::flags("fi_cq_open", attr.flags));
        }
        let kind = WaitKind::of(attr.wait_obj)?;
        // "This field is ignored if wait_obj is FI_WAIT_NONE."
        if kind != WaitKind::None && attr.wait_cond > COND_THRESHOLD {
            let reason = format!("wait condition {} is neither NONE nor THRESHOLD", attr.wait_cond);
            return Err(Failure::new(Errno::INVAL, reason));
        }
        let mut format = CompletionFormat::try_from(attr.format)?;
        if format == CompletionFormat::Unspec {
            format = format::DEFAULT;
        }
        let queue = CompletionQueue::open(&parent.domain, attr.size)?;
        let membership = match kind {
            WaitKind::Set => {
                // SAFETY: C passes an open wait set or null.
                Some(unsafe { wait_set::join(attr.wait_set, Arc::new(Watched(queue.clone()))) }?)
            }
            _ => None,
        };
        let descriptor = match kind {
            WaitKind::Descriptor => Some(Descriptor::new(parent.domain.sharing())?),
            _ => None,
        };
        let state = State {
            queue,
            descriptor,
            kind,
            wait_obj: attr.wait_obj,
            version: parent.version,
            address_format: parent.address_format(),
            errors: Mutex::default(),
            _set: membership,
            _domain: Use::of(&parent.uses)?,
        };
        let ops = match format {
            CompletionFormat::Msg => &raw const MESSAGE,
            CompletionFormat::Data => &raw const DATA,
            CompletionFormat::Tagged => &raw const TAGGED,
            _ => &raw const CONTEXT,
        };
        // "If FI_CQ_FORMAT_UNSPEC was given, the provider's choice is returned."
        attr.format = format.value();
        let fid = object::fid::<FidCq>(class::CQ, context);
        *place = object::create(FidCq { fid, ops }, state);
        Ok(())
    })
}

/// Makes ready for a wait outside: `fi_trywait` on a queue.
pub fn try_wait(state: &State) -> Result<bool, Failure> {
    let Some(descriptor) = &state.descriptor else {
        return Err(no_descriptor("completion queue"));
    };
    Ok(descriptor.try_wait(&Watched(state.queue.clone())))
}

unsafe extern "C" fn control(cq: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open queue, and what the command takes or null.
        unsafe {
            let state = object::owned(cq.cast::<FidCq>())?;
            Descriptor::control(state.descriptor.as_ref(), state.wait_obj, command, argument)
        }
    })
}
