//! A handshake that is under way, on either side, and what becomes of those that wait.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kestrel_core::auth_key::{KeyNumber, ONLY_KEY};
use rustix::event::epoll;

use super::shares::Share;
use super::socket::{self, Liveness, Socket};
use super::thread::{ControlThread, Timer, Token};
use super::wire::Reply;
use crate::cma::{self, PeerMemory};
use crate::doorbell::Doorbell;
use crate::end_mark::PeerEndMark;
use crate::process::{Holder, ProcessId, Watched};
use crate::region::{LaneMemory, PoolView};
use crate::station::PeerIdentity;
use crate::sys::PeerCredentials;

/// One handshake.
pub(crate) struct Handshake {
    pub station: u64,
    pub socket: Option<Socket>,
    /// The peer's process, once known, unless its death shows at the socket only.
    pub process: Option<ProcessId>,
    pub credentials: Option<PeerCredentials>,
    /// When the timer that is set for it runs out.
    pub timer: Option<Instant>,
    pub stage: Stage,
}

pub(crate) enum Stage {
    /// We connect.
    Connecting(Connecting),
    /// A peer connected; it has not said who it is.
    AwaitHello,
    /// It was accepted, and has not said that it knows.
    AwaitConfirm(Box<Accepted>),
}

/// A connect of ours.
pub(crate) struct Connecting {
    pub request: u32,
    pub to: SocketAddr,
    /// Which key is proved.
    pub key: KeyNumber,
    pub since: Instant,
    pub deadline: Instant,
    /// When the first attempt was made.
    pub first_attempt: Option<Instant>,
    pub attempts: u32,
    /// The lane that was passed in this attempt.
    pub lane: Option<LaneMemory>,
    pub obstacle: &'static str,
    /// Whether it is one of the few that may have a socket.
    pub admitted: bool,
}

/// A peer that waits for nothing but its own CONFIRM.
pub(crate) struct Accepted {
    /// Which key it has proved.
    pub key: KeyNumber,
    pub lane: LaneMemory,
    pub pool: PoolView,
    pub bell: Doorbell,
    pub peer: Reply,
    pub memory: Option<PeerMemory>,
    pub share: Option<Share>,
    /// Whether either side needs the socket to stay open.
    pub keep_socket: bool,
}

/// How the start of watching a peer went.
pub(crate) enum Watching {
    Watched,
    /// Its death will show at the socket.
    BySocket,
    Dead,
}

impl ControlThread {
    /// Finds out who is at the other end of a handshake's socket, and watches it.
    pub(super) fn watch_peer(&mut self, id: u64) -> std::io::Result<Watching> {
        let Some(handshake) = self.handshakes.get(&id) else {
            return Ok(Watching::Dead);
        };
        let (Some(socket), Some(credentials)) = (&handshake.socket, handshake.credentials) else {
            return Ok(Watching::Dead);
        };
        let pidfd = match socket::liveness(socket.as_fd(), credentials)? {
            Liveness::Pidfd(pidfd) => pidfd,
            Liveness::Socket => return Ok(Watching::BySocket),
            Liveness::Dead => return Ok(Watching::Dead),
        };
        let process = match self.processes.watch(pidfd, credentials.pid, Holder::Handshake(id)) {
            Watched::Dead => return Ok(Watching::Dead),
            Watched::Known(process) => process,
            Watched::New(process) => {
                self.watch_process(process, epoll::EventFlags::IN)?;
                process
            }
        };
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            handshake.process = Some(process);
        }
        Ok(Watching::Watched)
    }

    /// What this endpoint says of itself.
    pub(super) fn introduce(&self, station: u64, keep_socket: bool) -> Option<Reply> {
        let record = self.stations.get(&station)?;
        let nonce_address = if record.cma { self.nonce_address } else { 0 };
        Some(Reply {
            asymmetric: crate::barrier::asymmetric(),
            keep_socket,
            reads_you: false,
            incarnation: record.incarnation,
            address: record.address,
            nonce_address,
            nonce: self.nonce,
        })
    }

    /// Whether the peer's memory can be read: how, if so, and one log line if not.
    pub(super) fn probe(
        &self,
        station: u64,
        credentials: PeerCredentials,
        peer: &Reply,
        end_mark: PeerEndMark,
    ) -> Option<PeerMemory> {
        let wanted = self.stations.get(&station)?.cma;
        let address = if wanted { peer.nonce_address } else { 0 };
        match cma::probe(credentials.pid, address, &peer.nonce, end_mark) {
            Ok(memory) => Some(memory),
            Err(cma::ProbeFailure::Off) => None,
            Err(reason) => {
                let address = peer.address;
                tracing::info!(peer = %address, "no single-copy reads from this peer: {reason}");
                None
            }
        }
    }

    /// Turns a finished handshake's watch into the station's, and names the peer.
    ///
    /// Called just before the station's event is pushed.
    pub(super) fn establish(
        &mut self,
        handshake: Handshake,
        id: u64,
        peer: &Reply,
        memory: Option<PeerMemory>,
        keep_socket: bool,
    ) -> std::io::Result<PeerIdentity> {
        let holder = Holder::Station(handshake.station);
        let pid = handshake.credentials.and_then(|peer| peer.pid);
        let mut kept = None;
        let process = match (handshake.process, handshake.socket) {
            (Some(process), socket) => {
                self.processes.hold(process, holder);
                if let Some(watch) = self.processes.release(process, Holder::Handshake(id)) {
                    self.unwatch(watch);
                }
                match socket {
                    Some(socket) if keep_socket => {
                        kept = Some(self.keep_for_peer(handshake.station, socket));
                    }
                    socket => self.close_socket(socket),
                }
                process
            }
            (None, Some(socket)) => {
                let process = self.processes.watch_socket(socket, holder);
                self.watch_by_socket(process)?;
                process
            }
            (None, None) => return Err(std::io::ErrorKind::NotConnected.into()),
        };
        Ok(PeerIdentity {
            address: peer.address,
            incarnation: peer.incarnation,
            process,
            pid,
            life: self.processes.life(process),
            memory,
            reads_us: peer.reads_you,
            asymmetric: peer.asymmetric,
            key: ONLY_KEY,
            share: None,
            _kept: kept,
        })
    }

    /// Takes a handshake out of every table. Its socket closes when the result is dropped.
    pub(super) fn take_handshake(&mut self, id: u64) -> Option<Handshake> {
        self.set_timer(id, None);
        let handshake = self.handshakes.remove(&id)?;
        match &handshake.stage {
            Stage::Connecting(connecting) => {
                self.connecting -= usize::from(connecting.admitted);
            }
            Stage::AwaitHello | Stage::AwaitConfirm(_) => {
                self.accepting.remove(&id);
                if let Some(record) = self.stations.get_mut(&handshake.station) {
                    record.accepting -= 1;
                }
            }
        }
        Some(handshake)
    }

    /// Lets go of a handshake's watch, without which it is over.
    pub(super) fn release_watch(&mut self, id: u64, process: Option<ProcessId>) {
        let watch = process.and_then(|p| self.processes.release(p, Holder::Handshake(id)));
        if let Some(watch) = watch {
            self.unwatch(watch);
        }
    }

    /// Ends a handshake without an event: its socket, lane and descriptors are closed.
    pub(super) fn drop_handshake(&mut self, id: u64) {
        if let Some(handshake) = self.take_handshake(id) {
            self.close_socket(handshake.socket);
            self.release_watch(id, handshake.process);
        }
    }

    /// Closes a socket for good. A forked child of ours may hold a copy: without the shutdown the
    /// peer would wait for that one, and without the deletion epoll would go on telling of it.
    pub(super) fn close_socket(&self, socket: Option<Socket>) {
        if let Some(socket) = socket {
            let _ = epoll::delete(&self.epoll, &socket);
            socket::hang_up(&socket);
        }
    }

    /// Sets, moves or ends a handshake's timer.
    pub(super) fn set_timer(&mut self, id: u64, at: Option<Instant>) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut handshake.timer, at) {
            self.timers.remove(&(old, Timer::Handshake(id)));
        }
        if let Some(at) = at {
            self.timers.insert((at, Timer::Handshake(id)));
        }
    }

    pub(super) fn watch_socket(&mut self, id: u64) -> std::io::Result<()> {
        let socket = self.handshakes.get(&id).and_then(|h| h.socket.as_ref());
        let Some(socket) = socket else { return Ok(()) };
        epoll::add(&self.epoll, socket, Token::Handshake(id).data(), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// `base`, less or more by up to a quarter, so that many who wait do not return as one.
    pub(super) fn jittered(&mut self, base: Duration) -> Duration {
        // xorshift64: its quality does not matter, that processes differ does.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let part = (self.jitter >> 11) as f64 / (1u64 << 53) as f64;
        base.mul_f64(0.75 + part / 2.0)
    }
}
