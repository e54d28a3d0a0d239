//! Inserting addresses: as bytes, by name, and in symmetric ranges.
//! Reference: fi_av(3), `fi_av_insert`, `fi_av_insertsvc`, `fi_av_insertsym`.

use std::{
    ffi::{c_char, c_int, c_void},
    net::IpAddr,
    ptr,
};

use kestrel::discovery;
use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    address_vector::{
        AddressVectorError, AddressVectorFlags, Candidate, FI_ADDR_NOTAVAIL, Marks, SymmetricRange,
        symmetric_host_name,
    },
    error::{Errno, HasErrno},
};

use super::State;
use crate::{
    abi::fid::FidAv,
    address, hints, object,
    outcome::{Failure, guarded},
};

/// Where an insertion's results go.
struct Results {
    fi_addr: *mut u64,
    errors: *mut c_int,
    next: usize,
}

impl Results {
    /// # Safety
    /// `fi_addr` is null or valid for a write of each result, and so is `context` if the
    /// flags have `SYNC_ERR`.
    unsafe fn new(
        fi_addr: *mut u64,
        flags: AddressVectorFlags,
        context: *mut c_void,
    ) -> Result<Self, Failure> {
        let wants_errors = flags.contains(AddressVectorFlags::SYNC_ERR);
        if wants_errors && context.is_null() {
            return Err(Failure::null("where FI_SYNC_ERR reports"));
        }
        let errors = if wants_errors { context.cast() } else { ptr::null_mut() };
        Ok(Results { fi_addr, errors, next: 0 })
    }

    fn add(&mut self, result: Result<u64, AddressVectorError>) {
        let at = self.next;
        self.next += 1;
        // SAFETY: whoever made this vouched for both arrays.
        unsafe {
            if !self.fi_addr.is_null() {
                self.fi_addr.add(at).write(*result.as_ref().unwrap_or(&FI_ADDR_NOTAVAIL));
            }
            if !self.errors.is_null() {
                self.errors.add(at).write(result.as_ref().err().map_or(0, |error| error.errno().0));
            }
        }
        if let Err(error) = result {
            tracing::info!("address {at} was not inserted: {error}");
        }
    }
}

/// Inserts, and answers how many were; 0 where events will tell.
///
/// # Safety
/// As [`Results::new`]; with FI_AV_USER_ID or FI_AUTH_KEY, `fi_addr` is valid for reads as well.
unsafe fn insert_each(
    state: &State,
    candidates: impl IntoIterator<Item = impl Into<Candidate>>,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> Result<c_int, Failure> {
    let flags = AddressVectorFlags::from_bits_retain(flags);
    let known = AddressVectorFlags::MORE
        | AddressVectorFlags::SYNC_ERR
        | AddressVectorFlags::USER_ID
        | AddressVectorFlags::AUTH_KEY;
    if !known.contains(flags) {
        return Err(Failure::flags("fi_av_insert", flags.bits()));
    }
    // SAFETY: the caller vouches for it.
    let mut results = unsafe { Results::new(fi_addr, flags, context) }?;
    // SAFETY: the caller vouches for it; the id is read before the number is written there.
    let mut id_at = |at: usize| unsafe { fi_addr.add(at).read() };
    let mut marks = Marks::None;
    if flags.contains(AddressVectorFlags::USER_ID) {
        if fi_addr.is_null() {
            return Err(Failure::null("where the user ids are"));
        }
        if state.vector.has_user_ids() || state.vector.has_auth_keys() {
            return Err(AddressVectorError::UserIdAtInsertion.into());
        }
        marks = Marks::UserIds(&mut id_at);
    } else if flags.contains(AddressVectorFlags::AUTH_KEY) {
        if fi_addr.is_null() {
            return Err(Failure::null("where the handles of the keys are"));
        }
        if !state.vector.has_auth_keys() {
            return Err(AddressVectorError::NoAuthKeys.into());
        }
        marks = Marks::AuthKeys(&mut id_at);
    }
    let report = |result| results.add(result);
    let candidates =
        candidates.into_iter().map(|candidate| fitting(state.format, candidate.into()));
    if state.vector.is_asynchronous() {
        if flags.contains(AddressVectorFlags::SYNC_ERR) {
            return Err(AddressVectorError::SyncErrWithEvents.into());
        }
        state.vector.insert_with_events(candidates, context as u64, marks, report)?;
        return Ok(0);
    }
    let count = state.vector.insert_each(candidates, marks, report);
    Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
}

/// "Addresses inserted into an address vector must be in the same format as specified in the
/// addr_format field": what cannot be looked up in that format is not inserted.
fn fitting(format: AddressFormat, candidate: Candidate) -> Candidate {
    let address = match &candidate {
        Candidate::Address(address) => *address,
        Candidate::Range(range) => range.base(),
        Candidate::Failed { .. } => return candidate,
    };
    if format.holds(&address) {
        return candidate;
    }
    let error = AddressError::OtherFormat { address, format }.into();
    Candidate::Failed { error, count: candidate.count() }
}

pub unsafe extern "C" fn insert(
    av: *mut FidAv,
    addresses: *const c_void,
    count: usize,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insert", || {
        if addresses.is_null() && count > 0 {
            return Err(Failure::null("the addresses"));
        }
        // SAFETY: C passes an open vector, and arrays of that many entries.
        unsafe {
            let state = object::owned(av)?;
            let addresses = address::read_each(state.format, addresses, count);
            insert_each(state, addresses, fi_addr, flags, context)
        }
    })
}

pub unsafe extern "C" fn insertsvc(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insertsvc", || {
        // SAFETY: C passes an open vector, and C strings or null.
        let (state, node, service) =
            unsafe { (object::owned(av)?, hints::text(node), hints::text(service)) };
        let node = node.ok_or_else(|| Failure::null("the node"))?;
        // "Applications may also pass in an FI_ADDR_STR formatted address as the node parameter.
        // In such cases, the service parameter must be NULL."
        let candidate = match (node.parse::<Address>(), service) {
            (Ok(address), None) => address.into(),
            (Ok(_), Some(_)) => {
                let reason = format!("'{node}' has its service, and another one is given");
                return Err(Failure::new(Errno::INVAL, reason));
            }
            (Err(_), None) => return Err(Failure::null("the service")),
            (Err(_), Some(service)) => resolved(&node, &service, state.format, 1)?,
        };
        // SAFETY: C passes room for one result.
        unsafe { insert_each(state, [candidate], fi_addr, flags, context) }
    })
}

pub unsafe extern "C" fn insertsym(
    av: *mut FidAv,
    node: *const c_char,
    node_count: usize,
    service: *const c_char,
    service_count: usize,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insertsym", || {
        // SAFETY: C passes an open vector, and C strings or null.
        let (state, node, service) =
            unsafe { (object::owned(av)?, hints::text(node), hints::text(service)) };
        let (Some(node), Some(service)) = (node, service) else {
            return Err(Failure::null("the node or the service"));
        };
        let count = node_count.checked_mul(service_count);
        if count.is_none_or(|count| c_int::try_from(count).is_err()) {
            let reason = format!("{node_count} nodes of {service_count} services are too many");
            return Err(Failure::new(Errno::INVAL, reason));
        }
        let ranges = symmetric(&node, node_count, &service, service_count, state.format)?;
        // SAFETY: C passes room for as many results.
        unsafe { insert_each(state, ranges, fi_addr, flags, context) }
    })
}

/// Node by node: an address counts up, a name counts up by its suffix.
fn symmetric(
    node: &str,
    node_count: usize,
    service: &str,
    service_count: usize,
    format: AddressFormat,
) -> Result<Vec<Candidate>, Failure> {
    if node.parse::<IpAddr>().is_ok() {
        let base = discovery::resolve(Some(node), Some(service))?;
        return Ok(vec![SymmetricRange::new(base, node_count, service_count)?.into()]);
    }
    let nodes = (0..node_count).map(|at| {
        let name = symmetric_host_name(node, at)?;
        resolved(&name, service, format, service_count)
    });
    nodes.collect()
}

/// The services of a node, from `service` on. A name that nobody knows fails their insertion,
/// not the call: the other nodes may be known.
fn resolved(
    node: &str,
    service: &str,
    format: AddressFormat,
    count: usize,
) -> Result<Candidate, Failure> {
    match discovery::resolve_as(format, Some(node), Some(service)) {
        Ok(base) => Ok(SymmetricRange::new(base, 1, count)?.into()),
        Err(error) => {
            let (name, reason) = (node.to_owned(), error.to_string());
            let error = AddressVectorError::Unresolved { name, reason };
            Ok(Candidate::Failed { error, count })
        }
    }
}
