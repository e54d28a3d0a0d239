//! The transport: an endpoint's station, its lanes and its chunk pool.
//!
//! Polling follows the lanes that speak. A lane that has been silent while many
//! others speak becomes quiet: it is looked at in turn, one at every few rounds of
//! the others, and its sender is asked for a bell, so that it also wakes a sleeper.
//! So two hundred idle lanes cost the hot path one load now and then.

mod closing;
mod groups;
mod lanes;
mod peer;
mod polling;
mod single_copy;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsRawFd, RawFd},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    error::{Cause, Errno},
    memory::Piece,
    settled::Settled,
    transport::{Arrival, Confirmation, Limits, PeerIndex, Room, Transport, TransportEvent},
    wire::{Head, Kind},
};

pub(crate) use groups::Groups;
use peer::{Offer, Peer};
use window::Long;

use crate::{
    barrier,
    catalogue::OwnCatalogue,
    chunk::ChunkPool,
    copy::Copier,
    lane::{LaneError, Means, OwnChunks, ReceiveLane, SendLane},
    process::ProcessId,
    station::{Station, StationEvent},
};

/// Lanes that are polled at every poll, before any becomes quiet.
const ACTIVE_MAX: usize = 16;
/// How often a quiet lane is looked at before it is seen which others have become quiet.
const LOOKS_PER_QUIETENING: u32 = 1024;
/// Rounds of the active lanes between two looks at a quiet one. A poll that finds nothing is one.
const ROUNDS_PER_QUIET: u32 = 4;
/// How long nothing goes to or from a peer before the pages of its lanes' chunks are given back: to make
/// them again takes as long as dozens of messages.
const SILENCE: Duration = Duration::from_secs(10);
/// Packets in a row from one lane while others may wait.
const STREAK_MAX: u32 = 32;

/// A lane that is polled at every poll.
///
/// Invariant: the pointer is that of `peers[peer].receive`, from when the lane
/// joins `active` until it leaves, and a lane leaves before its box is dropped.
#[derive(Clone, Copy)]
struct Active {
    peer: PeerIndex,
    lane: NonNull<ReceiveLane>,
}

/// The shared-memory transport of one endpoint.
pub struct ShmTransport {
    station: Station,
    address: Address,
    limits: Limits,
    copier: Copier,
    pool: ChunkPool,
    /// What lanes have chunks of their own for.
    lane_chunks: OwnChunks,
    /// By their indices, also those that another transport of the endpoint serves.
    peers: Vec<Peer>,
    /// Peers with a lane, either way.
    connected: Vec<PeerIndex>,
    /// Peers whose receiving lanes are polled, and whose turn it is.
    active: Vec<Active>,
    turn: usize,
    streak: u32,
    quiet: Vec<PeerIndex>,
    quiet_turn: usize,
    closed_turn: usize,
    silent_turn: usize,
    /// Rounds of the active lanes since a quiet one was looked at.
    rounds: u32,
    /// Looks at quiet lanes since it was seen which others have become quiet.
    looks: u32,
    /// The lane whose packet was last handed out, unless it was closed since.
    current: Option<NonNull<ReceiveLane>>,
    wish: u32,
    /// Threads that sleep, or are about to.
    armed: usize,
    /// A lane was asked for the bell since a thread armed, with no fence behind it.
    unfenced: bool,
    offers: HashMap<u64, Offer>,
    next_ticket: u64,
    /// What is to be told. A connection's lane goes into use when it is told of, so that what
    /// comes before it is about earlier lanes.
    events: VecDeque<(TransportEvent, Option<SendLane>)>,
    /// Lanes that are closed, and to which chunks are lent.
    closing: Vec<SendLane>,
    /// What peers with a window may reach, if it is told of.
    catalogue: Option<Arc<OwnCatalogue>>,
    /// Operations in windows that take more than one call.
    long: VecDeque<Long>,
    /// What was joined.
    groups: Groups,
}

// SAFETY: the pointers point at boxes that the transport itself owns, so they go
// where it goes.
unsafe impl Send for ShmTransport {}

impl ShmTransport {
    /// A transport over an open station.
    pub(crate) fn new(
        station: Station,
        pool: ChunkPool,
        lane_chunks: OwnChunks,
        copier: Copier,
        limits: Limits,
        groups: Groups,
    ) -> Self {
        ShmTransport {
            address: Address::from(station.address()),
            station,
            limits,
            copier,
            pool,
            lane_chunks,
            peers: Vec::new(),
            connected: Vec::new(),
            active: Vec::new(),
            turn: 0,
            streak: 0,
            quiet: Vec::new(),
            quiet_turn: 0,
            closed_turn: 0,
            silent_turn: 0,
            rounds: 0,
            looks: 0,
            current: None,
            wish: 0,
            armed: 0,
            unfenced: false,
            offers: HashMap::new(),
            next_ticket: 0,
            events: VecDeque::new(),
            closing: Vec::new(),
            catalogue: None,
            long: VecDeque::new(),
            groups,
        }
    }

    fn peer(&mut self, peer: PeerIndex) -> &mut Peer {
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, Peer::default);
        }
        &mut self.peers[index]
    }

    /// None also for a peer that another transport of the endpoint serves.
    fn send_lane(&self, peer: PeerIndex) -> Option<&SendLane> {
        self.peers.get(peer as usize)?.send.as_ref()
    }

    fn receive_lane(&self, peer: PeerIndex) -> Option<&ReceiveLane> {
        self.peers.get(peer as usize)?.receive.as_deref()
    }
}

impl Transport for ShmTransport {
    fn address(&self) -> Address {
        self.address
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn speaks_for(&self, peer: PeerIndex, address: Address) -> Option<bool> {
        // Where nobody is any more, whoever wants to can listen: a name that is free.
        let Some(lane) = self.receive_lane(peer) else { return Some(false) };
        Station::is_of_others(lane.peer.pid, address.socket_addr()).map(|others| !others)
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
        self.station.take_keys(keys.cloned());
    }

    fn choose_key(&mut self, peer: PeerIndex, key: KeyNumber) {
        self.peer(peer).key = key;
    }

    fn connect(&mut self, peer: PeerIndex, address: Address) {
        let record = self.peer(peer);
        if !std::mem::replace(&mut record.connecting, true) {
            let key = record.key;
            self.station.connect_by(peer, address.socket_addr(), key);
        }
    }

    fn adopt(&mut self, peer: PeerIndex, ticket: u64) {
        let Some(offer) = self.offers.remove(&ticket) else {
            return;
        };
        let old = self.end_receiving(peer);
        let lane = Settled::from(Box::new(offer.open(self.lane_chunks)));
        if self.armed > 0 {
            lane.set_attention(self.wish);
            self.unfenced = true;
        }
        self.active.push(Active { peer, lane: lane.pointer() });
        self.peer(peer).receive = Some(lane);
        self.note_lanes(peer);
        self.forget(old);
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.close_lanes(peer);
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        let old = self.end_receiving(peer);
        self.forget(old);
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        self.forget_gone(peer)
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.send.as_mut())
        else {
            return Room::Full;
        };
        match lane.room(&mut self.pool, wanted) {
            Ok(Some(bytes)) => Room::Bytes(bytes),
            Ok(None) => Room::Full,
            Err(error) => {
                self.broke(peer, error);
                Room::Full
            }
        }
    }

    #[inline(always)]
    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let Some(Peer { send: Some(lane), receive, .. }) = self.peers.get_mut(peer as usize) else {
            return false;
        };
        if head.kind == Kind::Bye as u8 {
            return lane.push_last(head).unwrap_or(false);
        }
        let (pool, copier) = (&mut self.pool, &self.copier);
        let other_way = receive.as_deref();
        match lane.push(|| Means { pool, copier, other_way }, head, word, words, payload) {
            Ok(pushed) => pushed,
            Err(error) => {
                self.broke(peer, error);
                false
            }
        }
    }

    fn credit(&self, peer: PeerIndex) -> u64 {
        self.send_lane(peer).map_or(0, SendLane::credit)
    }

    fn grant(&mut self, peer: PeerIndex, credit: u64) {
        if let Some(lane) = self.receive_lane(peer) {
            lane.grant(credit);
        }
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        let (active, head) = self.find_speaking()?;
        if self.streak == 1
            && let Some(lane) = &self.peers[active.peer as usize].send
        {
            // The first packet after a silence is likely to be answered.
            lane.prepare_payload(&self.pool, head);
        }
        self.take(active, head)
    }

    #[inline(always)]
    fn arrival_elsewhere(&mut self) -> Option<Arrival> {
        if self.active.len() > 1 { self.look_elsewhere() } else { None }
    }

    fn pass_over(&mut self) {
        // The packet may stay where it is for long, and its lane speak at each poll.
        self.rounds += 1;
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        let lane = self.peers.get(peer as usize)?.receive.as_ref()?;
        let (head, lane) = (lane.peek()?, lane.pointer());
        self.take(Active { peer, lane }, head)
    }

    #[inline(always)]
    fn consume(&mut self) {
        // None: the packet broke the protocol, and its lane is closed.
        if let Some(mut lane) = self.current {
            // SAFETY: `current` points at a boxed lane that is open: whatever closes
            // a lane clears it.
            unsafe { lane.as_mut() }.consume();
        }
        if self.streak == 1 {
            self.prepare_answer();
        }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        // SAFETY: as in `consume`.
        self.current.map_or(0, |lane| unsafe { lane.as_ref() }.word(index))
    }

    #[inline(always)]
    fn placed(&self) -> usize {
        // SAFETY: as in `consume`.
        self.current.map_or(usize::MAX, |lane| unsafe { lane.as_ref() }.placed())
    }

    #[inline(always)]
    fn copy_out(&self, offset: usize, to: Piece) {
        if let Some(lane) = &self.current {
            // SAFETY: as in `consume`.
            unsafe { lane.as_ref() }.copy_out(&self.copier, offset, to);
        }
    }

    #[inline(always)]
    fn has_event(&self) -> bool {
        self.station.events_pending() || !self.events.is_empty()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        while self.events.is_empty() {
            let event = self.station.next_event()?;
            self.translate(event);
        }
        let (event, lane) = self.events.pop_front()?;
        if let (TransportEvent::Connected { peer, .. }, Some(lane)) = (&event, lane) {
            self.install(*peer, lane);
        }
        Some(event)
    }

    fn arm(&mut self) {
        self.armed += 1;
        self.ask_for_bell();
    }

    fn fence_armed() {
        barrier::heavy_fence();
    }

    fn is_quiet(&mut self) -> bool {
        // Another thread has polled behind the fence, and what the sender of such a lane does next has not to
        // see the wish yet.
        if std::mem::take(&mut self.unfenced) {
            barrier::heavy_fence();
        }
        self.has_nothing()
    }

    fn disarm(&mut self) -> bool {
        self.armed -= 1;
        let others_sleep = self.armed > 0;
        if others_sleep {
            self.ask_for_bell();
        } else {
            self.set_attention(0);
            self.wake_quiet_lanes();
        }
        others_sleep
    }

    fn ring(&self) {
        self.station.bell().ring();
    }

    fn bell(&self) -> RawFd {
        self.station.bell().as_raw_fd()
    }
}

impl Confirmation for ShmTransport {}
