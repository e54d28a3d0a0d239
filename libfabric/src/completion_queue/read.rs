//! Reading completions: the calls of one table for each format.

use std::{
    ffi::{c_int, c_void},
    time::Duration,
};

use kestrel_core::{
    address_vector::FI_ADDR_NOTAVAIL,
    completion_queue::{Entry, ReadError},
    error::{Errno, HasErrno},
    flags::Flags,
};

use super::{State, Watched, error, format::Format};
use crate::{
    abi::{Refusal, constants::NOSYS, control::OpsCq, fid::FidCq},
    object,
    outcome::{Failure, done, guarded, refused_argument},
    per_process::PerProcess,
    waiting,
};

/// The table of queues whose entries have this format.
pub const fn table<F: Format>() -> OpsCq {
    OpsCq {
        read: read::<F>,
        readfrom: read_from::<F>,
        readerr: error::read,
        sread: read_blocking::<F>,
        sreadfrom: read_blocking_from::<F>,
        signal,
        strerror: error::describe,
        ..OpsCq::refusing::<NOSYS>()
    }
}

/// Writes entry `at` of an array.
///
/// # Safety
/// The array has that entry.
#[inline(always)]
unsafe fn put<F: Format>(buffer: *mut c_void, at: usize, entry: &Entry) {
    // SAFETY: the caller vouches for it.
    unsafe { F::write(entry, buffer.cast::<u8>().add(at * F::SIZE).cast()) };
}

/// The same, and its source where there is an array of those.
///
/// # Safety
/// Both arrays have that entry.
#[inline(always)]
unsafe fn put_both<F: Format>(buffer: *mut c_void, sources: *mut u64, at: usize, entry: &Entry) {
    // SAFETY: the caller vouches for it.
    unsafe {
        put::<F>(buffer, at, entry);
        if !sources.is_null() {
            sources.add(at).write(source_of(entry));
        }
    }
}

#[inline(always)]
fn answer(outcome: Result<usize, ReadError>) -> isize {
    match outcome {
        Ok(count) => count as isize,
        Err(ReadError::Empty) => -(Errno::AGAIN.0 as isize),
        Err(error) => refusal(error),
    }
}

/// Whoever polls in a forked child would never learn why nothing comes.
#[cold]
fn refusal(error: ReadError) -> isize {
    static TOLD: PerProcess<bool> = PerProcess::new();
    if error == ReadError::ForkedChild && !std::mem::replace(&mut *TOLD.lock(), true) {
        tracing::warn!("fi_cq_read: {error}");
    }
    isize::refusal(error.errno().0)
}

/// Flags of what came from a peer.
const RECEIVED: Flags = Flags::RECV.union(Flags::REMOTE_WRITE).union(Flags::REMOTE_READ);

/// "If fi_cq_readfrom is called on an endpoint for which source addressing data is not available, the
/// source address will be set to FI_ADDR_NOTAVAIL": so it is of what nobody has sent.
fn source_of(entry: &Entry) -> u64 {
    if entry.flags & RECEIVED.bits() != 0 { entry.source } else { FI_ADDR_NOTAVAIL }
}

/// Reads into an array of entries and, if there is one, an array of sources.
///
/// # Safety
/// As the manual page asks of `fi_cq_readfrom`.
#[inline(always)]
unsafe fn read_into<F: Format>(
    state: &State,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    if buffer.is_null() && count > 0 {
        return refused_argument("where the completions go is null");
    }
    if let Some(descriptor) = &state.descriptor {
        descriptor.look();
    }
    // SAFETY: both arrays have `count` entries, and `at` is less.
    let take = |at, entry: &Entry| unsafe { put_both::<F>(buffer, sources, at, entry) };
    // SAFETY: the closure calls nothing but what writes an entry.
    has_looked(state, unsafe { state.queue.read_in_place(count, take) })
}

/// The application may wait outside, now that it has looked.
#[inline(always)]
fn has_looked(state: &State, outcome: Result<usize, ReadError>) -> isize {
    if let Some(descriptor) = &state.descriptor {
        let is_empty = outcome == Err(ReadError::Empty);
        descriptor.has_looked(|| is_empty, || Watched(state.queue.clone()));
    }
    answer(outcome)
}

unsafe extern "C" fn read<F: Format>(cq: *mut FidCq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: C passes an open queue, and an array of that many entries.
    unsafe { read_into::<F>(object::state(cq), buffer, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn read_from<F: Format>(
    cq: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: as above, and an array of as many sources.
    unsafe { read_into::<F>(object::state(cq), buffer, count, sources) }
}

unsafe extern "C" fn read_blocking<F: Format>(
    cq: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let sources = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { read_blocking_from::<F>(cq, buffer, count, sources, condition, timeout_ms) }
}

/// The condition (a number of completions) is a hint that we do not need: whoever is
/// woken reads all there is.
unsafe extern "C" fn read_blocking_from<F: Format>(
    cq: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
    _: *const c_void,
    timeout_ms: c_int,
) -> isize {
    guarded("fi_cq_sread", || {
        // SAFETY: C passes an open queue.
        let state = unsafe { object::owned(cq) }?;
        state.kind.check_blocking()?;
        if buffer.is_null() && count > 0 {
            return Err(Failure::null("where the completions go"));
        }
        if let Some(descriptor) = &state.descriptor {
            descriptor.look();
        }
        // Who asks for nothing waits for nothing.
        let timeout = if count == 0 { Some(Duration::ZERO) } else { waiting::timeout(timeout_ms) };
        // SAFETY: both arrays have `count` entries, and `at` is less.
        let take = |at, entry: &Entry| unsafe { put_both::<F>(buffer, sources, at, entry) };
        // SAFETY: the closure calls nothing but what writes an entry.
        let outcome = unsafe { state.queue.read_in_place_blocking(count, timeout, take) };
        Ok(has_looked(state, outcome))
    })
}

unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    done("fi_cq_signal", || {
        // SAFETY: C passes an open queue.
        unsafe { object::owned(cq) }?.queue.signal();
        Ok(())
    })
}
