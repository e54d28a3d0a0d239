//! The code point that an endpoint's packets carry, on every way that it makes.

use crate::common::{FakeTransport, connect, managed_provider, provider, wait_for_listener};
use kestrel_core::transport::{Opening, Provider, Service};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

fn open(
    provider: &RcProvider<FakeDevice>,
    service: Service,
    dscp: impl Into<Option<u8>>,
) -> FakeTransport {
    let dscp = dscp.into();
    provider.open_as(Opening { service, dscp, ..Opening::default() }).unwrap()
}

#[test]
fn each_end_marks_its_own_packets() {
    for (service, ends) in [(Service::Reliable, &[10, 46][..]), (Service::Datagrams, &[10])] {
        let fabric = FakeFabric::default();
        let provider = provider(&fabric, FakeOptions::default());
        let (mut from, mut to) = (open(&provider, service, 10), open(&provider, service, 46));
        connect(&mut from, &mut to, 0);
        // Datagrams know one way: who is found has no need to answer.
        assert_eq!(fabric.code_points(), ends, "{service:?}");
    }
}

/// What an administrator has set for the connection manager holds where no class is asked for, and nowhere
/// else: 0 is a class.
#[test]
fn who_has_no_class_goes_by_the_managers() {
    for (asked, expected) in [(None, 26), (Some(0), 0), (Some(46), 46)] {
        let fabric = FakeFabric::default();
        let options = FakeOptions { default_dscp: 26, ..FakeOptions::default() };
        let provider = managed_provider(&fabric, options);
        let open = || open(&provider, Service::Reliable, asked);
        let (mut from, mut to) = (open(), open());
        wait_for_listener(&to);
        connect(&mut from, &mut to, 0);
        assert_eq!(fabric.code_points(), [expected]);
        assert_eq!(fabric.tally().managed, 1);
    }
}
