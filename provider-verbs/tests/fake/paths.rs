//! Which peers a device finds a path to, and what those hear that it does not.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::common::{FakeTransport, connect, event, managed_provider, provider_with, stream};
use kestrel_core::{
    address::Address,
    error::{Cause, Errno},
    transport::{
        Multicast as _, Opening, Provider, Service, Transport, TransportEvent, Windows as _,
    },
    window::Access,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    device::LinkLayer,
    fake::{FakeDevice, FakeFabric, FakeOptions, FakeQueuePair, ManagedPath},
    verbs::{Depths, Marks, Origin, PathEnd, QueuePair, Role, Verbs, VerbsError},
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
fn refusal(from: FakeOptions, to: FakeOptions, service: Service) -> Cause {
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
    let (mut one, mut other) = (crate::common::open(&full), crate::common::open(&limited));
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
    let (mut one, mut other) = (crate::common::open(&function), crate::common::open(&host));
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    stream(&mut one, &mut other, 0, 100);
    stream(&mut other, &mut one, 0, 100);
}

fn pair(device: &Arc<FakeDevice>) -> FakeQueuePair {
    let queues =
        Arc::new(device.open_queues(Depths { receives: 4, immediates: 0, sends: 4 }).unwrap());
    device.create_queue_pair(&queues, 4, Role::Receives).unwrap()
}

fn from(device: &FakeDevice) -> Origin {
    Origin { port: *device.port(), marks: Marks::default(), agreed: None }
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
    assert!(ours.connect(0, &from(&near), &good).is_ok());
    let elsewhere = ours.connect(0, &from(&near), &PathEnd { lid: near.port().lid, ..good });
    assert!(matches!(elsewhere, Err(VerbsError::Path { .. })), "{elsewhere:?}");
    let (near, far) = (device(FakeOptions::default()), device(FakeOptions::default()));
    let (ours, theirs) = (pair(&near), pair(&far));
    let good = end(&far, &theirs);
    assert!(ours.connect(0, &from(&near), &good).is_ok());
    let elsewhere = ours.connect(0, &from(&near), &PathEnd { gid: [7; 16], ..good });
    assert!(matches!(elsewhere, Err(VerbsError::Path { .. })), "{elsewhere:?}");
}

const READ: Access = Access { read: true, write: false, atomic: false };

/// Connects two, either way, and has the first reach the second's memory.
#[track_caller]
fn connect_and_reach(one: &mut FakeTransport, other: &mut FakeTransport) {
    connect(one, other, 0);
    connect(other, one, 0);
    stream(one, other, 0, 20);
    let invitation = one.invite(0).unwrap();
    let answer = other.admit(0, invitation, READ).expect("the peer finds a path back");
    assert!(one.open_window(0, answer), "a window");
}

fn at(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// The device's own choice would be the first address.
fn several_addresses() -> FakeOptions {
    FakeOptions { addresses: vec![at(1), at(2), at(3)], ..FakeOptions::default() }
}

fn open_at(provider: &RcProvider<FakeDevice>, service: Service, last: u8) -> FakeTransport {
    let address = Some(Address::new(at(last), 0));
    provider.open_as(Opening { address, service, ..Opening::default() }).unwrap()
}

/// The last bytes of the GIDs that packets came from, and went to.
fn ways(fabric: &FakeFabric) -> Vec<(u8, u8)> {
    let paths = fabric.paths().into_iter();
    let mut ways: Vec<_> =
        paths.map(|(port, route)| (port.gid[15], route.global.unwrap().gid[15])).collect();
    ways.sort();
    ways.dedup();
    ways
}

#[test]
fn an_endpoint_goes_by_the_gid_of_its_address() {
    for managed in [false, true] {
        let fabric = FakeFabric::default();
        let provider = match managed {
            true => managed_provider(&fabric, several_addresses()),
            false => patient(&fabric, several_addresses()),
        };
        let mut one = open_at(&provider, Service::Reliable, 2);
        let mut other = open_at(&provider, Service::Reliable, 3);
        connect_and_reach(&mut one, &mut other);
        assert_eq!(ways(&fabric), [(2, 3), (3, 2)], "managed: {managed}");
        let indices: Vec<u8> = fabric.paths().iter().map(|(port, _)| port.gid_index).collect();
        assert!(indices.iter().all(|index| [1, 2].contains(index)), "{indices:?}");
        assert_eq!(fabric.tally().managed, if managed { 2 } else { 0 });
    }
}

#[test]
fn datagrams_and_groups_go_by_the_gid_of_the_address() {
    let fabric = FakeFabric::default();
    let provider = patient(&fabric, several_addresses());
    let mut one = open_at(&provider, Service::Datagrams, 2);
    let other = open_at(&provider, Service::Datagrams, 3);
    one.connect(0, other.address());
    assert!(matches!(event(&mut one), TransportEvent::Connected { peer: 0, .. }));
    assert_eq!(ways(&fabric), [(2, 3)]);
    one.join(Address::new([239, 9, 8, 7].into(), 0), false).unwrap();
    assert_eq!(ways(&fabric), [(2, 3), (2, 7)]);
}

#[test]
fn who_has_no_address_of_its_own_goes_by_the_devices_choice() {
    let fabric = FakeFabric::default();
    let device = fabric.device(several_addresses());
    assert_eq!(device.port_at(at(2)).gid_index, 1);
    assert_eq!(device.port_at(at(9)), *device.port());
    let named = fabric.device(FakeOptions { gid_index: Some(2), ..several_addresses() });
    assert_eq!((named.port().gid_index, named.port().gid[15]), (2, 3));
    assert_eq!(named.port_at(at(2)), *named.port(), "the user has said which");
}

/// A connection through rdma_cm, and the windows beside it, go where TCP's cannot: to another subnet,
/// in the partition and at the service level that were agreed on.
#[test]
fn windows_go_along_with_a_managed_connection() {
    let fabric = FakeFabric::default();
    let managed_path = Some(ManagedPath { partition_key: 0x8003, service_level: 3 });
    let near = FakeOptions { partition_key: 0x8001, managed_path, ..infiniband() };
    let subnet = 0xfec0_0000_0000_0009;
    let far = FakeOptions { partition_key: 0x8002, subnet, managed_path, ..infiniband() };
    let (near, far) = (managed_provider(&fabric, near), managed_provider(&fabric, far));
    let (mut one, mut other) = (crate::common::open(&near), crate::common::open(&far));
    connect_and_reach(&mut one, &mut other);
    assert_eq!(fabric.tally().managed, 2);
    assert_eq!(fabric.tally().paths, 6, "two ends of two connections and of a window");
    for (port, route) in fabric.paths() {
        assert_eq!((port.partition_key, port.partition_key_index), (0x8003, 1));
        assert_eq!(route.service_level, 3);
    }
}
