//! Domains: what endpoints, queues, vectors and regions are opened on.
//! Reference: fi_domain(3).

use std::{
    ffi::{c_int, c_void},
    sync::{Arc, OnceLock},
};

use kestrel::{Domain, objects};
use kestrel_core::{
    address::AddressFormat,
    bind_count::BindCount,
    config::Config,
    endpoint::EndpointError,
    error::Errno,
    info::{self, ApiVersion, EndpointType, Progress, Threading},
};

use crate::{
    abi::{
        constants::{BADF, NOSYS},
        control::{OpsDomain, OpsFid, OpsMr},
        fid::{Fid, FidDomain, FidEq, FidFabric, class},
        info::Info,
    },
    address_vector, completion_queue,
    context_attributes::Whole,
    counter, deferred_work, endpoint, fabric, hints,
    instances::Known,
    memory_region,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    parameters, poll_set, scalable_endpoint, shared_receive, shared_transmit,
};

/// FI_REG_MR.
const REG_MR: u64 = 1 << 59;

/// What we keep of a domain.
pub struct State {
    pub domain: Arc<Domain>,
    /// As it was opened: what objects on it take their defaults from.
    pub info: info::Info,
    pub config: Config,
    pub version: ApiVersion,
    /// What is open on it, beside the endpoints that core counts.
    pub uses: Arc<BindCount>,
    /// The event queue that is bound to it, and whether registrations are reported there.
    event_queue: OnceLock<(Use, bool)>,
    /// What discovery knows of it.
    known: OnceLock<Known>,
    _fabric: Use,
}

impl State {
    /// How addresses are written on this domain.
    pub fn address_format(&self) -> AddressFormat {
        self.info.address_format
    }

    /// Gives an endpoint what is the domain's to say.
    ///
    /// "If the size is set to the value FI_AV_AUTH_KEY, all endpoints and memory regions will be
    /// configured to use authorization keys associated with the AV" (fi_domain(3)).
    pub fn settle(&self, endpoint: &mut info::Info) -> Result<(), Failure> {
        let vector_keys = self.info.domain.vector_keys;
        if vector_keys && !endpoint.endpoint.auth_key.is_empty() {
            let reason = "the domain was opened with FI_AV_AUTH_KEY: an endpoint has no key itself";
            return Err(Failure::new(Errno::INVAL, reason));
        }
        if vector_keys
            && matches!(endpoint.endpoint.kind, EndpointType::Msg | EndpointType::SockStream)
        {
            let reason = "a connected endpoint has no address vector that its keys could be in";
            return Err(Failure::new(Errno::INVAL, reason));
        }
        endpoint.domain.vector_keys = vector_keys;
        Ok(())
    }

    /// Whether registering memory is reported to the event queue.
    pub fn reports_regions(&self) -> bool {
        self.event_queue.get().is_some_and(|(_, regions)| *regions)
    }

    /// What shared contexts are part of.
    pub fn whole(&self) -> Whole<'_> {
        Whole { info: &self.info, config: &self.config, version: self.version }
    }
}

static FID: OpsFid = OpsFid {
    close: object::close::<FidDomain>,
    bind,
    control: deferred_work::control,
    ..FID_NOSYS
};
static OPERATIONS: OpsDomain = OpsDomain {
    av_open: address_vector::open,
    cq_open: completion_queue::open,
    endpoint: endpoint::setup::open,
    scalable_ep: scalable_endpoint::open,
    stx_ctx: shared_transmit::open,
    srx_ctx: shared_receive::open,
    cntr_open: counter::open,
    poll_open: poll_set::open,
    query_atomic: endpoint::atomic_query::query,
    endpoint2: endpoint::setup::open_with_flags,
    ..OpsDomain::refusing::<NOSYS>()
};
static REGIONS: OpsMr = memory_region::OPERATIONS;
static CLOSED: OpsDomain = OpsDomain::refusing::<BADF>();
static CLOSED_REGIONS: OpsMr = OpsMr::refusing::<BADF>();

impl Header for FidDomain {
    type State = State;
    const NAME: &'static str = "domain";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const CLOSED;
        self.mr = &raw const CLOSED_REGIONS;
    }
    fn close(state: &State) -> Result<(), Failure> {
        state.uses.close()?;
        Ok(state.domain.close()?)
    }
}

/// Reference: fi_domain(3), `fi_domain`, `fi_domain2`.
///
/// # Safety
/// As calls from C (see the crate's documentation).
pub unsafe fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    done("fi_domain", || {
        if flags != 0 {
            // FI_PEER: domains that share another provider's objects.
            return Err(Failure::flags("fi_domain2", flags));
        }
        // SAFETY: C passes an open fabric and valid pointers.
        let (place, parent, version) =
            unsafe { (object::out(domain)?, object::owned(fabric)?, fabric::version(fabric)) };
        let config = parameters::config()?;
        // SAFETY: as above.
        let info = unsafe { hints::agree(info, &config, version) }?;
        let in_use = Use::of(&parent.uses)?;
        let state = State {
            domain: open_core(&info, &config)?,
            info,
            config,
            version,
            uses: Arc::default(),
            event_queue: OnceLock::new(),
            known: OnceLock::new(),
            _fabric: in_use,
        };
        let opened_with = state.info.clone();
        let fid = object::fid::<FidDomain>(class::DOMAIN, context);
        let header = FidDomain { fid, ops: &raw const OPERATIONS, mr: &raw const REGIONS };
        *place = object::create(header, state);
        // SAFETY: just made; nobody else was first.
        let _ =
            unsafe { object::state(*place) }.known.set(Known::domain(*place, fabric, &opened_with));
        Ok(())
    })
}

/// "A resource domain was not bound to the endpoint or an attempt was made to bind multiple domains"
/// (fi_endpoint(3), -FI_EDOMAIN): an object of a domain is bound to those of the same alone.
pub fn check_domain(
    one: &Arc<Domain>,
    other: &Arc<Domain>,
    object: &'static str,
) -> Result<(), Failure> {
    if Arc::ptr_eq(one, other) {
        return Ok(());
    }
    Err(EndpointError::OtherDomain { object }.into())
}

fn open_core(info: &info::Info, config: &Config) -> Result<Arc<Domain>, Failure> {
    let (provider, options) = objects::domain_parts(info, config)?;
    tracing::info!("a domain with {} and {}", info.domain.threading, info.domain.data_progress);
    let manual = info.domain.data_progress != Progress::Auto;
    // Reading an event queue drives the connected endpoints that report to it, and it belongs to
    // the fabric: one thread may read it while another one is at the domain.
    let apart = info.endpoint.kind != EndpointType::Msg;
    Ok(if apart && manual && info.domain.threading == Threading::Domain {
        // SAFETY: FI_THREAD_DOMAIN: "the application must serialize access to all objects
        // belonging to a domain" (fi_domain(3)); nothing else calls, with manual progress, and
        // connected endpoints are not opened there.
        unsafe { Domain::open_exclusive(provider, options) }
    } else {
        Domain::open(provider, options)
    }?)
}

/// Binds the event queue that asynchronous operations report to, with FI_REG_MR registrations of
/// memory as well: "If an event queue is not bound to the domain with the FI_REG_MR flag, then
/// memory registration requests complete synchronously."
/// Reference: fi_domain(3), `fi_domain_bind`.
unsafe extern "C" fn bind(domain: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_domain_bind", || {
        if flags & !REG_MR != 0 {
            return Err(Failure::flags("fi_domain_bind", flags));
        }
        // SAFETY: C passes open objects.
        let (state, queue) = unsafe {
            (object::owned(domain.cast::<FidDomain>())?, object::checked::<FidEq>(other)?)
        };
        let in_use = Use::of(queue.uses())?;
        if !state.domain.bind_event_queue(queue.queue())? {
            return Err(Failure::new(Errno::INVAL, "an event queue is bound already"));
        }
        // Nobody else was first.
        let _ = state.event_queue.set((in_use, flags & REG_MR != 0));
        Ok(())
    })
}
