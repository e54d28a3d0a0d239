//! Domains and endpoints over what discovery found, and the names of the generic
//! objects over the transport that there is.

use std::sync::Arc;

use kestrel_core::{
    config::{Config, TransportChoice},
    domain::{DomainOptions, OpenError},
    endpoint::{EndpointOptions, PostError},
    error::{Cause, Errno},
    flags::Flags,
    info::{CompletionOrder, EndpointType, Info, Mode, RX_CAPS, SHARED_CONTEXT, TX_CAPS},
    scalable_endpoint::ContextCounts,
    socket_endpoint::{SocketError, SocketKind},
};
use kestrel_shm::ShmProvider;
use kestrel_verbs::VerbsProvider;

use crate::{
    composite::{CompositeProvider, Traffic},
    discovery::SHM_DOMAIN,
    rdma, settings,
};

/// What opens transports: shared memory, and RDMA behind the same endpoints.
pub type Provider = CompositeProvider<ShmProvider, VerbsProvider>;
/// A domain; see [`kestrel_core::domain::Domain`].
pub type Domain = kestrel_core::domain::Domain<Provider>;
/// An endpoint; see [`kestrel_core::endpoint::Endpoint`].
pub type Endpoint = kestrel_core::endpoint::Endpoint<Provider>;
/// A passive endpoint; see [`kestrel_core::connection::passive_endpoint::PassiveEndpoint`].
pub type PassiveEndpoint = kestrel_core::connection::passive_endpoint::PassiveEndpoint<Provider>;
/// A scalable endpoint; see [`kestrel_core::scalable_endpoint::ScalableEndpoint`].
pub type ScalableEndpoint = kestrel_core::scalable_endpoint::ScalableEndpoint<Provider>;
/// A shared transmit context; see [`kestrel_core::shared_context::SharedTransmit`].
pub type SharedTransmit = kestrel_core::shared_context::SharedTransmit<Provider>;
/// A shared receive context; see [`kestrel_core::shared_context::receive::SharedReceive`].
pub type SharedReceive = kestrel_core::shared_context::receive::SharedReceive<Provider>;
/// A completion queue; see [`kestrel_core::completion_queue::CompletionQueue`].
pub type CompletionQueue = kestrel_core::completion_queue::CompletionQueue<Provider>;
/// A counter; see [`kestrel_core::completion_counter::CompletionCounter`].
pub type Counter = kestrel_core::completion_counter::CompletionCounter<Provider>;
/// A wait for a queue's completions; see [`kestrel_core::completion_queue::QueueWait`].
pub type QueueWait = kestrel_core::completion_queue::QueueWait<Provider>;
/// A wait for a counter to change; see [`kestrel_core::completion_counter::CounterWait`].
pub type CounterWait = kestrel_core::completion_counter::CounterWait<Provider>;
/// A multicast group that an endpoint has joined; see [`kestrel_core::endpoint::Group`].
pub type Group = kestrel_core::endpoint::Group<Provider>;
/// What a passive endpoint was asked for; see
/// [`kestrel_core::connection::request::ConnectionRequest`].
pub type ConnectionRequest = kestrel_core::connection::request::ConnectionRequest<Provider>;
/// What triggers an operation; see [`kestrel_core::triggered::Threshold`].
pub type Threshold = kestrel_core::triggered::Threshold<Provider>;
/// Deferred work; see [`kestrel_core::triggered::Work`].
pub type Work = kestrel_core::triggered::Work<Provider>;
/// A socket endpoint; see [`kestrel_core::socket_endpoint::SocketEndpoint`].
pub type SocketEndpoint = kestrel_core::socket_endpoint::SocketEndpoint<Provider>;

/// Opens a domain that any thread may use, with the environment's settings.
///
/// For one thread at a time, [`open_domain_exclusive`] saves some nanoseconds a
/// call; it is unsafe, since nobody checks.
///
/// A subscriber of `tracing` must not call objects of the domain: it is called from inside of their calls,
/// and would wait for them for ever.
///
/// # Errors
/// [`OpenError`], with the reason in words.
/// # Reference
/// fi_domain(3)
pub fn open_domain(info: &Info) -> Result<Arc<Domain>, OpenError> {
    let (provider, options) = domain_parts(info, &settings_of_environment()?)?;
    Domain::open(provider, options)
}

/// Opens a domain for one thread at a time (`FI_THREAD_DOMAIN`), with the environment's settings:
/// nothing on the data path is atomic then. With automatic progress it is as [`open_domain`]'s.
///
/// # Errors
/// As [`open_domain`].
/// # Safety
/// As [`Domain::open_exclusive`](kestrel_core::domain::Domain::open_exclusive): no two threads are
/// inside calls on objects of this domain, or drop them, at the same time, nor on the event queues and
/// passive endpoints that its connected endpoints have to do with; a hand-over between threads
/// synchronises. Nor is any such call made from inside of another one, by a subscriber of `tracing` for
/// one, unless that other one says that it may.
#[allow(unsafe_code)]
pub unsafe fn open_domain_exclusive(info: &Info) -> Result<Arc<Domain>, OpenError> {
    let (provider, options) = domain_parts(info, &settings_of_environment()?)?;
    // SAFETY: the caller promises the same.
    unsafe { Domain::open_exclusive(provider, options) }
}

fn settings_of_environment() -> Result<Config, OpenError> {
    settings::from_environment().map_err(|error| OpenError::Refused(Cause::of(&error)))
}

/// What opening a domain takes, by settings that were read already: for
/// callers that choose between `Domain::open` and `Domain::open_exclusive`.
///
/// # Errors
/// [`OpenError`], with the reason in words.
pub fn domain_parts(
    info: &Info,
    config: &Config,
) -> Result<(Arc<Provider>, DomainOptions), OpenError> {
    // "The domain authorization key will be used if auth_key_size is set to 0": see fi_endpoint(3).
    let provider = provider(config, &info.domain.name, &info.domain.auth_key)?;
    let mut options = settings::domain_options(config, info.domain.data_progress);
    options.traffic_class = info.domain.traffic_class;
    options.memory_region_mode = info.domain.memory_region_mode;
    Ok((Arc::new(provider), options))
}

/// The transports of the domain of that name, for endpoints that have `auth_key`
/// where they are given none.
///
/// # Errors
/// There is no such domain, or what the settings insist on cannot be had.
pub fn provider(config: &Config, domain: &str, auth_key: &[u8]) -> Result<Provider, Cause> {
    let mut shm = settings::shm_options(config);
    shm.auth_key = auth_key.to_vec();
    let near = ShmProvider::new(shm)?;
    if domain == SHM_DOMAIN {
        return match (rdma::devices(config, None), config.transport) {
            (_, TransportChoice::Verbs) => Err(refused(format!(
                "FI_KESTREL_TRANSPORT=verbs does not go with the domain {SHM_DOMAIN}"
            ))),
            (Err(why), _) => Ok(CompositeProvider::near_only(near, why)),
            (Ok(_), _) => {
                let why = format!("the domain {SHM_DOMAIN} serves this host alone");
                Ok(CompositeProvider::near_only(near, refused(why)))
            }
        };
    }
    let far = rdma::open(config, domain, auth_key)?;
    tracing::info!("domain {domain}: {}", settings::transports(config.transport));
    Ok(match config.transport {
        TransportChoice::Verbs => CompositeProvider::far_only(near, far),
        TransportChoice::Auto | TransportChoice::Shm => CompositeProvider::both(near, far),
    })
}

fn refused(reason: String) -> Cause {
    Cause { errno: Errno::NODEV, reason }
}

/// What `endpoint` sent so far, and through which transport.
///
/// # Errors
/// The endpoint is not enabled, or closed.
pub fn traffic(endpoint: &Endpoint) -> Result<Traffic, PostError> {
    endpoint.inspect(|transport| transport.traffic())
}

/// Opens an endpoint as `info` describes it, at `info.source` if that is given.
///
/// The info of a request for a connection is for [`open_endpoint_for`].
///
/// # Errors
/// [`OpenError`]: the address is in use, no descriptors are left, `info.handle` names a request, …
pub fn open_endpoint(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Endpoint>, OpenError> {
    if SocketKind::of(info.endpoint.kind).is_some() {
        return Err(another_type(info, "open_endpoint"));
    }
    check_no_request(info, "open_endpoint_for")?;
    Endpoint::open(domain, endpoint_options(info))
}

/// Opens a connected endpoint that can accept `request`, as the request's own `info` describes it, which
/// came with [`Event::ConnectionRequest`](kestrel_core::event_queue::Event::ConnectionRequest). Closed or
/// dropped before it does, it rejects it. What could not be opened leaves the request where it was.
///
/// # Errors
/// As [`open_endpoint`]; `info` is of another type of endpoint.
/// # Reference
/// fi_cm(3), `fi_accept`
pub fn open_endpoint_for(
    domain: &Arc<Domain>,
    info: &Info,
    request: ConnectionRequest,
) -> Result<Arc<Endpoint>, OpenError> {
    if info.endpoint.kind != EndpointType::Msg {
        return Err(another_type(info, "open_endpoint_for"));
    }
    Endpoint::open_for(domain, endpoint_options(info), request)
}

/// Opens a socket endpoint as `info` describes it, at `info.source` if that is given.
///
/// # Errors
/// As [`open_endpoint`]; a request for a connection is for
/// [`SocketEndpoint::open_for`](kestrel_core::socket_endpoint::SocketEndpoint::open_for).
pub fn open_socket(domain: &Arc<Domain>, info: &Info) -> Result<SocketEndpoint, SocketError> {
    let kind = SocketKind::of(info.endpoint.kind);
    let kind = kind.ok_or_else(|| another_type(info, "open_socket"))?;
    check_no_request(info, "SocketEndpoint::open_for")?;
    SocketEndpoint::open(domain, kind, endpoint_options(info))
}

fn another_type(info: &Info, call: &str) -> OpenError {
    let reason = format!("{call} opens no endpoint of type {}", info.endpoint.kind);
    OpenError::Refused(Cause { errno: Errno::INVAL, reason })
}

/// An endpoint that was opened without the request that `info` names could accept nothing.
fn check_no_request(info: &Info, call: &str) -> Result<(), OpenError> {
    if info.handle == 0 {
        return Ok(());
    }
    let reason = format!(
        "info.handle {} names a request for a connection: take it from its passive endpoint, and \
         {call} opens what accepts it",
        info.handle
    );
    Err(OpenError::Refused(Cause { errno: Errno::INVAL, reason }))
}

/// Opens a scalable endpoint as `info` describes it, at `info.source` if that is given: with as
/// many contexts as its counts say.
///
/// # Errors
/// As [`open_endpoint`], and where not so many ports in a row are free.
pub fn open_scalable_endpoint(
    domain: &Arc<Domain>,
    info: &Info,
) -> Result<Arc<ScalableEndpoint>, OpenError> {
    if SocketKind::of(info.endpoint.kind).is_some() {
        return Err(OpenError::NotScalable);
    }
    let (transmit, receive) = (info.endpoint.tx_ctx_count, info.endpoint.rx_ctx_count);
    let counts = ContextCounts { transmit, receive };
    ScalableEndpoint::open(domain, endpoint_options(info), counts)
}

/// What an endpoint is opened with, as `info` describes it.
pub fn endpoint_options(info: &Info) -> EndpointOptions {
    let transmit = side(info, info.transmit.caps, TX_CAPS);
    let receive = side(info, info.receive.caps, RX_CAPS);
    EndpointOptions {
        address: info.source,
        auth_key: info.endpoint.auth_key.clone(),
        vector_keys: info.domain.vector_keys,
        capabilities: info.caps.difference(TX_CAPS | RX_CAPS) | transmit | receive,
        transmit_capabilities: transmit,
        receive_capabilities: receive,
        transmit_size: info.transmit.size,
        inject_size: info.transmit.inject_size,
        transmit_flags: info.transmit.op_flags,
        traffic_class: info.transmit.traffic_class,
        receive_flags: info.receive.op_flags,
        shares_transmit: info.endpoint.tx_ctx_count == SHARED_CONTEXT,
        shares_receive: info.endpoint.rx_ctx_count == SHARED_CONTEXT,
        buffered: info.mode.contains(Mode::BUFFERED_RECV),
        connected: info.endpoint.kind == EndpointType::Msg,
        datagrams: info.endpoint.kind == EndpointType::Dgram,
        message_order: info.transmit.message_order,
        transmits_in_order: is_strict(info.transmit.completion_order),
        receives_in_order: is_strict(info.receive.completion_order),
        data_in_order: info.receive.completion_order.contains(CompletionOrder::DATA),
        ..EndpointOptions::default()
    }
}

fn is_strict(order: CompletionOrder) -> bool {
    order.contains(CompletionOrder::STRICT)
}

/// Of the capabilities, those of one side: what its own attributes say, where they say anything,
/// of what applies.
fn side(info: &Info, own: Flags, applicable: Flags) -> Flags {
    let own = if own.is_empty() { info.caps } else { own };
    own & info.caps & applicable
}

/// Opens a passive endpoint as `info` describes it, at `info.source` if that is given, with
/// transports of its own and the environment's settings.
///
/// # Errors
/// As [`open_endpoint`], and what opening the transports may fail with.
pub fn open_passive_endpoint(info: &Info) -> Result<Arc<PassiveEndpoint>, OpenError> {
    open_passive_endpoint_with(info, &settings_of_environment()?)
}

/// As [`open_passive_endpoint`], by settings that were read already.
///
/// # Errors
/// As there.
pub fn open_passive_endpoint_with(
    info: &Info,
    config: &Config,
) -> Result<Arc<PassiveEndpoint>, OpenError> {
    let provider = provider(config, &info.domain.name, &info.domain.auth_key)?;
    let passive = PassiveEndpoint::open(Arc::new(provider), info.clone())?;
    // "The backlog is initialized based on administrative configuration values" (fi_cm(3)). It has
    // a bound that is 1 at least, and nothing listens yet, so this cannot fail.
    let _ = passive.set_backlog(config.backlog);
    Ok(passive)
}
