//! Verbs as they are: a device of this machine, through rdma-core.
//!
//! libibverbs may be called by any thread at any time, so the handles here are `Sync`. Each keeps
//! what it was made on: a queue pair its queues, everything its device.

mod group;
mod manager;
mod path;
mod queue_pair;
mod queues;
mod refusals;
mod registration;
mod socket_address;
mod trouble;

use std::{
    ffi::{CStr, CString},
    io,
    net::IpAddr,
    os::fd::RawFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kestrel_core::{error::Cause, fork_guard::Mark, memory::Piece};
use rdma_core_sys::{Library, verbs::*};

use self::socket_address::address_at;
pub use self::{
    group::RdmaGroup,
    manager::RdmaManager,
    path::RdmaAddressHandle,
    queue_pair::RdmaQueuePair,
    queues::RdmaQueues,
    registration::{RdmaRegion, RdmaRegistration},
};
use crate::{
    device::{DeviceError, LinkLayer, Port, PortState, query},
    error::error_of,
    gid,
    interfaces::{InterfaceAddress, Interfaces},
    partition::{self, Partition},
    provider::{RcProvider, VerbsOptions},
    receive_pool::IMMEDIATES,
    trouble::Trouble,
    verbs::{
        Depths, GroupRequest, LocalPort, Origin, PathEnd, RemoteAccess, Role, Verbs, VerbsError,
    },
};

/// A device, opened, with a protection domain.
pub struct Rdma {
    domain: NonNull<ibv_pd>,
    port: LocalPort,
    /// The user has said which GID is used, whatever an endpoint's address.
    gid_is_named: bool,
    depths_max: Depths,
    /// Connections share receives.
    shared_receives: bool,
    has_atomics: bool,
    /// How long at least a queue pair tries to reach its peer.
    peer_timeout: Duration,
    /// The longest inline request that the device was found to grant.
    inline_bytes: AtomicU32,
    /// The device's own descriptors; go before they are closed.
    _marks: [Mark; 2],
    /// Dropped last.
    open: query::OpenDevice,
}

// SAFETY: libibverbs serializes what has to be, and the handles are used through it alone.
unsafe impl Send for Rdma {}
// SAFETY: as above.
unsafe impl Sync for Rdma {}

/// What inline requests are asked for: a small message in one cache line's neighbourhood.
const INLINE_BYTES_WANTED: u32 = 220;

/// What is asked for of the reads that a queue pair may have under way.
const READS_WANTED: i32 = 16;

impl RcProvider<Rdma> {
    /// A provider on the device that the options name. The choice of its GID is logged.
    ///
    /// # Errors
    /// Why there is no device to use.
    pub fn new(options: VerbsOptions) -> Result<Self, Cause> {
        let refuse = |error: DeviceError| Cause::of(&error);
        let (device, ip) = Rdma::open(&options)?;
        let first = || Interfaces::of_host().first();
        let default_ip = options.default_ip.or(ip).or_else(first).ok_or_else(|| {
            let (name, port) = (device.name().into(), device.port.number);
            refuse(DeviceError::NoGid { device: name, port, index: None })
        })?;
        RcProvider::on_device(Arc::new(device), default_ip, options)
    }
}

/// Reads that a queue pair may have under way: what the device takes, and no more than fill a
/// cable, since each reserves room in its memory.
fn reads_max(attributes: &ibv_device_attr) -> u8 {
    attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom).clamp(1, READS_WANTED) as u8
}

/// How deep queues can be.
fn depths_max(attributes: &ibv_device_attr, shared_receives: bool) -> Depths {
    let depth = |most: i32| most.clamp(1, i32::from(i16::MAX)) as u32;
    let sends = depth(attributes.max_cqe);
    let immediates = IMMEDIATES.min(sends / 4);
    let receives = if shared_receives { depth(attributes.max_srq_wr) } else { sends };
    Depths { receives: receives.min(sends - immediates), immediates, sends }
}

/// Forked children do not keep the device's descriptors.
fn marks_of(open: &query::OpenDevice) -> [Mark; 2] {
    // SAFETY: the context is open.
    let context = unsafe { open.context.as_ref() };
    [context.cmd_fd, context.async_fd].map(Mark::new)
}

impl Rdma {
    /// Opens the device, and says which IP address its network has.
    fn open(options: &VerbsOptions) -> Result<(Rdma, Option<IpAddr>), Cause> {
        let refuse = |error: DeviceError| Cause::of(&error);
        let library = Library::open().map_err(|error| refuse(error.into()))?;
        // Keeps a fork from moving registered memory, on kernels that would (before 5.12).
        // SAFETY: it takes nothing, and refuses where it comes too late.
        let refused = unsafe { library.verbs.ibv_fork_init() };
        if refused != 0 {
            tracing::debug!("ibv_fork_init: {}", io::Error::from_raw_os_error(refused));
        }
        let (open, device) = query::open(library, options.device.as_deref()).map_err(refuse)?;
        let port = device.active_port().or(device.ports.first());
        let gid = port.and_then(|port| gid::choose(port, options.gid_index));
        let (Some(port), Some(gid)) = (port, gid) else {
            let (device, port) = (device.name.clone(), port.map_or(0, |port| port.number));
            let index = options.gid_index;
            return Err(refuse(DeviceError::NoGid { device, port, index }));
        };
        tracing::info!(device = %device.name, port = port.number, "uses {gid}");
        let attributes = open.attributes().map_err(refuse)?;
        let partition = partition_of(&open, port.number, options.partition_key).map_err(refuse)?;
        open.do_not_block().map_err(refuse)?;
        // SAFETY: the context is open.
        let domain = unsafe { open.library.verbs.ibv_alloc_pd(open.context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            return Err(last_error(&open.name, "ibv_alloc_pd").into());
        };
        let local = LocalPort {
            number: port.number,
            link_layer: port.link_layer,
            lid: port.lid,
            partition_key: partition.key,
            partition_key_index: partition.index,
            gid_index: gid.index as u8,
            gid: gid.address.octets(),
            mtu_bytes: port.mtu_bytes.max(256),
            grh_required: port.grh_required,
            reads_max: reads_max(&attributes),
        };
        let shared_receives = options.shared_receives && device.shares_receives;
        if !shared_receives {
            tracing::info!(device = %device.name, "each connection has receives of its own");
        }
        let ip = match port.link_layer {
            LinkLayer::Ethernet => gid::ip_of(gid),
            _ => {
                let all = Interfaces::of_host().over_infiniband(&open.name, port.number);
                all.first().copied()
            }
        };
        let inline_bytes = AtomicU32::new(INLINE_BYTES_WANTED);
        let has_atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;
        let rdma = Rdma {
            domain,
            port: local,
            gid_is_named: options.gid_index.is_some(),
            depths_max: depths_max(&attributes, shared_receives),
            shared_receives,
            has_atomics,
            peer_timeout: options.peer_timeout,
            inline_bytes,
            _marks: marks_of(&open),
            open,
        };
        Ok((rdma, ip))
    }

    /// Whether the connections of an endpoint share receives.
    pub fn shares_receives(&self) -> bool {
        self.shared_receives
    }

    /// The port with its GID table as it is now: addresses come and go.
    fn read_port(&self) -> Option<Port> {
        let device = self.open.read().inspect_err(|error| tracing::debug!("{error}")).ok()?;
        device.ports.into_iter().find(|port| port.number == self.port.number)
    }

    /// The index of the network interface behind an endpoint at that address: of its GID, or of the
    /// address; 0 if there is none.
    fn interface_at(&self, own: IpAddr) -> u32 {
        let at = self.port_at(own);
        let gids = self.read_port().map_or(Vec::new(), |port| port.gids);
        let gid = gids.into_iter().find(|gid| gid.index == u32::from(at.gid_index));
        let named = gid.and_then(|gid| gid.interface);
        let having = || {
            let ip = IpAddr::from(at.gid);
            Interfaces::of_host().having(&[ip, own]).map(str::to_owned)
        };
        named.or_else(having).map_or(0, |name| interface_index(&name))
    }

    fn verbs(&self) -> &'static verbs {
        &self.open.library.verbs
    }

    fn error(&self, call: &'static str) -> VerbsError {
        last_error(&self.open.name, call)
    }

    /// The error of a call that returns its number.
    fn refusal(&self, call: &'static str, number: i32) -> VerbsError {
        VerbsError::of_call(&self.open.name, call, error_of(number))
    }
}

fn last_error(device: &str, call: &'static str) -> VerbsError {
    VerbsError::of_call(device, call, io::Error::last_os_error())
}

/// The partition that a port is used in.
fn partition_of(
    open: &query::OpenDevice,
    port: u8,
    asked: Option<u16>,
) -> Result<Partition, DeviceError> {
    let is_enough = |key| asked.is_none() && partition::is_full(key);
    let table = open.partition_keys(port, is_enough)?;
    partition::choose(&table, asked).ok_or_else(|| DeviceError::NoPartition {
        device: open.name.clone(),
        port,
        wanted: asked.unwrap_or_default(),
        table: partition::list(&table),
    })
}

/// What the kernel calls an interface; 0 if there is none of that name.
fn interface_index(name: &str) -> u32 {
    let Ok(name) = CString::new(name) else {
        return 0;
    };
    // SAFETY: the name ends with a zero.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// The addresses of this host's interfaces. None: the kernel, or who stands before it, does not say.
pub fn interface_addresses() -> Option<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is writable; the list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return None;
    }
    let (mut at, mut found) = (first, Vec::new());
    while !at.is_null() {
        // SAFETY: an element of the list, which lives until it is freed.
        let interface = unsafe { &*at };
        let has = |flag: i32| interface.ifa_flags & flag as u32 != 0;
        if !interface.ifa_addr.is_null() {
            // SAFETY: the name ends with a zero; the address is as long as its family says.
            let (name, address) =
                unsafe { (CStr::from_ptr(interface.ifa_name), address_at(interface.ifa_addr)) };
            found.extend(address.map(|address| InterfaceAddress {
                interface: name.to_string_lossy().into_owned(),
                is_running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
                is_loopback: has(libc::IFF_LOOPBACK),
                ip: address.ip(),
            }));
        }
        at = interface.ifa_next;
    }
    // SAFETY: the list of above, freed once.
    unsafe { libc::freeifaddrs(first) };
    Some(found)
}

/// Whether there is a connection manager to ask: librdmacm can be loaded.
pub fn has_manager() -> bool {
    Library::open().is_ok_and(|library| library.rdmacm().is_ok())
}

impl Drop for Rdma {
    fn drop(&mut self) {
        // SAFETY: everything that was made on the domain keeps the device, so nothing is left.
        let failed = unsafe { self.verbs().ibv_dealloc_pd(self.domain.as_ptr()) };
        if failed != 0 {
            tracing::warn!("ibv_dealloc_pd: {}", error_of(failed));
        }
    }
}

impl Verbs for Rdma {
    type Region = RdmaRegion;
    type Registration = RdmaRegistration;
    type Queues = RdmaQueues;
    type QueuePair = RdmaQueuePair;
    type AddressHandle = RdmaAddressHandle;
    type Group = RdmaGroup;
    type Manager = RdmaManager;

    fn name(&self) -> &str {
        &self.open.name
    }

    fn port(&self) -> &LocalPort {
        &self.port
    }

    fn port_at(&self, own: IpAddr) -> LocalPort {
        let Some(now) = self.read_port() else {
            return self.port;
        };
        if now.state != PortState::Active {
            let (device, port) = (&self.open.name, now.number);
            tracing::info!(%device, port, "the port is not active: {:?}", now.state);
        }
        if self.gid_is_named {
            return gid::refreshed(&self.port, &now);
        }
        let at = gid::port_at(&self.port, &now, own);
        if at.gid_index != self.port.gid_index {
            tracing::info!(device = %self.open.name, %own, "goes by GID {}", at.gid_index);
        }
        at
    }

    fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    fn depths_max(&self) -> Depths {
        self.depths_max
    }

    fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        remote_write: bool,
    ) -> Result<RdmaRegion, VerbsError> {
        RdmaRegion::new(self, bytes, remote_write)
    }

    unsafe fn register(
        self: &Arc<Self>,
        memory: Piece,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<RdmaRegistration, VerbsError> {
        // SAFETY: as this function was promised.
        unsafe { RdmaRegistration::new(self, memory, remote, local_write) }
    }

    fn open_queues(self: &Arc<Self>, depths: Depths) -> Result<RdmaQueues, VerbsError> {
        RdmaQueues::new(self, depths)
    }

    fn create_queue_pair(
        self: &Arc<Self>,
        queues: &Arc<RdmaQueues>,
        sends: u32,
        role: Role,
    ) -> Result<RdmaQueuePair, VerbsError> {
        let wanted = role.inline_bytes(self.inline_bytes.load(Ordering::Relaxed));
        let make = |inline| RdmaQueuePair::new(self, queues, sends, role, inline);
        let (made, granted) = refusals::with_inline(wanted, make)
            .map_err(|error| refusals::refused_as(role, error))?;
        if granted < wanted {
            self.inline_bytes.fetch_min(granted, Ordering::Relaxed);
            tracing::info!(device = %self.open.name, "sends up to {granted} bytes inline");
        }
        Ok(made)
    }

    fn open_manager(self: &Arc<Self>) -> Result<RdmaManager, VerbsError> {
        RdmaManager::new(self)
    }

    fn create_address_handle(
        self: &Arc<Self>,
        from: &Origin,
        peer: &PathEnd,
    ) -> Result<RdmaAddressHandle, VerbsError> {
        RdmaAddressHandle::new(self, from, peer)
    }

    fn trouble_channel(&self) -> RawFd {
        self.event_channel()
    }

    fn next_trouble(&self) -> Option<Trouble> {
        self.next_event()
    }

    fn join_group(self: &Arc<Self>, request: GroupRequest) -> Result<RdmaGroup, VerbsError> {
        RdmaGroup::join(self, &request)
    }
}
