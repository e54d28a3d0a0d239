//! The side of a handshake that connects, and will send on the lane.
//!
//! "Nobody there" is not the end at once: the peer may be starting, as all ranks of a job do. But
//! it is known early, and need not take the whole timeout.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kestrel_core::{address::canonical, auth_key::KeyNumber, transport::Service};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::handshake::{Connecting, Handshake, Stage, Watching};
use super::socket::{self, Packet, Received};
use super::thread::ControlThread;
use super::wire::{Confirm, Hello, Message, RejectReason, Reply, WireError};
use crate::end_mark::PeerEndMark;
use crate::limits::{OutOfDescriptors, is_out_of_descriptors};
use crate::region::{LANE_BYTES, LaneMemory, RegionError};
use crate::station::{ConnectError, StationEvent};
use crate::sys;

/// For how long an address at which nobody listens is tried, from the first attempt on. The
/// connect timeout may be shorter. With the longest pause after it this ends within a second, since
/// what waits for a connection to a peer that has just died must fail within one.
pub(crate) const NOBODY_LISTENS_GRACE: Duration = Duration::from_millis(750);
/// How many connects of this process have a socket at a time; the others wait in line.
pub(crate) const CONNECTING_MAX: usize = 32;
/// A longer timeout counts as this one: clocks have an end.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The first pause after an attempt; each later one is twice as long, up to the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(1);
const BACKOFF_LONGEST: Duration = Duration::from_millis(64);
/// After that long a connect that has no answer is not counted among them any more.
const SLOW_ANSWER: Duration = Duration::from_millis(200);
/// What one connect needs at most at a time: a socket, a lane, a pidfd, a bell, a mark.
const DESCRIPTORS_NEEDED: u32 = 5;

/// What ends an attempt.
enum Obstacle {
    /// Nobody listens there, or who does is dead.
    Nobody,
    /// Something that may pass.
    Passing(&'static str),
    /// Nothing that time heals.
    Final(ConnectError),
}

/// The obstacle of an attempt that nobody has answered.
const UNANSWERED: &str = "it has not answered";
/// The obstacle where nobody listens.
const NOBODY: &str = "nobody listened there";

impl Connecting {
    /// How long it has been trying.
    fn waited(&self) -> Duration {
        self.first_attempt.map_or(Duration::ZERO, |first| first.elapsed())
    }

    /// Why it failed, if what hindered it last is all that there is to say.
    fn too_late(&self) -> ConnectError {
        let to = self.to;
        if self.obstacle == NOBODY {
            return ConnectError::HostUnreachable { to, waited: self.waited() };
        }
        let after = self.since.elapsed();
        ConnectError::TimedOut { to, after, obstacle: self.obstacle }
    }
}

type Attempt<T> = Result<T, Obstacle>;

fn failed(to: SocketAddr, call: &'static str, source: std::io::Error) -> Obstacle {
    Obstacle::Final(match is_out_of_descriptors(&source) {
        true => out_of_descriptors(to),
        false => ConnectError::System { to, call, source },
    })
}

fn no_region(to: SocketAddr, source: RegionError) -> Obstacle {
    Obstacle::Final(match source.out_of_descriptors() {
        true => out_of_descriptors(to),
        false => ConnectError::Memory { to, source },
    })
}

fn out_of_descriptors(to: SocketAddr) -> ConnectError {
    ConnectError::OutOfDescriptors { to, source: OutOfDescriptors::needing(DESCRIPTORS_NEEDED) }
}

impl ControlThread {
    /// Carries out a station's `connect`.
    pub(super) fn start_connect(
        &mut self,
        station: u64,
        request: u32,
        to: SocketAddr,
        key: KeyNumber,
    ) {
        let Some(record) = self.stations.get(&station) else {
            return;
        };
        let to = canonical(to);
        let since = Instant::now();
        let deadline = since + record.connect_timeout.min(LONGEST_TIMEOUT);
        let connecting = Connecting {
            request,
            to,
            key,
            since,
            deadline,
            first_attempt: None,
            attempts: 0,
            lane: None,
            obstacle: "other connects of this process came first",
            admitted: false,
        };
        let id = self.next_id();
        self.handshakes.insert(
            id,
            Handshake {
                station,
                socket: None,
                process: None,
                credentials: None,
                timer: None,
                stage: Stage::Connecting(connecting),
            },
        );
        self.set_timer(id, Some(deadline));
        self.waiting.push_back(id);
        self.admit_waiting();
    }

    /// Lets connects that wait in line begin, as far as there is room.
    pub(super) fn admit_waiting(&mut self) {
        while self.connecting < CONNECTING_MAX {
            let Some(id) = self.waiting.pop_front() else {
                return;
            };
            let Some(connecting) = self.connecting_of(id) else {
                continue;
            };
            connecting.admitted = true;
            connecting.first_attempt.get_or_insert_with(Instant::now);
            self.connecting += 1;
            self.attempt(id);
        }
    }

    fn connecting_of(&mut self, id: u64) -> Option<&mut Connecting> {
        match &mut self.handshakes.get_mut(&id)?.stage {
            Stage::Connecting(connecting) => Some(connecting),
            _ => None,
        }
    }

    /// Its timer ran out: it is time for another attempt, or for others to begin, or too late.
    pub(super) fn connect_timer(&mut self, id: u64) {
        let Some(connecting) = self.connecting_of(id) else {
            return;
        };
        let deadline = connecting.deadline;
        if Instant::now() < deadline {
            if std::mem::take(&mut connecting.admitted) {
                // It has a socket and no answer: from here it waits beside the others.
                connecting.obstacle = UNANSWERED;
                self.connecting -= 1;
            } else {
                self.waiting.push_back(id);
            }
            self.set_timer(id, Some(deadline));
            return self.admit_waiting();
        }
        let error = connecting.too_late();
        self.fail(id, error);
    }

    /// Ends a connect with its one `Failed`.
    pub(super) fn fail(&mut self, id: u64, error: ConnectError) {
        let Some(handshake) = self.take_handshake(id) else {
            return;
        };
        self.close_socket(handshake.socket);
        self.release_watch(id, handshake.process);
        let Stage::Connecting(Connecting { request, .. }) = handshake.stage else {
            return;
        };
        tracing::debug!(%error, "connect failed");
        if let Some(record) = self.stations.get_mut(&handshake.station) {
            record.push(StationEvent::Failed { request, error });
        }
    }

    fn attempt(&mut self, id: u64) {
        if let Err(obstacle) = self.try_attempt(id) {
            self.hindered(id, obstacle);
        }
    }

    /// Connects and sends HELLO.
    fn try_attempt(&mut self, id: u64) -> Attempt<()> {
        let station = self.handshakes.get(&id).and_then(|it| self.stations.get(&it.station));
        let service = station.map_or(Service::default(), |station| station.service);
        let Some(connecting) = self.connecting_of(id) else {
            return Ok(());
        };
        connecting.attempts += 1;
        // What stood in the way before says more than an attempt that has only begun.
        if connecting.attempts == 1 || connecting.obstacle == NOBODY {
            connecting.obstacle = UNANSWERED;
        }
        let (to, deadline) = (connecting.to, connecting.deadline);
        let socket = socket::open_connection(service, to).map_err(|errno| match errno {
            Errno::CONNREFUSED => Obstacle::Nobody,
            Errno::AGAIN => Obstacle::Passing("too many others connect to it"),
            errno => failed(to, "connect", errno.into()),
        })?;
        let credentials = sys::peer_credentials(socket.as_fd())
            .map_err(|error| failed(to, "SO_PEERCRED", error))?;
        if !socket::same_user(credentials) {
            let (theirs, ours) = (credentials.uid, geteuid().as_raw());
            return Err(Obstacle::Final(if theirs == ours {
                ConnectError::UserUnknown { to }
            } else {
                ConnectError::WrongUser { to, theirs, ours }
            }));
        }
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return Ok(());
        };
        let station = handshake.station;
        handshake.socket = Some(socket);
        handshake.credentials = Some(credentials);
        let keep_socket = match self.watch_peer(id) {
            Ok(Watching::Watched) => false,
            Ok(Watching::BySocket) => true,
            Ok(Watching::Dead) => return Err(Obstacle::Nobody),
            Err(error) => return Err(failed(to, "watching the peer", error)),
        };
        self.send_hello(id, station, to, keep_socket)?;
        self.watch_socket(id).map_err(|error| failed(to, "epoll_ctl", error))?;
        self.set_timer(id, Some(deadline.min(Instant::now() + SLOW_ANSWER)));
        Ok(())
    }

    fn send_hello(
        &mut self,
        id: u64,
        station: u64,
        to: SocketAddr,
        keep_socket: bool,
    ) -> Attempt<()> {
        let (lane, lane_fd) = LaneMemory::create().map_err(|source| no_region(to, source))?;
        let closed = || Obstacle::Final(ConnectError::Closed);
        let from = self.introduce(station, keep_socket).ok_or_else(closed)?;
        let number = self.connecting_of(id).ok_or_else(closed)?.key;
        let record = self.stations.get(&station).ok_or_else(closed)?;
        let key = record.keys.told().and_then(|keys| keys.get(number)).ok_or_else(closed)?;
        let hello = Message::Hello(Hello {
            from,
            to,
            pool_bytes: record.pool.len() as u64,
            lane_bytes: LANE_BYTES as u32,
            key: key.bytes().to_vec(),
        });
        let descriptors =
            [lane_fd.as_fd(), record.pool.fd(), record.shared.bell.as_fd(), self.end_mark.fd()];
        let handshake = self.handshakes.get_mut(&id).ok_or_else(closed)?;
        let socket = handshake.socket.as_ref().ok_or_else(closed)?;
        socket::send(socket.as_fd(), &hello.encode(), &descriptors).map_err(
            |errno| match errno {
                Errno::PIPE | Errno::CONNRESET => Obstacle::Passing("it closed the connection"),
                // unix(7): the limit of in-flight descriptors of the user, RLIMIT_NOFILE in number.
                Errno::TOOMANYREFS => Obstacle::Passing("too many descriptors are on their way"),
                errno => failed(to, "sendmsg", errno.into()),
            },
        )?;
        if let Stage::Connecting(connecting) = &mut handshake.stage {
            connecting.lane = Some(lane);
        }
        // While the peer answers.
        record.pool.make_pages().map_err(|source| no_region(to, source))
    }

    /// Decides whether an attempt that failed is followed by another.
    fn hindered(&mut self, id: u64, obstacle: Obstacle) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        // Everything of the attempt goes: the next has a new socket and a lane of its own.
        let socket = handshake.socket.take();
        handshake.credentials = None;
        let process = handshake.process.take();
        let Stage::Connecting(connecting) = &mut handshake.stage else {
            return;
        };
        self.connecting -= usize::from(std::mem::take(&mut connecting.admitted));
        connecting.lane = None;
        let (deadline, attempts) = (connecting.deadline, connecting.attempts);
        let error = match obstacle {
            Obstacle::Nobody => {
                connecting.obstacle = NOBODY;
                (connecting.waited() >= NOBODY_LISTENS_GRACE).then(|| connecting.too_late())
            }
            Obstacle::Passing(obstacle) => {
                connecting.obstacle = obstacle;
                None
            }
            Obstacle::Final(error) => Some(error),
        };
        self.close_socket(socket);
        self.release_watch(id, process);
        if let Some(error) = error {
            return self.fail(id, error);
        }
        let backoff = BACKOFF_FIRST.saturating_mul(1 << attempts.min(10)).min(BACKOFF_LONGEST);
        let next = Instant::now() + self.jittered(backoff);
        self.set_timer(id, Some(next.min(deadline)));
    }

    /// Something is to be read on the socket of a connect.
    pub(super) fn connect_readable(&mut self, id: u64) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        let Some(socket) = &handshake.socket else {
            return;
        };
        let result = match socket::receive(socket.as_fd()) {
            Received::Empty => return,
            Received::Closed => Err(Obstacle::Passing("it closed the connection")),
            Received::Message(packet) => self.answered(id, packet),
        };
        if let Err(obstacle) = result {
            self.hindered(id, obstacle);
        }
    }

    /// The peer's process died during the handshake.
    pub(super) fn connect_peer_died(&mut self, id: u64) {
        self.hindered(id, Obstacle::Nobody);
    }

    fn answered(&mut self, id: u64, packet: Packet) -> Attempt<()> {
        let Some(connecting) = self.connecting_of(id) else {
            return Ok(());
        };
        let to = connecting.to;
        let bad = |source| {
            tracing::warn!(peer = %to, "not a kestrel's answer: {source}");
            Obstacle::Final(ConnectError::BadAnswer { to, source })
        };
        if packet.oversize {
            return Err(bad(WireError::Oversize));
        }
        let parsed = Message::parse(&packet.bytes);
        if let Err(WireError::Version { found }) = parsed {
            return Err(Obstacle::Final(ConnectError::OtherVersion { to, theirs: found }));
        }
        let reply = match parsed.map_err(bad)? {
            Message::Accept(reply) if reply.address != to => {
                return Err(bad(WireError::OtherAddress { found: reply.address }));
            }
            Message::Accept(reply) => reply,
            Message::Reject(RejectReason::OutOfDescriptors) => {
                return Err(Obstacle::Passing("it has no file descriptor left"));
            }
            Message::Reject(reason) => {
                return Err(Obstacle::Final(ConnectError::Refused { to, reason }));
            }
            other => {
                let expected = "ACCEPT or REJECT";
                return Err(bad(WireError::Unexpected { found: other.kind(), expected }));
            }
        };
        let found = packet.descriptors.len();
        if packet.descriptors_lost && found < 2 {
            return Err(Obstacle::Final(out_of_descriptors(to)));
        }
        let Ok([bell, end_mark]) = <[_; 2]>::try_from(packet.descriptors) else {
            return Err(bad(WireError::DescriptorCount { found, expected: 2 }));
        };
        let bell = self.bells.accept(bell).map_err(|source| {
            if source.out_of_descriptors() {
                return Obstacle::Final(out_of_descriptors(to));
            }
            tracing::warn!(peer = %to, "bad doorbell: {source}");
            Obstacle::Final(ConnectError::BadDoorbell { to, source })
        })?;
        let end_mark = PeerEndMark::from_peer(end_mark)
            .map_err(|source| Obstacle::Final(ConnectError::Memory { to, source }))?;
        self.finish_connect(id, &reply, bell, end_mark)
    }

    /// Probes, confirms, and tells the station.
    fn finish_connect(
        &mut self,
        id: u64,
        reply: &Reply,
        bell: crate::doorbell::Doorbell,
        end_mark: PeerEndMark,
    ) -> Attempt<()> {
        let Some(handshake) = self.handshakes.get(&id) else {
            return Ok(());
        };
        let (Some(socket), Some(credentials)) = (&handshake.socket, handshake.credentials) else {
            return Ok(());
        };
        let memory = self.probe(handshake.station, credentials, reply, end_mark);
        // A message that the kernel took lies in the peer's queue, and the peer looks there once
        // more before it gives up: from here on both sides agree that there is a lane.
        let confirm = Message::Confirm(Confirm).encode();
        socket::send(socket.as_fd(), &confirm, &[])
            .map_err(|_| Obstacle::Passing("it gave up before we confirmed"))?;
        let keep_socket = reply.keep_socket || handshake.process.is_none();
        let Some(mut handshake) = self.take_handshake(id) else {
            return Ok(());
        };
        let Stage::Connecting(connecting) = &mut handshake.stage else {
            return Ok(());
        };
        let (request, to, lane) = (connecting.request, connecting.to, connecting.lane.take());
        let station = handshake.station;
        let established = self.establish(handshake, id, reply, memory, keep_socket);
        let Some(record) = self.stations.get_mut(&station) else {
            return Ok(());
        };
        match (established, lane) {
            (Ok(peer), Some(lane)) => {
                record.interest.insert(peer.process, record.last_event + 1);
                record.push(StationEvent::Connected { request, lane, bell, peer });
            }
            (Err(source), _) => {
                let error = ConnectError::System { to, call: "epoll_ctl", source };
                record.push(StationEvent::Failed { request, error });
            }
            (Ok(_), None) => unreachable!("HELLO was answered, so a lane was sent"),
        }
        Ok(())
    }
}
