//! Connections whose peer is killed, and listeners that hear nonsense.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    completion_queue::{Entry, ReadError},
    connection::{CM_DATA_SIZE, passive_endpoint::PassiveEndpoint},
    domain::{Domain, DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointOptions},
    error::{Errno, HasErrno},
    event_queue::{Event, EventRead},
    info::Info,
    memory::Piece,
    mock::{MockOptions, MockProvider},
    transport::{Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::Bed,
    driven::Drives,
    figures,
    liar::Liar,
    link::{self, Driven, End, Link, Listener},
    process::{Peer, child_role, listen_to_parent, say},
    scale::scaled,
};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "listens" => accept_all(),
        Some([role]) if role == "calls" => call_oneself(),
        other => panic!("{other:?}"),
    }
}

fn shm() -> Bed<ShmProvider> {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    Bed { provider: Arc::new(provider), sharing: Sharing::Shared }
}

/// Accepts whoever comes with data, and leaves the others waiting, until it is killed.
fn accept_all() {
    let _parent = listen_to_parent();
    let bed = shm();
    let listener = Listener::listening(&bed);
    let mut ends: Vec<End<ShmProvider>> = Vec::new();
    say(&format!("ready {}", listener.passive.address().socket_addr()));
    loop {
        ends.iter().for_each(End::drive);
        if listener.has_nothing() {
            continue;
        }
        let asked = listener.request(&[]);
        if asked.data.is_empty() {
            say("asked");
        } else {
            let request = listener.passive.take(asked.handle).unwrap();
            let end = End::acceptor(&bed, request);
            end.endpoint.accept(b"yes").unwrap();
            ends.push(end);
        }
    }
}

/// "… or abruptly closes the endpoint": the process is gone, without a word.
#[test]
fn a_killed_peer_is_a_shutdown() {
    let mut peer = Peer::start("listens");
    let address = peer.hear_after("ready").parse::<std::net::SocketAddr>().unwrap();
    let bed = shm();
    let connected = End::calling(&bed, address.into(), b"accept me");
    let waiting = End::calling(&bed, address.into(), &[]);
    assert_eq!(connected.connected(&[&waiting]), b"yes");
    connected.endpoint.receive(vec![0; 64], 0, 1).unwrap();
    connected.endpoint.send(vec![1; 4 << 20], 0, 2).unwrap();
    link::drive("the other request arrives", &[&connected, &waiting], || {
        peer.heard().as_deref() == Some("asked")
    });
    assert!(waiting.events.is_empty());
    peer.kill();
    connected.sees_shutdown(&[&waiting]);
    waiting.fails(Errno::CONNREFUSED, &[&connected]);
    let mut failed = [connected.done(&[]), connected.done(&[])];
    failed.sort_by_key(|done| done.context);
    let [receive, send] = failed;
    assert_eq!((receive.context, receive.errno), (1, Some(Errno::CANCELED)));
    assert_eq!(send.context, 2);
    assert!(send.errno.is_some(), "{send:?}");
}

/// "A rejected or failed connection request will generate an error event": also where an endpoint is, but
/// does not listen. If it does soon, who asked before is heard.
#[test]
fn who_asks_before_anybody_listens_is_told() {
    // Long enough to find the place itself on a busy machine.
    let connect_timeout = Duration::from_secs(2);
    let hasty = ShmProvider::new(ShmOptions { connect_timeout, ..ShmOptions::default() }).unwrap();
    let hasty = Bed { provider: Arc::new(hasty), sharing: Sharing::Shared };
    let bed = shm();
    let (reserved, idle) = (Listener::open(&bed), End::caller(&bed));
    let address = reserved.passive.address();
    for asked in [address, idle.endpoint.address()] {
        let error = End::calling(&hasty, asked, &[]).error(&[]);
        assert_eq!(error.error, Errno::TIMEDOUT);
        assert!(error.reason.contains("nobody listens"), "{error:?}");
    }
    let early = End::calling(&bed, address, b"early");
    let start = Instant::now();
    link::drive("a while", &[&early], || start.elapsed() > Duration::from_millis(20));
    reserved.passive.listen().unwrap();
    assert_eq!(reserved.request(&[&early]).data, b"early");
}

/// Connects to its own listener again and again, and says what has stayed mapped or open since the first
/// few times.
fn call_oneself() {
    let bed = shm();
    let listener = Listener::listening(&bed);
    let round = || {
        let caller = End::calling(&bed, listener.passive.address(), &[]);
        let acceptor = End::acceptor(&bed, listener.take(&[&caller]));
        acceptor.endpoint.accept(&[]).unwrap();
        caller.connected(&[&acceptor]);
        acceptor.connected(&[&caller]);
        drop(caller);
        acceptor.sees_shutdown(&[&listener]);
    };
    let taken = || figures::mappings("memfd:") + figures::descriptors();
    (0..4).for_each(|_| round());
    let before = taken();
    (0..scaled(16, 32, 1100)).for_each(|_| round());
    link::drive("the listener lets go of all", &[&listener], || taken() < before + 8);
    say("nothing stays");
}

/// "A successfully accepted connection request will result in the active (connecting) endpoint seeing an
/// FI_CONNECTED event", and leaves nothing with the listener. Of one process it has room for 1,024.
#[test]
fn a_listener_keeps_nothing_of_who_was_accepted() {
    let mut alone = Peer::start("calls");
    assert_eq!(alone.hear(), "nothing stays");
    alone.succeed();
}

fn mock() -> Bed<MockProvider> {
    let provider = MockProvider::new(MockOptions::default());
    Bed { provider: Arc::new(provider), sharing: Sharing::Shared }
}

/// Where an acceptor is itself, which goes by its listener's address.
fn place_of(acceptor: &End<MockProvider>) -> Address {
    acceptor.endpoint.inspect(|transport| transport.address()).unwrap()
}

/// A packet out of turn, or too long, costs its sender the lane and nobody else anything.
#[test]
fn a_listener_survives_nonsense() {
    let bed = mock();
    let listener = Listener::listening(&bed);
    let address = listener.passive.address();
    for (kind, length) in [
        (Kind::Request, CM_DATA_SIZE + 1),
        (Kind::Accept, 0),
        (Kind::Reject, 8),
        (Kind::Established, 0),
        (Kind::Eager, 8),
        (Kind::Read, 0),
        (Kind::Finish, 0),
        (Kind::Invite, 0),
        (Kind::Ask, 0),
        (Kind::Withdraw, 0),
        (Kind::Written, 0),
    ] {
        let mut liar = Liar::new(&bed, address);
        liar.say(kind, 1, length);
        assert!(liar.is_cut_off(&listener), "{kind:?}");
        assert!(listener.has_nothing(), "{kind:?}");
    }
    // Whoever asks twice loses the first request as well.
    let mut liar = Liar::new(&bed, address);
    liar.say(Kind::Request, 1, 3);
    let asked = listener.request(&[]);
    liar.say(Kind::Request, 2, 3);
    assert!(liar.is_cut_off(&listener));
    assert_eq!(listener.passive.take(asked.handle).err().unwrap().to_string(), {
        format!("request {:#x} is over: it was answered, or its sender is gone", asked.handle)
    });
    assert!(listener.has_nothing());
}

/// Whoever does not know the nonce speaks for no listener, nor reaches any memory.
#[test]
fn a_caller_believes_its_own_listener_alone() {
    let bed = mock();
    let listener = Listener::listening(&bed);
    let caller = End::calling(&bed, listener.passive.address(), &[]);
    let request = listener.take(&[&caller]);
    let about = [Kind::Accept, Kind::Reject, Kind::Established, Kind::Request];
    let beside = [Kind::Eager, Kind::Invite, Kind::Ask, Kind::Withdraw, Kind::Written];
    for kind in about.into_iter().chain(beside) {
        let mut liar = Liar::new(&bed, caller.endpoint.address());
        liar.say(kind, 12345, 0);
        assert!(liar.is_cut_off(&caller), "{kind:?}");
        assert!(caller.events.is_empty(), "{kind:?}");
        assert_eq!(caller.queue.read(&mut [Entry::default()]), Err(ReadError::Empty), "{kind:?}");
    }
    let acceptor = End::acceptor(&bed, request);
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor]);
}

/// A peer that is connected and breaks the protocol is a peer that is gone.
#[test]
fn a_connected_liar_is_a_shutdown() {
    let bed = mock();
    let Link { caller, acceptor, listener: _listener } = Link::new(&bed);
    bed.provider.kill(place_of(&acceptor));
    assert_eq!(caller.event(&[]), Event::Shutdown { fid: link::ENDPOINT });
    let listener = Listener::listening(&bed);
    let mut liar = Liar::new(&bed, listener.passive.address());
    liar.say(Kind::Request, 99, 0);
    let acceptor = End::acceptor(&bed, listener.take(&[]));
    acceptor.endpoint.accept(&[]).unwrap();
    link::drive("the answer arrives", &[&acceptor], || {
        if let Some(TransportEvent::Incoming { ticket, .. }) = liar.0.event() {
            liar.0.adopt(1, ticket);
        }
        liar.0.arrival().is_some_and(|answer| answer.head.kind == Kind::Accept as u8)
    });
    liar.0.connect(1, place_of(&acceptor));
    link::drive("the way back", &[&acceptor], || {
        matches!(liar.0.event(), Some(TransportEvent::Connected { peer: 1, .. }))
    });
    let established = Head::new(Kind::Established, 0);
    assert!(liar.0.push(1, established, 99, &[], Piece::EMPTY));
    acceptor.connected(&[]);
    assert!(liar.0.push(1, established, 99, &[], Piece::EMPTY));
    acceptor.sees_shutdown(&[]);
}

/// Nobody knows the name of an endpoint that is closed: also what its last second brings is forgotten, when
/// what was injected waits for room at a peer that goes.
#[test]
fn nothing_is_told_of_a_closed_endpoint() {
    let bed = mock();
    let Link { caller, acceptor, listener: _listener } = Link::new(&bed);
    let peer = place_of(&acceptor);
    bed.provider.block(peer, usize::MAX);
    caller.endpoint.inject_write(&[1; 8], 0, 0, 0).unwrap();
    let provider = bed.provider.clone();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        provider.kill(peer);
    });
    caller.endpoint.close();
    killer.join().unwrap();
    assert_eq!(caller.events.read(), EventRead::Empty);
    assert_eq!(caller.queue.read(&mut [Entry::default()]), Err(ReadError::Empty));
}

/// A reader may be about to drive a listener when another thread closes it.
#[test]
fn a_closed_listener_tells_of_no_request() {
    let bed = mock();
    let listener = Listener::listening(&bed);
    let caller = End::calling(&bed, listener.passive.address(), &[]);
    caller.drive();
    // It comes before the listener.
    let passive = listener.passive.clone();
    let closing = Arc::new(Drives(move || {
        passive.close();
        true
    }));
    listener.events.add_driven(closing.clone());
    assert_eq!(listener.events.read(), EventRead::Empty);
    listener.events.remove_driven(&closing);
    assert_eq!(listener.events.read(), EventRead::Empty);
    caller.fails(Errno::CONNREFUSED, &[]);
}

/// Whoever waits for a listener's queue keeps no place of it, nor who is about to drive it.
#[test]
fn a_closed_listener_gives_its_place_up() {
    let bed = mock();
    let provider = bed.provider.clone();
    let open_again = move |listener: &PassiveEndpoint<MockProvider>| {
        let info = Info { source: Some(listener.address()), ..Info::default() };
        PassiveEndpoint::open(provider.clone(), info).expect("the place is free").close();
    };
    let listener = Listener::listening(&bed);
    let wait = listener.events.prepare_wait().expect("there is nothing to do");
    listener.passive.close();
    open_again(&listener.passive);
    drop(wait);
    // What was accepted holds it no longer than its connection takes to stand.
    let listener = Listener::listening(&bed);
    let caller = End::calling(&bed, listener.passive.address(), &[]);
    let acceptor = End::acceptor(&bed, listener.take(&[&caller]));
    acceptor.endpoint.accept(&[]).unwrap();
    let wait = listener.events.prepare_wait().expect("there is nothing to do");
    caller.connected(&[&acceptor]);
    acceptor.connected(&[&caller]);
    listener.passive.close();
    open_again(&listener.passive);
    drop(wait);
    // Driven before the listener.
    let listener = Listener::listening(&bed);
    let passive = listener.passive.clone();
    let closing = Arc::new(Drives(move || {
        passive.close();
        open_again(&passive);
        true
    }));
    listener.events.add_driven(closing.clone());
    listener.events.progress();
    listener.events.remove_driven(&closing);
}

/// Its memory is known to its domain's transports alone, which need not be the passive endpoint's. What
/// cannot be taken over listens on.
#[test]
fn who_takes_over_has_its_domains_transport() {
    let (bed, other) = (mock(), mock());
    let listener = Listener::listening(&bed);
    // The first of each has the same place.
    let [_, reserved] = [(); 2].map(|()| Listener::open(&other));
    let open = |domain: &Arc<Domain<MockProvider>>| {
        Endpoint::open_instead_of(domain, link::options(), &reserved.passive)
    };
    let domain = bed.domain(DomainOptions::default());
    let address = Some(reserved.passive.address());
    let there = Endpoint::open(&domain, EndpointOptions { address, ..link::options() }).unwrap();
    assert_eq!(open(&domain).err().map(|error| error.errno()), Some(Errno::ADDRINUSE));
    there.close();
    reserved.passive.listen().unwrap();
    let caller = End::calling(&other, reserved.passive.address(), &[]);
    reserved.request(&[&caller]);
    let reserved = Listener::open(&other);
    let opened = Endpoint::open_instead_of(&domain, link::options(), &reserved.passive).unwrap();
    let end = End::over(&domain, opened);
    assert_eq!(end.endpoint.address(), reserved.passive.address());
    end.endpoint.connect(listener.passive.address(), &[]).unwrap();
    listener.request(&[&end]);
}

/// "The number of outstanding connection requests that can be queued at an endpoint is limited": callers
/// that go leave nothing behind.
#[test]
fn a_request_goes_with_its_caller() {
    let bed = mock();
    let listener = Listener::open(&bed);
    listener.passive.set_backlog(2).unwrap();
    listener.passive.listen().unwrap();
    for _ in 0..20 {
        let caller = End::calling(&bed, listener.passive.address(), &[]);
        link::drive("a request comes", &[&caller], || !listener.has_nothing());
        drop(caller);
        link::drive("it is gone", &[], || listener.has_nothing());
    }
    let caller = End::calling(&bed, listener.passive.address(), b"last");
    assert_eq!(listener.request(&[&caller]).data, b"last");
}
