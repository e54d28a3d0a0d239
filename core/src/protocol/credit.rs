//! Credit: how much a sender may push that nobody has asked for yet.
//!
//! Every message that travels with its payload is charged its length and its
//! envelope. The receiver releases the charge when the message is matched, and
//! publishes how far the sender may go. A sender without credit sends only the
//! envelope and keeps the payload, so that later tags can always arrive; it can
//! keep at most `transmit size` of these. So a receiver holds at most its budget,
//! the least credit of each peer, and `transmit size` envelopes a peer.
//!
//! What peers left behind whose lanes have ended counts against the budget until it is received. Once it is all
//! of that, who has left some behind and is back is heard as far as it is asked for.

use crate::{
    engine::Engine,
    operation::Unexpected,
    tag_match::SourceIndex,
    transport::{PeerIndex, Transport},
    wire::ENVELOPE_COST,
};

/// Credit that a sender may use before the receiver has granted any: both sides
/// know it, so that the first messages need not wait for the receiver's engine.
/// Units: bytes.
pub const CREDIT_FIRST: u64 = 64 << 10;

/// The window that lets a stream run: more than a sender can have under way in
/// its lane and chunks, since without credit it falls back to envelopes. Units:
/// bytes.
const CREDIT_STREAM: u64 = 4 << 20;

/// How much payload a peer lets us send that it has not asked for. Units: bytes.
#[derive(Clone, Copy, Debug)]
pub struct SendCredit {
    /// What was used so far.
    pub charged: u64,
    /// What the peer has granted, as last seen.
    granted: u64,
}

impl Default for SendCredit {
    fn default() -> Self {
        SendCredit { charged: 0, granted: CREDIT_FIRST }
    }
}

impl SendCredit {
    /// Of whoever receives datagrams: nobody grants credit for them, and nobody waits for it.
    pub const UNBOUNDED: SendCredit = SendCredit { charged: 0, granted: u64::MAX };

    #[inline(always)]
    fn covers(&self, cost: u64) -> bool {
        self.charged + cost <= self.granted
    }
}

/// How much payload a peer may send that nobody has asked for yet. Units: bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveFlow {
    /// Cost of all messages that arrived.
    pub arrived: u64,
    /// Once `arrived` passes this, more is granted.
    grant_at: u64,
    /// Cost of those that wait for a receive.
    pub held: u64,
    /// The credit that was granted: `arrived` may not pass it.
    granted: u64,
    /// What the peer could have made us hold when it was last granted credit.
    window: u64,
    /// Cost of those that wait for a receive, and came by lanes that have ended.
    left_behind: u64,
}

impl ReceiveFlow {
    /// The flow of a lane that was just adopted.
    fn opened() -> Self {
        let (granted, window) = (CREDIT_FIRST, CREDIT_FIRST);
        ReceiveFlow { grant_at: CREDIT_FIRST / 2, granted, window, ..ReceiveFlow::default() }
    }
}

impl<T: Transport> Engine<T> {
    /// Whether `peer` has granted us `cost` bytes more.
    #[inline(always)]
    pub(crate) fn has_credit(&mut self, peer: PeerIndex, cost: u64) -> bool {
        self.peers[peer as usize].credit.covers(cost) || self.look_for_credit(peer, cost)
    }

    #[cold]
    #[inline(never)]
    fn look_for_credit(&mut self, peer: PeerIndex, cost: u64) -> bool {
        let granted = self.transport.credit(peer);
        let known = &mut self.peers[peer as usize].credit;
        known.granted = known.granted.max(granted);
        known.covers(cost)
    }

    /// How much of a message's prefix our credit at `peer` allows: a whole
    /// envelope and some payload, or nothing.
    pub(crate) fn prefix_within_credit(&mut self, peer: PeerIndex, wanted: usize) -> usize {
        let cost = wanted as u64 + ENVELOPE_COST;
        if self.has_credit(peer, cost) { wanted } else { 0 }
    }

    /// Charges a message that arrived, and says whom it comes from and what they are called.
    /// None if the peer had no credit for it.
    #[inline(always)]
    pub(crate) fn charge_arrival(
        &mut self,
        peer: PeerIndex,
        cost: u64,
    ) -> Option<(SourceIndex, u64)> {
        let record = &mut self.peers[peer as usize];
        let source = (record.matched_as, record.fi_addr);
        record.flow.arrived += cost;
        let covered = record.flow.arrived <= record.flow.grant_at || self.grant_more(peer);
        covered.then_some(source)
    }

    /// Notes that a message which arrived must be held until it is asked for.
    pub(crate) fn hold_charge(&mut self, peer: PeerIndex, cost: u64) {
        self.peers[peer as usize].flow.held += cost;
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.parked += cost;
        }
    }

    /// Releases the charge of a message that was held.
    pub(crate) fn release_charge(&mut self, message: &Unexpected) {
        if !message.is_left_behind {
            return self.release_held(message.peer, message.cost);
        }
        self.peers[message.peer as usize].flow.left_behind -= message.cost;
        self.left_behind -= message.cost;
    }

    /// Releases some of what a peer was charged that was held.
    pub(crate) fn release_held(&mut self, peer: PeerIndex, cost: u64) {
        self.peers[peer as usize].flow.held -= cost;
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.parked -= cost;
        }
    }

    /// Whether a message that nobody asked for yet, and that was charged, stays in its lane since what its
    /// sender has left behind, and others, is all that may be held. It would come again and again, and leave as
    /// much each time.
    pub(crate) fn leaves_too_much(&mut self, peer: PeerIndex, cost: u64) -> bool {
        let flow = &mut self.peers[peer as usize].flow;
        if flow.left_behind == 0 || self.left_behind < self.setup.unexpected_budget {
            return false;
        }
        flow.arrived -= cost;
        self.leave_for_the_moment();
        if self.shortage.tells_left_behind() {
            let address = self.peers[peer as usize].address;
            tracing::warn!(
                %address,
                "nobody has received what it left behind when it went, and that is all that \
                 FI_KESTREL_UNEXPECTED_BUDGET allows: what it sends waits"
            );
        }
        true
    }

    /// The flow of a peer that has no lane to us. Datagrams need none: to a group anybody sends.
    pub(crate) fn no_flow(&self) -> ReceiveFlow {
        let grant_at = if self.datagrams.is_some() { u64::MAX } else { 0 };
        ReceiveFlow { grant_at, ..ReceiveFlow::default() }
    }

    /// A lane from `peer` was adopted: its flow begins.
    pub(crate) fn open_flow(&mut self, peer: PeerIndex) {
        let grant_at = self.no_flow().grant_at;
        let mut flow = ReceiveFlow::opened();
        flow.grant_at = flow.grant_at.max(grant_at);
        let earlier = &self.peers[peer as usize].flow;
        flow.left_behind = earlier.left_behind;
        if self.datagrams.is_some() {
            // What it left the last time takes its place.
            flow.held = earlier.held;
        }
        self.windows += flow.window;
        let record = &mut self.peers[peer as usize];
        record.flow = flow;
        record.copies.note_heard();
        record.fetches.note_heard();
    }

    /// The lane from `peer` is gone, and nothing more arrives in its flow. What it left behind
    /// is no longer charged to that, and nobody is told when it is received.
    pub(crate) fn close_flow(&mut self, peer: PeerIndex) {
        let closed = self.no_flow();
        let flow = std::mem::replace(&mut self.peers[peer as usize].flow, closed);
        self.windows -= flow.window;
        if self.datagrams.is_some() {
            // Datagrams stay charged: who comes again and again has no more place than who stays.
            self.peers[peer as usize].flow.held = flow.held;
            return;
        }
        self.left_behind += flow.held;
        self.peers[peer as usize].flow.left_behind = flow.left_behind + flow.held;
        if flow.held == 0 {
            return;
        }
        for parked in self.unexpected.indices().collect::<Vec<_>>() {
            let message = &mut self.unexpected[parked];
            if message.peer == peer {
                message.is_left_behind = true;
                message.acknowledge = None;
            }
        }
    }

    /// A peer that had to send an envelope alone gets more, if there is more.
    #[cold]
    pub(crate) fn grant_starved(&mut self, peer: PeerIndex) {
        self.grant_more(peer);
    }

    /// Grants `peer` more: twice what it makes us hold, as far as the budget goes.
    #[cold]
    #[inline(never)]
    fn grant_more(&mut self, peer: PeerIndex) -> bool {
        let budget = self.setup.unexpected_budget;
        let flow = &mut self.peers[peer as usize].flow;
        if flow.arrived > flow.granted {
            return false;
        }
        let others = self.windows - flow.window;
        let wanted = (2 * flow.held + CREDIT_FIRST).max(CREDIT_STREAM);
        let held = others + self.left_behind;
        let window = wanted.min(budget.saturating_sub(held).max(CREDIT_FIRST));
        let released = flow.arrived - flow.held;
        flow.granted = flow.granted.max(released + window);
        self.windows = others + (flow.granted - released);
        flow.window = flow.granted - released;
        // Looked at again when half of what is left has arrived, or a little
        // later if the budget gives nothing now.
        flow.grant_at = flow.arrived + ((flow.granted - flow.arrived) / 2).max(1);
        let granted = flow.granted;
        self.transport.grant(peer, granted);
        true
    }
}
