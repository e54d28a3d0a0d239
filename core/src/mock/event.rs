//! What a station is told, at its own time.

use std::sync::Arc;

use super::lane::Lane;
use crate::transport::{PeerIndex, Unreachable};

pub(super) struct Event {
    /// Looks until it shows.
    pub(super) looks: usize,
    pub(super) what: What,
}

pub(super) enum What {
    Connected { peer: PeerIndex, lane: Arc<Lane> },
    Failed { peer: PeerIndex, reason: Unreachable },
    Incoming { lane: Arc<Lane> },
    Died { incarnation: u64 },
    HungUp { lane: Arc<Lane> },
}
