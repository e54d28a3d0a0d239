//! Which atomic operations there are. Reference: fi_atomic(3).

use std::ffi::c_int;

use kestrel::Domain;
use kestrel_core::{
    error::Errno,
    flags::Flags,
    info::EndpointType::{Dgram, SockDgram, SockStream},
    protocol::atomic::{AtomicCall, Form},
};

use super::{atomic::call, post};
use crate::{
    abi::{
        Refusal,
        atomic::AtomicAttr,
        fid::{FidDomain, FidEp},
    },
    object,
    outcome::{Failure, done},
};

/// `fi_query_atomic`: the form that is asked about.
const FETCH_ATOMIC: u64 = 1 << 58;
const COMPARE_ATOMIC: u64 = 1 << 59;
/// FI_TAGGED.
const TAGGED: u64 = Flags::TAGGED.bits();

/// The call and how many elements it may have; none if it is not supported.
fn count_max(domain: &Domain, datatype: u32, op: u32, form: Form) -> Option<(AtomicCall, usize)> {
    call(datatype, op, form).and_then(|call| Some((call, domain.atomic_count_max(call)?)))
}

/// What an endpoint needs for calls of this form.
fn needed(form: Form) -> Flags {
    Flags::ATOMIC | if form == Form::Base { Flags::WRITE } else { Flags::READ }
}

/// Applications ask for everything there is: that something is not supported is no news.
unsafe fn valid(ep: *mut FidEp, datatype: u32, op: u32, form: Form, count: *mut usize) -> c_int {
    // SAFETY: C passes an open endpoint, and a valid place or null.
    let (state, count) = unsafe { (post::state(ep), count.as_mut()) };
    let options = state.endpoint.options();
    let can = options.transmits();
    let domain = can.contains(needed(form)).then(|| state.endpoint.domain());
    match (count, domain.and_then(|domain| count_max(domain, datatype, op, form))) {
        (None, _) => c_int::refusal(Errno::INVAL.0),
        (_, None) => c_int::refusal(Errno::OPNOTSUPP.0),
        (Some(place), Some((_, count))) => {
            *place = count;
            0
        }
    }
}

pub unsafe extern "C" fn writevalid(
    ep: *mut FidEp,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: C passes an open endpoint, and a valid place or null.
    unsafe { valid(ep, datatype, op, Form::Base, count) }
}

pub unsafe extern "C" fn readwritevalid(
    ep: *mut FidEp,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: C passes an open endpoint, and a valid place or null.
    unsafe { valid(ep, datatype, op, Form::Fetch, count) }
}

pub unsafe extern "C" fn compwritevalid(
    ep: *mut FidEp,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: C passes an open endpoint, and a valid place or null.
    unsafe { valid(ep, datatype, op, Form::Compare, count) }
}

/// Reference: fi_atomic(3), `fi_query_atomic`.
pub unsafe extern "C" fn query(
    domain: *mut FidDomain,
    datatype: u32,
    op: u32,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    done("fi_query_atomic", || {
        // "If the FI_TAGGED bit is set, the provider will indicate if it supports atomic operations to
        // tagged receive buffers. The FI_TAGGED bit may be used by itself, or in conjunction with the
        // FI_FETCH_ATOMIC and FI_COMPARE_ATOMIC flags."
        let form = match flags & !TAGGED {
            0 => Form::Base,
            FETCH_ATOMIC => Form::Fetch,
            COMPARE_ATOMIC => Form::Compare,
            _ => return Err(Failure::flags("fi_query_atomic", flags)),
        };
        if flags & TAGGED != 0 {
            let reason = "no atomic operation is on tagged receive buffers";
            return Err(Failure::new(Errno::OPNOTSUPP, reason));
        }
        // SAFETY: C passes a valid place or null.
        let attr = unsafe { attr.as_mut() }.ok_or_else(|| Failure::null("the attributes"))?;
        // SAFETY: C passes an open domain.
        let parent = unsafe { object::owned(domain) }?;
        if matches!(parent.info.endpoint.kind, Dgram | SockStream | SockDgram) {
            let reason = format!("{} has no atomic operations", parent.info.endpoint.kind);
            return Err(Failure::new(Errno::OPNOTSUPP, reason));
        }
        let (call, count) = count_max(&parent.domain, datatype, op, form).ok_or_else(|| {
            let reason = format!("operation {op} on type {datatype} is not supported as {form:?}");
            Failure::new(Errno::OPNOTSUPP, reason)
        })?;
        *attr = AtomicAttr { count, size: call.datatype.size() };
        Ok(())
    })
}
