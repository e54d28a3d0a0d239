//! Opening windows, and asking what may be reached through them.

use super::{Invited, LEASES_MAX};
use crate::{
    engine::{
        Engine,
        peer::{PeerState, Reply},
    },
    memory::Piece,
    memory_region::MemoryRegion,
    one_sided::{RemoteOperation, StoredSegments},
    protocol::arrive::UNDER_WAY_MAX,
    transport::{Arrival, EVERYBODY, PeerIndex, Room, Transport},
    window::{Access, Invitation, Lease, NO_REGION, RegistrationRequest},
    wire::{Head, Kind},
};

/// What becomes of the wish for a window.
pub(crate) enum Wanted {
    /// It is open.
    Open,
    /// The peer has yet to answer.
    Later,
    /// There is none on this connection.
    Never,
}

impl<T: Transport> Engine<T> {
    /// What may be reached of the region with `key`, if `peer` has said that it may, or says so now to all.
    /// It is asked where it has said nothing.
    #[inline(always)]
    pub(super) fn find_lease(&mut self, peer: PeerIndex, key: u64) -> Option<Lease> {
        let is_open = self.transport.is_window_open(peer);
        if is_open && let Some(lease) = self.transport.published(peer, key) {
            return Some(lease);
        }
        match self.peers[peer as usize].window.leases.get(&key) {
            Some(Some(lease)) if is_open => Some(*lease),
            Some(None) => None,
            _ => {
                self.ask_for(peer, key);
                None
            }
        }
    }

    /// Asks `peer` for what an operation on the region with `key` needs, if there is room to.
    #[cold]
    #[inline(never)]
    pub(super) fn ask_for(&mut self, peer: PeerIndex, key: u64) {
        if self.peers[peer as usize].state != PeerState::Ready {
            return;
        }
        let window = &self.peers[peer as usize].window;
        if window.invitation == Invited::No && !self.transport.is_window_open(peer) {
            // Or one would be made at each poll that nobody is told of.
            if matches!(self.transport.room(peer, 0), Room::Full) {
                return;
            }
            let Some(ours) = self.transport.invite(peer) else {
                return;
            };
            let head = Head::new(Kind::Invite, 0);
            if !self.transport.push(peer, head, 0, &ours, Piece::EMPTY) {
                return;
            }
            self.peers[peer as usize].window.invitation = Invited::Yes;
        }
        if self.peers[peer as usize].window.asked.is_none()
            && self.transport.push(peer, Head::new(Kind::Ask, 0), key, &[], Piece::EMPTY)
        {
            let record = &mut self.peers[peer as usize];
            (record.window.asked, record.window.asked_at) = (Some(key), record.epoch());
        }
    }

    /// Whether there is a window to a connected peer, which is asked for where there is none.
    pub(crate) fn want_window(&mut self, peer: PeerIndex) -> Wanted {
        if self.transport.is_window_open(peer) {
            return Wanted::Open;
        }
        match self.peers[peer as usize].window.invitation {
            Invited::No => {}
            Invited::Yes => return Wanted::Later,
            Invited::Refused => return Wanted::Never,
        }
        let Some(ours) = self.transport.invite(peer) else {
            return Wanted::Never;
        };
        self.peers[peer as usize].window.invitation = Invited::Yes;
        self.reply(peer, Reply { kind: Kind::Invite, operation: 0, words: ours });
        Wanted::Later
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn arrive_window(&mut self, arrival: Arrival) {
        let Arrival { peer, head, word, .. } = arrival;
        let words = std::array::from_fn(|index| self.transport.word(index));
        match Kind::from_byte(head.kind) {
            Some(Kind::Invite) => self.arrive_invitation(peer, words),
            Some(Kind::Admit) => self.arrive_admission(peer, words),
            Some(Kind::Ask) => self.arrive_question(peer, word),
            // The caller sends nothing else.
            _ => self.arrive_lease(peer, word, words),
        }
    }

    /// A peer wants a window to our memory.
    fn arrive_invitation(&mut self, peer: PeerIndex, theirs: Invitation) {
        // What is lent to it has to be readable, whatever else is.
        let lends = self.transport.lends_to(peer).is_some();
        let permitted = self.setup.permitted.by_adapters(self.setup.adapter_atomics);
        let mut permitted = Access::of(permitted);
        permitted.read |= lends;
        self.publish_regions(peer);
        let ours = self.transport.admit(peer, theirs, permitted).unwrap_or_default();
        self.answer_window(peer, Reply { kind: Kind::Admit, operation: 0, words: ours });
    }

    /// Has `peer`, and others with such a window, told of our regions, so that none has to ask: unless it
    /// counts who reaches what, how often, or in which order.
    fn publish_regions(&mut self, peer: PeerIndex) {
        if self.setup.keys.is_some() || self.orders.data.is_some() || self.counts_remote() {
            return;
        }
        if let Some(publisher) = self.transport.publisher(peer) {
            self.regions.publish_by(publisher, self.setup.permitted);
        }
    }

    /// Whether what peers do to our memory is counted.
    fn counts_remote(&self) -> bool {
        let counters = &self.setup.one_sided;
        counters.remote_read.is_some() || counters.remote_write.is_some()
    }

    fn arrive_admission(&mut self, peer: PeerIndex, theirs: Invitation) {
        let window = &mut self.peers[peer as usize].window;
        if std::mem::take(&mut window.invitation) == Invited::No {
            return self.violation(peer, "it admits who has not asked");
        }
        if theirs == Invitation::default() || !self.transport.open_window(peer, theirs) {
            // Not again on this connection: every operation would ask.
            self.peers[peer as usize].window.invitation = Invited::Refused;
        }
    }

    /// A peer asks what it may reach of a region.
    fn arrive_question(&mut self, peer: PeerIndex, key: u64) {
        let words = match self.regions.find(key).cloned() {
            Ok(region) => self.lease_of(peer, &region).map_or([0; 4], Lease::to_words),
            Err(_) => NO_REGION,
        };
        self.answer_window(peer, Reply { kind: Kind::Lease, operation: key, words });
    }

    /// What a peer may reach of a region by itself, if it may. Nobody says in which order it writes:
    /// where that counts it gets nothing, or words alone, which adapters change one by one.
    pub(crate) fn lease_of(&mut self, peer: PeerIndex, region: &MemoryRegion) -> Option<Lease> {
        let counted = self.counts_remote();
        let (transport, permitted) = (&mut self.transport, self.setup.permitted);
        let who = || self.setup.who(&self.peers, peer);
        let audience = transport.audience(peer);
        // What not everybody may reach is not laid where everybody could.
        let keys = self.setup.keys.as_ref().map(|keys| &keys.ring);
        let fits = audience != EVERYBODY || region.is_for_all(keys);
        let (in_order, atomics) = (self.orders.data.is_some(), self.setup.adapter_atomics);
        if counted || !fits || (in_order && !atomics) || region.admit(who).is_err() {
            return None;
        }
        let register = |request: &RegistrationRequest| transport.register(peer, request);
        let mut lease = region.lease(permitted, atomics, audience, register)?;
        lease.access.write &= !in_order;
        Some(lease)
    }

    fn answer_window(&mut self, peer: PeerIndex, reply: Reply) {
        self.reply(peer, reply);
        if self.peers[peer as usize].replies.len() > UNDER_WAY_MAX {
            self.violation(peer, "it asks for more windows than anybody needs");
        }
    }

    fn arrive_lease(&mut self, peer: PeerIndex, key: u64, words: [u64; 4]) {
        let window = &mut self.peers[peer as usize].window;
        // What is forgotten meanwhile is not believed any more.
        if !window.is_answered(key) {
            return;
        }
        // It has taken what left before the question.
        if window.packets == 0 {
            window.settled = window.asked_at;
        }
        window.answered = window.wanted.take().filter(|&wanted| wanted == key);
        if words == NO_REGION {
            return;
        }
        if window.leases.len() >= LEASES_MAX {
            window.leases.clear();
        }
        window.leases.insert(key, Lease::from_words(words));
    }

    /// The lease of a region is over, whose peer may give another.
    #[cold]
    #[inline(never)]
    pub(super) fn renew_lease(&mut self, peer: PeerIndex, key: u64) {
        let window = &mut self.peers[peer as usize].window;
        window.leases.remove(&key);
        window.answered = None;
        self.ask_for(peer, key);
    }

    /// The target refused an operation: what is known of its regions may be out of date.
    #[cold]
    pub(crate) fn forget_leases_of(&mut self, operation: &RemoteOperation) {
        let window = &mut self.peers[operation.peer as usize].window;
        // Nor is what it said of an earlier operation an answer to the next one.
        window.answered = None;
        match &operation.segments {
            StoredSegments::One(segment) => {
                window.leases.remove(&segment.key);
            }
            StoredSegments::Many(segments) => {
                segments.iter().for_each(|segment| {
                    window.leases.remove(&segment.key);
                });
            }
        }
    }
}
