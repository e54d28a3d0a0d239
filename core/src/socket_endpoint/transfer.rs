//! The calls that send and receive. Reference: fi_msg(3).

use std::time::{Duration, Instant};

use super::{Readiness, Received, SocketEndpoint, SocketError, SocketKind, socket::Flow};
use crate::{
    connection::manager::Link,
    endpoint::PostError,
    flags::Flags,
    memory::{Piece, Pieces},
    operation::IOV_LIMIT,
    primitive::yield_now,
    transport::Provider,
};

/// What a send may be told. There are no completions that levels could be meant for.
const SEND_FLAGS: Flags = Flags::MORE
    .union(Flags::INJECT)
    .union(Flags::COMPLETION)
    .union(Flags::INJECT_COMPLETE)
    .union(Flags::TRANSMIT_COMPLETE);
/// What a receive may be told: with `PEEK` what it finds stays.
const RECEIVE_FLAGS: Flags = Flags::PEEK.union(Flags::MORE).union(Flags::COMPLETION);
/// The longest wait inside, as a bound on whatever might go wrong.
const WAIT_MAX: Duration = Duration::from_millis(100);

impl<P: Provider> SocketEndpoint<P> {
    /// Sends bytes of a stream: as many as there is room for, which is answered.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, SocketError> {
        self.send_pieces(Pieces::One(readable(bytes)), 0, Flags::empty())
    }

    /// Sends a datagram to an address of the address vector.
    pub fn send_to(&self, bytes: &[u8], to: u64) -> Result<usize, SocketError> {
        self.send_pieces(Pieces::One(readable(bytes)), to, Flags::empty())
    }

    /// Sends all of it or nothing: at most the inject size. Reference: fi_msg(3), `fi_inject`.
    pub fn inject(&self, bytes: &[u8], to: u64) -> Result<usize, SocketError> {
        self.send_pieces(Pieces::One(readable(bytes)), to, Flags::INJECT)
    }

    /// Sends what is gathered from pieces: what every send call comes down to. The pieces are
    /// read during the call alone. A stream ignores `to`.
    ///
    /// With `INJECT` all of it is sent or nothing. `MORE` and the completion levels ask for
    /// nothing here.
    pub fn send_pieces(
        &self,
        pieces: Pieces<'_>,
        to: u64,
        flags: Flags,
    ) -> Result<usize, SocketError> {
        let mut flow = self.socket.called()?;
        check(&pieces, flags, SEND_FLAGS)?;
        let length = pieces.total();
        if flags.contains(Flags::INJECT) && length > self.inject_size {
            return Err(SocketError::TooLong { length, limit: self.inject_size });
        }
        self.socket.advance(&mut flow);
        let sent = match self.kind() {
            SocketKind::Datagram => self.send_datagram(&mut flow, pieces, to),
            SocketKind::Stream => send_bytes(&mut flow, pieces, flags.contains(Flags::INJECT)),
        };
        if matches!(sent, Ok(_) | Err(SocketError::Again)) {
            self.settle(&mut flow);
        }
        sent
    }

    /// Moves on what a call has changed, and shows it.
    fn settle(&self, flow: &mut Flow) {
        self.socket.advance(flow);
        self.socket.show(flow);
    }

    fn send_datagram(
        &self,
        flow: &mut Flow,
        pieces: Pieces<'_>,
        to: u64,
    ) -> Result<usize, SocketError> {
        if !flow.outgoing.is_ready() {
            return Err(SocketError::Again);
        }
        let (length, limit) = (pieces.total(), self.endpoint().message_max()?);
        // A longer one is not even copied.
        if length > limit {
            return Err(SocketError::TooLong { length, limit });
        }
        // Who drives the endpoint meanwhile would find that out later, when nobody can be told.
        if self.vector.get().is_some_and(|vector| vector.get(to).is_none()) {
            return Err(PostError::UnknownAddress { address: to }.into());
        }
        let mut datagram = Vec::with_capacity(length);
        pieces.for_each_part(0, length, |_, part| part.append_to(&mut datagram));
        self.socket.post_datagram(flow, datagram, to)?;
        Ok(length)
    }

    /// Receives bytes of a stream: as many as have come, at most as many as fit. 0 is its end, if
    /// there was room.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<usize, SocketError> {
        let piece = Piece::of_owned(buffer);
        Ok(self.receive_pieces(Pieces::One(piece), Flags::empty())?.length)
    }

    /// Receives a datagram, of which what does not fit is lost, and says who sent it.
    pub fn receive_from(&self, buffer: &mut [u8]) -> Result<Received, SocketError> {
        let piece = Piece::of_owned(buffer);
        self.receive_pieces(Pieces::One(piece), Flags::empty())
    }

    /// Receives into pieces, which are written to during the call alone: what every receive call
    /// comes down to. With `PEEK`, what is received stays for the next call.
    pub fn receive_pieces(
        &self,
        pieces: Pieces<'_>,
        flags: Flags,
    ) -> Result<Received, SocketError> {
        let mut flow = self.socket.called()?;
        check(&pieces, flags, RECEIVE_FLAGS)?;
        let keep = flags.contains(Flags::PEEK);
        if !flow.incoming.is_ready() {
            self.socket.advance(&mut flow);
        }
        if self.kind() == SocketKind::Datagram {
            let received = flow.incoming.take_datagram(pieces, keep).ok_or(SocketError::Again)?;
            self.settle(&mut flow);
            return Ok(received);
        }
        let length = flow.incoming.take_bytes(pieces, keep);
        let received = Received { length, total: length, source: 0 };
        if length > 0 || pieces.total() == 0 {
            self.settle(&mut flow);
            return Ok(received);
        }
        match flow.link {
            _ if flow.incoming.is_finished() || flow.is_shut => Ok(received),
            _ if flow.is_drained && flow.was_up => Err(SocketError::Reset),
            Link::Up => Err(SocketError::Again),
            Link::Down if flow.was_up => Err(SocketError::Again),
            Link::Down | Link::Pending => Err(SocketError::NotConnected),
        }
    }

    /// What the endpoint is ready for, which is what its descriptor shows.
    pub fn readiness(&self) -> Readiness {
        if self.socket.check_fork().is_err() {
            return Readiness::HANG_UP | Readiness::ERROR;
        }
        let mut flow = self.socket.lock();
        if self.endpoint().unit().is_ok() {
            self.socket.advance(&mut flow);
        }
        flow.readiness()
    }

    /// Waits until the endpoint is ready for something of `interest`, or hung up, and answers
    /// for what; for nothing, if `timeout` was over first. None: for ever.
    pub fn wait(
        &self,
        interest: Readiness,
        timeout: Option<Duration>,
    ) -> Result<Readiness, SocketError> {
        let (start, interest) = (Instant::now(), interest | Readiness::HANG_UP | Readiness::ERROR);
        loop {
            let mut flow = self.socket.called()?;
            self.socket.advance(&mut flow);
            let now = flow.readiness() & interest;
            let waited = start.elapsed();
            let left = timeout.map_or(WAIT_MAX, |timeout| timeout.saturating_sub(waited));
            if !now.is_empty() || left.is_zero() {
                return Ok(now);
            }
            if waited < self.endpoint().domain().spin() {
                drop(flow);
                yield_now();
            } else {
                drop(self.socket.wait(flow, left.min(WAIT_MAX)));
            }
        }
    }

    /// Sends all of a stream's bytes, waiting for room up to `timeout` each time.
    ///
    /// # Errors
    /// [`SocketError::Again`] if the time was over first: some may be sent then.
    pub fn send_all(&self, mut bytes: &[u8], timeout: Option<Duration>) -> Result<(), SocketError> {
        while !bytes.is_empty() {
            match self.send(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(SocketError::Again) => self.wait_for(Readiness::SEND, timeout)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives as [`Self::receive_from`], waiting up to `timeout` for something to come.
    ///
    /// # Errors
    /// [`SocketError::Again`] if nothing came in time.
    pub fn receive_blocking(
        &self,
        buffer: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Received, SocketError> {
        loop {
            match self.receive_from(buffer) {
                Err(SocketError::Again) => self.wait_for(Readiness::RECEIVE, timeout)?,
                outcome => return outcome,
            }
        }
    }

    fn wait_for(&self, what: Readiness, timeout: Option<Duration>) -> Result<(), SocketError> {
        let now = self.wait(what, timeout)?;
        if now.is_empty() { Err(SocketError::Again) } else { Ok(()) }
    }
}

/// Takes bytes of a stream: as many as there is room for, or all of them if `whole`.
fn send_bytes(flow: &mut Flow, pieces: Pieces<'_>, whole: bool) -> Result<usize, SocketError> {
    match flow.link {
        _ if flow.is_shut => return Err(SocketError::ShutDown),
        Link::Up => {}
        Link::Down if flow.was_up => return Err(SocketError::Reset),
        Link::Down | Link::Pending => return Err(SocketError::NotConnected),
    }
    let length = pieces.total();
    if whole && flow.outgoing.room() < length {
        flow.outgoing.wait_for_room();
        return Err(SocketError::Again);
    }
    let taken = flow.outgoing.take(pieces);
    if taken == 0 && length > 0 { Err(SocketError::Again) } else { Ok(taken) }
}

/// Bytes that are read during a call.
fn readable(bytes: &[u8]) -> Piece {
    // SAFETY: they are copied before the call returns, and a send never writes to a piece.
    unsafe { Piece::new(bytes.as_ptr().cast_mut(), bytes.len()) }
}

fn check(pieces: &Pieces<'_>, flags: Flags, allowed: Flags) -> Result<(), SocketError> {
    if !allowed.contains(flags) {
        return Err(SocketError::BadFlags { flags });
    }
    match pieces {
        Pieces::Many(pieces) if pieces.len() > IOV_LIMIT => {
            Err(PostError::TooManyPieces { count: pieces.len(), limit: IOV_LIMIT }.into())
        }
        _ => Ok(()),
    }
}
