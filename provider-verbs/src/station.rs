//! What an endpoint's engine and the control thread share.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kestrel_core::{
    auth_key::KeyNumber,
    ring::announced::Announced,
    transport::{Bell as _, EventBell},
};

use crate::{
    control::error::ConnectError,
    receipt::Receipt,
    receive_pool::ReceivePool,
    verbs::{Agreement, Origin, PathEnd, Queues, RemoteMemory, Verbs, VerbsError},
};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    pub address: SocketAddr,
    /// Random for each endpoint: a restarted peer is another one.
    pub incarnation: u64,
    /// The key that it has proved.
    pub key: KeyNumber,
}

/// The end of a connection that sends. Fields drop in this order: the queue pair before the
/// memory that the peer writes to.
pub struct SendEnd<V: Verbs> {
    pub queue_pair: V::QueuePair,
    /// Where the peer writes its credit.
    pub credit: V::Region,
    /// Names the TCP connection to the control thread, or the connection manager's.
    pub link: u64,
    pub peer: PeerIdentity,
    /// Where the peer said that its port is, if the connection was made without the connection manager.
    pub place: Option<PathEnd>,
    /// What was agreed on, if the connection manager made it, which says of an end no more than that
    /// it came.
    pub managed: Option<Box<Agreement>>,
}

/// The end of a connection that receives.
pub struct ReceiveEnd<V: Verbs> {
    pub queue_pair: V::QueuePair,
    /// Where the peer wants its credit.
    pub credit: RemoteMemory,
    pub link: u64,
    pub peer: PeerIdentity,
    pub place: Option<PathEnd>,
    pub managed: Option<Box<Agreement>>,
    /// Of what its host may have: the control thread sees how long it is held.
    pub share: Arc<()>,
}

/// The way to a peer that datagrams are sent to.
pub struct Way<V: Verbs> {
    pub handle: V::AddressHandle,
    pub queue_pair: u32,
    pub mtu_bytes: u32,
    pub link: u64,
    pub peer: PeerIdentity,
}

/// What the control thread has to tell an endpoint.
pub enum StationEvent<V: Verbs> {
    /// A connection to send on, as asked for.
    Connected { request: u32, end: SendEnd<V> },
    /// No connection came of that request.
    Failed { request: u32, error: ConnectError },
    /// A connection to receive from.
    Incoming { end: ReceiveEnd<V> },
    /// The way to a peer, as asked for: what `Connected` is to datagrams.
    Found { request: u32, way: Way<V> },
    /// A peer that will send datagrams, and from which queue pair.
    Heard { link: u64, peer: PeerIdentity, queue_pair: u32 },
    /// A connection whose peer has ended it before it confirmed it: it stood if packets have come of it.
    Left { end: ReceiveEnd<V> },
    /// A queue pair that receives, of a connection that came to nothing, in error. A window was promised: the
    /// share tells the control thread until when nobody has heard of it, and the place for how long it is held.
    Abandoned { queue_pair: V::QueuePair, share: Arc<()>, place: Arc<()> },
    /// The peer closed the connection, or its endpoint.
    Closed { link: u64, receipt: Receipt },
    /// The peer's process is gone, or its host.
    Lost { link: u64, reason: String },
    /// By TCP the peer's host is not reached any more. The connection stands, as long as the peer's device answers.
    Mute { link: u64, reason: String },
    /// The connection manager says that the connection is over. If that is in order, the peer's
    /// last word is here already.
    Disconnected { link: u64 },
    /// Its device, or a queue of it, has failed: there is nobody any more. The links were lost before.
    GivenUp { reason: VerbsError },
    /// A second has gone by: peers of connections whose lines say little are to be asked for a sign of life.
    Probe,
}

/// What both sides of a station use.
pub struct StationShared<V: Verbs> {
    /// The data path looks at every poll whether there are any.
    events: Announced<StationEvent<V>>,
    pub bell: EventBell,
    /// Dropped after the events, which hold queue pairs.
    pub receives: ReceivePool<V>,
    pub device: Arc<V>,
    pub queues: Arc<V::Queues>,
    /// How packets leave.
    pub origin: Origin,
    /// That peers are to be asked for a sign of life was told, and not taken up yet.
    probing: AtomicBool,
    /// That the queues have failed was told.
    failure_told: AtomicBool,
}

impl<V: Verbs> StationShared<V> {
    /// Silences the bell, and asks for it. Whatever completes from here on rings; what completed
    /// before is the caller's to find.
    pub fn ask_for_bell(&self) {
        self.bell.drain();
        self.queues.silence();
        self.queues.request_notification();
    }

    pub fn new(
        device: Arc<V>,
        queues: Arc<V::Queues>,
        receives: ReceivePool<V>,
        bell: EventBell,
        origin: Origin,
    ) -> Self {
        let (events, probing, failure_told) = Default::default();
        StationShared { events, bell, receives, device, queues, origin, probing, failure_told }
    }

    /// Why the queues are of no use any more, if that was not told before.
    pub fn new_failure(&self) -> Option<String> {
        let what = self.queues.failure()?;
        (!self.failure_told.swap(true, Ordering::Relaxed)).then_some(what)
    }

    /// Has the endpoint ask its peers for a sign of life, if it has not been told to already.
    pub fn ask_to_probe(&self) {
        if !self.probing.swap(true, Ordering::Relaxed) {
            self.push(StationEvent::Probe);
        }
    }

    /// It is about to.
    pub fn note_probe(&self) {
        self.probing.store(false, Ordering::Relaxed);
    }

    /// Hands an event to the endpoint.
    pub fn push(&self, event: StationEvent<V>) {
        self.events.push(event);
        self.bell.ring();
    }

    /// Whether `pop` is worth a call. Cost: one load.
    #[inline(always)]
    pub fn events_pending(&self) -> bool {
        self.events.is_pending()
    }

    /// Takes the next event.
    pub fn pop(&self) -> Option<StationEvent<V>> {
        self.events.pop()
    }
}
