//! What an endpoint does to the memory of others: how much it may, and how much it did.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::MockTransport;
use crate::{
    memory::Piece,
    ring::claims::Claims,
    transport::{PeerIndex, SingleCopy},
};

/// Copies of one kind: reads, or writes.
pub(super) struct Copies {
    /// Until they are refused.
    left: AtomicUsize,
    bytes: AtomicUsize,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { left: AtomicUsize::new(usize::MAX), bytes: AtomicUsize::new(0) }
    }
}

impl Copies {
    /// After `count` more, all are refused.
    pub fn forbid_after(&self, count: usize) {
        self.left.store(count, Ordering::SeqCst);
    }

    /// Whether a copy of `bytes` is permitted; it is counted then.
    pub fn permit(&self, bytes: usize) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let permitted = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        if permitted.is_ok() {
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        permitted.is_ok()
    }

    /// Bytes that were copied.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}

impl SingleCopy for MockTransport {
    fn read_remote(&mut self, peer: PeerIndex, remote: u64, to: Piece) -> bool {
        // What was withdrawn may be freed; another process's memory would only not be there.
        let withdrawn = self.claims_from(peer).is_some_and(Claims::is_all_withdrawn);
        if withdrawn || !self.can_read_remote(peer) || !self.station.reads.permit(to.len()) {
            return false;
        }
        // SAFETY: the sender is in this process and keeps its buffer until the
        // receiver has finished the message, which it has not yet.
        unsafe { std::ptr::copy(remote as *const u8, to.as_ptr(), to.len()) };
        true
    }

    fn write_remote(&mut self, peer: PeerIndex, remote: u64, from: Piece) -> bool {
        let lane = self.send_lane(peer);
        if !self.options.read_remote || lane.is_none_or(|lane| lane.to.dead.load(Ordering::SeqCst))
        {
            return false;
        }
        if !self.station.writes.permit(from.len()) {
            return false;
        }
        // SAFETY: the receiver is in this process and keeps its buffer until all that the sender
        // has claimed is written, which this is not yet.
        unsafe { std::ptr::copy(from.as_ptr(), remote as *mut u8, from.len()) };
        true
    }

    fn claims_from(&self, peer: PeerIndex) -> Option<&Claims> {
        let lane = self.peers.get(peer as usize)?.receive.as_ref();
        lane.filter(|_| self.options.read_remote).map(|lane| &lane.claims)
    }

    fn claims_to(&self, peer: PeerIndex) -> Option<&Claims> {
        self.send_lane(peer).filter(|_| self.options.read_remote).map(|lane| &lane.claims)
    }

    fn can_read_remote(&self, peer: PeerIndex) -> bool {
        let lane = self.peers.get(peer as usize).and_then(|peer| peer.receive.as_ref());
        // The memory of a process that is gone is not there to be read.
        self.options.read_remote && lane.is_some_and(|lane| !lane.from.dead.load(Ordering::SeqCst))
    }

    fn is_readable_by(&self, _peer: PeerIndex) -> bool {
        self.options.read_remote
    }
}
