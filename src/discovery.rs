//! Discovery: what there is that fits the hints, and why the rest does not.
//! Reference: fi_getinfo(3).

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use kestrel_core::{
    address::Address,
    config::Config,
    error::{Errno, HasErrno},
    info::{ApiVersion, Hints, Info, Offer, Rejection, negotiate},
};

use crate::settings::{self, BadSettings};

/// The fabric's name, the same for everything that can talk to each other here.
pub const FABRIC: &str = "kestrel";
/// The name of the domain that serves this host.
pub const SHM_DOMAIN: &str = "kestrel-shm";

/// Why nothing was found.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// The environment has parameters that cannot be used.
    #[error(transparent)]
    Settings(#[from] BadSettings),
}

impl HasErrno for DiscoveryError {
    fn errno(&self) -> Errno {
        match self {
            DiscoveryError::Rejected(_) | DiscoveryError::Unresolved { .. } => Errno::NODATA,
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
    discover_with(&settings::from_environment()?, ApiVersion::NATIVE, hints)
}

/// As [`discover`], with settings that were read already, for an application
/// that speaks `api_version`: what an interface that has its own settings calls.
///
/// # Errors
/// [`DiscoveryError::Rejected`].
pub fn discover_with(
    config: &Config,
    api_version: ApiVersion,
    hints: Option<&Hints>,
) -> Result<Vec<Info>, DiscoveryError> {
    log_absent_devices();
    match negotiate(&offer(config), hints, api_version) {
        Ok(info) => Ok(vec![info]),
        Err(rejections) => {
            for rejection in &rejections {
                tracing::info!("{SHM_DOMAIN} was not chosen: {rejection}");
            }
            Err(DiscoveryError::Rejected(rejections))
        }
    }
}

/// What kestrel can do on this host.
pub fn offer(config: &Config) -> Offer {
    Offer::rdm().named(FABRIC, SHM_DOMAIN).sized(config.tx_size, config.rx_size, config.inject_size)
}

/// As [`discover`], with an address: the peer's, or ours if `source` is set.
///
/// A service without a node stands for this host, 127.0.0.1: that is where
/// endpoints are that ask for no address. Endpoints of one host find each other
/// by address and port exactly as they were given, within one network namespace.
///
/// # Errors
/// As [`discover`], and [`DiscoveryError::Unresolved`].
pub fn discover_at(
    node: Option<&str>,
    service: Option<&str>,
    source: bool,
    hints: Option<&Hints>,
) -> Result<Vec<Info>, DiscoveryError> {
    let mut found = discover(hints)?;
    if node.is_some() || service.is_some() {
        place(&mut found, resolve(node, service)?, source);
    }
    Ok(found)
}

/// Sets one address in all that was found: ours if `source` is set, else the peer's.
pub fn place(found: &mut [Info], address: Address, source: bool) {
    for info in found {
        let place = if source { &mut info.source } else { &mut info.destination };
        *place = Some(address);
    }
}

/// The address of a node and a service, either of which may be missing.
///
/// # Errors
/// [`DiscoveryError::Unresolved`].
pub fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address, DiscoveryError> {
    let unresolved = |reason: String| DiscoveryError::Unresolved {
        node: node.map(str::to_owned),
        service: service.map(str::to_owned),
        reason,
    };
    let port = match service {
        None => 0,
        Some(service) => service
            .parse::<u16>()
            .map_err(|error| unresolved(format!("a service is a port number: {error}")))?,
    };
    let Some(node) = node else {
        return Ok(Address::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    };
    let mut addresses =
        (node, port).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?;
    addresses.next().map(Address::from).ok_or_else(|| unresolved("no address".into()))
}

/// Says why no RDMA device serves: kestrel does not drive them yet, and often
/// there are none.
fn log_absent_devices() {
    match kestrel_verbs::devices() {
        Ok(devices) => {
            for device in devices {
                tracing::info!(?device, "an RDMA device, which kestrel does not drive yet");
            }
        }
        Err(reason) => tracing::info!("no RDMA device: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_core::flags::Flags;

    #[test]
    fn without_hints_there_is_shared_memory() {
        let found = discover(None).unwrap();
        assert_eq!(found[0].domain.name, SHM_DOMAIN);
        assert!(found[0].caps.contains(Flags::TAGGED | Flags::MSG | Flags::DIRECTED_RECV));
    }

    #[test]
    fn every_rejected_hint_is_told() {
        let mut hints = Hints::new().caps(Flags::TAGGED | Flags::MULTICAST);
        hints.transmit.inject_size = Some(1 << 30);
        let error = discover(Some(&hints)).unwrap_err();
        assert_eq!(error.errno(), Errno::NODATA);
        let text = error.to_string();
        assert!(text.contains("inject_size") && text.contains("1073741824"), "{text}");
        assert!(text.contains("MULTICAST"), "{text}");
    }

    #[test]
    fn a_node_and_a_service_become_an_address() {
        let found = discover_at(Some("127.0.0.1"), Some("4711"), true, None).unwrap();
        assert_eq!(found[0].source.unwrap().to_string(), "fi_sockaddr_in://127.0.0.1:4711");
        assert!(found[0].destination.is_none());
        let found = discover_at(None, Some("4711"), false, None).unwrap();
        assert_eq!(found[0].destination.unwrap().port(), 4711);
    }

    #[test]
    fn what_cannot_be_resolved_is_told() {
        let error = discover_at(None, Some("nosuch"), false, None).unwrap_err();
        assert!(error.to_string().contains("nosuch"), "{error}");
    }
}
