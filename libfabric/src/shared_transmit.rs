//! Shared transmit contexts: bound to endpoints, which send. Reference: fi_endpoint(3),
//! `fi_stx_context`.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{SharedTransmit, objects};

use crate::{
    abi::{
        constants::NOSYS,
        control::{OpsEp, OpsFid},
        fid::{Fid, FidDomain, FidStx, class},
        info::TxAttr,
    },
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    refused::closed,
};

/// What we keep of a shared transmit context.
pub struct State {
    pub context: Arc<SharedTransmit>,
    _domain: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidStx>, ..FID_NOSYS };
static OPERATIONS: OpsEp = OpsEp::refusing::<NOSYS>();

impl Header for FidStx {
    type State = State;
    const NAME: &'static str = "shared transmit context";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const closed::EP;
    }
    fn close(state: &State) -> Result<(), Failure> {
        Ok(state.context.close()?)
    }
}

/// Reference: fi_endpoint(3), `fi_stx_context`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut TxAttr,
    stx: *mut *mut FidStx,
    context: *mut c_void,
) -> c_int {
    done("fi_stx_context", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        unsafe {
            let (place, parent) = (object::out(stx)?, object::owned(domain)?);
            let info = parent.whole().shared_transmit(attr)?;
            let in_use = Use::of(&parent.uses)?;
            let options = objects::endpoint_options(&info);
            let opened = SharedTransmit::open(&parent.domain, options)?;
            let fid = object::fid::<FidStx>(class::STX_CTX, context);
            let header = FidStx { fid, ops: &raw const OPERATIONS };
            *place = object::create(header, State { context: opened, _domain: in_use });
        }
        Ok(())
    })
}
