//! Giving messages up that have begun, while the lanes and all else with the peer go on: one
//! context of a pair is closed, and the other one is not concerned. Reference: fi_endpoint(3):
//! "Outstanding operations posted to the endpoint when fi_close is called will be discarded."
//!
//! A receiver says so by Finish, with an error, and parts that are still on the way find nobody. A
//! sender says so by Withdraw. Buffers are the application's when the call returns: so a sender
//! counts what it withdraws, where receivers read its memory, before they can be told by a packet
//! (see [`crate::ring::claims`]).

use std::collections::HashSet;

use crate::{
    engine::{Engine, peer::Reply},
    error::{Cause, Errno},
    operation::{Incoming, SendOperation, SendStage, Target},
    transport::{PeerIndex, Transport},
    wire::Kind,
};

impl SendOperation {
    /// Whether its receiver has begun with it, and waits for more of it or may ask for it.
    fn is_awaited(&self) -> bool {
        match self.stage {
            SendStage::Queued | SendStage::AwaitConfirmation => false,
            SendStage::Prefix => true,
            _ => self.prefix < self.total || self.prefix == 0,
        }
    }
}

impl<T: Transport> Engine<T> {
    /// Gives up the sends to `peer` that have begun: none of their memory is read for it any more
    /// when this returns, or what is read is not believed.
    pub(crate) fn give_up_sends(&mut self, peer: PeerIndex, why: &Cause) {
        let begun = |&send: &u32| self.sends[send].has_begun_with(peer);
        let begun: Vec<u32> = self.sends.indices().filter(begun).collect();
        let awaited = begun.iter().filter(|&&send| self.sends[send].is_awaited());
        let names: Vec<u64> = awaited.map(|&send| self.sends.name(send)).collect();
        let record = &mut self.peers[peer as usize];
        record.withdrawn += names.len() as u64;
        if let Some(claims) = self.transport.claims_to(peer).filter(|_| !names.is_empty()) {
            claims.withdraw_in_all(record.withdrawn);
        }
        self.take_loans_back(peer);
        self.leave_stages(peer, &begun);
        for send in begun {
            self.fail_send(send, why);
        }
        for name in names {
            self.reply(peer, Reply::new(Kind::Withdraw, name, 0));
        }
        // A fenced operation may have waited for them.
        self.note_backlog(peer);
    }

    /// Takes the sends to a peer that have `begun`, which are all, out of what they wait in.
    fn leave_stages(&mut self, peer: PeerIndex, begun: &[u32]) {
        self.unqueue_begun_sends(peer);
        let (record, sends) = (&mut self.peers[peer as usize], &self.sends);
        record.streams.clear();
        record.unconfirmed.forget_sends();
        let awaits = |&&send: &&u32| sends[send].stage != SendStage::Prefix;
        record.awaiting -= begun.iter().filter(awaits).count() as u32;
    }

    /// The sender of a message that has begun to arrive gives it up.
    #[cold]
    pub(crate) fn arrive_withdraw(&mut self, peer: PeerIndex, operation: u64) {
        self.peers[peer as usize].withdrawn_by_it += 1;
        let Some(&index) = self.peers[peer as usize].incoming.get(&operation) else {
            // It is here, or was given up, before its sender did so.
            return;
        };
        if !self.stop_pull(index) {
            return self.violation(peer, "it gives up a message that it goes on writing");
        }
        if !self.stop_fetch(index) {
            // Its adapter has to do with the buffer still, and ends that since the loan is over.
            return;
        }
        self.lose_withdrawn(index);
    }

    /// A message that its sender has given up is over.
    #[cold]
    pub(crate) fn lose_withdrawn(&mut self, index: u32) {
        let (peer, operation) = (self.incoming[index].peer, self.incoming[index].operation);
        let address = self.peers[self.peers[peer as usize].source as usize].address;
        let reason = format!("{address} gave the message up: the context that sent it is closed");
        let why = Cause { errno: Errno::CONNRESET, reason };
        self.peers[peer as usize].incoming.remove(&operation);
        if let Some(parked) = self.fail_incoming(index, &why)
            && !self.fail_held(peer, parked, &why)
        {
            self.forget_unexpected(&HashSet::from([parked]), &why);
        }
        self.write_next(peer, index);
        self.buffer_on(peer);
    }

    /// Gives up what is arriving from `peer` that nobody here receives any more, or ever did, and tells it:
    /// nothing is written to a receive's buffer any more when this returns.
    pub(crate) fn give_up_arriving(&mut self, peer: PeerIndex, why: &Cause) {
        self.let_windows_end(peer);
        let is_wanted = |target| !matches!(target, Target::Nowhere | Target::GivenUp);
        let unheard = |&index: &u32| {
            let Incoming { flags, target, .. } = self.incoming[index];
            is_wanted(target) && !flags.intersects(self.setup.hears)
        };
        let arriving = self.peers[peer as usize].incoming.values().copied().filter(unheard);
        let arriving: Vec<u32> = arriving.collect();
        if arriving.is_empty() {
            return;
        }
        self.forget_fetches(peer);
        if !self.forget_pulls(peer) {
            // Its sender is in the middle of a block, and does not come to its end.
            return self.let_go(peer, why);
        }
        let mut parked = HashSet::new();
        for index in arriving {
            let incoming = &self.incoming[index];
            let operation = incoming.operation;
            let waits = incoming.is_rendezvous() || incoming.acknowledge_whole;
            let left_behind = incoming.left_behind();
            self.peers[peer as usize].incoming.remove(&operation);
            parked.extend(self.fail_incoming(index, why));
            if let Some(left_behind) = left_behind {
                let index = self.incoming.insert(left_behind);
                self.peers[peer as usize].incoming.insert(operation, index);
            }
            if waits {
                self.refuse(peer, operation);
            }
        }
        self.refuse_parked(&parked);
        self.end_line_of_data(peer, &mut parked, why);
        self.forget_unexpected(&parked, why);
    }

    /// Tells the senders of parked messages, which wait for them to be matched, that nobody will.
    pub(crate) fn refuse_parked(&mut self, parked: &HashSet<u32>) {
        for &index in parked {
            let message = &mut self.unexpected[index];
            if let Some(operation) = message.acknowledge.take() {
                let peer = message.peer;
                self.refuse(peer, operation);
            }
        }
    }

    /// Tells a sender that its message is received by nobody.
    #[cold]
    pub(crate) fn refuse(&mut self, peer: PeerIndex, operation: u64) {
        self.reply(peer, Reply::new(Kind::Finish, operation, Errno::CONNRESET.0 as u64));
    }
}
