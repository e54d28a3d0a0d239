//! The code point that an endpoint's packets carry, on every way that it makes.

use crate::common::{FakeTransport, connect, provider};
use kestrel_core::transport::{Opening, Provider, Service};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

fn open(provider: &RcProvider<FakeDevice>, service: Service, dscp: u8) -> FakeTransport {
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
