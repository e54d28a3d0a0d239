//! A transport in which everything may happen at any time.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kestrel_core::{
    address::Address,
    error::Cause,
    memory::Piece,
    ring::claims::Claims,
    transport::{
        Arrival, Bell, Confirmation, Limits, Multicast, PeerIndex, Room, SingleCopy, Transport,
        TransportEvent, Windows,
    },
    window::{
        Access, AtomicRequest, Found, Invitation, Loan, LoanWorth, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
    wire::Head,
};
use kestrel_tests::random::Random;

use crate::{
    packet::{Packet, number},
    windows::{self, Adapter, Claimed},
};

struct State {
    packets: VecDeque<Packet>,
    current: Option<Packet>,
    events: VecDeque<TransportEvent>,
    random: Random,
    known: HashSet<PeerIndex>,
    connecting: VecDeque<PeerIndex>,
    sending: HashSet<PeerIndex>,
    receiving: HashSet<PeerIndex>,
    refuses: bool,
    /// Peers answer, and seldom break the protocol: so connections live, and windows open.
    polite: bool,
    adapter: Adapter,
    /// Packets that the engine took, by kind.
    delivered: BTreeMap<u8, u64>,
    /// Blocks of messages that it wrote into peers' memory.
    written: u64,
}

/// What a test sees of the transport.
#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

/// What the engine sees of it.
pub struct Chaos {
    world: World,
    /// Where peers claim blocks of messages to us, and of ours to them.
    claimed: Vec<[Claimed; 2]>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World(Arc::new(Mutex::new(State {
            packets: VecDeque::new(),
            current: None,
            events: VecDeque::new(),
            random: Random::new(seed ^ 0x5555),
            known: HashSet::new(),
            connecting: VecDeque::new(),
            sending: HashSet::new(),
            receiving: HashSet::new(),
            refuses: false,
            polite: seed.is_multiple_of(2),
            adapter: Adapter::default(),
            delivered: BTreeMap::new(),
            written: 0,
        })))
    }

    pub fn transport(&self, peers: u64) -> Chaos {
        let claimed = (0..peers).map(|_| Default::default()).collect();
        Chaos { world: self.clone(), claimed }
    }

    /// How many packets of each kind the engine took.
    pub fn delivered(&self) -> BTreeMap<u8, u64> {
        self.state().delivered.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn arrive(&self, packet: Packet) {
        self.state().packets.push_back(packet);
    }

    pub fn tell(&self, event: TransportEvent) {
        self.state().events.push_back(event);
    }

    pub fn knows(&self, peer: PeerIndex) -> bool {
        self.state().known.contains(&peer)
    }

    /// Whose operation an adapter has in hand, and its name.
    pub fn in_hand(&self) -> Option<(PeerIndex, u64)> {
        self.state().adapter.in_hand()
    }

    /// Whether an adapter still has to do with any of `bytes`.
    pub fn has_in_hand(&self, bytes: &[u8]) -> bool {
        self.state().adapter.has_in_hand(bytes)
    }

    /// Operations through windows, and blocks written into peers' memory.
    pub fn reached(&self) -> [u64; 2] {
        let state = self.state();
        [state.adapter.started, state.written]
    }

    /// All whom the engine knows: contexts of the peers, too.
    pub fn known(&self) -> Vec<PeerIndex> {
        self.state().known.iter().copied().collect()
    }

    /// Whether there is a lane from `peer`.
    pub fn hears(&self, peer: PeerIndex) -> bool {
        self.state().receiving.contains(&peer)
    }

    pub fn is_polite(&self) -> bool {
        self.state().polite
    }

    pub fn refuse_connections(&self) {
        self.state().refuses = true;
    }
}

impl Chaos {
    fn claims(&self, peer: PeerIndex, direction: usize) -> Option<&Claims> {
        let claimed = &self.claimed.get(peer as usize)?[direction];
        claimed.meddle(&mut self.world.state().random);
        Some(claimed.claims())
    }
}

impl State {
    /// False once in `times`.
    fn may(&mut self, times: u64) -> bool {
        !self.random.once_in(times)
    }

    fn take(&mut self, of: Option<PeerIndex>) -> Option<Arrival> {
        let receiving = &self.receiving;
        // Packets of peers without a lane are as if never sent.
        self.packets.retain(|packet| receiving.contains(&packet.peer));
        let at = match of {
            Some(peer) => self.packets.iter().position(|packet| packet.peer == peer)?,
            None => 0,
        };
        let packet = self.packets.remove(at)?;
        let Packet { peer, head, word, length, .. } = packet;
        let tiny = (length == 8).then(|| number(&mut self.random));
        *self.delivered.entry(head.kind).or_default() += 1;
        self.current = Some(packet);
        Some(Arrival { peer, head, word, length, tiny })
    }

    /// Most packets that want an answer get one.
    fn answer(&mut self, to: &Packet) -> Option<Packet> {
        let answer = Packet::answer(&mut self.random, to);
        answer.filter(|_| self.may(4))
    }

    fn close(&mut self, peer: PeerIndex) {
        self.sending.remove(&peer);
        self.receiving.remove(&peer);
        self.connecting.retain(|&other| other != peer);
        self.adapter.forget(peer);
        if self.current.as_ref().is_some_and(|packet| packet.peer == peer) {
            self.current = None;
        }
    }
}

/// A bell that nobody hears.
pub struct Silent;

impl Bell for Silent {
    fn ring(&self) {}
    fn drain(&self) {}
    fn fd(&self) -> RawFd {
        -1
    }
}

impl Transport for Chaos {
    fn address(&self) -> Address {
        Address::new([127, 0, 0, 1].into(), 999)
    }

    fn limits(&self) -> Limits {
        Limits {
            short: 2 << 10,
            single: 8 << 10,
            fragment: 32 << 10,
            prefix: 64 << 10,
            single_copy: 12 << 10,
            single_copy_streaming: 64 << 10,
            contested: false,
        }
    }

    fn connect(&mut self, peer: PeerIndex, _address: Address) {
        let mut state = self.world.state();
        state.known.insert(peer);
        state.connecting.push_back(peer);
    }

    fn adopt(&mut self, peer: PeerIndex, _ticket: u64) {
        let mut state = self.world.state();
        state.known.insert(peer);
        state.receiving.insert(peer);
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.world.state().close(peer);
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.world.state().receiving.remove(&peer);
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        let mut state = self.world.state();
        if !state.sending.contains(&peer) || state.random.once_in(3) {
            return Room::Full;
        }
        let most = [wanted, 392, 1, 0][state.random.below(4) as usize];
        Room::Bytes(wanted.min(most))
    }

    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        piece: Piece,
    ) -> bool {
        let mut state = self.world.state();
        if !state.sending.contains(&peer) {
            return false;
        }
        // What is pushed must be there to be read.
        let mut bytes = Vec::new();
        piece.append_to(&mut bytes);
        assert!(words.len() <= 6 && bytes.len() <= 32 << 10);
        let seldom = if state.polite { 1000 } else { 40 };
        if state.random.once_in(seldom) {
            // A head that cannot be true is found out while something is pushed.
            state.close(peer);
            let reason = Cause {
                errno: kestrel_core::error::Errno::CONNABORTED,
                reason: "a false head".into(),
            };
            state.events.push_back(TransportEvent::Broken { peer, reason });
            return false;
        }
        let pushed = state.may(3);
        if pushed {
            let mut packet = Packet { peer, head, word, words: [0; 6], length: 0 };
            packet.words[..words.len()].copy_from_slice(words);
            if let Some(answer) = state.answer(&packet) {
                if let Some(claimed) = self.claimed.get(peer as usize) {
                    claimed[1].offer(&answer);
                }
                state.packets.push_back(answer);
            }
        }
        pushed
    }

    fn credit(&self, _peer: PeerIndex) -> u64 {
        let mut state = self.world.state();
        number(&mut state.random)
    }

    fn grant(&mut self, _peer: PeerIndex, _credit: u64) {}

    fn arrival(&mut self) -> Option<Arrival> {
        self.world.state().take(None)
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.world.state().take(Some(peer))
    }

    fn word(&self, index: usize) -> u64 {
        self.world.state().current.as_ref().map_or(0, |packet| packet.words[index])
    }

    fn placed(&self) -> usize {
        let random = &mut self.world.state().random;
        if random.once_in(3) { random.below(1 << 13) as usize } else { usize::MAX }
    }

    fn copy_out(&self, offset: usize, to: Piece) {
        let state = self.world.state();
        if let Some(packet) = &state.current {
            assert!(offset + to.len() <= packet.length, "read beyond the packet");
            assert_eq!(to.fill(&vec![9; to.len()]), to.len());
        }
    }

    fn consume(&mut self) {
        self.world.state().current = None;
    }

    fn has_event(&self) -> bool {
        let state = self.world.state();
        !state.events.is_empty() || !state.connecting.is_empty()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        let mut state = self.world.state();
        if let Some(event) = state.events.pop_front() {
            return Some(event);
        }
        let peer = state.connecting.pop_front()?;
        let seldom = if state.polite { 40 } else { 4 };
        if state.refuses || state.random.once_in(seldom) {
            let errno = kestrel_core::error::Errno::HOSTUNREACH;
            let reason = Cause { errno, reason: "nobody".into() };
            return Some(TransportEvent::Failed { peer, reason });
        }
        state.sending.insert(peer);
        let incarnation = 1 + state.random.below(2);
        Some(TransportEvent::Connected { peer, incarnation })
    }

    fn arm(&mut self) {}

    fn is_quiet(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) -> bool {
        false
    }

    fn ring(&self) {}

    fn bell(&self) -> RawFd {
        -1
    }

    fn sleep(_bells: &[RawFd], _timeout: Option<Duration>) {}
}

impl SingleCopy for Chaos {
    fn read_remote(&mut self, _peer: PeerIndex, _remote: u64, to: Piece) -> bool {
        let readable = !self.world.state().random.once_in(4);
        if readable {
            assert_eq!(to.fill(&vec![9; to.len()]), to.len());
        }
        readable
    }

    fn can_read_remote(&self, _peer: PeerIndex) -> bool {
        true
    }

    fn is_readable_by(&self, _peer: PeerIndex) -> bool {
        true
    }

    fn write_remote(&mut self, _peer: PeerIndex, _remote: u64, from: Piece) -> bool {
        from.append_to(&mut Vec::new());
        let mut state = self.world.state();
        state.written += 1;
        state.may(4)
    }

    fn claims_from(&self, peer: PeerIndex) -> Option<&Claims> {
        self.claims(peer, 0)
    }

    fn claims_to(&self, peer: PeerIndex) -> Option<&Claims> {
        self.claims(peer, 1)
    }
}

impl Windows for Chaos {
    fn windows_to(&self, _peer: PeerIndex) -> Option<Worth> {
        Some(Worth { alone: 100, streaming: 5_000, ..Worth::always(9_000) })
    }

    fn is_window_open(&self, peer: PeerIndex) -> bool {
        self.world.state().adapter.is_open(peer)
    }

    fn invite(&mut self, peer: PeerIndex) -> Option<Invitation> {
        self.world.state().may(4).then_some([peer.into(), 1, 2, 3])
    }

    fn open_window(&mut self, peer: PeerIndex, _theirs: Invitation) -> bool {
        let mut state = self.world.state();
        let opens = state.may(4);
        if opens {
            state.adapter.open(peer);
        }
        opens
    }

    fn admit(&mut self, peer: PeerIndex, _: Invitation, _: Access) -> Option<Invitation> {
        self.world.state().may(4).then_some([peer.into(), 1, 2, 3])
    }

    fn register(
        &mut self,
        _peer: PeerIndex,
        _request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        self.world.state().may(4).then(windows::registration)
    }

    fn start(&mut self, peer: PeerIndex, request: &Request) -> Started {
        let mut state = self.world.state();
        let State { adapter, random, .. } = &mut *state;
        adapter.start(peer, *request, random)
    }

    fn start_atomic(&mut self, peer: PeerIndex, request: &AtomicRequest) -> Started {
        let mut state = self.world.state();
        let State { adapter, random, .. } = &mut *state;
        adapter.start_atomic(peer, request.token, random)
    }

    fn finished(&mut self) -> Found {
        let mut state = self.world.state();
        let State { adapter, random, .. } = &mut *state;
        adapter.finished(random)
    }

    fn close_window(&mut self, peer: PeerIndex) {
        self.world.state().adapter.break_window(peer);
    }

    fn lends_to(&self, peer: PeerIndex) -> Option<LoanWorth> {
        peer.is_multiple_of(2).then_some(LoanWorth {
            always: 60_000,
            streaming: 20_000,
            contested: 30_000,
        })
    }

    fn lend(&mut self, _peer: PeerIndex, _message: Piece) -> Option<Loan> {
        self.world.state().may(4).then(|| Loan::new(windows::registration()))
    }

    fn fetches_from(&self, _peer: PeerIndex) -> bool {
        true
    }
}

impl Confirmation for Chaos {}

impl Multicast for Chaos {}
