//! One endpoint, two transports: a near one, which reaches peers of this host, and a far one,
//! which may reach all others. Generic over both, and chosen without `dyn`.
//!
//! In reading order: how endpoints are opened at one address of both ([`provider`]), which of
//! the two a peer is reached by ([`route`]), and which addresses are this host's ([`here`]), what the
//! endpoint keeps of its far side ([`far`]), which side each call is for ([`transport`], [`windows`],
//! [`multicast`]; by [`sides`]), one bell for both ([`bell`]), and what was sent through each ([`traffic`]).
//!
//! The near side is the fast one, so it pays nothing for the far one: a packet is offered to it
//! first, and it answers for its own peers alone; a poll looks at it first. Whether there is a
//! far side at all is asked where the near one has nothing to say.
//!
//! Order and completions are core's, and need one thing of us: that each direction of a peer is
//! on one transport at a time. The two directions may differ; both transports tell peers the same
//! incarnation, so core knows one peer by either.

#[allow(unsafe_code)]
mod bell;
mod far;
pub(crate) mod here;
mod multicast;
pub mod provider;
pub(crate) mod route;
mod sides;
pub mod traffic;
mod transport;
mod windows;

use std::cell::Cell;

use kestrel_core::{
    error::Cause,
    memory::Piece,
    transport::{Arrival, PeerIndex, Transport},
    wire::Head,
};

use far::Far;
pub use provider::CompositeProvider;
pub use route::Side;
use traffic::Sent;
pub use traffic::Traffic;

/// Whose packet is next, and whose was last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The near side's: all there ever is without a far one.
    Near,
    /// The last packet was the far side's.
    Far,
    /// The near side has kept the far one waiting for some polls.
    FarIsDue,
}

/// An endpoint's near transport, and the far one if there is one.
pub struct Composite<N: Transport, F: Transport> {
    near: N,
    turn: Cell<Turn>,
    /// What the near side took.
    near_sent: Sent,
    far: Option<Box<Far<F>>>,
    /// Why there is no far side.
    absence: Option<Cause>,
}

impl<N: Transport, F: Transport> Composite<N, F> {
    fn new(near: N, far: Option<Box<Far<F>>>, absence: Option<Cause>) -> Self {
        Composite { near, turn: Cell::new(Turn::Near), near_sent: Sent::default(), far, absence }
    }

    /// What was sent through each side so far.
    pub fn traffic(&self) -> Traffic {
        let far = self.far.as_ref().map(|far| far.sent);
        Traffic { near: self.near_sent, far: far.unwrap_or_default() }
    }

    /// The side that packets to `peer` leave by; none if it is not connected.
    pub fn serves(&self, peer: PeerIndex) -> Option<Side> {
        match &self.far {
            Some(far) => far.route(peer).send,
            None => Some(Side::Near),
        }
    }

    /// Why there is no far side, if there is none.
    pub fn absence(&self) -> Option<&Cause> {
        self.absence.as_ref()
    }

    #[cold]
    #[inline(never)]
    fn push_far(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        self.far.as_mut().is_some_and(|far| far.push(peer, head, word, words, payload))
    }

    /// The far side spoke last, or it is due: it is asked first, but not for ever.
    #[cold]
    #[inline(never)]
    fn arrival_far_first(&mut self) -> Option<Arrival> {
        let turn = self.turn.replace(Turn::Near);
        let Some(far) = &mut self.far else {
            return self.near.arrival();
        };
        if !far.may_go_on(turn == Turn::FarIsDue) {
            return self.near.arrival().or_else(|| self.arrival_of_far());
        }
        let Some(arrival) = far.poll() else {
            return self.near.arrival();
        };
        self.turn.set(Turn::Far);
        Some(arrival)
    }

    /// The near side has nothing.
    #[inline(never)]
    fn arrival_of_far(&mut self) -> Option<Arrival> {
        let far = self.far.as_mut()?;
        if !far.is_worth_a_look() {
            return None;
        }
        let arrival = far.poll()?;
        self.turn.set(Turn::Far);
        Some(arrival)
    }

    /// The far side, if the last packet was its own.
    #[inline(always)]
    fn speaking_far(&self) -> Option<&Far<F>> {
        if self.turn.get() == Turn::Far { self.far.as_deref() } else { None }
    }
}

impl<N: Transport, F: Transport> Drop for Composite<N, F> {
    fn drop(&mut self) {
        tracing::info!(address = %self.address(), "closed; sent {}", self.traffic());
    }
}
