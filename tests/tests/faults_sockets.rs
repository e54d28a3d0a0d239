//! Socket endpoints between processes: an echo server and its client, and peers that are killed.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{domain::Sharing, socket_endpoint::SocketError};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, pattern, same},
    echo::{self, Datagrams, Server},
    link::Listener,
    process::{Peer, child_role, listen_to_parent, say},
    scale::scaled,
    socket::{ERROR, HANG_UP, IN, OUT, Stream, shows},
};

const ANYWHERE: &str = "127.0.0.1:0";

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role]) if role == "echoes" => {
            let _parent = listen_to_parent();
            let mut server = Server::open(ANYWHERE.parse().unwrap()).unwrap();
            say(&format!("ready {}", server.address()));
            server.run().unwrap();
        }
        Some([role]) if role == "echoes-datagrams" => {
            let _parent = listen_to_parent();
            let server = Datagrams::open(ANYWHERE.parse().unwrap()).unwrap();
            say(&format!("ready {}", server.address()));
            server.serve().unwrap();
        }
        Some([role]) if role == "says-all" => says_all(),
        Some([role]) if role == "says-nothing" => takes_nothing(),
        other => panic!("{other:?}"),
    }
}

fn anywhere() -> SocketAddr {
    ANYWHERE.parse().unwrap()
}

fn bed() -> Bed<ShmProvider> {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    Bed { provider: Arc::new(provider), sharing: Sharing::Shared }
}

/// Accepts one stream.
fn accept_one(bed: &Bed<ShmProvider>) -> (Stream<ShmProvider>, Listener<ShmProvider>) {
    let listener = Listener::listening(bed);
    say(&format!("ready {}", listener.passive.address().socket_addr()));
    let acceptor = Stream::acceptor(bed, listener.take(&[]));
    acceptor.socket.accept(&[]).unwrap();
    acceptor.connected(&[&listener]);
    (acceptor, listener)
}

/// Sends without an end, until it is killed.
fn says_all() {
    let _parent = listen_to_parent();
    let (stream, _listener) = accept_one(&bed());
    let bytes = pattern(1, 100_000);
    loop {
        stream.send(&bytes);
    }
}

/// Takes nothing, until it is killed.
fn takes_nothing() {
    let _parent = listen_to_parent();
    let (_stream, _listener) = accept_one(&bed());
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// "A small echo server and client prove them": between two processes, over shared memory.
#[test]
fn streams_are_echoed() {
    let mut server = Peer::start("echoes");
    let address: SocketAddr = server.hear_after("ready").parse().unwrap();
    for length in [0, 1, 70_000, scaled(1_000_000, 8_000_000, 100_000_000)] {
        echo::ask(anywhere(), address, length).unwrap();
    }
    // Several at once, of which none waits for another.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| echo::ask(anywhere(), address, 500_000).unwrap());
        }
    });
}

#[test]
fn datagrams_are_echoed() {
    let mut server = Peer::start("echoes-datagrams");
    let address: SocketAddr = server.hear_after("ready").parse().unwrap();
    let asker = Datagrams::open(anywhere()).unwrap();
    let count = scaled(100, 500, 5000);
    let answers = asker.ask(address, count).unwrap();
    // On one host nothing is lost when one is asked at a time, but for the first few.
    assert!(answers + 3 >= count, "{answers} of {count}");
}

fn calling(peer: &mut Peer, bed: &Bed<ShmProvider>) -> Stream<ShmProvider> {
    let address: SocketAddr = peer.hear_after("ready").parse().unwrap();
    let caller = Stream::calling(bed, address.into());
    caller.connected(&[]);
    caller
}

/// What had arrived of a killed peer is received, and then the loss is told, not an end.
#[test]
fn a_killed_sender_is_a_loss() {
    let mut peer = Peer::start("says-all");
    let bed = bed();
    let caller = calling(&mut peer, &bed);
    let fd = caller.socket.descriptor().unwrap();
    let expected = pattern(1, 100_000);
    same(&caller.receive(30_000), &expected[..30_000], "the start");
    peer.kill();
    let start = Instant::now();
    let (rest, end) = caller.receive_to_end();
    assert_eq!(end, Err(SocketError::Reset));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let whole = expected.iter().cycle().skip(30_000).take(rest.len()).copied();
    same(&rest, &whole.collect::<Vec<_>>(), "what had arrived");
    shows(fd, IN | OUT | HANG_UP | ERROR);
}

/// Who has more to send to it than it has room for is told as well, and does not hang.
#[test]
fn a_killed_receiver_is_a_loss() {
    let mut peer = Peer::start("says-nothing");
    let bed = bed();
    let caller = calling(&mut peer, &bed);
    let fd = caller.socket.descriptor().unwrap();
    caller.stuff(&pattern(2, 4 << 20));
    shows(fd, 0);
    peer.kill();
    shows(fd, IN | OUT | HANG_UP | ERROR);
    assert_eq!(caller.socket.send(b"late"), Err(SocketError::Reset));
    assert_eq!(caller.socket.receive(&mut [0; 8]), Err(SocketError::Reset));
    let lost = caller.socket.shutdown();
    assert!(matches!(lost, Err(SocketError::NotDelivered { .. })), "{lost:?}");
}
