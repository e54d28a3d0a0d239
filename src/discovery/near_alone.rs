//! Who is told of kestrel-shm, which reaches this host alone, and of how much. Reference: fi_getinfo(3).
//!
//! Programs on libfabric take what fits their hints from whoever offers it, and a job that spans hosts must not be
//! put on what reaches one. So kestrel-shm is for who names it or kestrel, for who asks for what reaches this host
//! alone, and for who asks for no capabilities, to whom everything is listed. Who has no hints at all, and names
//! nobody, is told of messages alone, on devices' domains as well: MPICH asks so, rates whatever it is told of by what
//! that can do, and takes the best. And where a device's domain fits, which serves peers of this host through shared memory as well, a second one
//! is no second device to spread over.

use kestrel_core::{
    config::{Config, TransportChoice},
    flags::Flags,
    info::{Hints, Info, Offer, Rejection},
};

use super::{Asker, SHM_DOMAIN, reach};

const BOTH: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);

/// What is asked for, as far as it tells whether kestrel-shm is meant.
pub(super) struct Wish {
    /// No capabilities.
    is_open: bool,
    /// Nothing at all, of nobody.
    is_vague: bool,
    /// Who is to be reached, as far as anything says it: nothing, this host, others.
    reach: Flags,
    /// The domain, or its transport alone.
    names_domain: bool,
    /// That, or kestrel.
    names_us: bool,
}

impl Wish {
    pub(super) fn of(config: &Config, hints: Option<&Hints>, asker: Asker) -> Wish {
        let domain = hints.and_then(|hints| hints.domain.name.as_deref());
        let names_domain = domain == Some(SHM_DOMAIN) || config.transport == TransportChoice::Shm;
        let names_us = names_domain || asker == Asker::OfKestrel;
        let is_open = hints.is_none_or(|hints| hints.caps.is_empty());
        let is_vague = hints.is_none() && !names_us;
        let reach = hints.map_or(Flags::empty(), |hints| (hints.caps | hints.domain.caps) & BOTH);
        Wish { is_open, is_vague, reach, names_domain, names_us }
    }

    /// Whether it is for all that there is, or for what this host has.
    fn is_for_all(&self) -> bool {
        self.is_open || self.reach == Flags::LOCAL_COMM
    }

    /// What kestrel-shm can do. "Providers that set FI_LOCAL_COMM but not FI_REMOTE_COMM, for example a shared
    /// memory provider, may only be used to communication between processes on the same system": who names us and
    /// asks for both knows that. MPIs ask for both, also of jobs on one host.
    ///
    /// # Errors
    /// Why it is not offered.
    pub(super) fn offer(&self, offer: Offer) -> Result<Offer, Vec<Rejection>> {
        if !self.names_us && !self.is_for_all() {
            return Err(vec![Rejection {
                field: "fabric_attr->prov_name",
                asked: "any".into(),
                offered: "kestrel, to who names it: kestrel-shm reaches this host alone".into(),
            }]);
        }
        if self.is_vague {
            return Ok(offer.of_one_host().of_messages());
        }
        let knows = self.names_us && self.reach.contains(Flags::REMOTE_COMM);
        Ok(if knows { offer } else { offer.of_one_host() })
    }

    /// What a device's domain can do, for who asks for nothing at all as above.
    pub(super) fn of_device(&self, offer: Offer) -> Offer {
        if self.is_vague { offer.of_messages() } else { offer }
    }

    /// Leaves kestrel-shm out where a device is on the way to the same peers.
    pub(super) fn narrow(&self, found: &mut Vec<Info>) {
        if self.names_domain || self.is_for_all() {
            return;
        }
        let devices = found.iter().filter(|info| info.domain.name != SHM_DOMAIN);
        let served = devices.filter(|info| reach::is_on_the_way(info));
        let served: Vec<_> = served.map(|info| info.endpoint.kind).collect();
        found.retain(|info| {
            let twice = info.domain.name == SHM_DOMAIN && served.contains(&info.endpoint.kind);
            if twice {
                tracing::info!(
                    "{SHM_DOMAIN} was left out: a device's domain serves this host as well"
                );
            }
            !twice
        });
    }
}
