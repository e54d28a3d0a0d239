//! What an event queue holds. Reference: fi_eq(3).

use crate::{error::Errno, info::Info};

/// Something that happened. `fid` names the object it happened to, and
/// `context` the operation; both are opaque here.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A peer asks a passive endpoint for a connection. `info` is for who accepts: the passive
    /// endpoint's `take` gives the request by `info.handle`, and `open_endpoint_for` of the crate
    /// `kestrel` opens an endpoint as `info` describes it. Its `destination` is the peer, and `data`
    /// what the peer sent along.
    ConnectionRequest {
        /// The passive endpoint.
        fid: u64,
        /// What the connection would be.
        info: Box<Info>,
        /// What the caller sent along.
        data: Vec<u8>,
    },
    /// A connection is made; `data` is what the accepting side sent along.
    Connected {
        /// The endpoint.
        fid: u64,
        /// What the accepting side sent along; of who accepts, nothing.
        data: Vec<u8>,
    },
    /// The peer has gone.
    Shutdown {
        /// The endpoint.
        fid: u64,
    },
    /// A registration is done.
    MemoryRegionComplete {
        /// The region.
        fid: u64,
        /// What it was registered with.
        context: u64,
        /// 0.
        data: u64,
    },
    /// An insertion is done.
    AddressVectorComplete {
        /// The address vector.
        fid: u64,
        /// What the insertion was given.
        context: u64,
        /// How many addresses were inserted.
        data: u64,
    },
    /// A group is joined.
    JoinComplete {
        /// The membership (`struct fid_mc`).
        fid: u64,
        /// What the join was given.
        context: u64,
        /// 0.
        data: u64,
    },
    /// What the application wrote itself, byte for byte.
    User {
        /// What it was written as.
        code: u32,
        /// What was written.
        bytes: Vec<u8>,
    },
}

impl Event {
    /// The event's number in libfabric (`FI_NOTIFY` is 0, and so on); for a user's event, the user's.
    pub fn code(&self) -> u32 {
        match self {
            Event::ConnectionRequest { .. } => 1,
            Event::Connected { .. } => 2,
            Event::Shutdown { .. } => 3,
            Event::MemoryRegionComplete { .. } => 4,
            Event::AddressVectorComplete { .. } => 5,
            Event::JoinComplete { .. } => 6,
            Event::User { code, .. } => *code,
        }
    }
}

/// An operation that failed. Reference: `struct fi_eq_err_entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorEvent {
    /// The object that it happened to.
    pub fid: u64,
    /// The operation's.
    pub context: u64,
    /// Of an insertion: the position of the address that failed.
    pub data: u64,
    /// What went wrong.
    pub error: Errno,
    /// More about the error: a rejection's data, for one.
    pub error_data: Vec<u8>,
    /// What went wrong, in words. Empty: what the number means.
    pub reason: String,
}

impl ErrorEvent {
    /// One without data, and without words of its own.
    pub fn new(fid: u64, context: u64, error: Errno) -> Self {
        ErrorEvent { fid, context, data: 0, error, error_data: Vec::new(), reason: String::new() }
    }
}
