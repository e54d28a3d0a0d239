//! Endpoints on the fake, driven by hand.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod intruder;
pub mod raw;
pub mod raw_managed;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    config::ConnectBy,
    memory::Piece,
    transport::{PeerIndex, Provider, Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_verbs::{
    Carrier, RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

/// The end of every wait: far beyond what any machine needs.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub type FakeTransport = Carrier<FakeDevice>;

/// A provider on `fabric`.
pub fn provider(fabric: &FakeFabric, options: FakeOptions) -> RcProvider<FakeDevice> {
    provider_with(fabric, options, VerbsOptions::default())
}

pub fn provider_with(
    fabric: &FakeFabric,
    fake: FakeOptions,
    options: VerbsOptions,
) -> RcProvider<FakeDevice> {
    RcProvider::on_device(Arc::new(fabric.device(fake)), [127, 0, 0, 1].into(), options).unwrap()
}

/// One that connects through the fake's connection manager.
pub fn managed_provider(fabric: &FakeFabric, fake: FakeOptions) -> RcProvider<FakeDevice> {
    let connect_by = ConnectBy::RdmaCm;
    provider_with(fabric, fake, VerbsOptions { connect_by, ..VerbsOptions::default() })
}

/// An endpoint at a free port.
pub fn open(provider: &RcProvider<FakeDevice>) -> FakeTransport {
    provider.open(None, &[]).unwrap()
}

/// Waits until the control thread knows an endpoint: before, the connection manager finds nobody there.
pub fn wait_for_listener(transport: &FakeTransport) {
    raw::Raw::connect(transport.address()).greeting();
}

/// The next event of `transport`.
#[track_caller]
pub fn event(transport: &mut FakeTransport) -> TransportEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = transport.event() {
            return event;
        }
        // What is not urgent happens on the way to packets.
        let _ = transport.arrival();
        assert!(start.elapsed() < PATIENCE, "in vain: an event");
        std::thread::yield_now();
    }
}

/// Connects `from` to `to`, each calling the other `peer`.
#[track_caller]
pub fn connect(from: &mut FakeTransport, to: &mut FakeTransport, peer: PeerIndex) {
    from.connect(peer, to.address());
    match event(from) {
        TransportEvent::Connected { peer: connected, .. } => assert_eq!(connected, peer),
        other => panic!("{other:?}"),
    }
    adopt(to, peer);
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes up the offer that comes next.
#[track_caller]
pub fn adopt(transport: &mut FakeTransport, peer: PeerIndex) {
    match event(transport) {
        TransportEvent::Incoming { ticket, .. } => transport.adopt(peer, ticket),
        other => panic!("{other:?}"),
    }
}

/// Sends a numbered message of so many bytes, if there is room.
pub fn push(transport: &mut FakeTransport, peer: PeerIndex, number: u64, length: usize) -> bool {
    let pushed = hold(transport, peer, number, length);
    transport.flush();
    pushed
}

/// As [`push`], but it leaves with what is pushed next.
pub fn hold(transport: &mut FakeTransport, peer: PeerIndex, number: u64, length: usize) -> bool {
    let mut bytes = vec![number as u8; length];
    let head = Head::new(Kind::Eager, 0);
    // SAFETY: a packet is copied before `push` returns, and the bytes live until then.
    transport.push(peer, head, number, &[], unsafe { Piece::of(&mut bytes) })
}

/// Takes the next message: its sender, number and length.
pub fn take(transport: &mut FakeTransport) -> Option<(PeerIndex, u64, usize)> {
    let arrival = transport.arrival()?;
    let mut bytes = vec![0; arrival.length];
    // SAFETY: the bytes outlive the copy.
    transport.copy_out(0, unsafe { Piece::of(&mut bytes) });
    assert!(bytes.iter().all(|byte| *byte == arrival.word as u8), "content");
    transport.consume();
    Some((arrival.peer, arrival.word, arrival.length))
}

/// Asks for the bell: whether there is nothing to stay awake for.
pub fn may_sleep(transport: &mut FakeTransport) -> bool {
    transport.arm();
    FakeTransport::fence_armed();
    transport.is_quiet()
}

/// Takes the next message, which has to come.
#[track_caller]
pub fn take_soon(transport: &mut FakeTransport) -> (PeerIndex, u64, usize) {
    let start = Instant::now();
    loop {
        if let Some(taken) = take(transport) {
            return taken;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: a message");
        std::thread::yield_now();
    }
}

/// Sends `count` messages of different lengths, and sees them all arrive in order.
#[track_caller]
pub fn stream(from: &mut FakeTransport, to: &mut FakeTransport, peer: PeerIndex, count: u64) {
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < count {
        while sent < count && push(from, peer, sent, (sent as usize * 97) % 8000) {
            sent += 1;
        }
        // Completions of sends, and credit.
        let _ = from.arrival();
        while let Some((_, number, length)) = take(to) {
            assert_eq!((number, length), (received, (received as usize * 97) % 8000));
            received += 1;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {received} of {count} messages");
    }
}

/// The key of a scene's endpoints.
pub const KEY: &[u8] = b"job 17";

/// Two endpoints with a key, to one of which things are done.
pub struct Scene {
    pub fabric: FakeFabric,
    pub victim: FakeTransport,
    pub friend: FakeTransport,
    pub _provider: RcProvider<FakeDevice>,
}

impl Scene {
    /// On a provider that is made like that.
    pub fn on(make: impl Fn(&FakeFabric, FakeOptions) -> RcProvider<FakeDevice>) -> Scene {
        let fabric = FakeFabric::default();
        let provider = make(&fabric, FakeOptions::default());
        let (mut victim, mut friend) =
            (provider.open(None, KEY).unwrap(), provider.open(None, KEY).unwrap());
        connect(&mut friend, &mut victim, 0);
        Scene { fabric, victim, friend, _provider: provider }
    }

    /// Nobody else has noticed anything.
    #[track_caller]
    pub fn ends_well(mut self) {
        self.goes_on();
        assert_eq!(self.fabric.tally().not_ready, 0);
    }

    /// What others send arrives, though it may have had to wait.
    #[track_caller]
    pub fn goes_on(&mut self) {
        assert!(self.victim.event().is_none());
        stream(&mut self.friend, &mut self.victim, 0, 100);
        connect(&mut self.victim, &mut self.friend, 0);
        stream(&mut self.victim, &mut self.friend, 0, 100);
    }
}
