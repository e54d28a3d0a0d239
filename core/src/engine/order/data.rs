//! The order of data: FI_ORDER_DATA. Reference: fi_endpoint(3), "comp_order" of receive contexts.
//!
//! "When set, this bit indicates that received data is written into memory in order. Data ordering
//! applies to memory accessed as part of a single operation and between operations if message
//! ordering is guaranteed."
//!
//! - D1: of one operation every byte is stored after those before it
//!   ([`Piece::copy_in_order_to`]), by this engine alone. So nobody helps with a message, no adapter
//!   reads it, and no peer writes through a window: all comes in packets, which are in order.
//! - D2: messages of one peer are written in the order in which they are matched. While the rest of
//!   one is on its way, what is matched behind it is held like a message that nobody has asked for,
//!   and charged like it: so a peer can make us hold no more than before. Its rest is asked for when
//!   its turn has come. What is first never waits for what is behind it, nor for a receive, so each
//!   turn comes, or the peer is lost.
//! - D3: writes and atomic operations of peers are executed as they arrive. A message finds those
//!   before it done. One that arrives behind a message may be done before the rest of that: nothing
//!   bounds how much of it would have to be held. So a receive context that keeps the order of data
//!   does not have FI_ORDER_WAS.

use std::collections::{HashSet, VecDeque};

use rustc_hash::FxHashMap;

use crate::{
    engine::{Engine, report::Message},
    error::Cause,
    memory::Piece,
    operation::{Body, Target, Unexpected},
    protocol::place,
    transport::{PeerIndex, Transport},
};

/// In the name of a place among completions: it is one of a message that is held.
const HELD: u32 = 1 << 31;

/// What is written into the buffers of receives, for each peer that has begun a message.
#[derive(Default)]
pub(crate) struct DataOrder {
    lines: FxHashMap<u64, Line>,
}

#[derive(Default)]
struct Line {
    /// The incoming message whose rest is on its way.
    first: Option<u32>,
    /// Messages take their turns now, one after the other.
    moves: bool,
    /// Those that were matched behind it.
    held: VecDeque<Held>,
}

impl DataOrder {
    /// Those that have begun a message.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerIndex> {
        self.lines.keys().map(|&peer| peer as PeerIndex)
    }
}

/// A message that was matched before its turn.
struct Held {
    target: Target,
    /// Where it is parked.
    parked: u32,
}

impl<T: Transport> Engine<T> {
    /// How payload of the last arrival, from an offset on, is copied over where it belongs.
    #[inline]
    pub(crate) fn placing(&self) -> fn(&T, usize, Piece) {
        if self.orders.data.is_some() { place::in_order } else { T::copy_out }
    }

    /// How what was parked is copied to where it belongs.
    pub(crate) fn copying(&self) -> fn(Piece, Piece) {
        if self.orders.data.is_some() { Piece::copy_in_order_to } else { Piece::copy_to }
    }

    /// Whether a message of `peer` that is matched now has to wait for the rest of another.
    #[inline]
    pub(crate) fn waits_for_data(&self, peer: PeerIndex) -> bool {
        self.orders.data.as_ref().is_some_and(|order| order.lines.contains_key(&peer.into()))
    }

    /// The rest of a message is on its way to its buffer.
    pub(crate) fn note_arriving(&mut self, peer: PeerIndex, incoming: u32) {
        if let Some(order) = &mut self.orders.data {
            order.lines.entry(peer.into()).or_default().first = Some(incoming);
        }
    }

    /// Holds a parked message, which is in no matcher any more, for the receive that it has matched.
    #[cold]
    #[inline(never)]
    pub(crate) fn hold(&mut self, target: Target, parked: u32) {
        let Unexpected { peer, arriving, .. } = self.unexpected[parked];
        if let Some(incoming) = arriving {
            self.incoming[incoming].target = Target::Unexpected(parked);
        }
        if let Some(order) = &mut self.orders.receive {
            order.enter(peer, parked | HELD);
        }
        if let Some(order) = &mut self.orders.data {
            let line = order.lines.entry(peer.into()).or_default();
            line.held.push_back(Held { target, parked });
        }
    }

    /// Holds a message back that came at once, and whose turn it is not: the last arrival.
    #[cold]
    #[inline(never)]
    pub(crate) fn hold_whole(&mut self, target: Target, message: &Message) {
        let unexpected = self.set_aside(message, Body::new(message.total), None);
        self.hold_charge(message.peer, unexpected.cost);
        let parked = self.unexpected.insert(unexpected);
        self.hold(target, parked);
    }

    /// A message is wholly written: those behind it take their turns, up to one whose rest has to
    /// be asked for.
    pub(crate) fn write_next(&mut self, peer: PeerIndex, incoming: u32) {
        let Some(line) = self.line_of_data(peer).filter(|line| line.first == Some(incoming)) else {
            return;
        };
        line.first = None;
        // One that takes its turn may be over at once: whoever gave it the turn goes on.
        if std::mem::replace(&mut line.moves, true) {
            return;
        }
        while let Some(line) = self.line_of_data(peer) {
            if line.first.is_some() {
                line.moves = false;
                return;
            }
            match line.held.pop_front() {
                Some(held) => self.write_held(&held),
                None => drop(self.take_line_of_data(peer)),
            }
        }
    }

    fn line_of_data(&mut self, peer: PeerIndex) -> Option<&mut Line> {
        self.orders.data.as_mut()?.lines.get_mut(&peer.into())
    }

    fn take_line_of_data(&mut self, peer: PeerIndex) -> Option<Line> {
        self.orders.data.as_mut()?.lines.remove(&peer.into())
    }

    fn write_held(&mut self, held: &Held) {
        let mut place = held.parked | HELD;
        if let Some(incoming) = self.unexpected[held.parked].arriving {
            if let Some(order) = &mut self.orders.receive {
                order.rename(place, incoming);
            }
            place = incoming;
        }
        self.write_parked(held.target, held.parked, Some(place));
    }

    /// `peer` is gone, and with it the rest of those messages that are `lost`. What had come of
    /// others is received.
    pub(crate) fn end_line_of_data(
        &mut self,
        peer: PeerIndex,
        lost: &mut HashSet<u32>,
        why: &Cause,
    ) {
        let line = self.take_line_of_data(peer);
        for held in line.into_iter().flat_map(|line| line.held) {
            if lost.remove(&held.parked) {
                self.lose_held(&held, why);
            } else {
                self.write_held(&held);
            }
        }
    }

    /// The rest of a message of `peer` never comes. Returns whether it was held for a receive, which has
    /// failed now.
    pub(crate) fn fail_held(&mut self, peer: PeerIndex, parked: u32, why: &Cause) -> bool {
        let held = self.line_of_data(peer).and_then(|line| {
            let nth = line.held.iter().position(|held| held.parked == parked)?;
            line.held.remove(nth)
        });
        held.inspect(|held| self.lose_held(held, why)).is_some()
    }

    fn lose_held(&mut self, held: &Held, why: &Cause) {
        let Target::Receive { receive, .. } = held.target else { return };
        let message = self.unexpected.remove(held.parked);
        self.release_charge(&message);
        let place = Some(held.parked | HELD);
        self.fail_arriving(place, receive, &message.summary(), 0, why);
    }
}
