//! A scalable endpoint with a shared context of one direction. Reference: fi_endpoint(3), "SHARED
//! CONTEXTS": "Furthermore, an endpoint may use a shared context of one type, but a scalable set of
//! contexts of the alternate type."
//!
//! "The shared contexts must be bound to the endpoint", which "cannot be used directly for
//! communication operations". So the direction has a context, the first one, like any other: it
//! has the queue that completions are reported to, and a transmit context is what sends are posted
//! to. It is bound to what its endpoint is bound to, as it is with the address vector.

use std::sync::{Arc, OnceLock};

use super::ScalableEndpoint;
use crate::{
    address_vector::AddressVector,
    endpoint::EndpointError,
    flags::Flags,
    shared_context::{SharedTransmit, receive::SharedReceive},
    transport::Provider,
};

/// The shared contexts that a scalable endpoint is bound to: "An endpoint may only be associated
/// with a single shared transmit context", and a single receive context.
pub(super) struct SharedContexts<P: Provider> {
    transmit: OnceLock<Arc<SharedTransmit<P>>>,
    receive: OnceLock<Arc<SharedReceive<P>>>,
}

impl<P: Provider> Default for SharedContexts<P> {
    fn default() -> Self {
        SharedContexts { transmit: OnceLock::new(), receive: OnceLock::new() }
    }
}

impl<P: Provider> SharedContexts<P> {
    pub(super) fn transmit(&self) -> Option<&Arc<SharedTransmit<P>>> {
        self.transmit.get()
    }

    pub(super) fn receive(&self) -> Option<&Arc<SharedReceive<P>>> {
        self.receive.get()
    }

    /// Tells who shares its receives of the address vector.
    pub(super) fn expect(&self, vector: &Arc<AddressVector>) {
        if let Some(context) = self.receive() {
            context.expect(vector);
        }
    }

    /// The endpoint is closed.
    pub(super) fn release(&self) {
        // Counted when they were bound, so neither can fail.
        if let Some(context) = self.transmit() {
            let _ = context.binds().unbind();
        }
        if let Some(context) = self.receive() {
            let _ = context.binds().unbind();
        }
    }
}

impl<P: Provider> ScalableEndpoint<P> {
    /// Binds the shared transmit context that the endpoint was opened to use.
    ///
    /// # Errors
    /// As [`crate::endpoint::Endpoint::bind_shared_transmit`].
    pub fn bind_shared_transmit(
        &self,
        context: &Arc<SharedTransmit<P>>,
    ) -> Result<(), EndpointError> {
        context.join(&self.domain, &self.options)?;
        self.shared.transmit.set(context.clone()).map_err(|context| {
            // Counted a moment ago, so this cannot fail.
            let _ = context.binds().unbind();
            let object = "shared transmit context";
            EndpointError::AlreadyBound { object, flags: Flags::TRANSMIT }
        })
    }

    /// Binds the shared receive context that the endpoint was opened to use.
    ///
    /// # Errors
    /// As [`crate::endpoint::Endpoint::bind_shared_receive`].
    pub fn bind_shared_receive(
        &self,
        context: &Arc<SharedReceive<P>>,
    ) -> Result<(), EndpointError> {
        context.join(&self.domain, &self.options)?;
        self.shared.receive.set(context.clone()).map_err(|context| {
            // As above.
            let _ = context.binds().unbind();
            let object = "shared receive context";
            EndpointError::AlreadyBound { object, flags: Flags::RECV }
        })?;
        self.vector.get().into_iter().for_each(|vector| context.expect(vector));
        Ok(())
    }
}
