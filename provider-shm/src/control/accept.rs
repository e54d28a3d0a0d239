//! The side of a handshake that is connected to, and will receive from the lane.
//!
//! Whatever is wrong with what a peer sends ends its own connection, with one line of log, and
//! closes what it passed. Nothing is waited for; each stage has a deadline.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kestrel_core::{address::canonical, auth_key::KeyNumber};
use rustix::event::epoll;
use rustix::io::Errno;
use thiserror::Error;

use super::handshake::{Accepted, Handshake, Stage, Watching};
use super::shares::{self, Excess, LANES_PER_PROCESS_MAX, Share};
use super::socket::{self, DESCRIPTORS_MAX, Liveness, Packet, Received, Socket};
use super::thread::{ControlThread, Timer, Token};
use super::wire::{Hello, Message, RejectReason, Reply, WireError};
use crate::doorbell::DoorbellError;
use crate::end_mark::PeerEndMark;
use crate::region::{LaneMemory, PoolView, RegionError};
use crate::station::{PeerIdentity, StationEvent};
use crate::sys;

/// How long a peer that connected may take to say HELLO. It does so at once, so that this is
/// short, for those who never will; whoever was too slow tries again.
pub(super) const HELLO_WAIT: Duration = Duration::from_millis(500);
/// How long a peer that was accepted may take to confirm.
pub(super) const CONFIRM_WAIT: Duration = Duration::from_secs(5);
/// How many are accepted before others have their turn.
const ACCEPT_BURST: usize = 16;
/// How many refusals are remembered, of each process and reason one, so that they are told of once.
const REFUSALS_TOLD_MAX: usize = 256;
/// How long no connection is accepted after the descriptors ran out.
const OUT_OF_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// What is wrong with a peer that connected.
#[derive(Debug, Error)]
enum Objection {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("the keys differ")]
    Key,
    #[error("the endpoint is not enabled, and has no key yet")]
    NoKeyYet,
    #[error("it wants another endpoint, {wanted}")]
    Address { wanted: SocketAddr },
    #[error("it goes by {claimed}, which is not its own address")]
    NotItsAddress { claimed: SocketAddr },
    #[error("it goes by {claimed}, where peers are reached in another way")]
    ReachedOtherwise { claimed: SocketAddr },
    #[error("its process has {LANES_PER_PROCESS_MAX} lanes to this endpoint already")]
    TooManyLanes,
    #[error(
        "the pools that its process has passed to this endpoint would have more than {most} bytes"
    )]
    TooLargePools { most: usize },
    #[error("{claimed}, which it goes by, cannot be asked now")]
    AddressBusy { claimed: SocketAddr },
    #[error("the lane: {0}")]
    Lane(RegionError),
    #[error("the pool: {0}")]
    Pool(RegionError),
    #[error("the mark of its end: {0}")]
    EndMark(RegionError),
    #[error("the doorbell: {0}")]
    Bell(#[from] DoorbellError),
    #[error("we have no file descriptor left for what it passed")]
    OutOfDescriptors,
    #[error("it died, or closed the connection")]
    Gone,
    #[error("{call}: {source}")]
    System { call: &'static str, source: std::io::Error },
}

impl Objection {
    /// What the peer is told.
    fn reason(&self) -> Option<RejectReason> {
        Some(match self {
            Objection::Wire(WireError::Version { .. }) => RejectReason::Version,
            Objection::Key => RejectReason::Key,
            Objection::Address { .. } => RejectReason::Address,
            Objection::Lane(error) | Objection::Pool(error) | Objection::EndMark(error) => {
                match error {
                    _ if error.out_of_descriptors() => RejectReason::OutOfDescriptors,
                    RegionError::Map { .. } => RejectReason::Memory,
                    _ => RejectReason::Descriptors,
                }
            }
            Objection::Bell(error) if error.out_of_descriptors() => RejectReason::OutOfDescriptors,
            Objection::Bell(_) => RejectReason::Descriptors,
            Objection::OutOfDescriptors => RejectReason::OutOfDescriptors,
            Objection::NotItsAddress { .. } | Objection::ReachedOtherwise { .. } => {
                RejectReason::NotOurAddress
            }
            Objection::TooManyLanes => RejectReason::TooManyLanes,
            Objection::TooLargePools { .. } => RejectReason::TooLargePools,
            // It tries again.
            Objection::AddressBusy { .. } | Objection::NoKeyYet => return None,
            Objection::Wire(_) | Objection::Gone | Objection::System { .. } => return None,
        })
    }
}

impl ControlThread {
    /// Connections wait at a station's listener.
    pub(super) fn listener_readable(&mut self, station: u64) {
        for _ in 0..ACCEPT_BURST {
            let Some(record) = self.stations.get(&station) else {
                return;
            };
            if self.is_crowded(station) {
                self.look_who_is_late_soon();
                return self.listen(station, false);
            }
            match socket::accept(record.listener.as_fd()) {
                Ok(socket) => self.accepted(station, socket),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    return self.out_of_descriptors();
                }
                Err(_) => return,
            }
        }
    }

    /// Without a descriptor to accept with, a listener would stay readable: leave it for a while.
    fn out_of_descriptors(&mut self) {
        self.tell_out_of_descriptors();
        let stations: Vec<u64> = self.stations.keys().copied().collect();
        for station in stations {
            self.listen(station, false);
        }
        self.pause_accepting();
    }

    fn tell_out_of_descriptors(&mut self) {
        if !self.told_out_of_descriptors {
            self.told_out_of_descriptors = true;
            let error = crate::limits::OutOfDescriptors::needing(DESCRIPTORS_MAX as u32 + 2);
            tracing::error!("peers have to wait to connect: {error}");
        }
    }

    fn pause_accepting(&mut self) {
        if !self.accept_paused {
            self.accept_paused = true;
            self.timers.insert((Instant::now() + OUT_OF_DESCRIPTORS_PAUSE, Timer::ResumeAccepting));
        }
    }

    /// Listens again where there is room again.
    pub(super) fn resume_listening(&mut self) {
        if self.accept_paused {
            return;
        }
        let ready =
            |record: &&super::StationRecord| !record.listening && self.has_room_again(record.id);
        let stations: Vec<u64> = self.stations.values().filter(ready).map(|r| r.id).collect();
        for station in stations {
            self.listen(station, true);
        }
    }

    /// Has epoll tell of a listener, or no more.
    pub(super) fn listen(&mut self, station: u64, listening: bool) {
        let Some(record) = self.stations.get_mut(&station) else {
            return;
        };
        if record.listening == listening {
            return;
        }
        if listening {
            let token = Token::Listener(station).data();
            match epoll::add(&self.epoll, &record.listener, token, epoll::EventFlags::IN) {
                Ok(()) => self.not_listening -= 1,
                // fs.epoll.max_user_watches, or memory.
                Err(error) => {
                    tracing::error!(%error, "epoll_ctl: nobody can connect to {}", record.address);
                    return self.pause_accepting();
                }
            }
        } else {
            let _ = epoll::delete(&self.epoll, &record.listener);
            self.not_listening += 1;
        }
        record.listening = listening;
    }

    fn accepted(&mut self, station: u64, socket: Socket) {
        let Ok(credentials) = sys::peer_credentials(socket.as_fd()) else {
            return;
        };
        if !socket::same_user(credentials) {
            if self.refused_users.len() < 64 && self.refused_users.insert(credentials.uid) {
                tracing::warn!(uid = credentials.uid, "refused a connection of another user");
            }
            return;
        }
        if self.is_late_with_its_share(station, credentials.pid) {
            return socket::hang_up(&socket);
        }
        let id = self.next_id();
        self.handshakes.insert(
            id,
            Handshake {
                station,
                socket: Some(socket),
                process: None,
                credentials: Some(credentials),
                timer: None,
                stage: Stage::AwaitHello,
            },
        );
        self.accepting.insert(id);
        if let Some(record) = self.stations.get_mut(&station) {
            record.accepting += 1;
        }
        self.set_timer(id, Some(Instant::now() + HELLO_WAIT));
        match self.watch_socket(id) {
            // Its HELLO is there already, as a rule.
            Ok(()) => self.accept_readable(id),
            Err(source) => self.object(id, &Objection::System { call: "epoll_ctl", source }),
        }
    }

    /// Something is to be read on the socket of a peer that connected.
    pub(super) fn accept_readable(&mut self, id: u64) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        let Some(socket) = &handshake.socket else {
            return;
        };
        let awaits_hello = matches!(handshake.stage, Stage::AwaitHello);
        let result = match socket::receive(socket.as_fd()) {
            Received::Empty => return,
            Received::Closed => Err(Objection::Gone),
            Received::Message(packet) if awaits_hello => self.hello_arrived(id, packet),
            Received::Message(packet) => self.confirm_arrived(id, packet),
        };
        if let Err(objection) = result {
            self.object(id, &objection);
        }
    }

    /// Ends a handshake: one line of log, the reason for the peer where there is one.
    fn object(&mut self, id: u64, objection: &Objection) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        if let (Some(reason), Some(socket)) = (objection.reason(), &handshake.socket) {
            let _ = socket::send(socket.as_fd(), &Message::Reject(reason).encode(), &[]);
        }
        let pid = handshake.credentials.and_then(|c| c.pid);
        match objection {
            // It tries again, often: said once, by the one who accepts.
            _ if objection.reason() == Some(RejectReason::OutOfDescriptors) => {
                self.tell_out_of_descriptors();
            }
            Objection::Gone | Objection::AddressBusy { .. } | Objection::NoKeyYet => {
                tracing::debug!(pid, "a handshake ended early: {objection}");
            }
            _ => self.tell_refused(id, pid, objection),
        }
        self.drop_handshake(id);
    }

    /// One line of log for each process and reason: who is refused may try again with each send.
    fn tell_refused(&mut self, id: u64, pid: Option<i32>, objection: &Objection) {
        let station = self.handshakes.get(&id).and_then(|it| self.stations.get(&it.station));
        let Some(address) = station.map(|station| station.address) else {
            return;
        };
        let who =
            pid.map_or("a process that is not seen here".into(), |pid| format!("process {pid}"));
        let text = format!("{address} refused a connection of {who}: {objection}");
        if self.told_refusals.contains(&text) {
            return tracing::debug!("{text}");
        }
        if self.told_refusals.len() == REFUSALS_TOLD_MAX {
            self.told_refusals.clear();
        }
        tracing::warn!("{text}");
        self.told_refusals.insert(text);
    }

    fn hello_arrived(&mut self, id: u64, packet: Packet) -> Result<(), Objection> {
        let (mut hello, key, [lane, pool, bell, end_mark]) = self.check_hello(id, packet)?;
        let Some(handshake) = self.handshakes.get(&id) else {
            return Ok(());
        };
        let (station, Some(credentials)) = (handshake.station, handshake.credentials) else {
            return Ok(());
        };
        let lane = LaneMemory::from_peer(lane).map_err(Objection::Lane)?;
        let pool = PoolView::from_peer(pool, hello.pool_bytes).map_err(Objection::Pool)?;
        let bell = self.bells.accept(bell)?;
        let end_mark = PeerEndMark::from_peer(end_mark).map_err(Objection::EndMark)?;
        let by_socket = match self.watch_peer(id) {
            Ok(Watching::Watched) => false,
            Ok(Watching::BySocket) => true,
            Ok(Watching::Dead) => return Err(Objection::Gone),
            Err(source) => {
                return Err(Objection::System { call: "watching the peer", source });
            }
        };
        hello.from.address = canonical(hello.from.address);
        self.check_address(id, hello.from.address)?;
        let share = self.take_share(id, pool.len())?;
        let memory = self.probe(station, credentials, &hello.from, end_mark);
        let Some(own) = self.introduce(station, by_socket) else {
            return Ok(());
        };
        let own = Reply { reads_you: memory.is_some(), ..own };
        let keep_socket = by_socket || hello.from.keep_socket;
        self.send_accept(id, station, own)?;
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            let peer = hello.from;
            let accepted = Accepted { key, lane, pool, bell, peer, memory, share, keep_socket };
            handshake.stage = Stage::AwaitConfirm(Box::new(accepted));
        }
        self.set_timer(id, Some(Instant::now() + CONFIRM_WAIT));
        Ok(())
    }

    fn check_hello(
        &self,
        id: u64,
        packet: Packet,
    ) -> Result<(Hello, KeyNumber, [OwnedFd; DESCRIPTORS_MAX]), Objection> {
        if packet.oversize {
            return Err(WireError::Oversize.into());
        }
        let hello = match Message::parse(&packet.bytes)? {
            Message::Hello(hello) => hello,
            other => {
                return Err(WireError::Unexpected { found: other.kind(), expected: "HELLO" }.into());
            }
        };
        let record = self.handshakes.get(&id).and_then(|h| self.stations.get(&h.station));
        let record = record.ok_or(Objection::Gone)?;
        if hello.to != record.address {
            return Err(Objection::Address { wanted: hello.to });
        }
        let keys = record.keys.told().ok_or(Objection::NoKeyYet)?;
        let key = keys.proved(|key| key == hello.key).ok_or(Objection::Key)?;
        let found = packet.descriptors.len();
        if packet.descriptors_lost {
            return Err(match found {
                // There is room for some more.
                DESCRIPTORS_MAX.. => WireError::TooManyDescriptors.into(),
                _ => Objection::OutOfDescriptors,
            });
        }
        let descriptors = packet.descriptors.try_into();
        let descriptors = descriptors
            .map_err(|_| WireError::DescriptorCount { found, expected: DESCRIPTORS_MAX })?;
        Ok((hello, key, descriptors))
    }

    /// Whether the address that a peer goes by is its own: who listens there has to be the same
    /// process. Otherwise any process of our user could send in another endpoint's name.
    fn check_address(&self, id: u64, claimed: SocketAddr) -> Result<(), Objection> {
        let handshake = self.handshakes.get(&id).ok_or(Objection::Gone)?;
        let record = self.stations.get(&handshake.station).ok_or(Objection::Gone)?;
        // Any process may take the name of an address of another host, where somebody else is reached.
        if record.admits.is_some_and(|admits| !admits(record.address.into(), claimed.into())) {
            return Err(Objection::ReachedOtherwise { claimed });
        }
        let there =
            socket::open_connection(record.service, claimed).map_err(|errno| match errno {
                Errno::CONNREFUSED => Objection::NotItsAddress { claimed },
                Errno::AGAIN => Objection::AddressBusy { claimed },
                Errno::MFILE | Errno::NFILE => Objection::OutOfDescriptors,
                errno => Objection::System { call: "connect", source: errno.into() },
            })?;
        let system = |source| Objection::System { call: "SO_PEERCRED", source };
        let owner = sys::peer_credentials(there.as_fd()).map_err(system)?;
        let same = match handshake.process {
            Some(process) => match socket::liveness(there.as_fd(), owner).map_err(system)? {
                Liveness::Pidfd(pidfd) => self.processes.is_same(process, pidfd.as_fd(), owner.pid),
                Liveness::Socket => None,
                Liveness::Dead => Some(false),
            },
            None => None,
        };
        // Without pidfds that tell, the PIDs do; two that have none here may be one process.
        let same_pid = handshake.credentials.is_some_and(|peer| peer.pid == owner.pid);
        if socket::same_user(owner) && same.unwrap_or(same_pid) {
            return Ok(());
        }
        Err(Objection::NotItsAddress { claimed })
    }

    /// Counts one more lane of the peer's process, and its pool. Not where its death shows at the socket
    /// only: there each connection counts as a process of its own.
    fn take_share(&mut self, id: u64, pool_bytes: usize) -> Result<Option<Share>, Objection> {
        let handshake = self.handshakes.get(&id).ok_or(Objection::Gone)?;
        let record = self.stations.get_mut(&handshake.station).ok_or(Objection::Gone)?;
        let most = shares::pool_bytes_max(record.pool.len());
        let share = match handshake.process {
            Some(process) => record.shares.take(process, pool_bytes, most).map(Some),
            None if pool_bytes > most => Err(Excess::Pools),
            None => Ok(None),
        };
        share.map_err(|excess| match excess {
            Excess::Lanes => Objection::TooManyLanes,
            Excess::Pools => Objection::TooLargePools { most },
        })
    }

    fn send_accept(&mut self, id: u64, station: u64, own: Reply) -> Result<(), Objection> {
        let record = self.stations.get(&station).ok_or(Objection::Gone)?;
        let socket = self.handshakes.get(&id).and_then(|h| h.socket.as_ref());
        let socket = socket.ok_or(Objection::Gone)?;
        let accept = Message::Accept(own).encode();
        let descriptors = [record.shared.bell.as_fd(), self.end_mark.fd()];
        socket::send(socket.as_fd(), &accept, &descriptors).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => Objection::Gone,
            errno => Objection::System { call: "sendmsg", source: errno.into() },
        })
    }

    fn confirm_arrived(&mut self, id: u64, packet: Packet) -> Result<(), Objection> {
        if packet.oversize {
            return Err(WireError::Oversize.into());
        }
        match Message::parse(&packet.bytes)? {
            Message::Confirm(_) if packet.descriptors.is_empty() => {}
            Message::Confirm(_) => {
                let found = packet.descriptors.len();
                return Err(WireError::DescriptorCount { found, expected: 0 }.into());
            }
            other => {
                let expected = "CONFIRM";
                return Err(WireError::Unexpected { found: other.kind(), expected }.into());
            }
        }
        let Some(mut handshake) = self.take_handshake(id) else {
            return Ok(());
        };
        let stage = std::mem::replace(&mut handshake.stage, Stage::AwaitHello);
        let Stage::AwaitConfirm(accepted) = stage else {
            return Ok(());
        };
        let Accepted { key, lane, pool, bell, peer, memory, share, keep_socket } = *accepted;
        let station = handshake.station;
        match self.establish(handshake, id, &peer, memory, keep_socket) {
            Ok(peer) => {
                let peer = PeerIdentity { key, share, ..peer };
                let Some(record) = self.stations.get_mut(&station) else {
                    return Ok(());
                };
                record.interest.insert(peer.process, record.last_event + 1);
                record.push(StationEvent::Incoming { lane, pool, bell, peer });
            }
            Err(error) => tracing::error!(%error, "a lane was lost: epoll_ctl"),
        }
        Ok(())
    }

    /// The time of a peer that connected is over, or its process, or our station.
    ///
    /// If its CONFIRM is in the queue it believes to have a lane, and so it has one.
    pub(super) fn finish_accept(&mut self, id: u64) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        if let (Stage::AwaitConfirm(_), Some(socket)) = (&handshake.stage, &handshake.socket) {
            socket::stop_receiving(socket);
            self.accept_readable(id);
        }
        self.drop_handshake(id);
    }
}
