//! The suite on endpoints that have two transports: each alone, and both at once.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
    sync::Arc,
};

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address::Address,
    completion_queue::store::Sharing,
    error::Errno,
    mock::{MockOptions, MockProvider},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{bed::Bed, conformance};

/// A network whose ports are not those of the tests beside it: stations of shared memory are seen
/// by all.
fn far() -> MockProvider {
    let random = RandomState::new().build_hasher().finish();
    let first_port = 2_000 + (random % 45_000) as u16;
    MockProvider::new(MockOptions { first_port, ..MockOptions::default() })
}

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

/// Everybody is on this host: the far side is there, and silent.
mod near {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, MockProvider>> {
        let provider = Arc::new(CompositeProvider::both(shm(), far()));
        Bed { provider, sharing: Sharing::Exclusive }
    }

    conformance!(bed());
}

/// Everything goes far.
mod far_only {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, MockProvider>> {
        let provider = Arc::new(CompositeProvider::far_only(shm(), far()));
        Bed { provider, sharing: Sharing::Shared }
    }

    conformance!(bed());
}

/// Half of the endpoints cannot be reached near: what is sent to them goes far, and what they
/// send goes near, so that all receive from both sides, and most peers answer by the other one.
mod split {
    use super::*;

    fn bed() -> Bed<CompositeProvider<MockProvider, MockProvider>> {
        let near = MockProvider::new(MockOptions::default());
        for port in (1024..1200).step_by(2) {
            let address = Address::new(IpAddr::from([127, 0, 0, 1]), port);
            near.refuse(address, usize::MAX, Errno::HOSTUNREACH);
        }
        let far = MockProvider::new(MockOptions::default());
        let provider = Arc::new(CompositeProvider::both(near, far));
        Bed { provider, sharing: Sharing::Shared }
    }

    conformance!(bed());
}
