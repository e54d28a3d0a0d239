//! The same over connected endpoints (FI_EP_MSG), with discovery and events.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::{
    Address, CompletionQueue, ConnectionRequest, Domain, Endpoint, EndpointType, Event, EventQueue,
    EventQueueAttributes, EventRead, Flags, Hints, Info, objects,
};

use crate::{Asker, Failure, Node, PATIENCE};

/// Until an event queue is looked at again.
const PAUSE: Duration = Duration::from_millis(1);
/// Until a connection is asked for again after one that was not made.
const BREATH: Duration = Duration::from_millis(200);

/// What endpoints are opened from, and on.
pub struct Place {
    info: Info,
    domain: Arc<Domain>,
}

impl Place {
    /// The best that discovery finds at `own`, ADDRESS:PORT.
    pub fn at(own: &str) -> Result<Place, Failure> {
        let (node, port) = own.rsplit_once(':').ok_or("no port")?;
        let hints = Hints::new().endpoint_type(EndpointType::Msg);
        let found = kestrel::discover_at(Some(node), Some(port), true, Some(&hints))?;
        let info = found.into_iter().next().ok_or("nothing was found")?;
        let domain = kestrel::open_domain(&info)?;
        Ok(Place { info, domain })
    }

    /// Accepts whoever asks, one after the other, until nobody does any more.
    pub fn serve(&self) -> Result<(), Failure> {
        let passive = kestrel::open_passive_endpoint(&self.info)?;
        let events = Arc::new(EventQueue::open(EventQueueAttributes::default())?);
        passive.bind_event_queue(&events, 0)?;
        passive.listen()?;
        while let Some(Event::ConnectionRequest { info, .. }) = event(&events)? {
            let node = self.open(Some(passive.take(info.handle)?))?;
            node.endpoint.accept(&[])?;
            // Who asked may be gone by now, and goes while it is served.
            let served = match node.established()? {
                Ok(()) => node.serve().map_err(|error| error.to_string()),
                refused => refused,
            };
            println!("served: {served:?}");
        }
        Ok(())
    }

    /// Asks until all have ended and the connection is over, and then for another connection.
    pub fn ask(&self, peer: &str) -> Result<(), Failure> {
        let peer = Address::from(peer.parse::<SocketAddr>()?);
        let asker = Asker::until_all_have_ended(self.connect(peer)??)?;
        let start = Instant::now();
        while !asker.node().is_shut_down()? {
            if start.elapsed() > PATIENCE {
                return Err("the connection does not end".into());
            }
            std::thread::sleep(PAUSE);
        }
        println!("shut down {} ms after that", start.elapsed().as_millis());
        drop(asker);
        let over = Instant::now();
        for attempt in 1.. {
            let start = Instant::now();
            match self.connect(peer)? {
                Ok(node) => {
                    Asker::told(&node)?;
                    println!("reached again by attempt {attempt}");
                    return Ok(());
                }
                Err(reason) => {
                    let took = start.elapsed().as_millis();
                    println!("attempt {attempt} failed after {took} ms: {reason}");
                }
            }
            if over.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(BREATH);
        }
        Err("the peer is never reached again".into())
    }

    /// A connection to `peer`, or why there is none.
    fn connect(&self, peer: Address) -> Result<Result<Node, String>, Failure> {
        let node = self.open(None)?;
        node.endpoint.connect(peer, &[])?;
        Ok(node.established()?.map(|()| node))
    }

    /// An endpoint at a port of its own, to connect with or to accept with.
    fn open(&self, request: Option<ConnectionRequest>) -> Result<Node, Failure> {
        let mut options = objects::endpoint_options(&self.info);
        options.address = options.address.map(|address| address.with_port(0));
        let endpoint = match request {
            None => Endpoint::open(&self.domain, options)?,
            Some(request) => Endpoint::open_for(&self.domain, options, request)?,
        };
        let queue = CompletionQueue::open(&self.domain, 0)?;
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
        let events = Arc::new(EventQueue::open(EventQueueAttributes::default())?);
        endpoint.bind_event_queue(&events, 0)?;
        // Nobody looks at the peer of an operation.
        Ok(Node { endpoint, queue, events: Some(events), peer: 0 })
    }
}

impl Node {
    /// Waits until its connection stands, or it is clear that it does not, and why.
    fn established(&self) -> Result<Result<(), String>, Failure> {
        let events = self.events.as_ref().ok_or("no connection")?;
        match event(events) {
            Ok(Some(Event::Connected { .. })) => Ok(Ok(())),
            Ok(other) => Err(format!("neither connected nor refused: {other:?}").into()),
            Err(reason) => Ok(Err(reason)),
        }
    }
}

/// The next event, the reason of the next error, or none if neither comes for long.
fn event(events: &EventQueue) -> Result<Option<Event>, String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match events.read() {
            EventRead::Event(event) => return Ok(Some(event)),
            EventRead::Empty => std::thread::sleep(PAUSE),
            other => {
                let error = events.read_error().ok_or(format!("{other:?}"))?;
                return Err(format!("{}: {}", error.error, error.reason));
            }
        }
    }
    Ok(None)
}
