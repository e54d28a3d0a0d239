//! Endpoints with two transports: what is particular to having both. The far one is RC queue
//! pairs over the fake of verbs, or a mock where a test needs faults at a moment of its choice.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::composite::{CompositeProvider, Side};
use kestrel_core::{
    address::Address,
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::Entry,
    config::CmaPolicy,
    domain::{DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName},
    error::{Cause, Errno, HasErrno},
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    mock::{MockOptions, MockProvider},
    transport::{Provider, Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, Options, World, pattern, same},
    fake::fake_provider,
    one_sided::{BOTH, Rma, expose, options, segment},
    process::woken,
    reserved::own_address,
    scale::PATIENCE,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

type Real = CompositeProvider<ShmProvider, RcProvider<FakeDevice>>;
type Mocks = CompositeProvider<MockProvider, MockProvider>;

const LENGTHS: [usize; 5] = [0, 8, 700, 9_000, 200_000];
const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Which transports an endpoint has.
#[derive(Clone, Copy)]
enum Has {
    Both,
    Near,
    Far,
}

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

fn verbs(fabric: &FakeFabric) -> RcProvider<FakeDevice> {
    fake_provider(fabric, FakeOptions::default(), VerbsOptions::default())
}

fn provider(fabric: &FakeFabric, has: Has) -> Real {
    let none = || Cause { errno: Errno::NODEV, reason: "no device in this test".into() };
    match has {
        Has::Both => Real::both(shm(), verbs(fabric)),
        Has::Near => Real::near_only(shm(), none()),
        Has::Far => Real::far_only(shm(), verbs(fabric)),
    }
}

/// Endpoints of these kinds that know each other by their places.
fn world(kinds: &[Has]) -> World<Real> {
    let fabric = FakeFabric::default();
    let node = |&has: &Has| {
        let provider = Arc::new(provider(&fabric, has));
        Bed { provider, sharing: Sharing::Shared }.stranger(&Options::default())
    };
    let world = World { nodes: kinds.iter().map(node).collect() };
    world.introduce();
    world
}

/// Messages that each way took.
fn messages(world: &World<Real>, node: usize) -> (u64, u64) {
    let traffic = world.nodes[node].endpoint.inspect(|transport| transport.traffic()).unwrap();
    (traffic.near.messages, traffic.far.messages)
}

/// 0 receives, 1 sends near, and 2 far.
const BOTH_WAYS: [Has; 3] = [Has::Both, Has::Both, Has::Far];

#[test]
fn an_address_of_another_host_is_refused() {
    let fabric = FakeFabric::default();
    for has in [Has::Both, Has::Near, Has::Far] {
        let provider = provider(&fabric, has);
        // Kept for documents: nobody has it.
        for port in [0, 4711] {
            let elsewhere = Address::new([192, 0, 2, 1].into(), port);
            let refused = provider.open(Some(elsewhere), &[]).err().unwrap();
            assert_eq!(refused.errno, Errno::ADDRNOTAVAIL, "{}", refused.reason);
        }
    }
    // What has no device is served near.
    let here = Address::new([127, 0, 12, 34].into(), 0);
    let opened = provider(&fabric, Has::Near).open(Some(here), &[]).unwrap();
    assert_eq!(opened.address().ip(), here.ip());
}

#[test]
fn one_matcher_serves_both_sides_in_the_order_of_each_sender() {
    let world = world(&BOTH_WAYS);
    let count = 60u64;
    for nth in 0..count {
        world.nodes[0].receive(LENGTHS[4], Some(7), nth);
    }
    for nth in 0..count / 2 {
        for from in [1, 2] {
            let bytes = pattern(nth * 2 + from, LENGTHS[nth as usize % 5]);
            world.nodes[from as usize].send(bytes, 0, Some(7), nth);
        }
    }
    // They complete in any order, and match in that of their posting.
    let mut received: Vec<_> = (0..count).map(|_| world.received(0).good()).collect();
    received.sort_by_key(|received| received.context);
    let mut next = [0; 3];
    for received in received {
        let from = received.source;
        let sent = next[from as usize];
        next[from as usize] += 1;
        let expected = pattern(sent * 2 + from, LENGTHS[sent as usize % 5]);
        let found = received.returned.unwrap();
        same(&found[..received.length as usize], &expected, "in the order of its sender");
    }
    assert_eq!(next, [0, count / 2, count / 2]);
    for from in [1, 2] {
        let mut sent: Vec<_> = (0..count / 2).map(|_| world.sent(from).context()).collect();
        sent.sort_unstable();
        assert!(sent.into_iter().eq(0..count / 2), "each send completes once");
    }
    world.nothing_more();
    assert_eq!(messages(&world, 1), (count / 2, 0));
    assert_eq!(messages(&world, 2), (0, count / 2));
    let bytes: usize = (0..count / 2).map(|nth| LENGTHS[nth as usize % 5]).sum();
    let traffic = |node: usize| world.nodes[node].endpoint.inspect(|t| t.traffic()).unwrap();
    assert_eq!(traffic(1).near.bytes, bytes as u64);
    assert_eq!(traffic(2).far.bytes, bytes as u64);
}

/// One-sided operations that the device does, and those that the kernel does, are told: as many as
/// were posted, with their bytes, whatever they came by.
#[test]
fn what_adapters_do_is_counted() {
    const LENGTH: usize = 64 << 10;
    let (target, source) = (Memory::zeroed(LENGTH), Memory::from(pattern(1, LENGTH)));
    let fabric = FakeFabric::default();
    for (has, is_far) in [(Has::Far, true), (Has::Both, false)] {
        let bed =
            |has| Bed { provider: Arc::new(provider(&fabric, has)), sharing: Sharing::Shared };
        let options = options(MemoryRegionMode::ALLOCATED);
        let nodes = vec![bed(Has::Both).stranger(&options), bed(has).stranger(&options)];
        let world = World { nodes };
        world.introduce();
        world.warm_up();
        let sent = || {
            let traffic = world.nodes[1].endpoint.inspect(|t| t.traffic()).unwrap();
            if is_far { traffic.far } else { traffic.near }
        };
        let region = expose(&world.nodes[0], &target, BOTH, 4);
        let (before, mut posted) = (sent(), 0);
        let segments = [segment(&region, 0, LENGTH)];
        let rma = Rma { pieces: source.all(), segments: &segments, ..Rma::default() };
        let start = Instant::now();
        // The first open the window.
        while sent().by_adapter < before.by_adapter + 4 {
            world.post(|| world.nodes[1].post_write(0, &rma));
            world.sent(1).good();
            world.post(|| world.nodes[1].post_read(0, &rma));
            world.sent(1).good();
            posted += 2;
            assert!(start.elapsed() < PATIENCE, "no adapter is at work: {:?}", sent());
        }
        let counted = sent();
        assert_eq!(counted.messages - before.messages, posted);
        // The answers to reads by packets are the target's.
        let bytes = (counted.bytes - before.bytes) as usize / LENGTH;
        assert!((posted as usize / 2..=posted as usize).contains(&bytes), "{bytes} of {posted}");
        world.nodes[0].domain.close_memory(&region).unwrap();
    }
}

/// What a device has finished is told beside a near operation of many polls, not behind it.
#[test]
fn a_long_operation_near_keeps_nothing_of_the_far_side_waiting() {
    const LONG: usize = 32 << 20;
    const LENGTH: usize = 64 << 10;
    let fabric = FakeFabric::default();
    let bed = |far: bool| {
        let options = ShmOptions { cma: CmaPolicy::On, ..ShmOptions::default() };
        let near = ShmProvider::new(options).unwrap();
        let make = if far { Real::far_only } else { Real::both };
        Bed { provider: Arc::new(make(near, verbs(&fabric))), sharing: Sharing::Shared }
    };
    let [near_target, far_target, local] = [LONG, LENGTH, LONG].map(Memory::zeroed);
    let options = options(MemoryRegionMode::ALLOCATED);
    let nodes = [false, false, true].map(|far| bed(far).stranger(&options)).into();
    let world: World<Real> = World { nodes };
    world.introduce();
    world.warm_up();
    let regions = [
        expose(&world.nodes[1], &near_target, BOTH, 4),
        expose(&world.nodes[2], &far_target, BOTH, 4),
    ];
    let read = |to: usize, length, context| {
        let segments = [segment(&regions[to - 1], 0, length)];
        let pieces = Pieces::One(local.piece().part(0, length));
        let rma = Rma { pieces, segments: &segments, context, ..Rma::default() };
        world.post(|| world.nodes[0].post_read(to as u64, &rma));
    };
    let by_adapter = |to: usize| {
        let traffic = world.nodes[0].endpoint.inspect(|t| t.traffic()).unwrap();
        [traffic.near, traffic.far][to - 1].by_adapter
    };
    for to in [1, 2] {
        // The first open the window.
        let (start, before) = (Instant::now(), by_adapter(to));
        while by_adapter(to) == before {
            read(to, LENGTH, 0);
            world.sent(0).good();
            assert!(start.elapsed() < PATIENCE, "no adapter is at work");
        }
    }
    read(1, LONG, 1);
    read(2, LENGTH, 2);
    assert_eq!([world.sent(0).context(), world.sent(0).context()], [2, 1]);
    for (node, region) in regions.iter().enumerate() {
        world.nodes[node + 1].domain.close_memory(region).unwrap();
    }
}

#[test]
fn a_directed_receive_takes_its_own_sender_whichever_comes_first() {
    let world = world(&BOTH_WAYS);
    for (length, first) in LENGTHS.into_iter().zip([1, 2, 1, 2, 1]) {
        for from in [first, 3 - first] {
            world.nodes[0].endpoint.receive_tagged(vec![0; length], from, 5, 0, from).unwrap();
        }
        for from in [3 - first, first] {
            world.nodes[from as usize].send(pattern(from, length), 0, Some(5), 1);
        }
        for _ in 0..2 {
            let received = world.received(0).good();
            assert_eq!(received.source, received.context);
            same(&received.returned.unwrap(), &pattern(received.context, length), "directed");
        }
        world.sent(1).good();
        world.sent(2).good();
    }
    world.nothing_more();
}

#[test]
fn what_is_forced_goes_no_other_way() {
    for (has, near) in [(Has::Both, true), (Has::Near, true), (Has::Far, false)] {
        let world = world(&[has, has]);
        world.warm_up();
        for node in [0, 1] {
            assert_eq!(messages(&world, node), if near { (1, 0) } else { (0, 1) });
        }
    }
}

/// FI_OPT_SHARED_MEMORY_PERMITTED: one of two that could share memory is not to.
#[test]
fn an_endpoint_may_share_no_memory() {
    let fabric = FakeFabric::default();
    let bed = |has| {
        let provider = Arc::new(provider(&fabric, has));
        Bed { provider, sharing: Sharing::Shared }
    };
    let settings = vec![(OptionName::SharedMemoryPermitted, 0)];
    let apart = Options { settings, ..Options::default() };
    let nodes = vec![bed(Has::Both).stranger(&apart), bed(Has::Both).stranger(&Options::default())];
    let world = World { nodes };
    world.introduce();
    world.warm_up();
    assert_eq!((messages(&world, 0), messages(&world, 1)), ((0, 1), (0, 1)));
    let late = world.nodes[1].endpoint.permit_shared_memory(false).unwrap_err();
    assert!(matches!(late, EndpointError::Enabled { .. }), "{late}");
    let open = |has| {
        let domain = bed(has).domain(DomainOptions::default());
        let address = Some(own_address());
        Endpoint::open(&domain, EndpointOptions { address, ..EndpointOptions::default() }).unwrap()
    };
    let changes = open(Has::Both);
    let address = changes.address();
    for permitted in [false, true, false] {
        changes.permit_shared_memory(permitted).unwrap();
        assert_eq!(changes.address(), address);
    }
    let alone = open(Has::Near);
    assert_eq!(alone.permit_shared_memory(false).unwrap_err().errno(), Errno::OPNOTSUPP);
    alone.permit_shared_memory(true).unwrap();
}

#[test]
fn nobody_anywhere_is_an_error_that_tells_of_both() {
    for (has, told) in [
        (Has::Both, ["no endpoint listens", "through RDMA"]),
        (Has::Near, ["no endpoint listens", "no device in this test"]),
        (Has::Far, ["shared memory is not to be used", "through RDMA"]),
    ] {
        let world = world(&[has]);
        let gone = Address::new(LOCALHOST, 1);
        let to = world.nodes[0].vector.insert_one(gone).unwrap();
        world.nodes[0].send(vec![1; 8], to, Some(1), 6);
        let error = world.sent(0);
        assert_eq!(error.errno, Some(Errno::HOSTUNREACH), "{error:?}");
        let text = error.reason.clone();
        assert!(told.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn one_address_is_taken_on_both_sides() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, Has::Both);
    let address = own_address();
    let open = provider.open(Some(address), &[]).unwrap();
    let in_use = |error: Option<Cause>| error.map(|error| error.errno);
    assert_eq!(in_use(shm().open(Some(address), &[]).err()), Some(Errno::ADDRINUSE));
    let others = verbs(&fabric).open(Some(address), &[]).err();
    assert_eq!(in_use(others), Some(Errno::ADDRINUSE));
    assert_eq!(in_use(provider.open(Some(address), &[]).err()), Some(Errno::ADDRINUSE));
    drop(open);
    // Taken on one side is taken, and leaves nothing behind on the other.
    let station = shm().open(Some(address), &[]).unwrap();
    assert_eq!(in_use(provider.open(Some(address), &[]).err()), Some(Errno::ADDRINUSE));
    let alone = verbs(&fabric).open(Some(address), &[]).unwrap();
    drop((station, alone));
    provider.open(Some(address), &[]).unwrap();
}

#[test]
fn a_port_that_is_ours_to_choose_is_free_on_both_sides() {
    let (near, far) = mocks();
    let first = Address::new(LOCALHOST, 1025);
    let taken = near.open(Some(first), &[]).unwrap();
    let open = Mocks::both(near, far).open(None, &[]).unwrap();
    assert_eq!(open.address(), first.with_port(1026));
    drop(taken);
}

fn mocks() -> (MockProvider, MockProvider) {
    (MockProvider::new(MockOptions::default()), MockProvider::new(MockOptions::default()))
}

/// Node 1 reaches 0 by `side`, and 2 by the other one.
fn meet(bed: &Bed<Mocks>, side: Side) -> World<Mocks> {
    let world = bed.world(3);
    let far = if side == Side::Far { 0 } else { 2 };
    let address = world.nodes[far].endpoint.address();
    bed.provider.near().refuse(address, usize::MAX, Errno::HOSTUNREACH);
    world.warm_up();
    world
}

#[test]
fn a_death_is_noticed_on_either_side_and_harms_only_what_depends_on_it() {
    for side in [Side::Near, Side::Far] {
        let (near, far) = mocks();
        let provider = Arc::new(Mocks::both(near, far));
        let bed = Bed { provider: provider.clone(), sharing: Sharing::Exclusive };
        let world = meet(&bed, side);
        let dead = world.nodes[0].endpoint.address();
        world.nodes[1].endpoint.receive_tagged(vec![0; 8], 0, 3, 0, 30).unwrap();
        world.nodes[1].endpoint.receive_tagged(vec![0; 8], 2, 3, 0, 32).unwrap();
        world.nodes[1].send(vec![1; 300_000], 0, Some(4), 40);
        world.nodes[1].poll();
        provider.near().kill(dead);
        provider.far().unwrap().kill(dead);
        assert_eq!(world.sent(1).bad(Errno::CONNRESET).context, 40);
        assert_eq!(world.received(1).bad(Errno::CONNRESET).context, 30);
        // The others go on.
        world.nodes[2].send(pattern(2, 8), 1, Some(3), 2);
        assert_eq!(world.received(1).context(), 32);
        world.nodes[1].receive(8, Some(9), 90);
        world.nodes[2].send(pattern(2, 8), 1, Some(9), 2);
        assert_eq!(world.received(1).context(), 90);
    }
}

#[test]
fn who_comes_back_is_found_on_whichever_side_it_is() {
    for side in [Side::Near, Side::Far] {
        let (near, far) = mocks();
        let provider = Arc::new(Mocks::both(near, far));
        let bed = Bed { provider: provider.clone(), sharing: Sharing::Exclusive };
        let world = meet(&bed, side);
        let address = world.nodes[0].endpoint.address();
        provider.near().kill(address);
        provider.far().unwrap().kill(address);
        let refused = if side == Side::Near { usize::MAX } else { 0 };
        provider.near().refuse(address, refused, Errno::HOSTUNREACH);
        let mut options = Options::default();
        options.endpoint.address = Some(address);
        let again = bed.world_with(1, &options);
        again.nodes[0].receive(8, Some(1), 10);
        let route = |world: &World<Mocks>| {
            let sent = world.nodes[1].endpoint.inspect(|transport| transport.traffic()).unwrap();
            (sent.near.messages, sent.far.messages)
        };
        let before = route(&world);
        // What was under way is lost with the old incarnation; what is sent now is not.
        world.poll(10);
        world.nodes[1].send(pattern(1, 8), 0, Some(1), 20);
        world.drive("the new one hears", || {
            again.nodes[0].poll();
            again.waiting(0).1 > 0
        });
        assert_eq!(again.received(0).context(), 10);
        let after = route(&world);
        let moved = (after.0 - before.0, after.1 - before.1);
        assert_eq!(moved, if side == Side::Near { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn a_sleeper_hears_both_sides() {
    let world = world(&BOTH_WAYS);
    world.warm_up();
    let receiver = &world.nodes[0];
    for (nth, from) in [2, 1, 1, 2, 2, 1].into_iter().enumerate() {
        receiver.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, nth as u64).unwrap();
        let sender = world.nodes[from].endpoint.clone();
        let sent = std::thread::spawn(move || {
            // As long as the receiver needs to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            sender.inject(&[7; 8], 0)
        });
        let mut entry = [Entry::default()];
        let read = woken(|| receiver.receives.read_blocking(&mut entry, Some(PATIENCE)));
        assert_eq!(read, Ok(1));
        assert_eq!((entry[0].context, entry[0].source), (nth as u64, from as u64));
        sent.join().unwrap().unwrap();
    }
}

/// Polls as an engine does: the packets of up to `polls` rounds, by sender.
fn polled(transport: &mut impl Transport, polls: usize) -> [usize; 3] {
    let mut seen = [0; 3];
    for _ in 0..polls {
        while transport.has_event() {
            match transport.event() {
                Some(TransportEvent::Incoming { ticket, address, .. }) => {
                    transport.adopt(address.port().into(), ticket);
                }
                Some(_) => {}
                None => break,
            }
        }
        for _ in 0..64 {
            let Some(arrival) = transport.arrival() else { break };
            seen[arrival.peer as usize % 3] += 1;
            transport.consume();
        }
    }
    seen
}

#[test]
fn a_side_that_is_never_silent_does_not_starve_the_other() {
    for busy in [1, 2] {
        let options = MockOptions { lane_packets: 1 << 16, ..MockOptions::default() };
        let provider = Mocks::both(MockProvider::new(options.clone()), MockProvider::new(options));
        // Ports that are 0, 1 and 2 modulo 3.
        let at = |port| provider.open(Some(Address::new(LOCALHOST, port)), &[]).unwrap();
        let mut ends = [at(3_000), at(3_001), at(3_002)];
        let to = ends[0].address();
        for from in [2, 1] {
            // The second one is reached far.
            let refused = if from == 2 { 1 } else { 0 };
            provider.near().refuse(to, refused, Errno::HOSTUNREACH);
            ends[from].connect(0, to);
            polled(&mut ends[from], 2);
            assert_eq!(ends[from].serves(0), Some([Side::Near, Side::Far][from - 1]));
        }
        let head = Head::new(Kind::Eager, 0);
        for (from, count) in [(busy, 10_000), (3 - busy, 3)] {
            for _ in 0..count {
                assert!(ends[from].push(0, head, 1, &[], Piece::EMPTY));
            }
            polled(&mut ends[0], usize::from(from == busy));
        }
        let seen = polled(&mut ends[0], 40);
        assert_eq!(seen[3 - busy], 3, "{seen:?}");
        assert!(seen[busy] > 1_000, "{seen:?}");
    }
}
