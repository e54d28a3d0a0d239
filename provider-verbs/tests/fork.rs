//! Forked children that drop what they inherited disturb nobody.

#[path = "fake/common/mod.rs"]
mod common;

use std::{
    net::SocketAddr,
    os::fd::{BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use common::{connect, managed_provider, open, provider, stream};
use kestrel_core::transport::{Provider, Transport};
use kestrel_tests::fork::{fork, wait};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

#[test]
fn a_child_that_drops_an_endpoint_does_not_close_the_parents() {
    for make in [provider, managed_provider] {
        let fabric = FakeFabric::default();
        fork_with(&fabric, make(&fabric, FakeOptions::default()));
    }
}

fn fork_with(fabric: &FakeFabric, provider: RcProvider<FakeDevice>) {
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    assert!(!provider.forked());
    let before = fabric.tally();
    let mut inherited = Some((provider, one, other));
    let child = fork(|| {
        let (provider, one, other) = inherited.take().expect("what was inherited");
        let start = Instant::now();
        let forked = provider.forked();
        drop((one, other));
        drop(provider);
        // All of it is the parent's: nothing is waited for, nothing is destroyed.
        let untouched = fabric.tally() == before;
        i32::from(!(forked && untouched && start.elapsed() < Duration::from_secs(5)))
    });
    assert_eq!(wait(child), 0);
    let (_provider, mut one, mut other) = inherited.expect("the child took its own copy");
    assert!(one.event().is_none() && other.event().is_none());
    stream(&mut one, &mut other, 0, 100);
}

/// The kernel ends a connection, and gives an address back, when nobody has the socket any more: where
/// the parent is killed, its peers would wait for the child's end, too.
#[test]
fn a_child_that_lives_on_keeps_no_connection() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    let addresses = [one.address().socket_addr(), other.address().socket_addr()];
    // Two that listen, and both ends of a connection.
    assert_eq!(sockets_at(addresses), 4);
    assert_eq!(wait(fork(|| sockets_at(addresses) as i32)), 0);
    stream(&mut one, &mut other, 0, 100);
}

/// How many TCP sockets this process has that are at one of these addresses, or connected to one.
fn sockets_at(addresses: [SocketAddr; 2]) -> usize {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_at = |number: &RawFd| {
        // SAFETY: it is asked who it is, and may be closed already, which is an error.
        let socket = unsafe { BorrowedFd::borrow_raw(*number) };
        let own = rustix::net::getsockname(socket).ok();
        let peers = rustix::net::getpeername(socket).ok().flatten();
        let ends = [own, peers].into_iter().flatten();
        ends.filter_map(|end| end.try_into().ok()).any(|end| addresses.contains(&end))
    };
    numbers.filter(is_at).count()
}
