//! Scalable endpoints with two transports, which may be told to use the far one alone.

use std::sync::Arc;

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    domain::{DomainOptions, Sharing},
    endpoint::{EndpointError, EndpointOptions, OptionName},
    error::{Cause, Errno, HasErrno},
    scalable_endpoint::{ContextCounts, ScalableEndpoint},
    transport::Provider,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{bed::Bed, fake::fake_provider, reserved::own_addresses};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

type Real = CompositeProvider<ShmProvider, RcProvider<FakeDevice>>;

const CONTEXTS: u16 = 3;

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

fn open(provider: Real) -> Arc<ScalableEndpoint<Real>> {
    let bed = Bed { provider: Arc::new(provider), sharing: Sharing::Shared };
    let domain = bed.domain(DomainOptions::default());
    let options =
        EndpointOptions { address: Some(own_addresses(CONTEXTS)), ..EndpointOptions::default() };
    let counts = ContextCounts { transmit: CONTEXTS.into(), receive: 1 };
    ScalableEndpoint::open(&domain, options, counts).unwrap()
}

fn permit(row: &ScalableEndpoint<Real>, permitted: bool) -> Result<(), EndpointError> {
    row.set_option(OptionName::SharedMemoryPermitted, permitted.into())
}

/// FI_OPT_SHARED_MEMORY_PERMITTED is set before a context is enabled, and holds for all of them: of an
/// endpoint that shares no memory every port is free for another one that does nothing else.
#[test]
fn contexts_may_share_no_memory() {
    let fabric = FakeFabric::default();
    let device = fake_provider(&fabric, FakeOptions::default(), VerbsOptions::default());
    let row = open(Real::both(shm(), device));
    let first = row.address();
    let other = shm();
    let shares = |index| {
        let address = first.with_port(first.port() + index);
        match other.open(Some(address), &[]) {
            Ok(_) => false,
            Err(error) if error.errno == Errno::ADDRINUSE => true,
            Err(error) => panic!("{}", error.reason),
        }
    };
    assert!((0..CONTEXTS).all(shares));
    for permitted in [false, false, true, false] {
        permit(&row, permitted).unwrap();
        assert_eq!(row.address(), first);
        for index in 0..CONTEXTS {
            assert_eq!(shares(index), permitted, "context {index}");
        }
    }
    // A port that somebody has taken meanwhile leaves it as it is.
    let taken = other.open(Some(first.with_port(first.port() + 1)), &[]).unwrap();
    let error = permit(&row, true).unwrap_err();
    assert_eq!(error.errno(), Errno::ADDRINUSE, "{error}");
    drop(taken);
    assert!(!(0..CONTEXTS).any(shares));
    // Nor do its ports change hands when it moves.
    row.set_address(first.with_port(0)).unwrap();
    assert_eq!(row.address(), first);
}

#[test]
fn contexts_share_memory_where_there_is_nothing_else() {
    let none = Cause { errno: Errno::NODEV, reason: "no device in this test".into() };
    let row = open(Real::near_only(shm(), none));
    assert_eq!(permit(&row, false).unwrap_err().errno(), Errno::OPNOTSUPP);
    permit(&row, true).unwrap();
}
