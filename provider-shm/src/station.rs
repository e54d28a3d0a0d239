//! An endpoint's presence on this host: its address, and what becomes of its lanes.
//!
//! A lane goes one way, from the side that connects to the side that is connected to; an answer
//! takes a lane of its own. So two endpoints that connect to each other at once do not cross:
//! each gets what it asked for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kestrel_core::ring::announced::Announced;
use kestrel_core::{
    address::{Address, canonical},
    auth_key::{KeyNumber, Keyring, ONLY_KEY},
    fork_guard,
    transport::Service,
};
use rustix::io::Errno;

use crate::cma::PeerMemory;
use crate::control::shares::Share;
use crate::control::wire::KEY_BYTES_MAX;
use crate::control::{
    self, Command, Control, StationRecord,
    socket::{self, Socket},
};
use crate::doorbell::Doorbell;
use crate::own_ip::loopback_like;
use crate::process::{Life, ProcessId};
use crate::region::{LaneMemory, PoolMemory, PoolView};
use crate::sys;

pub use crate::station_error::{ConnectError, StationError};

/// The ports from which one is chosen for an endpoint that asks for none: IANA's dynamic ones.
const PORTS_CHOSEN: std::ops::RangeInclusive<u16> = 49152..=65535;
/// How many of them are tried.
pub(crate) const PORT_ATTEMPTS: u32 = 64;

/// What an endpoint asks for.
#[derive(Debug)]
pub struct StationOptions {
    /// The address to have; port 0 lets us choose one, and so does none.
    pub address: Option<SocketAddr>,
    /// The IP address where `address` gives none, or an unspecified one without a port. A port of any address is
    /// one of the loopback address, where others look for it.
    pub default_ip: IpAddr,
    /// Endpoints with different keys refuse each other. At most 512 bytes.
    pub auth_key: Vec<u8>,
    /// Peers are put off until [`Station::take_keys`], which may tell others.
    pub keys_follow: bool,
    /// Addresses of different services are not the same.
    pub service: Service,
    /// See [`Opening::admits`](kestrel_core::transport::Opening::admits).
    pub admits: Option<fn(Address, Address) -> bool>,
    /// What peers know this station by; none: a random number. Never 0.
    pub incarnation: Option<u64>,
    /// What peers that this endpoint sends to may read.
    pub pool: PoolMemory,
    /// How long after `connect` its event comes at the latest.
    pub connect_timeout: Duration,
    /// Whether memory may be read across processes.
    pub cma: bool,
}

/// Who is at the other end of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    pub address: SocketAddr,
    /// Random for each station: a restarted peer is another one.
    pub incarnation: u64,
    pub process: ProcessId,
    /// As the kernel put it on the socket, if the process has one here.
    pub pid: Option<i32>,
    /// Its process's life, where a pidfd tells of it.
    pub life: Option<Life>,
    /// The peer's memory, if a probe showed that we can read it.
    pub memory: Option<PeerMemory>,
    /// Whether it said that it can read ours.
    pub reads_us: bool,
    /// Whether the peer executes our `barrier::heavy_fence`.
    pub asymmetric: bool,
    /// Of a lane that its process sends on: the key that it has proved.
    pub key: KeyNumber,
    /// Of a lane that its process sends on: counts it as long as there is something of it.
    pub(crate) share: Option<Share>,
    /// Keeps the handshake's socket open, where the peer knows our death by that.
    pub(crate) _kept: Option<Arc<()>>,
}

/// What the control plane has to tell an endpoint.
#[derive(Debug)]
pub enum StationEvent {
    /// A lane to send on, as asked for by `connect`.
    Connected { request: u32, lane: LaneMemory, bell: Doorbell, peer: PeerIdentity },
    /// No lane came of that `connect`.
    Failed { request: u32, error: ConnectError },
    /// A lane to receive from, and a view of its sender's pool.
    Incoming { lane: LaneMemory, pool: PoolView, bell: Doorbell, peer: PeerIdentity },
    /// Asked for by `settle`.
    Settled { request: u32 },
    /// The process is dead, however it died. Comes after every event about its lanes, and once.
    Died { process: ProcessId },
}

/// What the endpoint and the control thread share of a station.
pub(crate) struct StationShared {
    /// With their numbers. The data path looks at every poll whether there are any.
    events: Announced<(u64, StationEvent)>,
    /// The number of the last event that was taken.
    taken: AtomicU64,
    pub bell: Doorbell,
}

impl StationShared {
    /// Hands an event to the endpoint. `number` grows with each.
    pub(crate) fn push(&self, number: u64, event: StationEvent) {
        self.events.push((number, event));
        self.bell.ring();
    }
}

/// One endpoint's presence on this host. Any thread may call anything.
///
/// Closed by drop: the address is free, and no event comes any more. In a forked child dropping
/// it does nothing, and everything else fails.
pub struct Station {
    id: u64,
    address: SocketAddr,
    service: Service,
    incarnation: u64,
    generation: u32,
    pool: PoolMemory,
    shared: Arc<StationShared>,
    control: Arc<Control>,
    /// Touched in a forked child only, so nobody can have held it at the fork: what `connect`
    /// answers there, where the queue's memory may have been caught half-written.
    child_failures: Mutex<Vec<u32>>,
    closed: bool,
}

impl Station {
    /// Takes an address on this host and listens there.
    ///
    /// Cost: some system calls; starts the process's control thread if this is the first station.
    pub fn open(options: StationOptions) -> Result<Station, StationError> {
        if options.auth_key.len() > KEY_BYTES_MAX {
            return Err(StationError::KeyTooLong { bytes: options.auth_key.len() });
        }
        let generation = fork_guard::generation();
        let bell = Doorbell::new().map_err(|e| StationError::system("eventfd", e, 2))?;
        let control = control::acquire(options.cma)?;
        let opened = take_address(&options).and_then(|(listener, address)| {
            let shared = Arc::new(StationShared {
                events: Announced::default(),
                taken: AtomicU64::new(0),
                bell,
            });
            let incarnation = match options.incarnation {
                Some(incarnation) => incarnation,
                None => control::random_u64()?.max(1),
            };
            Ok((listener, address, shared, incarnation))
        });
        let (listener, address, shared, incarnation) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                control::release(&control);
                return Err(error);
            }
        };
        let id = control::next_station_id();
        control.command(Command::Register(Box::new(StationRecord::new(
            id,
            listener,
            address,
            incarnation,
            shared.clone(),
            &options,
        ))));
        Ok(Station {
            id,
            address,
            service: options.service,
            incarnation,
            generation,
            pool: options.pool,
            shared,
            control,
            child_failures: Mutex::new(Vec::new()),
            closed: false,
        })
    }

    /// Where peers reach this endpoint.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A number that no earlier station at this address had. Never 0.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The pool that was given at opening.
    pub fn pool(&self) -> &PoolMemory {
        &self.pool
    }

    /// Whether nobody listens at `address` on this host now; not where that cannot be told.
    ///
    /// Cost: a few system calls; who listens sees a connection that ends at once.
    pub fn is_deserted(&self, address: SocketAddr) -> bool {
        let there = socket::open_connection(self.service, canonical(address));
        there.err() == Some(Errno::CONNREFUSED)
    }

    /// Whether anybody but the process `pid`, which is watched, listens at `address`: with an
    /// endpoint of several contexts, which is reliable. None where that cannot be told for the moment:
    /// too many others connect there, or we have no descriptor or no memory left.
    ///
    /// Cost: as `is_deserted`.
    pub fn is_of_others(pid: Option<i32>, address: SocketAddr) -> Option<bool> {
        match socket::open_connection(Service::Reliable, canonical(address)) {
            Ok(there) => {
                let owner = sys::peer_credentials(there.as_fd()).ok()?;
                Some(!socket::same_user(owner) || owner.pid != pid)
            }
            Err(Errno::CONNREFUSED) => Some(false),
            Err(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => None,
            Err(_) => Some(true),
        }
    }

    /// Asks for a lane to `to`. Exactly one `Connected` or `Failed` with this `request` follows,
    /// within the connect timeout.
    ///
    /// Cost: an allocation and a system call; everything else is done by the control thread.
    pub fn connect(&self, request: u32, to: SocketAddr) {
        self.connect_by(request, to, ONLY_KEY);
    }

    /// From now on peers prove one of these keys, or our own, if there are none.
    pub fn take_keys(&self, keys: Option<Keyring>) {
        if !self.is_forked() {
            self.control.command(Command::TakeKeys { station: self.id, keys });
        }
    }

    /// As `connect`, by the key of that number.
    pub fn connect_by(&self, request: u32, to: SocketAddr, key: KeyNumber) {
        if self.is_forked() {
            self.shared.events.announce();
            self.child_failures.lock().expect("nothing panics under it").push(request);
            return;
        }
        self.control.command(Command::Connect { station: self.id, request, to, key });
    }

    /// Asks for `Settled` with this `request`, which comes after every lane to us that a peer has
    /// sent on by now. False if nothing will come: this is a forked child.
    pub fn settle(&self, request: u32) -> bool {
        let serves = !self.is_forked();
        if serves {
            self.control.command(Command::Settle { station: self.id, request });
        }
        serves
    }

    /// Whether `next_event` is worth a call.
    ///
    /// Cost: one load of a line that is written only when there are events.
    #[inline]
    pub fn events_pending(&self) -> bool {
        self.shared.events.is_pending()
    }

    /// Takes the next event.
    pub fn next_event(&self) -> Option<StationEvent> {
        if self.is_forked() {
            let request = self.child_failures.lock().expect("nothing panics under it").pop()?;
            self.shared.events.settle();
            return Some(StationEvent::Failed { request, error: ConnectError::Forked });
        }
        let (number, event) = self.shared.events.pop()?;
        self.shared.taken.fetch_max(number, Ordering::Relaxed);
        Some(event)
    }

    /// Our own bell: rung by peers, and by the control thread for every event.
    ///
    /// To sleep on it: drain it, look for events and messages, sleep.
    pub fn bell(&self) -> &Doorbell {
        &self.shared.bell
    }

    /// The endpoint has no lane with this process any more: its death need not be told.
    ///
    /// Lanes whose events were not taken yet are not meant, and keep the interest alive.
    pub fn forget(&self, process: ProcessId) {
        if self.closed || self.is_forked() {
            return;
        }
        let taken = self.shared.taken.load(Ordering::Relaxed);
        self.control.command(Command::Forget { station: self.id, process, taken });
    }

    /// Gives the address back, and answers the events that were not taken: lanes among them have
    /// a peer who should be told (the data path's BYE).
    ///
    /// Blocks for a short exchange with the control thread. Requests that are under way end in
    /// `Failed` with [`ConnectError::Closed`]. Afterwards nothing is to be asked of it; [`Self::forget`] may
    /// be, and is heard by nobody.
    pub fn close(&mut self) -> Vec<StationEvent> {
        self.unregister();
        std::iter::from_fn(|| self.next_event()).collect()
    }

    /// Whether this process is a forked child of the one that opened the station.
    pub fn is_forked(&self) -> bool {
        fork_guard::forked(self.generation)
    }

    fn unregister(&mut self) {
        if !self.closed && !self.is_forked() {
            self.control.unregister(self.id);
            control::release(&self.control);
        }
        self.closed = true;
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        if self.is_forked() {
            // The queue may have been caught half-written, and the control thread is not here:
            // one count too many keeps the child's copies until its end.
            std::mem::forget((self.shared.clone(), self.control.clone()));
            return;
        }
        self.unregister();
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Station")
            .field("address", &self.address)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// Listens at the address that was asked for, or at a free one.
fn take_address(options: &StationOptions) -> Result<(Socket, SocketAddr), StationError> {
    let asked = options.address.unwrap_or(SocketAddr::new(options.default_ip, 0));
    let mut address = canonical(asked);
    if address.ip().is_unspecified() {
        address.set_ip(match address.port() {
            0 => options.default_ip.to_canonical(),
            _ => loopback_like(address.ip()),
        });
    }
    if address.ip().is_unspecified() {
        return Err(StationError::NoAddress);
    }
    let system = |errno: Errno| StationError::system("listening", errno.into(), 1);
    if address.port() != 0 {
        return match socket::open_listener(options.service, address) {
            Ok(listener) => Ok((listener, address)),
            Err(Errno::ADDRINUSE) => Err(StationError::AddressInUse { address }),
            Err(errno) => Err(system(errno)),
        };
    }
    let (first, ports) = (*PORTS_CHOSEN.start(), PORTS_CHOSEN.len() as u64);
    for _ in 0..PORT_ATTEMPTS {
        address.set_port(first + (control::random_u64()? % ports) as u16);
        match socket::open_listener(options.service, address) {
            Ok(listener) => return Ok((listener, address)),
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(system(errno)),
        }
    }
    Err(StationError::NoFreePort { ip: address.ip() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stations_and_events_go_between_threads() {
        fn shared<T: Send + Sync>() {}
        fn sent<T: Send>() {}
        shared::<Station>();
        sent::<StationEvent>();
    }
}
