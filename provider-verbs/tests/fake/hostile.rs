//! Peers that have the key and do what no kestrel does, on queue pairs of their own.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::common::{
    FakeTransport, KEY, Scene, adopt, connect, event,
    intruder::{HOME, Intruder},
    provider, push,
    raw::{Raw, signed},
    stream, take, take_soon, wait_until,
};
use kestrel_core::{
    address::Address,
    group::Spread,
    memory::Piece,
    transport::{
        Multicast as _, Opening, Provider, Service, Transport, TransportEvent, Windows as _,
    },
    window::{Access, Invitation, RegistrationRequest},
    wire::{Head, Kind},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    device::LinkLayer,
    fake::{FakeFabric, FakeOptions},
    testing::{
        BUFFER_BYTES, proof,
        wire::{self, Message, RejectReason},
    },
    verbs::{
        AddressHandle, Destination, EVERYBODY, Group, GroupRequest, Marks, RemoteMemory, Role,
        Verb, Verbs,
    },
};

/// It is permitted to write somewhere, and does so where packets come: that takes one of the buffers, in
/// which there is still what another peer sent. And it says that more was written than a buffer holds.
#[test]
fn a_write_with_data_where_packets_come_is_no_packet() {
    let mut scene = Scene::on(provider);
    stream(&mut scene.friend, &mut scene.victim, 0, 300);
    let (intruder, mut raw) = Intruder::unconfirmed(&scene);
    raw.say(&Message::Confirm.encode());
    adopt(&mut scene.victim, 3);
    let mut memory = vec![0; 60_000];
    let access = Access { write: true, ..Access::default() };
    // SAFETY: the memory outlives what is lent of it.
    let piece = unsafe { Piece::of(&mut memory) };
    let request =
        RegistrationRequest { memory: piece, access, local_write: true, keeps_pages: true };
    let lent = scene.victim.register(3, &request).unwrap();
    let at = RemoteMemory { address: memory.as_ptr().addr() as u64, key: lent.remote_key() };
    intruder.post(memory.len(), |_| (), Verb::WriteImmediate(at, 1));
    assert!(scene.victim.arrival().is_none(), "nothing was sent");
    match event(&mut scene.victim) {
        TransportEvent::Broken { peer: 3, reason } => {
            assert!(reason.reason.contains("wrote"), "{}", reason.reason);
        }
        other => panic!("{other:?}"),
    }
    scene.victim.disconnect(3);
    drop(lent);
    scene.ends_well();
}

/// It does so before it has confirmed its connection, until it has taken all buffers, and behaves from then
/// on.
#[test]
fn writes_with_data_before_the_confirmation_take_no_buffer_for_good() {
    const BUFFERS: usize = 64;
    let mut scene = Scene::on(provider);
    let (intruder, mut raw) = Intruder::unconfirmed(&scene);
    let nowhere = RemoteMemory { address: 0, key: 0 };
    for _ in 0..BUFFERS {
        intruder.post(0, |_| (), Verb::WriteImmediate(nowhere, 1));
    }
    assert_eq!(scene.fabric.tally().told, BUFFERS as u64);
    // By then nothing is posted, which a look finds.
    assert!(scene.victim.arrival().is_none());
    raw.say(&Message::Confirm.encode());
    adopt(&mut scene.victim, 3);
    match event(&mut scene.victim) {
        TransportEvent::Broken { peer: 3, reason } => {
            assert!(reason.reason.contains("wrote"), "{}", reason.reason);
        }
        other => panic!("{other:?}"),
    }
    scene.victim.disconnect(3);
    scene.goes_on();
}

/// What comes before the last word of a handshake is kept for the connection, as far as it was granted.
#[test]
fn packets_before_the_confirmation_take_what_was_granted() {
    let mut scene = Scene::on(provider);
    let (intruder, _raw) = Intruder::unconfirmed(&scene);
    for _ in 0..200 {
        intruder.post(0, |_| (), Verb::Send);
        assert!(scene.victim.arrival().is_none(), "nobody has been adopted");
    }
    scene.goes_on();
}

/// A window may only lead to the port that the peer's connection comes from: for a port that nobody has,
/// the kernel would look for seconds, and the engine with it.
#[test]
fn an_end_of_a_window_that_is_elsewhere_is_refused() {
    let mut scene = Scene::on(provider);
    let access = Access { read: true, ..Access::default() };
    // There is somebody, too.
    let addresses = vec![[127, 0, 0, 9].into()];
    let options = FakeOptions { addresses, ..FakeOptions::default() };
    let intruder = Intruder::on(&scene.fabric, options, Role::Reaches);
    let elsewhere = intruder.end();
    let half = |at| u64::from_le_bytes(elsewhere.gid[at..at + 8].try_into().unwrap());
    let lie = |[_, path, ..]: Invitation| [elsewhere.queue_pair.into(), path, half(0), half(8)];

    let theirs = scene.friend.invite(0).unwrap();
    assert!(scene.victim.admit(0, lie(theirs), access).is_none());
    let ours = scene.victim.admit(0, theirs, access).unwrap();
    assert_ne!(lie(ours), ours);
    assert!(!scene.friend.open_window(0, lie(ours)));
    assert!(scene.friend.open_window(0, ours));
}

fn group() -> Address {
    Address::new([239, 9, 8, 7].into(), 0)
}

fn open_for_datagrams(fabric: &FakeFabric, options: &FakeOptions) -> FakeTransport {
    let service = Service::Datagrams;
    let opening = Opening { service, auth_key: KEY, ..Opening::default() };
    provider(fabric, options.clone()).open_as(opening).unwrap()
}

/// What every word of a message with that number is.
fn words_of(number: u64) -> u64 {
    number * 0x0101_0101_0101_0101
}

/// Says something of 8 bytes to a group in somebody's name.
fn say_to_group(intruder: &Intruder, name: u64, own: SocketAddr, kind: Kind, number: u64) {
    let ip = group().ip();
    let request =
        GroupRequest { group: ip, own: HOME, hears: false, marks: Marks::default(), managed: true };
    let joined = intruder.device.join_group(request).unwrap();
    let key = proof::queue_key(KEY);
    let to = Destination { handle: joined.name(), queue_pair: EVERYBODY, key };
    let from = wire::address_bytes(own);
    let from = from.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let head = u64::from(Head::new(kind, 0).to_word());
    let front = [head, proof::group_pass(KEY, ip), number, name];
    let words: Vec<u64> = front.into_iter().chain(from).chain([words_of(number)]).collect();
    intruder.send_words(&words, to);
}

/// One who speaks to a group calls itself what it has just called its pass in datagrams of its own. These
/// are shorter than what stands in front of a message to a group.
#[test]
fn a_pass_is_no_incarnation() {
    const NAME: u64 = 77;
    let fabric = FakeFabric::default();
    let options = FakeOptions { link_layer: LinkLayer::InfiniBand, ..FakeOptions::default() };
    let mut hearer = open_for_datagrams(&fabric, &options);
    assert_eq!(hearer.join(group(), true), Ok(Spread::Carried));
    let key = proof::queue_key(KEY);
    let intruder = Intruder::on(&fabric, options, Role::Datagrams { key });
    let mut raw = Raw::connect(hearer.address());
    let service = Service::Datagrams;
    let accept = raw.introduce(wire::Hello { service, ..raw.hello(hearer.address()) });
    let way = intruder.device.create_address_handle(&intruder.origin(), &accept.end).unwrap();
    let to = Destination { handle: way.name(), queue_pair: accept.end.queue_pair, key };
    let head = u64::from(Head::new(Kind::Eager, 0).to_word());
    intruder.send_words(&[head, NAME, 1], to);

    say_to_group(&intruder, NAME, raw.own, Kind::Eager, 2);
    assert_eq!(take(&mut hearer), None, "nobody knows who it is");
    match event(&mut hearer) {
        TransportEvent::Overheard { ticket: NAME, .. } => hearer.recognize(0, NAME),
        other => panic!("{other:?}"),
    }
    assert_eq!(take_soon(&mut hearer), (0, 2, 8));
    assert_eq!(take(&mut hearer), None);
}

/// A datagram names its sender, and anybody can name anybody: none is a goodbye, by which its sender would be
/// let go of.
#[test]
fn no_datagram_is_a_goodbye() {
    const NAME: u64 = 78;
    let fabric = FakeFabric::default();
    let options = FakeOptions { link_layer: LinkLayer::InfiniBand, ..FakeOptions::default() };
    let mut hearer = open_for_datagrams(&fabric, &options);
    assert_eq!(hearer.join(group(), true), Ok(Spread::Carried));
    let intruder = Intruder::on(&fabric, options, Role::Datagrams { key: proof::queue_key(KEY) });
    let own = SocketAddr::new(HOME, 7);
    say_to_group(&intruder, NAME, own, Kind::Eager, 1);
    match event(&mut hearer) {
        TransportEvent::Overheard { ticket: NAME, .. } => hearer.recognize(0, NAME),
        other => panic!("{other:?}"),
    }
    assert_eq!(take_soon(&mut hearer), (0, 1, 8));
    say_to_group(&intruder, NAME, own, Kind::Bye, 2);
    say_to_group(&intruder, NAME, own, Kind::Eager, 3);
    assert_eq!(take_soon(&mut hearer), (0, 3, 8), "and no goodbye");
}

/// What the pass is made of is told to everybody who asks. It counts from the queue pair alone that its peer
/// has said is its own.
#[test]
fn a_pass_that_was_computed_is_not_enough() {
    let fabric = FakeFabric::default();
    let options = FakeOptions::default();
    let (mut hearer, mut speaker) =
        (open_for_datagrams(&fabric, &options), open_for_datagrams(&fabric, &options));
    connect(&mut speaker, &mut hearer, 0);
    let [theirs, ours] = [&speaker, &hearer].map(|endpoint| {
        let mut raw = Raw::connect(endpoint.address());
        let hello = raw.hello(endpoint.address());
        raw.introduce(wire::Hello { service: Service::Datagrams, ..hello })
    });
    let key = proof::queue_key(KEY);
    let intruder = Intruder::on(&fabric, options, Role::Datagrams { key });
    let way = intruder.device.create_address_handle(&intruder.origin(), &ours.end).unwrap();
    let to = Destination { handle: way.name(), queue_pair: ours.end.queue_pair, key };
    let head = u64::from(Head::new(Kind::Eager, 0).to_word());
    let pass = theirs.incarnation ^ ours.incarnation.rotate_left(32);
    intruder.send_words(&[head, pass, 1, words_of(1)], to);
    assert!(push(&mut speaker, 0, 2, 8));
    assert_eq!(take_soon(&mut hearer), (0, 2, 8), "from the peer alone");
}

/// Everybody who asks is told what an endpoint calls itself. Who then calls itself the same takes nobody's
/// place, neither while it is there nor when it goes.
#[test]
fn who_takes_anothers_name_is_not_heard_for_it() {
    let fabric = FakeFabric::default();
    let options = FakeOptions::default();
    let (mut hearer, mut speaker) =
        (open_for_datagrams(&fabric, &options), open_for_datagrams(&fabric, &options));
    connect(&mut speaker, &mut hearer, 0);
    let introduce = |to: Address, incarnation: Option<u64>| {
        let mut raw = Raw::connect(to);
        let hello = wire::Hello { service: Service::Datagrams, ..raw.hello(to) };
        let incarnation = incarnation.unwrap_or(hello.incarnation);
        let accept = raw.introduce(wire::Hello { incarnation, ..hello });
        raw.say(&Message::Confirm.encode());
        (raw, accept.incarnation)
    };
    let (_asker, name) = introduce(speaker.address(), None);
    let (liar, _) = introduce(hearer.address(), Some(name));
    adopt(&mut hearer, 3);
    assert!(push(&mut speaker, 0, 1, 8));
    assert_eq!(take_soon(&mut hearer), (0, 1, 8), "it is the first one's");
    match event(&mut hearer) {
        TransportEvent::Broken { peer: 3, reason } => {
            assert!(reason.reason.contains("as another peer does"), "{}", reason.reason);
        }
        other => panic!("{other:?}"),
    }
    hearer.disconnect(3);
    drop(liar);
    assert!(push(&mut speaker, 0, 2, 8));
    assert_eq!(take_soon(&mut hearer), (0, 2, 8));
}

/// Who has the key can be as many as it has ports: an endpoint hears so many of a host, and others still.
#[test]
fn a_host_has_so_many_senders_of_datagrams() {
    const HEARD_MAX: u16 = 1024;
    let fabric = FakeFabric::default();
    let options = FakeOptions::default();
    let mut hearer = open_for_datagrams(&fabric, &options);
    let to = hearer.address();
    let ask = |number: u16| {
        let mut raw = Raw::connect(to);
        raw.own.set_port(number);
        let nonce = raw.greeting();
        let incarnation = number.into();
        let hello = raw.hello(to);
        let hello = wire::Hello { service: Service::Datagrams, incarnation, ..hello };
        raw.say(&signed(hello, KEY, &nonce));
        let answer = raw.read().expect("an answer").0;
        (raw, answer)
    };
    let mut heard: Vec<Raw> = (1..=HEARD_MAX)
        .map(|number| {
            let (mut raw, answer) = ask(number);
            assert!(matches!(answer, Message::Accept(_)), "{number}: {answer:?}");
            raw.say(&Message::Confirm.encode());
            adopt(&mut hearer, number.into());
            raw
        })
        .collect();
    assert_eq!(ask(HEARD_MAX + 1).1, Message::Reject(RejectReason::Resources));
    // Who goes makes room.
    drop(heard.pop());
    let ended = event(&mut hearer);
    assert!(matches!(ended, TransportEvent::Lost { .. }), "{ended:?}");
    assert!(matches!(ask(HEARD_MAX + 1).1, Message::Accept(_)));
}

/// The same of connections, each of which is promised buffers: half of what there is, until they are let go of.
#[test]
fn a_host_has_half_of_the_connections() {
    // Of 4 packets each.
    const HALF: u32 = 512 / 4 / 2;
    let fabric = FakeFabric::default();
    let addresses = vec![HOME, [127, 0, 0, 9].into()];
    let options = FakeOptions { receives: 512, addresses, ..FakeOptions::default() };
    let make = |own: IpAddr| {
        let device = Arc::new(fabric.device(options.clone()));
        RcProvider::on_device(device, own, VerbsOptions::default()).unwrap()
    };
    let [here, there] = [HOME, [127, 0, 0, 9].into()].map(make);
    let mut victim = here.open(None, KEY).unwrap();
    let mut other = there.open(None, KEY).unwrap();
    let to = victim.address();
    let ask = || {
        let mut raw = Raw::connect(to);
        let nonce = raw.greeting();
        raw.say(&signed(raw.hello(to), KEY, &nonce));
        let answer = raw.read().expect("an answer").0;
        (raw, answer)
    };
    let connected: Vec<Raw> = (0..HALF)
        .map(|peer| {
            let (mut raw, answer) = ask();
            assert!(matches!(answer, Message::Accept(_)), "{peer}: {answer:?}");
            raw.say(&Message::Confirm.encode());
            adopt(&mut victim, peer);
            raw
        })
        .collect();
    assert_eq!(ask().1, Message::Reject(RejectReason::Resources));
    connect(&mut other, &mut victim, HALF);
    stream(&mut other, &mut victim, HALF, 100);
    drop(connected);
    assert_eq!(ask().1, Message::Reject(RejectReason::Resources), "what was promised is not back");
    victim.disconnect(0);
    // And so are they when the queue pair is gone.
    wait_until("there is room for another one", || {
        assert!(victim.arrival().is_none());
        matches!(ask().1, Message::Accept(_))
    });
}

/// Who sends much is lent more than it was promised, as far as that leaves something for more connections.
#[test]
fn what_is_lent_takes_no_place_of_connections() {
    /// At first, and how many more at a time.
    const BUFFERS: usize = 64;
    const SENDERS: usize = 20;
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let mut victim = provider.open(None, KEY).unwrap();
    let open = || provider.open(None, KEY).unwrap();
    let mut senders: Vec<FakeTransport> = (0..SENDERS).map(|_| open()).collect();
    let before = fabric.tally().slabs;
    for (peer, sender) in (0..).zip(&mut senders) {
        connect(sender, &mut victim, peer);
        stream(sender, &mut victim, peer, 300);
    }
    let buffers = BUFFERS + (fabric.tally().slabs - before) / BUFFER_BYTES;
    let promised = SENDERS * 4;
    assert!(buffers <= promised + 2 * BUFFERS, "{buffers} buffers");
}

/// Whoever asks and does not take what it is given has buffers promised until the endpoint hears so, whose
/// application may be long in coming.
#[test]
fn handshakes_that_come_to_nothing_take_a_share_of_the_buffers() {
    const OF_A_HOST: usize = 128;
    let mut scene = Scene::on(provider);
    let [to, other] = [&scene.victim, &scene.friend].map(Transport::address);
    let ask_at = |to| {
        let mut raw = Raw::connect(to);
        let nonce = raw.greeting();
        raw.say(&signed(raw.hello(to), KEY, &nonce));
        matches!(raw.read(), Some((Message::Accept(_), _)))
    };
    let ask = || ask_at(to);
    assert!((0..OF_A_HOST).all(|_| ask()));
    assert!(!ask(), "one more");
    assert!(ask_at(other), "another endpoint of the process");
    assert!(scene.victim.event().is_none());
    wait_until("others are accepted again", || {
        assert!(scene.victim.event().is_none());
        ask()
    });
    scene.ends_well();
}
