//! What reaches peers: shared memory, and each RDMA device; and at which addresses.

use std::net::IpAddr;

use kestrel_core::{
    address::{Address, AddressFormat},
    config::{Config, TransportChoice},
    info::{EndpointType, Hints, Info, Offer, Rejection},
};
use kestrel_shm::{ShmOptions, loopback_like};

use super::{Asker, DiscoveryError, Place, SHM_DOMAIN};
use crate::{
    composite::here::{is_here, source_to},
    rdma::{self, RdmaDevice},
};

/// One way out of a process.
pub(super) enum Reach {
    /// Peers of this host alone.
    Shm,
    /// Peers of other hosts as well, through a device.
    Rdma(Box<RdmaDevice>),
}

/// What there is, best first. A device reaches everybody, so it comes before shared memory alone.
pub(super) fn all(
    config: &Config,
    asker: Asker,
    domain: Option<&str>,
) -> Result<Vec<Reach>, DiscoveryError> {
    let mut reaches = Vec::new();
    // Who names the other domain has no device in mind.
    let domain = domain.filter(|domain| *domain != SHM_DOMAIN);
    match rdma::devices(config, domain) {
        Ok(devices) => reaches.extend(devices.into_iter().map(Box::new).map(Reach::Rdma)),
        Err(why) if config.transport == TransportChoice::Verbs => {
            let none = DiscoveryError::NoDevice(why);
            // The user's own choice, of which libfabric says no more than that there is nothing.
            tracing::warn!("{none}");
            return Err(none);
        }
        // Whose user named kestrel may have meant what is there, and its job spans hosts.
        Err(why)
            if config.device.are_any()
                && asker == Asker::OfKestrel
                && config.transport == TransportChoice::Auto
                && rdma::is_there_any() =>
        {
            tracing::warn!("shared memory alone, for peers of this host: {}", why.reason);
        }
        Err(why) if config.device.are_any() => {
            tracing::info!("shared memory alone: {}", why.reason);
        }
        Err(why) => {
            let (device, why) = (&config.device, &why.reason);
            tracing::warn!(
                "FI_KESTREL_DEVICE={device} has no effect, shared memory alone is offered: {why}"
            );
        }
    }
    if config.transport != TransportChoice::Verbs {
        reaches.push(Reach::Shm);
    }
    Ok(reaches)
}

impl Reach {
    pub(super) fn name(&self) -> &str {
        match self {
            Reach::Shm => SHM_DOMAIN,
            Reach::Rdma(device) => &device.name,
        }
    }

    /// What it can do with endpoints of that type.
    pub(super) fn offer(&self, config: &Config, kind: EndpointType) -> Offer {
        let for_sockets = kind == EndpointType::SockDgram;
        if kind != EndpointType::Dgram && !for_sockets {
            return super::offer(config, self.name(), kind);
        }
        // Peers of both kinds are behind one endpoint: the shorter limit holds.
        let near = ShmOptions::from(config).single_max();
        let longest = match self {
            Reach::Shm => near,
            Reach::Rdma(device) => near.min(device.datagram_max),
        };
        if for_sockets {
            return super::finish(config, self.name(), Offer::socket_datagrams(longest));
        }
        let offer = Offer::datagrams(longest);
        // The far side's, where there is one.
        let has_groups = match self {
            Reach::Shm => true,
            Reach::Rdma(device) => device.has_groups,
        };
        let offer = if has_groups { offer.with_groups() } else { offer };
        super::finish(config, self.name(), offer)
    }

    /// Sets the addresses of what was found.
    ///
    /// # Errors
    /// The address that the endpoint cannot be at, or that its format cannot tell.
    pub(super) fn place(
        &self,
        info: &mut Info,
        hints: Option<&Hints>,
        place: Option<Place>,
    ) -> Result<(), Rejection> {
        match place {
            Some(Place::Ours(address)) => info.source = Some(address),
            Some(Place::Peers(address)) => info.destination = Some(address),
            None => {}
        }
        let unsaid = hints.is_none_or(|hints| hints.address_format == AddressFormat::Unspec);
        if let (true, Some(format)) = (unsaid, info.format_of_addresses()) {
            info.address_format = format;
        }
        let format = info.address_format;
        for (field, address) in [("src_addr", info.source), ("dest_addr", info.destination)] {
            if let Some(address) = address.filter(|address| !format.holds(address)) {
                return Err(misplaced(field, address, format!("{} addresses", format.name())));
            }
        }
        match self {
            Reach::Shm => place_here(info),
            Reach::Rdma(device) => place_on(device, info, unsaid),
        }
    }
}

fn misplaced(field: &'static str, asked: impl ToString, offered: String) -> Rejection {
    Rejection { field, asked: asked.to_string(), offered }
}

/// Peers of other hosts are out of reach, and their addresses are not ours to be at. Whoever is to be
/// anywhere is where shared memory is asked for.
fn place_here(info: &mut Info) -> Result<(), Rejection> {
    if let Some(source) = info.source.filter(|source| !source.names_a_host()) {
        info.source = Some(Address::new(loopback_like(source.ip()), source.port()));
    }
    // A group has members on every host.
    let destination = info.destination.filter(|peer| !peer.ip().is_multicast());
    for (field, address) in [("src_addr", info.source), ("dest_addr", destination)] {
        if let Some(elsewhere) = address.filter(|address| !is_here(*address)) {
            return Err(misplaced(field, elsewhere, "the addresses of this host".into()));
        }
    }
    Ok(())
}

/// Gives an endpoint an address of the device that it is on, with the port that it is to have anywhere.
fn place_on(device: &RdmaDevice, info: &mut Info, unsaid: bool) -> Result<(), Rejection> {
    info.nic = Some(device.nic.clone());
    let format = info.address_format;
    let own = || {
        let all: Vec<_> = device.addresses.iter().map(IpAddr::to_string).collect();
        format!("the addresses of {}: {}", device.name, all.join(", "))
    };
    let anywhere = match info.source {
        Some(source) if device.addresses.contains(&source.ip()) => return Ok(()),
        Some(source) if source.names_a_host() => {
            return Err(misplaced("src_addr", source, own()));
        }
        anywhere => anywhere,
    };
    let fits = |ip: &IpAddr| {
        let like = anywhere.or(info.destination);
        let family = like.is_none_or(|address| address.ip().is_ipv4() == ip.is_ipv4());
        family && format.holds(&Address::new(*ip, 0))
    };
    let port = anywhere.map_or(0, |source| source.port());
    let place = |ip| Address::new(ip, port);
    info.source = device.addresses.iter().copied().find(fits).map(place);
    if unsaid && let (None, None, None) = (info.source, anywhere, info.destination) {
        // Nobody asks for a family: a network may have but the other one.
        info.source = device.addresses.first().copied().map(place);
        info.address_format = info.format_of_addresses().unwrap_or(format);
    }
    match (info.source, anywhere, info.destination) {
        (Some(_), _, _) => Ok(()),
        (None, Some(source), _) => Err(misplaced("src_addr", source, own())),
        (None, None, Some(peer)) => Err(misplaced("dest_addr", peer, own())),
        (None, None, None) => Err(misplaced("addr_format", format.name(), own())),
    }
}

/// Whether packets to the peer that `info` names leave from the address that it names as ours.
pub(super) fn is_on_the_way(info: &Info) -> bool {
    let (peer, ours) = match (info.destination, info.source) {
        (None, _) => return true,
        // Who asks for no address is at one of 127.0.0.0/8.
        (Some(peer), None) => return peer.ip().is_loopback(),
        (Some(peer), Some(ours)) => (peer, ours),
    };
    source_to(peer).is_ok_and(|from| from == ours.ip())
}
