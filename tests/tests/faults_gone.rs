//! Peers that come and go: what is kept of them stays bounded, and whoever gets the place of one that
//! is gone is not taken for it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address::Address,
    address_vector::FI_ADDR_UNSPEC,
    domain::{DomainOptions, Sharing},
    endpoint::EndpointOptions,
    error::Errno,
    mock::{MockOptions, MockProvider},
    transport::{Opening, Provider, Transport, TransportEvent},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, Options, Receive, World, pattern, same},
    contexts::{Portal, counts},
    fake::fake_provider,
    figures::Counting,
    reserved::beside,
    scale::{PATIENCE, scaled},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

#[global_allocator]
static MEMORY: Counting = Counting::new();

/// Memory is counted: one test at a time, also of those that count none.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Peers before memory is counted, so that all tables have the size that they keep.
const WARM_UP: usize = 300;

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

/// On a device of that fabric.
fn queue_pairs(fabric: &FakeFabric) -> RcProvider<FakeDevice> {
    fake_provider(fabric, FakeOptions::default(), VerbsOptions::default())
}

/// Memory that is held, less what the slabs of receive buffers on that fabric take: an endpoint keeps as
/// many as there ever were connections, and queue pairs that wait for their end, at once. Units: bytes.
fn beside_slabs(fabric: &FakeFabric) -> impl Fn() -> i64 {
    || MEMORY.bytes() - fabric.tally().slabs as i64
}

/// What becomes of a visitor's address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// It is never inserted.
    Unknown,
    /// It stays in the address vector.
    Kept,
    /// It is removed when the visitor has gone.
    Removed,
}

/// Somebody comes, sends, is answered if the host knows it, and goes.
fn visit<P: Provider>(bed: &Bed<P>, host: &World<P>, options: &Options, known: Known) {
    let visitor = bed.world_with(1, options);
    let (guest, server) = (&visitor.nodes[0], &host.nodes[0]);
    guest.vector.insert_one(server.endpoint.address()).unwrap();
    let place = (known != Known::Unknown)
        .then(|| server.vector.insert_one(guest.endpoint.address()).unwrap());
    server.receive(100, Some(1), 1);
    guest.receive(100, Some(2), 2);
    guest.send(pattern(1, 100), 1, Some(1), 3);
    let both = |what: &str, done: &dyn Fn() -> bool| {
        host.drive(what, || {
            visitor.poll(1);
            done()
        });
    };
    both("a visitor is heard", &|| host.waiting(0).1 > 0);
    same(&host.received_already(0).good().returned.unwrap(), &pattern(1, 100), "a visitor's");
    if let Some(place) = place {
        server.send(pattern(2, 100), place, Some(2), 4);
        both("a visitor is answered", &|| host.waiting(0).0 > 0 && visitor.waiting(0).1 > 0);
        host.sent(0).good();
        same(&visitor.received_already(0).good().returned.unwrap(), &pattern(2, 100), "the host's");
    }
    drop(visitor);
    host.poll(4);
    if let Some(place) = place.filter(|_| known == Known::Removed) {
        server.vector.remove(&[place]).unwrap();
    }
}

/// An endpoint of several contexts comes, each of them sends, and it goes: what comes from a further one has
/// the first one, a peer of its own, for its source.
fn visit_by_contexts<P: Provider>(bed: &Bed<P>, host: &World<P>) {
    let (visitor, server) = (Portal::open(bed, counts(3, 1)), &host.nodes[0]);
    visitor.knows(&[server.endpoint.address()]);
    let place = server.vector.insert_one(visitor.endpoint.address()).unwrap();
    for (tag, context) in (0..).zip(&visitor.transmit) {
        server.receive(100, Some(tag), tag);
        context.endpoint.send_tagged(pattern(tag, 100), 0, tag, 1).unwrap();
        host.drive("a visitor's context is heard", || {
            visitor.poll();
            host.waiting(0).1 > 0
        });
        let received = host.received_already(0).good();
        assert_eq!(received.source, place, "whoever had that place before");
        same(&received.returned.unwrap(), &pattern(tag, 100), "a visitor's");
    }
    drop(visitor);
    host.poll(4);
    server.vector.remove(&[place]).unwrap();
}

/// What so many visitors leave behind of what `memory` counts, as soon as that is `most`. Units: bytes.
fn left_by<P: Provider>(
    bed: &Bed<P>,
    options: &Options,
    visit: impl Fn(&World<P>),
    count: usize,
    most: i64,
    memory: impl Fn() -> i64,
) -> i64 {
    let host = bed.world_with(1, options);
    // Connections end, and queue pairs go, a little later: on a busy machine later than that.
    let held = |visitors: usize, most: i64| {
        (0..visitors).for_each(|_| visit(&host));
        let start = Instant::now();
        loop {
            host.poll(10);
            let (bytes, elapsed) = (memory(), start.elapsed());
            if elapsed > PATIENCE || elapsed > Duration::from_millis(100) && bytes <= most {
                return bytes;
            }
        }
    };
    let before = held(WARM_UP, i64::MAX);
    held(count, before + most) - before
}

/// Of a peer that is gone nothing stays; of one that is in the address vector what one takes there that was
/// never spoken to. Tables that depend on how many there are at once may grow by `slack` bytes.
fn nothing_stays<P: Provider>(bed: &Bed<P>, count: usize, slack: i64, memory: impl Fn() -> i64) {
    let options = Options::default();
    for (known, most) in [(Known::Unknown, 0), (Known::Removed, 0), (Known::Kept, 64)] {
        let visit = |host: &World<P>| visit(bed, host, &options, known);
        let most = most * count as i64 + slack;
        let left = left_by(bed, &options, visit, count, most, &memory);
        println!("{known:?}: {left} bytes by {count} visitors");
        assert!(left <= most, "{known:?}: {count} visitors leave {left} bytes");
    }
}

#[test]
fn of_visitors_over_the_mock_nothing_stays() {
    let _alone = alone();
    let bed = mock_bed();
    nothing_stays(&bed, scaled(500, 1_000, 20_000), 32 << 10, || MEMORY.bytes());
}

#[test]
fn of_visitors_over_shared_memory_nothing_stays() {
    let _alone = alone();
    let provider = Arc::new(shm());
    let bed = Bed { provider, sharing: Sharing::Exclusive };
    nothing_stays(&bed, scaled(500, 1_000, 20_000), 32 << 10, || MEMORY.bytes());
}

#[test]
fn of_visitors_over_queue_pairs_nothing_stays() {
    let _alone = alone();
    let fabric = FakeFabric::default();
    let bed = Bed { provider: Arc::new(queue_pairs(&fabric)), sharing: Sharing::Exclusive };
    nothing_stays(&bed, scaled(500, 1_000, 20_000), 128 << 10, beside_slabs(&fabric));
}

#[test]
fn of_visitors_over_shared_memory_beside_a_device_nothing_stays() {
    let _alone = alone();
    let fabric = FakeFabric::default();
    let provider = Arc::new(CompositeProvider::both(shm(), queue_pairs(&fabric)));
    let bed = Bed { provider, sharing: Sharing::Exclusive };
    nothing_stays(&bed, scaled(500, 1_000, 20_000), 256 << 10, beside_slabs(&fabric));
}

#[test]
fn of_visitors_with_several_contexts_nothing_stays() {
    let _alone = alone();
    let bed = Bed { provider: Arc::new(shm()), sharing: Sharing::Exclusive };
    let count = scaled(300, 500, 5_000);
    let (options, visit) = (Options::default(), |host: &World<_>| visit_by_contexts(&bed, host));
    let most = 32 << 10;
    let left = left_by(&bed, &options, visit, count, most, || MEMORY.bytes());
    println!("{left} bytes by {count} visitors of three contexts");
    assert!(left <= most, "{count} visitors leave {left} bytes");
}

fn mock_bed() -> Bed<MockProvider> {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    Bed { provider, sharing: Sharing::Exclusive }
}

/// As many visitors as it takes until each place was given to somebody else.
fn visits(bed: &Bed<MockProvider>, host: &World<MockProvider>) {
    (0..WARM_UP).for_each(|_| visit(bed, host, &Options::default(), Known::Unknown));
}

/// Somebody who comes to the host, which knows it by the number that comes with it.
fn guest(
    bed: &Bed<MockProvider>,
    host: &World<MockProvider>,
    address: Option<Address>,
) -> (World<MockProvider>, u64) {
    let endpoint = EndpointOptions { address, ..EndpointOptions::default() };
    let guest = bed.world_with(1, &Options { endpoint, ..Options::default() });
    let node = &guest.nodes[0];
    assert_eq!(node.vector.insert_one(host.nodes[0].endpoint.address()).unwrap(), 1);
    let known = host.nodes[0].vector.insert_one(node.endpoint.address()).unwrap();
    (guest, known)
}

/// Sends from the guest, and drives both until it has left.
fn say(host: &World<MockProvider>, guest: &World<MockProvider>, seed: u64, tag: u64) {
    guest.nodes[0].send(pattern(seed, 300), 1, Some(tag), seed);
    host.drive("a guest's message leaves", || {
        guest.poll(1);
        guest.waiting(0).0 > 0
    });
    guest.sent(0).good();
    host.poll(4);
}

/// Posts a receive of what has that tag, from one sender.
fn expect_from(host: &World<MockProvider>, into: &Memory, from: u64, tag: u64) {
    let receive = Receive {
        pieces: into.all(),
        from,
        tag: Some((tag, 0)),
        context: tag,
        ..Receive::default()
    };
    host.nodes[0].post_receive(&receive).unwrap();
}

/// What the dead had said is theirs for ever: it is not for a receive from whoever came after them.
#[test]
fn what_the_dead_left_is_of_nobody_else() {
    let _alone = alone();
    let bed = mock_bed();
    let into = Memory::zeroed(300);
    let host = bed.world(1);
    let (dead, by_dead) = guest(&bed, &host, None);
    say(&host, &dead, 7, 77);
    bed.provider.kill(dead.nodes[0].endpoint.address());
    visits(&bed, &host);
    for nth in 0..200 {
        let (living, by_living) = guest(&bed, &host, None);
        expect_from(&host, &into, by_living, 77);
        say(&host, &living, nth, 77);
        let received = host.received(0).good();
        assert_eq!(received.source, by_living);
        same(&into.bytes(), &pattern(nth, 300), "of the living");
        bed.provider.kill(living.nodes[0].endpoint.address());
        host.poll(4);
    }
    expect_from(&host, &into, by_dead, 77);
    assert_eq!(host.received(0).good().source, by_dead);
    same(&into.bytes(), &pattern(7, 300), "of the dead");
    host.nothing_more();
}

/// Those with tags first, and among them the earliest.
#[test]
fn what_is_from_the_dead_alone_fails_in_its_order() {
    const COUNT: u64 = 60;
    let _alone = alone();
    let bed = mock_bed();
    let world = bed.world(3);
    world.warm_up();
    let into = Memory::zeroed(100);
    let is_tagged = |context: u64| context % 4 < 2;
    for context in 0..COUNT {
        let from = [1, 2, FI_ADDR_UNSPEC][context as usize % 3];
        // Several masks, so that they lie in several tables.
        let tag = is_tagged(context).then_some((context * 7 % 5, context % 4));
        let post = Receive { pieces: into.all(), from, tag, context, ..Receive::default() };
        world.nodes[0].post_receive(&post).unwrap();
    }
    bed.provider.kill(world.nodes[1].endpoint.address());
    let (tagged, untagged): (Vec<u64>, Vec<u64>) =
        (0..COUNT).filter(|context| context % 3 == 0).partition(|&context| is_tagged(context));
    for context in tagged.into_iter().chain(untagged) {
        assert_eq!(world.received(0).bad(Errno::CONNRESET).context, context);
    }
    world.nothing_more();
}

/// A receive that was directed at somebody who is gone waits for him, and a message to him finds him when
/// he has come back, whoever had his place meanwhile.
#[test]
fn who_comes_back_is_who_he_was() {
    let _alone = alone();
    let bed = mock_bed();
    let into = Memory::zeroed(300);
    let host = bed.world(1);
    let (dead, by_dead) = guest(&bed, &host, None);
    let address = dead.nodes[0].endpoint.address();
    say(&host, &dead, 1, 5);
    host.nodes[0].receive(300, Some(5), 5);
    host.received(0).good();
    bed.provider.kill(address);
    host.poll(4);
    // Posted now, it waits for a new peer.
    expect_from(&host, &into, by_dead, 6);
    visits(&bed, &host);
    for nth in 0..200 {
        let (living, _) = guest(&bed, &host, None);
        say(&host, &living, nth, 6);
        bed.provider.kill(living.nodes[0].endpoint.address());
        host.poll(4);
    }
    assert_eq!(host.waiting(0).1, 0, "it was not for them");
    let (again, by_again) = guest(&bed, &host, Some(address));
    say(&host, &again, 999, 6);
    let received = host.received(0).good();
    assert!([by_dead, by_again].contains(&received.source), "{received:?}");
    same(&into.bytes(), &pattern(999, 300), "of who came back");
    again.nodes[0].receive(300, Some(8), 8);
    host.nodes[0].send(pattern(3, 300), by_dead, Some(8), 9);
    host.drive("an answer", || {
        again.poll(1);
        again.waiting(0).1 > 0
    });
    same(&again.received_already(0).good().returned.unwrap(), &pattern(3, 300), "to him");
    host.sent(0).good();
}

/// Waits for what is to happen to a transport that is looked at again and again.
fn await_that(what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

fn next_event<T: Transport>(transport: &mut T) -> TransportEvent {
    let mut event = None;
    await_that("an event", || {
        transport.has_event() && {
            event = transport.event();
            event.is_some()
        }
    });
    event.unwrap()
}

/// A transport keeps the place of a peer that it may still name, told or not.
fn a_place_is_kept_until_all_is_told<P: Provider>(provider: &P) {
    let [mut one, mut other] = [0, 1].map(|_| provider.open_as(Opening::default()).unwrap());
    let nowhere = beside(one.address(), 1);
    assert!(one.forget_peer(5), "nobody has heard of it");
    one.connect(5, nowhere);
    assert!(!one.forget_peer(5), "it is looked for");
    await_that("nobody is there", || one.has_event());
    assert!(!one.forget_peer(5), "that it was not found is not told");
    assert!(matches!(next_event(&mut one), TransportEvent::Failed { peer: 5, .. }));
    assert!(one.forget_peer(5));

    one.connect(5, other.address());
    let TransportEvent::Incoming { ticket, .. } = next_event(&mut other) else {
        panic!("nobody comes");
    };
    other.adopt(3, ticket);
    await_that("somebody is there", || one.has_event());
    assert!(!one.forget_peer(5), "that it was found is not told");
    assert!(matches!(next_event(&mut one), TransportEvent::Connected { peer: 5, .. }));
    assert!(!one.forget_peer(5) && !other.forget_peer(3), "they are connected");

    // That the sender has gone is on its way, or there, when the receiver lets go of it.
    one.disconnect(5);
    await_that("a sender forgets", || one.forget_peer(5));
    std::thread::sleep(Duration::from_millis(20));
    other.disconnect(3);
    await_that("a receiver forgets", || other.forget_peer(3));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        for transport in [&mut one, &mut other] {
            assert!(transport.arrival().is_none());
            let event = transport.has_event().then(|| transport.event()).flatten();
            assert!(event.is_none(), "{event:?} of somebody who is forgotten");
        }
    }
}

#[test]
fn every_transport_keeps_a_place_until_all_is_told() {
    let _alone = alone();
    a_place_is_kept_until_all_is_told(&MockProvider::new(MockOptions::default()));
    a_place_is_kept_until_all_is_told(&shm());
    let fabric = FakeFabric::default();
    a_place_is_kept_until_all_is_told(&queue_pairs(&fabric));
    a_place_is_kept_until_all_is_told(&CompositeProvider::both(shm(), queue_pairs(&fabric)));
    a_place_is_kept_until_all_is_told(&CompositeProvider::far_only(shm(), queue_pairs(&fabric)));
}

/// What nobody receives of a peer that comes back again and again is no more than all peers may leave. It is
/// heard all the same.
#[test]
fn what_is_left_behind_is_bounded() {
    const LENGTH: usize = 8 << 10;
    const BUDGET: usize = 1 << 20;
    let _alone = alone();
    let bed = mock_bed();
    let domain = DomainOptions { unexpected_budget: BUDGET as u64, ..DomainOptions::default() };
    let host = bed.world_with(1, &Options { domain, ..Options::default() });
    let address = Some(Address::new([127, 0, 0, 1].into(), 9));
    let endpoint = EndpointOptions { address, ..EndpointOptions::default() };
    let options = Options { endpoint, ..Options::default() };
    let server = &host.nodes[0];
    for visit in 0..4 {
        let visitor = bed.world_with(1, &options);
        let guest = &visitor.nodes[0];
        guest.vector.insert_one(server.endpoint.address()).unwrap();
        server.receive(LENGTH, Some(visit), visit);
        guest.send(pattern(visit, LENGTH), 1, Some(visit), visit);
        let polls = || {
            visitor.poll(1);
            host.waiting(0).1 > 0
        };
        host.drive("a message that is asked for", polls);
        assert_eq!(host.received_already(0).good().context, visit);
        for _ in 0..2 * BUDGET / LENGTH {
            guest.send(vec![0; LENGTH], 1, None, 9);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            visitor.poll(1);
            host.poll(1);
        }
    }
    let mut left = 0;
    loop {
        server.receive(LENGTH, None, 9);
        host.poll(50);
        if host.waiting(0).1 == 0 {
            break;
        }
        assert_eq!(host.received_already(0).good().context, 9);
        left += LENGTH;
    }
    // What each of them may send at first comes on top.
    assert!((BUDGET / 2..=BUDGET + (64 << 10)).contains(&left), "{left} bytes");
}
