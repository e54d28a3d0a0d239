//! The side of a handshake that is connected to, and will receive.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use kestrel_core::{address::canonical, auth_key::AuthKey};
use rustix::{
    event::epoll::{self, EventFlags},
    io::Errno,
};

mod connected;
mod heard;
mod managed;
mod shares;

use self::shares::SILENCE_MAX;
pub(super) use self::{connected::Connected, heard::Heard, shares::Abandoned};
use super::{
    ManagedIdOf,
    line::Line,
    offer::{Answer, Caller},
    proof::{self, Speaker},
    random,
    socket::{self, Received, Socket},
    thread::{ControlThread, RESUME},
    wire::{Accept, Hello, Message, Nonce, RejectReason, WireError, is_one_place},
};
use crate::{
    receive_pool::BUFFER_BYTES,
    station::PeerIdentity,
    verbs::{QueuePair, Verbs},
};

/// Handshakes that others began, at a time; the next ones wait in the kernel.
const ACCEPTING_MAX: usize = 256;
/// How long a peer may be silent before HELLO.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// How long no connection is taken when one could not be, for want of descriptors say.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// What the end that receives can have under way, each of which asks for a completion: its credit, the count
/// by which it lets go, and a sign of life. One less than a power of two, as with [`super::SENDS_MAX`].
pub const WRITES_MAX: u32 = 3;

/// A handshake that a peer began.
pub(super) struct Incoming<V: Verbs> {
    pub station: u64,
    asker: Asker<V>,
    from: SocketAddr,
    since: Instant,
    /// Once the HELLO was good: what was made for the peer, which may already send.
    answer: Option<Answer<V>>,
}

/// What carries it.
enum Asker<V: Verbs> {
    Tcp { socket: Socket, input: Vec<u8>, nonce: Nonce },
    Managed(ManagedIdOf<V>),
}

impl<V: Verbs> Incoming<V> {
    /// Whether the peer that sends to that queue pair of ours has its answer, and is waited for.
    pub fn awaits(&self, queue_pair: u32) -> bool {
        let number = self.answer.as_ref().and_then(Answer::queue_pair);
        number == Some(queue_pair)
    }

    /// The id, if it goes through the connection manager.
    pub fn id(&self) -> Option<&ManagedIdOf<V>> {
        match &self.asker {
            Asker::Tcp { .. } => None,
            Asker::Managed(id) => Some(id),
        }
    }

    fn socket(&self) -> Option<&Socket> {
        match &self.asker {
            Asker::Tcp { socket, .. } => Some(socket),
            Asker::Managed(_) => None,
        }
    }
}

impl<V: Verbs> ControlThread<V> {
    pub(super) fn listener_readable(&mut self, station: u64) {
        loop {
            let Some(record) = self.stations.get(&station) else {
                return;
            };
            if self.is_full() {
                if !socket::is_readable(&record.listener) {
                    // Nobody is waited for: whoever has a place keeps it.
                    return;
                }
                if !self.end_a_silent_one() {
                    break;
                }
                continue;
            }
            match socket::accept(&record.listener, record.silence_max) {
                Ok(socket) => {
                    self.told_untaken = false;
                    self.greet(station, socket);
                }
                Err(Errno::AGAIN) => return,
                // The connection was over before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => {
                    if !std::mem::replace(&mut self.told_untaken, true) {
                        let address = record.address;
                        tracing::warn!(%address, "a connection is not taken: {errno}; it is tried again");
                    }
                    self.set_timer(RESUME, Some(Instant::now() + PAUSE));
                    return self.stop_listening();
                }
            }
        }
        self.set_timer(RESUME, Some(Instant::now() + SILENCE_MAX));
        self.stop_listening();
    }

    /// Takes no more connections until a handshake has ended, or a pause.
    fn stop_listening(&mut self) {
        if !std::mem::replace(&mut self.deaf, true) {
            for record in self.stations.values() {
                let _ = epoll::delete(&self.epoll, &record.listener);
            }
        }
    }

    fn greet(&mut self, station: u64, socket: Socket) {
        let Ok(from) = socket.peer_addr() else {
            return socket::hang_up(&socket);
        };
        let id = self.next_id();
        let nonce = random();
        let greeted = socket::send(&socket, &Message::Greeting(nonce).encode());
        if greeted.and_then(|()| self.watch(id, &socket, EventFlags::IN)).is_err() {
            return socket::hang_up(&socket);
        }
        let from = canonical(from);
        let asker = Asker::Tcp { socket, input: Vec::new(), nonce };
        let since = Instant::now();
        self.incoming.insert(id, Incoming { station, asker, from, since, answer: None });
        self.set_timer(id, Some(since + HELLO_WAIT));
    }

    pub(super) fn incoming_timer(&mut self, id: u64) {
        if self.is_late(id) {
            self.drop_incoming(id, "it is silent");
        }
    }

    /// Takes a handshake out of every table. A queue pair that was joined goes to the engine.
    pub(super) fn take_incoming(&mut self, id: u64) {
        let Some(incoming) = self.incoming.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        if let Some(socket) = incoming.socket() {
            self.close(socket);
        }
        if let Some(answer) = incoming.answer {
            self.abandon(incoming.station, incoming.from.ip(), answer);
        }
        self.resume_listening();
    }

    pub(super) fn resume_listening(&mut self) {
        let unwatched = std::mem::take(&mut self.unwatched);
        if std::mem::take(&mut self.deaf) {
            let stations: Vec<u64> = self.stations.keys().copied().collect();
            stations.into_iter().for_each(|station| self.listen(station));
        } else {
            unwatched.into_iter().for_each(|station| self.listen(station));
        }
        self.told_unwatched &= !self.unwatched.is_empty();
    }

    fn drop_incoming(&mut self, id: u64, why: &str) {
        if let Some(incoming) = self.incoming.get(&id) {
            tracing::info!(from = %incoming.from, "a connection was refused: {why}");
        }
        self.take_incoming(id);
    }

    fn reject(&mut self, id: u64, reason: RejectReason, why: &str) {
        if let Some(socket) = self.incoming.get(&id).and_then(Incoming::socket) {
            // Who does not read it is told by the hang-up.
            let _ = socket::send(socket, &Message::Reject(reason).encode());
        }
        self.drop_incoming(id, why);
    }

    pub(super) fn incoming_ready(&mut self, id: u64) {
        let Some(incoming) = self.incoming.get_mut(&id) else {
            return;
        };
        let Asker::Tcp { socket, input, .. } = &mut incoming.asker else {
            return;
        };
        match socket::receive(socket, input) {
            Received::Nothing => {}
            Received::Message(Message::Hello(hello), bytes) if incoming.answer.is_none() => {
                self.hello(id, &hello, &bytes);
            }
            Received::Message(Message::Confirm, _) if incoming.answer.is_some() => {
                self.confirmed(id)
            }
            Received::Message(message, _) => {
                self.drop_incoming(id, &format!("it said {message:?} out of turn"));
            }
            Received::Silent(reason) | Received::Gone(reason) => self.drop_incoming(id, &reason),
            Received::Bad(WireError::OtherVersion { theirs }) => {
                let why = WireError::OtherVersion { theirs }.to_string();
                self.reject(id, RejectReason::Version, &why);
            }
            Received::Bad(error) => self.drop_incoming(id, &error.to_string()),
        }
    }

    fn hello(&mut self, id: u64, hello: &Hello, bytes: &[u8]) {
        let Some(incoming) = self.incoming.get(&id) else {
            return;
        };
        let (station, host) = (incoming.station, incoming.from.ip());
        if !self.may_answer(station, host) {
            return self.drop_incoming(id, "too many handshakes of its host are under way");
        }
        let Some(incoming) = self.incoming.get(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&incoming.station) else {
            return;
        };
        let Asker::Tcp { nonce, .. } = &incoming.asker else {
            return;
        };
        let nonces = [nonce, &hello.nonce];
        let Some(keys) = record.keys.told() else {
            // Whoever comes before somebody listens asks again and again.
            tracing::debug!(address = %record.address, "not enabled, and has no key yet");
            self.take_incoming(id);
            return;
        };
        let proves = |key: &[u8]| proof::is_signed(key, Speaker::Connects, nonces, bytes);
        let proved = keys.proved(proves).and_then(|number| keys.get(number)).cloned();
        let Some(key) = proved else {
            return self.reject(id, RejectReason::Key, &RejectReason::Key.to_string());
        };
        let has_place = record.datagrams.is_none()
            || self.heard.has_place(incoming.station, incoming.from.ip());
        if !has_place {
            let why = "as many senders of datagrams of its host are heard as one may have";
            return self.reject(id, RejectReason::Resources, why);
        }
        let refused = if !is_one_place(hello.wanted, record.address) {
            Some(RejectReason::Wanted)
        } else if hello.service != record.service() {
            Some(RejectReason::Service)
        } else if hello.from.ip() != incoming.from.ip() {
            Some(RejectReason::Address)
        } else if hello.buffer_bytes != BUFFER_BYTES as u32 {
            Some(RejectReason::Limits)
        } else {
            None
        };
        if let Some(reason) = refused {
            return self.reject(id, reason, &reason.to_string());
        }
        let confirm_wait = record.confirm_wait;
        match self.join(id, hello, &key) {
            Ok(answer) => {
                let Some(socket) = self.incoming.get(&id).and_then(Incoming::socket) else {
                    return;
                };
                if let Err(error) = socket::send(socket, &answer) {
                    return self.drop_incoming(id, &error.to_string());
                }
                self.set_timer(id, Some(Instant::now() + confirm_wait));
                // A peer that is quick has confirmed already.
                self.incoming_ready(id);
            }
            Err((reason, why)) => self.reject(id, reason, &why),
        }
    }

    /// Makes what the peer asks for: the ACCEPT.
    fn join(
        &mut self,
        id: u64,
        hello: &Hello,
        key: &AuthKey,
    ) -> Result<Vec<u8>, (RejectReason, String)> {
        const GONE: (RejectReason, String) = (RejectReason::Wanted, String::new());
        let incoming = self.incoming.get_mut(&id).ok_or(GONE)?;
        let record = self.stations.get(&incoming.station).ok_or(GONE)?;
        let Asker::Tcp { nonce, .. } = &incoming.asker else {
            return Err(GONE);
        };
        // By which link it is reached is this host's to say.
        let mut address = incoming.from;
        address.set_port(hello.from.port());
        let peer = PeerIdentity { address, incarnation: hello.incarnation, key: key.number };
        let caller = Caller { peer, credit: hello.credit, place: Some(hello.end) };
        let connected = &mut self.connected;
        let (made, end) = Answer::new(record, id, &caller, connected, |pair, first_packet| {
            let (device, origin) = (record.shared.device.name(), &record.shared.origin);
            let join = || pair.connect(first_packet, origin, &hello.end).map(|()| None);
            self.nowhere.look(device, &origin.port, address.ip(), &hello.end, join)
        })?;
        let accept = Accept {
            incarnation: record.incarnation,
            from: record.address,
            end,
            buffer_bytes: BUFFER_BYTES as u32,
        };
        let mut answer = Message::Accept(Box::new(accept)).encode();
        let nonces = [nonce, &hello.nonce];
        proof::sign(key.bytes(), Speaker::Accepts, nonces, &mut answer);
        incoming.answer = Some(made);
        Ok(answer)
    }

    /// The peer may send, and probably has.
    fn confirmed(&mut self, id: u64) {
        let Some(incoming) = self.incoming.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        let Incoming { station, asker, answer, from, .. } = incoming;
        let datagrams = matches!(answer, Some(Answer::Datagrams { .. }));
        let line = match asker {
            Asker::Tcp { socket, input, .. } => Line::Tcp(socket, input),
            Asker::Managed(id) => Line::Managed(id),
        };
        self.keep_link(id, station, line, datagrams.then(|| from.ip()));
        if let Some(answer) = answer {
            self.tell_incoming(station, answer.confirmed());
        }
        self.look_at_link(id);
        self.resume_listening();
    }
}
