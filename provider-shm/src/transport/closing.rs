//! Lanes that were closed while chunks of the pool are lent to them.
//!
//! What was published before is the receiver's to read, who may not come to it for long: its payload lies
//! in our pool. So the chunks are not lent to others until it has read them, or never will: it has closed
//! its end, or its process is gone. A receiver that does neither keeps a part of the pool, as one does
//! whose lane is open; others' payload then goes in lines.

use super::*;

impl ShmTransport {
    /// Closes a lane. Returns whose it was: watched further, where chunks are still lent to it.
    pub(super) fn close_sending(&mut self, mut lane: SendLane) -> ProcessId {
        let process = lane.peer.process;
        if !lane.settle(&mut self.pool) {
            self.closing.push(lane);
        }
        process
    }

    /// Takes back what has been read of lanes that are closed.
    #[cold]
    pub(super) fn settle_closing(&mut self) {
        let mut settled = Vec::new();
        let pool = &mut self.pool;
        self.closing.retain_mut(|lane| {
            let is_settled = lane.settle(pool);
            if is_settled {
                settled.push(lane.peer.process);
            }
            !is_settled
        });
        self.forget(settled);
    }

    /// A process is gone: what was lent to it is read by nobody.
    pub(super) fn settle_with(&mut self, process: ProcessId) {
        let abandon = |lane: &mut SendLane| lane.is_abandoned |= lane.peer.process == process;
        for peer in self.connected_with(process).collect::<Vec<_>>() {
            if let Some(lane) = &mut self.peers[peer as usize].send {
                abandon(lane);
            }
        }
        self.closing.iter_mut().for_each(abandon);
        self.settle_closing();
    }
}
