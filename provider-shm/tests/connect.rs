//! Connections that should come about, and those that fail as they should.

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{raw::*, *};
use kestrel_core::{
    auth_key::{AuthKey, Keyring},
    error::{Errno, HasErrno},
};
use kestrel_shm::cma::PeerMemory;
use kestrel_shm::testing::wire::RejectReason;
use kestrel_shm::{ConnectError, LANE_BYTES, Station, StationError, StationEvent, StationOptions};
use kestrel_tests::{reserved::own_address, scale::unspoilt};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role, address]) if role == "at" => {
            live_as_station(Some(address.parse().unwrap()), |_| {});
        }
        Some([role]) if role == "station" => live_as_station(None, |_| {}),
        Some([role]) if role == "reopened" => reopened(),
        other => panic!("{other:?}"),
    }
}

/// How a station of this process reaches another's memory, both of which are closed; none if the kernel does
/// not permit that here.
fn memory_of_closed() -> Option<PeerMemory> {
    let (sender, receiver) = (station(), station());
    sender.connect(1, receiver.address());
    let StationEvent::Connected { peer, .. } = event(&sender) else { panic!("not connected") };
    peer.memory
}

/// Has no station for a while, and then others.
fn reopened() {
    if let Some(memory) = memory_of_closed() {
        let (place, value) = (AtomicU64::new(0), 5_u64.to_ne_bytes());
        // SAFETY: the value is 8 bytes long, and so is the place, whose content is never a reference.
        let written = unsafe { memory.write(place.as_ptr() as u64, value.as_ptr(), 8) };
        assert_eq!((written.is_ok(), place.load(Ordering::SeqCst)), (false, 0));
        assert!(memory_of_closed().is_some());
    }
    say("fine");
}

/// Who was stopped before a copy, and goes on when all is closed.
#[test]
fn nothing_is_written_to_a_process_once_its_last_station_is_closed() {
    assert_eq!(Peer::start("child", "reopened").hear(), "fine");
}

#[test]
fn two_stations_of_one_process_share_a_lane_and_a_pool() {
    let (sender, receiver) = (station(), station());
    sender.connect(42, receiver.address());
    let StationEvent::Connected { request: 42, lane, bell, peer } = event(&sender) else {
        panic!("not connected");
    };
    let StationEvent::Incoming { lane: theirs, pool, bell: back, peer: from } = event(&receiver)
    else {
        panic!("nothing incoming");
    };
    assert_eq!((peer.address, peer.incarnation), (receiver.address(), receiver.incarnation()));
    assert_eq!((from.address, from.incarnation), (sender.address(), sender.incarnation()));
    assert_eq!(peer.process, from.process, "both are this process");
    assert_eq!(peer.asymmetric, kestrel_shm::barrier::asymmetric());
    let own = Some(std::process::id() as i32);
    let pids = [peer.memory, from.memory].map(|memory| memory.map(|memory| memory.pid()));
    assert_eq!(pids, [own, own]);
    assert_eq!((peer.reads_us, from.reads_us), (true, false), "who accepts says so");
    // SAFETY: both pointers are to mappings of LANE_BYTES, of one memfd; the pools likewise. Each
    // byte is written before it is read, in this thread, without references.
    unsafe {
        let last = LANE_BYTES - 1;
        lane.as_ptr().add(last).write_volatile(17);
        assert_eq!(theirs.as_ptr().add(last).read_volatile(), 17);
        theirs.as_ptr().write_volatile(18);
        assert_eq!(lane.as_ptr().read_volatile(), 18);
        let last = sender.pool().len() - 1;
        assert_eq!(pool.len(), sender.pool().len());
        sender.pool().as_ptr().add(last).write_volatile(19);
        assert_eq!(pool.as_ptr().add(last).read_volatile(), 19);
    }
    receiver.bell().drain();
    bell.ring();
    assert!(receiver.bell().drain());
    sender.bell().drain();
    back.ring();
    assert!(sender.bell().drain());
    assert!(sender.next_event().is_none() && receiver.next_event().is_none());
}

#[test]
fn simultaneous_connects_do_not_cross() {
    let (one, two) = (station(), station());
    one.connect(1, two.address());
    two.connect(2, one.address());
    for station in [&one, &two] {
        let kinds: HashSet<_> = (0..2)
            .map(|_| describe(&event(station)).split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(kinds, HashSet::from(["connected".to_owned(), "incoming".to_owned()]));
        assert!(event_within(station, Duration::from_millis(20)).is_none());
    }
}

#[test]
fn a_station_connects_to_itself() {
    let station = station();
    station.connect(1, station.address());
    let events = [event(&station), event(&station)];
    assert!(events.iter().any(|e| matches!(e, StationEvent::Connected { .. })));
    assert!(events.iter().any(|e| matches!(e, StationEvent::Incoming { .. })));
}

#[test]
fn two_processes_connect_both_ways() {
    let mut peer = Peer::start("child", "station");
    let there = peer.ready();
    let here = station();
    here.connect(1, there);
    let StationEvent::Connected { peer: them, .. } = event(&here) else { panic!() };
    assert_eq!(them.memory.map(|memory| memory.pid()), Some(peer.pid() as i32));
    assert_eq!(peer.hear(), format!("incoming {} cma=true", here.address()));
    peer.order(&here.address().to_string());
    let StationEvent::Incoming { peer: from, .. } = event(&here) else { panic!() };
    assert_eq!(from.process, them.process);
    assert_eq!(peer.hear(), format!("connected 7 {} cma=true", here.address()));
}

#[test]
fn without_cma_nobody_probes() {
    let with = station();
    let without = Station::open(StationOptions { cma: false, ..options() }).unwrap();
    with.connect(1, without.address());
    let StationEvent::Connected { peer, .. } = event(&with) else { panic!() };
    let StationEvent::Incoming { peer: from, .. } = event(&without) else { panic!() };
    assert_eq!((peer.memory, from.memory), (None, None));
    assert!(!peer.reads_us);
}

/// How long somebody may take to begin to listen.
const GRACE: Duration = Duration::from_millis(750);

#[test]
fn nobody_there_is_known_before_the_timeout_and_after_the_grace() {
    let station = station();
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let start = Instant::now();
    station.connect(5, nobody);
    let StationEvent::Failed { request: 5, error } = event(&station) else { panic!() };
    assert!(matches!(error, ConnectError::HostUnreachable { to, .. } if to == nobody), "{error}");
    assert_eq!(error.errno(), Errno::HOSTUNREACH);
    assert!(start.elapsed() >= GRACE);
    assert!(event_within(&station, Duration::from_millis(50)).is_none());
}

#[test]
fn a_short_timeout_is_kept_even_when_nobody_is_there() {
    // Shorter than the grace, and long enough for the connects of the tests beside this one.
    let connect_timeout = Duration::from_millis(400);
    let station = Station::open(StationOptions { connect_timeout, ..options() }).unwrap();
    let time = || {
        let start = Instant::now();
        station.connect(5, "127.0.0.1:1".parse().unwrap());
        let StationEvent::Failed { error, .. } = event(&station) else { panic!() };
        assert!(matches!(error, ConnectError::HostUnreachable { .. }), "{error}");
        start.elapsed()
    };
    // On a busy machine it may take as long as the grace now and then.
    assert!((0..5).any(|_| time() < GRACE), "never before the grace is over");
}

#[test]
fn a_peer_that_starts_a_little_later_is_found() {
    let is_found = || {
        let address = own_address().socket_addr();
        let here = station();
        here.connect(1, address);
        let _peer = Peer::start("child", &format!("at {address}"));
        matches!(event(&here), StationEvent::Connected { .. })
    };
    // It is tried for less than a second, in which a busy machine may not have started the other.
    unspoilt(is_found);
}

#[test]
fn a_peer_that_accepts_and_says_nothing_times_out() {
    let silent = own_address().socket_addr();
    let _listener = listen_at_with(silent, 100);
    let connect_timeout = Duration::from_secs(3);
    let here = Station::open(StationOptions { connect_timeout, ..options() }).unwrap();
    let there = station();
    // More than may have a socket at a time: they must not keep others from connecting, for longer than they
    // are waited for there.
    const SILENT: u32 = 40;
    for request in 0..SILENT {
        here.connect(request, silent);
    }
    here.connect(1000, there.address());
    let mut requests = HashSet::new();
    for _ in 0..=SILENT {
        match event(&here) {
            StationEvent::Connected { request, .. } => assert_eq!(request, 1000),
            StationEvent::Failed { request, error } => {
                assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
                assert!(requests.insert(request));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(requests.len(), SILENT as usize);
}

#[test]
fn different_keys_refuse_each_other() {
    let other = Station::open(StationOptions { auth_key: b"other".to_vec(), ..options() }).unwrap();
    let here = station();
    here.connect(1, other.address());
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert!(event_within(&other, Duration::from_millis(20)).is_none());
}

/// Who wants to send to an endpoint that is not enabled waits; of several keys, the one that was
/// proved is told.
#[test]
fn a_key_that_comes_later_is_waited_for() {
    let there = Station::open(StationOptions { keys_follow: true, ..options() }).unwrap();
    let here = Station::open(StationOptions { keys_follow: true, ..options() }).unwrap();
    let keys = |names: [&[u8]; 2]| {
        Keyring::new((1..).zip(names).map(|(number, bytes)| AuthKey::new(number, bytes)))
    };
    here.take_keys(Some(keys([b"own", b"common"])));
    here.connect_by(7, there.address(), 2);
    assert!(event_within(&here, Duration::from_millis(100)).is_none());
    there.take_keys(Some(keys([b"common", b"theirs"])));
    let StationEvent::Connected { request: 7, .. } = event(&here) else { panic!() };
    let StationEvent::Incoming { peer, .. } = event(&there) else { panic!() };
    assert_eq!(peer.key, 1, "as they call it");
    here.connect_by(8, there.address(), 1);
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
}

#[test]
fn one_process_has_so_many_lanes_to_an_endpoint_and_no_more() {
    const MOST: u32 = 1024;
    let (target, greedy) = (station(), station());
    for request in 0..=MOST {
        greedy.connect(request, target.address());
    }
    let mut held = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..=MOST {
        match event(&greedy) {
            StationEvent::Connected { .. } => held.push(event(&target)),
            StationEvent::Failed { error, .. } => refused.push(error),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((held.len(), refused.len()), (MOST as usize, 1));
    let ConnectError::Refused { reason: RejectReason::TooManyLanes, .. } = &refused[0] else {
        panic!("{}", refused[0]);
    };
    // A lane that is closed makes room for another.
    held.pop();
    greedy.connect(0, target.address());
    assert!(matches!(event(&greedy), StationEvent::Connected { .. }));
}

#[test]
fn an_address_is_taken_once_and_free_after_closing() {
    let address = Some(own_address().socket_addr());
    let first = Station::open(StationOptions { address, ..options() }).unwrap();
    let again = Station::open(StationOptions { address, ..options() });
    assert!(matches!(again, Err(StationError::AddressInUse { .. })));
    let incarnation = first.incarnation();
    drop(first);
    let again = Station::open(StationOptions { address, ..options() }).unwrap();
    assert_ne!(again.incarnation(), incarnation);
}

#[test]
fn bad_options_are_named() {
    let long = Station::open(StationOptions { auth_key: vec![0; 513], ..options() });
    assert!(matches!(long, Err(StationError::KeyTooLong { bytes: 513 })));
    let any = "0.0.0.0".parse().unwrap();
    let nowhere = Station::open(StationOptions { default_ip: any, ..options() });
    assert!(matches!(nowhere, Err(StationError::NoAddress)));
    let wild = Station::open(StationOptions { address: "0.0.0.0:0".parse().ok(), ..options() });
    let wild = wild.unwrap();
    assert_eq!(wild.address().ip(), LOCAL);
    assert!(wild.address().port() >= 49152);
    // A port of any address is looked for at the loopback address.
    let default_ip = "127.0.0.9".parse().unwrap();
    let open = |address: &str| {
        let address = address.parse().ok();
        Station::open(StationOptions { address, default_ip, ..options() })
    };
    let other = open("0.0.0.0:0").unwrap().address();
    assert_eq!(other.ip(), default_ip);
    for (any, own) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        // Each may be somebody's.
        let opened =
            (1025..1045).find_map(|port| Some((port, open(&format!("{any}:{port}")).ok()?)));
        let (port, wild) = opened.expect("a port that nobody has");
        assert_eq!(wild.address().to_string(), format!("{own}:{port}"));
    }
    let six = "[::1]:0".parse().ok();
    let six = Station::open(StationOptions { address: six, ..options() }).unwrap();
    let mapped = "[::ffff:127.0.0.1]:0".parse().ok();
    let mapped = Station::open(StationOptions { address: mapped, ..options() }).unwrap();
    assert!(mapped.address().is_ipv4());
    six.connect(1, mapped.address());
    assert!(matches!(event(&six), StationEvent::Connected { .. }));
}

#[test]
fn closing_answers_every_request_and_hands_over_what_was_not_taken() {
    let (mut here, there) = (station(), station());
    here.connect(1, "127.0.0.1:1".parse().unwrap());
    there.connect(2, here.address());
    assert!(matches!(event(&there), StationEvent::Connected { .. }));
    let left = here.close();
    assert!(left.iter().any(|e| matches!(e, StationEvent::Incoming { .. })), "{left:?}");
    let closed = |e: &StationEvent| {
        matches!(e, StationEvent::Failed { request: 1, error: ConnectError::Closed })
    };
    assert!(left.iter().any(closed), "{left:?}");
}

#[test]
fn a_closed_station_refuses() {
    let (here, address) = (station(), own_address().socket_addr());
    drop(station_at(address));
    here.connect(1, address);
    let StationEvent::Failed { error, .. } = event(&here) else { panic!() };
    assert!(matches!(error, ConnectError::HostUnreachable { .. }), "{error}");
}

#[test]
fn two_hundred_stations_connect_to_one() {
    let centre = station();
    let others: Vec<Station> = (0..200).map(|_| station()).collect();
    for (request, other) in others.iter().enumerate() {
        other.connect(request as u32, centre.address());
        centre.connect(request as u32, other.address());
    }
    let (mut connected, mut incoming) = (HashSet::new(), HashSet::new());
    for _ in 0..400 {
        match event(&centre) {
            StationEvent::Connected { request, .. } => assert!(connected.insert(request)),
            StationEvent::Incoming { peer, .. } => assert!(incoming.insert(peer.address)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((connected.len(), incoming.len()), (200, 200));
    for (request, other) in others.iter().enumerate() {
        let events = [event(other), event(other)];
        let wanted = request as u32;
        assert!(
            events.iter().any(
                |e| matches!(e, StationEvent::Connected { request, .. } if *request == wanted)
            )
        );
        assert!(events.iter().any(|e| matches!(e, StationEvent::Incoming { .. })));
    }
}

#[test]
fn eight_processes_connect_all_to_all() {
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::start("child", "station")).collect();
    let addresses: Vec<SocketAddr> = peers.iter().map(Peer::ready).collect();
    for peer in &mut peers {
        for address in &addresses {
            peer.order(&address.to_string());
        }
    }
    for peer in &peers {
        let said: Vec<String> = (0..16).map(|_| peer.hear()).collect();
        let count = |word: &str| said.iter().filter(|line| line.starts_with(word)).count();
        assert_eq!((count("connected"), count("incoming")), (8, 8), "{said:?}");
    }
}

/// Who listens there has its hands full.
#[test]
fn whose_an_address_is_cannot_be_told_while_nobody_more_can_wait_there() {
    let (at, own) = (own_address().socket_addr(), Some(std::process::id() as i32));
    let listener = listen_at_with(at, 0);
    assert_eq!(Station::is_of_others(own, at), Some(false));
    let _waiting: Vec<_> = (0..100).map_while(|_| try_connect(at)).collect();
    assert_eq!(Station::is_of_others(own, at), None);
    rustix::io::ioctl_fionbio(&listener, true).unwrap();
    for (pid, answer) in [(own, Some(false)), (None, Some(true))] {
        while rustix::net::accept(&listener).is_ok() {}
        assert_eq!(Station::is_of_others(pid, at), answer);
    }
}
