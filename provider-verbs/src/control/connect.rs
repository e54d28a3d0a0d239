//! The side of a handshake that connects, and will send.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use kestrel_core::{
    address::canonical,
    auth_key::{AuthKey, KeyNumber},
};
use rustix::{event::epoll::EventFlags, io::Errno};

mod managed;

use self::managed::{Asking, STEP_WAIT};
use super::{
    ManagedIdOf,
    error::ConnectError,
    line::Line,
    offer::{Joined, Offer},
    proof::{self, Speaker},
    random,
    socket::{self, Received},
    thread::ControlThread,
    wire::{Accept, Hello, Message, Nonce, RejectReason, WireError, is_one_place},
};
use crate::{
    receive_pool::BUFFER_BYTES,
    station::{PeerIdentity, StationEvent},
    verbs::Verbs,
};

/// Connects that have a socket at a time; the others wait.
const CONNECTING_MAX: usize = 32;
/// How long nobody may listen at an address before that is an error: an endpoint that is being
/// restarted is back by then.
const NOBODY_MAX: Duration = Duration::from_millis(500);
/// Between two attempts: at first, and at last.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// Sends that a connection can have under way.
pub const SENDS_MAX: u32 = 64;

/// A connect of ours.
pub(super) struct Outgoing<V: Verbs> {
    pub station: u64,
    request: u32,
    to: SocketAddr,
    /// Which key is proved.
    key: KeyNumber,
    since: Instant,
    deadline: Instant,
    attempts: u32,
    /// Since when nobody listens.
    nobody_since: Option<Instant>,
    obstacle: String,
    /// The kernel said so at the last attempt: a host that does not answer yet, for instance
    /// since its cable has just been plugged in.
    no_route: bool,
    /// The next attempt goes through the connection manager.
    by_manager: bool,
    /// The last attempt through it found nobody, maybe since the peer was just being opened.
    manager_was_early: bool,
    step: Step<V>,
}

/// How far it has come.
enum Step<V: Verbs> {
    /// For its turn.
    Waiting,
    /// For the next attempt.
    Pausing,
    /// For TCP.
    Connecting(TcpStream),
    /// For the peer's nonce.
    Greeting(TcpStream, Vec<u8>),
    /// For the peer's queue pair.
    Accept(Box<Asked<V>>),
    /// For the connection manager to find the way.
    Resolving(ManagedIdOf<V>),
    /// For the peer's answer through it.
    Asking(Box<Asking<V>>),
}

/// What was sent, and what for.
struct Asked<V: Verbs> {
    socket: TcpStream,
    input: Vec<u8>,
    offer: Offer<V>,
    /// Theirs and ours.
    nonces: [Nonce; 2],
}

impl<V: Verbs> Step<V> {
    fn socket(&self) -> Option<&TcpStream> {
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
        let by_manager = record.managed.is_some();
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
            by_manager,
            manager_was_early: false,
            step: Step::Waiting,
        };
        self.outgoing.insert(id, outgoing);
        self.set_timer(id, Some(deadline));
        self.waiting.push_back(id);
    }

    /// Lets connects begin whose turn has come.
    pub(super) fn begin_waiting(&mut self) {
        while self.connecting < CONNECTING_MAX
            && let Some(id) = self.waiting.pop_front()
        {
            if let Some(outgoing) = self.outgoing.get_mut(&id) {
                // It may be over at once, and is counted then.
                outgoing.step = Step::Pausing;
                self.connecting += 1;
                self.attempt(id);
            }
        }
    }

    fn attempt(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        outgoing.attempts += 1;
        if outgoing.by_manager {
            return self.attempt_managed(id);
        }
        let (to, mut until) = (outgoing.to, outgoing.deadline);
        if record.managed.is_some() {
            // TCP may not pass between the hosts.
            until = until.min(Instant::now() + STEP_WAIT);
        }
        match socket::begin_connect(record.address, to, record.silence_max) {
            Ok(socket) => {
                let watched = self.watch(id, &socket, EventFlags::OUT);
                if let Some(outgoing) = self.outgoing.get_mut(&id) {
                    outgoing.step = Step::Connecting(socket);
                    outgoing.obstacle = "its host is silent".into();
                }
                self.set_timer(id, Some(until));
                if let Err(source) = watched {
                    let call = "epoll_ctl";
                    self.fail(id, ConnectError::System { to, call, source });
                }
            }
            Err(errno) => self.connect_failed(id, errno.into()),
        }
    }

    fn connect_failed(&mut self, id: u64, source: io::Error) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let to = outgoing.to;
        match Errno::from_io_error(&source) {
            Some(Errno::CONNREFUSED) => self.nobody_listens(id),
            Some(Errno::CONNRESET | Errno::AGAIN | Errno::ADDRNOTAVAIL | Errno::TIMEDOUT) => {
                self.try_again(id, source.to_string());
            }
            Some(Errno::HOSTUNREACH) => {
                outgoing.no_route = true;
                self.ask_manager_next(id);
                self.try_again(id, source.to_string());
            }
            Some(Errno::NETUNREACH) => self.fail(id, ConnectError::Route { to, source }),
            _ => self.fail(id, ConnectError::System { to, call: "connecting", source }),
        }
    }

    /// TCP has not led to the peer: the next attempt goes through the connection manager, if there is one.
    fn ask_manager_next(&mut self, id: u64) {
        if let Some(outgoing) = self.outgoing.get_mut(&id) {
            let record = self.stations.get(&outgoing.station);
            outgoing.by_manager = record.is_some_and(|record| record.managed.is_some());
        }
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
        let record = self.stations.get(&outgoing.station);
        let has_manager = record.is_some_and(|record| record.managed.is_some());
        outgoing.manager_was_early = outgoing.by_manager;
        outgoing.by_manager = has_manager && !outgoing.by_manager;
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
        self.set_timer(id, Some(at));
    }

    pub(super) fn outgoing_timer(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        if Instant::now() < outgoing.deadline {
            match std::mem::replace(&mut outgoing.step, Step::Pausing) {
                Step::Resolving(_) | Step::Asking(_) => {
                    let why = outgoing.obstacle.clone();
                    outgoing.leave_manager(&why);
                }
                Step::Connecting(socket) => {
                    self.close(&socket);
                    self.ask_manager_next(id);
                }
                _ => {}
            }
            return self.attempt(id);
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
        let outgoing = self.outgoing.remove(&id)?;
        self.set_timer(id, None);
        match &outgoing.step {
            Step::Waiting => self.waiting.retain(|waiting| *waiting != id),
            _ => self.connecting -= 1,
        }
        if let Some(socket) = outgoing.step.socket() {
            self.close(socket);
        }
        Some(outgoing)
    }

    fn fail(&mut self, id: u64, error: ConnectError) {
        let Some(outgoing) = self.take_outgoing(id) else {
            return;
        };
        let request = outgoing.request;
        if let Some(record) = self.stations.get(&outgoing.station) {
            record.shared.push(StationEvent::Failed { request, error });
        }
    }

    pub(super) fn outgoing_ready(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        if let Step::Connecting(socket) = &outgoing.step {
            match socket.take_error() {
                Ok(None) => self.connected(id),
                Ok(Some(source)) | Err(source) => self.connect_failed(id, source),
            }
            return;
        }
        let received = match &mut outgoing.step {
            Step::Greeting(socket, input) => socket::receive(socket, input),
            Step::Accept(asked) => socket::receive(&asked.socket, &mut asked.input),
            _ => return,
        };
        let to = outgoing.to;
        match received {
            Received::Nothing => {}
            Received::Message(Message::Greeting(nonce), _) => self.greeted(id, nonce),
            Received::Message(Message::Accept(accept), bytes) => {
                self.accepted(id, &accept, &bytes);
            }
            Received::Message(Message::Reject(reason), _) => self.refused(id, reason),
            Received::Message(..) => {
                let source = WireError::Field { what: "an answer's kind", value: 0 };
                self.fail(id, ConnectError::BadAnswer { to, source });
            }
            Received::Gone(reason) => self.try_again(id, reason),
            Received::Bad(WireError::OtherVersion { theirs }) => {
                self.fail(id, ConnectError::OtherVersion { to, theirs });
            }
            Received::Bad(source) => self.fail(id, ConnectError::BadAnswer { to, source }),
        }
    }

    /// The peer's own word, which counts; but where it has no path to us it is asked once more through
    /// the connection manager, which may know one.
    fn refused(&mut self, id: u64, reason: RejectReason) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let no_path = matches!(reason, RejectReason::Subnet | RejectReason::Partition);
        if no_path && std::mem::take(&mut outgoing.manager_was_early) {
            outgoing.by_manager = true;
            return self.try_again(id, reason.to_string());
        }
        let to = outgoing.to;
        self.fail(id, ConnectError::Refused { to, reason });
    }

    /// TCP is connected: the peer speaks first.
    fn connected(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        outgoing.nobody_since = None;
        outgoing.no_route = false;
        let deadline = outgoing.deadline;
        outgoing.obstacle = "it does not greet".into();
        let Step::Connecting(socket) = std::mem::replace(&mut outgoing.step, Step::Pausing) else {
            return;
        };
        let data = super::thread::Token::Handshake(id).data();
        let watched = rustix::event::epoll::modify(&self.epoll, &socket, data, EventFlags::IN);
        outgoing.step = Step::Greeting(socket, Vec::new());
        if let Err(errno) = watched {
            let to = outgoing.to;
            return self
                .fail(id, ConnectError::System { to, call: "epoll_ctl", source: errno.into() });
        }
        self.set_timer(id, Some(deadline));
    }

    fn greeted(&mut self, id: u64, theirs: Nonce) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let Step::Greeting(socket, input) = std::mem::replace(&mut outgoing.step, Step::Pausing)
        else {
            return self.try_again(id, "it greets twice".into());
        };
        let to = outgoing.to;
        let Some(key) = record.keys.as_ref().and_then(|keys| keys.get(outgoing.key)) else {
            return self.fail(id, ConnectError::Unproven { to });
        };
        let offer = match Offer::new(record) {
            Ok(offer) => offer,
            Err(source) => {
                outgoing.step = Step::Greeting(socket, input);
                return self.fail(id, ConnectError::Verbs { to, source });
            }
        };
        let nonces = [theirs, random()];
        let hello = Hello {
            incarnation: record.incarnation,
            from: record.address,
            wanted: to,
            end: offer.path_end(record),
            buffer_bytes: BUFFER_BYTES as u32,
            credit: offer.credit(),
            nonce: nonces[1],
            service: record.service(),
        };
        let mut bytes = Message::Hello(Box::new(hello)).encode();
        proof::sign(key.bytes(), Speaker::Connects, [&nonces[0], &nonces[1]], &mut bytes);
        let sent = socket::send(&socket, &bytes);
        outgoing.obstacle = "it does not answer".into();
        let asked = Asked { socket, input, offer, nonces };
        outgoing.step = Step::Accept(Box::new(asked));
        if let Err(error) = sent {
            self.try_again(id, error.to_string());
        }
    }

    /// The peer has joined its queue pair with ours.
    fn accepted(&mut self, id: u64, accept: &Accept, bytes: &[u8]) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let to = outgoing.to;
        let Step::Accept(asked) = &outgoing.step else {
            return self.try_again(id, "it accepts before it greets".into());
        };
        let [theirs, ours] = &asked.nonces;
        let key = record.keys.as_ref().and_then(|keys| keys.get(outgoing.key));
        let proves =
            |key: &AuthKey| proof::is_signed(key.bytes(), Speaker::Accepts, [theirs, ours], bytes);
        let (proved, from) = (key.is_some_and(proves), accept.from);
        let is_meant = is_one_place(from, to);
        let joined = check_answer(to, proved, is_meant, from, accept.buffer_bytes).and_then(|()| {
            let joined = asked.offer.join(record, &accept.end);
            joined.map_err(|source| ConnectError::Verbs { to, source })
        });
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => return self.fail(id, error),
        };
        if let Err(error) = socket::send(&asked.socket, &Message::Confirm.encode()) {
            return self.try_again(id, error.to_string());
        }
        let Step::Accept(asked) = std::mem::replace(&mut outgoing.step, Step::Pausing) else {
            return;
        };
        let Asked { socket, input, offer, .. } = *asked;
        self.finish(id, Line::Tcp(socket, input), offer, accept.incarnation, joined);
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
        let Some(Outgoing { station, request, to, key, .. }) = self.outgoing.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        self.connecting -= 1;
        let peer = PeerIdentity { address: to, incarnation, key };
        if line.is_managed() {
            tracing::info!(%to, "connected through rdma_cm");
        }
        self.keep_link(id, station, line);
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
