//! Scalable endpoints for measuring, with a queue for each context.

use crate::fabric::FabricError;
use kestrel::{CompletionQueue, Domain, Endpoint, ScalableEndpoint};
use kestrel_core::address_vector::{
    AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC, fi_rx_addr,
};
use kestrel_core::endpoint::EndpointOptions;
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::operation::ReceivePost;
use kestrel_core::scalable_endpoint::ContextCounts;
use std::sync::Arc;

/// Bits of an address that name a context.
const BITS: u32 = 8;
pub const CONTEXTS_MAX: usize = 1 << BITS;
pub const TAG: u64 = 1;

/// A scalable endpoint with a vector of its own.
pub struct Contexts {
    domain: Arc<Domain>,
    endpoint: Arc<ScalableEndpoint>,
    options: EndpointOptions,
    vector: Arc<AddressVector>,
}

/// A context with the queue that its operations complete at.
pub struct Context {
    pub endpoint: Arc<Endpoint>,
    pub queue: Arc<CompletionQueue>,
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
    pub fn transmit(&self, index: usize) -> Result<Context, FabricError> {
        let context = self.endpoint.transmit_context(index, self.options.clone());
        self.enable(context.map_err(failed)?, Flags::TRANSMIT)
    }

    /// The receive context `index`.
    pub fn receive(&self, index: usize) -> Result<Context, FabricError> {
        let context = self.endpoint.receive_context(index, self.options.clone());
        self.enable(context.map_err(failed)?, Flags::RECV)
    }

    fn enable(&self, endpoint: Arc<Endpoint>, direction: Flags) -> Result<Context, FabricError> {
        let queue = CompletionQueue::open(&self.domain, 0).map_err(failed)?;
        endpoint.bind_completion_queue(&queue, direction).map_err(failed)?;
        endpoint.enable().map_err(failed)?;
        Ok(Context { endpoint, queue })
    }
}

/// The receive context `index` of the endpoint that is known as `known`.
pub fn at_context(known: u64, index: usize) -> u64 {
    fi_rx_addr(known, index as u64, BITS)
}

/// A receive of 8 bytes.
///
/// # Safety
/// `place` is valid, and used for nothing else, until the receive has completed or its context is
/// closed.
#[inline(always)]
pub unsafe fn receive_word<'a>(place: *mut u64, context: u64) -> ReceivePost<'a> {
    // SAFETY: as the caller says.
    let piece = unsafe { Piece::new(place.cast(), size_of::<u64>()) };
    ReceivePost {
        pieces: Pieces::One(piece),
        from: FI_ADDR_UNSPEC,
        tag: TAG,
        ignore: 0,
        context,
        flags: Flags::TAGGED,
        region: None,
        owner: None,
    }
}
