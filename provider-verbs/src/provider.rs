//! The provider: what opens verbs transports on a device, and what they are set up with.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kestrel_core::{
    address::{Address, canonical},
    auth_key::ProvedKeys,
    config::{Config, ConnectBy, FetchPolicy},
    error::{Cause, Errno, HasErrno},
    fork_guard,
    transport::{Bell as _, EventBell, Opening, Provider, Purpose, Service},
    window::LoanWorth,
};

use crate::{
    bell::EitherBell,
    carrier::Carrier,
    control::{
        Bound, Command, Control, StationRecord, listener_name, proof, random,
        socket::{self, Listener},
    },
    datagrams::{self, Parts, UdTransport},
    manager::Manager,
    receive_pool::{
        BUFFER_BYTES, IMMEDIATES, IMMEDIATES_EACH, RECEIVES_MAX, ReceivePool, SLAB_BUFFERS,
    },
    registrations::RegistrationCache,
    send_pool::{Buffers, SendPool},
    station::StationShared,
    transport::{self, RcTransport},
    verbs::{Depths, Marks, Origin, QueuePair, Queues, Role, Verbs, VerbsError},
};

/// What the queues of an endpoint on connections are like.
const RELIABLE_DEPTHS: Depths =
    Depths { receives: RECEIVES_MAX, immediates: IMMEDIATES, sends: SEND_COMPLETIONS };
/// Completions of sends that can wait at once.
const SEND_COMPLETIONS: u32 = 4096;
/// Those of an endpoint with one peer: room for its connection and its window, for the listener that it asked,
/// and for strangers that come instead, as long as it has no peer.
const CONNECTION_DEPTHS: Depths =
    Depths { receives: 32 * SLAB_BUFFERS as u32, immediates: 2 * IMMEDIATES_EACH, sends: 512 };

/// The shortest message of which it is tried whether a read takes less than packets: as long as two of these.
/// Units: bytes.
const FETCH_CONTESTED_MIN: usize = 2 * BUFFER_BYTES;

/// In a stream so many times as long as a message with registered buffers that is worth a read is one whose
/// buffers have to be registered for it.
const REGISTRATION_WORTH: usize = 4;

/// How long a peer that connects may take from our answer to its last word.
const CONFIRM_WAIT: Duration = Duration::from_secs(5);

/// Ports that are tried until one is free for TCP and for the connection manager.
const PORT_ATTEMPTS: usize = 16;

/// How transports are set up.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The device's name; none: the first with an active port.
    pub device: Option<String>,
    /// The entry of its GID table to use; none: chosen, and the choice is logged.
    pub gid_index: Option<u8>,
    /// The InfiniBand partition, by its P_Key; none: the first full member's of the port's table.
    pub partition_key: Option<u16>,
    /// Connections share receives where the device can; else each has some of its own.
    pub shared_receives: bool,
    /// What packets of endpoints that ask for no code point are marked with; the service level of all.
    pub marks: Marks,
    /// The IP address of endpoints that ask for none; none: that of the device's network.
    pub default_ip: Option<IpAddr>,
    /// The key of endpoints that are given none: those with different keys refuse each other.
    pub auth_key: Vec<u8>,
    /// What makes connections.
    pub connect_by: ConnectBy,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a peer that connects may take from our answer to its last word.
    pub confirm_wait: Duration,
    /// How long at least a peer may not answer.
    pub peer_timeout: Duration,
    /// Whether the receiver's device reads messages where they lie.
    pub fetch: FetchPolicy,
    /// The shortest message that it reads in any case. Units: bytes.
    pub fetch_min: usize,
    /// Registrations that an endpoint keeps for later operations. Units: bytes.
    pub cache_bytes: usize,
    /// Atomic operations are for devices alone, as the user declares it.
    pub nic_atomics: bool,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions::from(&Config::default())
    }
}

impl From<&Config> for VerbsOptions {
    fn from(config: &Config) -> Self {
        VerbsOptions {
            device: None,
            gid_index: config.gid_index,
            partition_key: config.partition_key,
            shared_receives: config.shared_receives,
            marks: Marks {
                traffic_class: config.traffic_class,
                service_level: config.service_level,
            },
            default_ip: None,
            auth_key: Vec::new(),
            connect_by: config.connect_by,
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            confirm_wait: CONFIRM_WAIT,
            peer_timeout: Duration::from_millis(config.peer_timeout_ms),
            fetch: config.fetch,
            fetch_min: config.fetch_min,
            cache_bytes: config.mr_cache_bytes,
            nic_atomics: config.nic_atomics,
        }
    }
}

impl VerbsOptions {
    /// Which messages are lent to their receivers.
    fn loans(&self) -> Option<LoanWorth> {
        let always = self.fetch_min;
        match self.fetch {
            FetchPolicy::Off => None,
            FetchPolicy::Auto => {
                let contested = FETCH_CONTESTED_MIN.min(always);
                Some(LoanWorth { always, streaming: always / REGISTRATION_WORTH, contested })
            }
            _ => Some(LoanWorth { always, streaming: always, contested: always }),
        }
    }
}

/// Opens transports on one device. All of its endpoints share the device's protection domain.
pub struct RcProvider<V: Verbs> {
    device: Arc<V>,
    default_ip: IpAddr,
    auth_key: Vec<u8>,
    /// Of endpoints that ask for none.
    marks: Marks,
    connect_by: ConnectBy,
    /// Opened for the first endpoint that uses it.
    manager: OnceLock<Arc<V::Manager>>,
    /// It was said that there was none.
    manager_missed: AtomicBool,
    connect_timeout: Duration,
    confirm_wait: Duration,
    peer_timeout: Duration,
    fetch_min: usize,
    loans: Option<LoanWorth>,
    cache_bytes: usize,
    adapter_atomics: bool,
    control: Arc<Control<V>>,
    forks: u32,
}

impl<V: Verbs> RcProvider<V> {
    /// A provider on an open device. Starts the control thread.
    pub fn on_device(
        device: Arc<V>,
        default_ip: IpAddr,
        options: VerbsOptions,
    ) -> Result<Self, Cause> {
        let loans = options.loans();
        let control = Control::start().map_err(|error| system("the control thread", error))?;
        let adapter_atomics = options.nic_atomics && device.has_atomics();
        if options.nic_atomics && !adapter_atomics {
            let device = device.name();
            tracing::warn!(
                "FI_KESTREL_NIC_ATOMICS=exclusive has no effect: {device} has no atomic operations, so the \
                 target's processor plays them; where other processes' devices have them, what both \
                 reach is not changed atomically"
            );
        }
        Ok(RcProvider {
            device,
            adapter_atomics,
            default_ip,
            auth_key: options.auth_key,
            marks: options.marks,
            connect_by: options.connect_by,
            manager: OnceLock::new(),
            manager_missed: AtomicBool::new(false),
            connect_timeout: options.connect_timeout,
            confirm_wait: options.confirm_wait,
            peer_timeout: options.peer_timeout,
            loans,
            fetch_min: options.fetch_min,
            cache_bytes: options.cache_bytes,
            control: Arc::new(control),
            forks: fork_guard::generation(),
        })
    }

    /// As if TCP reached nobody any more. Of tests.
    #[doc(hidden)]
    pub fn mute_lines(&self) {
        self.control.command(Command::Mute);
    }

    /// The device.
    pub fn device(&self) -> &Arc<V> {
        &self.device
    }

    /// The IP address of endpoints that ask for none.
    pub fn default_ip(&self) -> IpAddr {
        self.default_ip
    }

    /// Listens at the address that was asked for, or at a free port.
    fn listen(&self, address: Option<Address>) -> Result<(Listener, SocketAddr), Cause> {
        let default = SocketAddr::new(self.default_ip, 0);
        let mut asked = canonical(address.map_or(default, |address| address.socket_addr()));
        if asked.ip().is_unspecified() {
            asked.set_ip(self.default_ip);
        }
        socket::open_listener(asked).map_err(|errno| {
            let reason = match errno {
                rustix::io::Errno::ADDRINUSE => format!("the address {asked} is in use"),
                rustix::io::Errno::ADDRNOTAVAIL => {
                    format!("{} is no address of this host", asked.ip())
                }
                _ => format!("cannot listen at {asked}: {errno}"),
            };
            Cause { errno: Errno(errno.raw_os_error()), reason }
        })
    }

    /// The connection manager, where there is one. Where there is none now, for want of descriptors say, the
    /// next endpoint may have one.
    fn manager(&self) -> Option<Arc<V::Manager>> {
        if let Some(manager) = self.manager.get() {
            return Some(manager.clone());
        }
        match self.device.open_manager() {
            Ok(manager) => Some(self.manager.get_or_init(|| Arc::new(manager)).clone()),
            Err(error) => {
                if !self.manager_missed.swap(true, Ordering::Relaxed) {
                    tracing::info!("connections are made over TCP: {error}");
                }
                None
            }
        }
    }

    /// Whether the connection manager is to make the connections of such an endpoint.
    fn wants_manager(&self, opening: &Opening<'_>) -> bool {
        let wanted = match self.connect_by {
            ConnectBy::Auto => opening.purpose != Purpose::Peers,
            ConnectBy::Tcp => false,
            ConnectBy::RdmaCm => true,
        };
        wanted && opening.service == Service::Reliable
    }

    /// The same, and with the connection manager at the same address, if it is wanted and can: its
    /// ports are others than those of TCP.
    fn listen_both(
        &self,
        station: u64,
        opening: &Opening<'_>,
    ) -> Result<(Listener, SocketAddr, Option<Bound<V>>), Cause> {
        let ours_to_choose = opening.address.is_none_or(|address| address.port() == 0);
        let wanted = self.wants_manager(opening).then(|| self.manager()).flatten();
        // Held until a free one is found, so that none is tried twice.
        let mut taken = Vec::new();
        loop {
            let (listener, address) = self.listen(opening.address)?;
            let Some(manager) = &wanted else {
                return Ok((listener, address, None));
            };
            match manager.bind(listener_name(station), address) {
                Ok(id) => {
                    let bound = Bound { manager: manager.clone(), id };
                    return Ok((listener, address, Some(bound)));
                }
                Err(error) if ours_to_choose && taken.len() < PORT_ATTEMPTS && in_use(&error) => {
                    taken.push(listener);
                }
                Err(error) => {
                    tracing::info!(%address, "connections are made over TCP: {error}");
                    return Ok((listener, address, None));
                }
            }
        }
    }

    /// The queues and the buffers of an endpoint.
    fn open_shared(
        &self,
        opening: &Opening<'_>,
        origin: Origin,
    ) -> Result<(Arc<StationShared<V>>, SendPool<V>), Cause> {
        let most = self.device.depths_max();
        let (wanted, slabs, buffers) = match (opening.service, opening.purpose) {
            (Service::Datagrams, _) => (datagrams::DEPTHS, datagrams::SLABS, Buffers::DATAGRAMS),
            (Service::Reliable, Purpose::Connection) => (CONNECTION_DEPTHS, 1, Buffers::CONNECTION),
            (Service::Reliable, _) => (RELIABLE_DEPTHS, 2, Buffers::SHARED),
        };
        let depths = Depths {
            receives: wanted.receives.min(most.receives),
            immediates: wanted.immediates.min(most.immediates),
            sends: wanted.sends.min(most.sends),
        };
        let queues = Arc::new(self.device.open_queues(depths)?);
        let device = self.device.clone();
        let receives = ReceivePool::new(device, queues.clone(), depths, slabs)?;
        let sends = SendPool::new(&self.device, buffers, depths.sends)?;
        let bell = EventBell::new().map_err(|error| system("an eventfd", error))?;
        let shared = StationShared::new(self.device.clone(), queues, receives, bell, origin);
        Ok((Arc::new(shared), sends))
    }

    /// The queue pair of an endpoint of datagrams, and the key of all that it talks to.
    fn open_datagrams(
        &self,
        shared: &StationShared<V>,
        key: &[u8],
    ) -> Result<(V::QueuePair, u32), Cause> {
        let key = proof::queue_key(key);
        let (queues, sends) = (&shared.queues, datagrams::SENDS_MAX);
        let pair = self.device.create_queue_pair(queues, sends, Role::Datagrams { key })?;
        pair.provide(u32::MAX)?;
        Ok((pair, key))
    }
}

impl<V: Verbs> Drop for RcProvider<V> {
    /// In a forked child the device is the parent's, who still needs it.
    fn drop(&mut self) {
        if fork_guard::forked(self.forks) {
            std::mem::forget(self.device.clone());
            std::mem::forget(self.manager.take());
        }
    }
}

impl<V: Verbs> Provider for RcProvider<V> {
    type Transport = Carrier<V>;

    fn open_as(&self, opening: Opening<'_>) -> Result<Carrier<V>, Cause> {
        let station = self.control.next_station();
        let (listener, address, managed) = self.listen_both(station, &opening)?;
        let asked = opening.dscp.map(Marks::of_code_point).unwrap_or(self.marks);
        let marks = Marks { service_level: self.marks.service_level, ..asked };
        let origin = Origin { port: self.device.port_at(address.ip()), marks, agreed: None };
        let (shared, sends) = self.open_shared(&opening, origin)?;
        let key = match opening.auth_key {
            [] => &self.auth_key[..],
            key => key,
        };
        let datagrams = match opening.service {
            Service::Reliable => None,
            Service::Datagrams => Some(self.open_datagrams(&shared, key)?),
        };
        // SAFETY: both descriptors live as long as `shared`, which the transport keeps.
        let either = unsafe { EitherBell::new([shared.bell.fd(), shared.queues.channel()]) }
            .map_err(|error| system("an epoll descriptor", error))?;
        let incarnation = opening.incarnation;
        let incarnation = incarnation.unwrap_or_else(|| u64::from_le_bytes(random()).max(1));
        self.control.command(Command::Register(Box::new(StationRecord {
            id: station,
            listener,
            address,
            incarnation,
            keys: ProvedKeys::new(key, opening.keys_follow),
            connect_timeout: self.connect_timeout,
            confirm_wait: self.confirm_wait,
            silence_max: socket::silence_max(self.peer_timeout),
            shared: shared.clone(),
            datagrams: datagrams.as_ref().map(|(queue_pair, _)| queue_pair.number()),
            managed,
            failed: None,
        })));
        let (address, control) = (Address::from(address), self.control.clone());
        let key_bytes = key.to_vec();
        let Some((queue_pair, key)) = datagrams else {
            return Ok(Carrier::Reliable(RcTransport::new(transport::Parts {
                address,
                station,
                control,
                shared,
                sends,
                either,
                fetch_min: self.fetch_min,
                loans: self.loans,
                registrations: RegistrationCache::new(self.device.clone(), self.cache_bytes),
            })));
        };
        Ok(Carrier::Datagrams(UdTransport::new(Parts {
            address,
            incarnation,
            station,
            control,
            key,
            auth_key: key_bytes,
            queue_pair,
            either,
            sends,
            shared,
            manages_groups: self.connect_by == ConnectBy::RdmaCm,
        })))
    }

    fn adapter_atomics(&self) -> bool {
        self.adapter_atomics
    }

    #[inline(always)]
    fn forked(&self) -> bool {
        fork_guard::forked(self.forks)
    }
}

/// Whether somebody has the port already, or the like.
fn in_use(error: &VerbsError) -> bool {
    [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL].contains(&error.errno())
}

fn system(what: &str, error: std::io::Error) -> Cause {
    Cause { errno: error.errno(), reason: format!("{what} cannot be had: {error}") }
}
