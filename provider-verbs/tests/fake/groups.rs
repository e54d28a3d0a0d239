//! Multicast groups of an InfiniBand subnet, whose manager makes and names them.

use std::net::IpAddr;

use crate::common::{FakeTransport, event, provider, take, take_soon};
use kestrel_core::{
    address::Address,
    error::Errno,
    group::Spread,
    memory::Piece,
    transport::{Multicast as _, Opening, Provider, Service, Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_verbs::{
    device::LinkLayer,
    fake::{FakeFabric, FakeOptions, ManagerFaults},
};

const SPEAKER: u32 = 0;

fn group() -> Address {
    Address::new(IpAddr::from([239, 9, 8, 7]), 0)
}

/// An endpoint of datagrams on InfiniBand.
fn open_in(fabric: &FakeFabric, partition_key: u16) -> FakeTransport {
    let link_layer = LinkLayer::InfiniBand;
    let options = FakeOptions { link_layer, partition_key, ..FakeOptions::default() };
    let service = Service::Datagrams;
    provider(fabric, options).open_as(Opening { service, ..Opening::default() }).unwrap()
}

fn speak(from: &mut FakeTransport, number: u64) -> bool {
    let mut bytes = vec![number as u8; 100];
    // SAFETY: a datagram is copied before the call returns, and the bytes live until then.
    let payload = unsafe { Piece::of(&mut bytes) };
    from.push_to_group(group(), Head::new(Kind::Eager, 0), number, &[], payload)
}

/// Takes a message of a group, whose sender is not known yet.
#[track_caller]
fn meet_speaker(hearer: &mut FakeTransport, speaker: &FakeTransport) {
    assert_eq!(take(hearer), None, "its sender is not known yet");
    match event(hearer) {
        TransportEvent::Overheard { ticket, address } => {
            assert_eq!(address, speaker.address());
            hearer.recognize(SPEAKER, ticket);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_members_of_a_partition_hear_its_group() {
    let fabric = FakeFabric::default();
    let mut hearers = [open_in(&fabric, 0x8001), open_in(&fabric, 0x8001)];
    let (mut other, mut speaker) = (open_in(&fabric, 0x8002), open_in(&fabric, 0x8001));
    for hearer in hearers.iter_mut().chain([&mut other]) {
        assert_eq!(hearer.join(group(), true), Ok(Spread::Carried));
    }
    assert!(!speak(&mut speaker, 1), "it has not joined");
    assert_eq!(speaker.join(group(), false), Ok(Spread::Carried));
    assert_eq!(fabric.tally().members, 4, "who only sends is a member, too");
    assert!(speak(&mut speaker, 2));
    for hearer in &mut hearers {
        meet_speaker(hearer, &speaker);
        assert_eq!(take_soon(hearer), (SPEAKER, 2, 100));
    }
    assert_eq!(take(&mut other), None, "it is in another partition");
    assert!(!other.has_event());
}

#[test]
fn who_leaves_is_no_member() {
    let fabric = FakeFabric::default();
    let (mut hearer, mut speaker) = (open_in(&fabric, 0x8001), open_in(&fabric, 0x8001));
    assert_eq!(hearer.join(group(), true), Ok(Spread::Carried));
    assert_eq!(speaker.join(group(), false), Ok(Spread::Carried));
    hearer.leave(group());
    assert_eq!(fabric.tally().members, 1);
    assert!(speak(&mut speaker, 1));
    assert_eq!(take(&mut hearer), None);
    drop(speaker);
    assert_eq!(fabric.tally().members, 0, "who closes leaves");
    assert_eq!(hearer.join(group(), true), Ok(Spread::Carried), "the group is made again");
}

#[test]
fn a_manager_that_does_not_help_is_an_error() {
    let fabric = FakeFabric::default();
    let mut endpoint = open_in(&fabric, 0x8001);
    let absent = ManagerFaults { absent: true, ..ManagerFaults::default() };
    let silent = ManagerFaults { no_route: true, ..ManagerFaults::default() };
    let refused = [(absent, Errno::OPNOTSUPP, "rdma_cm"), (silent, Errno::TIMEDOUT, "239.9.8.7")];
    for (faults, errno, word) in refused {
        fabric.set_manager_faults(faults);
        let error = endpoint.join(group(), true).unwrap_err();
        assert_eq!(error.errno, errno);
        assert!(error.reason.contains(word), "{}", error.reason);
    }
    fabric.set_manager_faults(ManagerFaults::default());
    assert_eq!(endpoint.join(group(), true), Ok(Spread::Carried));
}
