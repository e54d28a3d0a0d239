//! What makes an engine that of a pair of contexts: each direction comes when its context is
//! enabled, and goes when that is closed. Reference: fi_endpoint(3), "SCALABLE ENDPOINTS".

use super::{
    Engine, Setup,
    peer::ONE_SIDED,
    report::{OneSidedCounters, Side},
};
use crate::{
    buffering::Buffering,
    error::Errno,
    flags::Flags,
    operation::Target,
    scalable_endpoint::pair::Direction,
    transport::{PeerIndex, Transport, Unreachable},
};

impl<T: Transport> Engine<T> {
    /// Takes the direction of a context over from `setup`.
    pub(crate) fn join(&mut self, direction: Direction, setup: Setup) {
        let OneSidedCounters { read, write, remote_read, remote_write } = setup.one_sided;
        let ours = &mut self.setup;
        match direction {
            Direction::Transmit => {
                ours.transmit = setup.transmit;
                (ours.one_sided.read, ours.one_sided.write) = (read, write);
                ours.transmit_size = setup.transmit_size;
                ours.names_contexts = setup.names_contexts;
                self.sends.reserve(setup.transmit_size);
                self.line_up_sends();
            }
            Direction::Receive => {
                ours.receive = setup.receive;
                (ours.one_sided.remote_read, ours.one_sided.remote_write) =
                    (remote_read, remote_write);
                ours.permitted = setup.permitted;
                ours.source_errors = setup.source_errors;
                ours.multi_receive_min = setup.multi_receive_min;
                self.is_deaf = false;
                self.line_up_receives();
                self.buffering = Buffering::new(setup.buffering.as_ref());
                self.offers = self.buffering.is_some();
                self.buffer_parked();
            }
        }
    }

    /// Lets the direction of a closed context go: "Outstanding operations posted to the endpoint
    /// when fi_close is called will be discarded. Discarded operations will silently be dropped".
    /// A peer that has begun one of them is let go of, so that it does not wait for the rest.
    pub(crate) fn leave(&mut self, direction: Direction) {
        let why = Unreachable {
            errno: Errno::CONNRESET,
            reason: "the context that it was posted to is closed".to_owned(),
        };
        match direction {
            Direction::Transmit => self.discard_sends(&why),
            Direction::Receive => self.discard_receives(&why),
        }
    }

    fn discard_sends(&mut self, why: &Unreachable) {
        self.setup.transmit = Side::default();
        (self.setup.one_sided.read, self.setup.one_sided.write) = (None, None);
        for peer in 0..self.peers.len() as PeerIndex {
            if self.has_begun_with(peer) {
                self.let_go(peer, why);
            }
            for queued in std::mem::take(&mut self.peers[peer as usize].queue) {
                match queued & ONE_SIDED {
                    0 => self.fail_send(queued, why),
                    _ => self.fail_remote(queued & !ONE_SIDED, why),
                }
            }
            self.peers[peer as usize].settle();
        }
    }

    fn discard_receives(&mut self, why: &Unreachable) {
        self.setup.receive = Side::default();
        self.setup.one_sided.remote_read = None;
        self.setup.one_sided.remote_write = None;
        self.setup.permitted = Flags::empty();
        self.is_deaf = true;
        self.fail_all_posted(why);
        for peer in 0..self.peers.len() as PeerIndex {
            let arriving = |&index: &u32| self.incoming[index].target != Target::Nowhere;
            if self.peers[peer as usize].incoming.values().any(arriving) {
                self.let_go(peer, why);
            }
        }
        let parked = self.unexpected.indices().collect();
        self.forget_unexpected(&parked);
        (self.buffering, self.offers) = (None, false);
    }

    fn has_begun_with(&self, peer: PeerIndex) -> bool {
        self.sends.indices().any(|send| self.sends[send].has_begun_with(peer))
            || self.remotes.indices().any(|remote| self.remotes[remote].has_begun_with(peer))
    }

    /// Lets a peer go, with all that was under way with it, and tells it.
    pub(crate) fn let_go(&mut self, peer: PeerIndex, why: &Unreachable) {
        self.end_single_copy(peer);
        self.say_bye_to(peer);
        self.part_with(peer, why);
    }
}
