//! Connected endpoints (`FI_EP_MSG`): how they come to their one peer, and leave it.
//! Reference: fi_cm(3).

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Endpoint, EndpointError, EndpointOptions, PostError};
use crate::{
    address::Address,
    connection::{
        ConnectionError, manager::Link, passive_endpoint::PassiveEndpoint,
        request::ConnectionRequest, truncated,
    },
    domain::{Domain, OpenError},
    engine::unit::Unit,
    transport::{Opening, Provider, Transport},
};

impl<P: Provider> Endpoint<P> {
    /// Opens a connected endpoint that can accept `request`; closed or dropped before it
    /// does, it rejects it. What could not be opened leaves the request where it was.
    pub fn open_for(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        request: ConnectionRequest<P>,
    ) -> Result<Arc<Self>, OpenError> {
        // The port that it goes by is its listener's, who has it.
        let address = options.address.map(|address| address.with_port(0));
        let options = EndpointOptions { connected: true, address, ..options };
        let options = options.on(domain.options());
        let checked = match domain.provider().forked() {
            true => Err(OpenError::ForkedChild),
            false => options.check_sizes(),
        };
        match checked.and_then(|()| Ok(domain.provider().open_as(options.opening())?)) {
            Ok(transport) => Self::open_over(domain, options, transport, Some(request)),
            Err(error) => {
                request.give_back();
                Err(error)
            }
        }
    }

    /// Opens a connected endpoint with the address of a passive one that does not listen,
    /// and that is good for nothing but being closed from then on. Its traffic class is the passive one's,
    /// if `options` have none; all else is its own.
    /// Reference: fi_endpoint(3): "An active endpoint may acquire the properties of a passive
    /// endpoint by setting the fi_info handle field to the passive endpoint".
    pub fn open_instead_of(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        passive: &PassiveEndpoint<P>,
    ) -> Result<Arc<Self>, ConnectionError> {
        if domain.provider().forked() {
            return Err(OpenError::ForkedChild.into());
        }
        passive.give_up(|address, class| {
            let traffic_class = match options.traffic_class {
                0 => class,
                own => own,
            };
            let address = Some(address);
            let options = EndpointOptions { address, traffic_class, ..options };
            Self::open(domain, EndpointOptions { connected: true, ..options })
        })
    }

    /// Gives an endpoint that is not enabled another address. A host or a port that `address`
    /// leaves open stays as it is.
    ///
    /// # Errors
    /// [`EndpointError`]: it is enabled, closed, or a context; the address cannot be had, and it is
    /// where it was then.
    /// # Reference
    /// fi_cm(3), `fi_setname`
    pub fn set_address(&self, address: Address) -> Result<(), EndpointError> {
        // "The transmit and receive contexts share the transport-level address" (fi_endpoint(3)),
        // which is the scalable endpoint's to change.
        if self.seat.is_some() {
            return Err(EndpointError::NotForThisType { object: "name of its own" });
        }
        let address = address.or(self.address());
        if address == self.address() {
            return Ok(());
        }
        self.replace_transport(|| {
            let transport = self.open_transport(address, self.apart.load(Ordering::Relaxed))?;
            *self.lock_address() = transport.address();
            Ok(transport)
        })
    }

    /// Says whether memory may be shared with peers of this host, as it may be from the start. Without,
    /// they are reached as peers elsewhere are.
    /// Reference: fi_endpoint(3), FI_OPT_SHARED_MEMORY_PERMITTED.
    ///
    /// # Errors
    /// There is no other way to them. The endpoint is enabled, closed, or a context, which has the
    /// transport of its scalable endpoint.
    pub fn permit_shared_memory(&self, permitted: bool) -> Result<(), EndpointError> {
        if self.seat.is_some() {
            return Err(EndpointError::NotForThisType { object: "transport of its own" });
        }
        if !permitted && !self.domain.provider().can_be_apart() {
            return Err(EndpointError::SharedMemoryAlone);
        }
        let mut bindings = self.open_bindings("choosing the way to peers")?;
        if self.apart.load(Ordering::Relaxed) != permitted {
            return Ok(());
        }
        let Some(transport) = bindings.transport.take() else {
            return Err(EndpointError::Closed { object: "endpoint" });
        };
        // The other transport is at the same port, which has to be free for it. Who accepts goes by its
        // listener's address, and is elsewhere.
        let address = transport.address();
        drop(transport);
        match self.open_transport(address, !permitted) {
            Ok(transport) => bindings.transport = Some(transport),
            Err(error) => {
                bindings.transport = self.open_transport(address, permitted).ok();
                return Err(error.into());
            }
        }
        self.apart.store(!permitted, Ordering::Relaxed);
        Ok(())
    }

    fn open_transport(&self, address: Address, apart: bool) -> Result<P::Transport, OpenError> {
        let opening = Opening { address: Some(address), apart, ..self.options.opening() };
        Ok(self.domain.provider().open_as(opening)?)
    }

    fn check_connects(&self) -> Result<(), ConnectionError> {
        match self.options.connected {
            true => Ok(()),
            false => Err(ConnectionError::Connectionless),
        }
    }

    /// What is wrong with a call of [`Self::connect`], however far the endpoint is: a call that is
    /// refused enables nothing.
    pub(crate) fn check_can_connect(&self, address: Address) -> Result<(), ConnectionError> {
        self.check_connects()?;
        if self.has_request {
            return Err(ConnectionError::HasRequest);
        }
        match address.port() {
            0 => Err(ConnectionError::BadAddress { address }),
            _ => Ok(()),
        }
    }

    /// The same of [`Self::accept`].
    pub(crate) fn check_can_accept(&self) -> Result<(), ConnectionError> {
        self.check_connects()?;
        if !self.has_request {
            return Err(ConnectionError::NoRequest);
        }
        match &*self.lock_request() {
            Some(request) if request.is_over() => {
                Err(ConnectionError::RequestOver { handle: request.handle() })
            }
            _ => Ok(()),
        }
    }

    fn lock_request(&self) -> MutexGuard<'_, Option<ConnectionRequest<P>>> {
        // Nothing is done under it that could panic.
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The unit, enabled now if it was not, here or by another thread meanwhile.
    fn connecting(&self) -> Result<&Arc<Unit<P>>, ConnectionError> {
        match self.enable() {
            Ok(()) | Err(EndpointError::Enabled { .. }) => Ok(self.unit()?),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn take_request(&self) -> Option<ConnectionRequest<P>> {
        self.lock_request().take()
    }

    /// Asks whoever listens at `address` for a connection, and enables the endpoint if it
    /// is not. An event tells what comes of it. Of `data` the first
    /// [`crate::connection::CM_DATA_SIZE`] bytes travel along.
    ///
    /// # Errors
    /// [`ConnectionError`]: it is no connected endpoint, was connected before, or was opened from a
    /// request; `address` has no port; it cannot be enabled. Whether anybody listens there is an
    /// event's to tell.
    /// # Reference
    /// fi_cm(3), `fi_connect`
    pub fn connect(&self, address: Address, data: &[u8]) -> Result<(), ConnectionError> {
        self.check_can_connect(address)?;
        let unit = self.connecting()?;
        unit.with(|engine| engine.connect(address, truncated(data)))?
    }

    /// Accepts the request that the endpoint was opened for, and enables it if it is not.
    /// An event tells when the caller has heard of it. Data as in [`Self::connect`].
    ///
    /// # Errors
    /// [`ConnectionError`]: it was opened from no request, has accepted it before, or the request is
    /// over; it cannot be enabled.
    /// # Reference
    /// fi_cm(3), `fi_accept`
    pub fn accept(&self, data: &[u8]) -> Result<(), ConnectionError> {
        self.check_can_accept()?;
        let unit = self.connecting()?;
        let request = self.take_request().ok_or(ConnectionError::ConnectedBefore)?;
        let (address, nonce, promise) = request.accept()?;
        unit.with(|engine| engine.accept(address, nonce, truncated(data), promise))?
    }

    /// Leaves the peer, which is told. What is posted here is canceled, and completed as
    /// such when this returns. A second time it does nothing.
    ///
    /// # Errors
    /// [`ConnectionError::Connectionless`], [`ConnectionError::NotConnected`].
    /// # Reference
    /// fi_cm(3), `fi_shutdown`
    pub fn shutdown(&self) -> Result<(), ConnectionError> {
        self.check_connects()?;
        let unit = self.unit().map_err(|_| ConnectionError::NotConnected)?;
        unit.with(|engine| engine.shutdown())??;
        self.deferrals.cancel_all();
        Ok(())
    }

    /// How far its connection has come.
    pub(crate) fn link(&self) -> Link {
        match self.unit() {
            Ok(unit) => unit.with(|engine| engine.link()).unwrap_or(Link::Down),
            Err(_) => Link::Pending,
        }
    }

    /// The other end, while there is a connection.
    ///
    /// # Errors
    /// [`ConnectionError::Connectionless`], [`ConnectionError::NotConnected`].
    /// # Reference
    /// fi_cm(3), `fi_getpeer`
    pub fn peer(&self) -> Result<Address, ConnectionError> {
        self.check_connects()?;
        let unit = match self.unit() {
            Ok(unit) => unit,
            Err(PostError::NotEnabled) => return Err(ConnectionError::NotConnected),
            Err(error) => return Err(error.into()),
        };
        unit.with(|engine| engine.connected_peer())?.ok_or(ConnectionError::NotConnected)
    }
}
