//! The same on older kernels: without SO_PEERPIDFD, and without any pidfd, where the kept socket
//! tells of the peer's death.

mod common;

use std::time::{Duration, Instant};

use common::*;
use kestrel_shm::StationEvent;
use kestrel_shm::testing::{Offered, pretend_kernel_offers};

const OFFERS: [(&str, Offered); 3] = [
    ("socket", Offered::Socket),
    ("pidfd_open", Offered::PidfdOpen),
    ("peer_pidfd", Offered::PeerPidfd),
];

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) => {
            let (_, offered) = OFFERS.into_iter().find(|(name, _)| name == role).unwrap();
            pretend_kernel_offers(offered);
            live_as_station(None, |_| {});
        }
        other => panic!("{other:?}"),
    }
}

/// Either side, or both, may lack what the other has.
#[test]
fn a_killed_peer_is_known_whatever_the_kernel_offers() {
    for (ours, theirs) in OFFERS.into_iter().flat_map(|one| OFFERS.map(|two| (one.1, two.0))) {
        pretend_kernel_offers(ours);
        let by_socket = ours == Offered::Socket;
        let mut peer = Peer::start("child", theirs);
        let there = peer.ready();
        let here = station();
        let before = open_descriptors();
        here.connect(1, there);
        let StationEvent::Connected { peer: one, bell, .. } = event(&here) else { panic!() };
        peer.order(&here.address().to_string());
        let StationEvent::Incoming { peer: two, bell: again, .. } = event(&here) else { panic!() };
        assert_eq!(one.process != two.process, by_socket, "each connection counts as a process");
        assert!(event_within(&here, Duration::from_millis(50)).is_none(), "it lives");
        let killed = Instant::now();
        peer.kill();
        for _ in 0..if by_socket { 2 } else { 1 } {
            assert!(matches!(event(&here), StationEvent::Died { .. }));
        }
        assert!(killed.elapsed() < Duration::from_secs(1));
        drop((bell, again, peer));
        eventually("no descriptor is left", || open_descriptors() <= before);
    }
}
