//! What an endpoint keeps of its far side: the transport, the routes of its peers, and how often
//! it is looked at. Boxed, and absent where there is no far side.

use std::{cell::Cell, collections::VecDeque, time::Instant};

use kestrel_core::{
    memory::Piece,
    transport::{Arrival, PeerIndex, Service, Transport},
    window::Found,
    wire::Head,
};

use super::{Turn, bell::Bells, provider::Policy, route::Route, traffic::Sent};

/// Empty polls of the near side between two looks at a far side that is silent.
const POLLS_PER_LOOK: u32 = 8;
/// Looks in vain after which a far side that spoke counts as silent.
const LOOKS_IN_VAIN: u32 = 256;
/// Polls with something near after which the far side is looked at all the same.
const POLLS_UNTIL_DUE: u32 = 16;
/// Packets in a row from the far side while the near one may wait.
const STREAK_MAX: u32 = 32;

/// The far side of an endpoint.
pub(super) struct Far<F: Transport> {
    pub(super) transport: F,
    pub(super) bells: Bells,
    /// What the packets of both sides can rely on.
    pub(super) service: Service,
    pub(super) policy: Policy,
    pub(super) routes: Vec<Route>,
    /// Who has closed the near side and was not heard on either, and since when that is known:
    /// oldest first.
    pub(super) held: VecDeque<(PeerIndex, Instant)>,
    /// What the far side took.
    pub(super) sent: Sent,
    /// Receiving sides that are near: with none, every poll looks far.
    pub(super) near_receivers: usize,
    /// The most payload of a packet.
    packet_max: usize,
    /// Looks in vain that are left until the far side counts as silent.
    interest: u32,
    /// Empty polls until the next look.
    rest: u32,
    /// Polls since the last look.
    passed: Cell<u32>,
    streak: u32,
    /// The near side has gone on with its operations, and what the far one has finished is being
    /// taken.
    near_went_on: bool,
}

impl<F: Transport> Far<F> {
    pub(super) fn new(transport: F, bells: Bells, service: Service, policy: Policy) -> Far<F> {
        let limits = transport.limits();
        Far {
            packet_max: limits.single.max(limits.fragment),
            transport,
            bells,
            service,
            policy,
            routes: Vec::new(),
            held: VecDeque::new(),
            sent: Sent::default(),
            near_receivers: 0,
            interest: LOOKS_IN_VAIN,
            rest: 0,
            passed: Cell::new(0),
            streak: 0,
            near_went_on: false,
        }
    }

    /// Pushes a packet, if its peer is far, connected, and has room for all of it.
    pub(super) fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        let bytes = payload.len();
        let fits = bytes <= self.packet_max;
        if !fits || !self.sends(peer) || !self.transport.push(peer, head, word, words, payload) {
            return false;
        }
        self.sent.count(head, words, bytes);
        true
    }

    /// What either side has finished. The near side goes on with a long operation by being asked,
    /// once for all that the far side has finished.
    pub(super) fn finished(&mut self, near: &mut impl Transport) -> Found {
        if !std::mem::take(&mut self.near_went_on) {
            match near.finished() {
                Found::Progress => {}
                Found::Nothing => return self.transport.finished(),
                finished => return finished,
            }
        }
        let found = self.transport.finished();
        self.near_went_on = matches!(found, Found::Finished(_));
        if self.near_went_on { found } else { Found::Progress }
    }

    /// Looks for a packet.
    pub(super) fn poll(&mut self) -> Option<Arrival> {
        self.passed.set(0);
        let arrival = self.transport.arrival();
        if arrival.is_some() {
            self.interest = LOOKS_IN_VAIN;
            self.streak += 1;
        } else {
            self.interest = self.interest.saturating_sub(1);
            self.rest = POLLS_PER_LOOK;
            self.streak = 0;
        }
        arrival
    }

    /// Whether the far side is asked before the near one: if it is due, or in the middle of a
    /// streak that has not become too long.
    pub(super) fn may_go_on(&mut self, due: bool) -> bool {
        if !due && self.streak >= STREAK_MAX {
            self.streak = 0;
            return false;
        }
        true
    }

    /// Whether an empty poll of the near side is followed by a look here: always while there is
    /// talk here or none near, else now and then.
    pub(super) fn is_worth_a_look(&mut self) -> bool {
        self.rest = self.rest.saturating_sub(1);
        self.interest > 0 || self.near_receivers == 0 || self.rest == 0
    }

    /// A poll of the engine begins: makes the far side due if there was always something near.
    /// Whether the far side has an event.
    pub(super) fn passes(&self, turn: &Cell<Turn>) -> bool {
        let passed = self.passed.get() + 1;
        self.passed.set(passed);
        if passed > POLLS_UNTIL_DUE && turn.get() == Turn::Near {
            turn.set(Turn::FarIsDue);
        }
        self.transport.has_event()
    }
}
