//! Peers that send garbage, pass the wrong things, or belong to somebody else.

mod common;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{raw::*, *};
use kestrel_shm::testing::wire::{Confirm, Message, RejectReason, Reply};
use kestrel_shm::{
    ConnectError, Doorbell, LANE_BYTES, LaneMemory, PoolMemory, Station, StationEvent,
};
use kestrel_tests::{reserved::own_address, scale::skip};
use rustix::fs::{SealFlags, ftruncate};
use rustix::net::{RecvFlags, accept, recv};

/// Descriptors are counted, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "nobody" => {
            become_nobody();
            live_as_station(None, |_| {});
        }
        Some([role]) if role == "nobodies" => {
            become_nobody();
            let (one, two) = (station(), station());
            one.connect(1, two.address());
            say(&describe(&event(&one)));
        }
        Some([role]) if role == "root" => refuse_another_user(),
        Some([role, to, claimed]) if role == "liar" => {
            let _own = listen_at(own());
            let claimed = if claimed == "own" { own() } else { claimed.parse().unwrap() };
            // The name in another form of writing is free for everybody.
            let _alias = claimed.is_ipv6().then(|| listen_at(claimed));
            let raw = raw_connect(to.parse().unwrap());
            greet_as(&raw, to.parse().unwrap(), claimed);
            say(&format!("{:?}", next_message(&raw)));
        }
        Some([role, to]) if role == "crowd" => {
            let to: SocketAddr = to.parse().unwrap();
            // Each that greets is asked for there.
            let _own = listen_at_with(own(), 1024);
            let greet = |_| {
                let raw = raw_connect(to);
                greet_as(&raw, to, own());
                raw
            };
            let _silent: Vec<OwnedFd> = (0..256).map(greet).collect();
            say("there");
            let _ = listen_to_parent().recv();
        }
        Some([role, address]) if role == "stranger" => {
            become_nobody();
            let raw = raw_connect(address.parse().unwrap());
            let _ = send(raw.as_fd(), &hello(address.parse().unwrap()).encode(), &[]);
            say(if read_all(&raw).is_empty() { "closed" } else { "answered" });
        }
        other => panic!("{other:?}"),
    }
}

/// Says a HELLO with which nothing is wrong but, perhaps, the address that it claims.
fn greet_as(raw: &OwnedFd, to: SocketAddr, claimed: SocketAddr) {
    let Message::Hello(mut hello) = hello(to) else { unreachable!() };
    hello.from.address = claimed;
    let (lane, pool, mark) = parcel();
    let bell = Doorbell::new().unwrap();
    let descriptors = [lane.as_fd(), pool.as_fd(), bell.as_fd(), mark.as_fd()];
    send(raw.as_fd(), &Message::Hello(hello).encode(), &descriptors).unwrap();
}

/// A station under attack, and what it should look like afterwards.
struct Target {
    station: Station,
    descriptors: usize,
}

impl Target {
    fn new() -> Target {
        let station = station();
        // A first connection opens what stays open: the watch of this process goes with it.
        let target = Target { station, descriptors: 0 };
        target.serves();
        Target { descriptors: open_descriptors(), ..target }
    }

    fn address(&self) -> SocketAddr {
        self.station.address()
    }

    /// A good peer still gets its lane.
    fn serves(&self) {
        let good = station();
        good.connect(1, self.address());
        assert!(matches!(event(&good), StationEvent::Connected { .. }));
        let StationEvent::Incoming { peer, .. } = event(&self.station) else { panic!() };
        self.station.forget(peer.process);
    }

    fn unharmed(&self) {
        self.serves();
        let mut found = 0;
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < deadline {
            found = open_descriptors();
            if found <= self.descriptors {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(found <= self.descriptors, "{found} descriptors, {} before", self.descriptors);
        assert!(self.station.next_event().is_none());
    }

    /// Says HELLO with these descriptors; the answers.
    fn greet(&self, descriptors: &[BorrowedFd<'_>]) -> Vec<Message> {
        let raw = raw_connect(self.address());
        send(raw.as_fd(), &hello(self.address()).encode(), descriptors).unwrap();
        read_all(&raw)
    }
}

#[test]
fn garbage_is_refused_and_leaves_nothing() {
    let _alone = alone();
    let target = Target::new();
    // But for its bytes nothing is wrong with what comes.
    let _own = listen_at(own());
    let (lane, pool, mark) = parcel();
    let bell = Doorbell::new().unwrap();
    let descriptors = [lane.as_fd(), pool.as_fd(), bell.as_fd(), mark.as_fd()];
    // Which incarnation it is, where its nonce lies and which one is for the peer to say.
    let is_any = |at: &usize| matches!(at, 12 | 16..24 | 48..72);
    let good = hello(target.address()).encode();
    let held = open_descriptors();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..300 {
        let raw = raw_connect(target.address());
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..1 + next() % 700).map(|_| next() as u8).collect(),
            1 => {
                let mut bytes = good.clone();
                let at = (0..).map(|_| next() as usize % bytes.len()).find(|at| !is_any(at));
                bytes[at.unwrap()] ^= 1 << (next() % 8);
                bytes
            }
            _ => good[..1 + next() as usize % (good.len() - 1)].to_vec(),
        };
        // Descriptors come along, and must be closed whatever the bytes were.
        let _ = send(raw.as_fd(), &bytes, &descriptors);
        let accepted = read_all(&raw).iter().any(|m| matches!(m, Message::Accept(_)));
        assert!(!accepted, "{bytes:?}");
    }
    Target { descriptors: held, ..target }.unharmed();
}

#[test]
fn oversize_empty_and_half_open_are_refused() {
    let _alone = alone();
    let target = Target::new();
    let raw = raw_connect(target.address());
    send(raw.as_fd(), &vec![1; 100_000], &[]).unwrap();
    assert!(read_all(&raw).is_empty());
    drop(raw);
    let raw = raw_connect(target.address());
    send(raw.as_fd(), &[], &[]).unwrap();
    assert!(read_all(&raw).is_empty());
    drop(raw);
    // More than may be under way at a time, and none says a word.
    let silent: Vec<OwnedFd> = (0..200).map(|_| raw_connect(target.address())).collect();
    target.serves();
    for raw in &silent {
        assert!(read_all(raw).is_empty());
    }
    drop(silent);
    target.unharmed();
}

/// A process that is accepted and never confirms, as often as it can, has others wait for a moment: not until
/// all of its handshakes have had their time, one set after the other.
#[test]
fn one_process_does_not_keep_all_places() {
    let _alone = alone();
    let target = Target::new();
    let mut crowd = Peer::start("child", &format!("crowd {}", target.address()));
    assert_eq!(crowd.hear(), "there");
    // It fails after less than half of that time.
    target.serves();
    assert_eq!(crowd.finish(), Some(0));
    target.unharmed();
}

#[test]
fn wrong_descriptors_are_refused() {
    let _alone = alone();
    let target = Target::new();
    let (lane, pool, mark) = parcel();
    let bell = Doorbell::new().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let unsealed = memfd(LANE_BYTES, SealFlags::empty());
    let half_sealed = memfd(LANE_BYTES, SealFlags::SHRINK | SealFlags::GROW);
    let short = memfd(4096, sealed());
    let long = memfd(LANE_BYTES * 2, sealed());
    let read_only = memfd(LANE_BYTES, sealed() | SealFlags::WRITE);
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    let (lane, pool, bell, mark) = (lane.as_fd(), pool.as_fd(), bell.as_fd(), mark.as_fd());
    // Else each would be refused for the name that it goes by.
    let _own = listen_at(own());
    let cases: Vec<(&str, Vec<BorrowedFd<'_>>)> = vec![
        ("file as lane", vec![file.as_fd(), pool, bell, mark]),
        ("unsealed lane", vec![unsealed.as_fd(), pool, bell, mark]),
        ("lane whose seals can change", vec![half_sealed.as_fd(), pool, bell, mark]),
        ("short lane", vec![short.as_fd(), pool, bell, mark]),
        ("long lane", vec![long.as_fd(), pool, bell, mark]),
        ("lane that cannot be written", vec![read_only.as_fd(), pool, bell, mark]),
        ("pool of another size", vec![lane, long.as_fd(), bell, mark]),
        ("unsealed pool", vec![lane, unsealed.as_fd(), bell, mark]),
        ("pipe as bell", vec![lane, pool, write_end.as_fd(), mark]),
        ("read end as bell", vec![lane, pool, read_end.as_fd(), mark]),
        ("memfd as bell", vec![lane, pool, lane, mark]),
        ("file as mark", vec![lane, pool, bell, file.as_fd()]),
        ("unsealed mark", vec![lane, pool, bell, unsealed.as_fd()]),
        ("long mark", vec![lane, pool, bell, long.as_fd()]),
        ("none", vec![]),
        ("three", vec![lane, pool, bell]),
        ("five", vec![lane, pool, bell, mark, bell]),
        ("250", vec![lane; 250]),
    ];
    let (target_count, held) = (target.descriptors, open_descriptors());
    for (what, descriptors) in cases {
        let reason = match descriptors.len() {
            4 if what == "lane that cannot be written" => Some(RejectReason::Memory),
            4 => Some(RejectReason::Descriptors),
            // It is no HELLO of ours.
            _ => None,
        };
        let expected: Vec<_> = reason.map(Message::Reject).into_iter().collect();
        assert_eq!(target.greet(&descriptors), expected, "{what}");
    }
    let target = Target { descriptors: held, ..target };
    target.unharmed();
    assert!(target_count < held, "the count was of something");
}

#[test]
fn a_good_hello_is_accepted_and_without_confirm_comes_to_nothing() {
    let _alone = alone();
    let target = Target::new();
    {
        let _own = listen_at(own());
        let (lane, pool, mark) = parcel();
        let bell = Doorbell::new().unwrap();
        for confirm in [false, true] {
            let raw = raw_connect(target.address());
            let descriptors = [lane.as_fd(), pool.as_fd(), bell.as_fd(), mark.as_fd()];
            send(raw.as_fd(), &hello(target.address()).encode(), &descriptors).unwrap();
            let mut bytes = [0; 2048];
            let (_, len) = recv(&raw, &mut bytes[..], RecvFlags::empty()).unwrap();
            assert!(matches!(Message::parse(&bytes[..len]), Ok(Message::Accept(_))));
            if confirm {
                // Busy with orders, the station has not looked at the confirmation when it settles.
                (0..20_000).for_each(|_| assert!(target.station.settle(0)));
                send(raw.as_fd(), &Message::Confirm(Confirm).encode(), &[]).unwrap();
                assert!(target.station.settle(1));
                let words = std::iter::from_fn(|| Some(describe(&event(&target.station))));
                let words = words.take_while(|word| word != "settled 1");
                let news: Vec<_> = words.filter(|word| word != "settled 0").collect();
                assert!(matches!(&news[..], [one] if one.starts_with("incoming")), "{news:?}");
            }
        }
        // The peer passed a lane that it keeps: cutting it off must be impossible.
        assert_eq!(ftruncate(&lane, 0), Err(rustix::io::Errno::PERM));
        assert_eq!(ftruncate(&pool, 0), Err(rustix::io::Errno::PERM));
    }
    target.unharmed();
}

/// Whoever first touches a page of it is charged for that, and the one who reads is us.
#[test]
fn a_process_passes_so_much_of_pools_and_no_more() {
    let _alone = alone();
    let target = Target::new();
    {
        let _own = listen_at(own());
        let (bell, (lane, _, mark)) = (Doorbell::new().unwrap(), parcel());
        let greet = |pool_bytes: usize| {
            let Message::Hello(mut hello) = hello(target.address()) else { unreachable!() };
            hello.pool_bytes = pool_bytes as u64;
            let (raw, pool) = (raw_connect(target.address()), memfd(pool_bytes, sealed()));
            let descriptors = [lane.as_fd(), pool.as_fd(), bell.as_fd(), mark.as_fd()];
            send(raw.as_fd(), &Message::Hello(hello).encode(), &descriptors).unwrap();
            let said = next_message(&raw).unwrap();
            (raw, said)
        };
        assert_eq!(greet(5 << 30).1, Message::Reject(RejectReason::TooLargePools));
        let (first, said) = greet(3 << 30);
        assert!(matches!(said, Message::Accept(_)), "{said:?}");
        assert_eq!(greet(3 << 30).1, Message::Reject(RejectReason::TooLargePools));
        let (_second, said) = greet(1 << 20);
        assert!(matches!(said, Message::Accept(_)), "{said:?}");
        drop(first);
    }
    target.unharmed();
}

#[test]
fn wrong_address_key_and_version_are_named() {
    let _alone = alone();
    let target = Target::new();
    let answer = |bytes: Vec<u8>| {
        let raw = raw_connect(target.address());
        send(raw.as_fd(), &bytes, &[]).unwrap();
        read_all(&raw)
    };
    let elsewhere = hello("127.0.0.1:9".parse().unwrap()).encode();
    assert_eq!(answer(elsewhere), [Message::Reject(RejectReason::Address)]);
    let mut newer = hello(target.address()).encode();
    newer[4] += 1;
    assert_eq!(answer(newer), [Message::Reject(RejectReason::Version)]);
    let mut key = hello(target.address()).encode();
    *key.last_mut().unwrap() ^= 1;
    assert_eq!(answer(key), [Message::Reject(RejectReason::Key)]);
    target.unharmed();
}

#[test]
fn nobody_sends_in_anothers_name() {
    let _alone = alone();
    let target = Target::new();
    let victim = station();
    let mut alias = victim.address();
    alias.set_ip("::ffff:127.0.0.1".parse().unwrap());
    for (claimed, refused) in [
        ("own", false),
        (&victim.address().to_string(), true),
        (&target.address().to_string(), true),
        (&alias.to_string(), true),
        ("127.0.0.1:5", true),
    ] {
        let liar = Peer::start("child", &format!("liar {} {claimed}", target.address()));
        let said = liar.hear();
        let expected = if refused { "Reject(NotOurAddress)" } else { "Accept" };
        assert!(said.contains(expected), "{claimed}: {said}");
    }
    drop(victim);
    target.unharmed();
}

#[test]
fn bad_answers_fail_the_connect() {
    let _alone = alone();
    let target = Target::new();
    let evil = own_address().socket_addr();
    let listener = listen_at(evil);
    let (read_end, _write_end) = rustix::pipe::pipe().unwrap();
    let (bell, (_, _, mark)) = (Doorbell::new().unwrap(), parcel());
    let accept_message = Message::Accept(Reply { address: evil, ..reply() }).encode();
    let another = Message::Accept(reply()).encode();
    let hello_message = hello(evil).encode();
    let mut newer = accept_message.clone();
    newer[4] += 1;
    let answers: [(&[u8], &[BorrowedFd<'_>]); 9] = [
        (&newer, &[]),
        (b"HTTP/1.1 400 Bad Request", &[]),
        (&accept_message, &[]),
        (&accept_message, &[bell.as_fd()]),
        (&accept_message, &[read_end.as_fd(), mark.as_fd()]),
        (&accept_message, &[bell.as_fd(), bell.as_fd()]),
        (&accept_message, &[read_end.as_fd(); 100]),
        (&hello_message, &[]),
        (&another, &[bell.as_fd(), mark.as_fd()]),
    ];
    let before = open_descriptors();
    for (bytes, descriptors) in answers {
        target.station.connect(9, evil);
        let raw = accept(&listener).unwrap();
        send(raw.as_fd(), bytes, descriptors).unwrap();
        let StationEvent::Failed { request: 9, error } = event(&target.station) else { panic!() };
        let named = match &error {
            ConnectError::BadAnswer { .. }
            | ConnectError::BadDoorbell { .. }
            | ConnectError::Memory { .. } => true,
            ConnectError::OtherVersion { theirs, .. } => {
                *theirs == kestrel_core::wire::VERSION + 1 && bytes == newer
            }
            _ => false,
        };
        assert!(named, "{error}");
    }
    Target { descriptors: before, ..target }.unharmed();
}

#[test]
fn pools_cannot_be_written_by_peers_nor_cut_off_by_anyone() {
    let pool = PoolMemory::create(100_000).unwrap();
    assert_eq!(pool.len(), 102_400);
    let view = pool.view().unwrap();
    assert_eq!(view.len(), pool.len());
    let (lane, fd) = LaneMemory::create().unwrap();
    assert_eq!(ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
    let theirs = LaneMemory::from_peer(fd).unwrap();
    assert_ne!(lane.as_ptr(), theirs.as_ptr());
    // The kernel's own word on our mappings: "r--s" for the view, "rw-s" for the pool.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rights = |start: *const u8| {
        let line = maps.lines().find(|l| l.starts_with(&format!("{:x}-", start as usize))).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(rights(view.as_ptr().as_ptr()), "r--s");
    assert_eq!(rights(pool.as_ptr().as_ptr()), "rw-s");
}

#[test]
fn another_user_is_refused_in_both_directions() {
    let _alone = alone();
    if rustix::process::geteuid().is_root() {
        return refuse_another_user();
    }
    // Only root can play somebody else, which an ordinary user is in a namespace of its own.
    if let Some(reason) = forbidden(USERS_OF_OUR_OWN) {
        return skip("another_user_is_refused_in_both_directions", &reason);
    }
    let mut root = Peer::start_unshared(USERS_OF_OUR_OWN, "root");
    assert_eq!(root.finish(), Some(0));
}

fn refuse_another_user() {
    let target = Target::new();
    let mut nobody = Peer::start("child", "nobody");
    let there = nobody.ready();
    target.station.connect(3, there);
    let StationEvent::Failed { error, .. } = event(&target.station) else { panic!() };
    assert!(matches!(error, ConnectError::WrongUser { theirs: NOBODY, ours: 0, .. }), "{error}");
    assert!(!target.station.is_deserted(there));
    nobody.order(&target.address().to_string());
    let said = nobody.hear();
    assert!(said.contains("belongs to user 0"), "{said}");
    let stranger = Peer::start("child", &format!("stranger {}", target.address()));
    assert_eq!(stranger.hear(), "closed");
    // A process that changed its user may not be dumped: among themselves they connect all the
    // same.
    let nobodies = Peer::start("child", "nobodies");
    assert!(nobodies.hear().starts_with("connected"));
    drop((nobody, stranger, nobodies));
    target.unharmed();
}
