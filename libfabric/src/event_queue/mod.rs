//! Event queues. Reference: fi_eq(3).

mod entry;
mod waited;

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kestrel_core::{
    bind_count::BindCount,
    domain::Sharing,
    error::Errno,
    event_queue::{Event, EventQueue, EventQueueAttributes, EventRead},
    flags::Flags,
    info::ApiVersion,
};

use self::{
    entry::{bytes_of, least_of},
    waited::{Shared, Unasked},
};
use crate::{
    abi::{
        attributes::{EqAttr, EqErrEntry},
        constants::{BADF, NOSYS, wait},
        control::{OpsEq, OpsFid},
        fid::{Fid, FidEq, FidFabric, class},
    },
    connection_request,
    descriptor::Descriptor,
    fabric,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    reasons::Reasons,
    wait_kind::WaitKind,
    wait_set::{self, Membership},
    waiting::{self, Signal, Waitable},
};

/// What we keep of an event queue.
pub struct State {
    shared: Arc<Shared>,
    kind: WaitKind,
    /// What the application waits on outside, if it asked for that: readable with the signal, too.
    descriptor: Option<Descriptor>,
    wait_obj: u32,
    version: ApiVersion,
    uses: Arc<BindCount>,
    /// The data of the error read last, "available until the next time the EQ is read", and the reasons of
    /// more.
    errors: Mutex<(Vec<u8>, Reasons)>,
    /// Dropped with the queue: it then leaves its wait set.
    _set: Option<Membership>,
    _fabric: Use,
}

impl State {
    pub fn queue(&self) -> &Arc<EventQueue> {
        &self.shared.queue
    }

    /// Counts what reports here.
    pub fn uses(&self) -> &Arc<BindCount> {
        &self.uses
    }

    /// Makes ready for a wait outside. False if something is there to be read.
    pub fn try_wait(&self) -> bool {
        let waitable: &dyn Waitable = &*self.shared;
        self.shared.settle();
        match &self.descriptor {
            Some(descriptor) => descriptor.try_wait(waitable),
            None => !waitable.is_ready(),
        }
    }

    fn look(&self) {
        if let Some(descriptor) = &self.descriptor {
            descriptor.look();
        }
    }

    /// The application has looked, and may wait outside now.
    fn has_looked(&self) {
        if let Some(descriptor) = &self.descriptor {
            descriptor.has_looked(|| self.queue().is_empty(), || Unasked(&self.shared));
        }
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidEq>, control, ..FID_NOSYS };
static OPERATIONS: OpsEq =
    OpsEq { read, readerr, write, sread, strerror, ..OpsEq::refusing::<NOSYS>() };
static CLOSED: OpsEq = OpsEq::refusing::<BADF>();

impl Header for FidEq {
    type State = State;
    const NAME: &'static str = "event queue";

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
        if state.uses.count() > 0 {
            return Ok(state.uses.close()?);
        }
        state.queue().close()?;
        Ok(state.uses.close()?)
    }
}

/// Reference: fi_eq(3), `fi_eq_open`.
pub unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    attr: *mut EqAttr,
    eq: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    done("fi_eq_open", || {
        // SAFETY: C passes an open fabric and valid pointers or null.
        let (place, parent, attr) =
            unsafe { (object::out(eq)?, object::owned(fabric)?, attr.as_ref()) };
        let (size, flags, wait_obj, set) = attr.map_or((0, 0, wait::UNSPEC, None), |attr| {
            (attr.size, attr.flags, attr.wait_obj, Some(attr.wait_set))
        });
        let kind = WaitKind::of(wait_obj)?;
        let attributes = EventQueueAttributes { size, flags: Flags::from_bits_retain(flags) };
        let queue = Arc::new(EventQueue::open(attributes)?);
        let signal = Arc::new(Signal::new()?);
        let raised = signal.clone();
        queue.set_notify(Box::new(move || raised.raise()));
        let shared = Arc::new(Shared { queue, signal });
        let waitable: Arc<dyn Waitable> = shared.clone();
        let set = match set {
            // SAFETY: C passes an open wait set or null.
            Some(set) if kind == WaitKind::Set => Some(unsafe { wait_set::join(set, waitable) }?),
            _ => None,
        };
        let descriptor = match kind {
            WaitKind::Descriptor => Some(Descriptor::new(Sharing::Shared)?),
            _ => None,
        };
        if let Some(descriptor) = &descriptor {
            descriptor.add(shared.signal.fd());
        }
        let state = State {
            shared,
            kind,
            descriptor,
            wait_obj,
            // SAFETY: C passes an open fabric.
            version: unsafe { fabric::version(fabric) },
            uses: Arc::default(),
            errors: Mutex::default(),
            _set: set,
            _fabric: Use::of(&parent.uses)?,
        };
        let fid = object::fid::<FidEq>(class::EQ, context);
        *place = object::create(FidEq { fid, ops: &raw const OPERATIONS }, state);
        Ok(())
    })
}

unsafe extern "C" fn control(eq: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open queue, and what the command takes or null.
        unsafe {
            let state = object::owned(eq.cast::<FidEq>())?;
            Descriptor::control(state.descriptor.as_ref(), state.wait_obj, command, argument)
        }
    })
}

fn is_peek(call: &str, flags: u64) -> Result<bool, Failure> {
    match Flags::from_bits_retain(flags) {
        flags if flags.is_empty() => Ok(false),
        Flags::PEEK => Ok(true),
        _ => Err(Failure::flags(call, flags)),
    }
}

unsafe fn read_once(
    state: &State,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> Result<isize, Failure> {
    if event.is_null() || (buffer.is_null() && length > 0) {
        return Err(Failure::null("where the event goes"));
    }
    let peek = is_peek("fi_eq_read", flags)?;
    state.look();
    let queue = state.queue();
    let fits = |event: &Event| least_of(event) <= length;
    let outcome = if peek { queue.peek() } else { queue.read_if(fits) };
    match outcome {
        EventRead::Event(found) if fits(&found) => {
            let mut bytes = bytes_of(&found);
            bytes.truncate(length);
            if let (Event::ConnectionRequest { fid, info, .. }, false) = (&found, peek) {
                let Some(info) = connection_request::describe(*fid, info)? else {
                    // It was closed as this was read: there is no such event any more.
                    // SAFETY: as here.
                    return unsafe { read_once(state, event, buffer, length, flags) };
                };
                bytes[size_of::<u64>()..][..size_of::<u64>()]
                    .copy_from_slice(&(info as u64).to_ne_bytes());
            }
            // SAFETY: the event is not null, and the buffer takes that many bytes.
            unsafe {
                event.write(found.code());
                if !bytes.is_empty() {
                    buffer.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
            }
            state.shared.settle();
            Ok(bytes.len() as isize)
        }
        EventRead::Event(_) | EventRead::Refused => {
            Err(Failure::new(Errno::TOOSMALL, format!("the event does not fit {length} bytes")))
        }
        EventRead::Empty => {
            // What it was raised for may be no event, or be gone.
            state.shared.settle();
            Err(Failure::new(Errno::AGAIN, "no event"))
        }
        EventRead::ErrorAvailable => Err(Failure::new(Errno::AVAIL, "an error is to be read")),
    }
}

unsafe extern "C" fn read(
    eq: *mut FidEq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    guarded("fi_eq_read", || {
        // SAFETY: C passes an open queue.
        let state = unsafe { object::owned(eq) }?;
        // SAFETY: C passes a buffer of that length.
        let outcome = unsafe { read_once(state, event, buffer, length, flags) };
        state.has_looked();
        outcome
    })
}

unsafe extern "C" fn sread(
    eq: *mut FidEq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    guarded("fi_eq_sread", || {
        // SAFETY: C passes an open queue.
        let state = unsafe { object::owned(eq) }?;
        state.kind.check_waiting()?;
        let timeout = waiting::timeout(timeout_ms);
        // SAFETY: C passes a buffer of that length.
        let outcome = unsafe { read_in_time(state, event, buffer, length, timeout, flags) };
        state.has_looked();
        outcome
    })
}

unsafe fn read_in_time(
    state: &State,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: Option<Duration>,
    flags: u64,
) -> Result<isize, Failure> {
    let start = Instant::now();
    loop {
        // SAFETY: the caller passes a buffer of that length.
        let outcome = unsafe { read_once(state, event, buffer, length, flags) };
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        match outcome {
            Err(failure) if failure.errno == Errno::AGAIN => {
                if left.is_some_and(|left| left.is_zero()) {
                    return Err(failure);
                }
            }
            outcome => return outcome,
        }
        state.shared.sleep(left);
    }
}

unsafe extern "C" fn readerr(eq: *mut FidEq, buffer: *mut EqErrEntry, flags: u64) -> isize {
    guarded("fi_eq_readerr", || {
        // SAFETY: C passes an open queue and a valid entry or null.
        let (state, entry) = unsafe { (object::owned(eq)?, buffer.as_mut()) };
        let entry = entry.ok_or_else(|| Failure::null("where the error goes"))?;
        let peek = is_peek("fi_eq_readerr", flags)?;
        state.look();
        let error = if peek { state.queue().peek_error() } else { state.queue().read_error() };
        let error = error.ok_or_else(|| Failure::new(Errno::AGAIN, "no error"))?;
        state.shared.settle();
        state.has_looked();
        entry.fid = error.fid as *mut Fid;
        entry.context = error.context as *mut c_void;
        entry.data = error.data;
        entry.err = error.error.0;
        // Nothing in here panics half-way.
        let mut errors = state.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, reasons) = &mut *errors;
        entry.prov_errno = reasons.keep(error.error, &error.reason);
        *kept = error.error_data;
        // "If err_data_size is 0 on input, or the fabric was opened with release < 1.5, then any
        // buffer referenced by err_data will be ignored on input."
        let given = if state.version < ApiVersion::new(1, 5) { 0 } else { entry.err_data_size };
        entry.err_data_size = if given == 0 { kept.len() } else { kept.len().min(given) };
        if given == 0 || entry.err_data.is_null() {
            let nothing = kept.is_empty();
            entry.err_data = if nothing { null_mut() } else { kept.as_mut_ptr().cast() };
        } else {
            let target = entry.err_data.cast::<u8>();
            // SAFETY: the application's buffer has the size that it said.
            unsafe { target.copy_from_nonoverlapping(kept.as_ptr(), entry.err_data_size) };
        }
        Ok(size_of::<EqErrEntry>() as isize)
    })
}

unsafe extern "C" fn write(
    eq: *mut FidEq,
    event: u32,
    buffer: *const c_void,
    length: usize,
    flags: u64,
) -> isize {
    guarded("fi_eq_write", || {
        if flags != 0 {
            return Err(Failure::flags("fi_eq_write", flags));
        }
        if buffer.is_null() && length > 0 {
            return Err(Failure::null("the event"));
        }
        // SAFETY: C passes an open queue, and that many bytes.
        unsafe {
            let bytes = match length {
                0 => &[],
                _ => std::slice::from_raw_parts(buffer.cast::<u8>(), length),
            };
            object::owned(eq)?.queue().write(event, bytes)?;
        }
        Ok(length as isize)
    })
}

/// The reason behind a `prov_errno` of this queue, or what its number means.
unsafe extern "C" fn strerror(
    eq: *mut FidEq,
    prov_errno: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: C passes an open queue, and a buffer of that length or null.
    unsafe {
        // The lock may be held for ever in a forked child: by a thread that it does not have.
        let Ok(state) = object::owned(eq) else {
            return Reasons::default().tell(prov_errno, buffer, length);
        };
        let errors = state.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.1.tell(prov_errno, buffer, length)
    }
}

#[cfg(test)]
mod tests {
    use kestrel_tests::driven::Drives;

    use super::*;

    /// Who sleeps does not listen to what is driven since: whoever else reads leaves it its wake-up.
    #[test]
    fn a_reader_leaves_others_what_tells_them_to_look_anew() {
        let queue = Arc::new(EventQueue::open(EventQueueAttributes::default()).unwrap());
        let signal = Arc::new(Signal::new().unwrap_or_else(|_| panic!("a descriptor")));
        let raised = signal.clone();
        queue.set_notify(Box::new(move || raised.raise()));
        let shared = Shared { queue, signal };
        let rung = || waiting::sleep(&[shared.signal.fd()], Some(Duration::ZERO));
        let sleeps = || shared.queue.prepare_wait().expect("there is nothing to do");
        let (first, second) = (sleeps(), sleeps());
        assert!(!rung());
        shared.queue.add_driven(Arc::new(Drives(|| false)));
        shared.settle();
        assert!(rung(), "both sleep on");
        drop(first);
        let late = sleeps();
        shared.settle();
        assert!(rung(), "the second sleeps on");
        drop(second);
        shared.settle();
        assert!(!rung(), "who came later listens to all");
        drop(late);
    }
}
