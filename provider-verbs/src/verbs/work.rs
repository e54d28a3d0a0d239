//! Work requests, and what completion queues say of them.

use std::fmt;

use arrayvec::ArrayVec;
use kestrel_core::window::Change;

/// Completions that one poll fetches at most.
pub const POLL_BURST: usize = 16;

/// What a poll fetches. Most polls find nothing, and to make an empty one writes nothing but its length.
pub type Completions = ArrayVec<Completion, POLL_BURST>;

/// How a work request ended. Reference: ibv_poll_cq(3)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    pub const SUCCESS: Status = Status(0);
    pub const LOCAL_PROTECTION: Status = Status(4);
    pub const FLUSHED: Status = Status(5);
    pub const REMOTE_INVALID: Status = Status(9);
    pub const REMOTE_ACCESS: Status = Status(10);
    /// Nobody answered, as often as it was tried.
    pub const RETRIES_EXCEEDED: Status = Status(12);
    /// The receiver had no buffer, as often as it was tried.
    pub const RECEIVER_NOT_READY: Status = Status(13);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Status::SUCCESS => "success",
            Status::LOCAL_PROTECTION => "memory of ours is not registered for that",
            Status::FLUSHED => "flushed, since the queue pair is in error",
            Status::REMOTE_INVALID => "the peer refuses the request as invalid",
            Status::REMOTE_ACCESS => "the peer refuses access to its memory",
            Status::RETRIES_EXCEEDED => "no answer, as often as it was tried",
            Status::RECEIVER_NOT_READY => "the receiver had no buffer, as often as it was tried",
            Status(_) => "an error of the queue pair",
        };
        write!(f, "{text} (work completion status {})", self.0)
    }
}

/// What a completion queue says of one work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the request was called; the only other field that counts beside an error is the
    /// queue pair.
    pub request: u64,
    pub status: Status,
    /// Of a receive: the bytes that arrived, for datagrams with [`GRH_BYTES`](super::GRH_BYTES) in front; the bytes
    /// that were written, if it is [`EMPTY`].
    pub bytes: u32,
    /// What a write carried that took this receive; none, if it was taken by a send.
    pub immediate: Option<u32>,
    /// The number of the queue pair, ours.
    pub queue_pair: u32,
    /// Of a datagram that arrived: the number of the queue pair that sent it, on its device.
    pub sender: u32,
}

/// What receives of nothing are called: one is taken by each write that carries data.
pub const EMPTY: u64 = u64::MAX;

/// A stretch of registered memory in a work request.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub address: u64,
    pub length: u32,
    pub local_key: u32,
}

/// Where an RDMA write goes, or where an RDMA read takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    pub address: u64,
    pub key: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// An address handle's name.
    pub handle: u64,
    pub queue_pair: u32,
    /// Its queue pair's key.
    pub key: u32,
}

/// What a work request of a send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Send,
    Datagram(Destination),
    Write(RemoteMemory),
    /// Carries data along, which takes an [`EMPTY`] receive of the peer's queue pair: while there is
    /// none it waits.
    WriteImmediate(RemoteMemory, u32),
    Read(RemoteMemory),
    /// Changes a word of 8 bytes in one step. What was there before comes back.
    Atomic(RemoteMemory, Change),
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    pub request: u64,
    pub segment: Segment,
    /// The bytes are copied when it is posted.
    pub inline: bool,
    /// It completes with an entry, and so do those before it with that entry.
    pub signalled: bool,
    /// It begins when the reads before it are over.
    pub fenced: bool,
    pub verb: Verb,
}

/// A work request for receives that are shared.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    pub request: u64,
    pub segment: Segment,
}
