//! Requests for connections and their answers, as packets. Reference: fi_cm(3).
//!
//! A peer that says anything of this out of turn breaks the protocol and loses its lane:
//! what it can hurt is its own request.

use crate::{
    address::{Address, AddressFormat},
    auth_key::ONLY_KEY,
    connection::{
        CM_DATA_SIZE, ConnectionError,
        manager::{Connection, Control, Link, Listener, Manager, Pending, Promise, Stage},
        nonce,
        request::{Answer, AskedFor},
    },
    engine::{Engine, Over, peer::PeerState},
    error::{Cause, Errno},
    event_queue::Event,
    memory::Piece,
    transport::{PeerIndex, Transport},
    wire::{FULL, Head, Kind, UNANSWERED, WITHDRAWN},
};

impl<T: Transport> Engine<T> {
    fn connection(&mut self) -> Option<&mut Connection> {
        self.manager.as_deref_mut().and_then(Manager::connection)
    }

    /// The connection, if it has come just so far.
    fn connection_in(&mut self, stage: Stage) -> Option<&mut Connection> {
        self.connection().filter(|connection| connection.stage == stage)
    }

    /// Asks whoever listens at `address` for a connection.
    pub(crate) fn connect(
        &mut self,
        address: Address,
        data: Vec<u8>,
    ) -> Result<(), ConnectionError> {
        let listener = self.peer_of(address, ONLY_KEY);
        let connection =
            self.connection_in(Stage::Fresh).ok_or(ConnectionError::ConnectedBefore)?;
        let nonce = nonce();
        connection.stage = Stage::Asked;
        connection.nonce = nonce;
        connection.listener = Some(listener);
        connection.asked_at = Some(address);
        self.say(listener, Kind::Request, nonce, data);
        Ok(())
    }

    /// Accepts the request `nonce` of whoever is at `address`.
    pub(crate) fn accept(
        &mut self,
        address: Address,
        nonce: u64,
        data: Vec<u8>,
        promise: Box<dyn Promise>,
    ) -> Result<(), ConnectionError> {
        let peer = self.peer_of(address, ONLY_KEY);
        let connection =
            self.connection_in(Stage::Fresh).ok_or(ConnectionError::ConnectedBefore)?;
        connection.stage = Stage::Answering;
        connection.nonce = nonce;
        connection.peer = Some(peer);
        connection.promise = Some(promise);
        self.say(peer, Kind::Accept, nonce, data);
        Ok(())
    }

    /// Sets a request aside for an endpoint that will accept it.
    pub(crate) fn take_request(&mut self, handle: u64) -> Result<AskedFor, ConnectionError> {
        let pending = self.pending(handle)?;
        if std::mem::replace(&mut pending.taken, true) {
            return Err(ConnectionError::RequestOver { handle });
        }
        let Pending { peer, nonce, ref answer, .. } = *pending;
        let answer = answer.clone();
        let (address, listener) = (self.peers[peer as usize].address, self.transport.address());
        Ok(AskedFor { address, listener, nonce, answer })
    }

    /// Whether a request is answered, or nobody waits for that any more.
    pub(crate) fn is_over(&mut self, handle: u64) -> bool {
        matches!(self.pending(handle), Err(ConnectionError::RequestOver { .. }))
    }

    /// Has a request that was set aside wait for an answer again.
    pub(crate) fn return_request(&mut self, handle: u64) {
        if let Ok(pending) = self.pending(handle) {
            pending.taken = false;
        }
    }

    /// Turns down a request that nobody has answered, for the application or for want of an
    /// answer. An endpoint that was opened from it cannot accept it any more. Who has yet to hear of it.
    pub(crate) fn reject(
        &mut self,
        handle: u64,
        data: Vec<u8>,
        unanswered: bool,
    ) -> Result<PeerIndex, ConnectionError> {
        let pending = self.pending(handle)?;
        let (peer, nonce) = (pending.peer, pending.nonce);
        if !pending.answer.give() {
            return Err(ConnectionError::RequestOver { handle });
        }
        if let Some(listener) = self.manager.as_deref_mut().and_then(Manager::listener) {
            listener.pending.remove(&handle);
        }
        let flags = if unanswered { UNANSWERED } else { 0 };
        self.say_with(peer, Kind::Reject, flags, nonce, data);
        Ok(peer)
    }

    /// Turns a request down that was accepted: who did went before the caller heard of it.
    pub(crate) fn withdraw(&mut self, handle: u64) {
        let listener = self.manager.as_deref_mut().and_then(Manager::listener);
        // A caller that has let go of us has heard of it.
        if let Some(pending) = listener.and_then(|listener| listener.pending.remove(&handle)) {
            self.say_with(pending.peer, Kind::Reject, WITHDRAWN, pending.nonce, Vec::new());
        }
    }

    /// Tells of no request any more, and turns every one down that no endpoint was opened from, and
    /// whoever comes.
    pub(crate) fn refuse_all(&mut self) {
        let Some(listener) = self.manager.as_deref_mut().and_then(Manager::listener) else {
            return;
        };
        listener.reporter = None;
        let waiting = listener.pending.iter().filter(|(_, pending)| !pending.taken);
        let handles: Vec<u64> = waiting.map(|(&handle, _)| handle).collect();
        for handle in handles {
            // It was there a moment ago.
            let _ = self.reject(handle, Vec::new(), true);
        }
    }

    /// Whether a listener has requests that are not answered, or whose callers have yet to hear so.
    pub(crate) fn has_requests(&mut self) -> bool {
        let listener = self.manager.as_deref_mut().and_then(Manager::listener);
        listener.is_some_and(|listener| !listener.pending.is_empty())
    }

    fn pending(&mut self, handle: u64) -> Result<&mut Pending, ConnectionError> {
        let listener = self.manager.as_deref_mut().and_then(Manager::listener);
        let listener = listener.ok_or(ConnectionError::NotListening)?;
        let over = handle != 0 && handle <= listener.last_handle;
        listener.pending.get_mut(&handle).ok_or(match over {
            true => ConnectionError::RequestOver { handle },
            false => ConnectionError::UnknownRequest { handle },
        })
    }

    /// Whether an answer to a request has not left yet.
    pub(crate) fn has_controls(&self) -> bool {
        (0..self.peers.len() as PeerIndex).any(|peer| self.has_control(peer))
    }

    /// Whether what is to be said to `peer` about connections has not left yet.
    pub(crate) fn has_control(&self, peer: PeerIndex) -> bool {
        matches!(self.peers[peer as usize].control.as_deref(), Some(Control::Packet { .. }))
    }

    /// The other end, while there is one: for a caller the address that it asked.
    pub(crate) fn connected_peer(&mut self) -> Option<Address> {
        let connection = self.connection_in(Stage::Connected)?;
        let (peer, asked_at) = (connection.peer?, connection.asked_at);
        Some(asked_at.unwrap_or(self.peers[peer as usize].address))
    }

    /// How far the connection has come; up, where there is none to wait for.
    pub(crate) fn link(&mut self) -> Link {
        self.connection().map_or(Link::Up, |connection| connection.stage.link())
    }

    /// Whether `peer` may send messages and one-sided operations: with connections, the
    /// one at the other end alone.
    pub(crate) fn hears(&self, peer: PeerIndex) -> bool {
        match self.manager.as_deref() {
            None => true,
            Some(Manager::Listener(_)) => false,
            Some(Manager::Connection(connection)) => connection.hears(peer),
        }
    }

    /// Whether what `peer` still sends is dropped: it has not heard of our shutdown yet.
    pub(crate) fn ignores(&mut self, peer: PeerIndex) -> bool {
        self.connection_in(Stage::Leaving).is_some_and(|connection| connection.peer == Some(peer))
    }

    /// Whether a packet that is no plain message may come from `peer`, where connections are.
    #[cold]
    pub(crate) fn admits(&mut self, peer: PeerIndex, kind: Option<Kind>) -> bool {
        let about_connections = kind.is_none_or(|kind| {
            use Kind::{Accept, Bye, Established, Reject, Request};
            matches!(kind, Bye | Request | Accept | Reject | Established)
        });
        if about_connections || self.hears(peer) {
            return true;
        }
        self.violation(peer, "there is no connection to it");
        false
    }

    pub(crate) fn say(&mut self, peer: PeerIndex, kind: Kind, nonce: u64, data: Vec<u8>) {
        self.say_with(peer, kind, 0, nonce, data);
    }

    fn say_with(&mut self, peer: PeerIndex, kind: Kind, flags: u8, nonce: u64, data: Vec<u8>) {
        self.set_control(peer, Control::Packet { kind, flags, nonce, data });
        self.pump(peer);
    }

    fn set_control(&mut self, peer: PeerIndex, control: Control) {
        self.peers[peer as usize].control = Some(Box::new(control));
        self.note_backlog(peer);
    }

    /// Pushes what is to be said to `peer` about connections. False if it has to wait.
    #[cold]
    pub(crate) fn push_control(&mut self, peer: PeerIndex) -> bool {
        let (kind, nonce) = match self.peers[peer as usize].control.take().map(|it| *it) {
            None => return true,
            Some(Control::HangUp) => {
                self.hang_up(peer);
                return false;
            }
            Some(Control::Packet { kind, flags, nonce, mut data }) => {
                let ready = self.peers[peer as usize].state == PeerState::Ready;
                let (head, payload) = (Head::new(kind, flags), Piece::of_owned(&mut data));
                if !ready || !self.transport.push(peer, head, nonce, &[], payload) {
                    let control = Control::Packet { kind, flags, nonce, data };
                    self.peers[peer as usize].control = Some(Box::new(control));
                    if !ready {
                        self.ensure_connection(peer);
                    }
                    return false;
                }
                (kind, nonce)
            }
        };
        if kind == Kind::Established
            && self.connection_in(Stage::Confirming).is_some_and(|it| it.nonce == nonce)
        {
            self.establish();
        }
        true
    }

    /// Lets go of a peer that nothing else is left to say to, which lets go of us when it hears so.
    fn hang_up(&mut self, peer: PeerIndex) {
        let reason = "there is nothing left to say".to_owned();
        self.let_go(peer, &Cause { errno: Errno::CONNRESET, reason });
    }

    /// A packet about connections. Its data is bounded, its words are checked.
    #[cold]
    #[inline(never)]
    pub(crate) fn arrive_control(
        &mut self,
        peer: PeerIndex,
        kind: Kind,
        flags: u8,
        nonce: u64,
        length: usize,
    ) {
        if length > CM_DATA_SIZE {
            return self.violation(peer, "it sent more data with a connection than there may be");
        }
        let mut data = vec![0; length];
        self.transport.copy_out(0, Piece::of_owned(&mut data));
        let in_turn = match kind {
            Kind::Request => self.arrive_request(peer, nonce, data),
            Kind::Accept => self.arrive_accept(peer, nonce, data),
            Kind::Reject => self.arrive_reject(peer, flags, nonce, data),
            _ => self.arrive_established(peer, nonce),
        };
        if !in_turn {
            self.violation(peer, &format!("{kind:?} is not what this endpoint waits for"));
        }
    }

    fn arrive_request(&mut self, peer: PeerIndex, nonce: u64, data: Vec<u8>) -> bool {
        let address = self.peers[peer as usize].address;
        let own = self.transport.address();
        let Some(listener) = self.manager.as_deref_mut().and_then(Manager::listener) else {
            return false;
        };
        if listener.pending.values().any(|pending| pending.peer == peer) {
            return false;
        }
        let Some(reporter) = listener.reporter.clone() else {
            self.say_with(peer, Kind::Reject, UNANSWERED, nonce, Vec::new());
            return true;
        };
        if listener.is_full() {
            tracing::info!("the backlog is full: a request of {address} is rejected");
            self.say_with(peer, Kind::Reject, FULL, nonce, Vec::new());
            return true;
        }
        listener.last_handle += 1;
        let handle = listener.last_handle;
        let pending = Pending { peer, nonce, taken: false, answer: Answer::default() };
        listener.pending.insert(handle, pending);
        let mut info = listener.info.clone();
        info.handle = handle;
        info.source = Some(own.with_port(0));
        info.destination = Some(address);
        if !(info.address_format.holds(&own) && info.address_format.holds(&address)) {
            // The caller's may be of another family than the one that we listen at.
            info.address_format = AddressFormat::SockAddr;
        }
        reporter.queue.catch_up();
        reporter.push(Event::ConnectionRequest { fid: reporter.fid, info, data });
        true
    }

    fn arrive_accept(&mut self, peer: PeerIndex, nonce: u64, data: Vec<u8>) -> bool {
        let Some(connection) = self.connection().filter(|it| it.nonce == nonce) else {
            return false;
        };
        match connection.stage {
            Stage::Asked => {}
            // Who sent this has gone, and the listener's word of it was faster.
            Stage::Over => {
                self.set_control(peer, Control::HangUp);
                return true;
            }
            _ => return false,
        }
        connection.stage = Stage::Confirming;
        connection.peer = Some(peer);
        connection.data = data;
        let listener = connection.listener.take();
        self.open_flow(peer);
        if let Some(listener) = listener.filter(|&listener| listener != peer) {
            // Not now: the transport has a packet in hand.
            self.set_control(listener, Control::HangUp);
        }
        self.say(peer, Kind::Established, nonce, Vec::new());
        true
    }

    fn arrive_reject(&mut self, peer: PeerIndex, flags: u8, nonce: u64, data: Vec<u8>) -> bool {
        let listener = self.peers[peer as usize].address;
        let Some(connection) = self.connection().filter(|it| it.nonce == nonce) else {
            return false;
        };
        if connection.stage != Stage::Asked {
            // Who had accepted has gone, which its own lane tells, or has told.
            return flags == WITHDRAWN;
        }
        if connection.listener != Some(peer) {
            return false;
        }
        connection.stage = Stage::Over;
        connection.listener = None;
        let reason = match flags {
            FULL => format!("as many requests wait at {listener} as its backlog allows"),
            UNANSWERED => format!("{listener} was closed without an answer to the request"),
            WITHDRAWN => format!("who accepted the request at {listener} went at once"),
            _ => format!("the application at {listener} rejected the request"),
        };
        connection.reporter.fail(Errno::CONNREFUSED, reason, data);
        self.over = Some(Over::Connection);
        self.set_control(peer, Control::HangUp);
        self.fail_all_posted(&canceled_since("the connection was rejected"));
        true
    }

    fn arrive_established(&mut self, peer: PeerIndex, nonce: u64) -> bool {
        let waits = self.connection_in(Stage::Answering);
        if waits.is_none_or(|waits| waits.nonce != nonce || waits.peer != Some(peer)) {
            return false;
        }
        self.open_flow(peer);
        self.establish();
        true
    }

    /// Both ends know of each other: messages may pass.
    fn establish(&mut self) {
        let Some(connection) = self.manager.as_deref_mut().and_then(Manager::connection) else {
            return;
        };
        connection.stage = Stage::Connected;
        if let Some(promise) = connection.promise.take() {
            promise.keep();
        }
        if let Some(peer) = connection.peer {
            // An empty vector takes one address.
            let _ = connection.vector.insert_one(self.peers[peer as usize].address);
        }
        let (fid, data) = (connection.reporter.fid, std::mem::take(&mut connection.data));
        connection.reporter.push(Event::Connected { fid, data });
    }

    /// "Outstanding operations posted to the endpoint when fi_shutdown is called will be
    /// canceled or discarded. … all canceled completions will be written before fi_shutdown
    /// returns." They are canceled.
    pub(crate) fn shutdown(&mut self) -> Result<(), ConnectionError> {
        let stage = self.connection().map_or(Stage::Fresh, |connection| connection.stage);
        match stage {
            Stage::Connected => {}
            Stage::Leaving | Stage::Over => return Ok(()),
            _ => return Err(ConnectionError::NotConnected),
        }
        let Some(connection) = self.connection() else {
            return Err(ConnectionError::NotConnected);
        };
        connection.stage = Stage::Leaving;
        let _ = connection.vector.remove(&[0]);
        let Some(peer) = connection.peer else {
            return Err(ConnectionError::NotConnected);
        };
        self.over = Some(Over::Connection);
        self.end_single_copy(peer);
        let ready = self.peers[peer as usize].state == PeerState::Ready;
        // What was sent before is the peer's to read, so the lanes stay until it lets go.
        let told = ready && self.push_bye(peer);
        let why = canceled_since("the connection was shut down");
        if self.peers[peer as usize].window.under_way > 0 {
            // Buffers are the application's again when their operations are canceled.
            self.transport.close_window(peer);
        }
        self.take_confirmed_of(peer);
        self.take_loans_back(peer);
        self.fail_operations(peer, &why);
        self.fail_all_posted(&why);
        if !told {
            self.hang_up(peer);
        }
        Ok(())
    }

    /// Everything that `peer` was part of has failed: what that is to connections.
    #[cold]
    pub(crate) fn lose(&mut self, peer: PeerIndex, why: &Cause) {
        match self.manager.as_deref_mut() {
            None => {}
            Some(Manager::Listener(listener)) => {
                let Listener { pending, reporter, .. } = listener;
                pending.retain(|&handle, pending| {
                    let stays = pending.peer != peer;
                    if let Some(reporter) = reporter.as_ref().filter(|_| !stays) {
                        reporter.queue.retract_request(reporter.fid, handle);
                    }
                    stays
                });
            }
            Some(Manager::Connection(connection)) => {
                let (listener, other) = (connection.listener, connection.peer);
                if listener == Some(peer) || other == Some(peer) {
                    self.end_connection(why);
                }
            }
        }
    }

    fn end_connection(&mut self, why: &Cause) {
        let Some(connection) = self.connection() else {
            return;
        };
        let (fid, reason) = (connection.reporter.fid, &why.reason);
        match std::mem::replace(&mut connection.stage, Stage::Over) {
            Stage::Fresh | Stage::Over => return,
            Stage::Connected | Stage::Leaving => {
                // It is not there if this side has shut down.
                let _ = connection.vector.remove(&[0]);
                connection.reporter.push(Event::Shutdown { fid });
            }
            // Whoever was asked lets go without an answer.
            Stage::Asked if matches!(why.errno, Errno::CONNRESET | Errno::CONNABORTED) => {
                let reason = format!("who was asked takes no requests for connections: {reason}");
                connection.reporter.fail(Errno::CONNREFUSED, reason, Vec::new());
            }
            Stage::Asked => {
                let reason = format!("nobody listens there: {reason}");
                connection.reporter.fail(why.errno, reason, Vec::new());
            }
            Stage::Answering | Stage::Confirming => {
                let reason = format!("the peer went before the connection stood: {reason}");
                connection.reporter.fail(Errno::CONNABORTED, reason, Vec::new());
            }
        }
        connection.listener = None;
        drop(connection.promise.take());
        self.over = Some(Over::Connection);
        self.fail_all_posted(&canceled_since("the connection is over"));
    }
}

fn canceled_since(why: &str) -> Cause {
    Cause { errno: Errno::CANCELED, reason: why.to_owned() }
}
