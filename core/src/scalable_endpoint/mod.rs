//! Scalable endpoints: one address, many transmit and receive contexts.
//! Reference: fi_endpoint(3), "SCALABLE ENDPOINTS".
//!
//! The transmit and the receive context of one index are a [`pair`]: an engine and a transport
//! of their own, so that nothing which one pair writes is read by another, and two threads with
//! a pair each never meet. The transports are at consecutive ports, from the endpoint's own on:
//! who has the endpoint's address and the index of a receive context knows where that is
//! ([`crate::engine::route`]). What comes from another pair than the first says so
//! ([`crate::protocol::context`]), and counts as coming from the endpoint's address.
//!
//! A context is an [`Endpoint`] with one direction: everything that is posted, bound and
//! enabled is there. A direction whose context is shared ([`shared`]) has one.

mod options;
pub mod pair;
mod row;
mod shared;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool};

use crate::{
    address::Address,
    address_vector::{AddressVector, HeldKeys},
    bind_count::BindCount,
    domain::{Domain, OpenError},
    endpoint::{Endpoint, EndpointError, EndpointOptions},
    flags::Flags,
    info::{RX_CAPS, TX_CAPS},
    transport::Provider,
};
use pair::{Direction, Pair, Seat};
use row::open_row;
pub(crate) use row::{context_address, endpoint_address};
use shared::SharedContexts;

/// The most contexts of either direction.
pub const CONTEXTS_MAX: usize = 256;

/// How many contexts of each direction; 0 stands for 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextCounts {
    /// `tx_ctx_cnt`.
    pub transmit: usize,
    /// `rx_ctx_cnt`.
    pub receive: usize,
}

impl ContextCounts {
    /// "If not specified (0), 1 context will be assigned"; a shared one is a single one.
    fn specified(self, options: &EndpointOptions) -> Result<ContextCounts, OpenError> {
        let count = |count: usize, shares| if shares { 1 } else { count.max(1) };
        let counts = ContextCounts {
            transmit: count(self.transmit, options.shares_transmit),
            receive: count(self.receive, options.shares_receive),
        };
        let count = counts.transmit.max(counts.receive);
        match count > CONTEXTS_MAX {
            true => Err(OpenError::TooManyContexts { count, limit: CONTEXTS_MAX }),
            false => Ok(counts),
        }
    }
}

/// An endpoint that is used through its contexts alone.
pub struct ScalableEndpoint<P: Provider> {
    domain: Arc<Domain<P>>,
    options: EndpointOptions,
    /// Whether peers of this host are reached as others are.
    apart: AtomicBool,
    counts: ContextCounts,
    vector: OnceLock<Arc<AddressVector>>,
    /// Those of its vector when the first of its contexts was enabled.
    keys: Mutex<Option<Arc<HeldKeys>>>,
    shared: SharedContexts<P>,
    pairs: Vec<Pair<P>>,
    /// The contexts that are open, and aliases.
    uses: Arc<BindCount>,
}

impl<P: Provider> ScalableEndpoint<P> {
    /// Opens a scalable endpoint. Its address, and one for each further pair of contexts, is
    /// reserved from now on. `options` are what contexts inherit.
    ///
    /// # Errors
    /// Too many contexts; a size is out of bounds; not so many ports in a row are free; as [`Endpoint::open`].
    pub fn open(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        counts: ContextCounts,
    ) -> Result<Arc<Self>, OpenError> {
        if domain.provider().forked() {
            return Err(OpenError::ForkedChild);
        }
        if options.connected || options.datagrams {
            return Err(OpenError::NotScalable);
        }
        options.check_sizes()?;
        let counts = counts.specified(&options)?;
        let count = counts.transmit.max(counts.receive);
        let options = options.on(domain.options());
        let transports = open_row(&**domain.provider(), options.opening(), count)?;
        domain.uses().bind().map_err(|_| OpenError::Closed)?;
        let pairs = transports.into_iter().enumerate();
        let pairs = pairs.map(|(index, transport)| Pair::new(index, transport, counts));
        Ok(Arc::new(ScalableEndpoint {
            domain: domain.clone(),
            options,
            apart: AtomicBool::new(false),
            counts,
            vector: OnceLock::new(),
            keys: Mutex::default(),
            shared: SharedContexts::default(),
            pairs: pairs.collect(),
            uses: Arc::default(),
        }))
    }

    /// The address that peers insert: that of all contexts together.
    pub fn address(&self) -> Address {
        self.pairs[0].address()
    }

    /// Gives an endpoint none of whose contexts was enabled another address, with as many ports
    /// from there on. A host or a port that `address` leaves open stays as it is.
    /// Reference: fi_cm(3), `fi_setname`.
    ///
    /// # Errors
    /// A context was enabled; one of the ports is taken. The endpoint is where it was then.
    pub fn set_address(&self, address: Address) -> Result<(), EndpointError> {
        let present = self.address();
        let address = address.or(present);
        if address == present {
            return Ok(());
        }
        if self.domain.provider().forked() {
            return Err(OpenError::ForkedChild.into());
        }
        pair::move_all(&self.pairs, &**self.domain.provider(), || self.opening(), address)
    }

    /// The domain that it was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// What contexts are opened with if nothing else is asked for.
    pub fn options(&self) -> &EndpointOptions {
        &self.options
    }

    /// How many contexts there are of each direction; a shared one counts as one.
    pub fn counts(&self) -> ContextCounts {
        self.counts
    }

    /// What it is closed after: its contexts, and what else its user counts.
    pub fn uses(&self) -> &Arc<BindCount> {
        &self.uses
    }

    fn held_keys(&self) -> MutexGuard<'_, Option<Arc<HeldKeys>>> {
        // They are set whole.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the address vector of all contexts. Reference: fi_endpoint(3),
    /// `fi_scalable_ep_bind`: "Address vectors that are bound to scalable endpoints are
    /// implicitly bound to any transmit or receive contexts".
    pub fn bind_address_vector(&self, vector: &Arc<AddressVector>) -> Result<(), EndpointError> {
        let object = "address vector";
        vector.binds().bind().map_err(|_| EndpointError::Closed { object })?;
        self.vector.set(vector.clone()).map_err(|vector| {
            // Counted a moment ago, so this cannot fail.
            let _ = vector.binds().unbind();
            EndpointError::AlreadyBound { object, flags: Flags::empty() }
        })?;
        self.shared.expect(vector);
        Ok(())
    }

    pub(crate) fn address_vector(&self) -> Result<&Arc<AddressVector>, EndpointError> {
        self.vector.get().ok_or(EndpointError::NoAddressVector)
    }

    /// Enables what the contexts have in common; each of them is enabled by itself.
    pub fn enable(&self) -> Result<(), EndpointError> {
        self.address_vector().map(drop)
    }

    /// Opens transmit context `index`, which must not be open. Reference: fi_endpoint(3),
    /// `fi_tx_context`: "Conceptually a transmit context behaves similar to a send-only
    /// endpoint."
    ///
    /// # Errors
    /// There is no such context, or it is open; `options` has capabilities that this endpoint
    /// has not.
    pub fn transmit_context(
        self: &Arc<Self>,
        index: usize,
        options: EndpointOptions,
    ) -> Result<Arc<Endpoint<P>>, EndpointError> {
        self.context(index, Direction::Transmit, self.counts.transmit, TX_CAPS, options)
    }

    /// Opens receive context `index`, as [`Self::transmit_context`] does. Reference:
    /// fi_endpoint(3), `fi_rx_context`.
    ///
    /// # Errors
    /// As there.
    pub fn receive_context(
        self: &Arc<Self>,
        index: usize,
        options: EndpointOptions,
    ) -> Result<Arc<Endpoint<P>>, EndpointError> {
        self.context(index, Direction::Receive, self.counts.receive, RX_CAPS, options)
    }

    fn context(
        self: &Arc<Self>,
        index: usize,
        direction: Direction,
        count: usize,
        applicable: Flags,
        mut options: EndpointOptions,
    ) -> Result<Arc<Endpoint<P>>, EndpointError> {
        if index >= count {
            return Err(EndpointError::NoSuchContext { index, count });
        }
        // "The capabilities must be a subset of those requested of the associated endpoint."
        options.capabilities &= applicable;
        let own = &self.options;
        options.shares_transmit = own.shares_transmit && direction == Direction::Transmit;
        options.shares_receive = own.shares_receive && direction == Direction::Receive;
        options.buffered &= direction == Direction::Receive;
        options.transmits_in_order &= direction == Direction::Transmit;
        options.receives_in_order &= direction == Direction::Receive;
        options.data_in_order &= direction == Direction::Receive;
        let missing = options.capabilities.difference(self.options.capabilities);
        if !missing.is_empty() {
            return Err(EndpointError::BeyondEndpoint { missing });
        }
        let pair = &self.pairs[index];
        self.uses.bind().map_err(|_| EndpointError::Closed { object: "scalable endpoint" })?;
        if !pair.reserve(direction) {
            let _ = self.uses.unbind();
            return Err(EndpointError::ContextOpen { index });
        }
        let seat = Seat::new(self.clone(), index, direction);
        let context = Endpoint::open_at(&self.domain, options, seat);
        match &context {
            Ok(context) => pair.seat(direction, context),
            Err(_) => Seat::new(self.clone(), index, direction).leave(),
        }
        Ok(context?)
    }

    /// Closes the endpoint. Reference: fi_endpoint(3): "there must be no opened transmit
    /// contexts, or receive contexts associated with the scalable endpoint. If resources are
    /// still associated with the scalable endpoint when attempting to close, the call will
    /// return -FI_EBUSY."
    pub fn close(&self) -> Result<(), EndpointError> {
        self.uses.close()?;
        for pair in &self.pairs {
            pair.close(&self.domain);
        }
        self.shared.release();
        *self.held_keys() = None;
        // Both were counted when it was opened or bound.
        if let Some(vector) = self.vector.get() {
            let _ = vector.binds().unbind();
        }
        let _ = self.domain.uses().unbind();
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for ScalableEndpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalableEndpoint")
            .field("address", &self.pairs[0].address_at_once())
            .field("counts", &self.counts)
            .field("uses", &self.uses.count())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for ScalableEndpoint<P> {
    /// Each context holds it, so that none is open.
    fn drop(&mut self) {
        // It may be closed already.
        let _ = self.close();
    }
}
