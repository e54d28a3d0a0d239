//! The order of what is told of connections. Reference: fi_cm(3).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_queue::{CompletionQueue, Entry},
    connection::{ConnectionError, passive_endpoint::PassiveEndpoint},
    domain::{Domain, DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions},
    error::{Errno, HasErrno},
    event_queue::{Event, EventRead},
    flags::Flags,
    info::Info,
    transport::Provider,
};

use crate::{
    bed::{Bed, open_vector, pattern, same},
    completion::{Done, read_all},
    driven::Drives,
    link::{self, Driven, ENDPOINT, End, LISTENER, Listener, options},
    process::woken,
    scale::{PATIENCE, leaves_in_time},
};

/// Who asks twice has heard before that the first request succeeded, and said so. Who accepted it
/// hears that first as well, although another endpoint of his does.
pub fn a_connection_is_told_of_before_the_next_request<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let first = End::calling(bed, listener.passive.address(), &[]);
    let request = listener.take(&[&first]);
    let domain = bed.domain(DomainOptions::default());
    let endpoint = Endpoint::open_for(&domain, link::options(), request).unwrap();
    let acceptor = End::reporting_to(listener.events.clone(), &domain, endpoint);
    acceptor.endpoint.accept(&[]).unwrap();
    // The caller last: what it says of its success is not met yet.
    link::drive("it is accepted", &[&listener, &first], || !first.events.is_empty());
    let second = End::calling(bed, listener.passive.address(), &[]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        [&first, &second].iter().for_each(|end| end.drive());
    }
    let event = acceptor.event(&[&first, &second]);
    assert!(matches!(event, Event::Connected { fid: ENDPOINT, .. }), "{event:?}");
    listener.request(&[&first, &second]);
}

/// What connected endpoints of one side have in common.
struct Host<P: Provider> {
    domain: Arc<Domain<P>>,
    queue: Arc<CompletionQueue<P>>,
}

impl<P: Provider> Host<P> {
    fn open(bed: &Bed<P>) -> Self {
        let domain = bed.domain(DomainOptions::default());
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        Host { domain, queue }
    }

    /// The next message, which is polled for.
    fn received(&self) -> Done {
        let (start, mut received) = (Instant::now(), None);
        while received.is_none() && start.elapsed() < PATIENCE {
            read_all(&self.queue, |done| received = Some(done));
        }
        received.expect("a message comes").good()
    }

    /// The same, which `send` sends once a thread has slept for it for a while.
    fn received_asleep(&self, send: impl FnOnce()) -> Done {
        let mut entry = [Entry::default()];
        std::thread::scope(|scope| {
            let read = || self.queue.read_blocking(&mut entry, Some(PATIENCE));
            let sleeping = scope.spawn(|| woken(read));
            std::thread::sleep(Duration::from_millis(20));
            send();
            assert_eq!(sleeping.join().expect("it is woken"), Ok(1));
        });
        let [entry] = entry;
        Done::from(entry).good()
    }
}

/// More than a read drives each time: what comes to one that was silent is found all the same, and wakes who
/// sleeps. So is its end.
pub fn of_many_connections_each_is_heard<P: Provider>(bed: &Bed<P>) {
    const COUNT: u64 = 20;
    let (listener, ours, theirs) = (Listener::listening(bed), Host::open(bed), Host::open(bed));
    let events = &listener.events;
    let event = |what| {
        link::drive(what, &[&listener], || !events.is_empty());
        events.read()
    };
    let connect = |_| {
        let caller = Endpoint::open(&ours.domain, options()).unwrap();
        link::bind(&caller, &ours.queue, events);
        caller.connect(listener.passive.address(), &[]).unwrap();
        let request = listener.take(&[]);
        let acceptor = Endpoint::open_for(&theirs.domain, options(), request).unwrap();
        link::bind(&acceptor, &theirs.queue, events);
        acceptor.accept(&[]).unwrap();
        for _ in [&caller, &acceptor] {
            let event = event("it is connected");
            assert!(matches!(event, EventRead::Event(Event::Connected { .. })), "{event:?}");
        }
        (caller, acceptor)
    };
    let links: Vec<_> = (0..COUNT).map(connect).collect();
    // In a domain for one thread nobody else can send meanwhile.
    let ways = if bed.sharing == Sharing::Shared { &[false, true][..] } else { &[false] };
    for sleeps in ways {
        for (context, (caller, acceptor)) in (0..).zip(&links) {
            acceptor.receive(vec![0; 8], 0, context).unwrap();
            // Everybody has been silent for long then.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(3) {
                read_all(&ours.queue, |done| drop(done.good()));
                read_all(&theirs.queue, |done| panic!("{done:?}"));
            }
            let send = || caller.inject(&pattern(context, 8), 0).unwrap();
            let received = if *sleeps {
                theirs.received_asleep(send)
            } else {
                send();
                theirs.received()
            };
            assert_eq!(received.context, context);
            same(&received.returned.unwrap(), &pattern(context, 8), "content");
        }
    }
    for (caller, acceptor) in links {
        caller.close();
        let event = event("the other end hears of it");
        assert_eq!(event, EventRead::Event(Event::Shutdown { fid: ENDPOINT }));
        acceptor.close();
    }
}

/// "A rejected or failed connection request will generate an error event", also of who accepted it and
/// was closed before the connection stood, whenever that was.
pub fn who_accepts_and_goes_is_told_of<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    for rounds in 0..12 {
        let caller = End::calling(bed, listener.passive.address(), &[]);
        caller.endpoint.receive(vec![0; 16], 0, 1).unwrap();
        let acceptor = End::acceptor(bed, listener.take(&[&caller]));
        acceptor.endpoint.accept(&[]).unwrap();
        for _ in 0..rounds {
            acceptor.drive();
            caller.drive();
        }
        drop(acceptor);
        link::drive("an event comes", &[&caller, &listener], || !caller.events.is_empty());
        match caller.events.read() {
            EventRead::Event(event) => {
                assert!(matches!(event, Event::Connected { .. }), "{event:?}");
                caller.sees_shutdown(&[&listener]);
            }
            _ => {
                let error = caller.events.read_error().unwrap();
                let expected = [Errno::CONNREFUSED, Errno::CONNABORTED];
                assert!(expected.contains(&error.error), "{error:?}");
                if rounds == 0 {
                    assert!(error.reason.contains("went at once"), "{error:?}");
                }
            }
        }
        let done = caller.done(&[&listener]);
        assert_eq!((done.errno, done.context), (Some(Errno::CANCELED), 1));
    }
    assert!(listener.has_nothing());
}

/// A listener has those who accepted there catch up before it tells of a further request: if one of them
/// goes then, the listener is in the middle of something, and says so afterwards.
pub fn who_accepted_goes_while_the_listener_is_driven<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let first = End::calling(bed, listener.passive.address(), &[]);
    let acceptor = End::acceptor(bed, listener.take(&[&first]));
    acceptor.endpoint.accept(&[]).unwrap();
    let second = End::calling(bed, listener.passive.address(), &[]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        second.drive();
    }
    // Driven first by the queue, and then by the listener.
    let (endpoint, rounds) = (acceptor.endpoint.clone(), AtomicUsize::new(0));
    let closing = Arc::new(Drives(move || {
        let now = rounds.fetch_add(1, Ordering::Relaxed) == 1;
        if now {
            endpoint.close();
        }
        now
    }));
    listener.events.add_driven(closing.clone());
    listener.request(&[&second]);
    assert!(first.refusal(&[&listener]).contains("went at once"));
    listener.events.remove_driven(&closing);
}

/// "An endpoint may be enabled explicitly through fi_enable, or implicitly, such as through fi_connect":
/// not by a call that is refused.
pub fn who_is_refused_is_not_enabled<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let first = End::calling(bed, listener.passive.address(), &[]);
    let acceptor = End::acceptor(bed, listener.take(&[&first]));
    let caller = End::caller(bed);
    let address = listener.passive.address().with_port(0);
    let refused = [
        (&acceptor, acceptor.endpoint.connect(address, &[]), ConnectionError::HasRequest),
        (&caller, caller.endpoint.connect(address, &[]), ConnectionError::BadAddress { address }),
        (&caller, caller.endpoint.accept(&[]), ConnectionError::NoRequest),
    ];
    for (_, answer, expected) in &refused {
        assert_eq!(answer.as_ref(), Err(expected));
    }
    // One that is over enables nothing either, however often it is accepted.
    let second = End::calling(bed, listener.passive.address(), &[]);
    let asked = listener.request(&[&second]);
    let late = End::acceptor(bed, listener.passive.take(asked.handle).unwrap());
    listener.passive.reject(asked.handle, b"no").unwrap();
    for _ in 0..2 {
        let over = ConnectionError::RequestOver { handle: asked.handle };
        assert_eq!(late.endpoint.accept(&[]), Err(over));
    }
    for end in [acceptor, caller, late] {
        assert_eq!(end.endpoint.enable(), Ok(()), "a second time it would be an error");
    }
    // "Operations that complete in error that are not associated with valid operational context will use
    // the endpoint context in any error reporting structures" (fi_endpoint(3)).
    let named = End::open(bed, |domain| {
        Endpoint::open(domain, EndpointOptions { context: 77, ..options() }).unwrap()
    });
    named.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let asked = listener.request(&[&named]);
    listener.passive.reject(asked.handle, &[]).unwrap();
    let error = named.error(&[&listener]);
    assert_eq!((error.error, error.context), (Errno::CONNREFUSED, 77));
}

/// Nobody reads the listener's events any more: its rejections have left by then. They take a moment at
/// most, so there are several tries: a machine may be kept away for as long.
pub fn a_rejection_leaves_by_itself<P: Provider>(bed: &Bed<P>) {
    const TRIES: usize = 5;
    let listener = Listener::listening(bed);
    let leaves = |reject: &dyn Fn(&End<P>), data: &[u8]| {
        let caller = End::calling(bed, listener.passive.address(), &[]);
        reject(&caller);
        let start = Instant::now();
        while caller.events.is_empty() && start.elapsed() < Duration::from_secs(1) {
            caller.drive();
        }
        let by_itself = !caller.events.is_empty();
        assert_eq!(caller.fails(Errno::CONNREFUSED, &[&listener]), data);
        by_itself
    };
    let refuse = |caller: &End<P>| {
        let asked = listener.request(&[caller]);
        listener.passive.reject(asked.handle, b"not today").unwrap();
    };
    assert!((0..TRIES).any(|_| leaves(&refuse, b"not today")));
    let let_go = |caller: &End<P>| drop(listener.take(&[caller]));
    assert!((0..TRIES).any(|_| leaves(&let_go, b"")));
}

/// Whether it had the time to be: a second at most.
pub(super) fn who_rejects_and_goes_is_heard<P: Provider>(bed: &Bed<P>) -> bool {
    let (listener, data) = (Listener::listening(bed), pattern(3, 200));
    let caller = End::calling(bed, listener.passive.address(), &[]);
    let asked = listener.request(&[&caller]);
    let in_time = leaves_in_time(|| {
        listener.passive.reject(asked.handle, &data).unwrap();
        listener.passive.close();
    });
    if in_time {
        assert_eq!(caller.fails(Errno::CONNREFUSED, &[]), data);
    }
    in_time
}

/// "An active endpoint may acquire the properties of a passive endpoint", which had no key to be acquired:
/// its own is what it was opened with, and proves.
pub fn who_takes_over_has_its_own_key<P: Provider>(bed: &Bed<P>) {
    let keyed = |key: &[u8]| {
        let mut info = Info::default();
        info.endpoint.auth_key = key.to_vec();
        Listener::over(bed, info)
    };
    let listener = keyed(b"ours");
    listener.passive.listen().unwrap();
    for (key, reserved) in [(b"ours", keyed(b"another")), (b"else", keyed(b"ours"))] {
        let options = EndpointOptions { auth_key: key.to_vec(), ..link::options() };
        let caller = End::open(bed, |domain| {
            Endpoint::open_instead_of(domain, options, &reserved.passive).unwrap()
        });
        caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
        match key {
            b"ours" => drop(listener.request(&[&caller])),
            _ => drop(caller.fails(Errno::CONNREFUSED, &[&listener])),
        }
    }
}

/// A request that an endpoint was opened from holds its listener's place when that is closed. Nobody
/// listens there any more, and who asks is told so, while the one that was taken is accepted.
pub fn who_asks_a_closed_listener_is_refused<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let address = listener.passive.address();
    let first = End::calling(bed, address, &[]);
    let acceptor = End::acceptor(bed, listener.take(&[&first]));
    listener.passive.close();
    let late = End::calling(bed, address, &[]);
    late.fails(Errno::CONNREFUSED, &[&listener]);
    acceptor.endpoint.accept(b"yes").unwrap();
    let later = End::calling(bed, address, &[]);
    later.fails(Errno::CONNREFUSED, &[&listener]);
    assert_eq!(first.connected(&[&acceptor]), b"yes");
    acceptor.connected(&[&first]);
    assert!(listener.has_nothing());
}

/// An endpoint without events could never be told that it is connected.
pub fn a_connected_endpoint_needs_an_event_queue<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(DomainOptions::default());
    let endpoint = Endpoint::open(&domain, link::options()).unwrap();
    let refused = endpoint.bind_address_vector(&open_vector()).unwrap_err();
    assert_eq!(refused, EndpointError::NotForThisType { object: "address vector" });
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    assert_eq!(endpoint.enable().unwrap_err().errno(), Errno::NOEQ);
    let passive = PassiveEndpoint::open(bed.provider.clone(), Info::default()).unwrap();
    assert_eq!(passive.listen(), Err(ConnectionError::NoEventQueue));
    let events = link::events();
    passive.bind_event_queue(&events, LISTENER).unwrap();
    let twice = passive.bind_event_queue(&events, LISTENER);
    assert_eq!(twice, Err(ConnectionError::EventQueueBound));
    assert_eq!(events.close().unwrap_err().errno(), Errno::BUSY);
    passive.close();
    events.close().unwrap();
    assert_eq!(endpoint.shutdown(), Err(ConnectionError::NotConnected));
}
