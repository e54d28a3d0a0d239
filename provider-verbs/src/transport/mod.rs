//! The transport: RDM over reliable connected queue pairs.
//!
//! - [`lane`]: the two ends of a connection;
//! - [`sending`]: packets into bounce buffers and onto queue pairs;
//! - [`receiving`]: packets out of the shared receive queue, and credit back;
//! - [`events`]: connections that come and go; [`farewell`]: how those of the manager do;
//! - [`window`], [`reach`]: what the device does by itself, on queue pairs of their own; [`guest`]:
//!   the other end of these.

mod events;
mod farewell;
mod guest;
mod lane;
mod reach;
mod receiving;
mod sending;
mod window;

use std::{collections::VecDeque, mem::ManuallyDrop, os::fd::RawFd, sync::Arc, time::Instant};

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring, ONLY_KEY},
    fork_guard,
    memory::Piece,
    transport::{
        Arrival, Bell as _, Confirmation, Limits, Multicast, PeerIndex, Room, SingleCopy,
        Transport, TransportEvent,
    },
    window::{Finished, LoanWorth},
    wire::Head,
};
use rustc_hash::FxHashMap;

pub use self::lane::{COUNT_BYTES, CREDIT_BYTES};
use self::{
    events::Told,
    farewell::Retired,
    guest::Guest,
    lane::{Came, Filled, ReceiveLane, SendLane},
    receiving::{Current, Early},
    window::Window,
};
use crate::{
    bell::EitherBell,
    control::{Command, Control},
    receipt::Receipt,
    receive_pool::{BUFFER_BYTES, BufferIndex},
    registrations::RegistrationCache,
    send_pool::SendPool,
    station::{ReceiveEnd, StationShared},
    verbs::Verbs,
};

/// Bytes of a packet in front of its words: the head, and the kind's own word.
const HEAD_BYTES: usize = 16;
/// Head and as many words as any kind has.
const FRONT_BYTES: usize = 64;
/// Looks between two rounds of what is not urgent.
const LOOKS_PER_ROUND: u32 = 64;

/// What transports send as.
pub(crate) const LIMITS: Limits = Limits {
    short: BUFFER_BYTES - FRONT_BYTES,
    single: BUFFER_BYTES - FRONT_BYTES,
    fragment: BUFFER_BYTES - FRONT_BYTES,
    prefix: 64 << 10,
    // No peer reads our memory but by its adapter, which core does not ask for.
    single_copy: usize::MAX,
    single_copy_streaming: usize::MAX,
    contested: false,
};

/// Both directions of a peer.
struct Peer<V: Verbs> {
    send: Option<SendLane<V>>,
    receive: Option<ReceiveLane<V>>,
    connecting: bool,
    /// Which key is proved to it.
    key: KeyNumber,
    /// In `ready`.
    is_ready: bool,
    /// Where we reach its memory, and where it reaches ours.
    window: Option<Window<V>>,
    guest: Option<Guest<V>>,
}

/// Whose a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Send(PeerIndex),
    Receive(PeerIndex),
    Window(PeerIndex),
    Retired,
}

/// The verbs transport of one endpoint.
pub struct RcTransport<V: Verbs> {
    address: Address,
    station: u64,
    control: Arc<Control<V>>,
    forks: u32,
    peers: Vec<Peer<V>>,
    /// Queue pairs by number. The device chooses the numbers, so a plain hash does.
    owners: FxHashMap<u32, Owner>,
    /// Who reaches our memory through which one.
    guests: FxHashMap<u32, PeerIndex>,
    /// Connections by their TCP connection.
    links: FxHashMap<u64, Owner>,
    /// Peers from which something waits, in turn.
    ready: VecDeque<PeerIndex>,
    /// What came on queue pairs that nobody has adopted yet.
    early: FxHashMap<u32, Early>,
    current: Option<Current>,
    /// Buffers that are free and not posted yet.
    returned: Vec<BufferIndex>,
    /// There are some among them that nothing was consumed from.
    has_strays: bool,
    /// Queue pairs for which requests are held back.
    holding: Vec<Owner>,
    /// Peers whose credit is to be written.
    due: Vec<PeerIndex>,
    looks: u32,
    offers: FxHashMap<u64, ReceiveEnd<V>>,
    events: VecDeque<Told<V>>,
    retired: Vec<Retired<V>>,
    /// Operations of windows that are over, and how many there have been.
    finished: VecDeque<Finished>,
    reached: u64,
    /// Threads that sleep, or are about to.
    armed: usize,
    either: EitherBell,
    /// The shortest message whose buffer is registered to be read, or to be read into, whether it comes again
    /// or not. Units: bytes.
    fetch_min: usize,
    /// Which messages are lent to their receivers.
    loans: Option<LoanWorth>,
    registrations: RegistrationCache<V>,
    sends: ManuallyDrop<SendPool<V>>,
    shared: Arc<StationShared<V>>,
}

/// What a transport of a registered station is made of.
pub(crate) struct Parts<V: Verbs> {
    pub address: Address,
    pub station: u64,
    pub control: Arc<Control<V>>,
    pub shared: Arc<StationShared<V>>,
    pub sends: SendPool<V>,
    pub either: EitherBell,
    pub fetch_min: usize,
    pub loans: Option<LoanWorth>,
    pub registrations: RegistrationCache<V>,
}

impl<V: Verbs> RcTransport<V> {
    pub(crate) fn new(parts: Parts<V>) -> Self {
        let Parts {
            address,
            station,
            control,
            shared,
            sends,
            either,
            fetch_min,
            loans,
            registrations,
        } = parts;
        RcTransport {
            address,
            station,
            control,
            forks: fork_guard::generation(),
            peers: Vec::new(),
            owners: FxHashMap::default(),
            guests: FxHashMap::default(),
            links: FxHashMap::default(),
            ready: VecDeque::new(),
            early: FxHashMap::default(),
            current: None,
            returned: Vec::with_capacity(LOOKS_PER_ROUND as usize),
            has_strays: false,
            holding: Vec::new(),
            due: Vec::new(),
            looks: 0,
            offers: FxHashMap::default(),
            events: VecDeque::new(),
            retired: Vec::new(),
            finished: VecDeque::new(),
            reached: 0,
            armed: 0,
            either,
            fetch_min,
            loans,
            registrations,
            sends: ManuallyDrop::new(sends),
            shared,
        }
    }

    fn peer(&mut self, peer: PeerIndex) -> &mut Peer<V> {
        let index = peer as usize;
        if self.peers.len() <= index {
            let fresh = || Peer {
                send: None,
                receive: None,
                connecting: false,
                key: ONLY_KEY,
                is_ready: false,
                window: None,
                guest: None,
            };
            self.peers.resize_with(index + 1, fresh);
        }
        &mut self.peers[index]
    }

    fn send_lane(&self, peer: PeerIndex) -> Option<&SendLane<V>> {
        self.peers.get(peer as usize)?.send.as_ref()
    }

    /// What is not urgent: completions of sends, credit that found no room, old queue pairs.
    #[cold]
    #[inline(never)]
    fn go_round(&mut self) {
        self.reap_sends();
        self.registrations.sweep();
        self.control.tell_failure(self.station, &self.shared);
        for peer in std::mem::take(&mut self.due) {
            self.write_due_credit(peer);
        }
        self.post_strays();
        if !self.retired.is_empty() {
            let now = Instant::now();
            self.let_go(now);
            self.bury(now);
        }
    }
}

impl<V: Verbs> Transport for RcTransport<V> {
    fn address(&self) -> Address {
        self.address
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
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
        // The last words need room, which what is over gives back.
        self.reap_sends();
        self.drop_send_lane(peer);
        self.hang_up(peer);
        self.forget_ends_of(peer);
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.drop_receive_lane(peer);
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        self.forget_gone(peer)
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        if self.can_send(peer, true) {
            Room::Bytes(wanted.min(LIMITS.fragment))
        } else {
            self.room_inline(peer, wanted)
        }
    }

    #[inline(always)]
    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        self.send_packet(peer, head, word, words, payload)
    }

    #[inline(always)]
    fn flush(&mut self) {
        if !self.holding.is_empty() {
            self.post_held();
        }
    }

    fn credit(&self, peer: PeerIndex) -> u64 {
        self.send_lane(peer).map_or(0, SendLane::byte_credit)
    }

    fn grant(&mut self, peer: PeerIndex, credit: u64) {
        if let Some(lane) = self.peers.get_mut(peer as usize).and_then(|p| p.receive.as_mut()) {
            lane.bytes_granted = credit;
            self.write_credit(peer);
        }
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_ROUND) {
            self.go_round();
            self.poll_receives();
        }
        self.next_arrival()
    }

    fn pass_over(&mut self) {
        self.pass_first_over();
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        while self.poll_receives() {}
        self.arrival_of(peer)
    }

    #[inline(always)]
    fn consume(&mut self) {
        self.consume_current();
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.current_word(index)
    }

    #[inline(always)]
    fn copy_out(&self, offset: usize, to: Piece) {
        self.copy_current(offset, to);
    }

    #[inline(always)]
    fn has_event(&self) -> bool {
        self.shared.events_pending() || !self.events.is_empty()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        self.next_event()
    }

    /// Whatever completes after this rings; whatever completed before is found by the look.
    fn arm(&mut self) {
        self.armed += 1;
        self.flush();
        self.shared.ask_for_bell();
    }

    fn is_quiet(&mut self) -> bool {
        self.go_round();
        while self.poll_receives() {}
        self.post_strays();
        // The last look may have failed: who sleeps is woken by what comes of it.
        self.control.tell_failure(self.station, &self.shared);
        !self.has_event() && !self.has_ready_packet() && self.finished.is_empty()
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

impl<V: Verbs> SingleCopy for RcTransport<V> {}

impl<V: Verbs> Confirmation for RcTransport<V> {
    fn confirms(&self, _peer: PeerIndex) -> bool {
        true
    }

    fn confirm_next(&mut self, peer: PeerIndex) {
        if let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.send.as_mut()) {
            lane.confirms_next = true;
        }
    }

    fn pushed(&self, peer: PeerIndex) -> u32 {
        self.send_lane(peer).map_or(0, |lane| lane.queue.posted())
    }

    fn look_for_confirmations(&mut self) {
        self.reap_burst();
    }

    fn confirmed(&self, peer: PeerIndex) -> u32 {
        self.send_lane(peer).map_or(0, |lane| lane.confirmed)
    }

    fn receipt(&mut self, peer: PeerIndex) -> u64 {
        while self.poll_receives() {}
        self.receipt_for(peer).to_word()
    }

    fn take_receipt(&mut self, peer: PeerIndex, receipt: u64) {
        if let Some(lane) = self.peers.get_mut(peer as usize).and_then(|peer| peer.send.as_mut()) {
            lane.take_receipt(Receipt::from_word(receipt));
        }
    }
}

impl<V: Verbs> Multicast for RcTransport<V> {}

impl<V: Verbs> RcTransport<V> {
    /// The last that goes of a transport that is closed.
    fn drop_sends(&mut self) {
        // SAFETY: called once, by `drop`, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.sends) };
    }
}
