//! The native door by itself: what a program gets that names `kestrel` alone.

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::{
    AddressVector, AddressVectorAttributes, AddressVectorFlags, AtomicCall, AtomicOperation,
    AtomicPost, BindError, CompletionQueue, ConnectionRequest, Counter, Datatype, Domain, Endpoint,
    EndpointError, EndpointOptions, EndpointType, Entry, Errno, Event, EventQueue,
    EventQueueAttributes, EventRead, FI_ADDR_UNSPEC, Flags, Form, HasErrno, Hints, Info,
    MemoryRange, MemoryRegion, MemoryRegionAttributes, MemoryRegionError, MemoryRegionMode,
    OpenError, OwnedReceive, Piece, Pieces, PostError, ReadError, ReceivePost, RmaPost, SendPost,
    SharedReceive, SharedTransmit, Sharing, Threshold, Work, objects,
};
use kestrel_tests::reserved::own_group;

#[test]
fn a_domain_for_one_thread_is_one_call() {
    let info = kestrel::discover(None).unwrap().remove(0);
    // SAFETY: no other thread sees it.
    let domain = unsafe { kestrel::open_domain_exclusive(&info) }.unwrap();
    assert_eq!(domain.sharing(), Sharing::Exclusive);
    domain.close().unwrap();
}

/// The key and the base of a region for which `KEY` was asked for, by these hints; and where its
/// memory is.
fn registered(hints: &Hints) -> (u64, u64, u64) {
    let info = kestrel::discover(Some(hints)).unwrap().remove(0);
    let domain = kestrel::open_domain(&info).unwrap();
    let mut memory = vec![0_u8; 4096];
    let address = memory.as_mut_ptr() as u64;
    let attributes = MemoryRegionAttributes {
        ranges: &[MemoryRange { address, len: memory.len() as u64 }],
        access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
        requested_key: KEY,
        ..Default::default()
    };
    // SAFETY: no endpoint is open here, so nobody reaches the memory, and it outlives the region.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    let (key, base) = (region.key(), region.base());
    domain.close_memory(&region).unwrap();
    domain.close().unwrap();
    (key, base, address)
}

const KEY: u64 = 4711;

#[test]
fn keys_are_the_callers_where_that_was_agreed_on() {
    let hints = Hints::new().caps(Flags::RMA);
    let (key, base, _) = registered(&hints.clone().memory_region_mode(MemoryRegionMode::empty()));
    assert_eq!((key, base), (KEY, 0));
    let mode = MemoryRegionMode::VIRT_ADDR | MemoryRegionMode::ALLOCATED;
    let (key, base, address) = registered(&hints.clone().memory_region_mode(mode));
    assert_eq!((key, base), (KEY, address));
}

#[test]
fn who_says_nothing_of_keys_gets_ours() {
    for hints in [Hints::new(), Hints::new().caps(Flags::RMA), Hints::new().caps(Flags::TAGGED)] {
        let (key, base, address) = registered(&hints);
        assert_ne!(key, KEY);
        assert_eq!(base, address);
    }
}

/// The first that hints find, and a domain for it.
fn opened(hints: &Hints) -> (Info, Arc<Domain>) {
    let info = kestrel::discover(Some(hints)).unwrap().remove(0);
    let domain = kestrel::open_domain(&info).unwrap();
    (info, domain)
}

fn events() -> Arc<EventQueue> {
    Arc::new(EventQueue::open(EventQueueAttributes::default()).unwrap())
}

#[track_caller]
fn says(object: &dyn Debug, parts: &[&str]) {
    let text = format!("{object:?}");
    for part in parts {
        assert!(text.contains(part), "{text} has no {part}");
    }
}

#[test]
fn objects_can_be_formatted() {
    let (info, domain) = opened(&Hints::new());
    says(&domain, &["Domain {", "sharing: Shared", "open: 0"]);
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    let port = format!(":{}", endpoint.address().port());
    says(&endpoint, &["Endpoint { kind: Rdm", &port, "is_enabled: false"]);
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_address_vector(&peers).unwrap();
    endpoint.enable().unwrap();
    peers.insert_one(endpoint.address()).unwrap();
    says(&endpoint, &["is_enabled: true"]);
    says(&queue, &["CompletionQueue {", "blocked: 0"]);
    says(&peers, &["AddressVector {", "len: 1", "bound: 1"]);
    let counter = Counter::open(&domain);
    counter.counter().add(3);
    says(&counter, &["CompletionCounter {", "value: 3", "errors: 0"]);
    let work = Work { id: 9, completion: Some(counter.clone()) };
    let threshold = Threshold { counter, value: 5, work: Some(work) };
    says(&threshold, &["Threshold {", "value: 5", "Work { id: 9"]);
    let queue = events();
    queue.push(Event::Shutdown { fid: 1 });
    says(&queue, &["EventQueue {", "events: Some(1)", "errors: Some(0)"]);
    queue.read_if(|_| {
        says(&queue, &["events: None"]);
        true
    });
    let scalable = kestrel::open_scalable_endpoint(&domain, &info).unwrap();
    says(&scalable, &["ScalableEndpoint {", "transmit: 1", "uses: 0"]);
    let options = objects::endpoint_options(&info);
    says(&SharedTransmit::open(&domain, options.clone()).unwrap(), &["SharedTransmit {"]);
    says(&SharedReceive::open(&domain, options).unwrap(), &["SharedReceive {", "bound: 0"]);
    let (info, domain) = opened(&Hints::new().endpoint_type(EndpointType::SockDgram));
    let socket = kestrel::open_socket(&domain, &info).unwrap();
    says(&socket, &["SocketEndpoint { kind: Datagram", "is_closed: false"]);
    let refused = kestrel::open_endpoint(&domain, &info).unwrap_err();
    assert!(refused.to_string().contains("open_endpoint"), "{refused}");
}

#[test]
fn posts_can_be_formatted() {
    let (pieces, flags) = (Pieces::One(Piece::EMPTY), Flags::TAGGED);
    let (to, tag, data, context, region, attachment) = (1, 2, 3, 4, None, None);
    says(&SendPost { pieces, to, tag, data, context, flags, region, attachment }, &["tag: 2"]);
    let (from, ignore, attachment) = (5, 6, None);
    let receive = ReceivePost { pieces, from, tag, ignore, context, flags, region, attachment };
    says(&receive, &["ReceivePost {", "ignore: 6"]);
    let (segments, attachment) = (&[], None);
    says(
        &RmaPost { pieces, to, segments, data, context, flags, region, attachment },
        &["RmaPost {"],
    );
    let (operation, datatype, form) = (AtomicOperation::Sum, Datatype::Uint64, Form::Base);
    let call = AtomicCall { operation, datatype, form };
    let (operands, compare, results) = (pieces, pieces, pieces);
    let post = AtomicPost { call, operands, compare, results, to, segments, data, context, flags };
    says(&post, &["AtomicPost {", "Sum"]);
}

/// Waits for a request for a connection, which `caller` has asked for.
fn request(events: &EventQueue, caller: &EventQueue) -> u64 {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match events.read() {
            EventRead::Event(Event::ConnectionRequest { info, .. }) => return info.handle,
            EventRead::Empty => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(caller.read(), EventRead::Empty, "the caller makes progress");
    }
    panic!("no request came");
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn who_listens_and_its_requests_can_be_formatted() {
    let (info, domain) = opened(&Hints::new().endpoint_type(EndpointType::Msg));
    let passive = kestrel::open_passive_endpoint(&info).unwrap();
    let (listener, caller) = (events(), events());
    passive.bind_event_queue(&listener, 1).unwrap();
    says(&passive, &["PassiveEndpoint {", "listens: Some(false)"]);
    passive.listen().unwrap();
    says(&passive, &["listens: Some(true)"]);
    let endpoint: Arc<Endpoint> = kestrel::open_endpoint(&domain, &info).unwrap();
    says(&endpoint, &["kind: Msg"]);
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_event_queue(&caller, 2).unwrap();
    endpoint.connect(passive.address(), &[]).unwrap();
    let handle = request(&listener, &caller);
    let request: ConnectionRequest = passive.take(handle).unwrap();
    says(&request, &["ConnectionRequest {", "is_answered: false"]);
}

#[test]
fn a_group_can_be_formatted() {
    let hints = Hints::new().endpoint_type(EndpointType::Dgram).caps(Flags::MSG | Flags::MULTICAST);
    let (info, domain) = opened(&hints);
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_address_vector(&peers).unwrap();
    endpoint.bind_event_queue(&events(), 1).unwrap();
    endpoint.enable().unwrap();
    let group = own_group().socket_addr();
    let group = endpoint.join(group.into(), Flags::empty()).unwrap();
    says(&group, &["Group {", "kind: Dgram"]);
}

/// An endpoint that is its own peer, and its queue, which is bound with `flags`.
fn alone(flags: Flags) -> (Arc<Endpoint>, Arc<CompletionQueue>, u64) {
    let (info, domain) = opened(&Hints::new());
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV | flags).unwrap();
    endpoint.bind_address_vector(&peers).unwrap();
    endpoint.enable().unwrap();
    let me = peers.insert_one(endpoint.address()).unwrap();
    (endpoint, queue, me)
}

/// All that the calls take and return has a name here.
#[test]
fn what_calls_take_and_return_can_be_named() {
    use kestrel::{
        CM_DATA_SIZE, Candidate, CounterCell, CounterWait, Descriptor, EventWait, Insertion, Marks,
        OptionName, QueueWait, SharedMemory, SymmetricRange,
    };
    let (info, domain) = opened(&Hints::new().endpoint_type(EndpointType::Msg));
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let wait: Option<QueueWait> = queue.prepare_wait();
    assert!(wait.is_some());
    let counter = Counter::open(&domain);
    let cell: &Arc<CounterCell> = counter.counter();
    let wait: Option<CounterWait> = counter.prepare_wait(cell.now());
    assert!(wait.is_some());
    let wait: Option<EventWait> = events().prepare_wait();
    assert!(wait.is_some());
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    assert_eq!(endpoint.option(OptionName::CmDataSize), Ok(CM_DATA_SIZE));
    let peers = AddressVector::open(AddressVectorAttributes::default()).unwrap();
    let inserted: Insertion = peers.insert(&[endpoint.address()]);
    assert_eq!(inserted.count(), 1);
    assert!(matches!(Candidate::from(endpoint.address()), Candidate::Address(_)));
    assert!(matches!(Marks::default(), Marks::None));
    assert_eq!(Descriptor::of(KEY).map(Descriptor::key), Some(KEY));
    fn named(_: Option<&dyn SharedMemory>, _: Option<SymmetricRange>) {}
    named(None, None);
}

#[test]
fn sizes_that_no_endpoint_has_are_refused() {
    let (info, domain) = opened(&Hints::new());
    let usual = objects::endpoint_options(&info);
    let sized = |transmit_size, inject_size| {
        let options = EndpointOptions { transmit_size, inject_size, ..usual.clone() };
        Endpoint::open(&domain, options).map(|endpoint| endpoint.close())
    };
    for value in [0, kestrel::TX_SIZE_MAX + 1, 1 << 40, usize::MAX] {
        let refused = sized(value, 0).unwrap_err();
        let most = kestrel::TX_SIZE_MAX;
        let expected = OpenError::BadSize { option: "transmit_size", value, least: 1, most };
        assert_eq!((refused.errno(), &refused), (Errno::INVAL, &expected));
        assert_eq!(
            refused.to_string(),
            format!("transmit_size is {value}: an endpoint has 1 to {most}")
        );
    }
    for value in [kestrel::INJECT_SIZE_MAX + 1, 1 << 40, usize::MAX] {
        let most = kestrel::INJECT_SIZE_MAX;
        let expected = OpenError::BadSize { option: "inject_size", value, least: 0, most };
        assert_eq!(sized(1, value), Err(expected));
    }
    sized(1, 0).unwrap();
    sized(kestrel::TX_SIZE_MAX, kestrel::INJECT_SIZE_MAX).unwrap();
    let huge = EndpointOptions { transmit_size: usize::MAX, ..usual };
    assert!(matches!(SharedTransmit::open(&domain, huge), Err(OpenError::BadSize { .. })));
}

#[test]
fn a_counter_is_bound_to_regions_of_its_domain_that_are_open() {
    let [(_, here), (_, there)] = [(); 2].map(|()| opened(&Hints::new()));
    let mut memory = vec![0_u8; 64];
    let ranges = [MemoryRange { address: memory.as_mut_ptr() as u64, len: 64 }];
    let access = Flags::REMOTE_WRITE;
    let attributes = MemoryRegionAttributes { ranges: &ranges, access, ..Default::default() };
    // SAFETY: no endpoint is open here, so nobody reaches the memory, and it outlives the region.
    let register = |domain: &Domain| unsafe { domain.register_memory(&attributes) }.unwrap();
    let counter = Counter::open(&here);
    let bind = |region: &MemoryRegion| here.bind_memory_counter(region, &counter, access);
    let (foreign, closed) = (register(&there), register(&here));
    here.close_memory(&closed).unwrap();
    for region in [&foreign, &closed] {
        let refused = MemoryRegionError::NotRegistered { key: region.key() };
        assert_eq!(bind(region), Err(refused));
    }
    let region = register(&here);
    bind(&region).unwrap();
    assert_eq!(bind(&region), Err(MemoryRegionError::CounterBound { key: region.key() }));
    assert!(matches!(counter.close(), Err(BindError::Busy { .. })));
    here.close_memory(&region).unwrap();
    counter.close().unwrap();
    there.close_memory(&foreign).unwrap();
}

#[test]
fn a_counter_does_not_stand_for_a_queue() {
    let (info, domain) = opened(&Hints::new());
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_counter(&Counter::open(&domain), Flags::SEND | Flags::RECV).unwrap();
    endpoint.bind_address_vector(&peers).unwrap();
    let refused = endpoint.enable().unwrap_err();
    assert_eq!(refused, EndpointError::NoCompletionQueue { direction: "transmit" });
    says(&refused.to_string(), &["no completion queue is bound for transmit; a counter alone"]);
}

#[test]
fn who_has_room_for_no_completion_waits_for_none() {
    let (endpoint, queue, me) = alone(Flags::empty());
    let nothing = |_: usize, _: &Entry| panic!("there is no room");
    for outcome in [Err(ReadError::Empty), Ok(0)] {
        assert_eq!(queue.read_blocking(&mut [], None), outcome);
        assert_eq!(queue.read_with_blocking(0, None, nothing), outcome);
        // SAFETY: nothing is called.
        let read = unsafe { queue.read_in_place_blocking(0, None, nothing) };
        assert_eq!(read, outcome);
        if outcome.is_err() {
            endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
            endpoint.send(vec![1; 8], me, 2).unwrap();
            let until = Instant::now() + PATIENCE;
            while !queue.poll() {
                assert!(Instant::now() < until, "nothing came");
            }
        }
    }
    for _ in 0..2 {
        assert_eq!(queue.read_blocking(&mut [Entry::default()], Some(PATIENCE)), Ok(1));
    }
}

/// Nothing but a completion gives a buffer back with what was received.
#[test]
fn a_receive_that_owns_buffers_always_completes() {
    let (endpoint, queue, me) = alone(Flags::SELECTIVE_COMPLETION);
    let buffers = vec![vec![0; 3], vec![0; 5]];
    let receive = OwnedReceive { buffers, flags: Flags::empty(), ..OwnedReceive::default() };
    endpoint.receive_message(receive).unwrap();
    endpoint.inject(b"received", me).unwrap();
    let mut entries = [Entry::default()];
    assert_eq!(queue.read_blocking(&mut entries, Some(PATIENCE)), Ok(1));
    let expected = vec![b"rec".to_vec(), b"eived".to_vec()];
    assert_eq!(entries[0].take_buffers(), Some(expected));
}

#[test]
fn the_info_of_a_request_is_for_who_accepts() {
    for kind in [EndpointType::Msg, EndpointType::SockStream] {
        let (mut info, domain) = opened(&Hints::new().endpoint_type(kind));
        info.handle = 7;
        let refused = match kind {
            EndpointType::Msg => kestrel::open_endpoint(&domain, &info).unwrap_err().to_string(),
            _ => kestrel::open_socket(&domain, &info).unwrap_err().to_string(),
        };
        says(&refused, &["info.handle 7", "open"]);
        says(&refused, &["_for opens what accepts it"]);
    }
}

/// A thread that waits for the first event of a queue: what it finds, and how long it waited.
type Waiter = std::thread::JoinHandle<(EventRead, Duration)>;

fn waiting(queue: &Arc<EventQueue>) -> Waiter {
    let theirs = queue.clone();
    let waiter = std::thread::spawn(move || {
        let start = Instant::now();
        (theirs.read_blocking(Some(PATIENCE)), start.elapsed())
    });
    // Long enough to fall asleep, mostly.
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    waiter
}

/// What it was woken for.
#[track_caller]
fn woken(waiter: Waiter) -> EventRead {
    let (found, waited) = waiter.join().unwrap();
    assert!(waited < PATIENCE, "it was the time that woke it");
    found
}

#[test]
fn who_waits_for_an_event_is_woken_by_what_is_written() {
    let attributes = EventQueueAttributes { size: 0, flags: Flags::WRITE };
    let queue = Arc::new(EventQueue::open(attributes).unwrap());
    let start = Instant::now();
    assert_eq!(queue.read_blocking(Some(Duration::from_millis(30))), EventRead::Empty);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(queue.read_blocking(Some(Duration::ZERO)), EventRead::Empty);
    for _ in 0..2 {
        let both = [waiting(&queue), waiting(&queue)];
        queue.write(1, b"both").unwrap();
        queue.write(1, b"both").unwrap();
        let expected = EventRead::Event(Event::User { code: 1, bytes: b"both".to_vec() });
        for waiter in both {
            assert_eq!(woken(waiter), expected);
        }
    }
    queue.write(2, &[]).unwrap();
    assert!(matches!(queue.read_blocking(None), EventRead::Event(Event::User { code: 2, .. })));
}

#[test]
fn who_waits_for_an_event_is_woken_by_an_address_vector() {
    let queue = events();
    let flags = AddressVectorFlags::EVENT;
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    let peers = AddressVector::open(attributes).unwrap();
    peers.bind_event_queue(queue.clone(), 5).unwrap();
    let waiter = waiting(&queue);
    let address = "127.0.0.1:7".parse::<std::net::SocketAddr>().unwrap();
    let candidates = [kestrel::Address::from(address)];
    peers.insert_with_events(candidates, 9, kestrel::Marks::None, |_| {}).unwrap();
    let told = woken(waiter);
    assert!(
        matches!(told, EventRead::Event(Event::AddressVectorComplete { fid: 5, .. })),
        "{told:?}"
    );
}

/// It sleeps on the bells of what reports there, also of what comes while it sleeps.
#[test]
fn who_waits_for_an_event_is_woken_by_a_request() {
    let (info, domain) = opened(&Hints::new().endpoint_type(EndpointType::Msg));
    let (listener, caller) = (events(), events());
    let waiter = waiting(&listener);
    let passive = kestrel::open_passive_endpoint(&info).unwrap();
    passive.bind_event_queue(&listener, 1).unwrap();
    passive.listen().unwrap();
    let endpoint = kestrel::open_endpoint(&domain, &info).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_event_queue(&caller, 2).unwrap();
    endpoint.connect(passive.address(), &[]).unwrap();
    while !waiter.is_finished() {
        assert_eq!(caller.read_blocking(Some(Duration::from_millis(10))), EventRead::Empty);
    }
    let told = woken(waiter);
    assert!(matches!(told, EventRead::Event(Event::ConnectionRequest { fid: 1, .. })), "{told:?}");
}

/// No unsafe code is needed to see what lies in a buffer of several messages before that comes back.
#[test]
fn messages_in_a_buffer_that_is_not_released_can_be_copied() {
    let (endpoint, queue, me) = alone(Flags::empty());
    endpoint.receive_multi(vec![0; 300], FI_ADDR_UNSPEC, 4).unwrap();
    let messages = [&b"the first"[..], b"", b"another"];
    let mut entries = [(); 3].map(|()| Entry::default());
    for (message, entry) in messages.iter().zip(&mut entries) {
        endpoint.inject(message, me).unwrap();
        assert_eq!(queue.read_blocking(std::slice::from_mut(entry), Some(PATIENCE)), Ok(1));
    }
    for (message, entry) in messages.iter().zip(&entries) {
        assert_eq!(endpoint.copy_received(entry).unwrap(), *message);
    }
    let [first, ..] = entries;
    let told = |context, buffer, length| {
        let mut entry = Entry::default();
        (entry.context, entry.buffer, entry.length) = (context, buffer, length);
        entry
    };
    let nothing = |entry: Entry| {
        let expected = Err(PostError::NotInBuffer { context: entry.context });
        assert_eq!(endpoint.copy_received(&entry), expected);
    };
    // What is not there is not told, whatever an entry says.
    for length in [17, 300, u64::MAX] {
        nothing(told(4, first.buffer, length));
    }
    nothing(told(5, first.buffer, 9));
    for buffer in [0, first.buffer - 1, first.buffer + 17, u64::MAX] {
        nothing(told(4, buffer, 9));
    }
    // The last one releases it.
    endpoint.inject(&[7; 250], me).unwrap();
    let mut last = [Entry::default()];
    assert_eq!(queue.read_blocking(&mut last, Some(PATIENCE)), Ok(1));
    let buffer = last[0].take_buffer().unwrap();
    let start = (first.buffer - buffer.as_ptr() as u64) as usize;
    assert_eq!(&buffer[start..start + 9], b"the first");
    nothing(told(4, first.buffer, 9));
}
