//! The transport of datagrams: one unreliable queue pair (UD) to all peers.
//!
//! A peer is found by a handshake, whose TCP connection tells of its end; then its datagrams need
//! nothing but an address handle. Each carries the pass of its sender with its receiver, so that
//! packets for who was here before, or from somebody unknown, are told from others.
//!
//! - [`sending`]: packets into bounce buffers and onto the queue pair;
//! - [`receiving`]: packets out of the shared receive queue;
//! - [`peers`]: who is found, who is heard, and who is gone;
//! - [`groups`]: one datagram to all who hear a multicast group.

mod groups;
mod peers;
mod receiving;
mod sending;
mod sources;

use std::{
    collections::{HashMap, VecDeque},
    mem::ManuallyDrop,
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    fork_guard,
    memory::Piece,
    transport::{
        Arrival, Bell as _, Confirmation, Limits, PeerIndex, Room, SingleCopy, Transport,
        TransportEvent, Windows,
    },
    wire::{Head, Kind},
};

use self::{
    groups::Groups,
    peers::{Offer, Peer, Retired, Speaker, Told},
    receiving::{Packet, Stranger},
};
use crate::{
    bell::EitherBell,
    control::{Command, Control},
    receive_pool::{BUFFER_BYTES, BufferIndex, SLAB_BUFFERS},
    send_pool::SendPool,
    send_queue::SendQueue,
    station::StationShared,
    verbs::{Depths, GRH_BYTES, Verbs},
};

/// Bytes of a datagram in front of its words: the head, the pass, and the kind's own word.
const HEAD_BYTES: usize = 24;
/// Head and as many words as any kind has that may come.
const FRONT_BYTES: usize = 64;
/// Datagrams that can be under way on the queue pair.
pub(crate) const SENDS_MAX: u32 = 256;
/// Slabs of receive buffers.
pub(crate) const SLABS: usize = 8;
/// How deep its queues are: each buffer may complete, and each send.
pub(crate) const DEPTHS: Depths =
    Depths { receives: (SLABS * SLAB_BUFFERS) as u32, immediates: 0, sends: SENDS_MAX };
/// Looks between two rounds of what is not urgent.
const LOOKS_PER_ROUND: u32 = 64;
/// How long closing waits until the device has sent what it was given.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// The longest message that a datagram carries through a port of that MTU. Units: bytes.
pub fn datagram_max(mtu_bytes: u32) -> usize {
    // There is no smaller MTU; a port that names none has one all the same.
    (mtu_bytes.max(256) as usize).min(BUFFER_BYTES - GRH_BYTES) - FRONT_BYTES
}

/// The transport of one endpoint of datagrams.
pub struct UdTransport<V: Verbs> {
    address: Address,
    incarnation: u64,
    station: u64,
    control: Arc<Control<V>>,
    forks: u32,
    /// The key of all queue pairs that talk to ours, and what it was made of.
    key: u32,
    auth_key: Vec<u8>,
    /// What peers prove instead, of an endpoint that has several.
    keys: Option<Keyring>,
    peers: Vec<Peer<V>>,
    /// Peers by their TCP connections.
    links: HashMap<u64, PeerIndex>,
    /// Peers by what their datagrams carry.
    passes: HashMap<u64, Speaker>,
    /// Datagrams that nobody has consumed, oldest first.
    arrived: VecDeque<Packet>,
    /// Those of senders that nobody has adopted yet.
    strangers: VecDeque<Stranger>,
    groups: Groups<V>,
    /// The connection manager joins them, wherever it can.
    manages_groups: bool,
    /// Those that were dropped because nobody knows their sender, or because of their form.
    strays: u64,
    current: Option<Packet>,
    /// Buffers that are free and not posted yet.
    returned: Vec<BufferIndex>,
    looks: u32,
    offers: HashMap<u64, Offer>,
    events: VecDeque<Told<V>>,
    /// Ways that are not used any more, until what was sent on them has left.
    retired: Vec<Retired<V>>,
    /// The queue pair is in error until all that was posted has come back.
    failed: bool,
    /// And it could not be made usable again, which has been said.
    mute: bool,
    /// Threads that sleep, or are about to.
    armed: usize,
    either: EitherBell,
    queue: ManuallyDrop<SendQueue<V>>,
    sends: ManuallyDrop<SendPool<V>>,
    shared: Arc<StationShared<V>>,
}

/// What a transport of datagrams is made of.
pub(crate) struct Parts<V: Verbs> {
    pub address: Address,
    pub incarnation: u64,
    pub station: u64,
    pub control: Arc<Control<V>>,
    pub key: u32,
    pub auth_key: Vec<u8>,
    pub queue_pair: V::QueuePair,
    pub either: EitherBell,
    pub sends: SendPool<V>,
    pub shared: Arc<StationShared<V>>,
    pub manages_groups: bool,
}

impl<V: Verbs> UdTransport<V> {
    /// A transport of a registered station.
    pub(crate) fn new(parts: Parts<V>) -> Self {
        UdTransport {
            address: parts.address,
            incarnation: parts.incarnation,
            station: parts.station,
            control: parts.control,
            forks: fork_guard::generation(),
            key: parts.key,
            auth_key: parts.auth_key,
            keys: None,
            peers: Vec::new(),
            links: HashMap::new(),
            passes: HashMap::new(),
            arrived: VecDeque::new(),
            strangers: VecDeque::new(),
            groups: Groups::default(),
            manages_groups: parts.manages_groups,
            strays: 0,
            current: None,
            returned: Vec::new(),
            looks: 0,
            offers: HashMap::new(),
            events: VecDeque::new(),
            retired: Vec::new(),
            failed: false,
            mute: false,
            armed: 0,
            either: parts.either,
            queue: ManuallyDrop::new(SendQueue::new(parts.queue_pair, SENDS_MAX)),
            sends: ManuallyDrop::new(parts.sends),
            shared: parts.shared,
        }
    }

    /// What is not urgent: completions of sends, and what waits for them.
    #[cold]
    #[inline(never)]
    fn go_round(&mut self) {
        self.reap_sends();
        self.control.tell_failure(self.station, &self.shared);
        self.bury_ways();
    }

    /// Waits until the device has sent what it was given.
    fn linger(&mut self) {
        let deadline = Instant::now() + LINGER_MAX;
        while !self.queue.is_idle() && Instant::now() < deadline {
            self.reap_sends();
            std::thread::yield_now();
        }
    }
}

impl<V: Verbs> Transport for UdTransport<V> {
    fn address(&self) -> Address {
        self.address
    }

    fn limits(&self) -> Limits {
        let longest = datagram_max(self.shared.origin.port.mtu_bytes);
        Limits {
            short: longest,
            single: longest,
            fragment: longest,
            prefix: 0,
            single_copy: usize::MAX,
            single_copy_streaming: usize::MAX,
            contested: false,
        }
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
        self.keys = keys.cloned();
        let (station, keys) = (self.station, keys.cloned());
        self.control.command(Command::TakeKeys { station, keys });
    }

    fn choose_key(&mut self, peer: PeerIndex, key: KeyNumber) {
        self.peer(peer).key = key;
    }

    fn connect(&mut self, peer: PeerIndex, address: Address) {
        let key = self.peer(peer).key;
        if !std::mem::replace(&mut self.peer(peer).connecting, true) {
            let (station, to) = (self.station, address.socket_addr());
            self.control.command(Command::Connect { station, request: peer, to, key });
        }
    }

    fn adopt(&mut self, peer: PeerIndex, ticket: u64) {
        self.adopt_offer(peer, ticket);
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.drop_way(peer);
        self.hang_up(peer);
        self.forget_source(peer);
        self.forget_ends_of(peer);
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.drop_heard(peer);
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        self.forget_gone(peer)
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        match self.longest_to(peer) {
            Some(longest) if self.can_send(true) => Room::Bytes(wanted.min(longest)),
            _ => Room::Full,
        }
    }

    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        // Of the end a peer hears by TCP, for sure.
        head.kind == Kind::Bye as u8 || self.send_datagram(peer, head, word, words, payload)
    }

    fn waits_for_itself(&mut self, peer: PeerIndex) -> bool {
        self.longest_to(peer).is_some() && !self.has_place(true)
    }

    fn credit(&self, _peer: PeerIndex) -> u64 {
        0
    }

    fn grant(&mut self, _peer: PeerIndex, _credit: u64) {}

    fn arrival(&mut self) -> Option<Arrival> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_ROUND) {
            self.go_round();
            self.poll_receives();
        }
        if self.arrived.is_empty() {
            self.poll_receives();
        }
        self.next_arrival()
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.poll_what_is_there();
        self.bring_forward(peer)?;
        self.next_arrival()
    }

    fn word(&self, index: usize) -> u64 {
        self.current_word(index)
    }

    fn copy_out(&self, offset: usize, to: Piece) {
        self.copy_current(offset, to);
    }

    fn consume(&mut self) {
        self.consume_current();
    }

    fn has_event(&self) -> bool {
        self.shared.events_pending() || !self.events.is_empty()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        self.next_event()
    }

    /// Whatever completes after this rings; whatever completed before is found by the look.
    fn arm(&mut self) {
        self.armed += 1;
        self.shared.ask_for_bell();
    }

    fn is_quiet(&mut self) -> bool {
        self.go_round();
        self.poll_what_is_there();
        // The last look may have failed: who sleeps is woken by what comes of it.
        self.control.tell_failure(self.station, &self.shared);
        !self.has_event() && self.arrived.is_empty()
    }

    fn disarm(&mut self) -> bool {
        self.armed -= 1;
        let others_sleep = self.armed > 0;
        if others_sleep {
            self.shared.ask_for_bell();
        }
        others_sleep
    }

    fn ring(&self) {
        self.shared.bell.ring();
    }

    fn bell(&self) -> RawFd {
        self.either.fd()
    }
}

impl<V: Verbs> SingleCopy for UdTransport<V> {}

impl<V: Verbs> Windows for UdTransport<V> {}

impl<V: Verbs> Confirmation for UdTransport<V> {}

impl<V: Verbs> Drop for UdTransport<V> {
    /// Says goodbye. Not in a forked child, where all of it is the parent's.
    fn drop(&mut self) {
        if fork_guard::forked(self.forks) {
            std::mem::forget(std::mem::take(&mut self.peers));
            std::mem::forget(std::mem::take(&mut self.retired));
            std::mem::forget(std::mem::take(&mut self.events));
            std::mem::forget(std::mem::take(&mut self.groups));
            std::mem::forget(self.shared.clone());
            return;
        }
        self.linger();
        self.leave_all_groups();
        self.control.unregister(self.station);
        if self.strays > 0 {
            tracing::info!(address = %self.address, "{} datagrams came from nobody", self.strays);
        }
        while self.shared.pop().is_some() {}
        // SAFETY: each is taken once, here, and not used afterwards: the queue pair goes before
        // the buffers and the address handles that it uses.
        unsafe {
            ManuallyDrop::drop(&mut self.queue);
            ManuallyDrop::drop(&mut self.sends);
        }
    }
}
