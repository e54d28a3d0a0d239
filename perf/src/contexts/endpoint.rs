//! Scalable endpoints for measuring, with a queue for each context.

use crate::end::End;
use crate::fabric::FabricError;
use kestrel::{CompletionQueue, Domain, Endpoint, ScalableEndpoint};
use kestrel_core::address_vector::{AddressVector, AddressVectorAttributes, fi_rx_addr};
use kestrel_core::endpoint::EndpointOptions;
use kestrel_core::flags::Flags;
use kestrel_core::scalable_endpoint::ContextCounts;
use std::sync::Arc;

/// Bits of an address that name a context.
const BITS: u32 = 8;
pub const CONTEXTS_MAX: usize = 1 << BITS;

/// A scalable endpoint with a vector of its own.
pub struct Contexts {
    domain: Arc<Domain>,
    endpoint: Arc<ScalableEndpoint>,
    options: EndpointOptions,
    vector: Arc<AddressVector>,
}

fn failed(error: impl std::fmt::Display) -> FabricError {
    FabricError::Open(error.to_string())
}

impl Contexts {
    pub fn open(
        domain: &Arc<Domain>,
        options: &EndpointOptions,
        counts: ContextCounts,
    ) -> Result<Self, FabricError> {
        let capabilities = options.capabilities | Flags::NAMED_RX_CTX;
        let options = EndpointOptions { capabilities, ..options.clone() };
        let endpoint = ScalableEndpoint::open(domain, options.clone(), counts).map_err(failed)?;
        let attributes = AddressVectorAttributes { rx_ctx_bits: BITS, ..Default::default() };
        let vector = Arc::new(AddressVector::open(attributes).map_err(failed)?);
        endpoint.bind_address_vector(&vector).map_err(failed)?;
        Ok(Contexts { domain: domain.clone(), endpoint, options, vector })
    }

    /// What messages to `other`, or to itself, are sent to, but for which of the contexts.
    pub fn learn(&self, other: &Self) -> Result<u64, FabricError> {
        self.vector.insert_one(other.endpoint.address()).map_err(failed)
    }

    /// The transmit context `index`.
    pub fn transmit(&self, index: usize) -> Result<End, FabricError> {
        let context = self.endpoint.transmit_context(index, self.options.clone());
        self.enable(context.map_err(failed)?, Flags::TRANSMIT)
    }

    /// The receive context `index`.
    pub fn receive(&self, index: usize) -> Result<End, FabricError> {
        let context = self.endpoint.receive_context(index, self.options.clone());
        self.enable(context.map_err(failed)?, Flags::RECV)
    }

    fn enable(&self, endpoint: Arc<Endpoint>, direction: Flags) -> Result<End, FabricError> {
        let queue = CompletionQueue::open(&self.domain, 0).map_err(failed)?;
        endpoint.bind_completion_queue(&queue, direction).map_err(failed)?;
        endpoint.enable().map_err(failed)?;
        Ok(End { endpoint, queue })
    }
}

/// The receive context `index` of the endpoint that is known as `known`.
pub fn at_context(known: u64, index: usize) -> u64 {
    fi_rx_addr(known, index as u64, BITS)
}
