//! What makes an engine that of a pair of contexts: each direction comes when its context is
//! enabled, and goes when that is closed. Reference: fi_endpoint(3), "SCALABLE ENDPOINTS".

use std::collections::{HashSet, VecDeque};

use super::{
    Engine, Setup,
    peer::ONE_SIDED,
    permitted::Permitted,
    report::{OneSidedCounters, Side},
};
use crate::{
    buffering::Buffering,
    error::{Cause, Errno},
    flags::Flags,
    protocol::claimed::ClaimedMessages,
    scalable_endpoint::pair::Direction,
    transport::{PeerIndex, Transport},
};

impl<T: Transport> Engine<T> {
    /// Takes the direction of a context over from `setup`.
    pub(crate) fn join(&mut self, direction: Direction, setup: Setup) {
        let OneSidedCounters { read, write, remote_read, remote_write } = setup.one_sided;
        self.contexts[direction as usize] = true;
        let ours = &mut self.setup;
        match direction {
            Direction::Transmit => {
                ours.transmit = setup.transmit;
                (ours.one_sided.read, ours.one_sided.write) = (read, write);
                ours.transmit_size = setup.transmit_size;
                self.reserve.raise(setup.inject_size);
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
                self.setup.hears = setup.hears;
                let reason = "the context that it waited for receives no such messages".to_owned();
                self.refuse_unheard(&Cause { errno: Errno::CONNRESET, reason });
                self.line_up_receives();
                let queue = self.setup.receive.queue.as_ref();
                self.buffering = Buffering::new(setup.buffering.as_ref(), queue);
                self.offers = self.buffering.is_some();
                self.buffer_parked();
            }
        }
    }

    /// Lets the direction of a closed context go: "Outstanding operations posted to the endpoint
    /// when fi_close is called will be discarded. Discarded operations will silently be dropped".
    /// Peers that have begun one of them are told, so that they do not wait for the rest. What is
    /// under way in the other direction goes on: "Transmit contexts are independent".
    pub(crate) fn leave(&mut self, direction: Direction) {
        let why = Cause {
            errno: Errno::CONNRESET,
            reason: "the context that it was posted to is closed".to_owned(),
        };
        self.contexts[direction as usize] = false;
        match direction {
            Direction::Transmit => self.discard_sends(&why),
            Direction::Receive => self.discard_receives(&why),
        }
        if self.contexts == [false; 2] {
            self.let_unfinished_go(&why);
        }
    }

    /// From now on nothing is told of what the transmit context had posted.
    pub(crate) fn silence_sends(&mut self) {
        self.setup.transmit = self.setup.transmit.silenced();
        (self.setup.one_sided.read, self.setup.one_sided.write) = (None, None);
    }

    fn discard_sends(&mut self, why: &Cause) {
        self.silence_sends();
        for peer in 0..self.peers.len() as PeerIndex {
            self.discard_queued(peer, why);
            self.discard_begun_remotes(peer, why);
            self.give_up_sends(peer, why);
        }
        self.line_up_sends();
        for record in &mut self.peers {
            record.takes_turns = false;
            record.settle();
        }
    }

    fn discard_queued(&mut self, peer: PeerIndex, why: &Cause) {
        let (sends, remotes) = (&self.sends, &self.remotes);
        let has_begun = |&queued: &u32| match queued & ONE_SIDED {
            0 => sends[queued].has_begun_with(peer),
            _ => remotes[queued & !ONE_SIDED].has_begun_with(peer),
        };
        let queue = std::mem::take(&mut self.peers[peer as usize].queue);
        let (begun, queued) = queue.into_iter().partition::<VecDeque<u32>, _>(has_begun);
        self.peers[peer as usize].queue = begun;
        for queued in queued {
            match queued & ONE_SIDED {
                0 => self.fail_send(queued, why),
                _ => self.fail_remote(queued & !ONE_SIDED, why),
            }
        }
    }

    fn discard_receives(&mut self, why: &Cause) {
        self.setup.receive = Side::default();
        self.setup.one_sided.remote_read = None;
        self.setup.one_sided.remote_write = None;
        self.setup.permitted = Permitted::default();
        self.setup.hears = Flags::empty();
        self.fail_all_posted(why);
        self.refuse_unheard(why);
        self.take_leases_back();
        // Who opens a context of this index again has claimed nothing.
        self.claimed = ClaimedMessages::default();
        (self.buffering, self.offers) = (None, false);
        self.line_up_receives();
    }

    /// Lets go of messages of families that are not received here any more, or never were: before there
    /// was a context nobody could know.
    fn refuse_unheard(&mut self, why: &Cause) {
        for peer in 0..self.peers.len() as PeerIndex {
            self.give_up_arriving(peer, why);
        }
        let (unexpected, hears) = (&self.unexpected, self.setup.hears);
        let is_unheard = |&index: &u32| !unexpected[index].flags.intersects(hears);
        let unheard = unexpected.indices().filter(is_unheard).collect();
        self.refuse_parked(&unheard);
        self.forget_unexpected(&unheard, why);
    }

    /// What peers were leased is as the context permitted and counted it that closes. Who shares a lease
    /// with them asks for another.
    fn take_leases_back(&mut self) {
        let peers = 0..self.peers.len() as PeerIndex;
        let audiences: HashSet<u64> = peers.map(|peer| self.transport.audience(peer)).collect();
        self.regions.end_leases(audiences);
    }

    /// Nobody polls a pair without contexts: who waits for more than has left by now is told by
    /// the end of the lane.
    fn let_unfinished_go(&mut self, why: &Cause) {
        for peer in 0..self.peers.len() as PeerIndex {
            if self.peers[peer as usize].has_work() {
                self.let_go(peer, why);
            }
        }
    }

    /// Lets a peer go, with all that was under way with it, and tells it.
    pub(crate) fn let_go(&mut self, peer: PeerIndex, why: &Cause) {
        self.end_single_copy(peer);
        self.say_bye_to(peer);
        self.part_with(peer, why);
    }
}
