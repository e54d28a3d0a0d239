//! Peers' lives: they connect, they arrive, they die or break the protocol, and what depends on them
//! fails then.

use std::collections::HashSet;

use super::{
    Engine, Over,
    peer::{ONE_SIDED, Peer, PeerState},
};
use crate::{
    address::Address,
    auth_key::ONLY_KEY,
    connection::manager::Manager,
    error::{Cause, Errno},
    operation::Target,
    protocol::{
        credit::SendCredit,
        receive::Posted,
        remote_access::{Reads, several::Several},
        window::PeerWindow,
    },
    tag_match::{Matcher, STICKY},
    transport::{PeerIndex, Transport, TransportEvent},
    wire::Kind,
};

impl<T: Transport> Engine<T> {
    /// Takes all events of the transport. Returns whether there was one.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.next_event() {
            any = true;
            match event {
                TransportEvent::Connected { peer, incarnation } => {
                    self.connected(peer, incarnation)
                }
                TransportEvent::Failed { peer, reason } => {
                    tracing::info!(address = %self.peers[peer as usize].address, "{}", reason.reason);
                    // A peer that sends to us and that we cannot answer is told by its lane.
                    self.part_with(peer, &reason);
                }
                TransportEvent::Incoming { ticket, address, incarnation, key } => {
                    let peer = self.peer_of(address, key);
                    self.incoming_peer(peer, ticket, incarnation);
                }
                TransportEvent::Overheard { ticket, address } => {
                    let peer = self.peer_of(address, ONLY_KEY);
                    self.transport.recognize(peer, ticket);
                }
                TransportEvent::Died { peer } => self.peer_died(peer),
                TransportEvent::Lost { peer, reason } => self.peer_lost(peer, &reason),
                TransportEvent::Closed { peer } => self.peer_closed(peer),
                TransportEvent::Broken { peer, reason } => self.peer_broke(peer, &reason),
                TransportEvent::Down { reason, wholly } => self.transport_failed(&reason, wholly),
            }
        }
        any
    }

    /// Whoever waits for a message that cannot come is told.
    fn transport_failed(&mut self, why: &Cause, wholly: bool) {
        if wholly {
            self.over.get_or_insert(Over::Transport);
            self.fail_all_posted(why);
        }
        // The end of a connection says so.
        if !matches!(self.manager.as_deref(), Some(Manager::Connection(_))) {
            self.tell_of_failure(why);
        }
    }

    fn connected(&mut self, peer: PeerIndex, incarnation: u64) {
        let record = &mut self.peers[peer as usize];
        if record.incarnation.is_some_and(|known| known != incarnation) {
            let why = died(record.address);
            self.transport.hang_up(peer);
            self.peers[peer as usize].is_heard = false;
            self.fail_established(peer, &why);
        }
        let record = &mut self.peers[peer as usize];
        record.incarnation = Some(incarnation);
        record.state = PeerState::Ready;
        record.absence.end();
        record.withdrawn = 0;
        record.window = PeerWindow::default();
        let is_reliable = self.datagrams.is_none();
        record.unconfirmed.possible = is_reliable && self.transport.confirms(peer);
        record.credit = if is_reliable { SendCredit::default() } else { SendCredit::UNBOUNDED };
        record.copies.note_connected();
        record.fetches.note_connected();
        if self.context > 0 {
            self.say(peer, Kind::Context, self.context, Vec::new());
        }
        self.note_shared_source(peer);
        self.member_connected(peer, incarnation);
        self.note_backlog(peer);
        self.pump(peer);
    }

    fn incoming_peer(&mut self, peer: PeerIndex, ticket: u64, incarnation: u64) {
        let Peer { address, incarnation: known, is_heard, .. } = self.peers[peer as usize];
        if known.is_some_and(|known| known != incarnation) {
            self.peer_died(peer);
        } else if is_heard && self.datagrams.is_none() {
            // It connects anew when it has let go of both lanes, and we have not heard of that yet. The
            // end of the lane to it would come to nobody then, and not to what is adopted now.
            self.part_with(peer, &replaced(address));
        }
        self.fail_receiving(peer, &replaced(address));
        let record = &mut self.peers[peer as usize];
        record.incarnation = Some(incarnation);
        (record.withdrawn_by_it, record.has_announced) = (0, false);
        record.absence.end();
        self.attribute_to_itself(peer);
        self.note_shared_source(peer);
        if self.hears(peer) {
            self.open_flow(peer);
        }
        self.transport.adopt(peer, ticket);
        self.peers[peer as usize].is_heard = true;
    }

    /// The peer's process is gone, and all that it had sent was delivered: what depends on it fails, and
    /// the next send finds a route anew.
    pub(crate) fn peer_died(&mut self, peer: PeerIndex) {
        let why = died(self.peers[peer as usize].address);
        tracing::info!("{}", why.reason);
        self.part_with(peer, &why);
    }

    /// Nobody answers where the peer was, and all that came of what it had sent was delivered.
    fn peer_lost(&mut self, peer: PeerIndex, what: &str) {
        let address = self.peers[peer as usize].address;
        let reason = format!("the connection to peer {address} was lost: {what}");
        tracing::info!("{reason}");
        self.part_with(peer, &Cause { errno: Errno::CONNRESET, reason });
    }

    /// The peer closed its endpoint, and all that it had sent was delivered.
    #[cold]
    #[inline(never)]
    pub(crate) fn peer_closed(&mut self, peer: PeerIndex) {
        let address = self.peers[peer as usize].address;
        let reason = format!("peer {address} closed its endpoint");
        tracing::info!("{reason}");
        self.part_with(peer, &Cause { errno: Errno::CONNRESET, reason });
    }

    fn peer_broke(&mut self, peer: PeerIndex, why: &Cause) {
        tracing::warn!(address = %self.peers[peer as usize].address, "{}", why.reason);
        self.part_with(peer, why);
        self.forget_liar(peer, why);
    }

    /// What a peer that breaks the protocol had sent, and nobody has asked for, is dropped: it
    /// would come again and again, and leave as much behind each time.
    fn forget_liar(&mut self, peer: PeerIndex, why: &Cause) {
        let claimed: HashSet<u32> = self.claimed.messages().collect();
        let is_left = |&index: &u32| {
            self.unexpected[index].peer == peer
                && !claimed.contains(&index)
                && !self.is_buffered(index)
        };
        let left = self.unexpected.indices().filter(is_left).collect();
        self.forget_unexpected(&left, why);
    }

    /// The peer said something that the protocol does not allow.
    #[cold]
    #[inline(never)]
    pub(crate) fn violation(&mut self, peer: PeerIndex, what: &str) {
        if self.ignores(peer) {
            return;
        }
        let reason = format!("{} broke the protocol: {what}", self.peers[peer as usize].address);
        self.peer_broke(peer, &Cause { errno: Errno::CONNABORTED, reason });
    }

    /// Ends what connects us with `peer`: everything that depends on it fails.
    #[cold]
    #[inline(never)]
    pub(crate) fn part_with(&mut self, peer: PeerIndex, why: &Cause) {
        self.shortage.forget(peer);
        self.unread.forget();
        self.end_single_copy(peer);
        // What it has is not lost, nor what was done at it. Without a connection nobody knows.
        self.take_confirmed_of(peer);
        if self.in_windows > 0 {
            self.take_finished();
        }
        self.transport.disconnect(peer);
        self.fail_operations(peer, why);
        let record = &mut self.peers[peer as usize];
        record.is_heard = false;
        record.absence.parted = why.errno;
        record.give_room_back();
        self.lose(peer, why);
    }

    /// Fails every operation that depends on `peer`, receives directed at it included. Datagrams
    /// are dropped, and their receives wait for whoever comes.
    pub(crate) fn fail_operations(&mut self, peer: PeerIndex, why: &Cause) {
        self.fail_established(peer, why);
        let record = &mut self.peers[peer as usize];
        record.state = PeerState::Idle;
        record.clear = false;
        record.incarnation = None;
        record.control = None;
        let queued: Vec<u32> = record.queue.drain(..).collect();
        for send in queued {
            if send & ONE_SIDED != 0 {
                self.fail_remote(send & !ONE_SIDED, why);
            } else if self.datagrams.is_some() {
                self.drop_datagram(send);
            } else {
                self.fail_send(send, why);
            }
        }
        if self.datagrams.is_some() {
            return self.drop_held_for(peer);
        }
        // A receive that is directed at an endpoint of several contexts waits for any of them.
        let Peer { source, matched_as, .. } = self.peers[peer as usize];
        if !self.has_other_contexts(peer) {
            self.fail_posted_as(|matcher| matcher.posted_from(matched_as), why);
            self.fail_shared_from(source, why);
        }
    }

    /// Takes the sends that have begun with `peer` out of its queue.
    pub(crate) fn unqueue_begun_sends(&mut self, peer: PeerIndex) {
        let sends = &self.sends;
        let has_begun = |queued: u32| queued & ONE_SIDED == 0 && sends[queued].has_begun_with(peer);
        self.peers[peer as usize].queue.retain(|&queued| !has_begun(queued));
    }

    /// Fails what had begun with the peer's incarnation that is now gone.
    fn fail_established(&mut self, peer: PeerIndex, why: &Cause) {
        self.unqueue_begun_sends(peer);
        let record = &mut self.peers[peer as usize];
        record.unconfirmed.end();
        record.streams.clear();
        record.serving.clear();
        (record.awaiting, record.reads) = (0, Reads::default());
        self.in_windows -= record.window.under_way;
        record.window = PeerWindow::default();
        let begun: Vec<u32> =
            self.sends.indices().filter(|&send| self.sends[send].has_begun_with(peer)).collect();
        for send in begun {
            self.fail_send(send, why);
        }
        self.fail_begun_remotes(peer, why);
        self.copies.helps.retain(|helping| helping.peer() != peer);
        // Nobody is there whom they could be said to, nor those about what is received now.
        self.peers[peer as usize].replies.clear();
        self.fail_receiving(peer, why);
        self.peers[peer as usize].replies.clear();
    }

    /// Fails the messages that were under way from `peer`, whose lane is gone.
    fn fail_receiving(&mut self, peer: PeerIndex, why: &Cause) {
        Several::give_up(&mut self.peers[peer as usize].several);
        self.forget_pulls(peer);
        self.forget_fetches(peer);
        let mut parked = HashSet::new();
        for (_, index) in std::mem::take(&mut self.peers[peer as usize].incoming) {
            if let Some(message) = self.fail_incoming(index, why) {
                parked.insert(message);
            }
        }
        self.end_line_of_data(peer, &mut parked, why);
        self.forget_unexpected(&parked, why);
        self.close_flow(peer);
        self.buffer_on(peer);
    }

    /// Fails one message, or returns where it is parked.
    pub(crate) fn fail_incoming(&mut self, index: u32, why: &Cause) -> Option<u32> {
        let incoming = self.incoming.remove(index);
        match incoming.target {
            Target::Receive { receive, room, .. } => {
                let message = incoming.message();
                let placed = incoming.received.min(room) as u64;
                self.fail_arriving(Some(index), receive, &message, placed, why);
            }
            Target::Unexpected(parked) => return Some(parked),
            Target::Buffered(parked) => return self.lose_buffered(parked, &incoming, why),
            Target::Nowhere | Target::GivenUp => {}
        }
        None
    }

    /// Fails every posted receive: no message will come for it.
    pub(crate) fn fail_all_posted(&mut self, why: &Cause) {
        let all = |matcher: &mut Matcher| matcher.posted().map(|(receive, _)| receive).collect();
        self.fail_posted_as(all, why);
    }

    /// Fails those posted receives that are found in each matcher.
    fn fail_posted_as(&mut self, find: impl Fn(&mut Matcher) -> Vec<u32>, why: &Cause) {
        for family in Posted::ALL {
            let found = self.posted_in(family).map_or_else(Vec::new, &find);
            for receive in found {
                if let Some(matcher) = self.posted_in(family) {
                    matcher.remove_posted(receive);
                }
                self.fail_posted(receive & !STICKY, why);
            }
        }
    }

    /// Tells connected peers that this endpoint closes.
    pub(crate) fn say_bye(&mut self) {
        for peer in 0..self.peers.len() as PeerIndex {
            self.say_bye_to(peer);
        }
    }

    pub(crate) fn say_bye_to(&mut self, peer: PeerIndex) {
        if self.peers[peer as usize].state == PeerState::Ready {
            let _ = self.push_bye(peer);
        }
    }
}

fn replaced(address: Address) -> Cause {
    let reason = format!("peer {address} sends on another lane from now on");
    Cause { errno: Errno::CONNRESET, reason }
}

fn died(address: Address) -> Cause {
    Cause { errno: Errno::CONNRESET, reason: format!("the process of peer {address} is gone") }
}
