//! Which side a peer is reached by: decided when it is connected, and anew each time.
//!
//! A peer of this host is looked for on the near side, and on the far one if nobody is there; any
//! other is looked for on the far side, whoever has taken its name here. A peer that is there and
//! refuses is not asked again elsewhere. Each look has its side's own deadline.

use std::{
    fmt,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    error::{Cause, Errno},
    transport::{PeerIndex, Transport, TransportEvent},
};

use super::{far::Far, here::is_beside, provider::Policy};

/// In a ticket: the offer is the far side's.
const FAR_TICKET: u64 = 1 << 63;
/// How long the near end of a peer is kept back that may have sent something by the far side: the
/// handshake that tells of it is the control thread's, and may be under way.
const HOLD_MAX: Duration = Duration::from_millis(100);

/// One of an endpoint's two transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Shared memory.
    Near,
    /// An RDMA device.
    Far,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Near => "shared memory",
            Side::Far => "RDMA",
        })
    }
}

/// How one peer is reached.
///
/// Invariant: no side holds packets for a direction that is not said to be its own here.
#[derive(Clone, Debug, Default)]
pub(super) struct Route {
    /// Where our packets leave.
    pub send: Option<Side>,
    /// Where the peer's arrive.
    pub receive: Option<Side>,
    /// Which side's answer to `connect` is awaited.
    asked: Option<Side>,
    address: Option<Address>,
    /// Why the near side does not do.
    not_near: Option<Cause>,
}

impl Route {
    fn uses(&self, side: Side) -> bool {
        [self.send, self.receive, self.asked].contains(&Some(side))
    }
}

fn not_here(address: Address) -> Cause {
    let reason = format!("{address} is not on this host");
    Cause { errno: Errno::HOSTUNREACH, reason }
}

fn not_wanted() -> Cause {
    let reason = "shared memory is not to be used".into();
    Cause { errno: Errno::HOSTUNREACH, reason }
}

impl<F: Transport> Far<F> {
    /// How `peer` is reached.
    #[inline]
    pub(super) fn route(&self, peer: PeerIndex) -> &Route {
        static UNKNOWN: Route =
            Route { send: None, receive: None, asked: None, address: None, not_near: None };
        self.routes.get(peer as usize).unwrap_or(&UNKNOWN)
    }

    fn route_mut(&mut self, peer: PeerIndex) -> &mut Route {
        let index = peer as usize;
        if self.routes.len() <= index {
            self.routes.resize_with(index + 1, Route::default);
        }
        &mut self.routes[index]
    }

    /// Whether `peer`'s packets leave here.
    pub(super) fn sends(&self, peer: PeerIndex) -> bool {
        self.route(peer).send == Some(Side::Far)
    }

    pub(super) fn connect(&mut self, near: &mut impl Transport, peer: PeerIndex, to: Address) {
        let (policy, own) = (self.policy, near.address());
        let route = self.route_mut(peer);
        route.address = Some(to);
        if route.asked.is_none() {
            route.not_near = match policy {
                Policy::Both if is_beside(own, to) => None,
                Policy::Both => Some(not_here(to)),
                Policy::Far => Some(not_wanted()),
            };
            route.asked = Some(if route.not_near.is_none() { Side::Near } else { Side::Far });
        }
        // A side that has not answered yet is still to be heard, whatever came in between.
        match route.asked {
            Some(Side::Near) => near.connect(peer, to),
            _ => self.transport.connect(peer, to),
        }
    }

    pub(super) fn adopt(&mut self, near: &mut impl Transport, peer: PeerIndex, ticket: u64) {
        let before = self.route(peer).receive;
        self.forget_end(peer);
        if ticket & FAR_TICKET == 0 {
            if before == Some(Side::Far) {
                self.transport.hang_up(peer);
            }
            near.adopt(peer, ticket);
            self.receive_by(peer, Some(Side::Near));
        } else {
            if before == Some(Side::Near) {
                near.hang_up(peer);
            }
            self.transport.adopt(peer, ticket & !FAR_TICKET);
            self.receive_by(peer, Some(Side::Far));
        }
    }

    fn receive_by(&mut self, peer: PeerIndex, side: Option<Side>) {
        let before = std::mem::replace(&mut self.route_mut(peer).receive, side);
        self.near_receivers -= usize::from(before == Some(Side::Near));
        self.near_receivers += usize::from(side == Some(Side::Near));
    }

    pub(super) fn disconnect(&mut self, peer: PeerIndex) {
        self.forget_end(peer);
        self.transport.disconnect(peer);
        self.receive_by(peer, None);
        self.route_mut(peer).send = None;
    }

    /// Whether nothing here and nothing of the far side names a peer any more, that the near side
    /// has nothing to say of.
    pub(super) fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        let Route { send, receive, asked, .. } = *self.route(peer);
        let is_there = [send, receive, asked].iter().any(Option::is_some);
        if is_there || !self.transport.forget_peer(peer) {
            return false;
        }
        self.forget_end(peer);
        if let Some(route) = self.routes.get_mut(peer as usize) {
            *route = Route::default();
        }
        true
    }

    pub(super) fn hang_up(&mut self, peer: PeerIndex) {
        self.transport.hang_up(peer);
        self.receive_by(peer, None);
    }

    /// What the engine hears of an event of the near side.
    pub(super) fn near_event(&mut self, event: TransportEvent) -> Option<TransportEvent> {
        match event {
            TransportEvent::Failed { peer, reason } if reason.errno == Errno::HOSTUNREACH => {
                self.look_far(peer, reason)
            }
            TransportEvent::Closed { peer } if self.route(peer).receive.is_none() => {
                self.held.push_back((peer, Instant::now()));
                None
            }
            event => self.event_of(Side::Near, event),
        }
    }

    /// The end that was kept back longest, if it was so long enough.
    pub(super) fn release(&mut self) -> Option<TransportEvent> {
        let &(peer, since) = self.held.front()?;
        if since.elapsed() < HOLD_MAX {
            return None;
        }
        self.held.pop_front();
        self.event_of(Side::Near, TransportEvent::Closed { peer })
    }

    /// Nobody waits for the end of `peer` any more: it is known where it sends by, which tells its
    /// end, or it is given up.
    fn forget_end(&mut self, peer: PeerIndex) {
        self.held.retain(|&(held, _)| held != peer);
    }

    /// Nobody is there on this host, but maybe elsewhere.
    fn look_far(&mut self, peer: PeerIndex, reason: Cause) -> Option<TransportEvent> {
        let route = self.route_mut(peer);
        let Some(to) = route.address else {
            return self.event_of(Side::Near, TransportEvent::Failed { peer, reason });
        };
        tracing::debug!(%to, "not on this host: {}", reason.reason);
        route.not_near = Some(reason);
        route.asked = Some(Side::Far);
        self.transport.connect(peer, to);
        None
    }

    /// What the engine hears of an event of the far side.
    pub(super) fn far_event(&mut self, event: TransportEvent) -> Option<TransportEvent> {
        self.event_of(Side::Far, event)
    }

    fn event_of(&mut self, side: Side, event: TransportEvent) -> Option<TransportEvent> {
        match event {
            TransportEvent::Connected { peer, .. } => {
                let route = self.route_mut(peer);
                (route.asked, route.not_near, route.send) = (None, None, Some(side));
                if let Some(address) = route.address {
                    tracing::info!(%address, "reached through {side}");
                }
                Some(event)
            }
            TransportEvent::Failed { peer, reason } => {
                let route = self.route_mut(peer);
                route.asked = None;
                let reason = both(route.not_near.take(), reason);
                Some(TransportEvent::Failed { peer, reason })
            }
            TransportEvent::Incoming { ticket, address, incarnation, key } => {
                let mark = if side == Side::Far { FAR_TICKET } else { 0 };
                let ticket = ticket | mark;
                Some(TransportEvent::Incoming { ticket, address, incarnation, key })
            }
            // Groups are the far side's alone.
            TransportEvent::Overheard { .. } => Some(event),
            // Those of this host still come, where they are near.
            TransportEvent::Down { reason, .. } => {
                let wholly = self.policy == Policy::Far;
                Some(TransportEvent::Down { reason, wholly })
            }
            // What the peer had sent by the other side may still come: that side tells its end.
            TransportEvent::Closed { peer }
                if self.route(peer).receive.is_some_and(|other| other != side) =>
            {
                None
            }
            TransportEvent::Died { peer }
            | TransportEvent::Lost { peer, .. }
            | TransportEvent::Closed { peer }
            | TransportEvent::Broken { peer, .. } => {
                // Of a side that the peer has left since, it is no news.
                self.route(peer).uses(side).then_some(event)
            }
        }
    }
}

/// Why neither side did. The error number is the more telling one.
fn both(near: Option<Cause>, far: Cause) -> Cause {
    match near {
        None => far,
        Some(near) => Cause {
            errno: far.errno,
            reason: format!("{}; through RDMA: {}", near.reason, far.reason),
        },
    }
}

/// Nobody is there on this host: says why nowhere else was looked.
pub(super) fn explain(event: TransportEvent, absence: Option<&Cause>) -> TransportEvent {
    match (event, absence) {
        (TransportEvent::Failed { peer, reason }, Some(absence))
            if reason.errno == Errno::HOSTUNREACH =>
        {
            let text =
                format!("{}; other hosts are out of reach: {}", reason.reason, absence.reason);
            let reason = Cause { errno: reason.errno, reason: text };
            TransportEvent::Failed { peer, reason }
        }
        (event, _) => event,
    }
}
