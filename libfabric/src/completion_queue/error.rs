//! Reading failed completions. Reference: fi_cq(3), `fi_cq_readerr`.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::{MaybeUninit, offset_of},
    sync::PoisonError,
};

use kestrel_core::{
    address::AddressFormat, completion_queue::ErrorEntry, error::Errno, info::ApiVersion,
};

use crate::{
    abi::{attributes::CqErrEntry, fid::FidCq},
    address, object,
    outcome::{Failure, guarded},
    reasons::Reasons,
};

/// Since when an entry has the size of its error data, and the peer's address.
const HAS_DATA_SIZE: ApiVersion = ApiVersion::new(1, 5);
const HAS_SOURCE: ApiVersion = ApiVersion::new(1, 20);

/// What stays of errors that were read.
#[derive(Default)]
pub struct Kept {
    reasons: Reasons,
    /// Of the last one: the peer's address, where an error says that it is not in the address vector.
    data: Vec<u8>,
}

/// How much of the struct the caller has.
fn known_size(version: ApiVersion) -> usize {
    if version < HAS_DATA_SIZE {
        offset_of!(CqErrEntry, err_data_size)
    } else if version < HAS_SOURCE {
        offset_of!(CqErrEntry, src_addr)
    } else {
        size_of::<CqErrEntry>()
    }
}

/// Answers 1 with the error at the head of the queue, or -FI_EAGAIN.
pub unsafe extern "C" fn read(cq: *mut FidCq, place: *mut CqErrEntry, flags: u64) -> isize {
    guarded("fi_cq_readerr", || {
        if flags != 0 {
            return Err(Failure::flags("fi_cq_readerr", flags));
        }
        if place.is_null() {
            return Err(Failure::null("where the error goes"));
        }
        // SAFETY: C passes an open queue.
        let state = unsafe { object::owned(cq) }?;
        let Some(error) = state.queue.read_error() else {
            return Err(Failure::new(Errno::AGAIN, "no error"));
        };
        let known = known_size(state.version);
        let mut entry = MaybeUninit::<CqErrEntry>::zeroed();
        // SAFETY: the caller's struct has that many bytes, and so has ours.
        let mut entry = unsafe {
            entry.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(place.cast(), known);
            entry.assume_init()
        };
        // Nothing in here panics half-way.
        let mut kept = state.errors.lock().unwrap_or_else(PoisonError::into_inner);
        kept.data = error_data(&error, state.address_format);
        // SAFETY: the caller's own buffer, if it has one, has the size that it says.
        unsafe { fill(&mut entry, &error, &mut kept, known) };
        // SAFETY: as above.
        unsafe { place.cast::<u8>().copy_from_nonoverlapping((&raw const entry).cast(), known) };
        Ok(1)
    })
}

fn error_data(error: &ErrorEntry, format: AddressFormat) -> Vec<u8> {
    let unknown = error.source_address.filter(|_| error.errno == Errno::ADDRNOTAVAIL);
    unknown.map(|unknown| address::write(format, &unknown)).unwrap_or_default()
}

/// # Safety
/// The entry's error data, if it has some, is valid for writes of its size.
unsafe fn fill(entry: &mut CqErrEntry, error: &ErrorEntry, kept: &mut Kept, known: usize) {
    entry.op_context = error.context as *mut c_void;
    entry.flags = error.flags.bits();
    entry.len = error.length as usize;
    entry.buf = error.buffer as *mut c_void;
    entry.data = error.data;
    entry.tag = error.tag;
    entry.olen = error.overflow as usize;
    entry.err = error.errno.0;
    entry.prov_errno = kept.reasons.keep(error.errno, &error.reason);
    entry.src_addr = error.source;
    let has_size = known > offset_of!(CqErrEntry, err_data_size);
    if has_size && entry.err_data_size > 0 && !entry.err_data.is_null() {
        entry.err_data_size = entry.err_data_size.min(kept.data.len());
        let target = entry.err_data.cast::<u8>();
        // SAFETY: the caller vouches for it.
        unsafe { target.copy_from_nonoverlapping(kept.data.as_ptr(), entry.err_data_size) };
    } else {
        // "If err_data_size is 0 on input … the provider's buffer", until the next read.
        let data = &mut kept.data;
        entry.err_data =
            if data.is_empty() { std::ptr::null_mut() } else { data.as_mut_ptr().cast() };
        entry.err_data_size = data.len();
    }
}

/// The reason behind a `prov_errno` of this queue, or what its number means.
pub unsafe extern "C" fn describe(
    cq: *mut FidCq,
    prov_errno: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: C passes an open queue, and a buffer of that length or null.
    unsafe {
        // The lock may be held for ever in a forked child: by a thread that it does not have.
        let Ok(state) = object::owned(cq) else {
            return Reasons::default().tell(prov_errno, buffer, length);
        };
        let kept = state.errors.lock().unwrap_or_else(PoisonError::into_inner);
        kept.reasons.tell(prov_errno, buffer, length)
    }
}
