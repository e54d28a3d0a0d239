//! Opening, binding and enabling. Reference: fi_endpoint(3).

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{Domain, Endpoint, objects};
use kestrel_core::{
    domain::Sharing,
    endpoint::{DefaultFlags, EndpointOptions},
    error::Errno,
    flags::Flags,
    info::{self, EndpointType},
    socket_endpoint::SocketKind,
};

use super::{
    Request, State, atomic, connection,
    defaults::{self, Aliased},
    limits::Limits,
    message, options, rma, tagged,
};
use crate::{
    abi::{
        constants::command,
        fid::{Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp, FidEq, FidMr, FidSrx, FidStx, class},
        info::Info,
    },
    connection_request::{Handle, Origin},
    hints,
    memory_region::DescriptorLists,
    object::{self, Header, Use},
    outcome::{Failure, done},
    refused, socket_endpoint,
};

/// Reference: fi_endpoint(3), `fi_endpoint`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as this function's own contract.
    unsafe { open_with_flags(domain, info, ep, 0, context) }
}

/// Reference: fi_endpoint(3), `fi_endpoint2`.
pub unsafe extern "C" fn open_with_flags(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    done("fi_endpoint", || {
        if flags != 0 {
            return Err(Failure::flags("fi_endpoint2", flags));
        }
        // SAFETY: C passes an open domain and valid pointers or null.
        let (place, parent) = unsafe { (object::out(ep)?, object::owned(domain)?) };
        // SAFETY: as above.
        let mut info = unsafe { hints::agree(info, &parent.config, parent.version) }?;
        parent.settle(&mut info)?;
        let in_use = Use::of(&parent.uses)?;
        if let Some(kind) = SocketKind::of(info.endpoint.kind) {
            *place = socket_endpoint::open(&parent.domain, kind, &info, context, in_use)?;
            return Ok(());
        }
        let (endpoint, request) = open_core(&parent.domain, &info, context)?;
        let opened = (endpoint, DescriptorLists::of(parent.version));
        *place = create_for(class::EP, context, opened, &info, in_use, Request::of(request));
        Ok(())
    })
}

/// The object of an endpoint, or of a context of one, that was opened with `info`.
pub fn create(
    class: usize,
    context: *mut c_void,
    endpoint: (Arc<Endpoint>, DescriptorLists),
    info: &info::Info,
    parent: Use,
) -> *mut FidEp {
    create_for(class, context, endpoint, info, parent, Request::default())
}

fn create_for(
    class: usize,
    context: *mut c_void,
    (endpoint, lists): (Arc<Endpoint>, DescriptorLists),
    info: &info::Info,
    parent: Use,
    request: Request,
) -> *mut FidEp {
    let limits = Limits::of(info, endpoint.options());
    let state = State {
        defaults: endpoint.default_flags().clone(),
        endpoint,
        aliases: Arc::default(),
        is_alias: false,
        format: info.address_format,
        request,
        limits,
        lists,
        _parent: parent,
    };
    let announced = state.endpoint.clone();
    let created = object::create(header(class, context), state);
    announced.announce_as(created as u64);
    created
}

/// What an endpoint, or a context of one, is opened with.
pub fn options_with(info: &info::Info, context: *mut c_void) -> EndpointOptions {
    EndpointOptions { context: context as u64, ..objects::endpoint_options(info) }
}

/// A connected endpoint may have a handle: what it is opened from.
fn open_core(
    domain: &Arc<Domain>,
    info: &info::Info,
    context: *mut c_void,
) -> Result<(Arc<Endpoint>, Option<Handle>), Failure> {
    let options = || options_with(info, context);
    if info.endpoint.kind != EndpointType::Msg {
        return Ok((Endpoint::open(domain, options())?, None));
    }
    if domain.sharing() == Sharing::Exclusive {
        // Its completion queues are for one thread, and who reads an event queue is another.
        let reason = "the domain was opened with FI_THREAD_DOMAIN for another type of endpoint";
        return Err(Failure::new(Errno::INVAL, reason));
    }
    Ok(match Origin::of(info.handle as *mut Fid)? {
        Origin::None => (Endpoint::open(domain, options())?, None),
        Origin::Passive(passive) => (Endpoint::open_instead_of(domain, options(), &passive)?, None),
        Origin::Request(request, handle) => {
            (Endpoint::open_for(domain, options(), request)?, Some(handle))
        }
    })
}

fn header(class: usize, context: *mut c_void) -> FidEp {
    FidEp {
        fid: object::fid::<FidEp>(class, context),
        ops: &raw const options::OPERATIONS,
        cm: &raw const connection::OPERATIONS,
        msg: &raw const message::OPERATIONS,
        rma: &raw const rma::OPERATIONS,
        tagged: &raw const tagged::OPERATIONS,
        atomic: &raw const atomic::OPERATIONS,
        collective: &raw const refused::COLLECTIVE,
    }
}

impl Aliased for FidEp {
    fn defaults(state: &State) -> &DefaultFlags {
        &state.defaults
    }
    fn options(state: &State) -> &EndpointOptions {
        state.endpoint.options()
    }
    fn alias(state: &State, fid: &Fid, defaults: DefaultFlags) -> Result<*mut Self, Failure> {
        let other = State {
            endpoint: state.endpoint.clone(),
            defaults,
            aliases: state.aliases.clone(),
            is_alias: true,
            format: state.format,
            request: Request::default(),
            limits: state.limits,
            lists: state.lists,
            _parent: Use::of(&state.aliases)?,
        };
        Ok(object::create(header(fid.fclass, fid.context), other))
    }
}

/// Reference: fi_endpoint(3), `fi_ep_bind`.
pub unsafe extern "C" fn bind(ep: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_ep_bind", || {
        if other.is_null() {
            return Err(Failure::null("what to bind"));
        }
        let bits = Flags::from_bits_retain(flags);
        // SAFETY: C passes open objects, each of the kind whose table it points to.
        unsafe {
            let state = object::owned(ep.cast::<FidEp>())?;
            let endpoint = &state.endpoint;
            let table = (*other).ops;
            if table == FidCq::operations() {
                let queue = &object::checked::<FidCq>(other)?.queue;
                return Ok(endpoint.bind_completion_queue(queue, bits)?);
            }
            if table == FidCntr::operations() {
                let counter = &object::checked::<FidCntr>(other)?.counter;
                return Ok(endpoint.bind_counter(counter, bits)?);
            }
            let no_flags = || match flags {
                0 => Ok(()),
                _ => Err(Failure::flags("fi_ep_bind", flags)),
            };
            if table == FidAv::operations() {
                no_flags()?;
                let vector = object::checked::<FidAv>(other)?.vector_for(endpoint.domain())?;
                return Ok(endpoint.bind_address_vector(vector)?);
            }
            if table == FidMr::operations() {
                no_flags()?;
                return object::checked::<FidMr>(other)?.bind_endpoint(state);
            }
            if table == FidStx::operations() {
                no_flags()?;
                let shared = &object::checked::<FidStx>(other)?.context;
                return Ok(endpoint.bind_shared_transmit(shared)?);
            }
            if table == FidSrx::operations() {
                no_flags()?;
                let shared = &object::checked::<FidSrx>(other)?.context;
                return Ok(endpoint.bind_shared_receive(shared)?);
            }
            if table == FidEq::operations() {
                no_flags()?;
                let queue = object::checked::<FidEq>(other)?.queue();
                // The events of an endpoint name it, and not an alias by which it was bound.
                return Ok(endpoint.bind_event_queue(queue, endpoint.known_as())?);
            }
        }
        Err(Failure::new(Errno::INVAL, "an object that endpoints cannot be bound to"))
    })
}

pub unsafe extern "C" fn control(ep: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        let ep = ep.cast::<FidEp>();
        // SAFETY: C passes an open endpoint, and the argument of the command.
        unsafe {
            match command {
                command::ENABLE => Ok(object::owned(ep)?.endpoint.enable()?),
                _ => defaults::control(ep, command, argument),
            }
        }
    })
}
