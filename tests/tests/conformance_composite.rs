//! The suite on endpoints that have two transports: each alone, and both at once. The far one is
//! RC queue pairs, over the fake of verbs.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
    sync::Arc,
};

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address::Address,
    domain::Sharing,
    error::Errno,
    mock::{MockOptions, MockProvider},
    transport::Provider as _,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Node},
    cases, conformance,
    link::{End, Listener},
    scale::CONNECT_PATIENCE,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

fn shm() -> ShmProvider {
    let options = ShmOptions { connect_timeout: CONNECT_PATIENCE, ..ShmOptions::default() };
    ShmProvider::new(options).unwrap()
}

/// Endpoints on RC queue pairs, of a fabric of their own, at an address of their own: their TCP
/// ports are real, and one that a test beside this one takes over would answer.
fn queue_pairs() -> RcProvider<FakeDevice> {
    queue_pairs_with(false)
}

fn queue_pairs_with(nic_atomics: bool) -> RcProvider<FakeDevice> {
    let [.., a, b, c] = RandomState::new().build_hasher().finish().to_ne_bytes();
    let ip = IpAddr::from([127, a.max(1), b, c.clamp(1, 254)]);
    let options = FakeOptions { addresses: vec![ip], ..FakeOptions::default() };
    let device = Arc::new(FakeFabric::default().device(options));
    let (fetch_min, connect_timeout) = (32 << 10, CONNECT_PATIENCE);
    let options =
        VerbsOptions { fetch_min, connect_timeout, nic_atomics, ..VerbsOptions::default() };
    RcProvider::on_device(device, ip, options).unwrap()
}

/// Everybody is on this host: the far side is there, and silent.
mod near {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, RcProvider<FakeDevice>>> {
        let provider = Arc::new(CompositeProvider::both(shm(), queue_pairs()));
        Bed { provider, sharing: Sharing::Exclusive }
    }

    conformance!(bed());
    conformance!(datagrams over bed());
    conformance!(multicast over bed());
}

/// Everything goes far, and shared memory is there.
mod far {
    use super::*;

    fn bed() -> Bed<CompositeProvider<ShmProvider, RcProvider<FakeDevice>>> {
        bed_with(false)
    }

    fn bed_with(nic_atomics: bool) -> Bed<CompositeProvider<ShmProvider, RcProvider<FakeDevice>>> {
        let far = queue_pairs_with(nic_atomics);
        let provider = Arc::new(CompositeProvider::far_only(shm(), far));
        Bed { provider, sharing: Sharing::Shared }
    }

    conformance!(bed());
    conformance!(datagrams over bed());
    conformance!(multicast over bed());
    conformance!(adapter_atomics over bed_with(true));
}

/// A mock on which half of the addresses are not found, of odd ports and of even ones.
fn near_to_half(ip: IpAddr) -> MockProvider {
    let near = MockProvider::new(MockOptions::default());
    for port in (1024..=u16::MAX).filter(|port| port & 2 == 0) {
        near.refuse(Address::new(ip, port), usize::MAX, Errno::HOSTUNREACH);
    }
    near
}

/// Half of the endpoints cannot be reached near: what is sent to them goes far, and what they
/// send goes near, so that all receive from both sides, and most peers answer by the other one.
mod split {
    use super::*;

    fn bed() -> Bed<CompositeProvider<MockProvider, RcProvider<FakeDevice>>> {
        let far = queue_pairs();
        let provider = Arc::new(CompositeProvider::both(near_to_half(far.default_ip()), far));
        Bed { provider, sharing: Sharing::Exclusive }
    }

    conformance!(bed());
    conformance!(datagrams over bed());
    conformance!(multicast over bed());
}

/// What makes the suite above worth its time: endpoints of one world are reached on both sides.
#[test]
fn half_of_the_endpoints_are_reached_on_each_side() {
    let far = queue_pairs();
    let provider = Arc::new(CompositeProvider::both(near_to_half(far.default_ip()), far));
    let world = Bed { provider, sharing: Sharing::Exclusive }.world(24);
    world.warm_up();
    let sent = |node: &Node<CompositeProvider<MockProvider, RcProvider<FakeDevice>>>| {
        let traffic = node.endpoint.inspect(|transport| transport.traffic()).unwrap();
        (traffic.near.messages, traffic.far.messages)
    };
    let (near, far) = world.nodes.iter().map(sent).fold((0, 0), |(n, f), (a, b)| (n + a, f + b));
    assert_eq!(near + far, 24 * 23);
    assert!(near > 0 && far > 0, "{near} near, {far} far");
}

/// Peers that are near have a processor play, so the device plays for nobody, whatever is declared.
#[test]
fn who_has_peers_on_both_sides_leaves_atomics_to_processors() {
    let far = queue_pairs_with(true);
    let provider = Arc::new(CompositeProvider::both(near_to_half(far.default_ip()), far));
    assert!(!provider.adapter_atomics());
    cases::atomic::sums_of_many_add_up(&Bed { provider, sharing: Sharing::Exclusive });
}

/// FI_OPT_SHARED_MEMORY_PERMITTED, of who accepts: it goes by its listener's address, and is at one of its
/// own.
#[test]
fn who_accepts_may_share_no_memory() {
    let provider = Arc::new(CompositeProvider::both(shm(), queue_pairs()));
    let bed = Bed { provider, sharing: Sharing::Shared };
    let listener = Listener::listening(&bed);
    let address = listener.passive.address();
    let caller = End::calling(&bed, address, &[]);
    let acceptor = End::acceptor(&bed, listener.take(&[&caller]));
    for permitted in [false, true, false] {
        acceptor.endpoint.permit_shared_memory(permitted).unwrap();
        assert_eq!(acceptor.endpoint.address(), address);
    }
    acceptor.endpoint.accept(b"apart").unwrap();
    assert_eq!(caller.connected(&[&acceptor, &listener]), b"apart");
    acceptor.connected(&[&caller, &listener]);
    acceptor.endpoint.inject(b"hello", 0).unwrap();
    caller.endpoint.receive(vec![0; 16], 0, 1).unwrap();
    assert_eq!(caller.done(&[&acceptor]).good().length, 5);
}
