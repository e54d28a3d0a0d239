//! What can be said of a scalable endpoint between opening it and enabling the first of its contexts.
//! Reference: fi_endpoint(3), `fi_getopt`, `fi_setopt`.

use std::sync::atomic::Ordering;

use super::{ScalableEndpoint, pair};
use crate::{
    domain::OpenError,
    endpoint::{EndpointError, OptionName},
    transport::{Opening, Provider},
};

impl<P: Provider> ScalableEndpoint<P> {
    /// What its transports are opened with.
    pub(super) fn opening(&self) -> Opening<'_> {
        Opening { apart: self.apart.load(Ordering::Relaxed), ..self.options.opening() }
    }

    /// The value of an option. Units: bytes.
    ///
    /// # Errors
    /// It is one of a context, or of endpoints that buffer.
    pub fn option(&self, name: OptionName) -> Result<usize, EndpointError> {
        match name {
            // It has no connections.
            OptionName::CmDataSize => Ok(0),
            _ => Err(EndpointError::UnknownOption { option: name as i32 }),
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// As [`Self::option`]; it cannot have this value.
    pub fn set_option(&self, name: OptionName, value: usize) -> Result<(), EndpointError> {
        match name {
            OptionName::SharedMemoryPermitted => self.permit_shared_memory(value != 0),
            OptionName::CmDataSize => {
                let option = "FI_OPT_CM_DATA_SIZE";
                Err(EndpointError::BadOptionValue { option, value, bounds: "read-only" })
            }
            _ => Err(EndpointError::UnknownOption { option: name as i32 }),
        }
    }

    /// Says whether memory may be shared with peers of this host, for all contexts: see
    /// [`crate::endpoint::Endpoint::permit_shared_memory`].
    ///
    /// # Errors
    /// There is no other way to them. A context was enabled, or the endpoint is closed.
    pub fn permit_shared_memory(&self, permitted: bool) -> Result<(), EndpointError> {
        let provider = &**self.domain.provider();
        if provider.forked() {
            return Err(OpenError::ForkedChild.into());
        }
        if !permitted && !provider.can_be_apart() {
            return Err(EndpointError::SharedMemoryAlone);
        }
        pair::set_apart(&self.pairs, provider, self.opening(), (&self.apart, !permitted))
    }
}
