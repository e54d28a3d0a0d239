//! Peers in other namespaces. Each part is skipped, with the reason, where the system forbids it.

mod common;

use std::time::{Duration, Instant};

use common::*;
use kestrel_shm::{ConnectError, StationEvent};
use kestrel_tests::scale::{skip, takes_less_than};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "station" => live_as_station(None, |_| {}),
        other => panic!("{other:?}"),
    }
}

/// A peer under `unshare` with these flags, if they are permitted here.
fn unshared(test: &str, flags: &[&str]) -> Option<Peer> {
    if let Some(reason) = forbidden(flags) {
        skip(test, &reason);
        return None;
    }
    Some(Peer::start_unshared(flags, "station"))
}

const PID_NAMESPACE: &[&str] = &["--pid", "--fork", "--kill-child", "--mount-proc"];

#[test]
fn a_peer_in_a_child_pid_namespace_is_read_one_way_and_its_death_seen() {
    const TEST: &str = "a_peer_in_a_child_pid_namespace_is_read_one_way_and_its_death_seen";
    takes_less_than(DEATH_KNOWN_WITHIN, || {
        unshared(TEST, PID_NAMESPACE).map_or(Duration::ZERO, death_in_a_namespace)
    });
}

/// How long it takes until it is seen.
fn death_in_a_namespace(mut peer: Peer) -> Duration {
    let there = peer.ready();
    let here = station();
    here.connect(1, there);
    let StationEvent::Connected { peer: them, .. } = event(&here) else { panic!() };
    assert!(them.memory.is_some_and(|memory| memory.pid() > 1), "we see its PID, and it is not 1");
    // It does not see ours.
    assert_eq!(peer.hear(), format!("incoming {} cma=false", here.address()));
    peer.order(&here.address().to_string());
    let StationEvent::Incoming { peer: from, .. } = event(&here) else { panic!() };
    assert_eq!(from.process, them.process);
    assert!(from.memory.is_some());
    assert_eq!(peer.hear(), format!("connected 7 {} cma=false", here.address()));
    let killed = Instant::now();
    peer.kill();
    assert!(matches!(event(&here), StationEvent::Died { .. }));
    killed.elapsed()
}

#[test]
fn two_containers_that_both_say_one_connect_and_read_nothing() {
    const TEST: &str = "two_containers_that_both_say_one_connect_and_read_nothing";
    let Some(mut one) = unshared(TEST, PID_NAMESPACE) else {
        return;
    };
    let Some(mut two) = unshared(TEST, PID_NAMESPACE) else {
        return;
    };
    let (first, second) = (one.ready(), two.ready());
    one.order(&second.to_string());
    assert_eq!(one.hear(), format!("connected 7 {second} cma=false"));
    assert_eq!(two.hear(), format!("incoming {first} cma=false"));
    two.kill();
    assert_eq!(one.hear(), "died");
}

#[test]
fn a_peer_in_another_network_namespace_is_unreachable_and_says_why() {
    const TEST: &str = "a_peer_in_another_network_namespace_is_unreachable_and_says_why";
    let Some(mut peer) = unshared(TEST, &["--net"]) else {
        return;
    };
    let there = peer.ready();
    let here = station();
    here.connect(1, there);
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::HostUnreachable { .. }), "{error}");
    assert!(error.to_string().contains("network namespace"), "{error}");
    peer.order(&here.address().to_string());
    assert!(peer.hear().starts_with("failed 7 no endpoint listens"));
}

#[test]
fn a_peer_in_a_user_namespace_with_our_name_connects() {
    const TEST: &str = "a_peer_in_a_user_namespace_with_our_name_connects";
    let Some(mut peer) = unshared(TEST, &["--user", "--map-root-user"]) else {
        return;
    };
    let there = peer.ready();
    let here = station();
    here.connect(1, there);
    let StationEvent::Connected { peer: them, .. } = event(&here) else { panic!() };
    // We own that namespace; it may not look into ours.
    assert!(them.memory.is_some() || !rustix::process::geteuid().is_root());
    assert_eq!(peer.hear(), format!("incoming {} cma=false", here.address()));
    peer.order(&here.address().to_string());
    assert_eq!(peer.hear(), format!("connected 7 {} cma=false", here.address()));
}

#[test]
fn a_peer_in_a_user_namespace_without_a_name_trusts_nobody() {
    const TEST: &str = "a_peer_in_a_user_namespace_without_a_name_trusts_nobody";
    let Some(mut peer) = unshared(TEST, &["--user"]) else {
        return;
    };
    let _there = peer.ready();
    let here = station();
    peer.order(&here.address().to_string());
    let said = peer.hear();
    assert!(said.starts_with("failed 7 cannot tell whether"), "{said}");
    assert!(here.next_event().is_none());
}
