//! Socket endpoints: sends and receives that are over when the call returns.
//! Reference: fi_endpoint(3), "SOCKET ENDPOINTS".
//!
//! They stand on the other endpoints, over any transport. A stream (`FI_EP_SOCK_STREAM`) is a
//! connected endpoint whose messages are segments of the stream, numbered by their remote data;
//! the last one, which has no bytes, is its end. So neither is an end mistaken for a loss, nor
//! does anything follow a gap. Datagrams
//! (`FI_EP_SOCK_DGRAM`) are those of an endpoint of datagrams. Bytes are copied at the call, into
//! a send buffer or out of what has arrived; both are bounded, and what does not fit is refused
//! with [`SocketError::Again`].
//!
//! In reading order: [`incoming`] and [`outgoing`] are the two buffers, [`socket`] moves them
//! on, [`driver`] does so while the application is elsewhere, [`descriptor`] shows what came of
//! it, and [`transfer`] has the calls that send and receive.

pub mod descriptor;
pub(crate) mod driver;
pub mod error;
pub mod incoming;
mod outgoing;
mod socket;
#[allow(unsafe_code)]
pub mod transfer;

use std::{
    fmt,
    os::fd::RawFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

pub use descriptor::Readiness;
pub use error::SocketError;
pub use incoming::Received;

use crate::{
    address::Address,
    address_vector::AddressVector,
    completion_queue::CompletionQueue,
    connection::{manager::Link, passive_endpoint::PassiveEndpoint, request::ConnectionRequest},
    domain::{Domain, OpenError, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions},
    event_queue::EventQueue,
    flags::Flags,
    info::EndpointType,
    primitive::yield_now,
    transport::Provider,
};
use descriptor::Descriptor;
use socket::{Reported, Socket};

/// The longest segment of a stream: peers have to agree on it. Units: bytes.
pub const SEGMENT_MAX: usize = 8 << 10;
/// What an endpoint has taken and not delivered, at most. Units: bytes.
pub const SEND_BUFFER: usize = 256 << 10;
/// What has arrived and was not received, at most; a peer may have some more on its way.
/// Units: bytes.
pub const RECEIVE_BUFFER: usize = 256 << 10;
/// What a short datagram counts in the send buffer. Units: bytes.
const SEND_WEIGHT_MIN: usize = 256;
/// How long shutting down waits for a peer that takes nothing.
const STALL_MAX: Duration = Duration::from_secs(1);
/// How long it waits for one that takes all of it slowly.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// What a socket endpoint can do.
const CAPABILITIES: Flags = Flags::MSG.union(Flags::SEND).union(Flags::RECV).union(Flags::SOURCE);

/// The two types of socket endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream of bytes to one peer (`FI_EP_SOCK_STREAM`).
    Stream,
    /// Datagrams to many (`FI_EP_SOCK_DGRAM`).
    Datagram,
}

impl SocketKind {
    /// The one of that type of endpoint; none of the types that are no socket endpoints.
    pub fn of(kind: EndpointType) -> Option<SocketKind> {
        match kind {
            EndpointType::SockStream => Some(SocketKind::Stream),
            EndpointType::SockDgram => Some(SocketKind::Datagram),
            _ => None,
        }
    }
}

/// "Socket endpoints are not associated with completion queues": this one is their own.
fn own_queue<P: Provider>(domain: &Arc<Domain<P>>) -> Result<Arc<CompletionQueue<P>>, OpenError> {
    CompletionQueue::open_for(domain, 2 * SEND_BUFFER / SEND_WEIGHT_MIN, Sharing::Shared)
}

/// A socket endpoint. It behaves like a socket that does not block.
pub struct SocketEndpoint<P: Provider> {
    socket: Arc<Socket<P>>,
    reported: Arc<Reported<P>>,
    inject_size: usize,
    /// Of datagrams: whom they may be sent to.
    vector: OnceLock<Arc<AddressVector>>,
    is_closed: AtomicBool,
}

impl<P: Provider> SocketEndpoint<P> {
    /// Opens one, not yet enabled. Of `options` the address, the key and the inject size count.
    pub fn open(
        domain: &Arc<Domain<P>>,
        kind: SocketKind,
        options: EndpointOptions,
    ) -> Result<Self, SocketError> {
        let (options, queue) = (options_for(kind, options), own_queue(domain)?);
        Self::over(kind, options.inject_size, Endpoint::open(domain, options)?, queue)
    }

    /// Opens a stream that can accept `request`; closed before it does, it rejects it.
    pub fn open_for(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        request: ConnectionRequest<P>,
    ) -> Result<Self, SocketError> {
        let options = options_for(SocketKind::Stream, options);
        let inject_size = options.inject_size;
        // First what may fail: the request waits on, then.
        let queue = match own_queue(domain) {
            Ok(queue) => queue,
            Err(error) => {
                request.give_back();
                return Err(error.into());
            }
        };
        let endpoint = Endpoint::open_for(domain, options, request)?;
        Self::over(SocketKind::Stream, inject_size, endpoint, queue)
    }

    /// Opens a stream with the address of a passive endpoint that does not listen: see
    /// [`Endpoint::open_instead_of`].
    pub fn open_instead_of(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        passive: &PassiveEndpoint<P>,
    ) -> Result<Self, SocketError> {
        let options = options_for(SocketKind::Stream, options);
        let inject_size = options.inject_size;
        // First what may fail: the passive endpoint stays as it is, then.
        let queue = own_queue(domain)?;
        let endpoint = Endpoint::open_instead_of(domain, options, passive)?;
        Self::over(SocketKind::Stream, inject_size, endpoint, queue)
    }

    fn over(
        kind: SocketKind,
        inject_size: usize,
        endpoint: Arc<Endpoint<P>>,
        queue: Arc<CompletionQueue<P>>,
    ) -> Result<Self, SocketError> {
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
        let socket = Arc::new(Socket::new(kind, endpoint, queue));
        let (reported, is_closed) = (Reported::new(&socket), AtomicBool::new(false));
        Ok(SocketEndpoint { socket, reported, inject_size, vector: OnceLock::new(), is_closed })
    }

    fn endpoint(&self) -> &Arc<Endpoint<P>> {
        &self.socket.endpoint
    }

    /// The domain that it was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        self.endpoint().domain()
    }

    /// Which of the two it is.
    pub fn kind(&self) -> SocketKind {
        self.socket.kind
    }

    /// Binds the queue that what becomes of the connection is reported to, as events of the
    /// object `fid`. A stream needs one.
    pub fn bind_event_queue(&self, queue: &Arc<EventQueue>, fid: u64) -> Result<(), SocketError> {
        Ok(self.endpoint().bind_event_queue(queue, fid)?)
    }

    /// Binds the address vector, whose addresses datagrams are sent to.
    pub fn bind_address_vector(&self, vector: &Arc<AddressVector>) -> Result<(), SocketError> {
        match self.kind() {
            SocketKind::Stream => Err(SocketError::NotForThisType { object: "address vector" }),
            SocketKind::Datagram => {
                self.endpoint().bind_address_vector(vector)?;
                self.vector.get_or_init(|| vector.clone());
                Ok(())
            }
        }
    }

    /// Says what events call it in the queue of its domain.
    pub fn announce_as(&self, fid: u64) {
        self.endpoint().announce_as(fid);
    }

    /// Enables it: from now on datagrams arrive, and a stream can be connected.
    pub fn enable(&self) -> Result<(), SocketError> {
        // Before anything is enabled that nobody would drive.
        let driver = self.endpoint().domain().socket_driver()?;
        self.socket.begin()?;
        if let (SocketKind::Stream, Some(events)) = (self.kind(), self.endpoint().reporter_queue())
        {
            events.add_driven(self.reported.clone());
        }
        driver.add(&self.socket);
        Ok(())
    }

    /// The same, if it was not enabled, here or by another thread meanwhile.
    fn enable_once(&self) -> Result<(), SocketError> {
        if self.endpoint().unit().is_ok() {
            return Ok(());
        }
        match self.enable() {
            Err(SocketError::Endpoint(EndpointError::Enabled { .. })) => Ok(()),
            answer => answer,
        }
    }

    /// Where it is. Reference: fi_cm(3), `fi_getname`.
    pub fn address(&self) -> Address {
        self.endpoint().address()
    }

    /// Gives one that is not enabled another address. Reference: fi_cm(3), `fi_setname`.
    pub fn set_address(&self, address: Address) -> Result<(), SocketError> {
        Ok(self.endpoint().set_address(address)?)
    }

    /// The other end of a stream. Reference: fi_cm(3), `fi_getpeer`.
    pub fn peer(&self) -> Result<Address, SocketError> {
        Ok(self.endpoint().peer()?)
    }

    /// Connects a stream, enabled now if it was not: see [`Endpoint::connect`].
    pub fn connect(&self, address: Address, data: &[u8]) -> Result<(), SocketError> {
        self.endpoint().check_can_connect(address)?;
        self.enable_once()?;
        Ok(self.endpoint().connect(address, data)?)
    }

    /// Accepts the request that a stream was opened for, enabled now if it was not.
    pub fn accept(&self, data: &[u8]) -> Result<(), SocketError> {
        self.endpoint().check_can_accept()?;
        self.enable_once()?;
        Ok(self.endpoint().accept(data)?)
    }

    /// Ends a stream, in both directions. What was taken leaves first; what had arrived can
    /// still be received. A second time it does nothing.
    ///
    /// # Errors
    /// [`SocketError::NotDelivered`] if the peer is gone, has taken nothing for a second, or not
    /// all in ten. The stream is over all the same.
    pub fn shutdown(&self) -> Result<(), SocketError> {
        if self.kind() == SocketKind::Stream && self.endpoint().unit().is_err() {
            self.socket.check_fork()?;
            // One that is not enabled is not connected, either: it says so.
            return Ok(self.endpoint().shutdown()?);
        }
        let mut flow = self.socket.called()?;
        if self.kind() == SocketKind::Stream && !flow.was_up {
            self.socket.advance(&mut flow);
        }
        if self.kind() == SocketKind::Datagram || !flow.was_up {
            // Says what is wrong.
            return Ok(self.endpoint().shutdown()?);
        }
        if std::mem::replace(&mut flow.is_shut, true) {
            return Ok(());
        }
        flow.outgoing.finish();
        drop(flow);
        let bytes = self.linger();
        // A connection that is over already is shut down as well.
        let _ = self.endpoint().shutdown();
        let mut flow = self.socket.lock();
        self.socket.advance(&mut flow);
        self.socket.show(&mut flow);
        if bytes > 0 { Err(SocketError::NotDelivered { bytes }) } else { Ok(()) }
    }

    /// Waits until what was taken has left, while any of it does. Says how much is left.
    fn linger(&self) -> usize {
        let start = Instant::now();
        let (mut since, mut before) = (start, usize::MAX);
        loop {
            let mut flow = self.socket.lock();
            self.socket.advance(&mut flow);
            let left = flow.outgoing.undelivered();
            if flow.outgoing.is_empty() || flow.link != Link::Up {
                return left;
            }
            if std::mem::replace(&mut before, left) != left {
                since = Instant::now();
            }
            if since.elapsed() > STALL_MAX || start.elapsed() > LINGER_MAX {
                return left;
            }
            drop(flow);
            yield_now();
        }
    }

    /// A descriptor to wait on with poll, epoll or select, which shows [`Self::readiness`]. It
    /// is the endpoint's, and means nothing after it is closed.
    /// Reference: fi_endpoint(3), FI_GETWAIT.
    pub fn descriptor(&self) -> Result<RawFd, SocketError> {
        self.socket.check_fork()?;
        let mut flow = self.socket.lock();
        let now = flow.readiness();
        let descriptor = match &mut flow.descriptor {
            Some(descriptor) => descriptor,
            none => {
                let new = Descriptor::new();
                let new =
                    new.map_err(|error| SocketError::NoDescriptor { reason: error.to_string() })?;
                none.insert(new)
            }
        };
        descriptor.show(now);
        let fd = descriptor.fd();
        drop(flow);
        // Who asks for it will sleep.
        if let Ok(driver) = self.endpoint().domain().socket_driver() {
            driver.nudge();
        }
        Ok(fd)
    }

    /// Closes it. A stream that was not shut down is, as far as that goes: who wants to know how
    /// far shuts it down first. A second close does nothing.
    pub fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let endpoint = self.endpoint();
        if !endpoint.domain().provider().forked() {
            if let Err(error @ SocketError::NotDelivered { .. }) = self.shutdown() {
                tracing::warn!(address = %endpoint.address(), "closed: {error}");
            }
            if let Some(events) = endpoint.reporter_queue() {
                events.remove_driven(&self.reported);
            }
            if let Ok(driver) = endpoint.domain().socket_driver() {
                driver.remove(&self.socket);
            }
        }
        endpoint.close();
    }
}

impl<P: Provider> fmt::Debug for SocketEndpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketEndpoint")
            .field("kind", &self.kind())
            .field("address", &self.endpoint().address_at_once())
            .field("is_closed", &self.is_closed.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for SocketEndpoint<P> {
    fn drop(&mut self) {
        self.close();
    }
}

fn options_for(kind: SocketKind, options: EndpointOptions) -> EndpointOptions {
    EndpointOptions {
        capabilities: CAPABILITIES,
        transmit_size: SEND_BUFFER / SEND_WEIGHT_MIN,
        transmit_flags: Flags::empty(),
        receive_flags: Flags::empty(),
        shares_transmit: false,
        shares_receive: false,
        buffered: false,
        connected: kind == SocketKind::Stream,
        datagrams: kind == SocketKind::Datagram,
        under_socket: true,
        // What is injected is taken whole.
        inject_size: options.inject_size.min(SEND_BUFFER),
        ..options
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
