//! Discovery: what there is that fits the hints, and why the rest does not.
//! Reference: fi_getinfo(3).

mod near_alone;
mod reach;
#[allow(unsafe_code)]
mod service;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use kestrel_core::{
    address::{Address, AddressFormat},
    config::Config,
    error::{Cause, Errno, HasErrno},
    info::{ApiVersion, EndpointType, Hints, Info, Offer, Rejection, negotiate},
    socket_endpoint::{SEND_BUFFER, SocketKind},
};

use crate::settings::{self, BadSettings};
pub use kestrel_shm::own_ip;
use near_alone::Wish;
use reach::Reach;

/// The fabric's name, the same for everything that can talk to each other here.
pub const FABRIC: &str = "kestrel";
/// The name of the domain that serves this host alone. A device's domain has the device's name.
pub const SHM_DOMAIN: &str = "kestrel-shm";

/// Why nothing was found.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// Hints that cannot be met: every one, with its value and ours.
    #[error("{}", Rejection::summary(.0))]
    Rejected(Vec<Rejection>),
    /// A node or a service that has no address.
    #[error("no address for node {node:?}, service {service:?}: {reason}")]
    Unresolved {
        /// As given.
        node: Option<String>,
        /// As given.
        service: Option<String>,
        /// The resolver's words.
        reason: String,
    },
    /// A node that is an address of FI_ADDR_STR, and a service beside it.
    #[error("{node} has its service, and {service:?} is given beside it")]
    ServiceTwice {
        /// The address.
        node: Address,
        /// As given.
        service: String,
    },
    /// RDMA alone was asked for, and there is no device.
    #[error("FI_KESTREL_TRANSPORT=verbs: {}", .0.reason)]
    NoDevice(Cause),
    /// The environment has parameters that cannot be used.
    #[error(transparent)]
    Settings(#[from] BadSettings),
}

impl HasErrno for DiscoveryError {
    fn errno(&self) -> Errno {
        match self {
            DiscoveryError::Rejected(_)
            | DiscoveryError::Unresolved { .. }
            | DiscoveryError::NoDevice(_) => Errno::NODATA,
            DiscoveryError::ServiceTwice { .. } => Errno::INVAL,
            DiscoveryError::Settings(error) => error.errno(),
        }
    }
}

/// What fits `hints`, best first; with none, everything there is.
///
/// Cost: looks at the machine's devices; not for a data path.
///
/// # Errors
/// [`DiscoveryError`]: each hint that was rejected is also one line of the log.
pub fn discover(hints: Option<&Hints>) -> Result<Vec<Info>, DiscoveryError> {
    let config = settings::from_environment()?;
    discover_with(&config, ApiVersion::NATIVE, Asker::OfKestrel, hints, None)
}

/// As [`discover`], with an address: the peer's, or ours if `source` is set.
///
/// A peer's service without a node stands for this host, 127.0.0.1: that is where endpoints of shared
/// memory alone are that ask for a service and no node; those that ask for neither are at [`own_ip`].
/// Those on a domain with a device are at the device's: its
/// address is the node to name then. Our own without a node is for any address that there
/// is: the device's, or 127.0.0.1 where there is shared memory alone. Endpoints of one host find each
/// other by address and port exactly as they were given, within one network namespace.
///
/// # Errors
/// As [`discover`], and [`DiscoveryError::Unresolved`].
pub fn discover_at(
    node: Option<&str>,
    service: Option<&str>,
    source: bool,
    hints: Option<&Hints>,
) -> Result<Vec<Info>, DiscoveryError> {
    let format = hints.map_or(AddressFormat::Unspec, |hints| hints.address_format);
    let place = Place::resolve(format, node, service, source)?;
    let config = settings::from_environment()?;
    discover_with(&config, ApiVersion::NATIVE, Asker::OfKestrel, hints, place)
}

/// An address that was asked for beside the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the endpoint is to be.
    Ours(Address),
    /// Where the peer is.
    Peers(Address),
}

impl Place {
    /// What node and service stand for, of the addresses that `format` can tell: the peer's, or ours if
    /// `source` is set. None without either.
    ///
    /// # Errors
    /// As [`resolve_as`].
    pub fn resolve(
        format: AddressFormat,
        node: Option<&str>,
        service: Option<&str>,
        source: bool,
    ) -> Result<Option<Place>, DiscoveryError> {
        if node.is_none() && service.is_none() {
            return Ok(None);
        }
        Ok(Some(match source {
            true => Place::Ours(resolve_source(format, node, service)?),
            false => Place::Peers(resolve_as(format, node, service)?),
        }))
    }
}

/// Whom what there is is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Who chose kestrel: a program that is written for it, or one whose user named it.
    OfKestrel,
    /// A program that takes what fits from any provider. What reaches this host alone is not for it, unless it
    /// names that, asks for FI_LOCAL_COMM alone, or for no capabilities.
    OfAnybody,
}

/// As [`discover`], with settings that were read already, for an application
/// that speaks `api_version`: what an interface that has its own settings calls.
///
/// # Errors
/// [`DiscoveryError::Rejected`] and [`DiscoveryError::NoDevice`].
pub fn discover_with(
    config: &Config,
    api_version: ApiVersion,
    asker: Asker,
    hints: Option<&Hints>,
    place: Option<Place>,
) -> Result<Vec<Info>, DiscoveryError> {
    let domain = hints.and_then(|hints| hints.domain.name.as_deref());
    choose(&reach::all(config, asker, domain)?, config, api_version, asker, hints, place)
}

fn choose(
    reaches: &[Reach],
    config: &Config,
    api_version: ApiVersion,
    asker: Asker,
    hints: Option<&Hints>,
    place: Option<Place>,
) -> Result<Vec<Info>, DiscoveryError> {
    let (mut found, mut rejected) = (Vec::new(), None);
    let wish = Wish::of(config, hints, asker);
    let kinds = kinds(hints);
    for (kind, reach) in kinds.iter().flat_map(|kind| reaches.iter().map(move |it| (kind, it))) {
        let offer = match reach {
            Reach::Shm => wish.offer(reach.offer(config, *kind)),
            Reach::Rdma(_) => Ok(wish.of_device(reach.offer(config, *kind))),
        };
        let agreed = offer.and_then(|offer| negotiate(&offer, hints, api_version));
        let placed = agreed.and_then(|mut info| match reach.place(&mut info, hints, place) {
            Ok(()) => Ok(info),
            Err(rejection) => Err(vec![rejection]),
        });
        match placed {
            Ok(info) => found.push(info),
            Err(rejections) => {
                // Who asks for no type gets the others beside the usual one, if they fit.
                if *kind == kinds[0] {
                    for rejection in &rejections {
                        tracing::info!("{} was not chosen: {rejection}", reach.name());
                    }
                }
                rejected.get_or_insert(rejections);
            }
        }
    }
    if found.is_empty() {
        return Err(DiscoveryError::Rejected(rejected.unwrap_or_default()));
    }
    // Stable: of each type, what there is stays in order, behind what owns the address that
    // packets leave from, and in front of what is at addresses of the other family.
    let type_of = |info: &Info| kinds.iter().position(|&kind| kind == info.endpoint.kind);
    let is_six = |info: &Info| info.address_format == AddressFormat::In6;
    found.sort_by_key(|info| (type_of(info), !reach::is_on_the_way(info), is_six(info)));
    wish.narrow(&mut found);
    Ok(found)
}

/// The types of endpoint to look for, the usual one first. Socket endpoints are for who asks for
/// them: their calls answer otherwise than those of all others.
fn kinds(hints: Option<&Hints>) -> &'static [EndpointType] {
    match hints.map_or(EndpointType::Unspec, |hints| hints.endpoint.kind) {
        EndpointType::Unspec => &[EndpointType::Rdm, EndpointType::Msg, EndpointType::Dgram],
        EndpointType::Msg => &[EndpointType::Msg],
        EndpointType::Dgram => &[EndpointType::Dgram],
        EndpointType::SockStream => &[EndpointType::SockStream],
        EndpointType::SockDgram => &[EndpointType::SockDgram],
        EndpointType::Rdm => &[EndpointType::Rdm],
    }
}

/// What an object is opened with, held against what there is: it need not be as it was found.
///
/// # Errors
/// Every value that cannot be had.
pub fn agree(
    config: &Config,
    api_version: ApiVersion,
    hints: &Hints,
) -> Result<Info, Vec<Rejection>> {
    negotiate(&offer_to(config, hints)?, Some(hints), api_version)
}

/// As [`agree`], of an info that was found and narrowed: its sides are to do no more than the endpoint. "The
/// capabilities must be a subset of those requested of the associated endpoint" (fi_endpoint(3)); but who narrows the
/// capabilities of what it has found leaves those of its sides as they are. So do OpenFAM and Lamellar.
///
/// # Errors
/// As [`agree`].
pub fn agree_narrowed(
    config: &Config,
    api_version: ApiVersion,
    hints: &Hints,
) -> Result<Info, Vec<Rejection>> {
    let (offer, mut narrowed) = (offer_to(config, hints)?, hints.clone());
    (narrowed.transmit.caps, narrowed.receive.caps) = Default::default();
    let granted = hints.caps | negotiate(&offer, Some(&narrowed), api_version)?.caps;
    let cannot = offer.maximum.caps.difference(granted);
    narrowed.transmit.caps = hints.transmit.caps.difference(cannot);
    narrowed.receive.caps = hints.receive.caps.difference(cannot);
    negotiate(&offer, Some(&narrowed), api_version)
}

/// What the domain offers that an object is opened on.
fn offer_to(config: &Config, hints: &Hints) -> Result<Offer, Vec<Rejection>> {
    let all = |domain| reach::all(config, Asker::OfAnybody, domain);
    let best = || all(None).map_or_else(|_| SHM_DOMAIN.into(), |all| all[0].name().to_owned());
    let name = hints.domain.name.clone().unwrap_or_else(best);
    let offer = match kinds(Some(hints))[0] {
        kind @ (EndpointType::Dgram | EndpointType::SockDgram) => {
            let reaches = all(Some(&name)).unwrap_or_default();
            let named = reaches.iter().find(|reach| reach.name() == name);
            named.map(|reach| reach.offer(config, kind))
        }
        kind => Some(offer(config, &name, kind)),
    };
    let offer = offer.ok_or_else(|| {
        let (asked, offered) = (name.clone(), "domains that datagrams were found for".into());
        vec![Rejection { field: "domain_attr->name", asked, offered }]
    })?;
    match &name[..] {
        SHM_DOMAIN => Wish::of(config, Some(hints), Asker::OfKestrel).offer(offer),
        _ => Ok(offer),
    }
}

/// What kestrel can do on a domain, with reliable endpoints of that type.
pub(crate) fn offer(config: &Config, domain: &str, kind: EndpointType) -> Offer {
    let offer = match kind {
        EndpointType::Msg => Offer::msg(),
        EndpointType::SockStream => Offer::stream(),
        _ => Offer::rdm(),
    };
    finish(config, domain, offer)
}

fn finish(config: &Config, domain: &str, offer: Offer) -> Offer {
    let inject_size = match SocketKind::of(offer.template.endpoint.kind) {
        Some(_) => config.inject_size.min(SEND_BUFFER),
        None => config.inject_size,
    };
    offer.named(FABRIC, domain).sized(config.tx_size, config.rx_size, inject_size)
}

/// The address of a node and a service, a port or its name, either of which may be missing: no node
/// is this host.
///
/// # Errors
/// [`DiscoveryError::Unresolved`].
pub fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address, DiscoveryError> {
    resolve_as(AddressFormat::Unspec, node, service)
}

/// As [`resolve`], to an address that `format` can tell: a name may have several.
///
/// "Applications may also pass in an FI_ADDR_STR formatted address as the node parameter. In such
/// cases, the service parameter must be NULL" (fi_getinfo(3)).
///
/// # Errors
/// [`DiscoveryError::Unresolved`], [`DiscoveryError::ServiceTwice`].
pub fn resolve_as(
    format: AddressFormat,
    node: Option<&str>,
    service: Option<&str>,
) -> Result<Address, DiscoveryError> {
    let here = match format {
        AddressFormat::In6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    resolve_or(here, format, node, service)
}

/// As [`resolve_as`], where an endpoint of ours is to be: without a node, wherever it may be.
fn resolve_source(
    format: AddressFormat,
    node: Option<&str>,
    service: Option<&str>,
) -> Result<Address, DiscoveryError> {
    let anywhere = match format {
        AddressFormat::In6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    resolve_or(anywhere, format, node, service)
}

fn resolve_or(
    no_node: IpAddr,
    format: AddressFormat,
    node: Option<&str>,
    service: Option<&str>,
) -> Result<Address, DiscoveryError> {
    let unresolved = |reason: String| DiscoveryError::Unresolved {
        node: node.map(str::to_owned),
        service: service.map(str::to_owned),
        reason,
    };
    let other_family = || unresolved(format!("no address of {}", format.name()));
    if let Some(address) = node.and_then(|node| node.parse::<Address>().ok()) {
        return match service {
            None if format.holds(&address) => Ok(address),
            None => Err(other_family()),
            Some(service) => {
                Err(DiscoveryError::ServiceTwice { node: address, service: service.to_owned() })
            }
        };
    }
    let port = match service {
        None => 0,
        Some(service) => service::port(service).map_err(unresolved)?,
    };
    let Some(node) = node else {
        return Ok(Address::new(no_node, port));
    };
    let addresses =
        (node, port).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?;
    let mut fitting = addresses.map(Address::from).filter(|address| format.holds(address));
    fitting.next().ok_or_else(other_family)
}
