//! What the cases on connections stand on: listeners, connected endpoints and their events.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use kestrel_core::{
    address::Address,
    completion_queue::{CompletionQueue, ReadError},
    connection::{passive_endpoint::PassiveEndpoint, request::ConnectionRequest},
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointOptions},
    error::Errno,
    event_queue::{ErrorEvent, Event, EventQueue, EventQueueAttributes, EventRead},
    flags::Flags,
    info::Info,
    transport::Provider,
};

use crate::{
    bed::{Bed, Node},
    completion::{Done, read_all},
    scale::PATIENCE,
};

/// The name of every listener in its events, and of every connected endpoint in its own.
pub const LISTENER: u64 = 7;
/// As above.
pub const ENDPOINT: u64 = 8;

/// An event queue of a test's own.
pub fn events() -> Arc<EventQueue> {
    Arc::new(EventQueue::open(EventQueueAttributes::default()).unwrap())
}

/// Drives `all` until `done`.
#[track_caller]
pub fn drive(what: &str, all: &[&dyn Driven], mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        all.iter().for_each(|one| one.drive());
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
    }
}

/// A listener, an end or a node, for [`drive`].
pub trait Driven {
    fn drive(&self);
}

/// A passive endpoint with the queue that it reports to.
pub struct Listener<P: Provider> {
    pub passive: Arc<PassiveEndpoint<P>>,
    pub events: Arc<EventQueue>,
}

impl<P: Provider> Driven for Listener<P> {
    fn drive(&self) {
        self.events.progress();
    }
}

impl<P: Provider> Driven for Node<P> {
    fn drive(&self) {
        self.poll();
    }
}

/// A request as its event tells it.
pub struct Asked {
    pub handle: u64,
    pub info: Box<Info>,
    pub data: Vec<u8>,
}

impl<P: Provider> Listener<P> {
    /// One that does not listen yet.
    pub fn open(bed: &Bed<P>) -> Listener<P> {
        Listener::over(bed, Info::default())
    }

    /// The same as `info` describes it.
    pub fn over(bed: &Bed<P>, info: Info) -> Listener<P> {
        let passive = PassiveEndpoint::open(bed.provider.clone(), info).unwrap();
        let events = events();
        passive.bind_event_queue(&events, LISTENER).unwrap();
        Listener { passive, events }
    }

    /// One that listens.
    pub fn listening(bed: &Bed<P>) -> Listener<P> {
        let listener = Listener::open(bed);
        listener.passive.listen().unwrap();
        listener
    }

    /// The next request, while `others` are driven.
    #[track_caller]
    pub fn request(&self, others: &[&dyn Driven]) -> Asked {
        drive("a request comes", others, || !self.has_nothing());
        match self.events.read() {
            EventRead::Event(Event::ConnectionRequest { fid: LISTENER, info, data }) => {
                Asked { handle: info.handle, info, data }
            }
            other => panic!("{other:?}"),
        }
    }

    /// The next request, taken.
    #[track_caller]
    pub fn take(&self, others: &[&dyn Driven]) -> ConnectionRequest<P> {
        let asked = self.request(others);
        self.passive.take(asked.handle).unwrap()
    }

    pub fn has_nothing(&self) -> bool {
        self.events.progress();
        self.events.is_empty()
    }
}

/// A connected endpoint, or one that is going to be.
pub struct End<P: Provider> {
    pub domain: Arc<Domain<P>>,
    pub endpoint: Arc<Endpoint<P>>,
    pub queue: Arc<CompletionQueue<P>>,
    pub events: Arc<EventQueue>,
    done: std::cell::RefCell<VecDeque<Done>>,
}

impl<P: Provider> Driven for End<P> {
    fn drive(&self) {
        self.events.progress();
        read_all(&self.queue, |done| self.done.borrow_mut().push_back(done));
    }
}

/// What a connected endpoint is opened with.
pub fn options() -> EndpointOptions {
    EndpointOptions { connected: true, ..EndpointOptions::default() }
}

/// Has a connected endpoint complete at `queue`, and its connection told of at `events`.
pub fn bind<P: Provider>(
    endpoint: &Endpoint<P>,
    queue: &Arc<CompletionQueue<P>>,
    events: &Arc<EventQueue>,
) {
    endpoint.bind_completion_queue(queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.bind_event_queue(events, ENDPOINT).unwrap();
}

impl<P: Provider> End<P> {
    /// One that `open` opens.
    pub fn open(bed: &Bed<P>, open: impl FnOnce(&Arc<Domain<P>>) -> Arc<Endpoint<P>>) -> End<P> {
        let domain = bed.domain(DomainOptions::default());
        let endpoint = open(&domain);
        End::over(&domain, endpoint)
    }

    /// What belongs to `endpoint`.
    pub fn over(domain: &Arc<Domain<P>>, endpoint: Arc<Endpoint<P>>) -> End<P> {
        End::reporting_to(events(), domain, endpoint)
    }

    /// The same with a queue for its events that may have those of others.
    pub fn reporting_to(
        events: Arc<EventQueue>,
        domain: &Arc<Domain<P>>,
        endpoint: Arc<Endpoint<P>>,
    ) -> End<P> {
        let domain = domain.clone();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        bind(&endpoint, &queue, &events);
        End { domain, endpoint, queue, events, done: Default::default() }
    }

    /// One to connect with.
    pub fn caller(bed: &Bed<P>) -> End<P> {
        End::open(bed, |domain| Endpoint::open(domain, options()).unwrap())
    }

    /// One that asked whoever is at `address`.
    pub fn calling(bed: &Bed<P>, address: Address, data: &[u8]) -> End<P> {
        let end = End::caller(bed);
        end.endpoint.connect(address, data).unwrap();
        end
    }

    /// One to accept `request` with.
    pub fn acceptor(bed: &Bed<P>, request: ConnectionRequest<P>) -> End<P> {
        End::open(bed, |domain| Endpoint::open_for(domain, options(), request).unwrap())
    }

    /// The next event, while `others` are driven.
    #[track_caller]
    pub fn event(&self, others: &[&dyn Driven]) -> Event {
        self.wait(others);
        match self.events.read() {
            EventRead::Event(event) => event,
            other => panic!("{other:?}: {:?}", self.events.read_error()),
        }
    }

    /// The next event, which has to say that it is connected; what came with it.
    #[track_caller]
    pub fn connected(&self, others: &[&dyn Driven]) -> Vec<u8> {
        match self.event(others) {
            Event::Connected { fid: ENDPOINT, data } => data,
            other => panic!("{other:?}"),
        }
    }

    /// The next event, which has to be a shutdown.
    #[track_caller]
    pub fn sees_shutdown(&self, others: &[&dyn Driven]) {
        assert_eq!(self.event(others), Event::Shutdown { fid: ENDPOINT });
    }

    /// The next error.
    #[track_caller]
    pub fn error(&self, others: &[&dyn Driven]) -> ErrorEvent {
        self.wait(others);
        assert_eq!(self.events.read(), EventRead::ErrorAvailable);
        self.events.read_error().unwrap()
    }

    /// The next error, which has to be this one; its data.
    #[track_caller]
    pub fn fails(&self, errno: Errno, others: &[&dyn Driven]) -> Vec<u8> {
        let error = self.error(others);
        assert_eq!((error.fid, error.error), (ENDPOINT, errno));
        error.error_data
    }

    /// The next error, which has to be a refusal, in words.
    #[track_caller]
    pub fn refusal(&self, others: &[&dyn Driven]) -> String {
        let error = self.error(others);
        assert_eq!((error.fid, error.error), (ENDPOINT, Errno::CONNREFUSED));
        error.reason
    }

    #[track_caller]
    fn wait(&self, others: &[&dyn Driven]) {
        drive("an event comes", &[&[self as &dyn Driven], others].concat(), || {
            !self.events.is_empty()
        });
    }

    /// The next completion, while `others` are driven.
    #[track_caller]
    pub fn done(&self, others: &[&dyn Driven]) -> Done {
        drive("a completion comes", &[&[self as &dyn Driven], others].concat(), || {
            !self.done.borrow().is_empty()
        });
        self.done.borrow_mut().pop_front().unwrap()
    }

    /// An error that is in the queue already: nobody else is driven.
    #[track_caller]
    pub fn failed_already(&self) -> Done {
        let head = self.queue.read(&mut [Default::default()]);
        assert_eq!(head.err(), Some(ReadError::ErrorAvailable));
        self.queue.read_error().expect("an error is there").into()
    }
}

/// A connection of two ends, with the listener that it came about by.
pub struct Link<P: Provider> {
    pub caller: End<P>,
    pub acceptor: End<P>,
    pub listener: Listener<P>,
}

impl<P: Provider> Link<P> {
    /// One that stands.
    #[track_caller]
    pub fn new(bed: &Bed<P>) -> Link<P> {
        let listener = Listener::listening(bed);
        let caller = End::calling(bed, listener.passive.address(), &[]);
        let acceptor = End::acceptor(bed, listener.take(&[&caller]));
        acceptor.endpoint.accept(&[]).unwrap();
        caller.connected(&[&acceptor, &listener]);
        acceptor.connected(&[&caller, &listener]);
        Link { caller, acceptor, listener }
    }
}
