//! An attempt over TCP: the connection, what the peer greets with, our question, its answer.

use std::{io, time::Instant};

use kestrel_core::auth_key::AuthKey;
use rustix::{event::epoll::EventFlags, io::Errno};

use super::{Step, check_answer};
use crate::{
    control::{
        error::ConnectError,
        line::Line,
        offer::Offer,
        proof::{self, Speaker},
        random,
        socket::{self, Received, Socket},
        thread::{ControlThread, Token},
        wire::{Accept, Hello, Message, Nonce, RejectReason, WireError, is_one_place},
    },
    receive_pool::BUFFER_BYTES,
    verbs::Verbs,
};

/// What was sent, and what for.
pub(super) struct Asked<V: Verbs> {
    pub(super) socket: Socket,
    input: Vec<u8>,
    offer: Offer<V>,
    /// Theirs and ours.
    nonces: [Nonce; 2],
}

impl<V: Verbs> ControlThread<V> {
    /// Begins an attempt over TCP.
    pub(super) fn attempt_tcp(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let (to, until) = (outgoing.to, outgoing.way.tcp_until(outgoing.deadline, Instant::now()));
        match socket::begin_connect(record.address, to, record.silence_max) {
            Ok(socket) => {
                let watched = self.watch(id, &socket, EventFlags::OUT);
                if let Some(outgoing) = self.outgoing.get_mut(&id) {
                    outgoing.step = Step::Connecting(socket);
                    outgoing.obstacle = "its host is silent".into();
                }
                self.wait_until(id, until);
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
                outgoing.way.tcp_led_nowhere();
                self.try_again(id, source.to_string());
            }
            Some(Errno::NETUNREACH) => self.fail(id, ConnectError::Route { to, source }),
            _ => self.fail(id, ConnectError::System { to, call: "connecting", source }),
        }
    }

    pub(in crate::control) fn outgoing_ready(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        if let Step::Connecting(socket) = &outgoing.step {
            if !socket::is_writable(socket) {
                return;
            }
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
            Received::Silent(reason) | Received::Gone(reason) => {
                outgoing.way.tcp_let_go();
                self.try_again(id, reason);
            }
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
        if no_path && outgoing.way.no_path_there() {
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
        let data = Token::Handshake(id).data();
        let watched = rustix::event::epoll::modify(&self.epoll, &socket, data, EventFlags::IN);
        outgoing.step = Step::Greeting(socket, Vec::new());
        if let Err(errno) = watched {
            let to = outgoing.to;
            return self
                .fail(id, ConnectError::System { to, call: "epoll_ctl", source: errno.into() });
        }
        self.wait_until(id, deadline);
    }

    fn greeted(&mut self, id: u64, theirs: Nonce) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        if !matches!(outgoing.step, Step::Greeting(..)) {
            return self.try_again(id, "it greets twice".into());
        }
        let to = outgoing.to;
        let Some(key) = record.keys.told().and_then(|keys| keys.get(outgoing.key)) else {
            return self.fail(id, ConnectError::Unproven { to });
        };
        let offer = match Offer::new(record) {
            Ok(offer) => offer,
            Err(source) => return self.fail(id, ConnectError::Verbs { to, source }),
        };
        let Step::Greeting(socket, input) = std::mem::replace(&mut outgoing.step, Step::Pausing)
        else {
            return;
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
        let key = record.keys.told().and_then(|keys| keys.get(outgoing.key));
        let proves =
            |key: &AuthKey| proof::is_signed(key.bytes(), Speaker::Accepts, [theirs, ours], bytes);
        let (proved, from) = (key.is_some_and(proves), accept.from);
        let is_meant = is_one_place(from, to);
        let joined = check_answer(to, proved, is_meant, from, accept.buffer_bytes).and_then(|()| {
            let (device, port) = (record.shared.device.name(), &record.shared.origin.port);
            let join = || asked.offer.join(record, &accept.end);
            let joined = self.nowhere.look(device, port, to.ip(), &accept.end, join);
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
}
