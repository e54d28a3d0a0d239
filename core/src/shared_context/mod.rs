//! Shared contexts: what several endpoints of a domain send or receive with.
//! Reference: fi_endpoint(3), "SHARED CONTEXTS".
//!
//! A shared transmit context "is mostly opaque to an application": each endpoint has its own
//! engine, which queues what it sends, and the context says how much that may be. A shared
//! receive context ([`receive`]) holds receives that messages of all its endpoints match, in a
//! [`pool`]; each message completes where its endpoint's do.

mod claim;
pub(crate) mod due;
pub mod message;
pub mod pool;
pub mod receive;
pub(crate) mod sources;

use std::fmt;
use std::sync::Arc;

use crate::{
    bind_count::{BindCount, BindError},
    domain::{Domain, OpenError},
    endpoint::{EndpointError, EndpointOptions},
    flags::Flags,
    info::MessageOrder,
    transport::Provider,
};

/// A transmit context that endpoints share.
pub struct SharedTransmit<P: Provider> {
    domain: Arc<Domain<P>>,
    options: EndpointOptions,
    binds: BindCount,
}

impl<P: Provider> SharedTransmit<P> {
    /// Opens one. Of `options` it looks at what concerns sending.
    pub fn open(domain: &Arc<Domain<P>>, options: EndpointOptions) -> Result<Arc<Self>, OpenError> {
        options.check_sizes()?;
        domain.uses().bind().map_err(|_| OpenError::Closed)?;
        let binds = BindCount::default();
        Ok(Arc::new(SharedTransmit { domain: domain.clone(), options, binds }))
    }

    /// The domain that it was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// The endpoints bound to it.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// Which operations keep their order.
    pub(crate) fn message_order(&self) -> MessageOrder {
        self.options.message_order
    }

    /// Whether what is submitted completes in that order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.options.transmits_in_order
    }

    /// Counts an endpoint of `domain` in, which was opened to use a shared context and uses "a subset
    /// of the transmit context's attributes".
    pub(crate) fn join(
        &self,
        domain: &Arc<Domain<P>>,
        endpoint: &EndpointOptions,
    ) -> Result<(), EndpointError> {
        let object = "shared transmit context";
        if !endpoint.shares_transmit {
            return Err(EndpointError::NotForThisType { object });
        }
        if !Arc::ptr_eq(domain, &self.domain) {
            return Err(EndpointError::OtherDomain { object });
        }
        within(endpoint.transmit_capabilities, endpoint, &self.options)?;
        for (option, value, most) in [
            ("tx_attr->size", endpoint.transmit_size, self.options.transmit_size),
            ("tx_attr->inject_size", endpoint.inject_size, self.options.inject_size),
        ] {
            if value > most {
                let bounds = "what the shared context has";
                return Err(EndpointError::BadOptionValue { option, value, bounds });
            }
        }
        self.binds.bind().map_err(|_| EndpointError::Closed { object })
    }

    /// Closes it. Refused while endpoints are bound.
    pub fn close(&self) -> Result<(), BindError> {
        self.binds.close()?;
        self.domain.uses().unbind()
    }
}

impl<P: Provider> fmt::Debug for SharedTransmit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTransmit")
            .field("size", &self.options.transmit_size)
            .field("inject_size", &self.options.inject_size)
            .field("bound", &self.binds.count())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for SharedTransmit<P> {
    fn drop(&mut self) {
        // It may be closed already.
        let _ = self.close();
    }
}

/// Whether a context has what `endpoint` can in one `direction`; what that one can in the other
/// direction is nothing to it.
fn within(
    direction: Flags,
    endpoint: &EndpointOptions,
    context: &EndpointOptions,
) -> Result<(), EndpointError> {
    let missing = (endpoint.capabilities & direction).difference(context.capabilities);
    if missing.is_empty() { Ok(()) } else { Err(EndpointError::BeyondEndpoint { missing }) }
}
