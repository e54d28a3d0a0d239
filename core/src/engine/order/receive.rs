//! The order of what is matched: "Receive operations complete in the order in which they are
//! processed by the receive context, based on the receive side msg_order attribute". That order is
//! one of what comes from one peer, so each has a line; remote data of writes is part of it.
//!
//! What waits is not what is told but that it is to be told, so the buffer of a multi-receive is
//! released by the message that is reported last, wherever that one comes from.

use crate::{
    completion_queue::Entry,
    engine::{
        Engine,
        order::{Order, data::DataOrder},
        report::{Message, Side},
        unread::Late,
    },
    error::Cause,
    transport::{PeerIndex, Transport},
};

/// What became of a message that was matched.
pub(crate) enum Receipt {
    /// All of it is in its receive's buffer, from byte `start` on where there was `room`.
    Whole { receive: u32, message: Message, start: usize, room: usize },
    /// It failed when that many bytes had been placed.
    Failed { receive: u32, message: Message, placed: u64, why: Cause },
    /// The remote data of a write, which needs no receive.
    Written(Entry, Option<Late>),
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

    /// Tells what became of a message of `peer` in its turn: of one that was `incoming`, or that
    /// came at once.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_in_turn(
        &mut self,
        peer: PeerIndex,
        incoming: Option<u32>,
        receipt: Receipt,
    ) {
        let mut next = match (&mut self.orders.receive, incoming) {
            (Some(order), Some(incoming)) => order.over(incoming, receipt),
            (Some(order), None) => order.append(peer, receipt),
            (None, _) => Some(receipt),
        };
        while let Some(receipt) = next {
            self.tell(peer, receipt);
            next = self.orders.receive.as_mut().and_then(|order| order.next(peer));
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
            Receipt::Written(entry, late) => {
                self.push_received(peer, entry);
                if let Some(late) = late {
                    self.tell_late(peer, &late);
                }
            }
        }
    }
}
