//! Which endpoint a context is part of is not for it to say alone: who claims an endpoint of
//! another process loses its lane, and is heard in nobody's name.

use std::{
    io::{Error, ErrorKind},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Instant,
};

use kestrel_core::{
    address::Address,
    address_vector::FI_ADDR_UNSPEC,
    error::Errno,
    memory::Piece,
    mock::MockOptions,
    transport::{Provider, Service, Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_shm::{ShmOptions, ShmProvider, testing::abstract_name};
use kestrel_tests::{
    bed::{Memory, Options, Receive},
    contexts::{Portal, Sharers, counts},
    liar::Liar,
    mock::mock_bed,
    node::{Node, NodeOptions, Wait},
    process::{Peer, child_role, say},
    reserved::own_addresses,
    scale::PATIENCE,
};

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["claims", index, own, at, victim] => {
            claim(index.parse().unwrap(), own, text(at), text(victim));
        }
        _ => panic!("{role:?}"),
    }
}

fn text(address: &str) -> Address {
    Address::from(address.parse::<std::net::SocketAddr>().unwrap())
}

/// Says to `victim`, from as many ports behind `at`, that it is context `index` of the endpoint
/// at `at`; which this process has as well, if it has `both`, or which is `crowded`, until it is told
/// otherwise.
fn claim(index: u64, own: &str, at: Address, victim: Address) {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let first = (own == "both").then(|| provider.open(Some(at), &[]).unwrap());
    let crowd = (own == "crowded").then(|| Crowd::at(at));
    let behind = at.with_port(at.port() + index as u16);
    let mut transport = provider.open(Some(behind), &[]).unwrap();
    transport.connect(0, victim);
    let start = Instant::now();
    let mut is_connected = false;
    while start.elapsed() < PATIENCE {
        match transport.event() {
            Some(TransportEvent::Connected { .. }) => {
                let claim = Head::new(Kind::Context, 0);
                assert!(transport.push(0, claim, index, &[], Piece::EMPTY));
                let message = Head::new(Kind::Eager, 0);
                assert!(transport.push(0, message, 0, &[], Piece::EMPTY));
                is_connected = true;
            }
            Some(TransportEvent::Incoming { ticket, .. }) => transport.adopt(1, ticket),
            Some(TransportEvent::Closed { .. } | TransportEvent::Broken { .. }) => {
                return say("closed");
            }
            Some(event) => panic!("{event:?}"),
            // Looking for packets is what finds a lane closed.
            None => drop(transport.arrival()),
        }
        if is_connected && own != "one" {
            say("claimed");
            break;
        }
    }
    std::io::stdin().lines().next();
    if let Some(crowd) = crowd {
        crowd.disperse();
        std::io::stdin().lines().next();
    }
    drop(first);
}

/// A listener with as many in its queue as may be.
struct Crowd {
    listener: OwnedFd,
    _waiting: Vec<OwnedFd>,
}

impl Crowd {
    fn at(address: Address) -> Crowd {
        let name = abstract_name(Service::Reliable, address.socket_addr());
        // SAFETY: all zeroes are an address; it has the length that is told, and lives through the calls.
        unsafe {
            let mut place: libc::sockaddr_un = std::mem::zeroed();
            place.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (to, from) in place.sun_path[1..].iter_mut().zip(name.bytes()) {
                *to = from as libc::c_char;
            }
            let length = (size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t;
            let socket = || {
                let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind, 0))
            };
            let listener = socket();
            assert_eq!(libc::bind(listener.as_raw_fd(), (&raw const place).cast(), length), 0);
            assert_eq!(libc::listen(listener.as_raw_fd(), 0), 0);
            let mut waiting = Vec::new();
            for _ in 0..100 {
                let another = socket();
                if libc::connect(another.as_raw_fd(), (&raw const place).cast(), length) != 0 {
                    assert_eq!(Error::last_os_error().kind(), ErrorKind::WouldBlock);
                    return Crowd { listener, _waiting: waiting };
                }
                waiting.push(another);
            }
        }
        panic!("any number of them find room");
    }

    /// There is room in the queue.
    fn disperse(&self) {
        for _ in 0..100 {
            let no_address = std::ptr::null_mut();
            // SAFETY: nobody wants to know the address; what is new is closed.
            unsafe {
                match libc::accept(self.listener.as_raw_fd(), no_address, no_address.cast()) {
                    -1 => return,
                    one => drop(OwnedFd::from_raw_fd(one)),
                }
            }
        }
    }
}

#[test]
fn a_context_of_another_process_is_not_believed() {
    let at = own_addresses(2);
    let real = Node::with(&NodeOptions::at(at));
    let victim = Node::open();
    assert_eq!(victim.insert(real.address()), 0);
    victim.endpoint.receive(vec![0; 8], 0, 1).unwrap();
    victim.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 2).unwrap();
    let role = format!("claims 1 one {} {}", at.socket_addr(), victim.address().socket_addr());
    let liar = Peer::start(&role);
    let start = Instant::now();
    let said = loop {
        assert!(victim.poll().is_none(), "nothing of it is received");
        if let Some(said) = liar.heard() {
            break said;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: its lane is closed");
    };
    assert_eq!(said, "closed");
    // Whoever it named is not concerned.
    let to = real.insert(victim.address());
    real.endpoint.inject(&[1; 8], to).unwrap();
    let start = Instant::now();
    let done = loop {
        assert!(real.poll().is_none(), "an inject is not reported");
        if let Some(done) = victim.poll() {
            break done.well();
        }
        assert!(start.elapsed() < PATIENCE, "in vain: a message");
    };
    assert_eq!((done.context, done.source), (1, 0));
}

#[test]
fn a_context_of_the_same_process_is() {
    let at = own_addresses(2);
    let victim = Node::open();
    assert_eq!(victim.insert(at), 0);
    victim.endpoint.receive(vec![0; 8], 0, 1).unwrap();
    let role = format!("claims 1 both {} {}", at.socket_addr(), victim.address().socket_addr());
    let _honest = Peer::start(&role);
    let done = victim.within(PATIENCE, Wait::Polling).expect("a message comes").well();
    assert_eq!((done.context, done.source), (1, 0));
}

/// What is asked to find out may be at its limits for a moment: that is nobody's lie.
#[test]
fn a_context_is_believed_once_its_endpoint_can_be_asked() {
    let at = own_addresses(2);
    let victim = Node::open();
    assert_eq!(victim.insert(at), 0);
    victim.endpoint.receive(vec![0; 8], 0, 1).unwrap();
    let (at, to) = (at.socket_addr(), victim.address().socket_addr());
    let mut honest = Peer::start(&format!("claims 1 crowded {at} {to}"));
    let start = Instant::now();
    while honest.heard().is_none() {
        assert!(victim.poll().is_none() && start.elapsed() < PATIENCE);
    }
    assert!((0..1_000).all(|_| victim.poll().is_none()), "nobody can be asked");
    honest.order("let them in");
    let done = victim.within(PATIENCE, Wait::Polling).expect("a message comes").well();
    assert_eq!((done.context, done.source), (1, 0));
}

/// Which endpoint a context is part of it says before all else: not after a message, also of which the
/// envelope alone has come.
#[test]
fn a_context_that_has_sent_a_message_is_too_late() {
    for words in [[5, 9_000, 0, 0, 0], [5, 0, 0, 0, 0]] {
        let bed = mock_bed(MockOptions::default());
        let world = bed.world(1);
        let victim = &world.nodes[0];
        victim.receive(9_000, None, 1);
        let mut liar = Liar::new(&bed, victim.endpoint.address());
        liar.say_all(Kind::Long, 0, &words, 0);
        liar.say_all(Kind::Context, 1, &[], 0);
        assert!(liar.is_cut_off(victim));
    }
}

/// A receive of a shared context that is directed at somebody fails when no endpoint is connected with him
/// any more, and not with the first way to him that fails.
#[test]
fn a_directed_receive_waits_while_any_endpoint_is_connected() {
    const BY: [usize; 2] = [0, 1];
    let bed = mock_bed(MockOptions::default());
    let sharers = Sharers::open(&bed, BY.len(), &Options::default());
    let peer = bed.stranger(&Options::default());
    peer.vector.insert(&sharers.addresses());
    let from = sharers.vector.insert_one(peer.endpoint.address()).unwrap();
    let next = || sharers.next(|| peer.poll());
    // It is connected with the second one.
    sharers.shared.receive(vec![0; 8], from, 1).unwrap();
    peer.endpoint.inject(&[1; 8], 1).unwrap();
    assert_eq!(next().1.context(), 1);
    sharers.shared.receive(vec![0; 8], from, 2).unwrap();
    // The first one does not get to it.
    bed.provider.refuse(peer.endpoint.address(), 1, Errno::CONNREFUSED);
    sharers.members[0].endpoint.send(vec![1; 8], from, 3).unwrap();
    let (at, done) = next();
    assert_eq!((at, done.bad(Errno::CONNREFUSED).context), (0, 3));
    peer.endpoint.inject(&[2; 8], 1).unwrap();
    let (at, done) = next();
    assert_eq!((at, done.context()), (1, 2));
    // Nor does anybody.
    sharers.shared.receive(vec![0; 8], from, 4).unwrap();
    bed.provider.kill(peer.endpoint.address());
    let (at, done) = next();
    assert_eq!((at, done.bad(Errno::CONNRESET).context), (1, 4));
}

/// The last endpoint that is connected with somebody goes, and has not heard that he is gone.
#[test]
fn a_directed_receive_fails_with_the_endpoint_that_is_closed() {
    let bed = mock_bed(MockOptions::default());
    let sharers = Sharers::open(&bed, 2, &Options::default());
    let peer = bed.stranger(&Options::default());
    peer.vector.insert(&sharers.addresses());
    let from = sharers.vector.insert_one(peer.endpoint.address()).unwrap();
    for to in [0, 1] {
        sharers.shared.receive(vec![0; 8], from, to).unwrap();
        peer.endpoint.inject(&[1; 8], to).unwrap();
        let (at, done) = sharers.next(|| peer.poll());
        assert_eq!((at as u64, done.context()), (to, to));
    }
    sharers.shared.receive(vec![0; 8], from, 2).unwrap();
    bed.provider.kill(peer.endpoint.address());
    assert!((0..10).all(|_| sharers.members[0].taken().is_none()), "the other one may have it");
    sharers.members[1].endpoint.close();
    let (_, done) = sharers.next(|| ());
    assert_eq!(done.bad(Errno::CONNRESET).context, 2);
}

/// A receive that is directed at an endpoint of several contexts waits for any of them.
#[test]
fn a_directed_receive_waits_for_any_context_of_its_endpoint() {
    let bed = mock_bed(MockOptions::default());
    for (goes, stays) in [(1, 0), (0, 1)] {
        let host = bed.world(1);
        let (portal, server) = (Portal::open(&bed, counts(2, 1)), &host.nodes[0]);
        portal.knows(&[server.endpoint.address()]);
        let first = portal.endpoint.address();
        let from = server.vector.insert_one(first).unwrap();
        for (tag, context) in (0..).zip(&portal.transmit) {
            server.receive(8, Some(tag), tag);
            context.endpoint.send_tagged(vec![1; 8], 0, tag, 1).unwrap();
            host.drive("a context is heard", || {
                portal.poll();
                host.waiting(0).1 > 0
            });
            assert_eq!(host.received_already(0).good().source, from);
        }
        let into = Memory::zeroed(8);
        let post = Receive { pieces: into.all(), from, context: 9, ..Receive::default() };
        server.post_receive(&post).unwrap();
        let kill = |context: u16| bed.provider.kill(first.with_port(first.port() + context));
        kill(goes);
        host.poll(10);
        assert_eq!(host.waiting(0).1, 0, "the other one may have it");
        kill(stays);
        assert_eq!(host.received(0).bad(Errno::CONNRESET).context, 9);
    }
}
