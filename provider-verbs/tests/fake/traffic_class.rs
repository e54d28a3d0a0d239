//! The code point that an endpoint's packets carry, on every way that it makes.

use crate::common::{FakeTransport, connect, provider, provider_with, wait_for_listener};
use kestrel_core::{
    config::ConnectBy,
    transport::{Opening, Provider, Service},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    verbs::Marks,
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

/// What the user has set holds where no class is asked for, be it in a byte or by the service level.
#[test]
fn who_has_no_class_has_the_users() {
    for (service, asked, ends) in [
        (Service::Reliable, None, 26),
        (Service::Datagrams, None, 26),
        (Service::Reliable, Some(46), 46),
        (Service::Reliable, Some(0), 0),
    ] {
        let fabric = FakeFabric::default();
        let options = VerbsOptions {
            marks: Marks { traffic_class: Some(106), service_level: Some(1) },
            ..VerbsOptions::default()
        };
        let provider = provider_with(&fabric, FakeOptions::default(), options);
        let (mut from, mut to) = (open(&provider, service, asked), open(&provider, service, asked));
        connect(&mut from, &mut to, 0);
        assert_eq!(fabric.code_points(), [ends], "{service:?}");
        let levels: Vec<u8> = fabric.paths().iter().map(|(_, route)| route.service_level).collect();
        assert!(levels.iter().all(|level| *level == 1), "{levels:?}");
    }
}

/// What an administrator has set for the connection manager holds where no class is asked for, and nowhere
/// else: 0 is a class.
#[test]
fn who_has_no_class_goes_by_the_managers() {
    let level = Marks { service_level: Some(1), ..Marks::default() };
    for (asked, marks, expected) in [
        (None, Marks::default(), 26),
        (None, level, 26),
        (Some(0), Marks::default(), 0),
        (Some(46), level, 46),
    ] {
        let fabric = FakeFabric::default();
        let fake = FakeOptions { default_dscp: 26, ..FakeOptions::default() };
        let connect_by = ConnectBy::RdmaCm;
        let options = VerbsOptions { connect_by, marks, ..VerbsOptions::default() };
        let provider = provider_with(&fabric, fake, options);
        let open = || open(&provider, Service::Reliable, asked);
        let (mut from, mut to) = (open(), open());
        wait_for_listener(&to);
        connect(&mut from, &mut to, 0);
        assert_eq!(fabric.code_points(), [expected]);
        assert_eq!(fabric.tally().managed, 1);
    }
}
