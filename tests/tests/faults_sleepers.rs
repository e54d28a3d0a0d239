//! Threads that sleep on queues of one endpoint: what wakes one, or ends its wait, leaves the
//! other's bell on, and what another thread's post leaves behind is told to them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    completion_queue::Entry,
    domain::{DomainOptions, ProgressMode, Sharing},
    endpoint::EndpointOptions,
    flags::Flags,
    memory::Pieces,
    mock::{MockOptions, MockProvider},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, Options, Receive, World, pattern, same},
    completion::is_rung,
    node::{CompletionQueue, Domain, Endpoint, Node},
    scale::{PATIENCE, scaled},
};

#[test]
fn a_sleeper_that_gives_up_leaves_the_others_their_bell() {
    let provider = Arc::new(ShmProvider::new(ShmOptions::default()).unwrap());
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let (transmit, receive) =
        (CompletionQueue::open(&domain, 0).unwrap(), CompletionQueue::open(&domain, 0).unwrap());
    let vector = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.bind_completion_queue(&transmit, Flags::TRANSMIT).unwrap();
    endpoint.bind_completion_queue(&receive, Flags::RECV).unwrap();
    endpoint.enable().unwrap();
    let sender = Node::open();
    let to = sender.insert(endpoint.address());
    for round in 0..scaled(20, 100, 1000) as u64 {
        endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, round).unwrap();
        let slept = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut entry = [Entry::default()];
                let start = Instant::now();
                let read = receive.read_blocking(&mut entry, Some(PATIENCE));
                assert!(read.is_ok(), "round {round}: {read:?}");
                assert_eq!(entry[0].context, round);
                start.elapsed()
            });
            // By now the other sleeps; this one waits in vain for a moment, and goes away.
            std::thread::sleep(Duration::from_millis(1));
            let mut entry = [Entry::default()];
            let nap = Some(Duration::from_micros(400));
            assert!(transmit.read_blocking(&mut entry, nap).is_err());
            sender.endpoint.inject(&[1; 8], to).unwrap();
            while round == 0 && !sleeper.is_finished() {
                // The first message has a connection to wait for.
                assert!(sender.poll().is_none());
            }
            sleeper.join().unwrap()
        });
        // It was woken by the message, not by the end of its patience.
        assert!(slept < PATIENCE / 2, "round {round}: {slept:?}");
    }
}

/// Two endpoints on the mock, the first of which has nothing to do.
fn quiet_world(options: MockOptions) -> (Bed<MockProvider>, World<MockProvider>) {
    let bed = Bed { provider: Arc::new(MockProvider::new(options)), sharing: Sharing::Shared };
    let world = bed.world(2);
    world.warm_up();
    world.poll(50);
    (bed, world)
}

/// What waits for room rings no bell, and whoever posts it may make no progress.
#[test]
fn who_sleeps_is_told_of_a_send_that_waits_for_room() {
    let (bed, world) = quiet_world(MockOptions::default());
    let node = &world.nodes[0];
    let wait = node.receives.prepare_wait().expect("there is nothing to do");
    assert!(!is_rung(&wait));
    bed.provider.block(world.nodes[1].endpoint.address(), usize::MAX);
    node.send(vec![1; 100], 1, None, 7);
    assert!(is_rung(&wait), "it sleeps on, and nobody has the message leave");
    drop(wait);
    assert!(node.receives.prepare_wait().is_none(), "it has to look again by itself");
    bed.provider.block(world.nodes[1].endpoint.address(), 0);
    world.nodes[1].receive(100, None, 8);
    assert_eq!((world.sent(0).context(), world.received(1).context()), (7, 8));
    let wait = node.receives.prepare_wait().expect("there is nothing to do again");
    assert!(!is_rung(&wait));
}

/// The domain's helper looks again, and what it finds wakes the sleeper.
#[test]
fn who_has_a_helper_sleeps_while_a_send_waits_for_room() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let bed = Bed { provider, sharing: Sharing::Shared };
    let domain = DomainOptions { progress: ProgressMode::Automatic, ..DomainOptions::default() };
    let world = bed.world_with(2, &Options { domain, ..Options::default() });
    world.warm_up();
    world.poll(50);
    let (node, other) = (&world.nodes[0], world.nodes[1].endpoint.address());
    bed.provider.block(other, usize::MAX);
    node.send(vec![1; 100], 1, None, 7);
    let start = Instant::now();
    // The helper may be at it just now: it rings once it has found what was left to it.
    let wait = loop {
        if let Some(wait) = node.sends.prepare_wait().filter(|wait| !is_rung(wait)) {
            break wait;
        }
        assert!(start.elapsed() < PATIENCE, "it may not sleep");
    };
    bed.provider.block(other, 0);
    while !is_rung(&wait) {
        assert!(start.elapsed() < PATIENCE, "nobody has the message leave");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(wait);
    assert_eq!(world.sent(0).context(), 7);
    world.nodes[1].receive(100, None, 8);
    assert_eq!(world.received(1).context(), 8);
}

/// Sleepers have one bell, which whoever looks silences.
#[test]
fn all_who_sleep_are_told_of_a_send_that_waits_for_room() {
    let (bed, world) = quiet_world(MockOptions::default());
    let node = &world.nodes[0];
    let waits = [&node.receives, &node.sends, &node.receives].map(|queue| queue.prepare_wait());
    let [first, second, third] = waits.map(|wait| wait.expect("there is nothing to do"));
    bed.provider.block(world.nodes[1].endpoint.address(), usize::MAX);
    node.send(vec![1; 100], 1, None, 7);
    drop(first);
    assert!(is_rung(&second) && is_rung(&third), "one that woke silenced the bell");
    assert!(node.sends.prepare_wait().is_none());
    assert!(is_rung(&second) && is_rung(&third), "one that looked silenced the bell");
    drop(second);
    assert!(is_rung(&third));
    bed.provider.block(world.nodes[1].endpoint.address(), 0);
}

/// A call reads as much of a long message as polls are meant to last.
#[test]
fn who_sleeps_is_told_of_a_message_that_is_half_read() {
    const LENGTH: usize = 4 << 20;
    let (_bed, world) = quiet_world(MockOptions { read_remote: true, ..MockOptions::default() });
    let node = &world.nodes[0];
    world.nodes[1].send(pattern(1, LENGTH), 0, None, 7);
    world.poll(50);
    let wait = node.receives.prepare_wait().expect("the message is parked");
    let (memory, half) = (Memory::zeroed(LENGTH), LENGTH / 2);
    let pieces = memory.cut(&[half, half]);
    let receive = Receive { pieces: Pieces::Many(&pieces), context: 8, ..Receive::default() };
    node.post_receive(&receive).unwrap();
    assert!(is_rung(&wait), "it sleeps on, and nobody reads the rest");
    drop(wait);
    assert_eq!((world.sent(1).context(), world.received(0).context()), (7, 8));
    same(&memory.bytes(), &pattern(1, LENGTH), "read");
}
