//! What a transport keeps of a peer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{auth_key::KeyNumber, settled::Settled};

use super::window::Window;
use crate::{
    chunk::ChunkPool,
    doorbell::Doorbell,
    guest::Guest,
    lane::{OwnChunks, ReceiveLane, SendLane},
    process::ProcessId,
    region::{LaneMemory, PoolView},
    station::PeerIdentity,
};

/// What an offer that waits for `adopt` consists of.
pub(super) struct Offer {
    pub(super) lane: LaneMemory,
    pub(super) pool: PoolView,
    pub(super) bell: Doorbell,
    pub(super) peer: PeerIdentity,
}

/// Both directions of a peer. Receiving lanes are boxed, since the poll loop
/// points at them.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) send: Option<SendLane>,
    pub(super) receive: Option<Settled<ReceiveLane>>,
    /// Where it is among those that have a lane.
    pub(super) place: Option<u32>,
    pub(super) connecting: bool,
    /// Which key is proved to it.
    pub(super) key: KeyNumber,
    /// That the receiver closed its end of `send` was seen, and is told once the station has
    /// settled.
    pub(super) seen_closed: bool,
    /// How often the station was asked to settle, and has not said that it did.
    pub(super) settling: u32,
    /// How we reach its memory, and how many such ways have failed in a row.
    pub(super) window: Option<Window>,
    /// As above.
    pub(super) windows_failed: u32,
    /// How it reaches ours.
    pub(super) guest: Option<Arc<Guest>>,
    pub(super) silence: Silence,
}

/// How long nothing has gone either way.
#[derive(Default)]
pub(super) struct Silence {
    /// Where both lanes stood, as a sum.
    position: u64,
    pub(super) since: Option<Instant>,
    is_told: bool,
}

impl Silence {
    /// Whether it has lasted so long by now; said once of each.
    fn has_come(&mut self, position: u64, least: Duration) -> bool {
        if position != self.position {
            *self = Silence { position, ..Silence::default() };
        }
        if self.is_told {
            return false;
        }
        self.is_told = self.since.get_or_insert_with(Instant::now).elapsed() >= least;
        self.is_told
    }
}

impl Offer {
    pub(super) fn open(self, own: OwnChunks) -> ReceiveLane {
        ReceiveLane::new(self.lane, self.pool, self.bell, self.peer, own)
    }
}

impl Peer {
    /// Whether there is a lane, or the station has something to say of it.
    pub(super) fn is_there(&self) -> bool {
        self.has_lane() || self.connecting || self.settling > 0
    }

    pub(super) fn has_lane(&self) -> bool {
        self.send.is_some() || self.receive.is_some()
    }

    /// Looks how long both lanes have been silent. Pages of chunks that were used once are given back, by
    /// the side whose the chunks are, when that was `least`.
    pub(super) fn look_for_silence(&mut self, pool: &mut ChunkPool, least: Duration) {
        let sent = self.send.as_ref().map_or(0, SendLane::position);
        let received = self.receive.as_ref().map_or(0, |lane| lane.position());
        if !self.silence.has_come(sent.wrapping_add(received), least) {
            return;
        }
        if let Some(lane) = &self.receive {
            lane.give_pages_back();
        }
        if self.send.as_mut().is_some_and(|lane| !lane.give_pages_back(pool)) {
            self.silence = Silence::default();
        }
    }

    pub(super) fn knows(&self, process: ProcessId) -> bool {
        self.send.as_ref().is_some_and(|lane| lane.peer.process == process)
            || self.receive.as_ref().is_some_and(|lane| lane.peer.process == process)
    }
}
