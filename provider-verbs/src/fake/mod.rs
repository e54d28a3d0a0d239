//! An in-process fake of verbs, for tests: queue pairs of one process, joined in memory.
//!
//! All endpoints of one [`FakeFabric`] are on one fabric. Sends are carried out when they are
//! posted, in order and whole; every check that a device makes is made (keys, bounds, states,
//! buffers). What a device does at unpredictable moments happens when a test says so.

mod fabric;
mod gone;
mod group;
mod joined;
mod manager;
mod memory;
mod objects;
mod overtaken;
mod receives;
mod waiting;

use std::{
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    device::{Gid, GidKind, LinkLayer, Port, PortState},
    gid,
    path::Route,
    receive_pool::{IMMEDIATES, RECEIVES_MAX},
    trouble::Trouble,
    verbs::{
        Depths, GroupRequest, LocalPort, Origin, PathEnd, RemoteAccess, Role, Status, Verbs,
        VerbsError, group_gid,
    },
};
use fabric::State;
pub use group::FakeGroup;
use kestrel_core::memory::Piece;
pub use manager::{FakeId, FakeManager, ManagerFaults};
pub use objects::{FakeAddressHandle, FakeQueuePair, FakeQueues, FakeRegion, FakeRegistration};

/// What the connection manager agrees on, which asks the subnet manager, whatever the device says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedPath {
    pub partition_key: u16,
    pub service_level: u8,
}

/// How a fake fabric behaves.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// What carries packets: InfiniBand's own layer has LIDs and partitions.
    pub link_layer: LinkLayer,
    /// The partition that the device is used in.
    pub partition_key: u16,
    /// The addresses of its network on Ethernet, and so its GID table.
    pub addresses: Vec<IpAddr>,
    /// The user has named the GID that is used.
    pub gid_index: Option<u8>,
    /// None: what the device says itself.
    pub managed_path: Option<ManagedPath>,
    /// The code point of what its connection manager connects, where none is asked for.
    pub default_dscp: u8,
    /// The longest inline request: 0 for none.
    pub inline_bytes_max: usize,
    /// Completions that a poll fetches at most.
    pub poll_burst: usize,
    /// The longest memory of an application that can be registered.
    pub registered_bytes_max: usize,
    /// How much can be registered at a time, our own included.
    pub locked_bytes_max: usize,
    /// Receives that a queue of its can have.
    pub receives: u32,
    /// Writes with data that its queues have completions for.
    pub immediates: u32,
    /// The port's MTU.
    pub mtu_bytes: u32,
    /// Queue pairs share receives; else each has some of its own.
    pub shares_receives: bool,
    /// It has atomic operations.
    pub has_atomics: bool,
    /// It finds no path to anybody, as where a peer's hardware address does not come.
    pub reaches_nobody: bool,
    /// Its port needs global route headers within its subnet, too.
    pub grh_required: bool,
    /// The prefix of its GIDs on InfiniBand.
    pub subnet: u64,
    /// Completions of different queue pairs overtake each other, chosen by this seed.
    pub shuffle: Option<u64>,
    /// Writes of who receives take their time, and of two under way the later one is carried out first, as where
    /// a network routes each packet anew.
    pub overtakes: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        FakeOptions {
            link_layer: LinkLayer::Ethernet,
            partition_key: 0xffff,
            addresses: vec![[127, 0, 0, 1].into()],
            gid_index: None,
            managed_path: None,
            default_dscp: 0,
            inline_bytes_max: 220,
            poll_burst: usize::MAX,
            receives: RECEIVES_MAX,
            immediates: IMMEDIATES,
            registered_bytes_max: 1 << 32,
            locked_bytes_max: usize::MAX,
            mtu_bytes: 4096,
            shares_receives: true,
            has_atomics: true,
            reaches_nobody: false,
            grh_required: false,
            subnet: 0xfe80 << 48,
            shuffle: None,
            overtakes: false,
        }
    }
}

/// What joins the devices.
#[derive(Clone, Default)]
pub struct FakeFabric {
    state: Arc<Mutex<State>>,
}

/// What has happened on a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that posted sends, writes, reads or atomic operations: each a chain of them.
    pub chains: u64,
    /// Looks for completions of sends.
    pub looks: u64,
    /// Sends that found no receive posted, and waited for one.
    pub not_ready: u64,
    /// Datagrams that found no receive posted.
    pub overrun: u64,
    /// Sends, writes, reads and atomic operations that were carried out.
    pub carried: u64,
    /// Of these, the ones by which memory of applications was written or read.
    pub reached: u64,
    /// Of these, the atomic ones.
    pub atomics: u64,
    /// Writes that were overtaken by later ones of their queue pair.
    pub overtaken: u64,
    /// Of these, the writes that carried data.
    pub told: u64,
    /// Of these, the ones posted inline.
    pub inline: u64,
    /// Queue pairs that exist.
    pub queue_pairs: usize,
    /// Registrations of memory of applications that were made.
    pub registrations: u64,
    /// Bytes that are registered.
    pub registered: usize,
    /// Of these, the bytes of slabs of receive buffers, which an endpoint keeps.
    pub slabs: usize,
    /// Address handles that exist.
    pub address_handles: usize,
    /// Ends that found the way to their peers.
    pub paths: u64,
    /// Connections that were made through a connection manager.
    pub managed: u64,
    /// Ids of connection managers that exist.
    pub ids: usize,
    /// How many are in groups through a connection manager, each counted in each.
    pub members: usize,
}

impl FakeFabric {
    /// A device on this fabric.
    pub fn device(&self, options: FakeOptions) -> FakeDevice {
        let ordinal = self.lock().next_device();
        self.lock().overtaken.enable(options.overtakes);
        let table = port_of(&options, ordinal);
        let gid =
            gid::choose(&table, options.gid_index).expect("the test names a GID that is there");
        let port = LocalPort {
            number: table.number,
            link_layer: table.link_layer,
            lid: table.lid,
            partition_key: options.partition_key,
            partition_key_index: 0,
            gid_index: gid.index as u8,
            gid: gid.address.octets(),
            mtu_bytes: options.mtu_bytes,
            grh_required: options.grh_required,
            reads_max: 16,
        };
        let (name, fabric) = (format!("fake{ordinal}"), self.clone());
        let (seeking, troubles) = (Seeking::default(), gone::channel());
        FakeDevice { name, ordinal, fabric, options, port, table, seeking, troubles }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed elsewhere left whole values behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `count` sends of anybody end like this, and their queue pairs are in error.
    pub fn fail_sends(&self, count: usize, status: Status) {
        self.lock().failing = Some((count, status));
    }

    /// The next `count` operations of windows are carried out, or refused, and nobody hears of it.
    pub fn lose_answers(&self, count: usize) {
        self.lock().losing_answers = count;
    }

    /// Whoever makes the next queue pair meets a bug.
    pub fn meet_a_bug(&self) {
        self.lock().buggy = true;
    }

    /// The next `count` datagrams of anybody are lost.
    pub fn lose_datagrams(&self, count: usize) {
        self.lock().losing = count;
    }

    /// From now on strays come as fast as buffers are posted, until they do not.
    pub fn flood(&self, flooding: bool) {
        self.lock().flooding = flooding;
    }

    /// Every queue pair that exists now goes into the error state.
    pub fn break_queue_pairs(&self) {
        self.lock().break_all(|_| true);
    }

    /// The same of those that take packets alone: windows stay.
    pub fn break_packets(&self) {
        self.lock().break_all(|role| matches!(role, Role::Sends | Role::Receives));
    }

    /// From now on nothing is carried, until it is again: sends wait where they are.
    pub fn hold(&self, held: bool) {
        self.lock().hold(held);
    }

    /// From now on who sends does not hear that it arrived, until it does again.
    pub fn lose_acknowledgements(&self, lost: bool) {
        self.lock().unacknowledged = lost;
    }

    /// From now on no memory of applications can be registered, until it can again.
    pub fn refuse_registrations(&self, refused: bool) {
        self.lock().refusing = refused;
    }

    /// From now on devices refuse atomic operations, whatever they say of themselves.
    pub fn refuse_atomics(&self) {
        self.lock().refusing_atomics = true;
    }

    /// What goes wrong with managed connections from now on.
    pub fn set_manager_faults(&self, faults: ManagerFaults) {
        self.lock().exchange.faults = faults;
    }

    /// The code points that packets of anybody have carried.
    pub fn code_points(&self) -> Vec<u8> {
        self.lock().code_points.iter().copied().collect()
    }

    /// By which ports, and which routes, anybody has reached somebody so far: each once.
    pub fn paths(&self) -> Vec<(LocalPort, Route)> {
        self.lock().paths.clone()
    }

    /// What has happened.
    pub fn tally(&self) -> Tally {
        self.lock().tally()
    }
}

fn port_of(options: &FakeOptions, ordinal: usize) -> Port {
    let link_layer = options.link_layer;
    let infiniband = link_layer == LinkLayer::InfiniBand;
    let own = u128::from(options.subnet) << 64 | ordinal as u128;
    let gids = match infiniband {
        true => vec![own.to_be_bytes()],
        false => options.addresses.iter().copied().map(group_gid).collect(),
    };
    let kind = if infiniband { GidKind::InfiniBand } else { GidKind::RoceV2 };
    let gid = |(index, bytes): (u32, [u8; 16])| {
        let (address, interface) = (bytes.into(), None);
        Gid { index, kind, address, interface }
    };
    Port {
        number: 1,
        link_layer,
        state: PortState::Active,
        mtu_bytes: options.mtu_bytes,
        mtu_bytes_max: options.mtu_bytes,
        speed: 0,
        lid: if infiniband { 16 + ordinal as u16 } else { 0 },
        grh_required: options.grh_required,
        gids: (0..).zip(gids).map(gid).collect(),
    }
}

/// A device of the fake.
pub struct FakeDevice {
    name: String,
    ordinal: usize,
    fabric: FakeFabric,
    options: FakeOptions,
    port: LocalPort,
    table: Port,
    seeking: Seeking,
    /// Readable when it has something to say of itself.
    troubles: OwnedFd,
}

impl FakeDevice {
    /// From now on who looks for a path is held up, until nobody is any more.
    pub fn hold_paths(&self, held: bool) {
        self.seeking.held.store(held, Ordering::Relaxed);
    }

    /// Whether somebody is held up.
    pub fn seeks_path(&self) -> bool {
        self.seeking.waits.load(Ordering::Relaxed)
    }
}

/// Looking for a path takes as long as a test says: the kernel looks for hardware addresses.
#[derive(Default)]
struct Seeking {
    held: AtomicBool,
    waits: AtomicBool,
}

impl Seeking {
    fn wait(&self) {
        // A test that failed holds up nobody for long.
        for _ in 0..10_000 {
            let held = self.held.load(Ordering::Relaxed);
            self.waits.store(held, Ordering::Relaxed);
            if !held {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Verbs for FakeDevice {
    type Region = FakeRegion;
    type Registration = FakeRegistration;
    type Queues = FakeQueues;
    type QueuePair = FakeQueuePair;
    type AddressHandle = FakeAddressHandle;
    type Group = FakeGroup;
    type Manager = FakeManager;

    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> &LocalPort {
        &self.port
    }

    fn port_at(&self, own: IpAddr) -> LocalPort {
        match self.options.gid_index {
            Some(_) => self.port,
            None => gid::port_at(&self.port, &self.table, own),
        }
    }

    fn has_atomics(&self) -> bool {
        self.options.has_atomics
    }

    fn depths_max(&self) -> Depths {
        let FakeOptions { receives, immediates, .. } = self.options;
        Depths { receives, immediates, sends: 8192 }
    }

    fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        remote_write: bool,
    ) -> Result<FakeRegion, VerbsError> {
        FakeRegion::new(self, bytes, remote_write)
    }

    unsafe fn register(
        self: &Arc<Self>,
        memory: Piece,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<FakeRegistration, VerbsError> {
        if !self.fabric.lock().admits(memory.len(), &self.options) {
            return Err(objects::refusal(self, "ibv_reg_mr", libc::ENOMEM));
        }
        Ok(FakeRegistration::new(self, memory, remote, local_write))
    }

    fn open_queues(self: &Arc<Self>, depths: Depths) -> Result<FakeQueues, VerbsError> {
        FakeQueues::new(self, depths)
    }

    fn create_queue_pair(
        self: &Arc<Self>,
        queues: &Arc<FakeQueues>,
        sends: u32,
        role: Role,
    ) -> Result<FakeQueuePair, VerbsError> {
        let buggy = std::mem::take(&mut self.fabric.lock().buggy);
        assert!(!buggy, "a bug that a test asked for");
        Ok(FakeQueuePair::new(self, queues, sends, role))
    }

    fn open_manager(self: &Arc<Self>) -> Result<FakeManager, VerbsError> {
        FakeManager::new(self)
    }

    fn create_address_handle(
        self: &Arc<Self>,
        from: &Origin,
        peer: &PathEnd,
    ) -> Result<FakeAddressHandle, VerbsError> {
        self.fabric.lock().code_points.insert(from.marks.code_point().unwrap_or(0));
        FakeAddressHandle::new(self, from, peer)
    }

    fn trouble_channel(&self) -> RawFd {
        self.troubles.as_raw_fd()
    }

    fn next_trouble(&self) -> Option<Trouble> {
        self.take_trouble()
    }

    fn join_group(self: &Arc<Self>, request: GroupRequest) -> Result<FakeGroup, VerbsError> {
        self.fabric.lock().code_points.insert(request.marks.code_point().unwrap_or(0));
        FakeGroup::join(self, &request)
    }
}
