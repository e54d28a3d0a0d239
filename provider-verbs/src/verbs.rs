//! What the transport asks of verbs: a device with its protection domain, queues, queue pairs
//! and registered memory.
//!
//! The real thing ([`crate::rdma`]) and the in-process fake ([`crate::fake`]) both implement it,
//! chosen by type: no message goes through a `dyn`.

mod work;

use std::{net::IpAddr, os::fd::RawFd, sync::Arc};

use kestrel_core::memory::Piece;

/// What peers may do to memory, or through a queue pair.
pub use kestrel_core::window::Access as RemoteAccess;

pub use self::work::{
    Completion, Completions, Destination, EMPTY, POLL_BURST, ReceiveRequest, RemoteMemory, Segment,
    SendRequest, Status, Verb,
};
pub use crate::error::VerbsError;
pub use crate::path::{Marks, Route};
use crate::{device::LinkLayer, manager::Manager, memory::Memory, trouble::Trouble};

/// In front of each datagram in its receive buffer: room for the packet's global route header.
pub const GRH_BYTES: usize = 40;

/// The queue pair number that stands for all who hear a group.
pub const EVERYBODY: u32 = 0xff_ffff;

/// A multicast group as devices on Ethernet call it: an IP address like any other.
pub fn group_gid(group: IpAddr) -> [u8; 16] {
    match group {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A multicast group that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct GroupRequest {
    pub group: IpAddr,
    /// The endpoint's own address: connection managers find the device by it.
    pub own: IpAddr,
    /// Datagrams of others to the group are let through to this host.
    pub hears: bool,
    /// What datagrams to the group are marked with.
    pub marks: Marks,
    /// The connection manager is to join where the host could do without.
    pub managed: bool,
}

/// A multicast group as a queue pair is attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupAddress {
    pub gid: [u8; 16],
    /// Of InfiniBand alone: the subnet's name for the group. 0 elsewhere.
    pub lid: u16,
}

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends packets, and its memory for credit is written to.
    Sends,
    /// It receives into the shared queue, and writes credit.
    Receives,
    /// It writes and reads the peer's memory.
    Reaches,
    /// The peer writes and reads our memory through it, and so many of its writes can carry data
    /// that nobody has taken yet.
    Admits { access: RemoteAccess, immediates: u32 },
    /// It sends datagrams to anybody, and receives those that have its key into the shared queue.
    /// It is unreliable (UD), and ready once it is made.
    Datagrams { key: u32 },
}

/// What a queue pair takes inline that writes credit. Unit: bytes.
pub const WORDS_INLINE: u32 = 32;

impl Role {
    /// Reads that may be under way at once, of those that the port takes.
    pub fn reads_max(self, port: &LocalPort) -> u8 {
        match self {
            Role::Sends | Role::Receives | Role::Datagrams { .. } => 1,
            Role::Reaches | Role::Admits { .. } => port.reads_max,
        }
    }

    /// Receives of nothing that its own queue has room for.
    pub fn immediates(self) -> u32 {
        if let Role::Admits { immediates, .. } = self { immediates } else { 0 }
    }

    /// The longest request that it is to take inline, of those that the device does. Devices make room for
    /// as much in each request that a queue pair can have.
    pub fn inline_bytes(self, device: u32) -> u32 {
        match self {
            Role::Sends | Role::Reaches | Role::Datagrams { .. } => device,
            Role::Receives => device.min(WORDS_INLINE),
            Role::Admits { .. } => 0,
        }
    }

    /// What the peer may do through it.
    pub fn admits(self) -> RemoteAccess {
        match self {
            // Its peer writes credit, or nothing at all: a write of nothing is how a side asks for a
            // completion, and devices refuse it where none is admitted.
            Role::Sends | Role::Receives => RemoteAccess { write: true, ..RemoteAccess::default() },
            Role::Reaches | Role::Datagrams { .. } => RemoteAccess::default(),
            Role::Admits { access, .. } => access,
        }
    }
}

/// How deep an endpoint's queues are.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Receives that the shared queue may have, and completions of them.
    pub receives: u32,
    /// Completions, beside those, of writes that carry data.
    pub immediates: u32,
    /// Completions of sends.
    pub sends: u32,
}

/// The port that a device is used through, and how peers find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    pub number: u8,
    pub link_layer: LinkLayer,
    pub lid: u16,
    pub partition_key: u16,
    pub partition_key_index: u16,
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub mtu_bytes: u32,
    /// Packets need a global route header within their subnet, too.
    pub grh_required: bool,
    /// Reads that a queue pair may have under way, as their initiator and as their target.
    pub reads_max: u8,
}

/// How packets leave an endpoint, or one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The port, by those entries of its tables that the endpoint goes by.
    pub port: LocalPort,
    /// What packets are marked with.
    pub marks: Marks,
    /// The route to the one peer that it is for, where the connection manager has said it.
    pub agreed: Option<Route>,
}

/// What the connection manager has agreed on with the peer's: it asks who knows the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub route: Route,
    pub partition_key: u16,
    pub partition_key_index: u16,
    /// The longest packets that the way takes.
    pub mtu_bytes: u32,
    /// The way was to take longer ones, which our port does not: the peer does not know of it.
    pub is_narrowed: bool,
}

impl Origin {
    /// The same for what goes along with a connection of which that was agreed on.
    pub fn along(self, agreement: Option<&Agreement>) -> Origin {
        let Some(agreement) = agreement else {
            return self;
        };
        let Agreement { route, partition_key, partition_key_index, mtu_bytes, .. } = *agreement;
        let mtu_bytes = mtu_bytes.min(self.port.mtu_bytes);
        let port = LocalPort { partition_key, partition_key_index, mtu_bytes, ..self.port };
        Origin { port, agreed: Some(route), ..self }
    }
}

/// What one side tells the other of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathEnd {
    pub queue_pair: u32,
    /// The first packet's sequence number, 24 bits.
    pub first_packet: u32,
    pub lid: u16,
    pub partition_key: u16,
    pub link_layer: LinkLayer,
    pub gid: [u8; 16],
    pub mtu_bytes: u32,
    /// Reads that may be under way at once.
    pub reads_max: u8,
}

impl PathEnd {
    /// Whether the same path leads there: to the same port of the same device.
    pub fn is_beside(&self, other: &PathEnd) -> bool {
        (self.lid, self.gid) == (other.lid, other.gid)
    }
}

/// Whether a path can have this MTU.
pub fn is_mtu(bytes: u32) -> bool {
    [256, 512, 1024, 2048, 4096].contains(&bytes)
}

/// A device, opened, with a protection domain that everything made on it belongs to.
pub trait Verbs: Send + Sync + Sized + 'static {
    type Region: Region;
    type Registration: Registration;
    type Queues: Queues;
    type QueuePair: QueuePair;
    type AddressHandle: AddressHandle;
    type Group: Group;
    type Manager: Manager<Self>;

    /// The device's name, for messages.
    fn name(&self) -> &str;

    /// The port in use, as who has no address of its own goes by it.
    fn port(&self) -> &LocalPort;

    /// The port as an endpoint at that address goes by it: by the GID of the address, if it has one,
    /// and unless the user has named another.
    fn port_at(&self, own: IpAddr) -> LocalPort;

    /// Whether atomic operations that come to memory by the device are atomic towards each other.
    fn has_atomics(&self) -> bool;

    /// The deepest that queues can be.
    fn depths_max(&self) -> Depths;

    /// Registers new memory; peers may write to it if `remote_write`.
    fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        remote_write: bool,
    ) -> Result<Self::Region, VerbsError>;

    /// Registers memory of the application: peers may do what `remote` says, and the device
    /// itself may write to it if `local_write`, which a remote write needs as well.
    ///
    /// # Safety
    /// The memory stays the application's to lend until the registration is dropped: valid for
    /// reads, and for writes if the device or peers may write.
    unsafe fn register(
        self: &Arc<Self>,
        memory: Piece,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<Self::Registration, VerbsError>;

    /// Makes the queues of an endpoint.
    fn open_queues(self: &Arc<Self>, depths: Depths) -> Result<Self::Queues, VerbsError>;

    /// Makes a queue pair in state INIT that can have `sends` requests under way.
    fn create_queue_pair(
        self: &Arc<Self>,
        queues: &Arc<Self::Queues>,
        sends: u32,
        role: Role,
    ) -> Result<Self::QueuePair, VerbsError>;

    /// Opens a channel to the connection manager.
    fn open_manager(self: &Arc<Self>) -> Result<Self::Manager, VerbsError>;

    /// Makes the way to a peer's queue pair of datagrams.
    fn create_address_handle(
        self: &Arc<Self>,
        from: &Origin,
        peer: &PathEnd,
    ) -> Result<Self::AddressHandle, VerbsError>;

    /// Readable when there is trouble.
    fn trouble_channel(&self) -> RawFd;

    /// The next trouble, if there is any.
    fn next_trouble(&self) -> Option<Trouble>;

    /// Joins a multicast group, which takes as long as a subnet's manager takes to answer: seconds
    /// at most.
    fn join_group(self: &Arc<Self>, request: GroupRequest) -> Result<Self::Group, VerbsError>;
}

/// A multicast group that was joined, left with the value: the way to all who hear it. No datagram
/// that names it is under way when it is dropped.
pub trait Group: Send + 'static {
    /// What work requests call the way to it.
    fn name(&self) -> u64;

    /// What a queue pair is attached to that hears it.
    fn address(&self) -> GroupAddress;
}

/// The way to a peer, which datagrams name. No datagram that names it is under way when it is
/// dropped.
pub trait AddressHandle: Send + 'static {
    /// What work requests call it.
    fn name(&self) -> u64;
}

/// Registered memory, deregistered with the value.
pub trait Region: Send + Sync + 'static {
    fn memory(&self) -> &Memory;
    fn local_key(&self) -> u32;
    fn remote_key(&self) -> u32;
}

/// Memory of the application that is registered, until the value is dropped: the device touches
/// none of it afterwards.
pub trait Registration: Send + Sync + 'static {
    fn local_key(&self) -> u32;
    fn remote_key(&self) -> u32;
}

/// Two completion queues with one channel, and receives for all queue pairs that take packets. Any thread may call
/// anything.
pub trait Queues: Send + Sync + 'static {
    /// Fetches completions of receives into `into`, which is empty.
    fn poll_receives(&self, into: &mut Completions);

    /// Fetches completions of sends, as well.
    fn poll_sends(&self, into: &mut Completions);

    /// Posts receives as one chain.
    ///
    /// # Safety
    /// The segments are registered memory that stays so until their completion, or until the
    /// queue pairs that could take them and the queues are gone.
    unsafe fn post_receives(&self, requests: &[ReceiveRequest]) -> Result<(), VerbsError>;

    /// Has the next completion of either queue make the channel readable.
    fn request_notification(&self);

    /// Makes the channel unreadable again.
    fn silence(&self);

    /// What a sleeper waits for.
    fn channel(&self) -> RawFd;

    /// Whether the device calls one of them so.
    fn has(&self, name: u64) -> bool;

    /// What a look for completions has met, if not completions: some are lost then. Cost: one load.
    fn failure(&self) -> Option<String>;
}

/// A queue pair, destroyed with the value: a reliable connected one, or one of datagrams. Any
/// thread may call anything.
pub trait QueuePair: Send + Sync + 'static {
    /// Its number on this device.
    fn number(&self) -> u32;

    /// The longest request that can be posted inline. Units: bytes.
    fn inline_bytes_max(&self) -> usize;

    /// Joins it with the peer's: INIT to RTR to RTS. Our own packets begin at `first_packet`.
    fn connect(&self, first_packet: u32, from: &Origin, peer: &PathEnd) -> Result<(), VerbsError>;

    /// Posts sends as one chain.
    ///
    /// # Safety
    /// As [`Queues::post_receives`]; segments of inline requests need only live now.
    unsafe fn post_sends(&self, requests: &[SendRequest]) -> Result<(), VerbsError>;

    /// Posts receives of nothing ([`EMPTY`]) to its own receive queue, if it has one ([`Role::Admits`]).
    fn post_empty(&self, count: u32) -> Result<(), VerbsError>;

    /// Posts up to `count` of what was posted for all to this one, where the device shares no receives.
    fn provide(&self, count: u32) -> Result<(), VerbsError>;

    /// Puts it into the error state: what is posted is flushed.
    fn fail(&self);

    /// Has one of datagrams hear a multicast group, which its device has joined.
    fn attach(&self, group: GroupAddress) -> Result<(), VerbsError>;

    /// The end of that: it has to come before the queue pair goes.
    fn detach(&self, group: GroupAddress);

    /// Makes one of datagrams usable again that is in error, and has nothing under way.
    fn renew(&self) -> Result<(), VerbsError>;
}
