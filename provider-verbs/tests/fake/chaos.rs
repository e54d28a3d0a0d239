//! Endpoints on threads of their own, all to all, while queue pairs break at random: connections
//! come and go, order holds within each, and in the end everybody reaches everybody.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{FakeTransport, PATIENCE, hold, managed_provider, open, provider};
use kestrel_core::{
    address::Address,
    transport::{PeerIndex, Transport, TransportEvent},
};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    verbs::Status,
};

const ENDPOINTS: usize = 4;
/// Messages that each endpoint gets to each other one when all is calm again.
const LAST_MESSAGES: u64 = 200;

#[derive(Clone, Copy, Default)]
struct Peer {
    connected: bool,
    connecting: bool,
    /// Messages in the present connection.
    sent: u64,
    received: u64,
}

/// An endpoint as core drives one, with the least that makes sense.
struct Node {
    transport: FakeTransport,
    addresses: Vec<Address>,
    own: usize,
    peers: [Peer; ENDPOINTS],
    connections: usize,
}

impl Node {
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..ENDPOINTS).filter(move |peer| *peer != own)
    }

    fn take(&mut self) {
        while let Some(arrival) = self.transport.arrival() {
            let peer = &mut self.peers[arrival.peer as usize];
            assert_eq!(arrival.word, peer.received, "a message is lost or out of order");
            assert_eq!(arrival.length as u64, arrival.word * 31 % 3000);
            peer.received += 1;
            self.transport.consume();
        }
    }

    /// What a peer had sent before its connection ended is still there.
    fn drain(&mut self, peer: PeerIndex) {
        while let Some(arrival) = self.transport.arrival_from(peer) {
            let peer = &mut self.peers[peer as usize];
            assert_eq!(arrival.word, peer.received, "a message is lost or out of order");
            peer.received += 1;
            self.transport.consume();
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.transport.event() {
            match event {
                TransportEvent::Connected { peer, .. } => {
                    let peer = &mut self.peers[peer as usize];
                    (peer.connected, peer.connecting, peer.sent) = (true, false, 0);
                    self.connections += 1;
                }
                TransportEvent::Failed { peer, .. } => {
                    self.peers[peer as usize].connecting = false;
                }
                TransportEvent::Incoming { ticket, address, .. } => {
                    let from = self.addresses.iter().position(|known| *known == address);
                    let from = from.expect("an address of ours") as PeerIndex;
                    self.drain(from);
                    self.peers[from as usize].received = 0;
                    self.transport.adopt(from, ticket);
                }
                TransportEvent::Overheard { .. } => unreachable!("nobody joins a group"),
                TransportEvent::Down { .. } => unreachable!("no device fails"),
                TransportEvent::Died { peer }
                | TransportEvent::Lost { peer, .. }
                | TransportEvent::Closed { peer }
                | TransportEvent::Broken { peer, .. } => {
                    self.drain(peer);
                    self.transport.disconnect(peer);
                    let peer = &mut self.peers[peer as usize];
                    peer.connected = false;
                }
            }
        }
    }

    /// One round of everything.
    fn go_on(&mut self, most: u64) {
        self.handle_events();
        self.take();
        for index in self.others() {
            let peer = &mut self.peers[index];
            if peer.connected {
                let (number, length) = (peer.sent, peer.sent * 31 % 3000);
                let fits = number < most
                    && hold(&mut self.transport, index as PeerIndex, number, length as usize);
                peer.sent += u64::from(fits);
            } else if !std::mem::replace(&mut peer.connecting, true) {
                self.transport.connect(index as PeerIndex, self.addresses[index]);
            }
        }
        self.transport.flush();
    }

    fn is_done(&self) -> bool {
        let done = |peer: usize| {
            let peer = &self.peers[peer];
            peer.connected && peer.sent >= LAST_MESSAGES && peer.received >= LAST_MESSAGES
        };
        self.others().all(done)
    }
}

fn run(mut node: Node, calm: &AtomicBool, done: &AtomicUsize, together: &Barrier) -> usize {
    while !calm.load(Ordering::Relaxed) {
        node.go_on(u64::MAX);
    }
    let start = Instant::now();
    while !node.is_done() {
        node.go_on(u64::MAX);
        assert!(start.elapsed() < PATIENCE, "in vain: everybody reaches everybody");
    }
    done.fetch_add(1, Ordering::Relaxed);
    // The others may still need our answers.
    while done.load(Ordering::Relaxed) < ENDPOINTS {
        node.go_on(u64::MAX);
        assert!(start.elapsed() < 2 * PATIENCE, "in vain: the others");
    }
    together.wait();
    node.connections
}

fn chaos(fabric: FakeFabric, provider: RcProvider<FakeDevice>, seed: u64) {
    let transports: Vec<_> = (0..ENDPOINTS).map(|_| open(&provider)).collect();
    let addresses: Vec<_> = transports.iter().map(Transport::address).collect();
    let (calm, together) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(ENDPOINTS)));
    let done = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = transports
        .into_iter()
        .enumerate()
        .map(|(own, transport)| {
            let addresses = addresses.clone();
            let (calm, done, together) = (calm.clone(), done.clone(), together.clone());
            let peers = [Peer::default(); ENDPOINTS];
            let node = Node { transport, addresses, own, peers, connections: 0 };
            std::thread::spawn(move || run(node, &calm, &done, &together))
        })
        .collect();
    let mut random = seed;
    for _ in 0..60 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(5 + random % 40));
        match random >> 32 & 3 {
            0 => fabric.break_queue_pairs(),
            1 => fabric.fail_sends(1 + (random >> 40 & 3) as usize, Status::RETRIES_EXCEEDED),
            2 => fabric.fail_sends(1, Status::REMOTE_ACCESS),
            _ => {
                fabric.hold(true);
                std::thread::sleep(Duration::from_millis(2));
                fabric.hold(false);
            }
        }
    }
    fabric.fail_sends(0, Status::SUCCESS);
    calm.store(true, Ordering::Relaxed);
    let connections: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(connections > ENDPOINTS * (ENDPOINTS - 1), "{connections}: nothing ever broke");
    drop(provider);
    let tally = fabric.tally();
    assert_eq!((tally.not_ready, tally.queue_pairs, tally.registered), (0, 0, 0));
}

#[test]
fn everybody_reaches_everybody_after_chaos() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    chaos(fabric, provider, 0x1234_5678_9abc_def1);
}

#[test]
fn everybody_reaches_everybody_after_chaos_through_the_connection_manager() {
    let fabric = FakeFabric::default();
    let provider = managed_provider(&fabric, FakeOptions::default());
    chaos(fabric.clone(), provider, 0x0123_4567_89ab_cdef);
    let tally = fabric.tally();
    assert!(tally.managed > 0 && tally.ids == 0, "{tally:?}");
}

#[test]
fn everybody_reaches_everybody_after_chaos_where_receives_are_not_shared() {
    let fabric = FakeFabric::default();
    let options =
        FakeOptions { shares_receives: false, shuffle: Some(3), ..FakeOptions::default() };
    let provider = provider(&fabric, options);
    chaos(fabric, provider, 0x0fed_cba9_8765_4321);
}

#[test]
fn everybody_reaches_everybody_after_chaos_where_nothing_goes_inline() {
    let options = FakeOptions {
        inline_bytes_max: 0,
        poll_burst: 2,
        shuffle: Some(5),
        overtakes: true,
        ..FakeOptions::default()
    };
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, options);
    chaos(fabric, provider, 0xfedc_ba98_7654_3211);
}
