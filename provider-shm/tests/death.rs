//! Peers that die: after connecting, while connecting, and in whatever way.

mod common;

use std::collections::{HashMap, HashSet};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use kestrel_core::transport::{Provider, Transport, TransportEvent};
use kestrel_shm::{ProcessId, ShmOptions, ShmProvider, StationEvent};
use kestrel_tests::scale::takes_less_than;

/// Descriptors are counted, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "station" => live_as_station(None, |_| {}),
        Some([role, address]) if role == "hammer" => {
            let _orders = listen_to_parent();
            let to = address.parse().unwrap();
            say("hammering");
            loop {
                let own: Vec<_> = (0..4).map(|_| station()).collect();
                own.iter().for_each(|station| station.connect(1, to));
                own.iter().for_each(|station| drop(event(station)));
            }
        }
        Some([role, to]) if role == "executes" => {
            map_page(1);
            let station = station();
            station.connect(1, to.parse().unwrap());
            say(&describe(&event(&station)));
            // Its end is heard here, where no other thread reads what comes next.
            std::io::stdin().lines().next();
            let own = std::env::args().collect::<Vec<_>>();
            let mut program = Command::new(std::env::current_exe().unwrap());
            let error = set_role(&mut program, "executed").args(&own[1..]).exec();
            panic!("{error}");
        }
        Some([role]) if role == "executed" => {
            map_page(2);
            say("executed");
            std::io::stdin().lines().next();
        }
        other => panic!("{other:?}"),
    }
}

/// Where a program that executes another, and that one, have a page.
const PAGE: u64 = 0x2000_0000_0000;

/// Maps it, filled with `byte`.
fn map_page(byte: u8) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is there yet, or the call fails; the page is written before it is read, and
    // stays as long as the process.
    unsafe {
        let page = libc::mmap(PAGE as *mut libc::c_void, 4096, protection, flags, -1, 0);
        assert_eq!(page as u64, PAGE);
        page.cast::<u8>().write_bytes(byte, 4096);
    }
}

/// A process that executes another program keeps its PID: to read by it still succeeds.
#[test]
fn what_is_read_of_a_peer_that_executed_another_program_does_not_count() {
    let _alone = alone();
    let here = station();
    let mut peer = Peer::start("child", &format!("executes {}", here.address()));
    let StationEvent::Incoming { peer: them, .. } = event(&here) else { panic!() };
    assert!(peer.hear().starts_with("connected"));
    let memory = them.memory.expect("a child can be read");
    let mut found = [0; 8];
    // SAFETY: here and below, `found` is writable for its 8 bytes, and the call alone does so.
    unsafe { memory.read(PAGE, found.as_mut_ptr(), 8) }.unwrap();
    assert_eq!(found, [1; 8]);
    peer.order("go on");
    assert_eq!(peer.hear(), "executed");
    // SAFETY: as above.
    let read = unsafe { kestrel_shm::cma::read(memory.pid(), PAGE, found.as_mut_ptr(), 8) };
    assert_eq!((read.unwrap(), found), (8, [2; 8]), "the PID alone leads to the other program");
    // SAFETY: as above.
    let error = unsafe { memory.read(PAGE, found.as_mut_ptr(), 8) }.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn a_killed_peer_is_told_of_within_a_second_once_a_station() {
    let _alone = alone();
    takes_less_than(DEATH_KNOWN_WITHIN, death_told_to_stations);
}

/// How long it takes until two of three have heard.
fn death_told_to_stations() -> Duration {
    let mut peer = Peer::start("child", "station");
    let there = peer.ready();
    let (one, two, idle) = (station(), station(), station());
    for station in [&one, &two] {
        station.connect(1, there);
        assert!(matches!(event(station), StationEvent::Connected { .. }));
    }
    peer.order(&one.address().to_string());
    assert!(matches!(event(&one), StationEvent::Incoming { .. }));
    let killed = Instant::now();
    peer.kill();
    for station in [&one, &two] {
        assert!(matches!(event(station), StationEvent::Died { .. }));
        assert!(event_within(station, Duration::from_millis(20)).is_none(), "told twice");
    }
    let took = killed.elapsed();
    assert!(idle.next_event().is_none());
    took
}

#[test]
fn a_forgotten_peer_dies_unnoticed_unless_a_lane_came_meanwhile() {
    let _alone = alone();
    let mut peer = Peer::start("child", "station");
    let there = peer.ready();
    let here = station();
    let before = open_descriptors();
    here.connect(1, there);
    let StationEvent::Connected { peer: them, bell, .. } = event(&here) else { panic!() };
    let process = them.process;
    // Who has a lane can ask whether its peer lives.
    drop((bell, them));
    here.forget(process);
    eventually("nothing of the peer stays open", || open_descriptors() == before);
    // A lane whose event was not taken when its process was forgotten keeps the interest.
    here.connect(2, there);
    let StationEvent::Connected { peer: them, .. } = event(&here) else { panic!() };
    peer.order(&here.address().to_string());
    assert!(peer.hear().starts_with("incoming"));
    assert!(peer.hear().starts_with("incoming"));
    assert!(peer.hear().starts_with("connected"));
    eventually("the lane is announced", || here.events_pending());
    here.forget(them.process);
    peer.kill();
    assert!(matches!(event(&here), StationEvent::Incoming { .. }));
    assert!(matches!(event(&here), StationEvent::Died { process } if process == them.process));
}

/// The second lane's event is taken when the first one ends, but the lane is not in use yet.
#[test]
fn a_death_is_told_although_a_lane_ended_while_the_next_one_waited() {
    let _alone = alone();
    for parts_first in [false, true] {
        let options = ShmOptions { auth_key: options().auth_key, ..ShmOptions::default() };
        let mut here = ShmProvider::new(options).unwrap().open(None, &[]).unwrap();
        let mut peer = Peer::start("child", "station");
        peer.ready();
        for nth in 0..2 {
            peer.order(&here.address().socket_addr().to_string());
            let TransportEvent::Incoming { ticket, .. } = transport_event(&mut here) else {
                panic!("it connects");
            };
            if nth > 0 && parts_first {
                here.disconnect(0);
            }
            here.adopt(0, ticket);
        }
        // Its closing waits until what was ordered before is done.
        drop(station());
        peer.kill();
        assert!(matches!(transport_event(&mut here), TransportEvent::Died { peer: 0 }));
    }
}

fn transport_event(transport: &mut impl Transport) -> TransportEvent {
    let mut told = None;
    eventually("the transport tells of something", || {
        told = transport.event();
        told.is_some()
    });
    told.unwrap()
}

fn iterations() -> u64 {
    std::env::var("KESTREL_TEST_ITERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(30)
}

#[test]
fn senders_killed_in_the_middle_of_handshakes_leave_nothing() {
    let _alone = alone();
    let here = station();
    let before = open_descriptors();
    for round in 0..iterations() {
        let mut hammer = Peer::start("child", &format!("hammer {}", here.address()));
        assert_eq!(hammer.hear(), "hammering");
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        hammer.kill();
        hammer.finish();
        // Whoever was incoming dies, after it came in and once; until nothing is left of it.
        let mut alive: HashSet<ProcessId> = HashSet::new();
        let mut dead: HashSet<ProcessId> = HashSet::new();
        eventually("all are dead and closed", || {
            while let Some(event) = here.next_event() {
                match event {
                    StationEvent::Incoming { peer, .. } => {
                        assert!(!dead.contains(&peer.process), "death overtook a lane");
                        alive.insert(peer.process);
                    }
                    StationEvent::Died { process } => {
                        assert!(alive.remove(&process) && dead.insert(process));
                    }
                    other => panic!("{other:?}"),
                }
            }
            alive.is_empty() && open_descriptors() <= before + 2
        });
        drop(hammer);
    }
    eventually("no descriptor is left", || open_descriptors() <= before);
}

#[test]
fn connects_to_receivers_that_are_killed_end_in_one_event() {
    /// Of each of so many receivers at a time: a connect waits a while for somebody who listens no more.
    const REQUESTS: usize = 20;
    let _alone = alone();
    let here = station();
    let before = open_descriptors();
    let (mut served, mut dead) = (HashSet::new(), HashSet::new());
    let rounds: Vec<u64> = (0..iterations()).collect();
    for rounds in rounds.chunks(10) {
        let mut peers: Vec<Peer> = rounds.iter().map(|_| Peer::start("child", "station")).collect();
        let mut requests = 0..;
        for (peer, round) in peers.iter_mut().zip(rounds) {
            let there = peer.ready();
            requests.by_ref().take(REQUESTS).for_each(|request| here.connect(request, there));
            std::thread::sleep(Duration::from_micros(round * 7919 % 4_000));
            peer.kill();
        }
        let mut told: HashMap<u32, u32> = (0..requests.start).map(|request| (request, 0)).collect();
        while told.values().any(|count| *count == 0) || !served.is_subset(&dead) {
            match event(&here) {
                StationEvent::Connected { request, peer, .. } => {
                    assert!(!dead.contains(&peer.process), "death overtook a lane");
                    served.insert(peer.process);
                    *told.get_mut(&request).unwrap() += 1;
                }
                StationEvent::Failed { request, .. } => *told.get_mut(&request).unwrap() += 1,
                StationEvent::Died { process } => assert!(dead.insert(process), "died twice"),
                other => panic!("{other:?}"),
            }
        }
        assert!(told.values().all(|count| *count == 1), "{told:?}");
    }
    eventually("no descriptor is left", || open_descriptors() <= before);
}
