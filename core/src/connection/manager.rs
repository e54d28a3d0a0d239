//! What an engine keeps of connections: a listener's requests, or one connection's stage.

use std::{collections::HashMap, sync::Arc};

use super::request::Answer;
use crate::{
    address::Address, address_vector::AddressVector, event_queue::reporter::Reporter, info::Info,
    transport::PeerIndex, wire::Kind,
};

/// A packet about connections that waits for its lane: one at a time for each peer.
pub enum Control {
    /// It is pushed as soon as there is room.
    Packet {
        /// `Request`, `Accept`, `Reject` or `Established`.
        kind: Kind,
        /// Of a rejection: why.
        flags: u8,
        /// Of the request that it is about.
        nonce: u64,
        /// The application's data.
        data: Vec<u8>,
    },
    /// There is nothing more to say: both lanes are let go of.
    HangUp,
}

/// What an engine keeps of connections.
pub enum Manager {
    /// It listens.
    Listener(Listener),
    /// It has one peer.
    Connection(Connection),
}

impl Manager {
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Manager::Connection(connection) => Some(connection),
            Manager::Listener(_) => None,
        }
    }

    pub(crate) fn listener(&mut self) -> Option<&mut Listener> {
        match self {
            Manager::Listener(listener) => Some(listener),
            Manager::Connection(_) => None,
        }
    }

    /// Those that it has to do with.
    pub(crate) fn peers(&self) -> Vec<PeerIndex> {
        match self {
            Manager::Listener(listener) => {
                listener.pending.values().map(|pending| pending.peer).collect()
            }
            Manager::Connection(Connection { peer, listener, .. }) => {
                peer.iter().chain(listener).copied().collect()
            }
        }
    }
}

/// The requests that came to a passive endpoint.
pub struct Listener {
    /// None of one that is closed, and refuses whoever comes.
    pub(crate) reporter: Option<Reporter>,
    /// What an endpoint for a request is opened with, but for its address and its handle.
    pub(crate) info: Box<Info>,
    pub(crate) backlog: usize,
    pub(crate) pending: HashMap<u64, Pending>,
    /// The last handle that was given.
    pub(crate) last_handle: u64,
}

/// A request that is not answered.
pub struct Pending {
    /// Who asked.
    pub(crate) peer: PeerIndex,
    /// What its answer has to name.
    pub(crate) nonce: u64,
    /// An endpoint was opened from it, so it no longer counts for the backlog.
    pub(crate) taken: bool,
    /// That it is answered.
    pub(crate) answer: Answer,
}

impl Listener {
    /// A listener that has heard nothing.
    pub fn new(reporter: Reporter, info: Box<Info>, backlog: usize) -> Listener {
        let (reporter, pending) = (Some(reporter), HashMap::new());
        Listener { reporter, info, backlog, pending, last_handle: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pending.values().filter(|pending| !pending.taken).count() >= self.backlog
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Neither connected nor accepted.
    Fresh,
    /// The request is on its way, or waits at the listener.
    Asked,
    /// The acceptor has answered and waits for the caller.
    Answering,
    /// The caller has its answer and tells the acceptor.
    Confirming,
    /// Messages pass.
    Connected,
    /// This side has shut it down, the peer has not let go yet.
    Leaving,
    /// It is over, or never came about.
    Over,
}

/// How far a connection has come, for who only sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Messages cannot pass yet.
    Pending,
    /// They pass.
    Up,
    /// They pass no more, or never will.
    Down,
}

impl Stage {
    pub(crate) fn link(self) -> Link {
        match self {
            Stage::Connected => Link::Up,
            Stage::Leaving | Stage::Over => Link::Down,
            Stage::Fresh | Stage::Asked | Stage::Answering | Stage::Confirming => Link::Pending,
        }
    }
}

/// What an acceptor has promised to a caller. It keeps the listener's lane to it open; and if it is
/// dropped, not kept, the caller hears by that lane that nobody is there any more.
pub(crate) trait Promise: Send {
    fn keep(self: Box<Self>);
}

/// One connection.
pub struct Connection {
    pub(crate) reporter: Reporter,
    pub(crate) stage: Stage,
    pub(crate) nonce: u64,
    /// The other end.
    pub(crate) peer: Option<PeerIndex>,
    /// Whom a caller asked, until there is an answer.
    pub(crate) listener: Option<PeerIndex>,
    /// Where a caller asked: what the other end goes by.
    pub(crate) asked_at: Option<Address>,
    /// What came with the answer, until it is reported.
    pub(crate) data: Vec<u8>,
    /// The peer is its only entry, while the connection stands.
    pub(crate) vector: Arc<AddressVector>,
    /// Until the caller has heard of the acceptor.
    pub(crate) promise: Option<Box<dyn Promise>>,
}

impl Connection {
    /// A connection that is none yet.
    pub fn new(reporter: Reporter, vector: Arc<AddressVector>) -> Connection {
        Connection {
            reporter,
            stage: Stage::Fresh,
            nonce: 0,
            peer: None,
            listener: None,
            asked_at: None,
            data: Vec::new(),
            vector,
            promise: None,
        }
    }

    /// Whether `peer` may send messages.
    pub(crate) fn hears(&self, peer: PeerIndex) -> bool {
        let open = matches!(self.stage, Stage::Confirming | Stage::Connected);
        open && self.peer == Some(peer)
    }
}
