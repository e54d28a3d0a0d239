//! Connection requests: the handles in the infos of FI_CONNREQ events. Reference: fi_cm(3).
//!
//! A handle is an object like the others, that C never closes: what answers the request
//! does, or the passive endpoint when it is closed. An endpoint that is opened from a request has
//! not answered it yet: until it accepts, the request can be rejected.

use std::sync::Arc;

use kestrel::{PassiveEndpoint, objects::Provider};
use kestrel_core::{connection::request::ConnectionRequest, error::Errno, info};

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

// Of its own, by which it is known. What closes a handle goes without it.
static FID: OpsFid = FID_NOSYS;

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
    owner.requests().add(handle, found.handle);
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
    /// A request that it can accept, and its handle.
    Request(ConnectionRequest<Provider>, Handle),
}

/// The handle of a request, for the endpoint that was opened from it.
pub struct Handle {
    requests: Arc<Requests>,
    object: *mut Fid,
    number: u64,
}

// SAFETY: the object is looked at by the list of handles alone, which has a lock.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Closes it, unless somebody has: it means nothing any more.
    pub fn close(&self) {
        self.requests.forget(self.object, self.number);
    }
}

impl Origin<'_> {
    /// What a handle in an info stands for. A request is taken: for no other endpoint. If it is over,
    /// since its caller is gone, so is its handle: who finds that has nothing left to reject.
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
            let state = object::checked::<FidRequest>(handle)?;
            let (passive, number) = (state.passive.clone(), state.handle);
            let handle = Handle { requests: state.requests.clone(), object: handle, number };
            match passive.take(number) {
                Ok(request) => Ok(Origin::Request(request, handle)),
                Err(error) => {
                    if passive.is_over(number) {
                        handle.close();
                    }
                    Err(error.into())
                }
            }
        }
    }
}

/// Rejects the request behind a handle, which means nothing any more.
pub fn reject(
    passive: &PassiveEndpoint,
    requests: &Requests,
    handle: *mut Fid,
    data: &[u8],
) -> Result<(), Failure> {
    // Not looked at before it is known: of an answered request nothing may be left.
    let number = requests.number_of(handle).ok_or_else(|| {
        let reason = "no request of this passive endpoint that could be rejected";
        Failure::new(Errno::INVAL, reason)
    })?;
    let rejected = passive.reject(number, data);
    requests.forget(handle, number);
    Ok(rejected?)
}
