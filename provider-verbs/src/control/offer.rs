//! What the two sides of a handshake offer each other: the ends of a connection, or queue pairs
//! that are there already and take datagrams from anybody.

use std::sync::Arc;

use super::{
    ManagedIdOf, StationRecord,
    accept::{Connected, WRITES_MAX},
    connect::SENDS_MAX,
    random,
    wire::RejectReason,
};
use crate::{
    manager::ManagedId,
    receive_pool::WINDOW_MIN,
    station::{PeerIdentity, ReceiveEnd, SendEnd, StationEvent, StationShared, Way},
    transport::{COUNT_BYTES, CREDIT_BYTES},
    verbs::{
        Agreement, LocalPort, Marks, PathEnd, QueuePair, Region, RemoteMemory, Role, Verbs,
        VerbsError,
    },
};

/// What the side that connects has made for its peer.
pub(super) enum Offer<V: Verbs> {
    Connection { queue_pair: V::QueuePair, credit: V::Region, first_packet: u32 },
    Datagrams { queue_pair: u32 },
}

/// What came of the peer's answer.
pub(super) enum Joined<V: Verbs> {
    /// A connection with what the peer said of its end.
    Connection(PathEnd),
    /// One that the connection manager has made, and what it has agreed on.
    Managed(Box<Agreement>),
    /// The way that datagrams take to the peer.
    Datagrams(V::AddressHandle, PathEnd),
}

impl<V: Verbs> Offer<V> {
    pub fn new(record: &StationRecord<V>) -> Result<Self, VerbsError> {
        record.check()?;
        if let Some(queue_pair) = record.datagrams {
            return Ok(Offer::Datagrams { queue_pair });
        }
        let shared = &record.shared;
        let queue_pair = shared.device.create_queue_pair(&shared.queues, SENDS_MAX, Role::Sends)?;
        let credit = shared.device.allocate(CREDIT_BYTES + COUNT_BYTES, true)?;
        Ok(Offer::Connection { queue_pair, credit, first_packet: first_packet() })
    }

    /// Where packets to us go.
    pub fn path_end(&self, record: &StationRecord<V>) -> PathEnd {
        let (number, first_packet) = match self {
            Offer::Connection { queue_pair, first_packet, .. } => {
                (queue_pair.number(), *first_packet)
            }
            Offer::Datagrams { queue_pair } => (*queue_pair, 0),
        };
        path_end(&record.shared.origin.port, number, first_packet)
    }

    /// Where our credit is to be written.
    pub fn credit(&self) -> RemoteMemory {
        match self {
            Offer::Connection { credit, .. } => {
                RemoteMemory { address: credit.memory().address(0), key: credit.remote_key() }
            }
            Offer::Datagrams { .. } => RemoteMemory { address: 0, key: 0 },
        }
    }

    /// Joins it with what the peer answered.
    pub fn join(
        &self,
        record: &StationRecord<V>,
        theirs: &PathEnd,
    ) -> Result<Joined<V>, VerbsError> {
        let StationShared { device, origin, .. } = &*record.shared;
        match self {
            Offer::Connection { queue_pair, first_packet, .. } => {
                queue_pair.connect(*first_packet, origin, theirs)?;
                Ok(Joined::Connection(*theirs))
            }
            Offer::Datagrams { .. } => {
                let handle = device.create_address_handle(origin, theirs)?;
                Ok(Joined::Datagrams(handle, *theirs))
            }
        }
    }

    /// Joins it as the connection manager has agreed with the peer's, and the peer has said.
    pub fn join_managed(
        &self,
        id: &ManagedIdOf<V>,
        marks: Marks,
        mtu_bytes_max: u32,
    ) -> Result<Joined<V>, VerbsError> {
        match self {
            Offer::Connection { queue_pair, .. } => {
                Ok(Joined::Managed(Box::new(id.join(queue_pair, marks, mtu_bytes_max)?)))
            }
            Offer::Datagrams { .. } => unreachable!("datagrams are found over TCP"),
        }
    }

    /// What the endpoint is told of it.
    pub fn taken(
        self,
        request: u32,
        link: u64,
        peer: PeerIdentity,
        joined: Joined<V>,
    ) -> StationEvent<V> {
        match (self, joined) {
            (Offer::Datagrams { .. }, Joined::Datagrams(handle, end)) => {
                let PathEnd { queue_pair, mtu_bytes, .. } = end;
                let way = Way { handle, queue_pair, mtu_bytes, link, peer };
                StationEvent::Found { request, way }
            }
            (Offer::Connection { queue_pair, credit, .. }, joined) => {
                let (place, managed) = match joined {
                    Joined::Connection(end) => (Some(end), None),
                    Joined::Managed(agreement) => (None, Some(agreement)),
                    Joined::Datagrams(..) => unreachable!("`join` gives what the offer is for"),
                };
                let end = SendEnd { queue_pair, credit, link, peer, place, managed };
                StationEvent::Connected { request, end }
            }
            _ => unreachable!("`join` gives what the offer is for"),
        }
    }
}

/// Who asks for a connection, checked.
pub(super) struct Caller {
    pub peer: PeerIdentity,
    /// Where it wants its credit.
    pub credit: RemoteMemory,
    /// What it said of its end, if it was to.
    pub place: Option<PathEnd>,
}

/// What the side that is connected to has made for its peer.
pub(super) enum Answer<V: Verbs> {
    Connection(ReceiveEnd<V>),
    Datagrams { link: u64, peer: PeerIdentity, queue_pair: u32 },
}

impl<V: Verbs> Answer<V> {
    /// Joins a queue pair of ours, whose packets begin at the given number, with the peer's, and
    /// promises a window; or says where datagrams go. Returns the path to us as well.
    pub fn new(
        record: &StationRecord<V>,
        link: u64,
        caller: &Caller,
        connected: &mut Connected,
        join: impl FnOnce(&V::QueuePair, u32) -> Result<Option<Agreement>, VerbsError>,
    ) -> Result<(Self, PathEnd), (RejectReason, String)> {
        let shared = &record.shared;
        let Caller { peer, credit, place } = *caller;
        record.check().map_err(|error| (reason_of(&error), error.to_string()))?;
        if let Some(number) = record.datagrams {
            let end = path_end(&shared.origin.port, number, 0);
            let queue_pair = place.map_or(0, |place| place.queue_pair);
            return Ok((Answer::Datagrams { link, peer, queue_pair }, end));
        }
        let most = shared.receives.connections_max() / 2;
        let Some(share) = connected.take(record.id, peer.address.ip(), most) else {
            let why = "as many connections of its host stand as one may have";
            return Err((RejectReason::Resources, why.into()));
        };
        match shared.receives.reserve() {
            Ok(true) => {}
            Ok(false) => {
                let why = "all receive buffers are promised to others";
                return Err((RejectReason::Resources, why.into()));
            }
            Err(error) => return Err((RejectReason::Resources, error.to_string())),
        }
        let first_packet = first_packet();
        let made = shared.device.create_queue_pair(&shared.queues, WRITES_MAX, Role::Receives);
        let joined = made.and_then(|pair| {
            pair.provide(WINDOW_MIN)?;
            let agreement = join(&pair, first_packet)?;
            Ok((pair, agreement.map(Box::new)))
        });
        let (queue_pair, managed) = joined.map_err(|error| {
            shared.receives.return_window(WINDOW_MIN);
            (reason_of(&error), error.to_string())
        })?;
        let end = path_end(&shared.origin.port, queue_pair.number(), first_packet);
        let taken = ReceiveEnd { queue_pair, credit, link, peer, place, managed, share };
        Ok((Answer::Connection(taken), end))
    }

    /// The number of the queue pair that was made for it.
    pub fn queue_pair(&self) -> Option<u32> {
        match self {
            Answer::Connection(end) => Some(end.queue_pair.number()),
            Answer::Datagrams { .. } => None,
        }
    }

    /// What the endpoint is told of it.
    pub fn confirmed(self) -> StationEvent<V> {
        match self {
            Answer::Connection(end) => StationEvent::Incoming { end },
            Answer::Datagrams { link, peer, queue_pair } => {
                StationEvent::Heard { link, peer, queue_pair }
            }
        }
    }

    /// What the endpoint is told if its peer ends the connection before it has confirmed it.
    pub fn left(self) -> Option<StationEvent<V>> {
        match self {
            Answer::Connection(end) => Some(StationEvent::Left { end }),
            Answer::Datagrams { .. } => None,
        }
    }

    /// What the endpoint is told if nothing comes of it. The share is held until it has heard so.
    pub fn abandoned(self, share: Arc<()>) -> Option<StationEvent<V>> {
        match self {
            Answer::Connection(ReceiveEnd { queue_pair, share: place, .. }) => {
                // Nothing comes on it any more, however late that is.
                queue_pair.fail();
                Some(StationEvent::Abandoned { queue_pair, share, place })
            }
            Answer::Datagrams { .. } => None,
        }
    }
}

fn first_packet() -> u32 {
    u32::from_le_bytes(random()) >> 8
}

/// What we tell a peer of a queue pair of ours.
pub fn path_end(port: &LocalPort, queue_pair: u32, first_packet: u32) -> PathEnd {
    PathEnd {
        queue_pair,
        first_packet,
        lid: port.lid,
        partition_key: port.partition_key,
        link_layer: port.link_layer,
        gid: port.gid,
        mtu_bytes: port.mtu_bytes,
        reads_max: port.reads_max,
    }
}

/// Which refusal tells the peer of this.
fn reason_of(error: &VerbsError) -> RejectReason {
    match error {
        VerbsError::Call { .. }
        | VerbsError::Exhausted { .. }
        | VerbsError::Gone { .. }
        | VerbsError::LockedMemory { .. } => RejectReason::Resources,
        VerbsError::Subnets { .. } => RejectReason::Subnet,
        VerbsError::Partitions { .. } | VerbsError::LimitedMembers { .. } => {
            RejectReason::Partition
        }
        _ => RejectReason::Path,
    }
}
