//! Inserting addresses: as bytes, by name, and in symmetric ranges.
//! Reference: fi_av(3), `fi_av_insert`, `fi_av_insertsvc`, `fi_av_insertsym`.

use std::{
    ffi::{c_char, c_int, c_void},
    iter,
    net::{IpAddr, Ipv6Addr},
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

/// Where a call's results go, as C says it.
#[derive(Clone, Copy)]
struct Outputs {
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
}

impl Outputs {
    /// "The fi_addr buffer associated with a failed or aborted insertion will be set to
    /// FI_ADDR_NOTAVAIL" (fi_av(3)): of all `count` addresses where the call itself fails. So does
    /// what FI_SYNC_ERR names, of a `synchronous` vector.
    ///
    /// # Safety
    /// As [`Results::new`], for so many results.
    unsafe fn fail(self, count: usize, errno: Errno, synchronous: bool) {
        let flags = AddressVectorFlags::from_bits_retain(self.flags);
        let errors = synchronous && flags.contains(AddressVectorFlags::SYNC_ERR);
        for at in 0..count {
            // SAFETY: the caller vouches for both arrays.
            unsafe {
                if !self.fi_addr.is_null() {
                    self.fi_addr.add(at).write(FI_ADDR_NOTAVAIL);
                }
                if errors && !self.context.is_null() {
                    self.context.cast::<c_int>().add(at).write(errno.0);
                }
            }
        }
    }
}

/// Where an insertion's results go.
struct Results {
    fi_addr: *mut u64,
    errors: *mut c_int,
    next: usize,
    failures: usize,
    /// Of the first that was not inserted, and where it was.
    failure: Option<(usize, AddressVectorError)>,
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
        Ok(Results { fi_addr, errors, next: 0, failures: 0, failure: None })
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
            self.failures += 1;
            self.failure.get_or_insert((at, error));
        }
    }
}

impl Drop for Results {
    /// One line for a call, when others may insert again: it may have millions of addresses.
    fn drop(&mut self) {
        if let Some((at, error)) = &self.failure {
            let failures = self.failures;
            tracing::info!("{failures} addresses were not inserted, the first at {at}: {error}");
        }
    }
}

/// A call that inserts `count` addresses, and answers how many were; 0 where events will tell.
///
/// # Safety
/// `av` is an open vector; the rest as [`insert_each`].
unsafe fn call<C: IntoIterator<Item: Into<Candidate>>>(
    name: &str,
    av: *mut FidAv,
    count: usize,
    outputs: Outputs,
    candidates: impl FnOnce(&State) -> Result<C, Failure>,
) -> c_int {
    guarded(name, || {
        // SAFETY: the caller vouches for it.
        let state = unsafe { object::owned(av) }?;
        let candidates = candidates(state);
        // SAFETY: as above.
        let inserted = candidates
            .and_then(|candidates| unsafe { insert_each(state, av as u64, candidates, outputs) });
        if let Err(failure) = &inserted {
            // SAFETY: as above.
            unsafe { outputs.fail(count, failure.errno, !state.vector.is_asynchronous()) };
        }
        inserted
    })
}

/// Inserts, and reports as object `fid` where events tell.
///
/// # Safety
/// As [`Results::new`]; with FI_AV_USER_ID or FI_AUTH_KEY, `fi_addr` is valid for reads as well.
unsafe fn insert_each(
    state: &State,
    fid: u64,
    candidates: impl IntoIterator<Item = impl Into<Candidate>>,
    Outputs { fi_addr, flags, context }: Outputs,
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
    // "Because insertions occur at a pre-determined index, the fi_addr parameter may be NULL."
    let mut marks = if fi_addr.is_null() { Marks::Places } else { Marks::None };
    if flags.contains(AddressVectorFlags::AUTH_KEY) && !state.vector.has_auth_keys() {
        return Err(AddressVectorError::NoAuthKeys.into());
    }
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
        marks = Marks::AuthKeys(&mut id_at);
    }
    let report = |result| results.add(result);
    let candidates =
        candidates.into_iter().map(|candidate| fitting(state.format, candidate.into()));
    if state.vector.is_asynchronous() {
        if flags.contains(AddressVectorFlags::SYNC_ERR) {
            return Err(AddressVectorError::SyncErrWithEvents.into());
        }
        if let Some(queue) = state.domain.event_queue() {
            state.vector.default_event_queue(queue, fid);
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
    let outputs = Outputs { fi_addr, flags, context };
    // SAFETY: C passes an open vector, and arrays of that many entries.
    unsafe {
        call("fi_av_insert", av, count, outputs, |state| {
            if addresses.is_null() && count > 0 {
                return Err(Failure::null("the addresses"));
            }
            Ok(address::read_each(state.format, addresses, count))
        })
    }
}

pub unsafe extern "C" fn insertsvc(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let outputs = Outputs { fi_addr, flags, context };
    // SAFETY: C passes an open vector, C strings or null, and room for one result.
    unsafe {
        call("fi_av_insertsvc", av, 1, outputs, |state| {
            let (node, service) = (hints::text(node), hints::text(service));
            // "Applications may also pass in an FI_ADDR_STR formatted address as the node
            // parameter. In such cases, the service parameter must be NULL."
            let written = node.as_deref().and_then(|node| node.parse::<Address>().ok());
            match (written, service) {
                (Some(address), None) => {
                    let all: Candidates = Box::new(iter::once(address.into()));
                    Ok(all)
                }
                (Some(address), Some(_)) => {
                    let reason = format!("{address} has its service, and another one is given");
                    Err(Failure::new(Errno::INVAL, reason))
                }
                (None, None) => Err(Failure::null("the service")),
                (None, Some(service)) => {
                    Ok(resolved(node.as_deref(), &service, state.format, 1, 1))
                }
            }
        })
    }
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
    let outputs = Outputs { fi_addr, flags, context };
    let count = node_count.checked_mul(service_count);
    let count = count.filter(|&count| c_int::try_from(count).is_ok());
    // SAFETY: C passes an open vector, C strings or null, and room for as many results.
    unsafe {
        call("fi_av_insertsym", av, count.unwrap_or(0), outputs, |state| {
            if count.is_none() {
                let reason = format!("{node_count} nodes of {service_count} services are too many");
                return Err(Failure::new(Errno::INVAL, reason));
            }
            if count == Some(0) {
                // So many nodes without a service, or services without a node, as anybody may say.
                let none: Candidates = Box::new(iter::empty());
                return Ok(none);
            }
            let (node, service) = (hints::text(node), hints::text(service));
            let service = service.ok_or_else(|| Failure::null("the service"))?;
            symmetric(node.as_deref(), node_count, &service, service_count, state.format)
        })
    }
}

/// What is to be inserted, made as it is.
type Candidates = Box<dyn Iterator<Item = Candidate>>;

/// Node by node: an address counts up, a name counts up by its suffix.
fn symmetric(
    node: Option<&str>,
    node_count: usize,
    service: &str,
    service_count: usize,
    format: AddressFormat,
) -> Result<Candidates, Failure> {
    let name = match node {
        Some(node) if !is_address(node) => node,
        _ => return Ok(resolved(node, service, format, node_count, service_count)),
    };
    let nodes = (0..node_count).map(|at| {
        let name = symmetric_host_name(name, at)?;
        Ok(resolved(Some(&name), service, format, 1, service_count))
    });
    let nodes: Result<Vec<Candidates>, Failure> = nodes.collect();
    Ok(Box::new(nodes?.into_iter().flatten()))
}

/// Whether a node is an address, which counts up itself: one of IPv6 may have a scope, which does not.
fn is_address(node: &str) -> bool {
    match node.split_once('%') {
        Some((ip, _)) => ip.parse::<Ipv6Addr>().is_ok(),
        None => node.parse::<IpAddr>().is_ok(),
    }
}

/// The services of nodes, from one on: no node is this host, as with fi_getinfo(3). A name that
/// nobody knows fails its insertion, not the call: other nodes may be known.
fn resolved(
    node: Option<&str>,
    service: &str,
    format: AddressFormat,
    node_count: usize,
    service_count: usize,
) -> Candidates {
    // An address is of one family, and refused if that is not the format's.
    let format = if node.is_some_and(is_address) { AddressFormat::Unspec } else { format };
    match discovery::resolve_as(format, node, Some(service)) {
        Ok(base) => Box::new(SymmetricRange::split(base, node_count, service_count)),
        Err(error) => {
            let (name, reason) = (node.unwrap_or_default().to_owned(), error.to_string());
            let error = AddressVectorError::Unresolved { name, reason };
            let count = node_count * service_count;
            Box::new(iter::once(Candidate::Failed { error, count }))
        }
    }
}
