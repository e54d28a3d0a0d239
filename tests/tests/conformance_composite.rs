//! The suite on endpoints that have two transports: each alone, and both at once. The far one is
//! RC queue pairs, over the fake of verbs.

use std::{net::IpAddr, sync::Arc};

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address::Address,
    completion_queue::store::Sharing,
    error::Errno,
    mock::{MockOptions, MockProvider},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{bed::Bed, conformance};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

/// Endpoints on RC queue pairs, of a fabric of their own.
fn queue_pairs() -> RcProvider<FakeDevice> {
    let device = Arc::new(FakeFabric::default().device(FakeOptions::default()));
    RcProvider::on_device(device, [127, 0, 0, 1].into(), VerbsOptions::default()).unwrap()
}

/// Everybody is on this host: the far side is there, and silent.
mod near {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, RcProvider<FakeDevice>>> {
        let provider = Arc::new(CompositeProvider::both(shm(), queue_pairs()));
        Bed { provider, sharing: Sharing::Exclusive }
    }

    conformance!(bed());
}

/// Everything goes far, and shared memory is there.
mod far {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, RcProvider<FakeDevice>>> {
        let provider = Arc::new(CompositeProvider::far_only(shm(), queue_pairs()));
        Bed { provider, sharing: Sharing::Shared }
    }

    conformance!(bed());
}

/// A mock on which no address with an even port is found.
fn near_to_half() -> MockProvider {
    let near = MockProvider::new(MockOptions::default());
    for port in (1024..=u16::MAX).step_by(2) {
        let address = Address::new(IpAddr::from([127, 0, 0, 1]), port);
        near.refuse(address, usize::MAX, Errno::HOSTUNREACH);
    }
    near
}

/// Half of the endpoints cannot be reached near: what is sent to them goes far, and what they
/// send goes near, so that all receive from both sides, and most peers answer by the other one.
mod split {
    use super::*;

    fn bed() -> Bed<CompositeProvider<MockProvider, RcProvider<FakeDevice>>> {
        let provider = Arc::new(CompositeProvider::both(near_to_half(), queue_pairs()));
        Bed { provider, sharing: Sharing::Exclusive }
    }

    conformance!(bed());
}
