//! The kernel may forbid reading a peer's memory, from the start or at any later
//! moment: large messages arrive all the same.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kestrel_core::{address_vector::FI_ADDR_UNSPEC, config::CmaPolicy, flags::Flags, wire};
use kestrel_shm::{Station, StationEvent, StationOptions};
use kestrel_tests::{
    node::{Done, Node, NodeOptions, Wait},
    process::{Peer, child_role, eventually, forbid_call, listen_to_parent, say},
    scale::{PATIENCE, skip},
    station, traffic,
};

const LENGTHS: [usize; 4] = [9_000, 100_000, 700_000, 1_000_000];

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    let ["peer", to, cma, forbid, sleep] = words[..] else { panic!("{role:?}") };
    peer(to, cma == "cma", forbid, sleep.parse().unwrap());
}

/// Sends messages to `to`, sleeping after each post, then receives the same back.
fn peer(to: &str, cma: bool, forbid: &str, sleep_ms: u64) {
    let _parent = listen_to_parent();
    if forbid == "dump-first" {
        forbid_dumping();
    }
    let node = open(cma);
    let to = node.insert_text(to);
    say(&format!("ready {}", node.address().socket_addr()));
    for (round, length) in LENGTHS.into_iter().enumerate() {
        // From the second message on, when the probe has long succeeded.
        match (round, forbid) {
            (1, "dump-later") => forbid_dumping(),
            (1, "seccomp") => forbid_call(libc::SYS_process_vm_readv),
            (1, "seccomp-write") => forbid_call(libc::SYS_process_vm_writev),
            _ => {}
        }
        let seed = length as u64;
        node.endpoint.send_tagged(traffic::content(seed), to, seed, 1).unwrap();
        std::thread::sleep(Duration::from_millis(sleep_ms));
        node.endpoint.receive_tagged(vec![0; length], FI_ADDR_UNSPEC, seed, 0, 2).unwrap();
        for _ in 0..2 {
            let mut entry = node.next().well();
            if entry.flags().contains(Flags::RECV) {
                let buffer = entry_buffer(&mut entry);
                traffic::check(&entry, &buffer);
            }
        }
    }
    say("done");
    node.within(PATIENCE, Wait::Sleeping);
}

fn entry_buffer(entry: &mut kestrel_core::completion_queue::Entry) -> Vec<u8> {
    entry.take_buffer().expect("a receive gives its buffer back")
}

fn open(cma: bool) -> Node {
    let cma = if cma { CmaPolicy::On } else { CmaPolicy::Off };
    Node::with(&NodeOptions::with_cma(cma))
}

/// Nobody without privileges may read this process any more.
fn forbid_dumping() {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
}

/// Receives what the peer sends and sends it back.
fn echo(name: &str, ours: bool, theirs: bool, forbid: &str, sleep_ms: u64) {
    let node = open(ours);
    let cma = if theirs { "cma" } else { "none" };
    let role = format!("peer {} {cma} {forbid} {sleep_ms}", node.address().socket_addr());
    let mut peer = Peer::start(&role);
    let to = node.insert_text(&peer.hear_after("ready "));
    let silent = Duration::from_millis(sleep_ms);
    for length in LENGTHS {
        let seed = length as u64;
        node.endpoint.receive_tagged(vec![0; length], to, seed, 0, 1).unwrap();
        let mut entry = node.next().well();
        let buffer = entry_buffer(&mut entry);
        traffic::check(&entry, &buffer);
        node.endpoint.send_tagged(buffer, to, seed, 2).unwrap();
        // Whoever has posted may look away: the peer needs it no more, or waits.
        std::thread::sleep(silent);
        let Some(Done::Well(_)) = node.within(PATIENCE, Wait::Polling) else {
            panic!("{name}: the echo of {length} bytes is not sent")
        };
    }
    eventually("the peer has everything", || {
        assert!(node.poll().is_none());
        peer.heard().as_deref() == Some("done")
    });
}

#[test]
fn both_sides_permit() {
    echo("both", true, true, "nothing", 0);
    echo("both, and sleep", true, true, "nothing", 20);
}

#[test]
fn one_side_or_none_permits() {
    for (ours, theirs) in [(false, true), (true, false), (false, false)] {
        echo("options", ours, theirs, "nothing", 0);
        echo("options, and sleep", ours, theirs, "nothing", 20);
    }
}

/// What the first packet of a long message to a peer that may read, or may not, says about
/// where the message lies.
fn address_told(ours: bool, theirs: bool) -> u64 {
    const LONG: u8 = wire::Kind::Long as u8;
    let peer = Station::open(StationOptions { cma: theirs, ..station::options(4096) }).unwrap();
    let node = open(ours);
    let to = node.insert_text(&peer.address().to_string());
    let content = traffic::content(100_000);
    let start = content.as_ptr() as u64;
    node.endpoint.send_tagged(content, to, 5, 1).unwrap();
    let (mut lane, mut told) = (None, None);
    eventually("the message's first packet", || {
        assert!(node.poll().is_none());
        if let Some(StationEvent::Incoming { lane: incoming, .. }) = peer.next_event() {
            lane = Some(incoming);
        }
        let Some(lane) = &lane else { return false };
        let line = lane.as_ptr().as_ptr().wrapping_add(4096).cast::<AtomicU64>();
        // SAFETY: the lines of a lane start there, and both sides use atomics of this size alone.
        let word = |index| unsafe { &*line.wrapping_add(index) }.load(Ordering::Acquire);
        if word(0) as u32 != 1 {
            return false;
        }
        let head = wire::Head::from_word((word(0) >> 32) as u32);
        assert_eq!((head.kind, word(1), word(3)), (LONG, 5, 100_000));
        told = Some(word(6));
        true
    });
    let address = told.unwrap();
    assert!(address == 0 || address == start, "an address of something else");
    address
}

#[test]
fn addresses_are_told_to_those_alone_who_can_read_there() {
    for (ours, theirs) in [(false, true), (true, false), (false, false)] {
        assert_eq!(address_told(ours, theirs), 0, "{ours} {theirs}");
    }
    assert_ne!(address_told(true, true), 0, "this process may read itself");
}

#[test]
fn reading_fails_later_by_seccomp() {
    echo("seccomp", true, true, "seccomp", 0);
    echo("seccomp, and sleep", true, true, "seccomp", 20);
    echo("seccomp for writes", true, true, "seccomp-write", 0);
}

#[test]
fn a_process_that_may_not_be_dumped() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        skip(
            "a_process_that_may_not_be_dumped",
            "root reads processes that may not be dumped; the seccomp test covers a denial",
        );
    }
    for forbid in ["dump-first", "dump-later"] {
        echo(forbid, true, true, forbid, 0);
        echo(forbid, true, true, forbid, 20);
    }
}
