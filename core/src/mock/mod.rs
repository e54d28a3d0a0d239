//! An in-memory transport, for tests: every packet stays in this process, every
//! fault comes on demand.
//!
//! All endpoints of one [`MockProvider`] are on one network. Lanes are lossless
//! and ordered, and hold few packets, so that a sender often finds no room. What
//! a real transport does at unpredictable moments (no room, late connections,
//! dying peers) happens here when a test says so.

mod bell;
mod event;
mod foreign;
mod groups;
mod key;
mod lane;
mod peer;
mod provider;
mod pushes;

use bell::MockBell;
use event::{Event, What};
use foreign::Copies;
use groups::{Groups, Joined};
use lane::{Lane, Packet};
use peer::Peer;
use pushes::Pushes;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::fd::RawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    address::Address,
    auth_key::{KeyNumber, Keyring, ProvedKeys},
    error::{Cause, Errno},
    memory::Piece,
    transport::{
        Arrival, Bell, Confirmation, CoreClaim, Limits, Opening, PeerIndex, Provider, Room,
        Service, Transport, TransportEvent, Windows,
    },
    wire::{Head, Kind},
};

/// How a mock network behaves.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// The sizes that core is told.
    pub limits: Limits,
    /// Packets that a lane holds; one more place is kept for a goodbye.
    pub lane_packets: usize,
    /// The most payload that [`Transport::room`] offers; less than the limits
    /// say makes for tiny fragments.
    pub room_bytes: usize,
    /// Whether a receiver may read its sender's memory.
    pub read_remote: bool,
}

impl Default for MockOptions {
    fn default() -> Self {
        MockOptions {
            limits: Limits {
                short: 8 << 10,
                single: 8 << 10,
                fragment: 32 << 10,
                prefix: 64 << 10,
                single_copy: 9 << 10,
                single_copy_streaming: 64 << 10,
                contested: false,
            },
            lane_packets: 16,
            room_bytes: usize::MAX,
            read_remote: false,
        }
    }
}

/// A network, and what opens endpoints on it. A clone is of the same.
#[derive(Clone)]
pub struct MockProvider {
    options: MockOptions,
    network: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    stations: HashMap<Address, Arc<Station>>,
    opened: u64,
    /// Connections that will fail, by address.
    refused: HashMap<Address, (usize, Errno)>,
    /// Looks that a connection takes to come about.
    connect_looks: usize,
    groups: Groups,
    /// Cores that are taken.
    cores: HashSet<usize>,
}

/// One endpoint, as the others see it.
struct Station {
    address: Address,
    incarnation: u64,
    keys: Mutex<ProvedKeys>,
    service: Service,
    bell: MockBell,
    /// Threads that sleep, or are about to.
    armed: AtomicUsize,
    dead: AtomicBool,
    pushes: Pushes,
    /// What it reads of others' memory, and writes to it.
    reads: Copies,
    writes: Copies,
    events: Mutex<VecDeque<Event>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that failed elsewhere left whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Station {
    /// Who is gone is told nothing: what it was told names its lanes, and they name it, so that
    /// neither would ever be freed.
    fn tell(&self, looks: usize, what: What) {
        if self.dead.load(Ordering::SeqCst) {
            return;
        }
        lock(&self.events).push_back(Event { looks, what });
        self.bell.ring();
    }

    /// Whether an event shows at this look.
    fn look(&self) -> bool {
        match lock(&self.events).front_mut() {
            None => false,
            Some(event) if event.looks == 0 => true,
            Some(event) => {
                event.looks -= 1;
                false
            }
        }
    }
}

/// One endpoint's place on a mock network.
pub struct MockTransport {
    options: MockOptions,
    network: Arc<Mutex<Network>>,
    station: Arc<Station>,
    peers: Vec<Peer>,
    turn: usize,
    /// The packet that was last handed out.
    current: Option<(PeerIndex, Packet)>,
    offers: HashMap<u64, Arc<Lane>>,
    next_ticket: u64,
    ready: VecDeque<TransportEvent>,
    joined: Joined,
}

impl MockTransport {
    fn peer(&mut self, peer: PeerIndex) -> &mut Peer {
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, Peer::default);
        }
        &mut self.peers[index]
    }

    fn dead(&self) -> bool {
        self.station.dead.load(Ordering::SeqCst)
    }

    fn send_lane(&self, peer: PeerIndex) -> Option<&Arc<Lane>> {
        self.peers.get(peer as usize)?.send.as_ref()
    }

    fn take(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.put_back();
        let lane = self.peers.get(peer as usize)?.receive.as_ref()?;
        let packet = lock(&lane.queue).packets.pop_front()?;
        let (head, word, length) = (packet.head, packet.word, packet.payload.len());
        let tiny = packet.payload[..].try_into().map(u64::from_ne_bytes).ok();
        self.current = Some((peer, packet));
        Some(Arrival { peer, head, word, length, tiny })
    }

    /// A packet that was not consumed is still in its lane.
    fn put_back(&mut self) {
        if let Some((peer, packet)) = self.current.take()
            && let Some(lane) = &self.peer(peer).receive
        {
            packet.leave();
            lock(&lane.queue).packets.push_front(packet);
        }
    }

    fn try_connect(&self, address: Address) -> Result<Arc<Station>, Cause> {
        let mut network = lock(&self.network);
        let refusal = network.refused.get_mut(&address).filter(|(count, _)| *count > 0);
        if let Some((count, errno)) = refusal {
            *count -= 1;
            return Err(Cause { errno: *errno, reason: format!("{address} refused") });
        }
        let to = network.stations.get(&address).cloned();
        let service = self.station.service;
        let to = to.filter(|to| to.service == service).ok_or_else(|| Cause {
            errno: Errno::HOSTUNREACH,
            reason: format!("no endpoint listens at {address}"),
        })?;
        Ok(to)
    }
}

impl Transport for MockTransport {
    fn address(&self) -> Address {
        self.station.address
    }

    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
        lock(&self.station.keys).take(keys.cloned());
    }

    fn choose_key(&mut self, peer: PeerIndex, key: KeyNumber) {
        self.peer(peer).key = key;
    }

    fn connect(&mut self, peer: PeerIndex, address: Address) {
        self.peer(peer).connecting += 1;
        let looks = lock(&self.network).connect_looks;
        let found = self.try_connect(address);
        let proved = found.and_then(|to| Ok((self.prove(peer, &to)?, to)));
        let what = match proved {
            Err(reason) => What::Failed { peer, reason },
            Ok((key, to)) => {
                let from = self.station.clone();
                let (queue, claims) = Default::default();
                let lane = Arc::new(Lane { from, to: to.clone(), key, queue, claims });
                to.tell(0, What::Incoming { lane: lane.clone() });
                What::Connected { peer, lane }
            }
        };
        self.station.tell(looks, what);
    }

    fn adopt(&mut self, peer: PeerIndex, ticket: u64) {
        self.put_back();
        let lane = self.offers.remove(&ticket);
        self.peer(peer).receive = lane;
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.put_back();
        self.peer(peer).hang_up();
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.put_back();
        if let Some(lane) = self.peer(peer).receive.take() {
            lane.from.clone().tell(0, What::HungUp { lane });
        }
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        self.forget_gone(peer)
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        let Some(lane) = self.send_lane(peer) else {
            return Room::Full;
        };
        let full = lock(&lane.queue).packets.len() >= self.options.lane_packets;
        if full || lane.to.pushes.blocks() {
            return Room::Full;
        }
        let fragment = self.options.limits.fragment.min(self.options.room_bytes);
        Room::Bytes(wanted.min(fragment))
    }

    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let Some(lane) = self.send_lane(peer) else {
            return false;
        };
        if self.dead() {
            return true;
        }
        let last = head.kind == Kind::Bye as u8;
        if !last && lane.to.pushes.blocks() {
            return false;
        }
        let mut queue = lock(&lane.queue);
        if queue.packets.len() >= self.options.lane_packets + usize::from(last) {
            return false;
        }
        assert_eq!(words.len(), head.words(), "the words of {head:?}");
        let mut packet = Packet::new(head, word);
        packet.words[..words.len()].copy_from_slice(words);
        let longest = self.options.limits.fragment.max(self.options.limits.single);
        assert!(payload.len() <= longest, "a packet of {} bytes", payload.len());
        payload.append_to(&mut packet.payload);
        queue.packets.push_back(packet);
        lane.to.pushes.note(head, payload.len());
        drop(queue);
        if lane.to.armed.load(Ordering::SeqCst) > 0 {
            lane.to.bell.ring();
        }
        true
    }

    fn credit(&self, peer: PeerIndex) -> u64 {
        self.send_lane(peer).map_or(0, |lane| lock(&lane.queue).credit)
    }

    fn grant(&mut self, peer: PeerIndex, credit: u64) {
        if let Some(lane) = &self.peer(peer).receive {
            lock(&lane.queue).credit = credit;
        }
    }

    fn arrival(&mut self) -> Option<Arrival> {
        if self.dead() {
            return None;
        }
        for _ in 0..self.peers.len() {
            self.turn = (self.turn + 1) % self.peers.len();
            if let Some(arrival) = self.take(self.turn as PeerIndex) {
                return Some(arrival);
            }
        }
        None
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.take(peer)
    }

    fn consume(&mut self) {
        self.current = None;
    }

    fn word(&self, index: usize) -> u64 {
        self.current.as_ref().map_or(0, |(_, packet)| packet.words[index])
    }

    fn placed(&self) -> usize {
        self.current.as_ref().map_or(usize::MAX, |(_, packet)| packet.placed())
    }

    fn copy_out(&self, offset: usize, to: Piece) {
        if let Some((_, packet)) = &self.current {
            self.station.pushes.note_copy(to.len());
            to.fill(&packet.payload[offset..]);
        }
    }

    fn has_event(&self) -> bool {
        !self.dead() && (!self.ready.is_empty() || self.station.look())
    }

    fn event(&mut self) -> Option<TransportEvent> {
        while self.ready.is_empty() {
            let event = {
                let mut events = lock(&self.station.events);
                events.front().filter(|event| event.looks == 0)?;
                events.pop_front()?
            };
            self.translate(event.what);
        }
        self.ready.pop_front()
    }

    fn arm(&mut self) {
        self.station.armed.fetch_add(1, Ordering::SeqCst);
        self.station.bell.drain();
    }

    fn is_quiet(&mut self) -> bool {
        !self.has_something()
    }

    fn disarm(&mut self) -> bool {
        self.station.armed.fetch_sub(1, Ordering::SeqCst) > 1
    }

    fn ring(&self) {
        self.station.bell.ring();
    }

    fn bell(&self) -> RawFd {
        self.station.bell.fd()
    }

    fn sleep(bells: &[RawFd], timeout: Option<Duration>) {
        bell::sleep(bells, timeout);
    }
}

impl Windows for MockTransport {}

impl Confirmation for MockTransport {}

impl Drop for MockTransport {
    fn drop(&mut self) {
        let died = self.dead();
        if !died {
            self.leave_all_groups();
            lock(&self.network).stations.remove(&self.station.address);
            self.peers.iter_mut().for_each(Peer::hang_up);
        }
        self.station.dead.store(true, Ordering::SeqCst);
        let unread = std::mem::take(&mut *lock(&self.station.events));
        let unread = unread.into_iter().filter_map(|event| match event.what {
            What::Incoming { lane } => Some(lane),
            _ => None,
        });
        for lane in unread.chain(self.offers.drain().map(|(_, lane)| lane)).filter(|_| !died) {
            lane.from.clone().tell(0, What::HungUp { lane });
        }
    }
}
