//! The two ends of a connection: packets one way, credit the other.
//!
//! Credit is three words that the receiver writes into memory of the sender: how many packets it
//! takes in all, how many bytes core grants in all. Each comes with its complement, so that
//! words of which only a part has been written, or nonsense, are told from credit.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    control::{CREDIT_WRITES_MAX, SENDS_MAX},
    receipt::Receipt,
    receive_pool::{BufferIndex, WINDOW_MAX, WINDOW_MIN},
    send_pool::{Hunger, SendPool},
    send_queue::SendQueue,
    station::{PeerIdentity, ReceiveEnd, SendEnd},
    verbs::{Agreement, PathEnd, Region, RemoteMemory, Verbs, WORDS_INLINE},
};

/// Bytes of the credit words.
pub const CREDIT_BYTES: usize = 24;
const _: () = assert!(CREDIT_BYTES <= WORDS_INLINE as usize);
/// Bytes of the word behind them, by which the receiver says how many packets came when it lets go
/// of a connection of the connection manager: with its complement, so that 0 is no count.
pub const COUNT_BYTES: usize = 8;

/// Numbers of requests, after which they come round.
const NUMBERS_MAX: u32 = u32::MAX;

pub fn count_word(received: u32) -> u64 {
    u64::from(received) | u64::from(!received) << 32
}

/// The end that sends. Fields drop in this order: the queue pair before the memory that the peer
/// writes to.
pub struct SendLane<V: Verbs> {
    pub queue: SendQueue<V>,
    pub hunger: Hunger,
    pub credit: V::Region,
    pub link: u64,
    /// Packets that were sent, and how many may be.
    pub sent: u32,
    limit: u32,
    /// The last packet that the peer's device has, as all before it. Packets are all requests.
    pub confirmed: u32,
    /// The next packet asks for a completion.
    pub confirms_next: bool,
    /// That it is out of order was told.
    pub failed: bool,
    /// Where the peer said that its port is.
    pub place: Option<PathEnd>,
    /// What was agreed on, if the connection manager made it.
    pub managed: Option<Box<Agreement>>,
    /// The peer's device is asked for signs of life: nothing else tells of the end of its host.
    pub is_probed: bool,
    /// Of what is granted, kept back for goodbye.
    kept: u32,
    /// Requests that are no packets, the number of the last, and the packets before it.
    probes: u32,
    probe: u32,
    sent_before_probe: u32,
}

impl<V: Verbs> SendLane<V> {
    pub fn new(end: SendEnd<V>) -> Self {
        let SendEnd { queue_pair, credit, link, place, managed, .. } = end;
        let kept = u32::from(managed.is_some());
        let (queue, is_probed) = (SendQueue::new(queue_pair, SENDS_MAX), managed.is_some());
        SendLane {
            queue,
            hunger: Hunger::default(),
            credit,
            link,
            sent: 0,
            limit: WINDOW_MIN - kept,
            confirmed: 0,
            confirms_next: false,
            failed: false,
            place,
            managed,
            is_probed,
            kept,
            probes: 0,
            probe: 0,
            sent_before_probe: 0,
        }
    }

    /// The peer says what came to it. It may lie, to its own loss.
    pub fn take_receipt(&mut self, receipt: Receipt) {
        if receipt.credit_key == self.credit.remote_key() {
            self.confirm(receipt.received);
        }
    }

    /// So many packets came to the peer.
    fn confirm(&mut self, received: u32) {
        let left = self.sent.wrapping_sub(received);
        // Packets are numbered, and requests; those behind the last probe are that much apart.
        let behind_probe = left < self.sent.wrapping_sub(self.sent_before_probe);
        let probes = if behind_probe { self.probes } else { self.probes.saturating_sub(1) };
        let request = received.wrapping_add(probes);
        if self.queue.posted().wrapping_sub(request) as i32 >= 0 {
            self.confirm_request(request);
        }
    }

    /// The peer's device has a request. Of one in front of it the completion may come later.
    #[inline(always)]
    pub fn confirm_request(&mut self, request: u32) {
        if request.wrapping_sub(self.confirmed) as i32 > 0 {
            self.confirmed = request;
        }
    }

    /// Asks the peer's device for a sign of life, unless one is awaited. One probe at most is among
    /// what is unconfirmed, so that packets can be told from requests.
    pub fn probe(&mut self, pool: &mut SendPool<V>) {
        let over = self.queue.over();
        let behind = over.wrapping_sub(self.probe);
        let answered = behind as i32 >= 0;
        if answered && behind > NUMBERS_MAX / 4 {
            // A sender that is never idle needs no probe for long, and numbers come round.
            (self.probe, self.sent_before_probe) = (over, over.wrapping_sub(self.probes));
        }
        if answered && self.queue.probe(pool) {
            self.probes = self.probes.wrapping_add(1);
            (self.probe, self.sent_before_probe) = (self.queue.posted(), self.sent);
        }
    }

    /// Takes the receiver's count, if it has written one.
    pub fn take_count(&mut self) -> bool {
        let word = self.credit.memory().word(CREDIT_BYTES);
        let (count, complement) = (word as u32, (word >> 32) as u32);
        let counted = self.managed.is_some() && count == !complement;
        if counted {
            self.confirm(count);
        }
        counted
    }

    /// Whether one more packet may be sent.
    #[inline(always)]
    pub fn has_credit(&mut self) -> bool {
        self.sent != self.limit || self.look_for_credit()
    }

    fn look_for_credit(&mut self) -> bool {
        let word = self.credit.memory().word(0);
        let (limit, complement) = (word as u32, (word >> 32) as u32);
        let more = limit.wrapping_sub(self.kept).wrapping_sub(self.sent);
        if limit == !complement && (1..=WINDOW_MAX).contains(&more) {
            self.limit = limit.wrapping_sub(self.kept);
            return true;
        }
        false
    }

    /// What core's credit stands at; 0 if none has come.
    pub fn byte_credit(&self) -> u64 {
        let (bytes, complement) = (self.credit.memory().word(8), self.credit.memory().word(16));
        if bytes == !complement { bytes } else { 0 }
    }
}

/// A packet in its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    pub buffer: BufferIndex,
    pub bytes: u32,
}

impl Filled {
    /// Whether it is the packet of nothing that says goodbye.
    fn is_goodbye(&self) -> bool {
        self.bytes == 0
    }
}

/// A write that carried data, and is done.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The queue pair that it came on.
    pub queue_pair: u32,
    pub bytes: u32,
    pub data: u32,
}

/// What a peer sent, in the order of its coming.
#[derive(Clone, Copy, Debug)]
pub enum Came {
    Packet(Filled),
    Written(Written),
}

impl Came {
    /// The packet, if it is one.
    pub fn packet(&self) -> Option<Filled> {
        match *self {
            Came::Packet(filled) => Some(filled),
            Came::Written(_) => None,
        }
    }
}

/// The end that receives.
pub struct ReceiveLane<V: Verbs> {
    /// For credit.
    pub queue: SendQueue<V>,
    credit: RemoteMemory,
    pub link: u64,
    pub peer: PeerIdentity,
    /// What nobody has consumed, oldest first.
    pub arrived: VecDeque<Came>,
    /// Packets that came, were consumed, and may come in all.
    pub received: u32,
    pub consumed: u32,
    pub granted: u32,
    /// Buffers that are promised to it.
    pub window: u32,
    /// Core's grant.
    pub bytes_granted: u64,
    /// Credit is to be written, and there was no room to, or earlier credit is under way.
    pub due: bool,
    /// The queue pair is in error, and that was told. What came before is still readable.
    pub failed: bool,
    /// The peer broke the protocol: what it sent counts no more.
    pub broken: bool,
    /// Where the peer said that its port is.
    pub place: Option<PathEnd>,
    /// What was agreed on, if the connection manager made it.
    pub managed: Option<Box<Agreement>>,
    /// The peer's device is asked for signs of life: nothing else tells of the end of its host.
    pub is_probed: bool,
    /// The peer said goodbye.
    goodbye: bool,
    /// Of what its host may have.
    share: Arc<()>,
}

/// What a connection was promised: buffers, and of the connections that its host may have one. Both are
/// others' when its queue pair is gone.
pub struct Promise {
    /// Buffers.
    pub window: u32,
    pub _share: Arc<()>,
}

impl<V: Verbs> ReceiveLane<V> {
    pub fn new(end: ReceiveEnd<V>) -> Self {
        let ReceiveEnd { queue_pair, credit, link, peer, place, managed, share } = end;
        let is_probed = managed.is_some();
        ReceiveLane {
            queue: SendQueue::new(queue_pair, CREDIT_WRITES_MAX),
            credit,
            link,
            peer,
            arrived: VecDeque::with_capacity(WINDOW_MAX as usize),
            received: 0,
            consumed: 0,
            granted: WINDOW_MIN,
            window: WINDOW_MIN,
            bytes_granted: 0,
            due: false,
            failed: false,
            broken: false,
            place,
            managed,
            is_probed,
            goodbye: false,
            share,
        }
    }

    pub fn promise(&self) -> Promise {
        Promise { window: self.window, _share: self.share.clone() }
    }

    /// Takes a packet of nothing: by it the peer says goodbye, and no packet comes behind it. Of what it
    /// wrote something may, since that goes another way.
    pub fn take_goodbye(&mut self) -> Option<BufferIndex> {
        let is_last = self.packets().count() == 1 && self.arrived.front()?.packet()?.is_goodbye();
        if self.managed.is_none() || !is_last {
            return None;
        }
        self.goodbye = true;
        Some(self.arrived.pop_front()?.packet()?.buffer)
    }

    /// Whether the peer has said goodbye, be it that nobody has come to read it.
    pub fn has_goodbye(&self) -> bool {
        let is_last = || self.packets().next_back().is_some_and(|last| last.is_goodbye());
        self.managed.is_some() && (self.goodbye || is_last())
    }

    /// Packets that nobody has consumed, oldest first.
    fn packets(&self) -> impl DoubleEndedIterator<Item = Filled> {
        self.arrived.iter().filter_map(Came::packet)
    }

    /// Their buffers.
    pub fn buffers(&self) -> impl Iterator<Item = BufferIndex> {
        self.packets().map(|filled| filled.buffer)
    }

    /// A packet came. False if there was no credit for it.
    #[inline(always)]
    pub fn arrive(&mut self, filled: Filled) -> bool {
        let covered = self.received != self.granted;
        self.received = self.received.wrapping_add(1);
        self.arrived.push_back(Came::Packet(filled));
        covered
    }

    /// Whether half of its window waits to be granted again.
    #[inline(always)]
    pub fn wants_grant(&self) -> bool {
        let left = self.granted.wrapping_sub(self.consumed);
        left <= self.window / 2
    }

    /// How many buffers it should be promised, if `spare` can be lent: twice as many as long as it
    /// uses them up and others leave some; fewer, when there are none left for others.
    pub fn window_wanted(&self, spare: u32) -> u32 {
        let left = self.granted.wrapping_sub(self.consumed);
        let wanted = if spare > 0 {
            self.window + self.window.min(spare / 2)
        } else {
            self.window - (self.window - WINDOW_MIN) / 4
        };
        wanted.clamp(WINDOW_MIN.max(left), WINDOW_MAX)
    }

    /// What came.
    pub fn receipt(&self) -> Receipt {
        Receipt { received: self.received, credit_key: self.credit.key }
    }

    /// The credit words.
    pub fn credit_words(&self) -> [u64; CREDIT_BYTES / 8] {
        let packets = u64::from(self.granted) | u64::from(!self.granted) << 32;
        [packets, self.bytes_granted, !self.bytes_granted]
    }

    /// Where the sender looks for them.
    pub fn credit_at(&self) -> RemoteMemory {
        self.credit
    }
}
