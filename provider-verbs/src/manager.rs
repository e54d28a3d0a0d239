//! What the control thread asks of a connection manager (rdma_cm): the kernel's, which finds the
//! path to a peer and carries what the two ends say to each other before they are joined.
//!
//! The real one ([`crate::rdma`]) and the in-process fake ([`crate::fake`]) both implement it. The
//! queue pairs stay ours: an id is told a queue pair's number, and joins it with what was agreed on.

use std::{net::SocketAddr, os::fd::RawFd, sync::Arc, time::Duration};

use crate::verbs::{Agreement, Marks, Verbs, VerbsError};

/// Bytes that a request, an answer and a refusal can carry.
pub const REQUEST_BYTES_MAX: usize = 56;
pub const ANSWER_BYTES_MAX: usize = 196;
pub const REFUSAL_BYTES_MAX: usize = 148;

/// What happened to an id.
pub enum Happening<I> {
    /// The peer's address is one that a device reaches.
    AddressResolved,
    /// The path to it is known.
    RouteResolved,
    /// Somebody asks a listening id for a connection: what became of it has an id of its own.
    Asked { id: I, from: SocketAddr, queue_pair: u32, data: Vec<u8> },
    /// The peer answers.
    Answered { queue_pair: u32, data: Vec<u8> },
    /// Nobody listens there.
    Nobody,
    /// The peer refuses. What follows its word may be anything.
    Refused { data: Vec<u8> },
    /// It came to nothing, and why.
    Failed(String),
    /// The peer has our answer, and is ready.
    Established,
    /// The other end let go, in order or since its process is gone.
    Disconnected,
}

/// What happened, and to whom: the name that was given to the id. Of [`Happening::Asked`] it is the
/// listening one.
pub struct ManagerEvent<I> {
    pub name: u64,
    pub happening: Happening<I>,
}

/// The way to the connection manager, with a channel on which it tells what happens.
pub trait Manager<V: Verbs>: Send + Sync + 'static {
    type Id: ManagedId<V>;

    /// Readable when there is an event.
    fn channel(&self) -> RawFd;

    /// Reserves `at`, which has a port and is an address of our device.
    fn bind(self: &Arc<Self>, name: u64, at: SocketAddr) -> Result<Self::Id, VerbsError>;

    /// Begins to look for the way from our IP address to `to`, for packets with that code
    /// point, or with what the system has for all.
    fn resolve(
        self: &Arc<Self>,
        name: u64,
        own: SocketAddr,
        to: SocketAddr,
        marks: Marks,
        within: Duration,
    ) -> Result<Self::Id, VerbsError>;

    /// The next event, if there is one.
    fn next_event(self: &Arc<Self>) -> Option<ManagerEvent<Self::Id>>;
}

/// One end of a connection, or a listener. Dropping it lets go of the peer, who hears of it.
pub trait ManagedId<V: Verbs>: Send + 'static {
    /// Gives it another name.
    fn rename(&mut self, name: u64);

    /// Takes requests from now on.
    fn listen(&self) -> Result<(), VerbsError>;

    /// Begins to look for the path, once the address is resolved.
    fn resolve_route(&self, within: Duration) -> Result<(), VerbsError>;

    /// Asks the peer, for a queue pair of that number.
    fn ask(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError>;

    /// Joins a queue pair of ours with the peer's, once the peer has asked or answered. Our packets
    /// carry that code point, or what the manager says, and are no longer than `mtu_bytes_max`. What was
    /// agreed on holds for all that goes along with it.
    fn join(
        &self,
        pair: &V::QueuePair,
        marks: Marks,
        mtu_bytes_max: u32,
    ) -> Result<Agreement, VerbsError>;

    /// Tells the peer that its answer came.
    fn establish(&self) -> Result<(), VerbsError>;

    /// Answers the peer that asks.
    fn answer(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError>;

    /// Refuses it.
    fn refuse(&self, data: &[u8]) -> Result<(), VerbsError>;

    /// The peer that we have answered uses the connection: it must have our answer.
    fn note_use(&self);

    /// Ends the connection.
    fn disconnect(&self);
}
