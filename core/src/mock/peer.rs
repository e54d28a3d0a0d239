//! Both directions of a peer.

use std::sync::Arc;

use super::{event::What, lane::Lane};
use crate::auth_key::KeyNumber;

#[derive(Default)]
pub(super) struct Peer {
    pub(super) send: Option<Arc<Lane>>,
    pub(super) receive: Option<Arc<Lane>>,
    /// Connects whose outcome is not told.
    pub(super) connecting: usize,
    /// Which key is proved to it.
    pub(super) key: KeyNumber,
}

impl Peer {
    pub(super) fn knows(&self, incarnation: u64) -> bool {
        self.send.as_ref().is_some_and(|lane| lane.to.incarnation == incarnation)
            || self.receive.as_ref().is_some_and(|lane| lane.from.incarnation == incarnation)
    }

    pub(super) fn uses(&self, lane: &Arc<Lane>) -> bool {
        [&self.send, &self.receive].into_iter().flatten().any(|used| Arc::ptr_eq(used, lane))
    }

    pub(super) fn is_there(&self) -> bool {
        self.send.is_some() || self.receive.is_some() || self.connecting > 0
    }

    /// Lets go of both lanes, and lets the other ends know.
    pub(super) fn hang_up(&mut self) {
        if let Some(lane) = self.send.take() {
            lane.to.clone().tell(0, What::HungUp { lane });
        }
        if let Some(lane) = self.receive.take() {
            lane.from.clone().tell(0, What::HungUp { lane });
        }
    }
}
