//! The side of a handshake that connects, and will send.
//!
//! - [`turns`]: who may begin; [`way`]: how the next attempt goes;
//! - [`tcp`]: an attempt over TCP; [`managed`]: one through the connection manager (rdma_cm).

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use kestrel_core::{address::canonical, auth_key::KeyNumber};
use rustix::io::Errno;

mod managed;
mod tcp;
mod turns;
mod way;

use self::{managed::Asking, tcp::Asked, way::Way};
use super::{
    ManagedIdOf,
    error::ConnectError,
    line::Line,
    offer::{Joined, Offer},
    socket::Socket,
    thread::ControlThread,
};
use crate::{
    receive_pool::BUFFER_BYTES,
    station::{PeerIdentity, StationEvent},
    verbs::Verbs,
};

/// How long nobody may listen at an address before that is an error: an endpoint that is being
/// restarted is back by then.
const NOBODY_MAX: Duration = Duration::from_millis(500);
/// Between two attempts: at first, and at last.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// Sends that a connection can have under way. Devices make room for one more, and for a power of two.
pub const SENDS_MAX: u32 = 63;

/// A connect of ours.
pub(super) struct Outgoing<V: Verbs> {
    pub station: u64,
    request: u32,
    pub to: SocketAddr,
    /// Which key is proved.
    key: KeyNumber,
    /// When its first turn came, from when on its time counts: the peer is not to blame for a queue of ours.
    since: Instant,
    deadline: Instant,
    attempts: u32,
    /// Since when nobody listens.
    nobody_since: Option<Instant>,
    obstacle: String,
    /// The kernel said so at the last attempt: a host that does not answer yet, for instance
    /// since its cable has just been plugged in.
    no_route: bool,
    way: Way,
    /// It is one of those whose turn it is.
    has_turn: bool,
    step: Step<V>,
    /// How long that may take.
    until: Instant,
}

/// How far it has come.
enum Step<V: Verbs> {
    /// For its turn.
    Waiting,
    /// For the next attempt.
    Pausing,
    /// For TCP.
    Connecting(Socket),
    /// For the peer's nonce.
    Greeting(Socket, Vec<u8>),
    /// For the peer's queue pair.
    Accept(Box<Asked<V>>),
    /// For the connection manager to find the way.
    Resolving(ManagedIdOf<V>),
    /// For the peer's answer through it.
    Asking(Box<Asking<V>>),
}

impl<V: Verbs> Step<V> {
    fn socket(&self) -> Option<&Socket> {
        match self {
            Step::Waiting | Step::Pausing | Step::Resolving(_) | Step::Asking(_) => None,
            Step::Connecting(socket) | Step::Greeting(socket, _) => Some(socket),
            Step::Accept(asked) => Some(&asked.socket),
        }
    }
}

impl<V: Verbs> ControlThread<V> {
    pub(super) fn ask_to_connect(
        &mut self,
        station: u64,
        request: u32,
        to: SocketAddr,
        key: KeyNumber,
    ) {
        let Some(record) = self.stations.get(&station) else {
            return;
        };
        let way = Way::first(record.managed.is_some());
        let since = Instant::now();
        let deadline = since + record.connect_timeout;
        let id = self.next_id();
        let outgoing = Outgoing {
            station,
            request,
            to: canonical(to),
            key,
            since,
            deadline,
            attempts: 0,
            nobody_since: None,
            obstacle: "it waits for its turn behind others".into(),
            no_route: false,
            way,
            has_turn: false,
            step: Step::Waiting,
            until: deadline,
        };
        self.outgoing.insert(id, outgoing);
        self.line_up(id);
    }

    fn attempt(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        outgoing.attempts += 1;
        if outgoing.way.is_by_manager() { self.attempt_managed(id) } else { self.attempt_tcp(id) }
    }

    /// Not there: the next attempt is made in the other way, if there are two.
    fn nobody_listens(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let (to, now) = (outgoing.to, Instant::now());
        let waited = now - *outgoing.nobody_since.get_or_insert(now);
        if waited >= NOBODY_MAX {
            return self.fail(id, ConnectError::Nobody { to, waited });
        }
        outgoing.way.nobody_there();
        self.try_again(id, "nobody listens".into());
    }

    /// The attempt came to nothing, and another may not.
    fn try_again(&mut self, id: u64, obstacle: String) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let step = std::mem::replace(&mut outgoing.step, Step::Pausing);
        outgoing.obstacle = obstacle;
        let pause = (PAUSE_MIN * 2u32.pow(outgoing.attempts.min(5))).min(PAUSE_MAX);
        // Many who wait do not return as one.
        let pause = pause + PAUSE_MIN * (id % 8) as u32 / 4;
        let at = outgoing.deadline.min(Instant::now() + pause);
        if let Some(socket) = step.socket() {
            self.close(socket);
        }
        self.end_turn(id);
        self.wait_until(id, at);
    }

    /// Time for the next attempt: its turn comes behind the others'.
    fn step_is_over(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut outgoing.step, Step::Pausing) {
            Step::Resolving(_) | Step::Asking(_) => {
                let why = outgoing.obstacle.clone();
                outgoing.leave_manager(&why);
            }
            Step::Connecting(socket) => {
                outgoing.way.tcp_led_nowhere();
                self.close(&socket);
            }
            _ => {}
        }
        self.line_up(id);
    }

    pub(super) fn outgoing_timer(&mut self, id: u64) {
        if !self.is_late(id) {
            return;
        }
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let (now, until, deadline) = (Instant::now(), outgoing.until, outgoing.deadline);
        if now < deadline {
            self.end_turn(id);
            // Beside those whose turn it is.
            return if now < until { self.wait_until(id, until) } else { self.step_is_over(id) };
        }
        let to = outgoing.to;
        let error = if outgoing.no_route {
            ConnectError::Route { to, source: Errno::HOSTUNREACH.into() }
        } else {
            let (after, obstacle) = (outgoing.since.elapsed(), outgoing.obstacle.clone());
            ConnectError::TimedOut { to, after, obstacle }
        };
        self.fail(id, error);
    }

    /// Takes a connect out of every table; its socket is closed.
    pub(super) fn take_outgoing(&mut self, id: u64) -> Option<Outgoing<V>> {
        self.end_turn(id);
        let outgoing = self.outgoing.remove(&id)?;
        self.set_timer(id, None);
        if matches!(outgoing.step, Step::Waiting) {
            self.waiting.retain(|waiting| *waiting != id);
        }
        if let Some(socket) = outgoing.step.socket() {
            self.close(socket);
        }
        Some(outgoing)
    }

    pub(super) fn fail(&mut self, id: u64, error: ConnectError) {
        let Some(outgoing) = self.take_outgoing(id) else {
            return;
        };
        let request = outgoing.request;
        if let Some(record) = self.stations.get(&outgoing.station) {
            record.shared.push(StationEvent::Failed { request, error });
        }
    }

    /// The connection stands.
    fn finish(
        &mut self,
        id: u64,
        line: Line<V>,
        offer: Offer<V>,
        incarnation: u64,
        joined: Joined<V>,
    ) {
        self.end_turn(id);
        let Some(Outgoing { station, request, to, key, .. }) = self.outgoing.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        let peer = PeerIdentity { address: to, incarnation, key };
        if line.is_managed() {
            tracing::info!(%to, "connected through rdma_cm");
        }
        self.keep_link(id, station, line, None);
        if let Some(record) = self.stations.get(&station) {
            record.shared.push(offer.taken(request, id, peer, joined));
        }
        self.look_at_link(id);
    }
}

/// Whether the peer's answer is what was asked for: it proves our key, comes from the endpoint that
/// was meant (`from` is what it calls itself), and has packets like ours.
fn check_answer(
    to: SocketAddr,
    proved: bool,
    is_meant: bool,
    from: SocketAddr,
    buffer_bytes: u32,
) -> Result<(), ConnectError> {
    if !proved {
        Err(ConnectError::Unproven { to })
    } else if !is_meant {
        Err(ConnectError::OtherEndpoint { to, named: from })
    } else if buffer_bytes != BUFFER_BYTES as u32 {
        Err(ConnectError::OtherLimits { to, ours: BUFFER_BYTES as u32, theirs: buffer_bytes })
    } else {
        Ok(())
    }
}
