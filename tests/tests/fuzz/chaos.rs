//! A transport in which everything may happen at any time.

use std::{
    collections::{HashSet, VecDeque},
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kestrel_core::{
    address::Address,
    memory::Piece,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::{Arrival, Bell, Limits, PeerIndex, Room, Transport, TransportEvent, Unreachable},
    wire::Head,
};
use kestrel_tests::random::Random;

/// A packet as a peer may send it: right in form, arbitrary in content.
#[derive(Clone, Debug)]
pub struct Packet {
    peer: PeerIndex,
    head: Head,
    word: u64,
    words: [u64; 6],
    length: usize,
}

/// Every kind but the goodbye, which is an event's affair, and one that does not exist.
const KINDS: [u8; 14] = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14];
/// The key of the only region that a peer can reach, and its length.
pub const KEY: u64 = 5;
pub const REGION: u64 = 32 << 10;

fn number(random: &mut Random) -> u64 {
    match random.below(7) {
        0 => 0,
        1 => u64::MAX - random.below(4),
        2 => 1 << random.below(64),
        3 => random.below(3) << 32 | random.below(8),
        4 => random.below(70_000),
        5 => random.below(8),
        _ => random.number(),
    }
}

impl Packet {
    pub fn arbitrary(random: &mut Random, peers: u32) -> Packet {
        let length = [0, 1, 8, 40, 400, 4_000, 32_768][random.below(7) as usize];
        let least = u64::from(!random.once_in(9));
        Packet {
            peer: random.below(peers.into()) as u32,
            head: Head {
                kind: KINDS[random.between(least, 13) as usize],
                flags: random.number() as u8 & 0x1f,
                length: 0,
            },
            word: number(random),
            words: std::array::from_fn(|_| number(random)),
            length,
        }
    }

    /// The same with values that the protocol may well accept.
    pub fn plausible(mut self, random: &mut Random) -> Packet {
        let name = random.below(3) << 32 | random.below(6);
        match self.head.kind {
            1 => self.word = random.below(4),
            2 => {
                let total = random.below(100_000);
                let prefix = if random.once_in(4) { 0 } else { total.min(65_536) };
                self.length = self.length.min(prefix as usize);
                (self.word, self.words[0]) = (random.below(4), name);
                (self.words[1], self.words[2]) = (total, prefix);
            }
            3 => {
                self.word = name;
                self.words[0] = [0, 1, 8, 40, 400, 4_000, 32_768][random.below(7) as usize];
            }
            8..=12 => self.reach(random, name),
            13 => (self.word, self.words[0]) = (name, random.below(3) * 8),
            _ => (self.word, self.words[0]) = (name, random.below(2) * 5),
        }
        self
    }

    /// Something that a peer may do to our memory.
    fn reach(&mut self, random: &mut Random, name: u64) {
        self.word = name;
        (self.words[0], self.words[1]) = (KEY, random.below(REGION));
        match self.head.kind {
            10 => {
                self.words[2] = random.below(REGION);
                self.length = self.length.min(self.words[2] as usize);
                self.words[3] = random.below(self.words[2] - self.length as u64 + 1);
            }
            11 => (self.words[2], self.length) = (random.below(REGION), 0),
            12 => {
                let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
                let call = AtomicCall {
                    operation: AtomicOperation::ALL[pick(random, AtomicOperation::ALL.len())],
                    datatype: Datatype::ALL[pick(random, Datatype::ALL.len())],
                    form: Form::ALL[pick(random, Form::ALL.len())],
                };
                let length = call.datatype.size() * random.between(1, 20) as usize;
                self.words[2] = call.to_word(length, 0);
                self.length = call.payload(length);
            }
            _ => {}
        }
    }
}

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
}

/// What a test sees of the transport.
#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

/// What the engine sees of it.
pub struct Chaos(World);

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
        })))
    }

    pub fn transport(&self) -> Chaos {
        Chaos(self.clone())
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

    pub fn refuse_connections(&self) {
        self.state().refuses = true;
    }
}

impl State {
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
        self.current = Some(packet);
        Some(Arrival { peer, head, word, length, tiny })
    }

    fn close(&mut self, peer: PeerIndex) {
        self.sending.remove(&peer);
        self.receiving.remove(&peer);
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
        let mut state = self.0.state();
        state.known.insert(peer);
        state.connecting.push_back(peer);
    }

    fn adopt(&mut self, peer: PeerIndex, _ticket: u64) {
        let mut state = self.0.state();
        state.known.insert(peer);
        state.receiving.insert(peer);
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.0.state().close(peer);
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.0.state().receiving.remove(&peer);
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        let mut state = self.0.state();
        if !state.sending.contains(&peer) || state.random.once_in(3) {
            return Room::Full;
        }
        let most = [wanted, 392, 1, 0][state.random.below(4) as usize];
        Room::Bytes(wanted.min(most))
    }

    fn push(&mut self, peer: PeerIndex, _: Head, _: u64, words: &[u64], piece: Piece) -> bool {
        let mut state = self.0.state();
        if !state.sending.contains(&peer) {
            return false;
        }
        // What is pushed must be there to be read.
        let mut bytes = Vec::new();
        piece.append_to(&mut bytes);
        assert!(words.len() <= 6 && bytes.len() <= 32 << 10);
        if state.random.once_in(40) {
            // A head that cannot be true is found out while something is pushed.
            state.close(peer);
            let reason = Unreachable {
                errno: kestrel_core::error::Errno::CONNABORTED,
                reason: "a false head".into(),
            };
            state.events.push_back(TransportEvent::Broken { peer, reason });
            return false;
        }
        !state.random.once_in(3)
    }

    fn credit(&self, _peer: PeerIndex) -> u64 {
        let mut state = self.0.state();
        number(&mut state.random)
    }

    fn grant(&mut self, _peer: PeerIndex, _credit: u64) {}

    fn arrival(&mut self) -> Option<Arrival> {
        self.0.state().take(None)
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.0.state().take(Some(peer))
    }

    fn word(&self, index: usize) -> u64 {
        self.0.state().current.as_ref().map_or(0, |packet| packet.words[index])
    }

    fn placed(&self) -> usize {
        let random = &mut self.0.state().random;
        if random.once_in(3) { random.below(1 << 13) as usize } else { usize::MAX }
    }

    fn copy_out(&self, offset: usize, to: Piece) {
        let state = self.0.state();
        if let Some(packet) = &state.current {
            assert!(offset + to.len() <= packet.length, "read beyond the packet");
            assert_eq!(to.fill(&vec![9; to.len()]), to.len());
        }
    }

    fn consume(&mut self) {
        self.0.state().current = None;
    }

    fn read_remote(&mut self, _peer: PeerIndex, _remote: u64, to: Piece) -> bool {
        let readable = !self.0.state().random.once_in(4);
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

    fn has_event(&self) -> bool {
        let state = self.0.state();
        !state.events.is_empty() || !state.connecting.is_empty()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        let mut state = self.0.state();
        if let Some(event) = state.events.pop_front() {
            return Some(event);
        }
        let peer = state.connecting.pop_front()?;
        if state.refuses || state.random.once_in(4) {
            let errno = kestrel_core::error::Errno::HOSTUNREACH;
            let reason = Unreachable { errno, reason: "nobody".into() };
            return Some(TransportEvent::Failed { peer, reason });
        }
        state.sending.insert(peer);
        let incarnation = 1 + state.random.below(2);
        Some(TransportEvent::Connected { peer, incarnation })
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn bell(&self) -> RawFd {
        -1
    }

    fn sleep(_bells: &[RawFd], _timeout: Option<Duration>) {}
}
