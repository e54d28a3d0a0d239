//! Forked children: they may exit, exec, call and outlive us, and disturb nobody.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use common::{raw::*, *};
use kestrel_core::error::HasErrno;
use kestrel_shm::{ConnectError, Station, StationEvent};
use kestrel_tests::{
    fork::{fork, wait},
    reserved::own_address,
    scale::takes_less_than,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "forker" => forker(),
        Some([role]) if role == "crowded" => crowded(),
        other => panic!("{other:?}"),
    }
}

fn connected(here: &Station, there: &Station) -> bool {
    here.connect(1, there.address());
    matches!(event(here), StationEvent::Connected { .. })
        && matches!(event(there), StationEvent::Incoming { .. })
}

#[test]
fn children_that_exit_drop_or_call_do_not_disturb_the_parent() {
    let (one, two) = (station(), station());
    assert!(connected(&one, &two));
    // SAFETY: exit runs destructors and atexit handlers in the child, which is the point.
    assert_eq!(wait(fork(|| unsafe { libc::exit(3) })), 3);
    let (one_copy, two_copy) = (&one, &two);
    let calls = fork(|| {
        one_copy.connect(5, two_copy.address());
        let failed = |event: Option<StationEvent>| {
            let forked = ConnectError::Forked;
            matches!(event, Some(StationEvent::Failed { request: 5, error })
                if error.errno() == forked.errno())
        };
        let answered = one_copy.events_pending() && failed(one_copy.next_event());
        let silent = !one_copy.events_pending() && one_copy.next_event().is_none();
        i32::from(!(answered && silent))
    });
    assert_eq!(wait(calls), 0);
    let (three, four) = (station(), station());
    let drops = fork(move || {
        drop(three);
        drop(four);
        0
    });
    assert_eq!(wait(drops), 0);
    assert!(connected(&two, &one));
    assert!(one.next_event().is_none() && two.next_event().is_none());
}

#[test]
fn a_child_may_open_a_station_of_its_own() {
    let (here, address) = (station(), own_address().socket_addr());
    let to = here.address();
    let child = fork(|| {
        let own = station_at(address);
        own.connect(1, to);
        let connected = matches!(event(&own), StationEvent::Connected { .. });
        drop(own);
        i32::from(!connected)
    });
    assert!(matches!(event(&here), StationEvent::Incoming { peer, .. } if peer.address == address));
    assert_eq!(wait(child), 0);
    assert!(matches!(event(&here), StationEvent::Died { .. }));
}

#[test]
fn exec_closes_everything() {
    let (one, two) = (station(), station());
    assert!(connected(&one, &two));
    let listing = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    for ours in ["memfd", "eventfd", "eventpoll", "socket", "pidfd"] {
        assert!(!listing.contains(ours), "{listing}");
    }
}

/// Connects to nobody; forks a child that holds copies of everything and lives on.
fn forker() {
    let orders = listen_to_parent();
    let [open, closed] = [(); 2].map(|()| station_at(own_address().socket_addr()));
    let closed_address = closed.address();
    let survivor = fork(|| {
        std::thread::sleep(PATIENCE);
        0
    });
    drop(closed);
    say(&format!("{} {closed_address} {survivor}", open.address()));
    let _ = orders.recv();
}

#[test]
fn a_child_that_outlives_its_parent_hides_neither_death_nor_closing() {
    takes_less_than(DEATH_KNOWN_WITHIN, death_beside_a_child);
}

/// How long it takes until it is known.
fn death_beside_a_child() -> Duration {
    let mut forker = Peer::start("child", "forker");
    let said = forker.hear();
    let words: Vec<&str> = said.split(' ').collect();
    let (open, closed) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let survivor: i32 = words[2].parse().unwrap();
    let here = station();
    here.connect(1, closed);
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::HostUnreachable { .. }), "{error}");
    here.connect(2, open);
    assert!(matches!(event(&here), StationEvent::Connected { .. }));
    let killed = Instant::now();
    forker.kill();
    assert!(matches!(event(&here), StationEvent::Died { .. }));
    let took = killed.elapsed();
    here.connect(3, open);
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::HostUnreachable { .. }), "{error}");
    // Nor does it keep the address.
    let again = station_at(open);
    here.connect(4, again.address());
    assert!(matches!(event(&here), StationEvent::Connected { .. }));
    // SAFETY: ends the one process that this test's own child forked, by its id.
    unsafe { libc::kill(survivor, libc::SIGKILL) };
    took
}

/// Closes a station at which somebody waits behind all that it speaks with at a time, and has a child then.
fn crowded() {
    let station = station();
    let address = station.address();
    let _silent: Vec<OwnedFd> = (0..64).map(|_| raw_connect(address)).collect();
    let waiting = raw_connect(address);
    send(waiting.as_fd(), &hello(address).encode(), &[]).unwrap();
    let survivor = fork(|| {
        std::thread::sleep(PATIENCE);
        0
    });
    drop(station);
    let mut polled = [PollFd::new(&waiting, PollFlags::IN)];
    let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
    let told = poll(&mut polled, Some(&patience)).unwrap();
    // SAFETY: ends the one process that this one forked, by its id.
    unsafe { libc::kill(survivor, libc::SIGKILL) };
    say(if told == 1 && polled[0].revents().contains(PollFlags::HUP) { "told" } else { "waits" });
}

#[test]
fn who_waits_at_a_station_hears_of_its_close_though_a_child_lives() {
    assert_eq!(Peer::start("child", "crowded").hear(), "told");
}
