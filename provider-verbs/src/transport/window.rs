//! Windows: queue pairs of their own, on which the device reaches a peer's memory.
//!
//! An access that the peer's device refuses, since the region was closed say, ends the queue pair
//! that it came on. So it is not the one of the packets: a window that has ended is closed, what
//! was under way goes as packets, and the next operation asks for another window.

use std::{collections::VecDeque, sync::Arc};

use kestrel_core::{
    memory::Piece,
    transport::{PeerIndex, Windows},
    window::{
        Access, AtomicRequest, Found, Invitation, Loan, LoanWorth, OwnRegistration, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
};

use super::{
    Owner, RcTransport,
    reach::{Ended, UnderWay},
};
use crate::{
    control::random,
    device::LinkLayer,
    receive_pool::BUFFER_BYTES,
    registrations::Registered,
    send_pool::{Hunger, SendPool, Share},
    verbs::{Origin, PathEnd, QueuePair, Role, SendRequest, Verbs, is_mtu},
};

/// Operations that a window can have under way.
pub(super) const REACHES_MAX: u32 = 64;

/// Our end of a window to a peer's memory. Fields drop in this order: the queue pair before the
/// memory that is registered for what is under way on it.
pub struct Window<V: Verbs> {
    pub(super) pair: V::QueuePair,
    first_packet: u32,
    open: bool,
    /// The peer takes data with writes.
    pub(super) carries_data: bool,
    /// Oldest first, with what is held back.
    pub(super) under_way: VecDeque<UnderWay<V>>,
    /// How many buffers that is.
    pub(super) share: Share,
    pub(super) hunger: Hunger,
    /// What is held back, to be posted as one chain.
    pub(super) held: Vec<SendRequest>,
    pub(super) reads: u32,
}

impl<V: Verbs> Window<V> {
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Ends it: the device touches no memory of ours for it any more. What was under way comes
    /// back, oldest first.
    pub(super) fn end(
        self,
        pool: &mut SendPool<V>,
    ) -> impl DoubleEndedIterator<Item = UnderWay<V>> {
        drop(self.pair);
        for under_way in &self.under_way {
            pool.note_over(under_way.slot);
        }
        self.under_way.into_iter()
    }
}

/// An end as it travels, and whether its writes may carry data.
pub(super) fn to_words(end: &PathEnd, carries_data: bool) -> Invitation {
    let infiniband = u64::from(end.link_layer == LinkLayer::InfiniBand);
    let kind = infiniband | u64::from(carries_data) << 1;
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|nth| end.gid[at + nth]));
    let path = u64::from(end.lid) | u64::from(end.partition_key) << 16;
    [
        u64::from(end.queue_pair) | u64::from(end.first_packet) << 32,
        path | kind << 32 | u64::from(end.mtu_bytes) << 40 | u64::from(end.reads_max) << 56,
        half(0),
        half(8),
    ]
}

/// The end that a peer tells of, where it said that its connection's is. Elsewhere may be nobody, for whom
/// the kernel would look for a second in each call that joins it.
pub(super) fn end_of_peer(theirs: Invitation, place: Option<&PathEnd>) -> Option<(PathEnd, bool)> {
    let is_there = |end: &PathEnd| place.is_none_or(|place| place.is_beside(end));
    let end = from_words(theirs).filter(|(end, _)| is_there(end));
    if end.is_none() {
        tracing::info!("no window: the peer's end is none, or elsewhere");
    }
    end
}

/// None: no peer of ours says that.
fn from_words([numbers, path, low, high]: Invitation) -> Option<(PathEnd, bool)> {
    let (queue_pair, first_packet) = (numbers as u32, (numbers >> 32) as u32);
    let (mtu_bytes, reads_max) = (u32::from((path >> 40) as u16), (path >> 56) as u8);
    let sound =
        queue_pair >> 24 == 0 && first_packet >> 24 == 0 && reads_max != 0 && is_mtu(mtu_bytes);
    let (link_layer, carries_data) = match (path >> 32) as u8 {
        kind @ (0 | 2) => (LinkLayer::Ethernet, kind == 2),
        kind @ (1 | 3) => (LinkLayer::InfiniBand, kind == 3),
        _ => return None,
    };
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&low.to_le_bytes());
    gid[8..].copy_from_slice(&high.to_le_bytes());
    let (lid, partition_key) = (path as u16, (path >> 16) as u16);
    let end = PathEnd {
        queue_pair,
        first_packet,
        lid,
        partition_key,
        link_layer,
        gid,
        mtu_bytes,
        reads_max,
    };
    sound.then_some((end, carries_data))
}

impl<V: Verbs> RcTransport<V> {
    #[inline(always)]
    pub(super) fn window_of(&self, peer: PeerIndex) -> Option<&Window<V>> {
        self.peers.get(peer as usize)?.window.as_ref()
    }

    /// How packets of windows to a peer leave: as those of the connection that they belong to.
    fn window_origin(&self, peer: PeerIndex) -> Option<Origin> {
        let lane = self.send_lane(peer)?;
        Some(self.shared.origin.along(lane.managed.as_deref()))
    }

    pub(super) fn make_pair(
        &self,
        role: Role,
        from: &Origin,
    ) -> Option<(V::QueuePair, u32, PathEnd)> {
        // A target's end sends nothing.
        let sends = if role == Role::Reaches { REACHES_MAX } else { 1 };
        let made = self.shared.device.create_queue_pair(&self.shared.queues, sends, role);
        let pair = made.inspect_err(|error| tracing::info!("no window: {error}")).ok()?;
        let first_packet = u32::from_le_bytes(random()) >> 8;
        let end = crate::control::path_end(&from.port, pair.number(), first_packet);
        Some((pair, first_packet, end))
    }

    /// Our end of a window, which is not joined yet.
    pub(super) fn make_window(&mut self, peer: PeerIndex) -> Option<Invitation> {
        self.drop_window(peer);
        let from = self.window_origin(peer)?;
        let (pair, first_packet, end) = self.make_pair(Role::Reaches, &from)?;
        self.owners.insert(pair.number(), Owner::Window(peer));
        let under_way = VecDeque::with_capacity(REACHES_MAX as usize);
        let window = Window {
            pair,
            first_packet,
            open: false,
            carries_data: false,
            under_way,
            share: Share::default(),
            hunger: Hunger::default(),
            held: Vec::new(),
            reads: 0,
        };
        self.peer(peer).window = Some(window);
        Some(to_words(&end, false))
    }

    pub(super) fn join_window(&mut self, peer: PeerIndex, theirs: Invitation) -> bool {
        let Some(lane) = self.send_lane(peer) else {
            return false;
        };
        let (from, place) = (self.shared.origin.along(lane.managed.as_deref()), lane.place);
        let Some(window) = self.peer(peer).window.as_mut() else {
            return false;
        };
        let Some((end, carries_data)) = end_of_peer(theirs, place.as_ref()) else {
            return false;
        };
        let joined = window.pair.connect(window.first_packet, &from, &end);
        window.carries_data = carries_data;
        window.open = joined.inspect_err(|error| tracing::info!("no window: {error}")).is_ok();
        window.open
    }

    /// Closes a window; what was under way is not told.
    pub(super) fn drop_window(&mut self, peer: PeerIndex) {
        if let Some(window) = self.peer(peer).window.take() {
            self.owners.remove(&window.pair.number());
            window.end(&mut self.sends).for_each(drop);
        }
    }
}

impl<V: Verbs> Windows for RcTransport<V> {
    #[inline(always)]
    fn windows_to(&self, peer: PeerIndex) -> Option<Worth> {
        let lane = self.send_lane(peer)?;
        (!lane.failed).then_some(Worth::always(BUFFER_BYTES + 1))
    }

    #[inline(always)]
    fn is_window_open(&self, peer: PeerIndex) -> bool {
        self.window_of(peer).is_some_and(Window::is_open)
    }

    fn invite(&mut self, peer: PeerIndex) -> Option<Invitation> {
        self.make_window(peer)
    }

    fn open_window(&mut self, peer: PeerIndex, theirs: Invitation) -> bool {
        self.join_window(peer, theirs)
    }

    fn admit(
        &mut self,
        peer: PeerIndex,
        theirs: Invitation,
        permitted: Access,
    ) -> Option<Invitation> {
        self.make_guest(peer, theirs, permitted)
    }

    fn register(
        &mut self,
        _peer: PeerIndex,
        request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        let &RegistrationRequest { memory, access, local_write, keeps_pages } = request;
        if !keeps_pages {
            return None;
        }
        self.registrations.register(memory, access, local_write).map(Registered::shared)
    }

    fn register_own(
        &mut self,
        _peer: PeerIndex,
        memory: Piece,
        written: bool,
    ) -> Option<OwnRegistration> {
        let made = self.registrations.register(memory, Access::default(), written)?;
        Some(OwnRegistration::new(made.local_key(), made.shared()))
    }

    #[inline(always)]
    fn start(&mut self, peer: PeerIndex, request: &Request) -> Started {
        self.start_request(peer, request)
    }

    #[inline(always)]
    fn start_atomic(&mut self, peer: PeerIndex, request: &AtomicRequest) -> Started {
        self.start_change(peer, request)
    }

    #[inline(always)]
    fn finished(&mut self) -> Found {
        if self.finished.is_empty() {
            self.reap_burst();
        }
        self.finished.pop_front().map_or(Found::Nothing, Found::Finished)
    }

    fn close_window(&mut self, peer: PeerIndex) {
        // In one that the peer has yet to admit nothing is under way, and it will be used.
        if self.is_window_open(peer) {
            self.end_window(peer, Ended::Otherwise);
        }
    }

    fn lends_to(&self, peer: PeerIndex) -> Option<LoanWorth> {
        if self.send_lane(peer)?.failed { None } else { self.loans }
    }

    fn lend(&mut self, _peer: PeerIndex, message: Piece) -> Option<Loan> {
        self.registrations.lend(message, message.len() >= self.fetch_min)
    }

    fn take_back(&mut self, loan: &Loan) {
        self.registrations.take_back(loan);
    }

    fn fetches_from(&self, peer: PeerIndex) -> bool {
        self.windows_to(peer).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_travels_whole_and_nonsense_is_none() {
        let end = PathEnd {
            queue_pair: 0xff_1234,
            first_packet: 0xff_ffff,
            lid: 0xffff,
            partition_key: 0x8001,
            link_layer: LinkLayer::InfiniBand,
            gid: std::array::from_fn(|nth| nth as u8),
            mtu_bytes: 4096,
            reads_max: 16,
        };
        assert_eq!(from_words(to_words(&end, true)), Some((end, true)));
        let words = to_words(&end, false);
        assert_eq!(from_words(words), Some((end, false)));
        for (word, value) in
            [(0, 1 << 24), (0, 1 << 56), (1, 4 << 32), (1, 0), (1, 16 << 56 | 3000 << 40)]
        {
            let mut bad = words;
            bad[word] = value;
            assert_eq!(from_words(bad), None, "{word} {value:#x}");
        }
    }
}
