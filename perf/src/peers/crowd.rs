//! Peers of an endpoint that are there and not spoken to: such as were only inserted, and such as have
//! connected and are idle.

use crate::end::End;
use crate::fabric::{FabricError, Setup, Side, no_address, read};
use crate::stall::Stall;
use kestrel_core::address::Address;
use kestrel_core::address_vector::{AddressVector, FI_ADDR_UNSPEC};
use kestrel_core::completion_queue::Entry;
use kestrel_core::endpoint::PostError;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The first of the addresses that are inserted and never spoken to, each with so many ports.
const STRANGERS: u32 = 0x0a00_0000;
const PORTS: u32 = 16;
const FIRST_PORT: u16 = 1000;

/// Inserts addresses that nobody has.
pub fn insert_strangers(vector: &AddressVector, count: u32) -> Result<(), FabricError> {
    for index in 0..count {
        let ip = Ipv4Addr::from(STRANGERS + index / PORTS);
        let address = Address::new(ip.into(), FIRST_PORT + (index % PORTS) as u16);
        vector.insert_one(address).map_err(no_address)?;
    }
    Ok(())
}

/// Endpoints of one domain, each of which sends to whom it is told.
pub struct Crowd {
    peers: Vec<Side>,
}

impl Crowd {
    pub fn open(setup: &Setup, count: u16) -> Result<Self, FabricError> {
        let domain = setup.open_domain()?;
        let open = |_| Side::of(&domain, setup.endpoint.clone());
        Ok(Crowd { peers: (0..count).map(open).collect::<Result<_, _>>()? })
    }

    /// Each sends so many messages of 8 bytes to `hub`, in turn, and connects for the first of them. How
    /// long it took until the first of each had come.
    pub fn speak_to(&self, hub: &End, messages: u64) -> Result<Duration, FabricError> {
        let address = hub.endpoint.address();
        let learn = |peer: &Side| peer.vector.insert_one(address).map_err(no_address);
        let known = self.peers.iter().map(learn).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        self.one_each(&known, hub)?;
        let connected = start.elapsed();
        (1..messages).try_for_each(|_| self.one_each(&known, hub))?;
        Ok(connected)
    }

    /// A message of each peer, in turn. All are driven meanwhile: connections need both ends.
    fn one_each(&self, known: &[u64], hub: &End) -> Result<(), FabricError> {
        for _ in &self.peers {
            let posted = hub.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 0);
            posted.map_err(|refused| FabricError::Post(refused.error))?;
        }
        let (mut entries, mut stall) = ([Entry::default()], Stall::default());
        let (mut sent, mut received, mut driven) = (0, 0, 0);
        while received < self.peers.len() {
            if let Some((peer, to)) = self.peers.iter().zip(known).nth(sent) {
                match peer.endpoint.inject(&[0; 8], *to) {
                    Ok(()) => sent += 1,
                    Err(PostError::Again) => {}
                    Err(refused) => return Err(FabricError::Post(refused)),
                }
            }
            read(&self.peers[driven].queue, &mut entries)?;
            driven = (driven + 1) % self.peers.len();
            match read(&hub.queue, &mut entries)? {
                0 if stall.is_too_long() => return Err(FabricError::Stalled),
                0 => {}
                count => {
                    received += count;
                    stall.end();
                }
            }
        }
        Ok(())
    }
}
