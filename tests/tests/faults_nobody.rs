//! Addresses where nobody is: an error that says why, within the deadline, for
//! everything that waits in line; and the same entry works when somebody comes.

use std::time::{Duration, Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC, endpoint::PostError, error::Errno, flags::Flags,
};
use kestrel_shm::ShmOptions;
use kestrel_tests::{
    node::{Node, NodeOptions, Wait},
    reserved::own_address,
    scale::{PATIENCE, takes_less_than, unspoilt},
    traffic::{self, Mix, Traffic},
};

/// Ten times as long as is asked for.
const WITHIN: Duration = Duration::from_secs(3);

fn impatient() -> NodeOptions {
    let shm = ShmOptions { connect_timeout: Duration::from_millis(300), ..ShmOptions::default() };
    NodeOptions { shm, ..NodeOptions::default() }
}

/// Sends of every kind to an address where nobody is, in line behind one another.
fn all_fail(node: &Node, to: u64, wait: Wait) {
    takes_less_than(WITHIN, || until_all_fail(node, to, wait));
}

/// How long that takes.
fn until_all_fail(node: &Node, to: u64, wait: Wait) -> Duration {
    let mut traffic = Traffic::new(to, 1, 1, Mix::default());
    let start = Instant::now();
    traffic.post_sentinel(node);
    for (index, length) in [0u64, 8, 3_000, 50_000, 250_000].into_iter().enumerate() {
        let tag = traffic::tag(traffic::ANY, length);
        traffic.post_level(node, tag, Flags::empty(), index % 2 == 1);
        traffic.post_level(node, tag, Flags::DELIVERY_COMPLETE, false);
        traffic.post_level(node, tag, Flags::MATCH_COMPLETE | Flags::FENCE, false);
    }
    let mut expected = 16;
    // What names no context is refused: the call itself has waited, a second at most.
    for length in [0, 8, 200, 1024] {
        match node.endpoint.inject(&vec![1; length], to) {
            Ok(()) => expected += 1,
            Err(PostError::Unreachable { errno: Errno::HOSTUNREACH, .. } | PostError::Again) => {}
            Err(error) => panic!("{error}"),
        }
    }
    while traffic.failed.len() < expected {
        let done = node.within(PATIENCE, wait);
        let done = done.unwrap_or_else(|| panic!("no news: {}", traffic.describe()));
        assert!(traffic.take(done).is_none());
    }
    let took = start.elapsed();
    for (operation, error) in &traffic.failed {
        assert_eq!(error.errno, Errno::HOSTUNREACH, "{operation:?}: {error:?}");
        assert!(error.reason.contains("no endpoint listens"), "{}", error.reason);
        assert!(error.source_address.is_some() || error.flags.contains(Flags::RECV));
    }
    assert!(node.poll().is_none());
    took
}

#[test]
fn nobody_on_this_host() {
    for wait in [Wait::Polling, Wait::Sleeping] {
        let node = Node::with(&impatient());
        let to = node.insert_text("127.0.0.1:1");
        all_fail(&node, to, wait);
        // And again: nothing of the first attempt is in the way.
        all_fail(&node, to, wait);
    }
}

#[test]
fn nobody_on_another_host() {
    let node = Node::with(&impatient());
    let to = node.insert_text("192.0.2.1:50000");
    all_fail(&node, to, Wait::Sleeping);
    let six = node.insert_text("[2001:db8::1]:50000");
    all_fail(&node, six, Wait::Polling);
}

#[test]
fn an_entry_works_when_somebody_comes_later() {
    let node = Node::with(&impatient());
    let address = own_address();
    let to = node.insert(address);
    all_fail(&node, to, Wait::Polling);
    let late = Node::with(&NodeOptions::at(address));
    late.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    node.endpoint.send(vec![5; 8], to, 2).unwrap();
    let mut left = 2;
    let deadline = Instant::now() + PATIENCE;
    while left > 0 {
        left -= usize::from(node.poll().map(|done| done.well()).is_some());
        left -= usize::from(late.poll().map(|done| done.well()).is_some());
        assert!(Instant::now() < deadline);
    }
}

/// Somebody who comes within the patience for starting peers is waited for.
#[test]
fn a_peer_that_is_late_is_waited_for() {
    // On a busy machine it may come too late.
    unspoilt(|| {
        let node = Node::open();
        let address = own_address();
        let to = node.insert(address);
        let comes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            Node::with(&NodeOptions::at(address))
        });
        // The call itself waits, a second at most.
        let mut is_waited_for = node.endpoint.inject(&[3; 8], to).is_ok();
        let late = comes.join().unwrap();
        late.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
        let (mut received, deadline) = (None, Instant::now() + PATIENCE);
        while is_waited_for && received.is_none() {
            is_waited_for = node.poll().is_none();
            received = late.poll().map(|done| done.well().length);
            assert!(Instant::now() < deadline);
        }
        received == Some(8)
    });
}

/// What is injected waits for its first connection: once, however often nobody is there.
#[test]
fn who_goes_on_injecting_does_not_wait_each_time() {
    const CALLS: usize = 100;
    let node = Node::open();
    let address = own_address();
    let to = node.insert(address);
    let (start, errno) = (Instant::now(), Errno::HOSTUNREACH);
    let inject = || {
        let answer = node.endpoint.inject(&[3; 8], to);
        let _ = node.poll();
        match answer {
            Err(PostError::Unreachable { errno: why, .. }) => why == errno,
            Ok(()) | Err(PostError::Again) => false,
            Err(error) => panic!("{error}"),
        }
    };
    let mut refused = (0..CALLS).filter(|_| inject()).count();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?} for {CALLS} calls", start.elapsed());
    // Who knew too late has waited once for nothing, and waits again in ten seconds.
    while refused == 0 {
        refused += usize::from(inject());
        assert!(start.elapsed() < PATIENCE, "in vain: it is refused");
    }
    // Somebody is there again: the next one that finds nobody is waited for as before.
    let late = Node::with(&NodeOptions::at(address));
    let deadline = Instant::now() + PATIENCE;
    late.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    while late.poll().is_none() {
        let _ = (node.endpoint.inject(&[3; 8], to), node.poll());
        assert!(Instant::now() < deadline);
    }
}
