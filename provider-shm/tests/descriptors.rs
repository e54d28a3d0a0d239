//! A process that runs out of descriptors says so, waits without spinning, and recovers.

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::{raw::*, *};
use kestrel_core::error::{Errno, HasErrno};
use kestrel_core::transport::Provider;
use kestrel_shm::named_memory::Opening;
use kestrel_shm::testing::wire::{Message, Reply};
use kestrel_shm::{
    ConnectError, Doorbell, NamedMemory, ShmOptions, ShmProvider, Station, StationError,
    StationEvent, StationOptions,
};
use kestrel_tests::reserved::own_address;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "raised" => raised(),
        Some([role]) if role == "stations" => too_many_stations(),
        Some([role]) if role == "receiver" => receiver(),
        Some([role, to]) if role == "sender" => sender(to.parse().unwrap()),
        Some([role]) if role == "answered" => answered(),
        Some([role]) if role == "opening" => opening(),
        Some([role]) if role == "asking" => asking(),
        Some([role, name]) if role == "asker" => asker(name),
        other => panic!("{other:?}"),
    }
}

fn limit(soft: u64, hard: u64) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) }).unwrap();
}

/// Every descriptor that is left.
fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/proc/self/exe").ok()).collect()
}

fn raised() {
    limit(50, 100);
    let _station = station();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(100));
    say("fine");
}

fn too_many_stations() {
    limit(60, 60);
    let pool = options().pool;
    let open = || Station::open(StationOptions { pool: pool.clone(), ..options() });
    let mut stations = Vec::new();
    let error = loop {
        match open() {
            Ok(station) => stations.push(station),
            Err(error) => break error,
        }
        assert!(stations.len() < 60);
    };
    assert!(matches!(error, StationError::OutOfDescriptors(_)), "{error}");
    assert!(error.to_string().contains("the limit is 60"), "{error}");
    stations.truncate(5);
    stations.push(open().unwrap());
    say("fine");
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Has no descriptor to accept with for a second.
fn receiver() {
    let _orders = listen_to_parent();
    limit(60, 60);
    let station = station();
    let hoard = all_descriptors();
    let before = cpu_time();
    say(&format!("ready {}", station.address()));
    std::thread::sleep(Duration::from_millis(1000));
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(300), "{used:?} spent on having no descriptor");
    drop(hoard);
    say(&describe(&event(&station)));
    // Enough to accept with, too few for what is passed: one by one until it works.
    let mut hoard = all_descriptors();
    hoard.truncate(hoard.len() - 2);
    say("scarce");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!station.events_pending());
    drop(hoard);
    say(&describe(&event(&station)));
    let _ = _orders.recv();
}

fn sender(to: std::net::SocketAddr) {
    limit(60, 60);
    let station = station();
    let hoard = all_descriptors();
    station.connect(1, to);
    let StationEvent::Failed { error, .. } = event(&station) else { panic!() };
    assert!(matches!(error, ConnectError::OutOfDescriptors { .. }), "{error}");
    assert!(error.to_string().contains("the limit is 60"), "{error}");
    drop(hoard);
    station.connect(2, to);
    assert!(matches!(event(&station), StationEvent::Connected { .. }));
    say("fine");
}

/// All that is left but so many.
fn all_descriptors_but(left: usize) -> Vec<File> {
    let mut hoard = all_descriptors();
    hoard.truncate(hoard.len() - left);
    hoard
}

/// Has no room for all that an ACCEPT passes, or to look at it.
fn answered() {
    limit(60, 60);
    let (there, station) = (own_address().socket_addr(), station());
    let listener = listen_at(there);
    let (bell, (_, _, mark)) = (Doorbell::new().unwrap(), parcel());
    let accepts = Message::Accept(Reply { address: there, ..reply() }).encode();
    for left in 0..=2 {
        station.connect(left as u32, there);
        let raw = rustix::net::accept(&listener).unwrap();
        // When its control thread does the next thing it has said HELLO, and closed what it passed.
        station.settle(9);
        assert!(matches!(event(&station), StationEvent::Settled { request: 9 }));
        let hoard = all_descriptors_but(left);
        send(raw.as_fd(), &accepts, &[bell.as_fd(), mark.as_fd()]).unwrap();
        let StationEvent::Failed { error, .. } = event(&station) else { panic!() };
        drop(hoard);
        assert!(matches!(error, ConnectError::OutOfDescriptors { .. }), "{left}: {error}");
    }
    say("fine");
}

/// Has none for the first thing that an endpoint, or a name, takes.
fn opening() {
    limit(60, 60);
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let hoard = all_descriptors();
    let refused = provider.open(None, &[]).err().map(|error| error.errno);
    let unnamed = NamedMemory::open("descriptors", 0, Opening::Write).err();
    drop(hoard);
    assert_eq!(refused, Some(Errno::MFILE));
    assert_eq!(unnamed.map(|error| error.errno()), Some(Errno::MFILE));
    assert!(provider.open(None, &[]).is_ok());
    say("fine");
}

/// Has none to find out by who listens at an address.
fn asking() {
    limit(60, 60);
    let (station, own) = (station(), Some(std::process::id() as i32));
    let hoard = all_descriptors();
    let without = Station::is_of_others(own, station.address());
    drop(hoard);
    assert_eq!((without, Station::is_of_others(own, station.address())), (None, Some(false)));
    say("fine");
}

/// Can ask for memory, and has no room for it.
fn asker(name: &str) {
    limit(60, 60);
    let hoard = all_descriptors_but(2);
    let error = NamedMemory::open(name, 0, Opening::Write).err();
    drop(hoard);
    let error = error.expect("no room for it");
    assert_eq!(error.errno(), Errno::MFILE, "{error}");
    assert!(NamedMemory::open(name, 0, Opening::Write).is_ok());
    say("fine");
}

#[test]
fn who_has_no_room_for_an_answer_says_that() {
    assert_eq!(Peer::start("child", "answered").hear(), "fine");
}

#[test]
fn who_has_no_room_for_the_first_descriptor_says_that() {
    assert_eq!(Peer::start("child", "opening").hear(), "fine");
}

#[test]
fn who_has_none_to_ask_with_cannot_tell_whose_an_address_is() {
    assert_eq!(Peer::start("child", "asking").hear(), "fine");
}

#[test]
fn who_has_no_room_for_named_memory_says_that() {
    let name = format!("descriptors/{}", std::process::id());
    let _here = NamedMemory::open(&name, 0, Opening::Write).unwrap();
    assert_eq!(Peer::start("child", &format!("asker {name}")).hear(), "fine");
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one() {
    assert_eq!(Peer::start("child", "raised").hear(), "fine");
}

#[test]
fn a_station_too_many_is_refused_with_the_limit() {
    assert_eq!(Peer::start("child", "stations").hear(), "fine");
}

#[test]
fn a_sender_without_descriptors_fails_and_recovers() {
    let here = station();
    let peer = Peer::start("child", &format!("sender {}", here.address()));
    assert_eq!(peer.hear(), "fine");
}

#[test]
fn a_receiver_without_descriptors_waits_and_recovers() {
    let peer = Peer::start("child", "receiver");
    let there = peer.ready();
    let here = station();
    let start = Instant::now();
    here.connect(1, there);
    assert!(matches!(event(&here), StationEvent::Connected { .. }));
    assert!(start.elapsed() < PATIENCE);
    assert!(peer.hear().starts_with("incoming"));
    assert_eq!(peer.hear(), "scarce");
    here.connect(2, there);
    let found = event(&here);
    assert!(matches!(found, StationEvent::Connected { .. }), "{found:?}");
    assert!(peer.hear().starts_with("incoming"));
}
