//! Fabrics: what domains and event queues are opened on. Reference: fi_fabric(3).

use std::{
    ffi::{CStr, c_int, c_void},
    slice,
    sync::{Arc, OnceLock},
};

use kestrel::discovery::FABRIC;
use kestrel_core::{bind_count::BindCount, error::Errno, info::ApiVersion};

use crate::{
    abi::{
        constants::{BADF, NOSYS},
        control::{OpsFabric, OpsFid},
        fid::{Fid, FidCntr, FidCq, FidDomain, FidEq, FidFabric, FidWait, class},
        info::{FabricAttr, Info},
    },
    completion_queue, counter, domain, event_queue,
    instances::Known,
    object::{self, FID_NOSYS, Header},
    outcome::{Failure, done},
    passive_endpoint, wait_set,
};

/// What we keep of a fabric.
pub struct State {
    /// What is open on it.
    pub uses: Arc<BindCount>,
    version: ApiVersion,
    /// What discovery knows of it.
    known: OnceLock<Known>,
}

static FID: OpsFid = OpsFid { close: object::close::<FidFabric>, ..FID_NOSYS };
static OPERATIONS: OpsFabric = OpsFabric {
    domain,
    eq_open: event_queue::open,
    wait_open: wait_set::open,
    trywait,
    domain2,
    passive_ep: passive_endpoint::open,
    ..OpsFabric::refusing::<NOSYS>()
};
static CLOSED: OpsFabric = OpsFabric::refusing::<BADF>();

impl Header for FidFabric {
    type State = State;
    const NAME: &'static str = "fabric";

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
        Ok(state.uses.close()?)
    }
}

/// Reference: fi_fabric(3), `fi_fabric`.
pub unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    done("fi_fabric", || {
        // SAFETY: libfabric passes valid pointers or null.
        let (attr, place) = unsafe { (attr.as_ref(), object::out(fabric)?) };
        let attr = attr.ok_or_else(|| Failure::null("the fabric's attributes"))?;
        if !attr.name.is_null() {
            // SAFETY: the name is a C string.
            let name = unsafe { CStr::from_ptr(attr.name) };
            if name.to_bytes() != FABRIC.as_bytes() {
                let reason = format!("there is no fabric {name:?}, there is {FABRIC:?}");
                return Err(Failure::new(Errno::NODATA, reason));
            }
        }
        let fid = object::fid::<FidFabric>(class::FABRIC, context);
        let header = FidFabric { fid, ops: &raw const OPERATIONS, api_version: attr.api_version };
        let version = ApiVersion(attr.api_version);
        let state = State { uses: Arc::default(), version, known: OnceLock::new() };
        *place = object::create(header, state);
        // SAFETY: just made; nobody else was first.
        let _ = unsafe { object::state(*place) }.known.set(Known::fabric(*place));
        Ok(())
    })
}

/// The version that the application asked for. libfabric writes it into the object, once
/// `fabric()` has returned; an application from before that has it in the attributes.
///
/// # Safety
/// As [`object::state`].
pub unsafe fn version(fabric: *mut FidFabric) -> ApiVersion {
    // SAFETY: the caller vouches for it.
    let (told, known) = unsafe { ((*fabric).api_version, object::state(fabric).version) };
    if told == 0 { known } else { ApiVersion(told) }
}

unsafe extern "C" fn domain(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as this function's own contract (see the crate's documentation).
    unsafe { domain::open(fabric, info, domain, 0, context) }
}

unsafe extern "C" fn domain2(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { domain::open(fabric, info, domain, flags, context) }
}

/// Reference: fi_poll(3), `fi_trywait`.
unsafe extern "C" fn trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    done("fi_trywait", || {
        // SAFETY: the application passes an open fabric.
        unsafe { object::owned(fabric) }?;
        let count = usize::try_from(count)
            .map_err(|_| Failure::new(Errno::INVAL, format!("{count} objects")))?;
        if count > 0 && fids.is_null() {
            return Err(Failure::null("the list of objects"));
        }
        // SAFETY: the application passes that many.
        let fids = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(fids, count) } };
        for &fid in fids {
            // SAFETY: the application passes open objects.
            let may_wait = unsafe { try_wait_for(fid) }?;
            if !may_wait {
                return Err(Failure::new(Errno::AGAIN, "there is something to read"));
            }
        }
        Ok(())
    })
}

/// # Safety
/// As [`object::checked`].
unsafe fn try_wait_for(fid: *mut Fid) -> Result<bool, Failure> {
    if fid.is_null() {
        return Err(Failure::null("an object to wait for"));
    }
    // SAFETY: every object starts with a `struct fid`.
    let table = unsafe { (*fid).ops };
    // SAFETY: objects are of the kind whose table they point to.
    unsafe {
        if table == FidCq::operations() {
            completion_queue::try_wait(object::checked::<FidCq>(fid)?)
        } else if table == FidCntr::operations() {
            counter::try_wait(object::checked::<FidCntr>(fid)?)
        } else if table == FidEq::operations() {
            Ok(object::checked::<FidEq>(fid)?.try_wait())
        } else if table == FidWait::operations() {
            object::checked::<FidWait>(fid)?.try_wait()
        } else {
            Err(Failure::new(Errno::INVAL, "no object that can be waited for outside"))
        }
    }
}
