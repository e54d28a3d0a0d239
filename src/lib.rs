//! kestrel
#![deny(unsafe_code)]

use std::sync::Arc;

pub use kestrel_core as core;
pub use kestrel_shm as shm;
use kestrel_shm::ShmProvider;

/// A domain.
pub type Domain = core::domain::Domain<ShmProvider>;
/// An endpoint.
pub type Endpoint = core::endpoint::Endpoint<ShmProvider>;
/// A completion queue.
pub type CompletionQueue = core::completion_queue::CompletionQueue<ShmProvider>;
/// A counter.
pub type Counter = core::completion_counter::CompletionCounter<ShmProvider>;

/// test
pub fn provider() -> Arc<ShmProvider> {
    Arc::new(ShmProvider::new(Default::default()).unwrap())
}
