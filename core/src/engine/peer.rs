//! What the engine knows of each active peer.

use std::{collections::VecDeque, time::Instant};

use rustc_hash::FxHashMap;

use crate::{
    address::Address,
    address_vector::FI_ADDR_NOTAVAIL,
    auth_key::KeyNumber,
    connection::manager::Control,
    engine::leaving::Absence,
    protocol::{
        confirm::Unconfirmed,
        credit::{ReceiveFlow, SendCredit},
        fetch::PeerFetches,
        remote_access::{Reads, serve_data::Serving, several::InTheMiddle},
        single_copy::PeerCopies,
        window::PeerWindow,
    },
    tag_match::SourceIndex,
    transport::PeerIndex,
    wire::{Kind, REPLY_WORDS},
};

/// In a peer's queue: the index is one of a one-sided operation.
pub const ONE_SIDED: u32 = 1 << 31;

/// Whether packets can be pushed to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Not connected; the next send connects.
    Idle,
    /// `connect` is under way.
    Connecting,
    /// Connected.
    Ready,
}

/// A small packet that core owes to a peer: never lost for lack of room.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// `Consent`, `Finish`, `Acknowledge`, `Done`, `Share`, `Wrote`, `Invite`, `Admit`, `Lease` or
    /// `Withdraw`.
    pub kind: Kind,
    /// The peer's operation; ours, of a `Withdraw`.
    pub operation: u64,
    /// As many of these as the kind has.
    pub words: [u64; REPLY_WORDS],
}

impl Reply {
    /// A reply with one word at most: the error number of a `Finish` or a `Done`.
    pub fn new(kind: Kind, operation: u64, word: u64) -> Reply {
        Reply { kind, operation, words: [word, 0, 0, 0] }
    }
}

/// An active peer: one that was sent to, received from, or named in a receive.
pub struct Peer {
    /// Sends can go straight out, and be reported: connected, and nothing waits before them.
    pub clear: bool,
    /// What completes may have to wait for its turn: see [`super::order::transmit`].
    pub takes_turns: bool,
    /// There may be a fence before it: see [`crate::protocol::fence`].
    pub fenced: bool,
    /// There was an operation with a fence (FI_FENCE), maybe before there was a connection: operations
    /// in its window stay behind messages from then on.
    pub fences: bool,
    /// Whether packets can be pushed.
    pub state: PeerState,
    /// What is known of it where it cannot be reached.
    pub absence: Absence,
    /// In the engine's backlog.
    pub in_backlog: bool,
    /// What we may send to it.
    pub credit: SendCredit,
    /// What it may send to us.
    pub flow: ReceiveFlow,
    /// An envelope alone has come from it, which costs no credit, since it has its lane to us.
    pub has_announced: bool,
    /// What had arrived from it when a send last left its queue.
    heard: u64,
    /// Which receive context of its endpoint it is, as far as it was named as one.
    pub named: u16,
    /// What its source is called in the address vector, or `FI_ADDR_NOTAVAIL`.
    pub fi_addr: u64,
    /// Whom its messages come from: itself, unless it is one of several contexts.
    pub source: PeerIndex,
    /// Whom its messages come from, as the matcher has it: see [`crate::tag_match::source_in`].
    pub matched_as: SourceIndex,
    /// Its address.
    pub address: Address,
    /// The key that we and it prove to each other.
    pub key: KeyNumber,
    /// The incarnation that sends to us, once it does.
    pub incarnation: Option<u64>,
    /// There is a lane from it.
    pub is_heard: bool,
    /// Sends and, marked [`ONE_SIDED`], one-sided operations that have not wholly
    /// left, oldest first.
    pub queue: VecDeque<u32>,
    /// Sends whose rest the receiver has consented to.
    pub streams: VecDeque<u32>,
    /// Sends and one-sided operations that await the receiver's word, or the transport's.
    pub awaiting: u32,
    /// Packets that were pushed to it and may still be lost.
    pub unconfirmed: Unconfirmed,
    /// What is under way that brings its memory to us.
    pub reads: Reads,
    /// What goes through a window to it.
    pub window: PeerWindow,
    /// Its operation of which more segments are to come.
    pub several: InTheMiddle,
    /// What of it waits for its turn, and is answered or counted then: see [`super::order::receive`].
    pub late: u32,
    /// What the peer asked to read and has not wholly got.
    pub serving: VecDeque<Serving>,
    /// Replies that found no room yet.
    pub replies: VecDeque<Reply>,
    /// What is to be said to it about connections, before all else.
    pub control: Option<Box<Control>>,
    /// Messages that we have given up since the lane to it was made.
    pub withdrawn: u64,
    /// Messages that it has told us it gave up, since the lane from it was made.
    pub withdrawn_by_it: u64,
    /// Messages that processors copy between its memory and ours.
    pub copies: PeerCopies,
    /// Messages that adapters read.
    pub fetches: PeerFetches,
    /// When the last operation with it that was timed was over.
    pub served: Option<Instant>,
    /// Long messages from it that are under way: its name and our index. A peer that chooses names
    /// that collide slows its own messages down.
    pub incoming: FxHashMap<u64, u32>,
}

impl Peer {
    /// Whether messages follow each other to it and none comes back. It is busy with the ones
    /// before, then: parts, which let it begin sooner, would only cost.
    pub fn is_streaming(&self) -> bool {
        self.flow.arrived == self.heard
    }

    /// Gives back what memory its lists have room for beyond what is in them: it may never be
    /// spoken to again.
    pub fn give_room_back(&mut self) {
        self.queue.shrink_to_fit();
        self.streams.shrink_to_fit();
        self.unconfirmed.give_room_back();
        self.serving.shrink_to_fit();
        self.replies.shrink_to_fit();
        self.incoming.shrink_to_fit();
    }

    /// An envelope came from it, which costs no credit.
    pub fn note_envelope(&mut self) {
        self.has_announced = true;
        self.heard = u64::MAX;
    }

    /// The first packet of a send has left its queue.
    pub fn note_send(&mut self) {
        self.heard = self.flow.arrived;
    }

    /// Peer `index`, of which nothing is known but its address and which key is meant.
    pub fn new(address: Address, key: KeyNumber, index: PeerIndex) -> Peer {
        Peer {
            clear: false,
            takes_turns: false,
            fenced: false,
            fences: false,
            state: PeerState::Idle,
            absence: Absence::default(),
            in_backlog: false,
            credit: SendCredit::default(),
            flow: ReceiveFlow::default(),
            has_announced: false,
            heard: u64::MAX,
            named: 0,
            fi_addr: FI_ADDR_NOTAVAIL,
            source: index,
            matched_as: index,
            address,
            key,
            incarnation: None,
            is_heard: false,
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            awaiting: 0,
            unconfirmed: Unconfirmed::default(),
            reads: Reads::default(),
            window: PeerWindow::default(),
            several: None,
            late: 0,
            serving: VecDeque::new(),
            replies: VecDeque::new(),
            control: None,
            withdrawn: 0,
            withdrawn_by_it: 0,
            copies: PeerCopies::default(),
            fetches: PeerFetches::default(),
            served: None,
            incoming: FxHashMap::default(),
        }
    }

    /// Whether something waits to be pushed.
    pub fn has_work(&self) -> bool {
        let sends = !(self.queue.is_empty() && self.streams.is_empty());
        let answers = !(self.replies.is_empty() && self.serving.is_empty());
        sends || answers || self.control.is_some()
    }

    /// Whether looking at it again may push something. What waits for a connection is pushed when that
    /// stands, and fails when nothing comes of it.
    pub fn can_work(&self) -> bool {
        self.has_work() && (self.state != PeerState::Connecting || self.control.is_some())
    }

    /// Whether packets can go straight out: connected, and nothing waits before them.
    pub fn is_open(&self) -> bool {
        let empty = self.queue.is_empty()
            && self.replies.is_empty()
            && self.window.under_way == 0
            && !self.fenced
            && self.control.is_none();
        self.state == PeerState::Ready && empty
    }

    /// Recomputes `clear`.
    pub fn settle(&mut self) {
        self.clear = self.is_open() && !self.takes_turns;
    }
}
