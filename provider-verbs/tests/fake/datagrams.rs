//! Datagrams on the fake: what a device may do to them, and what becomes of its queue pair.

use crate::common::{FakeTransport, PATIENCE, connect, may_sleep, provider, push, take, take_soon};
use kestrel_core::transport::{Opening, Provider, Service, Transport};
use kestrel_tests::{bed::Options, fake::fake_bed};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    verbs::Status,
};
use std::time::Instant;

const PEER: u32 = 0;

fn open(provider: &RcProvider<FakeDevice>) -> FakeTransport {
    let service = Service::Datagrams;
    provider.open_as(Opening { service, ..Opening::default() }).unwrap()
}

/// Two endpoints, the first of which has found the second.
fn pair(fabric: &FakeFabric, options: [FakeOptions; 2]) -> [FakeTransport; 2] {
    let [from, to] = options.map(|options| provider(fabric, options));
    let [mut from, mut to] = [open(&from), open(&to)];
    connect(&mut from, &mut to, PEER);
    [from, to]
}

fn push_surely(from: &mut FakeTransport, number: u64, length: usize) {
    let start = Instant::now();
    while !push(from, PEER, number, length) {
        assert!(from.waits_for_itself(PEER), "the way is lost");
        assert!(start.elapsed() < PATIENCE, "in vain: a push");
    }
}

#[test]
fn what_is_lost_leaves_no_trace() {
    let fabric = FakeFabric::default();
    let [mut from, mut to] = pair(&fabric, Default::default());
    for round in 0..50 {
        fabric.lose_datagrams((round % 3) as usize);
        for number in 0..5 {
            push_surely(&mut from, round * 5 + number, 300);
        }
        for number in round % 3..5 {
            assert_eq!(take_soon(&mut to), (PEER, round * 5 + number, 300));
        }
        assert_eq!(take(&mut to), None);
    }
}

#[test]
fn what_finds_no_buffer_is_lost() {
    let fabric = FakeFabric::default();
    let [mut from, mut to] = pair(&fabric, Default::default());
    for _ in 0..3 {
        (0..1000).for_each(|number| push_surely(&mut from, number, 100));
        let arrived = std::iter::from_fn(|| take(&mut to)).count();
        assert!((200..1000).contains(&arrived), "{arrived}");
    }
    assert!(fabric.tally().overrun > 1000);
    push_surely(&mut from, 7, 8);
    assert_eq!(take_soon(&mut to), (PEER, 7, 8));
}

#[test]
fn a_queue_pair_in_error_is_made_usable_again() {
    let fabric = FakeFabric::default();
    for inline_bytes_max in [220, 0] {
        let options = FakeOptions { inline_bytes_max, ..FakeOptions::default() };
        let [mut from, mut to] = pair(&fabric, [options.clone(), options]);
        for round in 0..20 {
            fabric.fail_sends(1, Status::LOCAL_PROTECTION);
            push_surely(&mut from, 1000, 100);
            // What is posted until the error shows is lost as well.
            (0..200).for_each(|_| assert_eq!(take(&mut from), None));
            push_surely(&mut from, round, 100);
            assert_eq!(take_soon(&mut to), (PEER, round, 100));
        }
    }
    let tally = fabric.tally();
    assert_eq!((tally.queue_pairs, tally.registered, tally.address_handles), (0, 0, 0));
}

#[test]
fn of_two_ports_the_smaller_mtu_counts() {
    let fabric = FakeFabric::default();
    let port = |mtu_bytes| FakeOptions { mtu_bytes, ..FakeOptions::default() };
    let [mut from, mut to] = pair(&fabric, [port(4096), port(1024)]);
    assert_eq!((from.limits().single, to.limits().single), (4032, 960));
    push_surely(&mut from, 1, 960);
    assert_eq!(take_soon(&mut to), (PEER, 1, 960));
    assert!(!push(&mut from, PEER, 2, 961), "it would be cut");
    assert!(!from.waits_for_itself(PEER), "it is dropped instead of waiting");
}

#[test]
fn packets_of_nobody_are_dropped() {
    let fabric = FakeFabric::default();
    let [mut from, mut to] = pair(&fabric, Default::default());
    push_surely(&mut from, 1, 8);
    assert_eq!(take_soon(&mut to), (PEER, 1, 8));
    to.hang_up(PEER);
    for number in 0..1000 {
        push_surely(&mut from, number, 8);
        assert_eq!(take(&mut to), None, "its sender was let go of");
    }
    // Who was let go of is found again.
    from.disconnect(PEER);
    connect(&mut from, &mut to, PEER);
    while take(&mut to).is_some() {}
    push_surely(&mut from, 5, 8);
    assert_eq!(take_soon(&mut to), (PEER, 5, 8));
}

/// Whose buffers are posted again at once. The test hangs otherwise.
#[test]
fn strays_hold_up_nobody() {
    let fabric = FakeFabric::default();
    let [mut from, mut to] = pair(&fabric, Default::default());
    push_surely(&mut from, 1, 8);
    assert_eq!(take_soon(&mut to), (PEER, 1, 8));
    fabric.flood(true);
    // More than wait at most until they are posted.
    (0..40).for_each(|number| push_surely(&mut from, number, 8));
    while take(&mut to).is_some() {}
    assert!(to.arrival_from(PEER).is_none());
    may_sleep(&mut to);
    to.disarm();
    fabric.flood(false);
    while take(&mut to).is_some() {}
    assert!(may_sleep(&mut to), "there are no more");
    to.disarm();
    push_surely(&mut from, 2, 8);
    assert_eq!(take_soon(&mut to), (PEER, 2, 8));
}

/// What comes back after a push that found no room is no reason to drop what was pushed.
#[test]
fn what_found_no_room_waits_though_there_is_some_by_now() {
    let fabric = FakeFabric::default();
    let [mut from, mut to] = pair(&fabric, Default::default());
    push_surely(&mut from, 1, 8);
    assert_eq!(take_soon(&mut to), (PEER, 1, 8));
    fabric.hold(true);
    while push(&mut from, PEER, 2, 512) {}
    fabric.hold(false);
    assert!(from.waits_for_itself(PEER));
    assert!(push(&mut from, PEER, 2, 512), "its buffers are back");
}

/// What waits for a buffer goes as soon as there is one, and what is sent behind it as well.
#[test]
fn nothing_is_dropped_while_there_are_buffers() {
    /// Send buffers that an endpoint has.
    const BUFFERS: u64 = 64;
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let world = bed.world_with(3, &Options::datagrams());
    for to in [1, 2] {
        world.nodes[to].receive(8, None, 0);
        world.nodes[0].endpoint.inject(&[1], to as u64).unwrap();
        world.received(to).good();
    }
    let send = |to, context| world.nodes[0].endpoint.send(vec![0; 512], to, context).unwrap();
    fabric.hold(true);
    (0..=BUFFERS).for_each(|context| send(1, context));
    fabric.hold(false);
    // By this one all buffers come back.
    send(2, BUFFERS + 1);
    send(1, BUFFERS + 2);
    assert_eq!(world.nodes[0].endpoint.dropped().unwrap().sent, 0);
    let mut contexts: Vec<u64> = (0..BUFFERS + 3).map(|_| world.sent(0).context()).collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..BUFFERS + 3));
}
