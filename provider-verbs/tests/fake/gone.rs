//! Devices and queues that go away: nothing that is under way completes, and their peers are parted with.

use crate::common::{
    FakeTransport, connect, event, managed_provider, open, provider, push, raw::Raw, raw::signed,
    stream, take_soon, wait_for_listener,
};
use kestrel_core::{
    error::Errno,
    transport::{Opening, Provider, Service, Transport, TransportEvent},
};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    testing::wire::{Message, RejectReason},
};

type Make = fn(&FakeFabric, FakeOptions) -> RcProvider<FakeDevice>;
/// Over TCP, and through the connection manager.
const WAYS: [Make; 2] = [provider, managed_provider];

/// Two on devices of their own, connected both ways, to one of which something happens.
struct Pair {
    provider: RcProvider<FakeDevice>,
    victim: FakeTransport,
    other: FakeTransport,
    _other: RcProvider<FakeDevice>,
}

impl Pair {
    fn on(make: Make) -> Pair {
        let fabric = FakeFabric::default();
        let (provider, _other) =
            (make(&fabric, FakeOptions::default()), make(&fabric, FakeOptions::default()));
        let (mut victim, mut other) = (open(&provider), open(&_other));
        [&victim, &other].into_iter().for_each(wait_for_listener);
        connect(&mut victim, &mut other, 0);
        connect(&mut other, &mut victim, 0);
        stream(&mut victim, &mut other, 0, 100);
        Pair { provider, victim, other, _other }
    }

    /// Both part, though what one of them has sent is still under way.
    #[track_caller]
    fn part(&mut self) {
        for end in [&mut self.victim, &mut self.other] {
            let ended = event(end);
            assert!(matches!(ended, TransportEvent::Lost { peer: 0, .. }), "{ended:?}");
            end.disconnect(0);
        }
    }
}

/// It says that nobody is left.
#[track_caller]
fn is_down(end: &mut FakeTransport) {
    let told = event(end);
    let TransportEvent::Down { reason, wholly: true } = told else { panic!("{told:?}") };
    assert_eq!(reason.errno, Errno::NODEV, "{}", reason.reason);
    assert!(reason.reason.contains("has failed: the test says so"), "{}", reason.reason);
}

#[test]
fn a_device_that_goes_away_is_noticed() {
    for make in WAYS {
        let mut pair = Pair::on(make);
        pair.provider.device().remove();
        assert!(push(&mut pair.victim, 0, 1, 100), "it takes what it never sends");
        pair.part();
        is_down(&mut pair.victim);
        // And there is nothing to be had of it any more.
        pair.victim.connect(0, pair.other.address());
        let TransportEvent::Failed { peer: 0, reason } = event(&mut pair.victim) else {
            panic!("no failure");
        };
        assert_eq!(reason.errno, Errno::NODEV, "{}", reason.reason);
        assert!(reason.reason.contains("fake1 has failed: the test says so"), "{}", reason.reason);
        pair.other.connect(0, pair.victim.address());
        let TransportEvent::Failed { peer: 0, reason } = event(&mut pair.other) else {
            panic!("no failure");
        };
        assert_eq!(reason.errno, Errno::NOBUFS, "{}", reason.reason);
    }
}

/// Where a device waits for its users before it tells them, the connection manager tells them first.
#[test]
fn the_manager_tells_of_a_device_that_goes_away() {
    let mut pair = Pair::on(managed_provider);
    pair.provider.device().remove_for_manager();
    pair.part();
}

/// An endpoint that is opened when its device has failed already.
#[test]
fn nothing_is_had_of_a_device_that_was_gone_before() {
    let fabric = FakeFabric::default();
    let [gone, good] = [(); 2].map(|()| provider(&fabric, FakeOptions::default()));
    let (_first, mut other) = (open(&gone), open(&good));
    gone.device().remove();
    // The first one's end has been told when it is noticed.
    let mut late = open(&gone);
    is_down(&mut late);
    late.connect(0, other.address());
    let TransportEvent::Failed { peer: 0, reason } = event(&mut late) else {
        panic!("no failure");
    };
    assert_eq!(reason.errno, Errno::NODEV, "{}", reason.reason);
    other.connect(0, late.address());
    assert!(matches!(event(&mut other), TransportEvent::Failed { peer: 0, .. }));
}

/// Of an endpoint whose queue is in error, be it that the device says so or that a look fails; others on the
/// device go on.
#[test]
fn a_queue_that_is_in_error_is_its_endpoints_alone() {
    let failures = [FakeDevice::fail_queues as fn(&FakeDevice), FakeDevice::fail_polls];
    for (make, fails) in WAYS.into_iter().flat_map(|make| failures.map(|fails| (make, fails))) {
        let mut pair = Pair::on(make);
        let (mut third, address) = (open(&pair.provider), pair.victim.address());
        fails(pair.provider.device());
        pair.part();
        is_down(&mut pair.victim);
        connect(&mut third, &mut pair.other, 3);
        assert!(push(&mut third, 3, 1, 9));
        assert_eq!(take_soon(&mut pair.other), (3, 1, 9));
        // It says why it takes nobody.
        let mut raw = Raw::connect(address);
        let nonce = raw.greeting();
        raw.say(&signed(raw.hello(address), b"", &nonce));
        assert_eq!(raw.read().unwrap().0, Message::Reject(RejectReason::Resources));
    }
}

#[test]
fn datagrams_end_with_their_device() {
    let fabric = FakeFabric::default();
    let (ours, theirs) =
        (provider(&fabric, FakeOptions::default()), provider(&fabric, FakeOptions::default()));
    let opening = || Opening { service: Service::Datagrams, ..Opening::default() };
    let (mut one, mut other) =
        (ours.open_as(opening()).unwrap(), theirs.open_as(opening()).unwrap());
    connect(&mut one, &mut other, 0);
    ours.device().remove();
    for end in [&mut one, &mut other] {
        let ended = event(end);
        assert!(matches!(ended, TransportEvent::Lost { peer: 0, .. }), "{ended:?}");
    }
    is_down(&mut one);
}
