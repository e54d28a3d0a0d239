//! Endpoints. Reference: fi_endpoint(3).
//!
//! Opened on a domain, bound to queues, counters and an address vector, enabled,
//! used, closed. What is posted goes to the endpoint's engine; this folder checks
//! what the caller says and picks the flags, nothing else.

#[allow(unsafe_code)]
pub mod atomic;
pub mod buffered;
pub mod connection;
mod enable;
pub mod error;
#[allow(unsafe_code)]
pub mod message;
pub mod multicast;
pub mod one_sided;
pub mod options;
pub mod owned;
mod posting;
#[allow(unsafe_code)]
pub mod rma;
pub mod setup;
pub mod tagged;
pub mod triggered;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use buffered::BufferingOptions;
pub use error::{EndpointError, PostError};
pub use multicast::{Group, GroupError};
pub use options::{DefaultFlags, EndpointOptions, OptionName};
use posting::Enabled;
pub(crate) use posting::{CLAIM_FLAGS, RECEIVE_FLAGS, check_claim_flags};
use setup::Bindings;

use crate::{
    address::Address,
    connection::request::ConnectionRequest,
    domain::{Domain, OpenError},
    engine::unit::Unit,
    flags::Flags,
    info::{DATAGRAM_CAPS, EndpointType, UNKEYED_CAPS},
    primitive::Ordering,
    protocol::datagram::Dropped,
    scalable_endpoint::pair::Seat,
    transport::{Provider, Transport},
    triggered::Deferrals,
};

/// A reliable endpoint: to many peers (`FI_EP_RDM`), or connected to one (`FI_EP_MSG`); or one of
/// datagrams, which may be lost (`FI_EP_DGRAM`).
pub struct Endpoint<P: Provider> {
    domain: Arc<Domain<P>>,
    options: EndpointOptions,
    address: Mutex<Address>,
    enabled: OnceLock<Enabled<P>>,
    /// Before it is enabled: the transport and what is bound. Never on the data path.
    bindings: Mutex<Bindings<P>>,
    /// What it was opened from, until it accepts.
    request: Mutex<Option<ConnectionRequest<P>>>,
    /// It was opened from a request, so it cannot connect.
    has_request: bool,
    /// The place of a context in its scalable endpoint.
    seat: Option<Seat<P>>,
    defaults: DefaultFlags,
    multi_receive_min: std::sync::atomic::AtomicUsize,
    buffering: BufferingOptions,
    /// It shares no memory with peers of its host.
    apart: AtomicBool,
    /// Its operations that wait for a counter.
    deferrals: Arc<Deferrals>,
}

impl<P: Provider> Endpoint<P> {
    /// Opens an endpoint, not yet enabled. Its address is reserved from now on.
    ///
    /// # Errors
    /// [`OpenError`]: the domain is closed, or its parent process's; a size is out of bounds; the
    /// address is in use or is not ours, no descriptors are left, …
    /// # Reference
    /// fi_endpoint(3), `fi_endpoint`
    pub fn open(domain: &Arc<Domain<P>>, options: EndpointOptions) -> Result<Arc<Self>, OpenError> {
        if domain.provider().forked() {
            return Err(OpenError::ForkedChild);
        }
        options.check_sizes()?;
        let options = options.on(domain.options());
        let transport = domain.provider().open_as(options.opening())?;
        Self::open_over(domain, options, transport, None)
    }

    /// Opens a context of a scalable endpoint.
    pub(crate) fn open_at(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        seat: Seat<P>,
    ) -> Result<Arc<Self>, OpenError> {
        options.check_sizes()?;
        let address = seat.address();
        Self::open_as(domain, options, address, None, None, Some(seat))
    }

    fn open_over(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        transport: P::Transport,
        request: Option<ConnectionRequest<P>>,
    ) -> Result<Arc<Self>, OpenError> {
        let asked_at = request.as_ref().map(ConnectionRequest::listener);
        let address = asked_at.unwrap_or_else(|| transport.address());
        Self::open_as(domain, options, address, Some(transport), request, None)
    }

    fn open_as(
        domain: &Arc<Domain<P>>,
        mut options: EndpointOptions,
        address: Address,
        transport: Option<P::Transport>,
        request: Option<ConnectionRequest<P>>,
        seat: Option<Seat<P>>,
    ) -> Result<Arc<Self>, OpenError> {
        if domain.uses().bind().is_err() {
            if let Some(request) = request {
                request.give_back();
            }
            return Err(OpenError::Closed);
        }
        if options.datagrams {
            options.capabilities &= DATAGRAM_CAPS;
        } else {
            options.capabilities.remove(Flags::MULTICAST);
        }
        if options.vector_keys {
            options.capabilities.remove(UNKEYED_CAPS);
        }
        Ok(Arc::new(Endpoint {
            domain: domain.clone(),
            address: Mutex::new(address),
            has_request: request.is_some(),
            request: Mutex::new(request),
            seat,
            defaults: DefaultFlags::of(&options),
            multi_receive_min: options.multi_receive_min.into(),
            buffering: BufferingOptions::new(&options),
            apart: AtomicBool::new(false),
            options,
            enabled: OnceLock::new(),
            deferrals: Arc::default(),
            bindings: Mutex::new(Bindings::new(transport)),
        }))
    }

    /// The address that peers insert to reach this endpoint.
    /// Reference: fi_cm(3), `fi_getname`.
    pub fn address(&self) -> Address {
        self.seat.as_ref().map_or_else(|| *self.lock_address(), Seat::address)
    }

    /// The address that peers insert to reach this endpoint, for who must not wait: none while it is
    /// being changed.
    pub(crate) fn address_at_once(&self) -> Option<Address> {
        match &self.seat {
            Some(seat) => seat.address_at_once(),
            None => self.address.try_lock().ok().map(|address| *address),
        }
    }

    fn lock_address(&self) -> MutexGuard<'_, Address> {
        // An address is written whole.
        self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain that the endpoint was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// What the endpoint was opened with.
    pub fn options(&self) -> &EndpointOptions {
        &self.options
    }

    /// Asks the transport something that only it knows. Cold.
    ///
    /// For kestrel's own crates.
    ///
    /// # Errors
    /// The endpoint is not enabled, or closed.
    #[doc(hidden)]
    pub fn inspect<R>(&self, ask: impl FnOnce(&P::Transport) -> R) -> Result<R, PostError> {
        self.unit()?.with(|engine| ask(&engine.transport))
    }

    /// The longest message that it takes. Units: bytes.
    ///
    /// # Errors
    /// The endpoint is not enabled.
    pub fn message_max(&self) -> Result<usize, PostError> {
        Ok(self.unit()?.message_max())
    }

    /// Datagrams that were dropped so far, on the way out or in.
    ///
    /// # Errors
    /// The endpoint is not enabled, or closed.
    pub fn dropped(&self) -> Result<Dropped, PostError> {
        self.unit()?.with(|engine| engine.dropped())
    }

    #[inline(always)]
    fn enabled(&self) -> Result<&Enabled<P>, PostError> {
        self.enabled.get().ok_or(PostError::NotEnabled)
    }

    /// What it does its work by. A context that is closed has none, though its pair's lives on.
    pub(crate) fn unit(&self) -> Result<&Arc<Unit<P>>, PostError> {
        let Enabled { unit, is_closed, .. } = self.enabled()?;
        if is_closed.load(Ordering::Relaxed) { Err(PostError::Closed) } else { Ok(unit) }
    }

    /// The flags of a send that names none (`tx_attr.op_flags`).
    #[inline(always)]
    pub fn default_send_flags(&self) -> Flags {
        self.defaults.send()
    }

    /// The flags of a receive call of one family, `MSG` or `TAGGED`, that names none
    /// (`rx_attr.op_flags`).
    #[inline(always)]
    pub fn default_receive_flags(&self, family: Flags) -> Flags {
        self.defaults.receive_of(family)
    }

    /// Sets the default flags of one direction: see [`DefaultFlags::set`].
    ///
    /// # Errors
    /// As there.
    pub fn set_default_flags(&self, flags: Flags) -> Result<(), EndpointError> {
        self.defaults.set(flags)
    }

    /// The default flags of both directions, for an alias of this endpoint to begin with.
    pub fn default_flags(&self) -> &DefaultFlags {
        &self.defaults
    }

    /// Cancels the first operation posted with `context` that can be canceled: here, not at the
    /// other context of a pair. It completes with FI_ECANCELED.
    ///
    /// # Errors
    /// [`PostError::NothingToCancel`]; the endpoint is not enabled, or closed.
    /// # Reference
    /// fi_endpoint(3), `fi_cancel`
    pub fn cancel(&self, context: u64) -> Result<(), PostError> {
        let only = self.seat.as_ref().map(Seat::direction);
        match self.unit()?.with(|engine| engine.cancel(context, only))? {
            Err(PostError::NothingToCancel { .. }) if self.deferrals.cancel(context) => Ok(()),
            canceled => canceled,
        }
    }

    /// "A lower bound on the number of transmit operations that may be posted … without that
    /// operation returning -FI_EAGAIN" (fi_endpoint(3), `fi_tx_size_left`): not more than can wait for
    /// another thread, which may drive the endpoint by then.
    ///
    /// # Errors
    /// The endpoint is not enabled, or closed.
    pub fn sends_left(&self) -> Result<usize, PostError> {
        let unit = self.unit()?;
        let left = unit.with(|engine| engine.sends_left())?;
        Ok(left.min(unit.submissions_left()))
    }

    /// A lower bound on the receives that may be posted without [`PostError::Again`]. Nothing limits them
    /// but what waits for another thread: `usize::MAX` where there is none. Reference: fi_endpoint(3),
    /// `fi_rx_size_left`.
    ///
    /// # Errors
    /// As [`Self::sends_left`].
    pub fn receives_left(&self) -> Result<usize, PostError> {
        let unit = self.unit()?;
        unit.with(|_| ())?;
        Ok(unit.submissions_left())
    }

    /// Closes the endpoint: pending operations are dropped without completions,
    /// and whatever is bound is released. A second close does nothing.
    pub fn close(&self) {
        drop(self.take_request());
        self.deferrals.close();
        let shared = self.lock_bindings().shared_receive.take();
        if let (Some(shared), Some(enabled)) = (&shared, self.enabled.get()) {
            shared.remove_unit(&enabled.unit);
        }
        let is_first = self.unbind_all();
        if let Some(seat) = self.seat.as_ref().filter(|_| is_first) {
            if let Some(Enabled { send, receive, is_closed, .. }) = self.enabled.get() {
                send.close();
                receive.close();
                is_closed.store(true, Ordering::Relaxed);
            }
            seat.leave();
        }
        let enabled = self.enabled.get().filter(|_| self.seat.is_none());
        if let Some(Enabled { unit, .. }) = enabled {
            self.domain.remove_unit(unit);
            unit.close();
        }
        self.unbind_events();
        if let Some(shared) = shared {
            // Counted when it was bound, so this cannot fail.
            let _ = shared.binds().unbind();
        }
    }
}

impl<P: Provider> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.options.connected, self.options.datagrams) {
            (true, _) => EndpointType::Msg,
            (_, true) => EndpointType::Dgram,
            _ => EndpointType::Rdm,
        };
        f.debug_struct("Endpoint")
            .field("kind", &kind)
            .field("address", &self.address_at_once())
            .field("is_enabled", &self.enabled.get().is_some())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for Endpoint<P> {
    fn drop(&mut self) {
        self.close();
    }
}
