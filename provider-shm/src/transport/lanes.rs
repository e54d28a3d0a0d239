//! What becomes of lanes: how they come into use, and how they end.

use kestrel_core::transport::Windows as _;

use super::*;
use crate::{doorbell::Doorbell, region::LaneMemory, station::PeerIdentity};

impl ShmTransport {
    #[cold]
    #[inline(never)]
    pub(super) fn broke(&mut self, peer: PeerIndex, error: LaneError) {
        let reason = Cause { errno: Errno::CONNABORTED, reason: error.to_string() };
        self.close_lanes(peer);
        self.tell(TransportEvent::Broken { peer, reason });
    }

    pub(super) fn tell(&mut self, event: TransportEvent) {
        self.events.push_back((event, None));
    }

    pub(super) fn close_lanes(&mut self, peer: PeerIndex) {
        let Some(record) = self.peers.get_mut(peer as usize) else {
            return;
        };
        record.dismiss_guest();
        let (send, receive) = (record.send.take(), record.receive.take());
        // What is about to be told of it is of no concern any more.
        record.seen_closed = false;
        self.note_lanes(peer);
        self.close_window(peer);
        self.active.retain(|active| active.peer != peer);
        self.quiet.retain(|&quiet| quiet != peer);
        self.let_go_of(receive.as_deref());
        let mut processes = Vec::new();
        if let Some(lane) = send {
            processes.push(self.close_sending(lane));
        }
        if let Some(lane) = receive {
            lane.close();
            processes.push(lane.peer.process);
        }
        self.forget(processes);
    }

    /// A lane of a peer has come or gone.
    pub(super) fn note_lanes(&mut self, peer: PeerIndex) {
        let record = &mut self.peers[peer as usize];
        match (record.place, record.has_lane()) {
            (None, true) => {
                record.place = Some(self.connected.len() as u32);
                self.connected.push(peer);
            }
            (Some(place), false) => {
                record.place = None;
                self.connected.swap_remove(place as usize);
                if let Some(&moved) = self.connected.get(place as usize) {
                    self.peers[moved as usize].place = Some(place);
                }
            }
            _ => {}
        }
    }

    /// Those peers that have a lane with a process, in no particular order.
    pub(super) fn connected_with(&self, process: ProcessId) -> impl Iterator<Item = PeerIndex> {
        let knows = move |&peer: &PeerIndex| self.peers[peer as usize].knows(process);
        self.connected.iter().copied().filter(knows)
    }

    /// What was handed out of a lane that ends is gone with it. What was of another is not: peers are
    /// answered, and may be found to lie, while a packet is in hand.
    fn let_go_of(&mut self, lane: Option<&ReceiveLane>) {
        if self.current == lane.map(NonNull::from) {
            self.current = None;
        }
    }

    /// Processes with which a lane was closed need not be watched if it was the last. A lane that
    /// waits to go into use counts: the station takes its event for dealt with.
    pub(super) fn forget(&self, processes: impl IntoIterator<Item = ProcessId>) {
        for process in processes {
            let waits = |lane: &SendLane| lane.peer.process == process;
            let has_lane = self.connected_with(process).next().is_some()
                || self.closing.iter().any(waits)
                || self.offers.values().any(|offer| offer.peer.process == process)
                || self.events.iter().any(|(_, lane)| lane.as_ref().is_some_and(waits));
            if !has_lane {
                self.station.forget(process);
            }
        }
    }

    /// Ends what comes from a peer. Returns the process that it came from, which is to be
    /// forgotten once whatever takes the lane's place is there.
    pub(super) fn end_receiving(&mut self, peer: PeerIndex) -> Option<ProcessId> {
        self.active.retain(|active| active.peer != peer);
        self.quiet.retain(|&quiet| quiet != peer);
        let record = self.peer(peer);
        record.dismiss_guest();
        let lane = record.receive.take()?;
        self.note_lanes(peer);
        self.let_go_of(Some(&lane));
        lane.close();
        Some(lane.peer.process)
    }

    /// Whether nothing names a peer any more: the control thread says of it nothing more, and what
    /// it has said is told, or is about an end that nobody waits for.
    pub(super) fn forget_gone(&mut self, gone: PeerIndex) -> bool {
        if self.peers.get(gone as usize).is_some_and(Peer::is_there) {
            return false;
        }
        self.events.retain(|(event, _)| event.end_of() != Some(gone));
        !self.events.iter().any(|(event, _)| event.outcome_of() == Some(gone))
    }

    fn sending(&self, lane: LaneMemory, bell: Doorbell, peer: PeerIdentity) -> SendLane {
        SendLane::new(lane, bell, peer, self.lane_chunks, self.pool.chunk_bytes())
    }

    pub(super) fn translate(&mut self, event: StationEvent) {
        match event {
            StationEvent::Connected { request, lane, bell, peer } => {
                let incarnation = peer.incarnation;
                self.peer(request).connecting = false;
                let event = TransportEvent::Connected { peer: request, incarnation };
                self.events.push_back((event, Some(self.sending(lane, bell, peer))));
            }
            StationEvent::Failed { request, error } => {
                self.peer(request).connecting = false;
                let reason = Cause::of(&error);
                self.tell(TransportEvent::Failed { peer: request, reason });
            }
            StationEvent::Incoming { lane, pool, bell, peer } => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                let (address, incarnation) = (Address::from(peer.address), peer.incarnation);
                let key = peer.key;
                self.offers.insert(ticket, Offer { lane, pool, bell, peer });
                self.tell(TransportEvent::Incoming { ticket, address, incarnation, key });
            }
            StationEvent::Settled { request } => {
                let record = self.peer(request);
                record.settling -= 1;
                // Another lane may have taken the place of the one that was closed.
                if record.seen_closed {
                    self.tell(TransportEvent::Closed { peer: request });
                }
            }
            StationEvent::Died { process } => {
                let mut dead: Vec<PeerIndex> = self.connected_with(process).collect();
                dead.sort_unstable();
                self.events
                    .extend(dead.into_iter().map(|peer| (TransportEvent::Died { peer }, None)));
                self.settle_with(process);
            }
        }
    }

    pub(super) fn install(&mut self, peer: PeerIndex, lane: SendLane) {
        let record = self.peer(peer);
        record.seen_closed = false;
        let old = record.send.replace(lane);
        self.note_lanes(peer);
        self.close_window(peer);
        let old = old.map(|old| self.close_sending(old));
        self.forget(old);
    }
}

impl Drop for ShmTransport {
    /// Tells the senders that nobody receives any more, and the receivers of lanes that never went
    /// into use that nothing comes: they would keep those for ever. Not in a forked child, which
    /// shares their memory with the endpoint's owner.
    fn drop(&mut self) {
        let forked = self.station.is_forked();
        self.leave_all_groups();
        if forked {
            return;
        }
        for event in self.station.close() {
            self.translate(event);
        }
        for peer in &mut self.peers {
            peer.dismiss_guest();
            if let Some(lane) = &peer.receive {
                lane.close();
            }
        }
        for offer in std::mem::take(&mut self.offers).into_values() {
            offer.open(self.lane_chunks).close();
        }
        for lane in self.events.iter_mut().filter_map(|(_, lane)| lane.as_mut()) {
            // A lane that has nothing in it has room.
            let _ = lane.push_last(Head::new(Kind::Bye, 0));
        }
    }
}
