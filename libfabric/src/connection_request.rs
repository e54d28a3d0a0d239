//! Connection requests: the handles in the infos of FI_CONNREQ events. Reference: fi_cm(3).
//!
//! A handle is an object like the others, that C never closes: what answers the request
//! does, or the passive endpoint when it is closed.

use std::sync::Arc;

use kestrel::{PassiveEndpoint, objects::Provider};
use kestrel_core::{connection::request::ConnectionRequest, info};

use crate::{
    abi::{
        control::OpsFid,
        fid::{Fid, FidPep, FidRequest, class},
        info::Info,
    },
    answer,
    object::{self, FID_NOSYS, Header},
    outcome::Failure,
    passive_endpoint::Requests,
};

/// What we keep of a request.
pub struct State {
    passive: Arc<PassiveEndpoint>,
    requests: Arc<Requests>,
    handle: u64,
}

static FID: OpsFid = OpsFid { close: object::close::<FidRequest>, ..FID_NOSYS };

impl Header for FidRequest {
    type State = State;
    const NAME: &'static str = "connection request";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {}
    fn close(_: &State) -> Result<(), Failure> {
        Ok(())
    }
}

/// The info of a request that came to the passive endpoint `pep`, with a handle. It is the
/// application's to free.
///
/// # Safety
/// `pep` is open.
pub unsafe fn describe(pep: *mut Fid, found: &info::Info) -> Result<*mut Info, Failure> {
    // SAFETY: the caller vouches for it.
    let owner = unsafe { object::checked::<FidPep>(pep) }?;
    let info = answer::whole(found)?;
    let state = State {
        passive: owner.passive().clone(),
        requests: owner.requests().clone(),
        handle: found.handle,
    };
    let fid = object::fid::<FidRequest>(class::CONNREQ, std::ptr::null_mut());
    let handle = object::create(FidRequest { fid }, state);
    owner.requests().add(handle);
    // SAFETY: just made, and nobody else knows it.
    unsafe { (*info).handle = handle.cast() };
    Ok(info)
}

/// What an endpoint that has a peer can be opened from.
pub enum Origin<'a> {
    /// Nothing: it connects.
    None,
    /// A passive endpoint that it takes over.
    Passive(&'a PassiveEndpoint),
    /// A request that it can accept.
    Request(ConnectionRequest<Provider>),
}

impl Origin<'_> {
    /// What a handle in an info stands for. A request is taken.
    ///
    /// # Safety
    /// The handle is null or points to a passive endpoint or a request for a connection.
    pub unsafe fn of(handle: *mut Fid) -> Result<Self, Failure> {
        if handle.is_null() {
            return Ok(Origin::None);
        }
        // SAFETY: the caller vouches for it; every object starts with a `struct fid`.
        unsafe {
            if (*handle).ops == FidPep::operations() {
                return Ok(Origin::Passive(object::checked::<FidPep>(handle)?.passive()));
            }
            Ok(Origin::Request(take(handle)?))
        }
    }
}

/// Takes the request behind a handle, which means nothing any more.
///
/// # Safety
/// As [`object::checked`].
unsafe fn take(handle: *mut Fid) -> Result<ConnectionRequest<Provider>, Failure> {
    // SAFETY: the caller vouches for it.
    let state = unsafe { object::checked::<FidRequest>(handle) }?;
    let taken = state.passive.take(state.handle);
    state.requests.clone().forget(handle);
    Ok(taken?)
}

/// Rejects the request behind a handle, which means nothing any more.
///
/// # Safety
/// As [`object::checked`].
pub unsafe fn reject(
    passive: &Arc<PassiveEndpoint>,
    handle: *mut Fid,
    data: &[u8],
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    let state = unsafe { object::checked::<FidRequest>(handle) }?;
    if !Arc::ptr_eq(passive, &state.passive) {
        let reason = "the request came to another passive endpoint";
        return Err(Failure::new(kestrel_core::error::Errno::INVAL, reason));
    }
    let rejected = state.passive.reject(state.handle, data);
    state.requests.clone().forget(handle);
    Ok(rejected?)
}
