//! An in-process fake of verbs, for tests: queue pairs of one process, joined in memory.
//!
//! All endpoints of one [`FakeFabric`] are on one fabric. Sends are carried out when they are
//! posted, in order and whole; every check that a device makes is made (keys, bounds, states,
//! buffers). What a device does at unpredictable moments happens when a test says so.

mod fabric;
mod group;
mod manager;
mod objects;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    device::LinkLayer,
    verbs::{
        Depths, GroupRequest, LocalPort, PathEnd, RemoteAccess, Role, Status, Verbs, VerbsError,
    },
};
use fabric::State;
pub use group::FakeGroup;
use kestrel_core::memory::Piece;
pub use manager::{FakeId, FakeManager, ManagerFaults};
pub use objects::{FakeAddressHandle, FakeQueuePair, FakeQueues, FakeRegion, FakeRegistration};

/// How a fake fabric behaves.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// What carries packets: InfiniBand's own layer has LIDs and partitions.
    pub link_layer: LinkLayer,
    /// The partition that the device is used in.
    pub partition_key: u16,
    /// The longest inline request: 0 for none.
    pub inline_bytes_max: usize,
    /// Completions that a poll fetches at most.
    pub poll_burst: usize,
    /// The longest memory of an application that can be registered.
    pub registered_bytes_max: usize,
    /// The port's MTU.
    pub mtu_bytes: u32,
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
}

impl Default for FakeOptions {
    fn default() -> Self {
        FakeOptions {
            link_layer: LinkLayer::Ethernet,
            partition_key: 0xffff,
            inline_bytes_max: 220,
            poll_burst: usize::MAX,
            registered_bytes_max: 1 << 32,
            mtu_bytes: 4096,
            has_atomics: true,
            reaches_nobody: false,
            grh_required: false,
            subnet: 0xfe80 << 48,
            shuffle: None,
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
    /// Sends that found no receive posted.
    pub not_ready: u64,
    /// Datagrams that found no receive posted.
    pub overrun: u64,
    /// Sends, writes, reads and atomic operations that were carried out.
    pub carried: u64,
    /// Of these, the ones by which memory of applications was written or read.
    pub reached: u64,
    /// Of these, the atomic ones.
    pub atomics: u64,
    /// Of these, the ones posted inline.
    pub inline: u64,
    /// Queue pairs that exist.
    pub queue_pairs: usize,
    /// Bytes that are registered.
    pub registered: usize,
    /// Address handles that exist.
    pub address_handles: usize,
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
        let infiniband = options.link_layer == LinkLayer::InfiniBand;
        let mut gid = [0; 16];
        if infiniband {
            gid[..8].copy_from_slice(&options.subnet.to_be_bytes());
            gid[15] = ordinal as u8;
        } else {
            gid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        }
        let port = LocalPort {
            number: 1,
            link_layer: options.link_layer,
            lid: if infiniband { 16 + ordinal as u16 } else { 0 },
            partition_key: options.partition_key,
            partition_key_index: 0,
            gid_index: 0,
            gid,
            mtu_bytes: options.mtu_bytes,
            grh_required: options.grh_required,
            reads_max: 16,
        };
        FakeDevice { name: format!("fake{ordinal}"), fabric: self.clone(), options, port }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed elsewhere left whole values behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `count` sends of anybody end like this, and their queue pairs are in error.
    pub fn fail_sends(&self, count: usize, status: Status) {
        self.lock().failing = Some((count, status));
    }

    /// The next `count` datagrams of anybody are lost.
    pub fn lose_datagrams(&self, count: usize) {
        self.lock().losing = count;
    }

    /// Every queue pair that exists now goes into the error state.
    pub fn break_queue_pairs(&self) {
        self.lock().break_all();
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

    /// What has happened.
    pub fn tally(&self) -> Tally {
        self.lock().tally()
    }
}

/// A device of the fake.
pub struct FakeDevice {
    name: String,
    fabric: FakeFabric,
    options: FakeOptions,
    port: LocalPort,
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

    fn has_atomics(&self) -> bool {
        self.options.has_atomics
    }

    fn depths_max(&self) -> Depths {
        Depths { receives: 8192, sends: 8192 }
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
        _local_write: bool,
    ) -> Result<FakeRegistration, VerbsError> {
        let refused = self.fabric.lock().refusing;
        if refused || memory.len() > self.options.registered_bytes_max {
            return Err(objects::refusal(self, "ibv_reg_mr", libc::ENOMEM));
        }
        Ok(FakeRegistration::new(self, memory, remote))
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
        Ok(FakeQueuePair::new(self, queues, sends, role))
    }

    fn open_manager(self: &Arc<Self>) -> Result<FakeManager, VerbsError> {
        FakeManager::new(self)
    }

    fn create_address_handle(
        self: &Arc<Self>,
        peer: &PathEnd,
        dscp: u8,
    ) -> Result<FakeAddressHandle, VerbsError> {
        self.fabric.lock().code_points.insert(dscp);
        FakeAddressHandle::new(self, peer, dscp)
    }

    fn join_group(self: &Arc<Self>, request: GroupRequest) -> Result<FakeGroup, VerbsError> {
        self.fabric.lock().code_points.insert(request.dscp);
        FakeGroup::join(self, &request)
    }
}
