//! Which peers a device finds a path to, and what those hear that it does not.

mod common;

use std::{sync::Arc, time::Duration};

use common::{FakeTransport, connect, event, provider_with, stream};
use kestrel_core::{
    error::Errno,
    transport::{Opening, Provider, Service, Transport, TransportEvent, Unreachable},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    device::LinkLayer,
    fake::{FakeDevice, FakeFabric, FakeOptions, FakeQueuePair},
    verbs::{Depths, PathEnd, QueuePair, Role, Verbs, VerbsError},
};

/// A provider whose connects may take longer than any test waits: what fails fails by itself.
fn patient(fabric: &FakeFabric, options: FakeOptions) -> RcProvider<FakeDevice> {
    let connect_timeout = Duration::from_secs(600);
    provider_with(fabric, options, VerbsOptions { connect_timeout, ..VerbsOptions::default() })
}

fn open(provider: &RcProvider<FakeDevice>, service: Service) -> FakeTransport {
    provider.open_as(Opening { service, ..Opening::default() }).unwrap()
}

/// Why a peer on a device like that does not come to one on the other.
#[track_caller]
fn refusal(from: FakeOptions, to: FakeOptions, service: Service) -> Unreachable {
    let fabric = FakeFabric::default();
    let (from, to) = (patient(&fabric, from), patient(&fabric, to));
    let (mut one, other) = (open(&from, service), open(&to, service));
    one.connect(3, other.address());
    match event(&mut one) {
        TransportEvent::Failed { peer: 3, reason } => reason,
        other => panic!("{other:?}"),
    }
}

fn infiniband() -> FakeOptions {
    FakeOptions { link_layer: LinkLayer::InfiniBand, ..FakeOptions::default() }
}

/// Whichever side finds no path, who connects hears of it, and not at the deadline.
#[test]
fn a_peer_that_no_path_leads_to_is_an_error() {
    let blind = || FakeOptions { reaches_nobody: true, ..FakeOptions::default() };
    for service in [Service::Reliable, Service::Datagrams] {
        let ours = refusal(blind(), FakeOptions::default(), service);
        assert!(ours.reason.contains("cannot be reached from GID 0 of fake1"), "{}", ours.reason);
        assert_eq!(ours.errno, Errno::NETUNREACH);
    }
    let theirs = refusal(FakeOptions::default(), blind(), Service::Reliable);
    assert!(theirs.reason.contains("cannot reach our device"), "{}", theirs.reason);
    assert_eq!(theirs.errno, Errno::NETUNREACH);
}

#[test]
fn another_subnet_is_named_as_the_obstacle() {
    let far = || FakeOptions { subnet: 0xfec0_0000_0000_0009, ..infiniband() };
    let reason = refusal(infiniband(), far(), Service::Reliable);
    assert_eq!(reason.errno, Errno::NETUNREACH);
    assert!(reason.reason.contains("FI_KESTREL_CONNECT_BY=rdma_cm"), "{}", reason.reason);
    // Who answers a datagram endpoint needs no path to it; who asks does, and knows both subnets.
    let reason = refusal(infiniband(), far(), Service::Datagrams).reason;
    for part in ["fe80000000000000", "fec0000000000009"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn two_limited_members_of_a_partition_cannot_talk() {
    let member = |partition_key| FakeOptions { partition_key, ..infiniband() };
    let reason = refusal(member(0x0001), member(0x0001), Service::Reliable);
    assert!(reason.reason.contains("limited member"), "{}", reason.reason);
    let reason = refusal(member(0x8001), member(0x8002), Service::Reliable);
    assert!(reason.reason.contains("another partition"), "{}", reason.reason);
    assert_eq!(reason.errno, Errno::NETUNREACH);
    let fabric = FakeFabric::default();
    let (full, limited) = (patient(&fabric, member(0x8001)), patient(&fabric, member(0x0001)));
    let (mut one, mut other) = (common::open(&full), common::open(&limited));
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    stream(&mut one, &mut other, 0, 100);
}

/// Ports that need a global route header and ports that do not are in one subnet.
#[test]
fn a_port_that_needs_the_global_header_connects_within_its_subnet() {
    let fabric = FakeFabric::default();
    let needs = FakeOptions { grh_required: true, ..infiniband() };
    let (function, host) = (patient(&fabric, needs), patient(&fabric, infiniband()));
    let (mut one, mut other) = (common::open(&function), common::open(&host));
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    stream(&mut one, &mut other, 0, 100);
    stream(&mut other, &mut one, 0, 100);
}

fn pair(device: &Arc<FakeDevice>) -> FakeQueuePair {
    let queues = Arc::new(device.open_queues(Depths { receives: 4, sends: 4 }).unwrap());
    device.create_queue_pair(&queues, 4, Role::Receives).unwrap()
}

/// What a peer would say of that queue pair.
fn end(device: &FakeDevice, pair: &FakeQueuePair) -> PathEnd {
    let port = device.port();
    PathEnd {
        queue_pair: pair.number(),
        first_packet: 0,
        lid: port.lid,
        partition_key: port.partition_key,
        link_layer: port.link_layer,
        gid: port.gid,
        mtu_bytes: port.mtu_bytes,
        reads_max: 1,
    }
}

/// The fake notices a handshake that tells where another queue pair is.
#[test]
fn a_path_leads_to_the_queue_pair_that_it_names() {
    let fabric = FakeFabric::default();
    let device = |options| Arc::new(fabric.device(options));
    let (near, far) = (device(infiniband()), device(infiniband()));
    let (ours, theirs) = (pair(&near), pair(&far));
    let good = end(&far, &theirs);
    assert!(ours.connect(0, &good, 0).is_ok());
    let elsewhere = ours.connect(0, &PathEnd { lid: near.port().lid, ..good }, 0);
    assert!(matches!(elsewhere, Err(VerbsError::Path { .. })), "{elsewhere:?}");
    let (near, far) = (device(FakeOptions::default()), device(FakeOptions::default()));
    let (ours, theirs) = (pair(&near), pair(&far));
    let good = end(&far, &theirs);
    assert!(ours.connect(0, &good, 0).is_ok());
    let elsewhere = ours.connect(0, &PathEnd { gid: [7; 16], ..good }, 0);
    assert!(matches!(elsewhere, Err(VerbsError::Path { .. })), "{elsewhere:?}");
}
