//! What makes transports, and what else a domain needs of the system.

use super::{Bell, EventBell, Service, Transport};
use crate::error::{Cause, HasErrno};
use crate::{address::Address, core_claim::ClaimedCore};

/// Whom a transport talks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Any number of peers.
    #[default]
    Peers,
    /// The one peer of a connected endpoint.
    Connection,
    /// Whoever asks a passive endpoint for a connection.
    Listener,
}

/// What a transport is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening<'a> {
    /// Where; none, or port 0: the provider chooses.
    pub address: Option<Address>,
    /// Endpoints with different keys refuse each other; an empty one stands for the provider's
    /// own.
    pub auth_key: &'a [u8],
    /// Its keys are told by [`Transport::take_keys`], before anything is connected. Until then
    /// whoever wants to send to it, or to be connected, is put off.
    pub keys_follow: bool,
    /// What peers are told, on every transport that one endpoint has. None: a new one of the
    /// transport's own choice. Never 0.
    pub incarnation: Option<u64>,
    /// Endpoints of different services find nobody at each other's addresses.
    pub service: Service,
    /// Whom it talks to.
    pub purpose: Purpose,
    /// What packets carry in a network: a differentiated services code point, 6 bits. None: what the
    /// user has set, or else the system.
    pub dscp: Option<u8>,
    /// Peers of this host are not reached through memory that is shared with them, but as others
    /// are: of a provider that has no other way it is refused ([`Provider::can_be_apart`]).
    pub apart: bool,
    /// Whether a peer at the second address may connect to this endpoint, at the first one, where it could go
    /// by any: through shared memory. None: whoever listens there may.
    pub admits: Option<fn(Address, Address) -> bool>,
}

/// Makes transports: one for each endpoint of a domain.
pub trait Provider: Send + Sync + 'static {
    /// What it makes.
    type Transport: Transport;

    /// Opens a reliable transport at `address`, with that key: see [`Opening`].
    fn open(&self, address: Option<Address>, auth_key: &[u8]) -> Result<Self::Transport, Cause> {
        self.open_as(Opening { address, auth_key, ..Opening::default() })
    }

    /// Opens a transport.
    fn open_as(&self, opening: Opening<'_>) -> Result<Self::Transport, Cause>;

    /// A bell of its own, to wake sleepers from other threads, which wait for it as for those of its
    /// transports.
    fn new_bell(&self) -> Result<Box<dyn Bell>, Cause> {
        let bell = EventBell::new().map_err(|error| Cause {
            errno: error.errno(),
            reason: format!("no eventfd: {error}"),
        })?;
        Ok(Box::new(bell))
    }

    /// Claims a core for a spinning helper: one a host, whatever its transport.
    fn claim_core(&self, core: usize) -> Result<Box<dyn CoreClaim>, Cause> {
        Ok(Box::new(ClaimedCore::new(core)?))
    }

    /// Whether atomic operations are for adapters alone, as the user has declared it: see
    /// [`crate::protocol::window::atomic`].
    fn adapter_atomics(&self) -> bool {
        false
    }

    /// Whether peers of this host can be reached otherwise than through shared memory.
    fn can_be_apart(&self) -> bool {
        false
    }

    /// Whether this process is a child that was forked after the provider came
    /// into being: no call into kestrel can work there. Cost: one load.
    fn forked(&self) -> bool;
}

/// A core that this process has claimed; dropping it gives the core back.
pub trait CoreClaim: Send {}
