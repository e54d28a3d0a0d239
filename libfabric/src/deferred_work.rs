//! Deferred work: operations that are posted to a domain. Reference: fi_trigger(3).

use std::ffi::{c_int, c_void};

use kestrel::{Counter, Endpoint, Provider};
use kestrel_core::{
    error::Errno,
    flags::Flags,
    protocol::atomic::Form,
    triggered::{Change, Threshold, Work},
};

use crate::{
    abi::{
        constants::command,
        fid::{Fid, FidCntr, FidDomain, FidEp, FidSrx},
        message::MsgTagged,
        trigger::{DeferredWork, op},
    },
    domain,
    endpoint::{
        atomic::{self, NO_LIST},
        post::{self, Tag},
        rma,
    },
    memory_region::DescriptorLists,
    object::{self, Header},
    outcome::{Failure, guarded, posted},
    raw_keys,
};

/// Reference: fi_trigger(3): `fi_control` of a domain, with the commands for work.
pub unsafe extern "C" fn control(domain: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    guarded("fi_control", || {
        // SAFETY: C passes an open domain; the argument of these commands is a
        // `struct fi_deferred_work *`, or null.
        let (state, work) = unsafe {
            let work = argument.cast::<DeferredWork>();
            (object::owned(domain.cast::<FidDomain>())?, work)
        };
        let given = || match work.is_null() {
            true => Err(Failure::null("the work")),
            // SAFETY: as above.
            false => Ok(unsafe { &*work }),
        };
        match command {
            // SAFETY: as above.
            command::QUEUE_WORK => unsafe { queue(state, given()?) },
            command::CANCEL_WORK => match state.domain.cancel_work(given()? as *const _ as u64) {
                true => Ok(0),
                false => Err(Failure::new(Errno::NOENT, "no such work waits")),
            },
            command::FLUSH_WORK => {
                // SAFETY: as above.
                let counter = unsafe { flushed(work) }?;
                state.domain.flush_work(counter.as_ref());
                Ok(0)
            }
            // SAFETY: as above, but for what these take.
            command::MAP_RAW_MR => unsafe { raw_keys::map(argument.cast()) }.map(|()| 0),
            // A key that was mapped is the region's own: there is nothing to forget.
            command::UNMAP_KEY => Ok(0),
            _ => Err(Failure::new(Errno::NOSYS, format!("command {command} of a domain"))),
        }
    })
}

type SharedCounter = std::sync::Arc<Counter>;

/// # Safety
/// `cntr` is null or an open object.
unsafe fn counter(cntr: *mut FidCntr) -> Result<SharedCounter, Failure> {
    // SAFETY: the caller vouches for it.
    Ok(unsafe { object::checked::<FidCntr>(cntr.cast()) }?.counter.clone())
}

/// Whose work is flushed: of the counter that is given, by itself or as the one that triggers
/// work; of all, without one.
///
/// # Safety
/// The argument is null, work, or an open counter.
unsafe fn flushed(work: *mut DeferredWork) -> Result<Option<SharedCounter>, Failure> {
    if work.is_null() {
        return Ok(None);
    }
    // SAFETY: both are longer than a `struct fid`, and only a counter points to that table.
    unsafe {
        let fid = work.cast::<Fid>();
        if (*fid).ops == FidCntr::operations() {
            return counter(fid.cast()).map(Some);
        }
        let triggering = (*work).triggering_cntr;
        if triggering.is_null() { Ok(None) } else { counter(triggering).map(Some) }
    }
}

/// An operation that is there, of the kind that the work's type says.
///
/// # Safety
/// `operation` is null or valid.
unsafe fn there<'a, T>(operation: *mut T) -> Result<&'a T, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { operation.as_ref() }.ok_or_else(|| Failure::null("the operation"))
}

/// # Safety
/// As calls from C (see the crate's documentation).
unsafe fn queue(state: &domain::State, work: &DeferredWork) -> Result<c_int, Failure> {
    // SAFETY: the counters are null or open, and so are the objects of operations; each operation
    // is null or valid until the work is done.
    unsafe {
        let completion = match work.completion_cntr.is_null() {
            true => None,
            false => Some(counter(work.completion_cntr)?),
        };
        let id = work as *const _ as u64;
        let work_of = Some(Work { id, completion });
        let counter = counter(work.triggering_cntr)?;
        let when = Threshold { counter, value: work.threshold, work: work_of };
        let status = match work.op_type {
            op::RECV => {
                let op = there(work.op.msg)?;
                receive(op.ep, &post::untagged(&op.msg), Tag::NONE, op.flags, &when)?
            }
            op::SEND => {
                let op = there(work.op.msg)?;
                send(op.ep, &post::untagged(&op.msg), Tag::NONE, op.flags, &when)?
            }
            op::TRECV => {
                let op = there(work.op.tagged)?;
                receive(op.ep, &op.msg, Tag::new(op.msg.tag, op.msg.ignore), op.flags, &when)?
            }
            op::TSEND => {
                let op = there(work.op.tagged)?;
                send(op.ep, &op.msg, Tag::new(op.msg.tag, 0), op.flags, &when)?
            }
            op::READ | op::WRITE => one_sided(work, &when)?,
            op::ATOMIC | op::FETCH_ATOMIC | op::COMPARE_ATOMIC => atomic(work, &when)?,
            op::CNTR_SET | op::CNTR_ADD => return change(state, work, &when),
            other => return Err(Failure::new(Errno::NOSYS, format!("work of type {other}"))),
        };
        Ok(status as c_int)
    }
}

/// # Safety
/// `ep` is null or an open object.
unsafe fn endpoint<'a>(ep: *mut FidEp) -> Result<(&'a Endpoint, DescriptorLists), Failure> {
    // SAFETY: the caller vouches for it.
    let state = unsafe { object::checked::<FidEp>(ep.cast()) }?;
    Ok((&state.endpoint, state.lists()))
}

/// # Safety
/// As [`queue`].
unsafe fn send(
    ep: *mut FidEp,
    msg: &MsgTagged,
    tag: Tag,
    flags: u64,
    when: &Threshold<Provider>,
) -> Result<isize, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let (endpoint, lists) = endpoint(ep)?;
        Ok(post::with_send(msg, lists, tag, flags, |post| {
            posted(endpoint.trigger_send(post, when))
        }))
    }
}

/// # Safety
/// As [`queue`].
unsafe fn receive(
    ep: *mut FidEp,
    msg: &MsgTagged,
    tag: Tag,
    flags: u64,
    when: &Threshold<Provider>,
) -> Result<isize, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        // Null is refused as what is no endpoint is.
        if ep.as_ref().is_some_and(|ep| ep.fid.ops == FidSrx::operations()) {
            return Err(Failure::new(Errno::NOSYS, "work on a shared receive context"));
        }
        let (endpoint, lists) = endpoint(ep)?;
        let ignores = |flags| endpoint.ignores_buffers(flags);
        Ok(post::with_receive(msg, lists, tag, flags, ignores, |post| {
            posted(endpoint.trigger_receive(post, when))
        }))
    }
}

/// # Safety
/// As [`queue`]; the work is a read or a write.
unsafe fn one_sided(work: &DeferredWork, when: &Threshold<Provider>) -> Result<isize, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let op = there(work.op.rma)?;
        let ((endpoint, lists), flags) = (endpoint(op.ep)?, Flags::from_bits_retain(op.flags));
        Ok(rma::with_post(&op.msg, lists, flags, |post| {
            posted(match work.op_type {
                op::READ => endpoint.trigger_read(post, when),
                _ => endpoint.trigger_write(post, when),
            })
        }))
    }
}

/// # Safety
/// As [`queue`]; the work is an atomic operation.
unsafe fn atomic(work: &DeferredWork, when: &Threshold<Provider>) -> Result<isize, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let (ep, msg, form, compare, results, flags) = match work.op_type {
            op::ATOMIC => {
                let op = there(work.op.atomic)?;
                (op.ep, &op.msg, Form::Base, NO_LIST, NO_LIST, op.flags)
            }
            op::FETCH_ATOMIC => {
                let op = there(work.op.fetch_atomic)?;
                let results = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
                (op.ep, &op.msg, Form::Fetch, NO_LIST, results, op.flags)
            }
            _ => {
                let op = there(work.op.compare_atomic)?;
                let results = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
                let compare = (op.compare.msg_iov, op.compare.iov_count);
                (op.ep, &op.msg, Form::Compare, compare, results, op.flags)
            }
        };
        let ((endpoint, _), flags) = (endpoint(ep)?, Flags::from_bits_retain(flags));
        Ok(atomic::with_post(msg, form, compare, results, flags, |post| {
            posted(endpoint.trigger_atomic(post, when))
        }))
    }
}

/// # Safety
/// As [`queue`]; the work changes a counter.
unsafe fn change(
    state: &domain::State,
    work: &DeferredWork,
    when: &Threshold<Provider>,
) -> Result<c_int, Failure> {
    // SAFETY: the caller vouches for it.
    let (target, value) = unsafe {
        let op = there(work.op.cntr)?;
        (counter(op.cntr)?, op.value)
    };
    let change = if work.op_type == op::CNTR_SET { Change::Set(value) } else { Change::Add(value) };
    state.domain.defer_change(&target, change, when)?;
    Ok(0)
}
