//! Messages that one side copies out of, or into, the other one's memory: by process_vm_readv(2) and
//! process_vm_writev(2), where the kernel permits it.

use std::io;

use kestrel_core::{
    memory::Piece,
    ring::claims::Claims,
    transport::{PeerIndex, SingleCopy},
};

use super::ShmTransport;
use crate::{cma::PeerMemory, lane::SendLane, process::Life};

/// Whether a copy across processes was permitted; the log has why not.
pub(super) fn succeeded(memory: &PeerMemory, copied: io::Result<()>) -> bool {
    if let Err(error) = &copied {
        tracing::debug!(%error, pid = memory.pid(), "single-copy failed");
    }
    copied.is_ok()
}

impl SingleCopy for ShmTransport {
    fn read_remote(&mut self, peer: PeerIndex, remote: u64, to: Piece) -> bool {
        let Some(lane) = self.receive_lane(peer) else {
            return false;
        };
        let Some(memory) = &lane.peer.memory else {
            return false;
        };
        // SAFETY: the piece is writable for its length; the kernel checks the other side.
        let read = unsafe { memory.read(remote, to.as_ptr(), to.len()) };
        succeeded(memory, read)
    }

    fn write_remote(&mut self, peer: PeerIndex, remote: u64, from: Piece) -> bool {
        let Some(memory) = self.send_lane(peer).and_then(|lane| lane.peer.memory.as_ref()) else {
            return false;
        };
        // SAFETY: the piece is readable for its length; the kernel checks the other side.
        let written = unsafe { memory.write(remote, from.as_ptr(), from.len()) };
        succeeded(memory, written)
    }

    fn has_ended(&self, peer: PeerIndex) -> bool {
        let life = self.receive_lane(peer).and_then(|lane| lane.peer.life.as_ref());
        life.is_some_and(Life::has_ended)
    }

    fn claims_from(&self, peer: PeerIndex) -> Option<&Claims> {
        self.peers.get(peer as usize)?.receive.as_ref().map(|lane| lane.claims())
    }

    fn claims_to(&self, peer: PeerIndex) -> Option<&Claims> {
        self.peers.get(peer as usize)?.send.as_ref().map(SendLane::claims)
    }

    fn can_read_remote(&self, peer: PeerIndex) -> bool {
        self.receive_lane(peer).is_some_and(|lane| lane.peer.memory.is_some())
    }

    fn is_readable_by(&self, peer: PeerIndex) -> bool {
        self.send_lane(peer).is_some_and(|lane| lane.peer.reads_us)
    }
}
