//! Handshakes with peers that lie, stall, or are no kestrels.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{
    KEY, PATIENCE, Scene, adopt, connect, event, open, provider, provider_with,
    raw::{Raw, path_end, signed},
};
use kestrel_core::{
    address::Address,
    auth_key::{AuthKey, Keyring},
    error::{Cause, Errno},
    transport::{Opening, Provider, Service, Transport, TransportEvent},
};
use kestrel_tests::{reserved::own_address, scale::takes_less_than};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    device::LinkLayer,
    fake::{FakeFabric, FakeOptions},
    testing::{
        BUFFER_BYTES, Receipt,
        proof::{self, Speaker},
        wire::{Accept, Hello, Message, RejectReason},
    },
};

#[test]
fn garbage_is_dropped_and_nobody_else_notices() {
    let scene = Scene::on(provider);
    let mut random = 1u64;
    for length in [1, 11, 12, 100, 200, 5000] {
        let mut raw = Raw::connect(scene.victim.address());
        raw.greeting();
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                (random >> 56) as u8 | 0x80
            })
            .collect();
        raw.say(&bytes);
        assert!(raw.read().is_none(), "{length} bytes");
    }
    scene.ends_well();
}

/// Every way in which a HELLO can be wrong has its answer.
#[test]
fn a_lying_hello_is_refused_with_the_reason() {
    type Lie = fn(&mut Hello);
    let lies: [(Lie, RejectReason); 5] = [
        (|hello| hello.wanted.set_port(1), RejectReason::Wanted),
        (|hello| hello.from.set_ip([127, 0, 0, 9].into()), RejectReason::Address),
        (|hello| hello.buffer_bytes = 4096, RejectReason::Limits),
        (|hello| hello.service = Service::Datagrams, RejectReason::Service),
        (|hello| hello.end.link_layer = LinkLayer::InfiniBand, RejectReason::Path),
    ];
    let scene = Scene::on(provider);
    for (lie, reason) in lies {
        let mut raw = Raw::connect(scene.victim.address());
        let nonce = raw.greeting();
        let mut hello = raw.hello(scene.victim.address());
        lie(&mut hello);
        raw.say(&signed(hello, KEY, &nonce));
        assert_eq!(raw.read().unwrap().0, Message::Reject(reason));
        assert!(raw.read().is_none());
    }
    scene.ends_well();
}

/// Which number a host gives to a link is its own: no two need to agree on it.
#[test]
fn the_scope_of_an_address_is_each_hosts_own() {
    let scene = Scene::on(|fabric, fake| {
        let device = Arc::new(fabric.device(fake));
        RcProvider::on_device(device, Ipv6Addr::LOCALHOST.into(), VerbsOptions::default()).unwrap()
    });
    let mut raw = Raw::connect(scene.victim.address());
    let mut hello = raw.hello(scene.victim.address());
    for address in [&mut hello.wanted, &mut hello.from] {
        let SocketAddr::V6(v6) = address else { panic!("{address}") };
        v6.set_scope_id(5);
    }
    raw.introduce(hello);
    raw.say(&Message::Confirm.encode());
    let Scene { mut victim, .. } = scene;
    match event(&mut victim) {
        TransportEvent::Incoming { address, .. } => assert_eq!(address.socket_addr(), raw.own),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_proof_of_another_key_or_another_time_is_refused() {
    let scene = Scene::on(provider);
    let mut raw = Raw::connect(scene.victim.address());
    let nonce = raw.greeting();
    let hello = raw.hello(scene.victim.address());
    raw.say(&signed(hello.clone(), b"job 18", &nonce));
    assert_eq!(raw.read().unwrap().0, Message::Reject(RejectReason::Key));
    // What was good once, overheard, is not good again.
    let mut again = Raw::connect(scene.victim.address());
    again.greeting();
    again.say(&signed(hello, KEY, &nonce));
    assert_eq!(again.read().unwrap().0, Message::Reject(RejectReason::Key));
    scene.ends_well();
}

/// Who wants to send to an endpoint that is not enabled waits; of several keys, the one that was
/// proved is told.
#[test]
fn a_key_that_comes_later_is_waited_for() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let open = || provider.open_as(Opening { keys_follow: true, ..Opening::default() }).unwrap();
    let (mut here, mut there) = (open(), open());
    let keys = |names: [&[u8]; 2]| {
        Keyring::new((1..).zip(names).map(|(number, bytes)| AuthKey::new(number, bytes)))
    };
    here.take_keys(Some(&keys([b"own", b"common"])));
    for (peer, key) in [(3, 2), (4, 1)] {
        here.choose_key(peer, key);
    }
    here.connect(3, there.address());
    std::thread::sleep(Duration::from_millis(100));
    assert!(here.event().is_none());
    there.take_keys(Some(&keys([b"common", b"theirs"])));
    assert!(matches!(event(&mut here), TransportEvent::Connected { peer: 3, .. }));
    let TransportEvent::Incoming { key, .. } = event(&mut there) else { panic!() };
    assert_eq!(key, 1, "as they call it");
    here.connect(4, there.address());
    let TransportEvent::Failed { peer: 4, reason } = event(&mut here) else { panic!() };
    assert_eq!(reason.errno, Errno::CONNREFUSED);
}

#[test]
fn another_version_is_refused_by_name() {
    let scene = Scene::on(provider);
    let ours = kestrel_core::wire::VERSION.to_le_bytes()[0];
    // Of the packets, one older, and of the handshake.
    for (at, version) in [(4, ours - 1), (5, 0)] {
        let mut raw = Raw::connect(scene.victim.address());
        let nonce = raw.greeting();
        let mut bytes = signed(raw.hello(scene.victim.address()), KEY, &nonce);
        assert_eq!(bytes[4], ours, "the packets' version is told");
        bytes[at] = version;
        raw.say(&bytes);
        assert_eq!(raw.read().unwrap().0, Message::Reject(RejectReason::Version));
    }
    scene.ends_well();
}

/// A handshake byte by byte, and the process gone right after it, or a word first.
#[test]
fn a_connection_that_ends_is_told_from_one_that_is_closed() {
    let mut scene = Scene::on(provider);
    for in_order in [false, true] {
        let mut raw = Raw::connect(scene.victim.address());
        let nonce = raw.greeting();
        for byte in signed(raw.hello(scene.victim.address()), KEY, &nonce) {
            raw.say(&[byte]);
        }
        let Some((Message::Accept(accept), bytes)) = raw.read() else {
            panic!("not accepted");
        };
        assert_eq!(accept.from, scene.victim.address().socket_addr());
        assert!(proof::is_signed(KEY, Speaker::Accepts, [&nonce, &[9; 32]], &bytes));
        raw.say(&Message::Confirm.encode());
        adopt(&mut scene.victim, 3);
        if in_order {
            raw.say(&Message::End(Receipt::default()).encode());
        }
        drop(raw);
        match (event(&mut scene.victim), in_order) {
            (TransportEvent::Lost { peer: 3, .. }, false) => {}
            (TransportEvent::Closed { peer: 3 }, true) => {}
            other => panic!("{other:?}"),
        }
        scene.victim.disconnect(3);
    }
    scene.ends_well();
}

/// Between ACCEPT and CONFIRM the peer goes away: its queue pair goes, too.
#[test]
fn what_was_not_confirmed_leaves_nothing_behind() {
    let mut scene = Scene::on(provider);
    let before = scene.fabric.tally();
    for _ in 0..100 {
        let mut raw = Raw::connect(scene.victim.address());
        let nonce = raw.greeting();
        raw.say(&signed(raw.hello(scene.victim.address()), KEY, &nonce));
        assert!(matches!(raw.read(), Some((Message::Accept(_), _))));
    }
    let start = Instant::now();
    while scene.fabric.tally().queue_pairs > before.queue_pairs {
        assert!(scene.victim.event().is_none());
        let _ = scene.victim.arrival();
        assert!(start.elapsed() < PATIENCE, "{:?}", scene.fabric.tally());
    }
    scene.ends_well();
}

/// Who makes us meet a bug has no connection, and others have theirs.
#[test]
fn a_bug_of_ours_ends_no_other_handshake() {
    let scene = Scene::on(provider);
    let mut raw = Raw::connect(scene.victim.address());
    let nonce = raw.greeting();
    let hello = raw.hello(scene.victim.address());
    scene.fabric.meet_a_bug();
    raw.say(&signed(hello, KEY, &nonce));
    assert!(raw.read().is_none());
    scene.ends_well();
}

/// A host that never says its last word leaves places to others, and is answered again when it has left.
#[test]
fn a_host_has_a_share_of_the_handshakes() {
    let scene = Scene::on(|fabric, fake| {
        // As long as this test takes.
        let options = VerbsOptions { confirm_wait: PATIENCE, ..VerbsOptions::default() };
        provider_with(fabric, fake, options)
    });
    let begun: Vec<_> = (0..128)
        .map(|_| {
            let mut raw = Raw::connect(scene.victim.address());
            let hello = raw.hello(scene.victim.address());
            raw.introduce(hello);
            raw
        })
        .collect();
    let mut raw = Raw::connect(scene.victim.address());
    let nonce = raw.greeting();
    let hello = raw.hello(scene.victim.address());
    raw.say(&signed(hello, KEY, &nonce));
    assert!(raw.read().is_none(), "one too many is answered");
    drop(begun);
    scene.ends_well();
}

/// More silent connections of a host than handshakes come to their end in the time that a connect has.
#[test]
fn silence_holds_nobody_up() {
    let provider = provider(&FakeFabric::default(), FakeOptions::default());
    let (mut victim, mut honest) = (open(&provider), open(&provider));
    let silent: Vec<_> = (0..900).map(|_| Raw::connect(victim.address())).collect();
    connect(&mut honest, &mut victim, 0);
    drop(silent);
}

/// A silent one makes room for others that wait, and for nobody else.
#[test]
fn who_takes_the_last_place_costs_nobody_theirs() {
    let provider = provider(&FakeFabric::default(), FakeOptions::default());
    let victim = open(&provider);
    let enter = || {
        let mut raw = Raw::connect(victim.address());
        raw.greeting();
        raw
    };
    // On a busy machine they may come to the end of their time.
    let keeps_all = || {
        let start = Instant::now();
        let mut first = enter();
        let mut others: Vec<_> = (1..255).map(|_| enter()).collect();
        // So long that each is silent.
        std::thread::sleep(Duration::from_millis(200));
        others.push(enter());
        first.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let outcome = first.socket.read(&mut [0]);
        let kept = outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        kept || start.elapsed() > Duration::from_millis(1900)
    };
    assert!(keeps_all(), "the first was hung up on");
}

/// What comes of a connect to a listener that `answer`s like this.
fn connect_to(answer: impl FnOnce(TcpStream) + Send + 'static) -> Cause {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::from(listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || answer(listener.accept().unwrap().0));
    let fabric = FakeFabric::default();
    // Longer than a busy machine takes to answer.
    let connect_timeout = Duration::from_secs(2);
    let options = VerbsOptions { connect_timeout, ..VerbsOptions::default() };
    let provider = provider_with(&fabric, FakeOptions::default(), options);
    let mut one = open(&provider);
    one.connect(0, to);
    let TransportEvent::Failed { peer: 0, reason } = event(&mut one) else {
        panic!("no failure");
    };
    answers.join().unwrap();
    reason
}

fn wait_for_end(mut socket: TcpStream) {
    // A reset ends it as well.
    let _ = socket.read_to_end(&mut Vec::new());
}

#[test]
fn a_listener_that_is_no_kestrel_is_an_error() {
    let reason = connect_to(|mut socket| {
        socket.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
        wait_for_end(socket);
    });
    assert_eq!(reason.errno, Errno::OPNOTSUPP);
    assert!(reason.reason.contains("no kestrel"), "{}", reason.reason);
}

#[test]
fn a_silent_listener_is_an_error_within_the_deadline() {
    takes_less_than(Duration::from_secs(4), || {
        let start = Instant::now();
        let reason = connect_to(wait_for_end);
        assert_eq!(reason.errno, Errno::TIMEDOUT);
        assert!(reason.reason.contains("it does not greet"), "{}", reason.reason);
        start.elapsed()
    });
}

/// More of them than have a turn at a time.
#[test]
fn silent_listeners_hold_up_nobody_else() {
    let silent: Vec<_> = (0..40).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let provider = provider(&FakeFabric::default(), FakeOptions::default());
    let (mut one, two) = (open(&provider), open(&provider));
    for (peer, listener) in (0..).zip(&silent) {
        one.connect(peer, Address::from(listener.local_addr().unwrap()));
    }
    one.connect(40, two.address());
    match event(&mut one) {
        TransportEvent::Connected { peer: 40, .. } => {}
        other => panic!("before the one that answers: {other:?}"),
    }
    for _ in &silent {
        let TransportEvent::Failed { reason, .. } = event(&mut one) else { panic!() };
        assert_eq!(reason.errno, Errno::TIMEDOUT);
        assert!(reason.reason.contains("greet"), "{}", reason.reason);
    }
}

/// What a connect waits for the others of its process is not its peer's fault: here longer than a peer may take.
#[test]
fn who_waits_for_a_turn_has_all_of_its_time_afterwards() {
    const SILENT: u32 = 128;
    let silent: Vec<_> = (0..SILENT).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let connect_timeout = Duration::from_millis(400);
    let options = VerbsOptions { connect_timeout, ..VerbsOptions::default() };
    let provider = provider_with(&FakeFabric::default(), FakeOptions::default(), options);
    let (mut one, two) = (open(&provider), open(&provider));
    for (peer, listener) in (0..).zip(&silent) {
        one.connect(peer, Address::from(listener.local_addr().unwrap()));
    }
    one.connect(SILENT, two.address());
    let (mut connected, mut failed) = (0, 0);
    while connected + failed <= SILENT {
        match event(&mut one) {
            TransportEvent::Connected { peer: SILENT, .. } => connected += 1,
            TransportEvent::Failed { reason, .. } => {
                assert!(reason.reason.contains("greet"), "{}", reason.reason);
                failed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connected, 1);
}

#[test]
fn a_listener_of_another_version_is_named() {
    let reason = connect_to(|mut socket| {
        let mut greeting = Message::Greeting([1; 32]).encode();
        greeting[4] = 99;
        socket.write_all(&greeting).unwrap();
        wait_for_end(socket);
    });
    assert_eq!(reason.errno, Errno::OPNOTSUPP);
    assert!(reason.reason.contains("speaks version 3.99 "), "{}", reason.reason);
}

#[test]
fn a_listener_without_our_key_is_found_out() {
    let reason = connect_to(|mut socket| {
        socket.write_all(&Message::Greeting([1; 32]).encode()).unwrap();
        let mut hello = vec![0; 256];
        let count = socket.read(&mut hello).unwrap();
        let Some((Message::Hello(hello), _)) = Message::decode(&hello[..count]).unwrap() else {
            panic!("no HELLO");
        };
        let (from, end) = (hello.wanted, path_end());
        let accept = Accept { incarnation: 1, from, end, buffer_bytes: BUFFER_BYTES as u32 };
        socket.write_all(&Message::Accept(Box::new(accept)).encode()).unwrap();
        wait_for_end(socket);
    });
    assert_eq!(reason.errno, Errno::CONNREFUSED);
    assert!(reason.reason.contains("does not prove"), "{}", reason.reason);
}

#[test]
fn nobody_there_is_an_error_soon() {
    let to = own_address();
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let mut one = open(&provider);
    one.connect(0, to);
    let TransportEvent::Failed { peer: 0, reason } = event(&mut one) else {
        panic!("no failure");
    };
    assert_eq!(reason.errno, Errno::HOSTUNREACH);
    assert!(reason.reason.contains("no endpoint listens"), "{}", reason.reason);
}

/// It takes nobody's turn.
#[test]
fn what_fails_at_once_is_over() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let (mut one, mut other) = (open(&provider), open(&provider));
    // From loopback's address nothing leaves this host, and the kernel says so at once.
    let elsewhere: SocketAddr = "192.0.2.1:7000".parse().unwrap();
    for peer in 0..100 {
        one.connect(peer, elsewhere.into());
        let failed = event(&mut one);
        assert!(matches!(failed, TransportEvent::Failed { .. }), "{failed:?}");
    }
    crate::common::connect(&mut one, &mut other, 200);
}
