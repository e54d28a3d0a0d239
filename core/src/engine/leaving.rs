//! What leaves though nobody may poll for it: what is injected, and what an endpoint holds that closes.

use std::time::{Duration, Instant};

use super::{
    Engine,
    peer::{ONE_SIDED, Peer, PeerState, Reply},
};
use crate::{
    endpoint::PostError,
    error::Errno,
    flags::Flags,
    one_sided::RemoteStage,
    operation::SendStage,
    primitive::yield_now,
    protocol::remote_access::serve_data::Serving,
    transport::{PeerIndex, Transport},
    wire::Kind,
};

/// How long what nobody may poll for waits for its connection: what is injected, and what an endpoint
/// holds that closes. On one host a peer is found in far less than a millisecond.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// Where that was in vain, for how long nothing waits for the same peer.
const AFTER_CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Peers for whom a drain has injected something while they were being connected, and since when it waits
/// for each.
#[derive(Debug, Default)]
pub(crate) struct Awaited(Vec<(PeerIndex, Instant)>);

/// What is known of a peer where it cannot be reached.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    /// When something injected had waited for a connection in vain.
    pub(super) unanswered: Option<Instant>,
    /// When something injected was refused last since it could not be reached, and why.
    refused: Option<(Instant, Errno)>,
    /// Why it was parted with last.
    pub(super) parted: Errno,
}

impl Default for Absence {
    fn default() -> Self {
        Absence { unanswered: None, refused: None, parted: Errno::CONNRESET }
    }
}

impl Absence {
    /// It is there.
    pub(super) fn end(&mut self) {
        (self.unanswered, self.refused) = (None, None);
    }
}

impl<T: Transport> Engine<T> {
    /// Lets leave what was just posted, if it was injected and its peer is being connected. What
    /// is injected is done for its sender when the call returns, who may make no progress from
    /// then on: an MPI whose jobs part waits for the others by other means. It would never leave.
    #[inline(always)]
    pub(crate) fn let_leave(&mut self, peer: PeerIndex, flags: Flags) {
        if flags.contains(Flags::INJECT) && self.is_connecting(peer) {
            self.await_connection(peer);
        }
    }

    fn is_connecting(&self, peer: PeerIndex) -> bool {
        self.peers[peer as usize].state == PeerState::Connecting
    }

    /// Waits until a peer is connected, and what is queued for it leaves, or is known not to be. A drain
    /// waits later, for all at once.
    ///
    /// Peers are connected without their engines, in far less than a millisecond on one host, so
    /// this is short, and comes once for each. After a second what is queued stays so, and nothing waits
    /// again for a while: who goes on injecting for a peer that is gone would stand still each time.
    #[cold]
    #[inline(never)]
    fn await_connection(&mut self, peer: PeerIndex) {
        let before = self.peers[peer as usize].absence.unanswered;
        if before.is_some_and(|in_vain| in_vain.elapsed() < AFTER_CONNECT_WAIT) {
            return;
        }
        let start = Instant::now();
        if let Some(Awaited(peers)) = &mut self.awaited {
            if peers.iter().all(|&(known, _)| known != peer) {
                peers.push((peer, start));
            }
            return;
        }
        self.take_events_while(|engine| engine.is_connecting(peer), |_| false);
        self.note_answer(peer, start);
    }

    /// A peer was waited for since `start`. Who was given the rest of a drain's second alone was not tried in
    /// vain.
    fn note_answer(&mut self, peer: PeerIndex, start: Instant) {
        let record = &mut self.peers[peer as usize];
        let in_vain = match record.state {
            PeerState::Ready => false,
            PeerState::Connecting => start.elapsed() >= CONNECT_WAIT / 2,
            PeerState::Idle => true,
        };
        if in_vain {
            record.absence.unanswered = Some(Instant::now());
        }
    }

    /// From now on the owner takes what others left, and waits between two rounds of that.
    pub(super) fn begin_drain(&mut self) {
        self.awaited = Some(Awaited::default());
    }

    /// Between two rounds of a drain: takes what is told, and answers whether what was injected still waits
    /// for a connection. What others leave meanwhile is so taken while it does, and not behind it: if a peer
    /// is not found, it fails with what waited for the same one, in time.
    ///
    /// One drain keeps who polls, or wants to own the engine, for no longer than [`CONNECT_WAIT`] in all,
    /// however many peers are connected for others' operations.
    pub(super) fn awaits_connections(&mut self) -> bool {
        let first = self.awaited.as_ref().and_then(|Awaited(peers)| peers.first());
        if first.is_none_or(|(_, start)| start.elapsed() >= CONNECT_WAIT) {
            return false;
        }
        if !(self.has_event() && self.take_events()) {
            yield_now();
        }
        let mut awaited = self.awaited.iter().flat_map(|Awaited(peers)| peers);
        awaited.any(|&(peer, _)| self.is_connecting(peer))
    }

    pub(super) fn end_drain(&mut self) {
        let Awaited(peers) = self.awaited.take().unwrap_or_default();
        peers.into_iter().for_each(|(peer, start)| self.note_answer(peer, start));
    }

    /// Refuses what is injected by a call that names no context where its peer turns out not to be there
    /// meanwhile: nobody could tell what the error entry is about. For a while all of them are refused then,
    /// while the peer is tried again.
    ///
    /// # Errors
    /// Why the peer was not reached.
    #[inline(always)]
    pub(crate) fn refuse_unreachable(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        context: u64,
    ) -> Result<(), PostError> {
        let is_nameless = context == 0 && flags.contains(Flags::INJECT);
        if !is_nameless || self.peers[peer as usize].state == PeerState::Ready {
            return Ok(());
        }
        self.find_unreachable(peer)
    }

    #[cold]
    #[inline(never)]
    fn find_unreachable(&mut self, peer: PeerIndex) -> Result<(), PostError> {
        let recently = |at: Instant| at.elapsed() < AFTER_CONNECT_WAIT;
        let refused = self.peers[peer as usize].absence.refused.filter(|&(at, _)| recently(at));
        self.ensure_connection(peer);
        if refused.is_none() {
            self.await_connection(peer);
        } else if self.has_event() {
            self.take_events();
        }
        let Peer { state, address, absence, .. } = &mut self.peers[peer as usize];
        if *state == PeerState::Idle {
            absence.refused = Some((Instant::now(), absence.parted));
        }
        match absence.refused.filter(|&(at, _)| recently(at)) {
            Some((_, errno)) => Err(PostError::Unreachable { address: *address, errno }),
            None => Ok(()),
        }
    }

    /// Lets what is owed leave before a goodbye: what was injected, which its user was told is done, where
    /// it waits for room or for credit, or goes through windows, which have no order with a goodbye; and
    /// the answers to what was done for peers. After a second the rest is dropped.
    pub(super) fn let_owed_leave(&mut self) {
        self.take_events_while(Self::holds_owed, |engine| {
            let awaits = engine.holds_asked_for() || engine.holds_behind();
            let heard = awaits && engine.take_answer();
            let finished = engine.in_windows > 0 && engine.take_finished();
            let confirmed = !engine.confirming.is_empty() && engine.take_confirmed();
            let moved = engine.push_backlog(finished || heard || confirmed);
            engine.flush();
            moved
        });
    }

    /// Whether there is something injected of which the envelope alone has left, or not all that its
    /// receiver has asked for.
    fn holds_asked_for(&self) -> bool {
        self.sends.indices().any(|index| {
            let send = &self.sends[index];
            let waits = match send.stage {
                SendStage::AwaitConsent | SendStage::Streaming => true,
                // It was asked for in part.
                SendStage::AwaitFinish => send.sent < send.total,
                _ => false,
            };
            waits && send.flags.contains(Flags::INJECT)
        })
    }

    /// Whether an injected one-sided operation has not left: it may be behind others that are not answered.
    fn holds_behind(&self) -> bool {
        let is_one = |&queued: &u32| queued & ONE_SIDED != 0 && self.is_injected(queued);
        self.peers.iter().any(|peer| peer.queue.iter().any(is_one))
    }

    fn is_injected(&self, queued: u32) -> bool {
        let flags = match queued & ONE_SIDED {
            0 => self.sends[queued].flags,
            _ => self.remotes[queued & !ONE_SIDED].flags,
        };
        flags.contains(Flags::INJECT)
    }

    /// Takes a packet of somebody's, for an endpoint that closes: what is said of our messages and operations
    /// is heard, and all else is dropped, as what comes after the close is. Returns whether there was one.
    fn take_answer(&mut self) -> bool {
        let Some(arrival) = self.transport.arrival() else {
            return false;
        };
        let is_taken = match Kind::from_byte(arrival.head.kind) {
            Some(
                Kind::Consent
                | Kind::Finish
                | Kind::Acknowledge
                | Kind::Data
                | Kind::Done
                | Kind::Admit
                | Kind::Lease
                | Kind::Bye,
            ) => self.deliver(arrival),
            // Its sender is still at it.
            _ if self.transport.placed() < arrival.length => false,
            _ => {
                self.transport.consume();
                true
            }
        };
        if !is_taken {
            self.transport.pass_over();
        }
        is_taken
    }

    fn holds_owed(&self) -> bool {
        let answers =
            |reply: &Reply| matches!(reply.kind, Kind::Done | Kind::Acknowledge | Kind::Finish);
        self.holds_injected()
            || self.there().any(|peer| {
                peer.replies.iter().any(answers) || peer.serving.iter().any(Serving::is_kept)
            })
    }

    /// Whether something injected has not left yet.
    pub(super) fn holds_injected(&self) -> bool {
        let is_one = |&queued: &u32| self.is_injected(queued);
        let in_window = |index: u32| self.remotes[index].stage == RemoteStage::InWindow;
        self.holds_asked_for()
            || self.there().any(|peer| peer.queue.iter().any(is_one))
            || self.in_windows > 0
                && self
                    .remotes
                    .indices()
                    .any(|index| in_window(index) && self.is_injected(index | ONE_SIDED))
    }

    /// Peers that are connected, or will be.
    fn there(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.state != PeerState::Idle)
    }

    /// Takes events as long as something `waits` for them, and does what is to be done between them,
    /// which tells whether there was anything. Until [`CONNECT_WAIT`] is over.
    pub(crate) fn take_events_while(
        &mut self,
        waits: impl Fn(&Self) -> bool,
        between: impl Fn(&mut Self) -> bool,
    ) {
        let start = Instant::now();
        while waits(self) && start.elapsed() < CONNECT_WAIT {
            let told = self.has_event() && self.take_events();
            if !told && !between(self) {
                yield_now();
            }
        }
    }
}
