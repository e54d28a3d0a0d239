//! Passive endpoints. Reference: fi_endpoint(3), `fi_passive_ep`; fi_cm(3).

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{PassiveEndpoint, objects};
use kestrel_core::{
    address::{Address, AddressFormat},
    connection::CM_DATA_SIZE,
    endpoint::OptionName,
    error::Errno,
    info::EndpointType,
};

use crate::{
    abi::{
        constants::{NOSYS, command},
        control::{OpsCm, OpsEp, OpsFid},
        fid::{Fid, FidEq, FidFabric, FidPep, class},
        info::Info,
    },
    connection_request,
    endpoint::{
        connection::{self, Named},
        options::{self, Options},
    },
    fabric, hints,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    parameters,
    refused::closed,
};

/// What we keep of a passive endpoint.
pub struct State {
    passive: Arc<PassiveEndpoint>,
    format: AddressFormat,
    _fabric: Use,
}

impl State {
    pub fn passive(&self) -> &Arc<PassiveEndpoint> {
        &self.passive
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidPep>, bind, control, ..FID_NOSYS };
static OPERATIONS: OpsEp =
    OpsEp { getopt: options::getopt::<FidPep>, ..OpsEp::refusing::<NOSYS>() };
static CONNECTIONS: OpsCm = OpsCm { listen, reject, ..connection::names::<FidPep>() };

impl Options for State {
    fn option(&self, name: OptionName) -> Result<usize, Failure> {
        match name {
            OptionName::CmDataSize => Ok(CM_DATA_SIZE),
            OptionName::MinMultiRecv
            | OptionName::BufferedMin
            | OptionName::BufferedLimit
            | OptionName::SharedMemoryPermitted => {
                Err(Failure::new(Errno::NOPROTOOPT, "a passive endpoint receives no messages"))
            }
        }
    }
}

impl Named for State {
    fn format(&self) -> AddressFormat {
        self.format
    }
    fn address(&self) -> Address {
        self.passive.address()
    }
    fn set_address(&self, address: Address) -> Result<(), Failure> {
        Ok(self.passive.set_address(address)?)
    }
}

impl Header for FidPep {
    type State = State;
    const NAME: &'static str = "passive endpoint";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const closed::EP;
        self.cm = &raw const closed::CM;
    }
    fn close(state: &State) -> Result<(), Failure> {
        state.passive.close();
        connection_request::end(&state.passive);
        Ok(())
    }
}

/// Reference: fi_endpoint(3), `fi_passive_ep`.
pub unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    pep: *mut *mut FidPep,
    context: *mut c_void,
) -> c_int {
    done("fi_passive_ep", || {
        // SAFETY: C passes an open fabric and valid pointers or null.
        let (place, parent, version) =
            unsafe { (object::out(pep)?, object::owned(fabric)?, fabric::version(fabric)) };
        let config = parameters::config()?;
        // SAFETY: as above.
        let info = unsafe { hints::agree(info, &config, version) }?;
        if !matches!(info.endpoint.kind, EndpointType::Msg | EndpointType::SockStream) {
            let reason = format!("endpoints of type {} do not listen", info.endpoint.kind);
            return Err(Failure::new(Errno::INVAL, reason));
        }
        let state = State {
            passive: objects::open_passive_endpoint_with(&info, &config)?,
            format: info.address_format,
            _fabric: Use::of(&parent.uses)?,
        };
        let fid = object::fid::<FidPep>(class::PEP, context);
        let (ops, cm) = (&raw const OPERATIONS, &raw const CONNECTIONS);
        let passive = state.passive.clone();
        *place = object::create(FidPep { fid, ops, cm }, state);
        connection_request::begin(*place, passive);
        Ok(())
    })
}

/// Reference: fi_endpoint(3), `fi_pep_bind`, which names no flags: what a program has there means nothing, as
/// on other providers (asiofi has FI_CONNREQ there).
unsafe extern "C" fn bind(pep: *mut Fid, other: *mut Fid, _: u64) -> c_int {
    done("fi_pep_bind", || {
        // SAFETY: C passes open objects.
        unsafe {
            let state = object::owned(pep.cast::<FidPep>())?;
            let queue = object::checked::<FidEq>(other)?.queue();
            Ok(state.passive.bind_event_queue(queue, pep as u64)?)
        }
    })
}

unsafe extern "C" fn control(pep: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open endpoint.
        let state = unsafe { object::owned(pep.cast::<FidPep>()) }?;
        if command != command::BACKLOG {
            let reason = format!("command {command} of a passive endpoint");
            return Err(Failure::new(Errno::NOSYS, reason));
        }
        // SAFETY: the argument of this command is an `int *`.
        let backlog = unsafe { argument.cast::<c_int>().as_ref() };
        let backlog = *backlog.ok_or_else(|| Failure::null("the argument"))?;
        Ok(state.passive.set_backlog(backlog)?)
    })
}

unsafe extern "C" fn listen(pep: *mut FidPep) -> c_int {
    done("fi_listen", || {
        // SAFETY: C passes an open endpoint.
        Ok(unsafe { object::owned(pep) }?.passive.listen()?)
    })
}

unsafe extern "C" fn reject(
    pep: *mut FidPep,
    handle: *mut Fid,
    param: *const c_void,
    length: usize,
) -> c_int {
    done("fi_reject", || {
        // SAFETY: C passes an open endpoint, a handle of an event's, and that much data.
        unsafe {
            let state = object::owned(pep)?;
            let data = connection::data(param, length)?;
            connection_request::reject(&state.passive, handle, data)
        }
    })
}
