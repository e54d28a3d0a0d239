//! A small echo server and client over socket endpoints, with discovery and all that belongs to
//! them. They sleep on descriptors, and nothing of theirs blocks elsewhere.

use std::{net::SocketAddr, os::fd::RawFd, sync::Arc, time::Duration};

use kestrel::{
    Address, AddressVector, AddressVectorAttributes, Domain, EventQueue, EventQueueAttributes,
    FI_ADDR_NOTAVAIL, Hints, Info, PassiveEndpoint, SocketEndpoint, SocketError, objects,
};
use kestrel_core::{
    event_queue::{Event, EventRead},
    info::EndpointType,
};

use crate::{
    bed::pattern,
    scale::PATIENCE,
    socket::{HANG_UP, IN, OUT, poll},
};

/// Why an end gave up.
pub type Failure = Box<dyn std::error::Error>;

/// The name of the listener in its events; streams have the numbers after it.
const LISTENER: u64 = 0;
/// A sleeper looks again after so long, whatever it waits for.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// The same, while something waits for room at a peer.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A datagram without an answer is lost after so long.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// What a node is opened from: the first that was found at `own`.
fn find(own: SocketAddr, kind: EndpointType) -> Result<(Info, Arc<Domain>), Failure> {
    let (node, port) = (own.ip().to_string(), own.port().to_string());
    let hints = Hints::new().endpoint_type(kind);
    let found = kestrel::discover_at(Some(&node), Some(&port), true, Some(&hints))?;
    let info = found.into_iter().next().ok_or("nothing was found")?;
    let domain = kestrel::open_domain(&info)?;
    Ok((info, domain))
}

fn new_events() -> Result<Arc<EventQueue>, Failure> {
    Ok(Arc::new(EventQueue::open(EventQueueAttributes::default())?))
}

/// Sleeps until one of the descriptors shows what it is waited for, or an event has to be
/// looked for.
fn sleep(events: &EventQueue, others: &[(RawFd, i16)]) {
    let Some(wait) = events.prepare_wait() else {
        return;
    };
    let mut all: Vec<(RawFd, i16)> = wait.descriptors().into_iter().map(|fd| (fd, IN)).collect();
    all.extend(others);
    poll(&all, if wait.waits_for_room() { LOOK_AGAIN } else { SLEEP_MAX });
}

/// One stream of the server's, and what it has to send back.
struct Client {
    socket: SocketEndpoint,
    fid: u64,
    unsent: Vec<u8>,
    has_ended: bool,
}

impl Client {
    /// Sends back what has come. False if the stream is over.
    fn echo(&mut self) -> Result<bool, SocketError> {
        let mut part = vec![0; 32 << 10];
        loop {
            while !self.unsent.is_empty() {
                match self.socket.send(&self.unsent) {
                    Ok(count) => drop(self.unsent.drain(..count)),
                    Err(SocketError::Again | SocketError::NotConnected) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            if self.has_ended {
                return Ok(false);
            }
            match self.socket.receive(&mut part) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.unsent.extend_from_slice(&part[..count]),
                Err(SocketError::Again | SocketError::NotConnected) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    fn interest(&self) -> Result<(RawFd, i16), SocketError> {
        let events = if self.unsent.is_empty() { IN } else { OUT };
        Ok((self.socket.descriptor()?, events | HANG_UP))
    }
}

/// Sends back what comes by any stream.
pub struct Server {
    info: Info,
    domain: Arc<Domain>,
    passive: Arc<PassiveEndpoint>,
    events: Arc<EventQueue>,
    clients: Vec<Client>,
    last_fid: u64,
}

impl Server {
    /// One that listens.
    pub fn open(own: SocketAddr) -> Result<Server, Failure> {
        let (info, domain) = find(own, EndpointType::SockStream)?;
        let passive = kestrel::open_passive_endpoint(&info)?;
        let events = new_events()?;
        passive.bind_event_queue(&events, LISTENER)?;
        passive.listen()?;
        let clients = Vec::new();
        Ok(Server { info, domain, passive, events, clients, last_fid: LISTENER })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.passive.address().socket_addr()
    }

    /// Serves, until it is killed; what goes wrong with one stream is told, and is its alone.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.take_events()?;
            self.clients.retain_mut(|client| match client.echo() {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    eprintln!("stream {}: {error}", client.fid);
                    false
                }
            });
            let interests: Result<Vec<_>, _> = self.clients.iter().map(Client::interest).collect();
            sleep(&self.events, &interests?);
        }
    }

    fn take_events(&mut self) -> Result<(), Failure> {
        loop {
            match self.events.read() {
                EventRead::Event(Event::ConnectionRequest { info, .. }) => {
                    if let Err(error) = self.accept(info.handle) {
                        eprintln!("a request: {error}");
                    }
                }
                EventRead::Event(_) => {}
                EventRead::ErrorAvailable => {
                    let error = self.events.read_error().ok_or("no error")?;
                    self.clients.retain(|client| client.fid != error.fid);
                }
                EventRead::Empty | EventRead::Refused => return Ok(()),
            }
        }
    }

    fn accept(&mut self, handle: u64) -> Result<(), Failure> {
        let request = self.passive.take(handle)?;
        let mut options = objects::endpoint_options(&self.info);
        options.address = options.address.map(|address| address.with_port(0));
        let socket = SocketEndpoint::open_for(&self.domain, options, request)?;
        self.last_fid += 1;
        socket.bind_event_queue(&self.events, self.last_fid)?;
        socket.accept(&[])?;
        let (fid, unsent) = (self.last_fid, Vec::new());
        self.clients.push(Client { socket, fid, unsent, has_ended: false });
        Ok(())
    }
}

/// Sends `length` bytes to a server, and checks that they come back, and then the end.
pub fn ask(own: SocketAddr, peer: SocketAddr, length: usize) -> Result<(), Failure> {
    let (info, domain) = find(own, EndpointType::SockStream)?;
    let (socket, events) = (kestrel::open_socket(&domain, &info)?, new_events()?);
    socket.bind_event_queue(&events, LISTENER)?;
    socket.connect(Address::from(peer), &[])?;
    loop {
        match events.read() {
            EventRead::Event(Event::Connected { .. }) => break,
            EventRead::Empty => sleep(&events, &[]),
            _ => return Err(format!("not connected: {:?}", events.read_error()).into()),
        }
    }
    let bytes = pattern(length as u64, length);
    let (mut sent, mut found, mut part) = (0, Vec::new(), vec![0; 50_000]);
    while found.len() < length {
        let mut moved = true;
        match socket.send(&bytes[sent..(sent + 10_007).min(length)]) {
            Ok(count) => sent += count,
            Err(SocketError::Again) => moved = false,
            Err(error) => return Err(error.into()),
        }
        match socket.receive(&mut part) {
            Ok(0) => return Err("the server ended the stream".into()),
            Ok(count) => found.extend_from_slice(&part[..count]),
            Err(SocketError::Again) if moved && sent < length => {}
            Err(SocketError::Again) => {
                let wanted = if sent < length { IN | OUT } else { IN };
                if poll(&[(socket.descriptor()?, wanted)], PATIENCE)[0] == 0 {
                    return Err(format!("no answer after {} of {length} bytes", found.len()).into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    if found != bytes {
        return Err("what came back is not what was sent".into());
    }
    Ok(socket.shutdown()?)
}

/// A socket of datagrams, and whom it knows.
pub struct Datagrams {
    socket: SocketEndpoint,
    peers: Arc<AddressVector>,
    longest: usize,
}

impl Datagrams {
    /// One at `own`.
    pub fn open(own: SocketAddr) -> Result<Datagrams, Failure> {
        let (info, domain) = find(own, EndpointType::SockDgram)?;
        let socket = kestrel::open_socket(&domain, &info)?;
        let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default())?);
        socket.bind_address_vector(&peers)?;
        socket.enable()?;
        Ok(Datagrams { socket, peers, longest: info.endpoint.max_msg_size })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.socket.address().socket_addr()
    }

    /// Sends everything back, until it is killed. Who asks says at the start where it is.
    pub fn serve(&self) -> Result<(), Failure> {
        let mut buffer = vec![0; self.longest];
        loop {
            poll(&[(self.socket.descriptor()?, IN)], SLEEP_MAX);
            while let Ok(received) = self.socket.receive_from(&mut buffer) {
                let datagram = &buffer[..received.length];
                let to = match received.source {
                    FI_ADDR_NOTAVAIL => self.insert_asker(datagram)?,
                    source => source,
                };
                // What finds no room is lost, as datagrams may be.
                let _ = self.socket.send_to(datagram, to);
            }
        }
    }

    fn insert_asker(&self, datagram: &[u8]) -> Result<u64, Failure> {
        let octets: [u8; 4] = datagram[..4].try_into()?;
        let port = u16::from_le_bytes(datagram[4..6].try_into()?);
        Ok(self.peers.insert_one(Address::new(octets.into(), port))?)
    }

    /// Asks a server so often; how many answers came, each of which has to be whole.
    pub fn ask(&self, peer: SocketAddr, count: u64) -> Result<u64, Failure> {
        let to = self.peers.insert_one(Address::from(peer))?;
        let (mut answers, mut buffer) = (0, vec![0; self.longest]);
        for number in 0..count {
            let question = self.question(number)?;
            self.socket.send_to(&question, to)?;
            // The answer before it may come late.
            while poll(&[(self.socket.descriptor()?, IN)], LOST_AFTER)[0] & IN != 0 {
                let received = self.socket.receive_from(&mut buffer)?;
                if buffer[..received.length] == question {
                    answers += 1;
                    break;
                }
                let earlier = u64::from_le_bytes(buffer[8..16].try_into()?);
                if buffer[..received.length] != self.question(earlier)? {
                    return Err(format!("the answer to {number} is another").into());
                }
            }
        }
        Ok(answers)
    }

    /// Who asks, the number, and as many bytes of its own as the number says.
    fn question(&self, number: u64) -> Result<Vec<u8>, Failure> {
        let SocketAddr::V4(own) = self.address() else {
            return Err("version 4 is used here".into());
        };
        let mut bytes = own.ip().octets().to_vec();
        bytes.extend(own.port().to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(number.to_le_bytes());
        let length = (number.wrapping_mul(97) % (self.longest as u64 - 15)) as usize;
        bytes.extend(pattern(number, length));
        Ok(bytes)
    }
}
