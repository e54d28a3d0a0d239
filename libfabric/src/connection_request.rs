//! Connection requests: the handles in the infos of FI_CONNREQ events. Reference: fi_cm(3).
//!
//! A handle is an object like the others, that C never closes: what answers the request
//! does, or the passive endpoint when it is closed. An endpoint that is opened from a request has
//! not answered it yet: until it accepts, the request can be rejected.

use std::{collections::HashMap, sync::Arc};

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
    per_process::PerProcess,
};

/// The passive endpoints that are open, and the handles of requests to them that are not answered, by the
/// places of their objects: another one may come to lie where one was. Who looks here needs no object,
/// which another thread may be closing.
#[derive(Default)]
struct Known {
    listeners: HashMap<usize, Arc<PassiveEndpoint>>,
    requests: HashMap<usize, Request>,
}

/// A request as its passive endpoint knows it.
#[derive(Clone)]
struct Request {
    passive: Arc<PassiveEndpoint>,
    number: u64,
}

static KNOWN: PerProcess<Known> = PerProcess::new();

/// A passive endpoint is open from now on.
pub fn begin(pep: *mut FidPep, passive: Arc<PassiveEndpoint>) {
    KNOWN.lock().listeners.insert(pep as usize, passive);
}

/// A passive endpoint is closed: its requests mean nothing any more, and none is described from now on.
pub fn end(passive: &Arc<PassiveEndpoint>) {
    let mut known = KNOWN.lock();
    known.listeners.retain(|_, open| !Arc::ptr_eq(open, passive));
    let handles = known.requests.extract_if(|_, request| Arc::ptr_eq(&request.passive, passive));
    let handles: Vec<usize> = handles.map(|(handle, _)| handle).collect();
    drop(known);
    handles.into_iter().for_each(close);
}

/// Closes a handle that was just taken off the list.
fn close(handle: usize) {
    // SAFETY: it was open, and whoever takes it off the list closes it.
    unsafe { object::close::<FidRequest>(handle as *mut Fid) };
}

/// A handle has no state: what it stands for is in the list.
pub struct State;

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
/// application's to free. None: the passive endpoint has been closed.
pub fn describe(pep: u64, found: &info::Info) -> Result<Option<*mut Info>, Failure> {
    let mut known = KNOWN.lock();
    let Some(passive) = known.listeners.get(&(pep as usize)).cloned() else {
        return Ok(None);
    };
    let info = match answer::whole(found) {
        Ok(info) => info,
        Err(error) => {
            drop(known);
            // Nobody learns of it now: who asked is not to wait for an answer.
            passive.reject(found.handle, &[]).ok();
            return Err(error);
        }
    };
    let fid = object::fid::<FidRequest>(class::CONNREQ, std::ptr::null_mut());
    let handle = object::create(FidRequest { fid }, State);
    known.requests.insert(handle as usize, Request { passive, number: found.handle });
    // SAFETY: just made, and nobody else knows it.
    unsafe { (*info).handle = handle.cast() };
    Ok(Some(info))
}

/// What an endpoint that has a peer can be opened from.
pub enum Origin {
    /// Nothing: it connects.
    None,
    /// A passive endpoint that it takes over.
    Passive(Arc<PassiveEndpoint>),
    /// A request that it can accept, and its handle.
    Request(ConnectionRequest<Provider>, Handle),
}

/// The handle of a request, for the endpoint that was opened from it.
pub struct Handle {
    request: Request,
    object: *mut Fid,
}

// SAFETY: the object is closed by who takes it off the list, which has a lock, and by nobody else.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// What a handle stands for, which need not be of a request that is still there.
    fn of(object: *mut Fid) -> Option<Handle> {
        let request = KNOWN.lock().requests.get(&(object as usize)).cloned()?;
        Some(Handle { request, object })
    }

    /// Closes it, unless somebody has: it means nothing any more.
    pub fn close(&self) {
        let (mut known, at) = (KNOWN.lock(), self.object as usize);
        let Request { passive, number } = &self.request;
        let is_it = |it: &&Request| it.number == *number && Arc::ptr_eq(&it.passive, passive);
        if known.requests.get(&at).filter(is_it).is_none() {
            return;
        }
        known.requests.remove(&at);
        drop(known);
        close(at);
    }
}

impl Origin {
    /// What a handle in an info stands for. A request is taken: for no other endpoint. If it is over,
    /// since its caller is gone, so is its handle: who finds that has nothing left to reject.
    ///
    /// It is looked up, and not looked at: of an answered request, or of one whose passive endpoint
    /// was closed, nothing may be left.
    pub fn of(object: *mut Fid) -> Result<Self, Failure> {
        if object.is_null() {
            return Ok(Origin::None);
        }
        let Some(handle) = Handle::of(object) else {
            let open = KNOWN.lock().listeners.get(&(object as usize)).cloned();
            return open.map(Origin::Passive).ok_or_else(|| {
                let reason =
                    "the info's handle is no open passive endpoint, and no request that waits";
                Failure::new(Errno::INVAL, reason)
            });
        };
        let Request { passive, number } = &handle.request;
        match passive.take(*number) {
            Ok(request) => Ok(Origin::Request(request, handle)),
            Err(error) => {
                if passive.is_over(*number) {
                    handle.close();
                }
                Err(error.into())
            }
        }
    }
}

/// Rejects the request behind a handle, which means nothing any more.
pub fn reject(
    passive: &Arc<PassiveEndpoint>,
    handle: *mut Fid,
    data: &[u8],
) -> Result<(), Failure> {
    // Not looked at before it is known: of an answered request nothing may be left.
    let is_its = |handle: &Handle| Arc::ptr_eq(&handle.request.passive, passive);
    let handle = Handle::of(handle).filter(is_its).ok_or_else(|| {
        let reason = "no request of this passive endpoint that could be rejected";
        Failure::new(Errno::INVAL, reason)
    })?;
    let rejected = passive.reject(handle.request.number, data);
    handle.close();
    Ok(rejected?)
}
