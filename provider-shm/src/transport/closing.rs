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
        let sending = self.peers.iter_mut().filter_map(|peer| peer.send.as_mut());
        for lane in sending.chain(&mut self.closing).filter(|lane| lane.peer.process == process) {
            lane.is_abandoned = true;
        }
        self.settle_closing();
    }
}
