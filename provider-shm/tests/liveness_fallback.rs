//! The same without pidfds: the kept socket tells of the peer's death.

mod common;

use std::time::{Duration, Instant};

use common::*;
use kestrel_shm::StationEvent;
use kestrel_shm::testing::force_socket_liveness;

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) => {
            force_socket_liveness(role == "without");
            live_as_station(None, |_| {});
        }
        other => panic!("{other:?}"),
    }
}

/// Either side, or both, may lack pidfds.
#[test]
fn a_killed_peer_is_known_by_its_socket() {
    for (ours, theirs) in [(true, "without"), (true, "with"), (false, "without")] {
        force_socket_liveness(ours);
        let mut peer = Peer::start("child", theirs);
        let there = peer.ready();
        let here = station();
        let before = open_descriptors();
        here.connect(1, there);
        let StationEvent::Connected {
            peer: one, bell, ..
        } = event(&here)
        else {
            panic!()
        };
        peer.order(&here.address().to_string());
        let StationEvent::Incoming {
            peer: two,
            bell: again,
            ..
        } = event(&here)
        else {
            panic!()
        };
        assert_eq!(
            one.process != two.process,
            ours,
            "each connection counts as a process"
        );
        assert!(
            event_within(&here, Duration::from_millis(100)).is_none(),
            "it lives"
        );
        let killed = Instant::now();
        peer.kill();
        for _ in 0..if ours { 2 } else { 1 } {
            assert!(matches!(event(&here), StationEvent::Died { .. }));
        }
        assert!(killed.elapsed() < Duration::from_secs(1));
        drop((bell, again, peer));
        eventually("no descriptor is left", || open_descriptors() <= before);
    }
}
