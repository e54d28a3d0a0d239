//! The order of what is submitted. "For reliable communication, completion ordering only applies
//! to requests that target a single destination endpoint", so each peer has a line. "For unreliable
//! communication, completion ordering applies to all data transfer requests submitted to an
//! endpoint", so datagrams have one.

use crate::{
    attachment::Attachment,
    completion_queue::{Entry, ErrorEntry},
    engine::{
        Engine,
        order::Order,
        report::{Counted, sent_entry},
    },
    flags::Flags,
    transport::{PeerIndex, Transport},
    triggered::Tally,
};

/// How an operation of ours ended.
pub(crate) struct Outcome {
    pub counted: Counted,
    pub end: End,
}

/// What is told of it.
pub(crate) enum End {
    /// Its entry, if it writes one, and what counts it instead of the endpoint's counter.
    Success(Option<Entry>, Option<Tally>),
    Failure(ErrorEntry),
}

impl<T: Transport> Engine<T> {
    /// Has what is submitted from now on complete in order, if that is wanted.
    pub(crate) fn line_up_sends(&mut self) {
        let in_order = self.setup.transmit.in_order;
        self.orders.transmit = in_order.then(|| Box::new(Order::new()));
    }

    /// The line that an operation to `peer` waits in.
    fn line_to(&self, peer: PeerIndex) -> u32 {
        if self.datagrams.is_some() { 0 } else { peer }
    }

    /// Operations that are over and not reported: they have their place in the transmit queue
    /// until then.
    #[inline(always)]
    pub(crate) fn unreported(&self) -> usize {
        self.orders.transmit.as_ref().map_or(0, |order| order.held())
    }

    /// Gives an operation that is under way its place behind those before it.
    #[inline(always)]
    pub(crate) fn enter_line(&mut self, peer: PeerIndex, operation: u32) {
        if self.orders.transmit.is_some() {
            self.take_place(peer, operation);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_place(&mut self, peer: PeerIndex, operation: u32) {
        let line = self.line_to(peer);
        if let Some(order) = &mut self.orders.transmit {
            order.enter(line, operation);
            self.note_line(peer);
        }
    }

    /// Reports an operation that had a record, in its turn.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_in_turn(&mut self, peer: PeerIndex, operation: u32, outcome: Outcome) {
        let turn = match &mut self.orders.transmit {
            Some(order) => order.over(operation, outcome),
            None => Some(outcome),
        };
        self.report_from(peer, turn);
    }

    /// Reports an operation that had none, in its turn.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_behind(&mut self, peer: PeerIndex, outcome: Outcome) {
        let line = self.line_to(peer);
        let turn = match &mut self.orders.transmit {
            Some(order) => order.append(line, outcome),
            None => Some(outcome),
        };
        self.report_from(peer, turn);
    }

    /// Reports a send that has left at once, in its turn.
    pub(crate) fn report_sent_behind(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        context: u64,
        attachment: Option<Attachment>,
    ) {
        if self.orders.transmit.is_none() {
            return self.report_sent(flags, context, attachment);
        }
        let entry = sent_entry(flags, context, attachment);
        let end = End::Success(entry, None);
        self.report_behind(peer, Outcome { counted: Counted::Sends, end });
    }

    /// An operation that is canceled waits for nobody, nor does anybody wait for it.
    #[cold]
    pub(crate) fn leave_line(&mut self, operation: u32) {
        if let Some(order) = &mut self.orders.transmit {
            order.leave(operation);
        }
    }

    /// Reports what comes first, and those whose turn has come with that.
    fn report_from(&mut self, peer: PeerIndex, first: Option<Outcome>) {
        let (line, mut next) = (self.line_to(peer), first);
        while let Some(outcome) = next {
            self.report(outcome);
            next = self.orders.transmit.as_mut().and_then(|order| order.next(line));
        }
        self.note_line(peer);
    }

    pub(crate) fn report(&self, Outcome { counted, end }: Outcome) {
        match end {
            End::Success(entry, tally) => self.report_success(counted, entry, tally),
            End::Failure(error) => self.report_failure(counted, error),
        }
    }

    /// Sends to `peer` may not complete as soon as they have left while others wait for their
    /// turn; datagrams are always looked at, since another peer's may.
    fn note_line(&mut self, peer: PeerIndex) {
        let line = self.line_to(peer);
        let Some(order) = &self.orders.transmit else { return };
        let takes_turns = !order.is_empty(line) || self.datagrams.is_some();
        let Some(record) = self.peers.get_mut(peer as usize) else { return };
        if record.takes_turns != takes_turns {
            record.takes_turns = takes_turns;
            record.settle();
        }
    }
}
