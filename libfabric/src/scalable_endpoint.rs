//! Scalable endpoints, and how their contexts are opened; a context is an endpoint like others.
//! Reference: fi_endpoint(3), "SCALABLE ENDPOINTS".

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{ScalableEndpoint, objects};
use kestrel_core::{
    address::{Address, AddressFormat},
    bind_count::BindCount,
    config::Config,
    endpoint::{DefaultFlags, EndpointOptions, OptionName},
    error::Errno,
    info::{self, ApiVersion},
};

use crate::{
    abi::{
        constants::{NOSYS, command},
        control::{OpsCm, OpsEp, OpsFid},
        fid::{Fid, FidAv, FidDomain, FidEp, FidSep, FidSrx, FidStx, class},
        info::{Info, RxAttr, TxAttr},
    },
    context_attributes::Whole,
    endpoint::{
        self,
        connection::{self, Named},
        defaults::{self, Aliased},
        limits::Limits,
        options::{ChangeableOptions, Options, getopt, setopt},
    },
    hints,
    memory_region::DescriptorLists,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    refused::{self, closed},
};

/// What we keep of a scalable endpoint.
pub struct State {
    endpoint: Arc<ScalableEndpoint>,
    info: info::Info,
    /// What `fi_getopt` tells.
    limits: Limits,
    config: Config,
    version: ApiVersion,
    /// The flags that contexts inherit: each alias has its own.
    defaults: DefaultFlags,
    is_alias: bool,
    /// What its contexts keep open as well.
    domain: Arc<BindCount>,
    /// The domain, or the endpoint that this is an alias of.
    _parent: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidSep>, bind, control, ..FID_NOSYS };
static OPERATIONS: OpsEp = OpsEp {
    getopt: getopt::<FidSep>,
    setopt: setopt::<FidSep>,
    tx_ctx,
    rx_ctx,
    ..OpsEp::refusing::<NOSYS>()
};
static CM: OpsCm = connection::names::<FidSep>();

/// The address of all contexts.
impl Named for State {
    fn format(&self) -> AddressFormat {
        self.info.address_format
    }
    fn address(&self) -> Address {
        self.endpoint.address()
    }
    fn set_address(&self, address: Address) -> Result<(), Failure> {
        Ok(self.endpoint.set_address(address)?)
    }
}

/// What it is not asked about is a context's.
impl Options for State {
    fn limits(&self) -> Option<&Limits> {
        Some(&self.limits)
    }
    fn option(&self, name: OptionName) -> Result<usize, Failure> {
        Ok(self.endpoint.option(name)?)
    }
}

impl ChangeableOptions for State {
    fn set_option(&self, name: OptionName, value: usize) -> Result<(), Failure> {
        Ok(self.endpoint.set_option(name, value)?)
    }
}

impl Header for FidSep {
    type State = State;
    const NAME: &'static str = "scalable endpoint";

    fn fid(&mut self) -> &mut Fid {
        &mut self.0.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.0.ops = &raw const closed::EP;
        self.0.cm = &raw const closed::CM;
    }
    /// "All allocated aliases must be closed for the underlying endpoint to be released."
    fn close(state: &State) -> Result<(), Failure> {
        if !state.is_alias {
            state.endpoint.close()?;
        }
        Ok(())
    }
}

/// Reference: fi_endpoint(3), `fi_scalable_ep`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    sep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    done("fi_scalable_ep", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        let (place, parent) = unsafe { (object::out(sep)?, object::owned(domain)?) };
        // SAFETY: as above.
        let mut info = unsafe { hints::agree(info, &parent.config, parent.version) }?;
        parent.settle(&mut info)?;
        let in_use = Use::of(&parent.uses)?;
        let endpoint = objects::open_scalable_endpoint(&parent.domain, &info)?;
        let limits = Limits::of(&info, endpoint.options());
        let state = State {
            defaults: DefaultFlags::of(endpoint.options()),
            endpoint,
            is_alias: false,
            limits,
            info,
            config: parent.config.clone(),
            version: parent.version,
            domain: parent.uses.clone(),
            _parent: in_use,
        };
        *place = object::create(header(context), state).cast();
        Ok(())
    })
}

fn header(context: *mut c_void) -> FidSep {
    FidSep(FidEp {
        fid: object::fid::<FidSep>(class::SEP, context),
        ops: &raw const OPERATIONS,
        cm: &raw const CM,
        // "Scalable endpoints cannot be used directly for communication operations".
        msg: &raw const refused::MSG,
        rma: &raw const refused::RMA,
        tagged: &raw const refused::TAGGED,
        atomic: &raw const refused::ATOMIC,
        collective: &raw const refused::COLLECTIVE,
    })
}

/// Nothing is posted to either, but "by default, a transmit context inherits the properties of its
/// associated endpoint": the flags are what contexts that are opened by this way begin with.
impl Aliased for FidSep {
    fn defaults(state: &State) -> &DefaultFlags {
        &state.defaults
    }
    fn options(state: &State) -> &EndpointOptions {
        state.endpoint.options()
    }
    fn alias(state: &State, fid: &Fid, defaults: DefaultFlags) -> Result<*mut Self, Failure> {
        let other = State {
            endpoint: state.endpoint.clone(),
            info: state.info.clone(),
            limits: state.limits,
            config: state.config.clone(),
            version: state.version,
            defaults,
            is_alias: true,
            domain: state.domain.clone(),
            _parent: Use::of(state.endpoint.uses())?,
        };
        Ok(object::create(header(fid.context), other))
    }
}

/// Reference: fi_endpoint(3), `fi_scalable_ep_bind`.
unsafe extern "C" fn bind(sep: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_scalable_ep_bind", || {
        if flags != 0 {
            return Err(Failure::flags("fi_scalable_ep_bind", flags));
        }
        // SAFETY: C passes open objects, each of the kind whose table it points to.
        unsafe {
            let endpoint = &object::owned(sep.cast::<FidSep>())?.endpoint;
            if other.is_null() {
                return Err(Failure::null("what to bind"));
            }
            let table = (*other).ops;
            if table == FidStx::operations() {
                let shared = &object::checked::<FidStx>(other)?.context;
                return Ok(endpoint.bind_shared_transmit(shared)?);
            }
            if table == FidSrx::operations() {
                let shared = &object::checked::<FidSrx>(other)?.context;
                return Ok(endpoint.bind_shared_receive(shared)?);
            }
            let vector = object::checked::<FidAv>(other)?.vector_for(endpoint.domain())?;
            Ok(endpoint.bind_address_vector(vector)?)
        }
    })
}

unsafe extern "C" fn control(sep: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        let sep = sep.cast::<FidSep>();
        // SAFETY: C passes an open endpoint, and the argument of the command.
        unsafe {
            match command {
                command::ENABLE => Ok(object::owned(sep)?.endpoint.enable()?),
                _ => defaults::control(sep, command, argument),
            }
        }
    })
}

impl State {
    /// What contexts inherit.
    fn inherited(&self) -> info::Info {
        let mut info = self.info.clone();
        info.transmit.op_flags = self.defaults.transmit();
        info.receive.op_flags = self.defaults.receive();
        info.transmit.traffic_class = self.endpoint.options().traffic_class;
        info
    }

    fn whole<'a>(&'a self, info: &'a info::Info) -> Whole<'a> {
        Whole { info, config: &self.config, version: self.version }
    }
}

fn place_of(index: c_int) -> Result<usize, Failure> {
    usize::try_from(index)
        .map_err(|_| Failure::new(Errno::INVAL, format!("there is no context {index}")))
}

/// Reference: fi_endpoint(3), `fi_tx_context`.
unsafe extern "C" fn tx_ctx(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut TxAttr,
    tx: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    done("fi_tx_context", || {
        // SAFETY: C passes an open scalable endpoint, and valid pointers or null.
        unsafe {
            let (place, state) = (object::out(tx)?, object::owned(sep.cast::<FidSep>())?);
            let info = state.whole(&state.inherited()).transmit(attr)?;
            let options = endpoint::setup::options_with(&info, context);
            let opened = state.endpoint.transmit_context(place_of(index)?, options)?;
            let in_use = Use::of(&state.domain)?;
            let opened = (opened, DescriptorLists::of(state.version));
            *place = endpoint::setup::create(class::TX_CTX, context, opened, &info, in_use);
        }
        Ok(())
    })
}

/// Reference: fi_endpoint(3), `fi_rx_context`.
unsafe extern "C" fn rx_ctx(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut RxAttr,
    rx: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    done("fi_rx_context", || {
        // SAFETY: C passes an open scalable endpoint, and valid pointers or null.
        unsafe {
            let (place, state) = (object::out(rx)?, object::owned(sep.cast::<FidSep>())?);
            let info = state.whole(&state.inherited()).receive(attr)?;
            let options = endpoint::setup::options_with(&info, context);
            let opened = state.endpoint.receive_context(place_of(index)?, options)?;
            let in_use = Use::of(&state.domain)?;
            let opened = (opened, DescriptorLists::of(state.version));
            *place = endpoint::setup::create(class::RX_CTX, context, opened, &info, in_use);
        }
        Ok(())
    })
}
