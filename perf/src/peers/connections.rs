//! Connected endpoints (FI_EP_MSG), all of which complete at the same two queues.

use super::ping_pong::PingPong;
use crate::end::End;
use crate::fabric::{FabricError, Setup, open};
use crate::stall::Stall;
use kestrel::{CompletionQueue, Domain, Endpoint, PassiveEndpoint};
use kestrel_core::endpoint::EndpointOptions;
use kestrel_core::event_queue::{Event, EventQueue, EventRead};
use kestrel_core::flags::Flags;
use std::sync::Arc;

/// What events say that a listener reports, and others.
const LISTENER: u64 = 1;
const ENDPOINT: u64 = 2;

/// Two ends of a connection, which send messages to and fro, and others that complete where they do.
pub struct Connections {
    pair: PingPong,
    place: Place,
    others: Vec<[Arc<Endpoint>; 2]>,
}

impl Connections {
    /// One, and no others.
    pub fn open(setup: &Setup) -> Result<Self, FabricError> {
        let place = Place::open(setup)?;
        let [calling, answering] = place.connect()?;
        let [caller, answerer] = place.hosts.each_ref().map(|host| host.queue.clone());
        let ends = [
            End { endpoint: calling, queue: caller },
            End { endpoint: answering, queue: answerer },
        ];
        // The address says nothing: there is one peer.
        let pair = PingPong::between(ends, [0, 0])?;
        Ok(Connections { pair, place, others: Vec::new() })
    }

    /// So many others.
    pub fn add(&mut self, count: u16) -> Result<(), FabricError> {
        for _ in 0..count {
            self.others.push(self.place.connect()?);
        }
        Ok(())
    }

    pub fn pair(&self) -> &PingPong {
        &self.pair
    }
}

/// What the ends of one side have in common.
struct Host {
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
}

/// Where connections are made.
struct Place {
    options: EndpointOptions,
    hosts: [Host; 2],
    listener: Arc<PassiveEndpoint>,
    events: Arc<EventQueue>,
}

impl Place {
    fn open(setup: &Setup) -> Result<Self, FabricError> {
        let options = EndpointOptions { connected: true, ..setup.endpoint.clone() };
        let host = || -> Result<_, FabricError> {
            let domain = setup.open_domain()?;
            let queue = CompletionQueue::open(&domain, 0).map_err(open)?;
            Ok(Host { domain, queue })
        };
        let events = Arc::new(EventQueue::open(Default::default()).map_err(open)?);
        let listener = setup.open_listener()?;
        listener.bind_event_queue(&events, LISTENER).map_err(open)?;
        listener.listen().map_err(open)?;
        Ok(Place { options, hosts: [host()?, host()?], listener, events })
    }

    /// Both ends of a new one.
    fn connect(&self) -> Result<[Arc<Endpoint>; 2], FabricError> {
        let [caller, answerer] = &self.hosts;
        let calling = Endpoint::open(&caller.domain, self.options.clone()).map_err(open)?;
        self.bind(&calling, caller)?;
        calling.connect(self.listener.address(), &[]).map_err(open)?;
        let Event::ConnectionRequest { fid: LISTENER, info, .. } = self.event()? else {
            return Err(open("another event than a request for a connection"));
        };
        let request = self.listener.take(info.handle).map_err(open)?;
        let answering = Endpoint::open_for(&answerer.domain, self.options.clone(), request);
        let answering = answering.map_err(open)?;
        self.bind(&answering, answerer)?;
        answering.accept(&[]).map_err(open)?;
        for _ in [&calling, &answering] {
            let Event::Connected { fid: ENDPOINT, .. } = self.event()? else {
                return Err(open("another event than that of a connection"));
            };
        }
        Ok([calling, answering])
    }

    fn bind(&self, endpoint: &Endpoint, host: &Host) -> Result<(), FabricError> {
        let flags = Flags::TRANSMIT | Flags::RECV;
        endpoint.bind_completion_queue(&host.queue, flags).map_err(open)?;
        endpoint.bind_event_queue(&self.events, ENDPOINT).map_err(open)
    }

    /// The next event.
    fn event(&self) -> Result<Event, FabricError> {
        let mut stall = Stall::default();
        loop {
            match self.events.read() {
                EventRead::Event(event) => return Ok(event),
                EventRead::Empty if stall.is_too_long() => return Err(FabricError::Stalled),
                EventRead::Empty | EventRead::Refused => {}
                EventRead::ErrorAvailable => {
                    let error = self.events.read_error();
                    return Err(open(error.map_or_else(String::new, |error| error.reason)));
                }
            }
        }
    }
}
