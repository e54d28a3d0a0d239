use super::{
    super::submission::{Due, Submission, Unattached},
    Engine, SUBMISSIONS_MAX,
};
use crate::{
    address_vector::{AddressVector, FI_ADDR_UNSPEC},
    completion_counter::CompletionCounter,
    completion_queue::{CompletionQueue, Entry, ReadError},
    contained::contained,
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::Errno,
    event_queue::EventQueue,
    flags::Flags,
    memory::{Piece, Pieces},
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
    mock::{MockOptions, MockProvider},
    operation::ReceivePost,
    protocol::datagram::HELD_MAX,
    triggered::Deferrals,
};
use std::{
    sync::Arc,
    thread::{sleep, yield_now},
    time::{Duration, Instant},
};

struct Node {
    domain: Arc<Domain<MockProvider>>,
    endpoint: Arc<Endpoint<MockProvider>>,
    queue: Arc<CompletionQueue<MockProvider>>,
    vector: Arc<AddressVector>,
}

impl Node {
    fn open(provider: &Arc<MockProvider>) -> Node {
        Node::open_with(provider, EndpointOptions::default())
    }

    fn open_with(provider: &Arc<MockProvider>, options: EndpointOptions) -> Node {
        let domain = Domain::open(provider.clone(), DomainOptions::default()).unwrap();
        Node::in_domain(domain, options)
    }

    fn in_domain(domain: Arc<Domain<MockProvider>>, options: EndpointOptions) -> Node {
        let endpoint = Endpoint::open(&domain, options).unwrap();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
        endpoint.enable().unwrap();
        Node { domain, endpoint, queue, vector }
    }

    /// A region that peers may write to, which is closed before `memory` is looked at.
    fn target(&self, memory: &mut [u8]) -> Arc<MemoryRegion> {
        let address = memory.as_mut_ptr() as u64;
        let ranges = &[MemoryRange { address, len: memory.len() as u64 }];
        let access = Flags::REMOTE_WRITE;
        let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
        // SAFETY: the memory outlives the region, and is looked at when nobody writes there.
        unsafe { self.domain.register_memory(&attributes) }.unwrap()
    }

    /// Polls until nothing more happens, for the mock is never late; the receives that are done.
    fn received(&self) -> Vec<u64> {
        let mut done = Vec::new();
        for _ in 0..100 {
            let mut entry = [Entry::default()];
            if self.queue.read(&mut entry) == Ok(1) {
                done.push(entry[0].context);
            }
        }
        done
    }
}

/// The peer takes nothing, and each post meets a busy owner.
#[test]
fn what_is_left_for_a_busy_owner_is_bounded() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let (from, to) = (Node::open(&provider), Node::open(&provider));
    let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
    let unit = from.endpoint.unit().unwrap();
    let under_way = || unit.with(|engine| engine.under_way()).unwrap();
    let most = EndpointOptions::default().transmit_size + SUBMISSIONS_MAX;
    let mut memory = vec![0_u8; 8];
    let region = to.target(&mut memory);
    let post = |context: u64| match context % 2 {
        0 => from.endpoint.send(vec![0; 8], peer, context),
        _ => from.endpoint.write(vec![0; 8], peer, region.base(), region.key(), context),
    };
    for _ in 0..most.div_ceil(SUBMISSIONS_MAX) + 3 {
        assert!(unit.ownership.try_acquire());
        for context in 0.. {
            if post(context).is_err() {
                break;
            }
        }
        unit.release();
    }
    assert!((most - SUBMISSIONS_MAX..=most).contains(&under_way()), "{}", under_way());
    // Receives are bounded by nothing but the ring.
    assert!(unit.ownership.try_acquire());
    from.endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
    unit.release();
    (0..most as u64).for_each(|at| to.endpoint.receive(vec![0; 8], u64::MAX, at).unwrap());
    for _ in 0..100 {
        to.received();
        from.received();
    }
    assert_eq!(under_way(), 0);
    assert!(unit.ownership.try_acquire());
    assert!(post(0).is_ok() && post(1).is_ok(), "there are places again");
    unit.release();
    to.domain.close_memory(&region).unwrap();
}

/// Several threads that do nothing but post.
#[test]
fn places_that_a_post_makes_are_seen_by_who_finds_a_busy_owner() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let (from, to) = (Node::open(&provider), Node::open(&provider));
    let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
    let unit = from.endpoint.unit().unwrap();
    let post = || from.endpoint.send(vec![0; 8], peer, 0);
    while (0..3).any(|_| post().is_ok()) {}
    from.endpoint.cancel(0).unwrap();
    assert!(unit.ownership.try_acquire());
    post().unwrap();
    unit.release();
    assert!(post().is_err(), "as many are under way as may be");
    assert!(unit.ownership.try_acquire());
    assert!(post().is_err(), "so the owner has seen");
    unit.release();
    for _ in 0..EndpointOptions::default().transmit_size {
        to.endpoint.receive(vec![0; 8], u64::MAX, 0).unwrap();
    }
    to.received();
    assert!(post().is_ok(), "there is room for what waited for it");
    assert!(unit.ownership.try_acquire());
    assert!(post().is_ok(), "so there are places");
    unit.release();
}

/// As many wait for a peer that is not found as if the owner had sent them, and do not keep others out.
#[test]
fn datagrams_left_for_a_busy_owner_are_held_or_dropped() {
    const COUNT: u64 = 100;
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    provider.delay_connections(usize::MAX);
    let options = EndpointOptions { datagrams: true, ..EndpointOptions::default() };
    let [from, to] = [(); 2].map(|()| Node::open_with(&provider, options.clone()));
    let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
    let unit = from.endpoint.unit().unwrap();
    assert!(unit.ownership.try_acquire());
    (0..COUNT).for_each(|context| from.endpoint.send(vec![0; 8], peer, context).unwrap());
    unit.release();
    let held = HELD_MAX as u64;
    assert_eq!(from.endpoint.dropped().unwrap().sent, COUNT - held);
    assert!(from.received().into_iter().eq(held..COUNT), "what is dropped is complete");
}

/// Its sender was told that it is done, and may make no progress from then on.
#[test]
fn what_was_injected_for_a_busy_owner_leaves_when_that_lets_go() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let (one, other, to) = (0, 1, 2);
    let nodes = [one, other, to].map(|_| Node::open(&provider));
    let mut memory = vec![0_u8; 8];
    let region = nodes[to].target(&mut memory);
    nodes[to].endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
    for from in [one, other] {
        let peer = nodes[from].vector.insert_one(nodes[to].endpoint.address()).unwrap();
        let (endpoint, unit) = (&nodes[from].endpoint, nodes[from].endpoint.unit().unwrap());
        assert!(unit.ownership.try_acquire());
        match from == one {
            true => endpoint.inject(&[2; 8], peer).unwrap(),
            false => endpoint.inject_write(&[3; 8], peer, region.base(), region.key()).unwrap(),
        }
        unit.release();
    }
    assert_eq!(nodes[to].received(), [1]);
    nodes[to].domain.close_memory(&region).unwrap();
    assert_eq!(memory, [3; 8]);
}

/// An owner that has let go, and lost the race for what was left for it meanwhile to one who
/// closes.
#[test]
fn what_was_left_for_an_owner_leaves_before_the_endpoint_closes() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let (from, to) = (Node::open(&provider), Node::open(&provider));
    let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
    for context in 1..=2 {
        to.endpoint.receive(vec![0; 8], u64::MAX, context).unwrap();
    }
    from.endpoint.inject(&[1; 8], peer).unwrap();
    assert_eq!(to.received(), [1], "they are connected");
    let unit = from.endpoint.unit().unwrap();
    assert!(unit.ownership.try_acquire());
    from.endpoint.inject(&[2; 8], peer).unwrap();
    assert_eq!(to.received(), [], "its owner is busy");
    unit.ownership.release(|| false, || {});
    from.endpoint.close();
    assert_eq!(to.received(), [2]);
}

/// Whoever drains what others left waits for their peers, but not for one after the other.
#[test]
fn a_drain_waits_once() {
    const PEERS: usize = 4;
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    provider.delay_connections(usize::MAX);
    let from = Node::open(&provider);
    let peers = [(); PEERS].map(|()| Node::open(&provider));
    let unit = from.endpoint.unit().unwrap();
    assert!(unit.ownership.try_acquire());
    for to in &peers {
        let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
        from.endpoint.inject(&[1; 8], peer).unwrap();
    }
    unit.release();
    let in_vain = |engine: &mut Engine<_>| {
        engine.peers.iter().map(|peer| peer.absence.unanswered).collect::<Option<Vec<_>>>()
    };
    let in_vain = unit.with(in_vain).unwrap().expect("each was waited for");
    let (first, last) = (in_vain[0], in_vain[PEERS - 1]);
    // One after the other, each would have been given up a second later.
    assert!(last - first < Duration::from_millis(500), "{:?}", last - first);
}

/// Where the peer is not found, what is left behind the wait would only then begin to look for it.
#[test]
fn what_is_left_while_a_drain_waits_is_taken_meanwhile() {
    const ROUNDS: usize = 5;
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    provider.delay_connections(usize::MAX);
    let is_taken_meanwhile = || {
        let [from, to] = [(); 2].map(|()| Node::open(&provider));
        let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
        let unit = from.endpoint.unit().unwrap();
        let until_all_is_taken = || {
            while !unit.submissions.is_empty() {
                yield_now();
            }
            Instant::now()
        };
        assert!(unit.ownership.try_acquire());
        from.endpoint.inject(&[1; 8], peer).unwrap();
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| unit.release());
            until_all_is_taken();
            // What comes at once may still be of the first round.
            sleep(Duration::from_millis(20));
            from.endpoint.send(vec![2; 8], peer, 1).unwrap();
            until_all_is_taken()
        });
        let in_vain = unit.with(|engine| engine.peers[0].absence.unanswered).unwrap();
        in_vain.is_some_and(|in_vain| taken < in_vain)
    };
    // Once is enough: this thread may be kept away for as long as the other waits.
    assert!((0..ROUNDS).any(|_| is_taken_meanwhile()));
}

/// A context that closes while its operation is just becoming due takes its buffers along. Its unit lives on, if
/// the other one of its pair does.
#[test]
fn what_is_due_too_late_is_dropped() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let node = Node::open(&provider);
    let unit = node.endpoint.unit().unwrap();
    let deferrals = Arc::<Deferrals>::default();
    let mut completed = Vec::new();
    for context in [1, 2] {
        let receive = ReceivePost {
            pieces: Pieces::One(Piece::EMPTY),
            from: FI_ADDR_UNSPEC,
            tag: 0,
            ignore: 0,
            context,
            flags: Flags::MSG,
            region: None,
            attachment: None,
        };
        let submission = Unattached::receive(receive).taken();
        let due = Due { submission, context: deferrals.clone() };
        unit.submit_due(Submission::Due(Box::new(due)));
        completed.push(node.endpoint.cancel(context));
        deferrals.close();
    }
    assert_eq!(completed, [Ok(()), Err(PostError::NothingToCancel { context: 2 })]);
}

/// As an error of ours, or of a hook, in the middle of a call that catches it.
#[test]
fn a_panic_closes_the_endpoint() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let [from, to] = [(); 2].map(|()| Node::open(&provider));
    // SAFETY: this thread alone calls it.
    let alone = unsafe { Domain::open_exclusive(provider, DomainOptions::default()) }.unwrap();
    let alone = Node::in_domain(alone, EndpointOptions::default());
    for from in [&from, &alone] {
        let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
        let back = to.vector.insert_one(from.endpoint.address()).unwrap();
        to.endpoint.send(vec![1; 8], back, 3).unwrap();
        let unit = from.endpoint.unit().unwrap();
        while unit.with(|engine| engine.unexpected.is_empty()).unwrap() {
            from.queue.poll();
            to.queue.poll();
        }
        let panicked = contained("a test", || from.endpoint.inspect(|_| panic!("half-way")));
        assert!(panicked.is_none());
        assert_eq!(from.endpoint.inject(&[1; 8], peer), Err(PostError::Closed));
        for flags in [Flags::SEND, Flags::RECV] {
            let error = from.queue.read_error().expect("who waits is told");
            assert_eq!((error.errno, error.flags), (Errno::OTHER, flags), "{}", error.reason);
            assert!(error.reason.contains("bug"), "{}", error.reason);
        }
        assert_eq!(from.received(), []);
        assert_eq!(from.endpoint.cancel(1), Err(PostError::Closed));
        // The peer hears of it: what it posts ends with an error, sooner or later.
        let start = Instant::now();
        while to.queue.read_error().is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "the peer has not heard");
            let _ = to.endpoint.send(vec![1; 8], back, 4);
            let _ = to.queue.read(&mut [Entry::default()]);
            yield_now();
        }
        while to.queue.read_error().is_some() {}
        from.endpoint.close();
    }
}

/// Who is asleep at its queue hears of it.
#[test]
fn a_panic_wakes_who_waits() {
    let node = Node::open(&Arc::new(MockProvider::new(MockOptions::default())));
    let panics = || {
        sleep(Duration::from_millis(50));
        node.endpoint.inspect(|_| panic!("half-way"))
    };
    std::thread::scope(|scope| {
        let panicking = scope.spawn(panics);
        let read = node.queue.read_blocking(&mut [Entry::default()], None);
        assert_eq!(read, Err(ReadError::ErrorAvailable));
        assert!(panicking.join().is_err());
    });
}

/// Who waits for writes alone hears of it, and who waits for events.
#[test]
fn a_panic_is_an_error_of_one_sided_operations_and_an_event() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let writes = CompletionCounter::open(&domain);
    let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_counter(&writes, Flags::WRITE).unwrap();
    let events = Arc::new(EventQueue::open(Default::default()).unwrap());
    endpoint.bind_event_queue(&events, 5).unwrap();
    endpoint.enable().unwrap();
    let panicked = contained("a test", || endpoint.inspect(|_| panic!("half-way")));
    assert!(panicked.is_none());
    assert_eq!(writes.counter().now(), (0, 1));
    let told = events.read_error().map(|error| (error.fid, error.error));
    assert_eq!(told, Some((5, Errno::OTHER)));
}

/// A subscriber of `tracing` that calls what it is called from breaks the promise of a domain for one thread.
#[test]
#[cfg(debug_assertions)]
#[should_panic = "from inside of another one"]
fn a_call_from_inside_of_an_exclusive_one_is_noticed() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    // SAFETY: one thread; the call from inside is stopped before it does anything.
    let domain = unsafe { Domain::open_exclusive(provider, DomainOptions::default()) }.unwrap();
    let node = Node::in_domain(domain, EndpointOptions::default());
    let read = |_: &mut Engine<_>| node.queue.read(&mut [Entry::default()]);
    let _ = node.endpoint.unit().unwrap().with(read);
}
