//! Connections through the fake's connection manager: made, refused, lost on the way, and ended.

use std::time::{Duration, Instant};

use crate::common::{
    FakeTransport, KEY, PATIENCE, Scene, adopt, connect, event, managed_provider, open, provider,
    push, raw_managed::Raw, stream, take_soon, wait_for_listener,
};
use kestrel_core::{
    auth_key::Keyring,
    error::{Cause, Errno},
    memory::Piece,
    transport::{
        Confirmation as _, Opening, Provider, Purpose, Transport, TransportEvent, Windows as _,
    },
    window::{Access, Direction, RegistrationRequest, Request, Started},
    wire::Kind,
};
use kestrel_tests::reserved::own_address;
use kestrel_verbs::{
    fake::{FakeFabric, FakeId, FakeOptions, ManagerFaults},
    manager::{Happening, ManagedId, Manager},
    testing::{
        BUFFER_BYTES,
        private::{Ask, Parties, Reply, encode_refusal},
        wire::RejectReason,
    },
};

/// Two that are connected through the manager.
fn scene() -> Scene {
    let scene = Scene::on(managed_provider);
    assert_eq!(scene.fabric.tally().managed, 1);
    scene
}

#[test]
fn an_end_in_order_is_told_from_a_death() {
    let mut scene = scene();
    stream(&mut scene.friend, &mut scene.victim, 0, 300);
    // Who sent goes.
    drop(scene.friend);
    assert!(matches!(event(&mut scene.victim), TransportEvent::Closed { peer: 0 }));
    scene.victim.disconnect(0);
    // A peer that goes without a word has died.
    let raw = Raw::on(&scene.fabric, scene.victim.address().socket_addr());
    let (id, answered) = raw.ask(&raw.question().encode(KEY, &raw.parties()));
    assert!(matches!(answered, Happening::Answered { .. }));
    id.establish().unwrap();
    adopt(&mut scene.victim, 3);
    drop(id);
    assert!(matches!(event(&mut scene.victim), TransportEvent::Lost { peer: 3, .. }));
}

/// What a peer has written is told, also where its goodbye overtakes that: it goes another way.
#[test]
fn a_write_is_told_although_a_goodbye_came_first() {
    let access = Access { write: true, ..Access::default() };
    for seed in 0..16 {
        let Scene { fabric: _fabric, mut victim, mut friend, _provider } =
            Scene::on(|fabric, options| {
                managed_provider(fabric, FakeOptions { shuffle: Some(seed), ..options })
            });
        let theirs = friend.invite(0).unwrap();
        let ours = victim.admit(0, theirs, access).unwrap();
        assert!(friend.open_window(0, ours));
        let (mut memory, mut source) = ([0_u8; 8], [1_u8; 8]);
        // SAFETY: it outlives what is lent of it.
        let piece = unsafe { Piece::of(&mut memory) };
        let request =
            RegistrationRequest { memory: piece, access, local_write: true, keeps_pages: true };
        let lent = victim.register(0, &request).unwrap();
        let request = Request {
            token: 1,
            direction: Direction::Write,
            address: memory.as_ptr().addr() as u64,
            remote_key: lent.remote_key(),
            // SAFETY: the friend, who reads it, goes first.
            local: unsafe { Piece::of(&mut source) },
            data: Some(4711),
            local_key: None,
        };
        assert!(!matches!(friend.start(0, &request), Started::Refused));
        drop(friend);
        let arrival = victim.arrival().expect("what was written");
        assert_eq!((arrival.head.kind, arrival.word), (Kind::Written as u8, 4711 | 8 << 32));
        victim.consume();
        assert!(victim.arrival().is_none(), "of the goodbye nobody hears");
        assert!(matches!(event(&mut victim), TransportEvent::Closed { peer: 0 }));
    }
}

/// Who receives goes: what has come to it counts as sent, although no acknowledgement says so.
#[test]
fn who_sent_hears_how_much_came() {
    for probed in [false, true] {
        let mut scene = scene();
        stream(&mut scene.friend, &mut scene.victim, 0, 10);
        if probed {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1300) {
                assert!(scene.friend.event().is_none() && scene.friend.arrival().is_none());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        scene.fabric.lose_acknowledgements(true);
        for number in 0..2 {
            assert!(push(&mut scene.friend, 0, number, 100));
            assert_eq!(take_soon(&mut scene.victim), (0, number, 100));
        }
        let pushed = scene.friend.pushed(0);
        assert!(scene.friend.confirmed(0) < pushed);
        drop(scene.victim);
        assert!(matches!(event(&mut scene.friend), TransportEvent::Closed { peer: 0 }));
        // What was pushed since is no packet.
        assert!(scene.friend.confirmed(0) >= pushed, "probed: {probed}");
        scene.fabric.lose_acknowledgements(false);
    }
}

/// What the device has acknowledged counts as sent, however late it is looked at: also where what is known
/// of the end of the connection goes beyond it.
#[test]
fn what_was_acknowledged_is_not_forgotten() {
    for make in [provider as fn(&_, _) -> _, managed_provider] {
        for unread in [1, 20] {
            let mut scene = Scene::on(make);
            stream(&mut scene.friend, &mut scene.victim, 0, 300);
            let mut send = |number| {
                scene.friend.confirm_next(0);
                assert!(push(&mut scene.friend, 0, number, 100));
                assert_eq!(take_soon(&mut scene.victim), (0, number, 100));
            };
            (0..unread).for_each(&mut send);
            scene.fabric.lose_acknowledgements(true);
            send(unread);
            let pushed = scene.friend.pushed(0);
            drop(scene.victim);
            let start = Instant::now();
            let ended = loop {
                // It may be asked for a sign of life before, of which nothing is told.
                if scene.friend.has_event()
                    && let Some(ended) = scene.friend.event()
                {
                    break ended;
                }
                assert!(start.elapsed() < PATIENCE, "in vain: the end");
                std::thread::yield_now();
            };
            assert!(matches!(ended, TransportEvent::Closed { peer: 0 }), "{ended:?}");
            scene.friend.look_for_confirmations();
            assert_eq!(scene.friend.confirmed(0), pushed, "{unread} unread");
            scene.fabric.lose_acknowledgements(false);
        }
    }
}

/// What tells of the end is lost, and it was in order all the same: the next sign of life that is
/// asked for does not come.
#[test]
fn an_end_that_gets_lost_is_noticed() {
    let mut scene = scene();
    stream(&mut scene.friend, &mut scene.victim, 0, 10);
    let loses_ends = true;
    scene.fabric.set_manager_faults(ManagerFaults { loses_ends, ..ManagerFaults::default() });
    drop(scene.victim);
    let start = Instant::now();
    assert!(matches!(event(&mut scene.friend), TransportEvent::Closed { peer: 0 }));
    println!("after {:?}", start.elapsed());
}

/// The same of a peer that had no last word.
#[test]
fn a_silent_peer_is_asked_for_a_sign_of_life() {
    let mut scene = scene();
    stream(&mut scene.friend, &mut scene.victim, 0, 10);
    scene.fabric.break_queue_pairs();
    assert!(matches!(event(&mut scene.friend), TransportEvent::Lost { peer: 0, .. }));
    assert!(matches!(event(&mut scene.victim), TransportEvent::Lost { peer: 0, .. }));
}

#[test]
fn goodbye_needs_no_credit_of_the_packets() {
    let mut scene = scene();
    let mut sent = 0;
    while push(&mut scene.friend, 0, sent, 100) {
        sent += 1;
    }
    assert_eq!(sent, 3, "the first window but one");
    drop(scene.friend);
    assert!(matches!(event(&mut scene.victim), TransportEvent::Closed { peer: 0 }));
    for number in 0..sent {
        let arrival = scene.victim.arrival_from(0).unwrap();
        assert_eq!(arrival.word, number);
        scene.victim.consume();
    }
    assert!(scene.victim.arrival_from(0).is_none());
    scene.victim.disconnect(0);
    assert_eq!(scene.fabric.tally().not_ready, 0);
}

/// Nor of the queue: what is over has no place there, though nobody has looked.
#[test]
fn goodbye_finds_room_in_a_queue_that_was_full() {
    const QUEUE: u64 = 63;
    for count in QUEUE - 1..=QUEUE + 1 {
        let (mut scene, start) = (scene(), Instant::now());
        for number in 0..count {
            while !push(&mut scene.friend, 0, number, 100) {
                assert!(start.elapsed() < PATIENCE, "{number} of {count} packets");
            }
            take_soon(&mut scene.victim);
        }
        scene.friend.disconnect(0);
        assert!(matches!(event(&mut scene.victim), TransportEvent::Closed { peer: 0 }), "{count}");
    }
}

/// Every way in which a request can be wrong has its answer.
#[test]
fn a_wrong_request_is_refused_with_the_reason() {
    let scene = scene();
    let raw = Raw::on(&scene.fabric, scene.victim.address().socket_addr());
    let good = raw.question();
    let signed = |ask: Ask| ask.encode(KEY, &raw.parties());
    assert_eq!(raw.refusal(&[0x5a; 56]), None);
    assert_eq!(raw.refusal(&[]), None);
    let mut other_version = signed(good);
    other_version[4] ^= 1;
    assert_eq!(raw.refusal(&other_version), Some(RejectReason::Version));
    assert_eq!(raw.refusal(&good.encode(b"job 18", &raw.parties())), Some(RejectReason::Key));
    let elsewhere = Parties { wanted: "127.0.0.1:1".parse().unwrap(), ..raw.parties() };
    assert_eq!(raw.refusal(&good.encode(KEY, &elsewhere)), Some(RejectReason::Key));
    let other_pair = Parties { queue_pair: 78, ..raw.parties() };
    assert_eq!(raw.refusal(&good.encode(KEY, &other_pair)), Some(RejectReason::Key));
    let short = Ask { buffer_bytes: 4096, ..good };
    assert_eq!(raw.refusal(&signed(short)), Some(RejectReason::Limits));
    scene.ends_well();
}

/// Between our answer and its last word the peer goes away: its queue pair goes, too.
#[test]
fn what_was_not_confirmed_leaves_nothing_behind() {
    let mut scene = scene();
    let before = scene.fabric.tally();
    let raw = Raw::on(&scene.fabric, scene.victim.address().socket_addr());
    for _ in 0..100 {
        let (id, answered) = raw.ask(&raw.question().encode(KEY, &raw.parties()));
        assert!(matches!(answered, Happening::Answered { .. }));
        drop(id);
    }
    let start = Instant::now();
    while scene.fabric.tally().queue_pairs > before.queue_pairs
        || scene.fabric.tally().ids > before.ids
    {
        assert!(scene.victim.event().is_none());
        let _ = scene.victim.arrival();
        assert!(start.elapsed() < PATIENCE, "{:?}", scene.fabric.tally());
    }
    scene.ends_well();
}

/// What comes of a connect to a listener that says this to whoever asks; none: that it is gone.
fn connect_to(answer: impl Fn(&Raw, &FakeId, &[u8]) + Send + 'static) -> Cause {
    let fabric = FakeFabric::default();
    let provider = managed_provider(&fabric, FakeOptions::default());
    let mut one = provider.open(None, KEY).unwrap();
    // TCP has the port as well, so that nobody else is met there.
    let beside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = beside.local_addr().unwrap();
    let raw = Raw::on(&fabric, to);
    let listener = raw.manager.bind(1, to).unwrap();
    listener.listen().unwrap();
    one.connect(0, to.into());
    let Happening::Asked { id, data, .. } = raw.next() else { panic!("nobody asks") };
    answer(&raw, &id, &data);
    let TransportEvent::Failed { peer: 0, reason } = event(&mut one) else { panic!("no failure") };
    reason
}

#[test]
fn a_wrong_answer_is_an_error_that_says_so() {
    let reply = |raw: &Raw| Reply {
        incarnation: 1,
        port: raw.to.port(),
        buffer_bytes: BUFFER_BYTES as u16,
        mtu_bytes: 0,
    };
    let answer = |change: fn(&mut Reply), key: &'static [u8]| {
        connect_to(move |raw, id, asked| {
            let mut reply = reply(raw);
            change(&mut reply);
            // The caller's queue pair is not known here, so that no proof is ever good.
            id.answer(9, &reply.encode(key, &raw.parties(), asked, 9)).unwrap();
        })
    };
    let unproven = answer(|_| {}, KEY);
    assert_eq!(unproven.errno, Errno::CONNREFUSED);
    assert!(unproven.reason.contains("does not prove"), "{}", unproven.reason);
    let nonsense = answer(|reply| reply.incarnation = 0, KEY);
    assert!(nonsense.reason.contains("an incarnation has the value 0"), "{}", nonsense.reason);
    let version = connect_to(move |raw, id, asked| {
        let mut bytes = reply(raw).encode(KEY, &raw.parties(), asked, 9);
        bytes[4] = 99;
        id.answer(9, &bytes).unwrap();
    });
    assert!(version.reason.contains("speaks version 3.99 "), "{}", version.reason);
    for reason in [RejectReason::Key, RejectReason::Resources, RejectReason::Path] {
        let refused = connect_to(move |_, id, _| id.refuse(&encode_refusal(reason)).unwrap());
        assert!(refused.reason.contains(&reason.to_string()), "{}", refused.reason);
    }
}

/// Where the connection manager cannot help, TCP does.
#[test]
fn tcp_is_taken_where_the_manager_cannot_help() {
    let none = ManagerFaults::default();
    let faults = [
        ManagerFaults { no_route: true, ..none },
        // After a second.
        ManagerFaults { loses_requests: true, ..none },
    ];
    for faults in faults {
        let fabric = FakeFabric::default();
        let provider = managed_provider(&fabric, FakeOptions::default());
        let (mut one, mut other) = (open(&provider), open(&provider));
        fabric.set_manager_faults(faults);
        connect(&mut one, &mut other, 0);
        stream(&mut one, &mut other, 0, 50);
        assert_eq!(fabric.tally().managed, 0, "{faults:?}");
    }
    // Only one of the two has it.
    let fabric = FakeFabric::default();
    let (ours, theirs) = (
        managed_provider(&fabric, FakeOptions::default()),
        provider(&fabric, FakeOptions::default()),
    );
    let (mut one, mut other) = (open(&ours), open(&theirs));
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    assert_eq!(fabric.tally().managed, 0);
    // Neither has, although it was asked for.
    fabric.set_manager_faults(ManagerFaults { absent: true, ..none });
    let without = managed_provider(&fabric, FakeOptions::default());
    let mut third = open(&without);
    connect(&mut third, &mut one, 3);
    assert_eq!(fabric.tally().managed, 0);
}

/// The manager names the MTU of the port that asks: whose own is smaller says so.
#[test]
fn the_smaller_mtu_of_the_two_counts() {
    for (ours, theirs) in [(4096, 1024), (1024, 4096), (4096, 4096)] {
        let fabric = FakeFabric::default();
        let make = |mtu_bytes| {
            managed_provider(&fabric, FakeOptions { mtu_bytes, ..FakeOptions::default() })
        };
        let (ours, theirs) = (make(ours), make(theirs));
        let (mut one, mut other) = (open(&ours), open(&theirs));
        [&one, &other].into_iter().for_each(wait_for_listener);
        connect(&mut one, &mut other, 0);
        connect(&mut other, &mut one, 0);
        assert_eq!(fabric.tally().managed, 2);
        stream(&mut one, &mut other, 0, 100);
        stream(&mut other, &mut one, 0, 100);
    }
}

/// Two that are connected where the last word of the handshake is lost, and what the first sends.
fn without_last_word() -> (FakeTransport, FakeTransport) {
    let fabric = FakeFabric::default();
    let provider = managed_provider(&fabric, FakeOptions::default());
    let (mut one, other) = (open(&provider), open(&provider));
    let loses_last_words = true;
    fabric.set_manager_faults(ManagerFaults { loses_last_words, ..ManagerFaults::default() });
    one.connect(0, other.address());
    assert!(matches!(event(&mut one), TransportEvent::Connected { peer: 0, .. }));
    for number in 0..3 {
        assert!(push(&mut one, 0, number, 9));
    }
    (one, other)
}

/// The last word of the handshake is lost: the first packet says as much.
#[test]
fn a_packet_stands_for_a_last_word_that_was_lost() {
    let (_one, mut other) = without_last_word();
    adopt(&mut other, 7);
    for number in 0..3 {
        assert_eq!(take_soon(&mut other), (7, number, 9));
    }
}

/// And where the peer is gone before anybody has looked, what it sent comes, and then its end.
#[test]
fn who_leaves_without_a_last_word_has_sent_all_the_same() {
    let (one, mut other) = without_last_word();
    drop(one);
    let start = Instant::now();
    while !other.has_event() {
        assert!(start.elapsed() < PATIENCE, "in vain: the end");
        std::thread::yield_now();
    }
    adopt(&mut other, 7);
    for number in 0..3 {
        assert_eq!(take_soon(&mut other), (7, number, 9));
    }
    assert!(matches!(event(&mut other), TransportEvent::Closed { peer: 7 }));
}

/// An endpoint that is not enabled yet is waited for.
#[test]
fn a_key_that_comes_later_is_waited_for() {
    let fabric = FakeFabric::default();
    let provider = managed_provider(&fabric, FakeOptions::default());
    let open = |auth_key| {
        let opening = Opening { auth_key, keys_follow: true, ..Opening::default() };
        provider.open_as(opening).unwrap()
    };
    let (mut here, mut there) = (open(b"another"), open(KEY));
    here.take_keys(Some(&Keyring::only(KEY)));
    here.connect(3, there.address());
    std::thread::sleep(Duration::from_millis(100));
    assert!(here.event().is_none());
    there.take_keys(None);
    assert!(matches!(event(&mut here), TransportEvent::Connected { peer: 3, .. }));
    adopt(&mut there, 1);
    assert_eq!(fabric.tally().managed, 1);
}

#[test]
fn nobody_there_is_an_error_soon() {
    let to = own_address();
    let fabric = FakeFabric::default();
    let provider = managed_provider(&fabric, FakeOptions::default());
    let mut one = open(&provider);
    one.connect(0, to);
    let TransportEvent::Failed { peer: 0, reason } = event(&mut one) else { panic!("no failure") };
    assert_eq!(reason.errno, Errno::HOSTUNREACH);
    assert!(reason.reason.contains("no endpoint listens"), "{}", reason.reason);
}

/// Of endpoints of datagrams, and where TCP is asked for, nothing goes through the manager; of
/// those that are connected everything does, unless something else is asked for.
#[test]
fn connected_endpoints_use_the_manager_by_themselves() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let connected = || {
        provider.open_as(Opening { purpose: Purpose::Connection, ..Opening::default() }).unwrap()
    };
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    assert_eq!(fabric.tally().managed, 0);
    let before = fabric.tally().registered;
    let (mut one, mut other) = (connected(), connected());
    let each = (fabric.tally().registered - before) / 2;
    assert!(each < 640 << 10, "{each} bytes are registered for one peer");
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    assert_eq!(fabric.tally().managed, 2);
    stream(&mut one, &mut other, 0, 1000);
    // An address that is taken is refused, whoever has it.
    let refused = provider.open(Some(one.address()), &[]).err().unwrap();
    assert_eq!(refused.errno, Errno::ADDRINUSE, "{}", refused.reason);
}
