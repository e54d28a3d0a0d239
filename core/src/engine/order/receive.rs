//! The order of what is matched: "Receive operations complete in the order in which they are
//! processed by the receive context, based on the receive side msg_order attribute". That order is
//! one of what comes from one peer, so each has a line; remote data of writes is part of it.
//!
//! What waits is not what is told but that it is to be told, so the buffer of a multi-receive is
//! released by the message that is reported last, wherever that one comes from.
//!
//! A sender that begins a message, and does not finish it, could have others wait behind it without end.
//! So what waits is [`Owed`] something: the credit for its envelope, or an answer, or at least its place
//! among those that a sender may have under way. What a device writes waits for nothing of that.

use crate::{
    completion_queue::Entry,
    engine::{
        Engine,
        order::{Order, data::DataOrder},
        peer::Reply,
        report::{Message, Side},
    },
    error::Cause,
    protocol::arrive::UNDER_WAY_MAX,
    transport::{PeerIndex, Transport},
    wire::ENVELOPE_COST,
};

/// What became of a message that was matched.
pub(crate) enum Receipt {
    /// All of it is in its receive's buffer, from byte `start` on where there was `room`.
    Whole { receive: u32, message: Message, start: usize, room: usize },
    /// It failed when that many bytes had been placed.
    Failed { receive: u32, message: Message, placed: u64, why: Cause },
    /// The remote data of a write, which needs no receive.
    Written(Entry),
}

/// What a peer gets when what it has sent is told.
pub(crate) enum Owed {
    /// Nothing: it has its answer, and there is room for what waits.
    Nothing,
    /// The credit for an envelope.
    Credit,
    /// A place among those that it may have under way, and the word that it waits for, if it does.
    Late(Option<Reply>),
}

/// As many late ones of a peer as nobody can have: operations of both kinds, those whose places were given back
/// when they were given up among them.
const LATE_MAX: u32 = 2 * UNDER_WAY_MAX as u32;

/// What waits for its turn.
pub(crate) struct Waiting {
    receipt: Receipt,
    owed: Owed,
}

impl<T: Transport> Engine<T> {
    /// Has what is matched from now on complete in order, and its data written in order, as far as
    /// either is wanted.
    pub(crate) fn line_up_receives(&mut self) {
        let Side { in_order, data_in_order, .. } = self.setup.receive;
        self.receives_in_order = in_order || data_in_order;
        self.is_careful = self.receives_in_order || self.setup.source_errors;
        self.orders.receive = in_order.then(|| Box::new(Order::new()));
        self.orders.data = data_in_order.then(Box::<DataOrder>::default);
    }

    /// A message that is still to arrive was matched: it has its place from now on, if it had none
    /// while it was held.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_receive_line(&mut self, incoming: u32) {
        let peer = self.incoming[incoming].peer;
        if let Some(order) = self.orders.receive.as_mut().filter(|order| !order.has(incoming)) {
            order.enter(peer, incoming);
        }
        self.note_arriving(peer, incoming);
    }

    /// Tells what became of a message of `peer` in its turn, and then gives it what it is owed: of one
    /// that was `incoming`, or that came at once.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_in_turn(
        &mut self,
        peer: PeerIndex,
        incoming: Option<u32>,
        receipt: Receipt,
        owed: Owed,
    ) {
        // It is kept from it first, as of all that waits.
        match owed {
            Owed::Nothing => {}
            Owed::Credit => self.hold_charge(peer, ENVELOPE_COST),
            Owed::Late(_) => self.peers[peer as usize].late += 1,
        }
        let waiting = Waiting { receipt, owed };
        let mut next = match (&mut self.orders.receive, incoming) {
            (Some(order), Some(incoming)) => order.over(incoming, waiting),
            (Some(order), None) => order.append(peer, waiting),
            (None, _) => Some(waiting),
        };
        while let Some(Waiting { receipt, owed }) = next {
            self.tell(peer, receipt);
            match owed {
                Owed::Nothing => {}
                Owed::Credit => self.release_held(peer, ENVELOPE_COST),
                Owed::Late(answer) => {
                    self.peers[peer as usize].late -= 1;
                    if let Some(reply) = answer {
                        self.reply(peer, reply);
                    }
                }
            }
            next = self.orders.receive.as_mut().and_then(|order| order.next(peer));
        }
    }

    /// Whether what comes from `peer` without credit would wait for its turn, beyond the budget for unexpected
    /// messages: it is answered late then.
    pub(crate) fn is_late(&self, peer: PeerIndex) -> bool {
        let order = self.orders.receive.as_ref();
        order.is_some_and(|order| !order.is_empty(peer) && order.held() >= self.unread.most())
    }

    /// Whether more of `peer` is late than anybody can have under way.
    pub(crate) fn is_too_late(&self, peer: PeerIndex) -> bool {
        self.peers[peer as usize].late > LATE_MAX
    }

    /// A write of `peer` may be late.
    pub(crate) fn check_late(&mut self, peer: PeerIndex) {
        if self.is_too_late(peer) {
            self.violation(peer, "it goes on behind a message that it does not finish");
        }
    }

    fn tell(&mut self, peer: PeerIndex, receipt: Receipt) {
        match receipt {
            Receipt::Whole { receive, message, start, room } => {
                self.report_whole(receive, &message, start, room);
            }
            Receipt::Failed { receive, message, placed, why } => {
                self.report_arriving_failed(receive, &message, placed, &why);
            }
            Receipt::Written(entry) => self.push_received(peer, entry),
        }
    }
}
