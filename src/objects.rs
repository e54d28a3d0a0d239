//! Domains and endpoints over what discovery found, and the names of the generic
//! objects over the transport that there is.

use std::sync::Arc;

use kestrel_core::{
    config::Config,
    domain::{DomainOptions, OpenError},
    endpoint::EndpointOptions,
    error::{Errno, HasErrno},
    info::Info,
    transport::Unreachable,
};
use kestrel_shm::ShmProvider;

use crate::settings;

/// A domain; see [`kestrel_core::domain::Domain`].
pub type Domain = kestrel_core::domain::Domain<ShmProvider>;
/// An endpoint; see [`kestrel_core::endpoint::Endpoint`].
pub type Endpoint = kestrel_core::endpoint::Endpoint<ShmProvider>;
/// A completion queue; see [`kestrel_core::completion_queue::CompletionQueue`].
pub type CompletionQueue = kestrel_core::completion_queue::CompletionQueue<ShmProvider>;
/// A counter; see [`kestrel_core::completion_counter::CompletionCounter`].
pub type Counter = kestrel_core::completion_counter::CompletionCounter<ShmProvider>;

/// Opens a domain that any thread may use, with the environment's settings.
///
/// For one thread at a time, `Domain::open_exclusive` saves some nanoseconds a
/// call; it is unsafe, since nobody checks.
///
/// # Errors
/// [`OpenError`], with the reason in words.
pub fn open_domain(info: &Info) -> Result<Arc<Domain>, OpenError> {
    let config = settings::from_environment().map_err(|error| {
        OpenError::Refused(Unreachable { errno: error.errno(), reason: error.to_string() })
    })?;
    let (provider, options) = domain_parts(info, &config)?;
    Domain::open(provider, options)
}

/// What opening a domain takes, by settings that were read already: for
/// callers that choose between `Domain::open` and `Domain::open_exclusive`.
///
/// # Errors
/// [`OpenError`], with the reason in words.
pub fn domain_parts(
    info: &Info,
    config: &Config,
) -> Result<(Arc<ShmProvider>, DomainOptions), OpenError> {
    let mut shm = settings::shm_options(config);
    // "The domain authorization key will be used if auth_key_size is set to 0": see fi_endpoint(3).
    shm.auth_key = info.domain.auth_key.clone();
    let provider = ShmProvider::new(shm)?;
    let options = settings::domain_options(config, info.domain.data_progress);
    Ok((Arc::new(provider), options))
}

/// Opens an endpoint as `info` describes it, at `info.source` if that is given.
///
/// # Errors
/// [`OpenError`]: the address is in use, no descriptors are left, …
pub fn open_endpoint(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Endpoint>, OpenError> {
    if info.domain.name != crate::discovery::SHM_DOMAIN {
        let reason = format!("there is no domain {:?}", info.domain.name);
        return Err(OpenError::Refused(Unreachable { errno: Errno::NODEV, reason }));
    }
    let options = EndpointOptions {
        address: info.source,
        auth_key: info.endpoint.auth_key.clone(),
        capabilities: info.caps,
        transmit_size: info.transmit.size,
        inject_size: info.transmit.inject_size,
        transmit_flags: info.transmit.op_flags,
        receive_flags: info.receive.op_flags,
        ..EndpointOptions::default()
    };
    Endpoint::open(domain, options)
}
