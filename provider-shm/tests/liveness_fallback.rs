//! The same on older kernels: without SO_PEERPIDFD, and without any pidfd, where the kept socket
//! tells of the peer's death.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use kestrel_shm::StationEvent;
use kestrel_shm::testing::{Offered, pretend_kernel_offers};
use kestrel_tests::scale::takes_less_than;

const OFFERS: [(&str, Offered); 3] = [
    ("socket", Offered::Socket),
    ("pidfd_open", Offered::PidfdOpen),
    ("peer_pidfd", Offered::PeerPidfd),
];

/// What the kernel offers is so for the whole process, and descriptors are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let _alone = alone();
    for (ours, theirs) in OFFERS.into_iter().flat_map(|one| OFFERS.map(|two| (one.1, two.0))) {
        takes_less_than(DEATH_KNOWN_WITHIN, || death(ours, theirs));
    }
}

/// How long it takes until it is known.
fn death(ours: Offered, theirs: &str) -> Duration {
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
    let took = killed.elapsed();
    drop((bell, again, peer));
    eventually("no descriptor is left", || open_descriptors() <= before);
    took
}

/// The peer has its end open still: how many of them it has is its own affair.
#[test]
fn a_socket_is_kept_for_a_peer_as_long_as_the_lane() {
    const LANES: usize = 8;
    let _alone = alone();
    pretend_kernel_offers(Offered::PeerPidfd);
    let here = station();
    let mut peer = Peer::start("child", "socket");
    peer.ready();
    let mut next_lane = || {
        peer.order(&here.address().to_string());
        let lane = event(&here);
        assert!(matches!(lane, StationEvent::Incoming { .. }));
        lane
    };
    let _first = next_lane();
    let before = open_descriptors();
    (0..LANES).for_each(|_| drop(next_lane()));
    eventually("one is kept at most", || open_descriptors() <= before + 1);
    // For the peer we are dead in each but the first, which there is, and the last one.
    let said: Vec<_> = (0..1 + LANES + LANES - 1).map(|_| peer.hear()).collect();
    let died = said.iter().filter(|line| *line == "died").count();
    assert_eq!(died, LANES - 1, "{said:?}");
}
