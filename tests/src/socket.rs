//! What the cases on socket endpoints stand on: streams with their events, and poll and epoll.

use std::{
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    connection::request::ConnectionRequest,
    domain::{Domain, DomainOptions},
    endpoint::EndpointOptions,
    event_queue::{ErrorEvent, Event, EventQueue, EventRead},
    socket_endpoint::{SocketEndpoint, SocketError, SocketKind},
    transport::Provider,
};

use crate::{
    bed::Bed,
    link::{Driven, ENDPOINT, Listener, drive, events},
    scale::PATIENCE,
};

/// The events of poll(2) that a socket endpoint shows.
pub const IN: i16 = libc::POLLIN;
/// As above.
pub const OUT: i16 = libc::POLLOUT;
/// As above.
pub const HANG_UP: i16 = libc::POLLHUP;
/// As above.
pub const ERROR: i16 = libc::POLLERR;

/// What poll(2) says of a descriptor at once; its end must look as epoll sees it, too.
#[track_caller]
pub fn shown(fd: RawFd) -> i16 {
    let seen = polled(fd);
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLOUT) as u32, u64: 0 };
    // SAFETY: each call gets valid places, and the new descriptor is closed again.
    let found = unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        let count = libc::epoll_wait(epoll, &raw mut event, 1, 0);
        libc::close(epoll);
        if count == 1 { event.events as i16 } else { 0 }
    };
    // Between the two something may have come or gone: then there is nothing to compare.
    if polled(fd) == seen {
        assert_eq!(found, seen, "epoll and poll");
    }
    seen
}

/// What poll(2) says of descriptors, each with what it is waited for, in this time.
pub fn poll(descriptors: &[(RawFd, i16)], patience: Duration) -> Vec<i16> {
    let entry = |&(fd, events)| libc::pollfd { fd, events, revents: 0 };
    let mut entries: Vec<_> = descriptors.iter().map(entry).collect();
    let (first, count) = (entries.as_mut_ptr(), entries.len() as libc::nfds_t);
    // SAFETY: as many entries as the count says.
    unsafe { libc::poll(first, count, patience.as_millis() as libc::c_int) };
    entries.iter().map(|entry| entry.revents).collect()
}

fn polled(fd: RawFd) -> i16 {
    poll(&[(fd, IN | OUT)], Duration::ZERO)[0]
}

/// Waits until poll(2) says just this, calling nothing.
#[track_caller]
pub fn shows(fd: RawFd, expected: i16) {
    let start = Instant::now();
    while shown(fd) != expected {
        assert!(start.elapsed() < PATIENCE, "shown: {:#x}, not {expected:#x}", shown(fd));
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A stream with the queue that its connection is reported to.
pub struct Stream<P: Provider> {
    pub socket: SocketEndpoint<P>,
    pub events: Arc<EventQueue>,
    pub domain: Arc<Domain<P>>,
}

impl<P: Provider> Driven for Stream<P> {
    fn drive(&self) {
        self.events.progress();
    }
}

impl<P: Provider> Stream<P> {
    /// One that `open` opens.
    pub fn open(
        bed: &Bed<P>,
        open: impl FnOnce(&Arc<Domain<P>>) -> Result<SocketEndpoint<P>, SocketError>,
    ) -> Stream<P> {
        let domain = bed.domain(DomainOptions::default());
        let (socket, events) = (open(&domain).unwrap(), events());
        socket.bind_event_queue(&events, ENDPOINT).unwrap();
        Stream { socket, events, domain }
    }

    /// One to connect with.
    pub fn caller(bed: &Bed<P>) -> Stream<P> {
        let options = EndpointOptions::default();
        Stream::open(bed, |domain| SocketEndpoint::open(domain, SocketKind::Stream, options))
    }

    /// One that asked whoever is at `address`.
    pub fn calling(bed: &Bed<P>, address: Address) -> Stream<P> {
        let stream = Stream::caller(bed);
        stream.socket.connect(address, &[]).unwrap();
        stream
    }

    /// One to accept `request` with.
    pub fn acceptor(bed: &Bed<P>, request: ConnectionRequest<P>) -> Stream<P> {
        let options = EndpointOptions::default();
        Stream::open(bed, |domain| SocketEndpoint::open_for(domain, options, request))
    }

    /// The next event.
    #[track_caller]
    pub fn event(&self, others: &[&dyn Driven]) -> Result<Event, ErrorEvent> {
        drive("an event comes", &[&[self as &dyn Driven], others].concat(), || {
            !self.events.is_empty()
        });
        match self.events.read() {
            EventRead::Event(event) => Ok(event),
            _ => Err(self.events.read_error().expect("an error")),
        }
    }

    /// The next event, which has to say that it is connected.
    #[track_caller]
    pub fn connected(&self, others: &[&dyn Driven]) {
        match self.event(others) {
            Ok(Event::Connected { fid: ENDPOINT, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Sends all of it, however long that takes.
    #[track_caller]
    pub fn send(&self, bytes: &[u8]) {
        self.socket.send_all(bytes, Some(PATIENCE)).unwrap();
    }

    /// Receives so many bytes.
    #[track_caller]
    pub fn receive(&self, length: usize) -> Vec<u8> {
        let (mut bytes, mut done) = (vec![0; length], 0);
        while done < length {
            let received = self.socket.receive_blocking(&mut bytes[done..], Some(PATIENCE));
            let count = received.unwrap().length;
            assert_ne!(count, 0, "the stream ends after {done} bytes");
            done += count;
        }
        bytes
    }

    /// Receives up to the end of the stream, or what there is instead.
    pub fn receive_to_end(&self) -> (Vec<u8>, Result<(), SocketError>) {
        let (mut bytes, mut part) = (Vec::new(), vec![0; 10_000]);
        loop {
            match self.socket.receive_blocking(&mut part, Some(PATIENCE)) {
                Ok(received) if received.length == 0 => return (bytes, Ok(())),
                Ok(received) => bytes.extend_from_slice(&part[..received.length]),
                Err(error) => return (bytes, Err(error)),
            }
        }
    }

    /// Sends until nothing more is taken, while nothing is received. How much was taken.
    pub fn stuff(&self, pattern: &[u8]) -> usize {
        // By refusals, and no clock: this thread may be kept away while the other end goes on.
        const REFUSALS: usize = 500;
        let (mut taken, mut refusals) = (0, 0);
        while refusals < REFUSALS {
            match self.socket.send(&pattern[taken..]) {
                Ok(count) => {
                    taken += count;
                    assert!(taken < pattern.len(), "there is no end to what is taken");
                    refusals = 0;
                }
                Err(SocketError::Again) => {
                    refusals += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        taken
    }
}

/// Two streams that are connected, with the listener that they came about by.
pub struct Pair<P: Provider> {
    pub caller: Stream<P>,
    pub acceptor: Stream<P>,
    pub listener: Listener<P>,
}

impl<P: Provider> Pair<P> {
    #[track_caller]
    pub fn new(bed: &Bed<P>) -> Pair<P> {
        let listener = Listener::listening(bed);
        let caller = Stream::calling(bed, listener.passive.address());
        let acceptor = Stream::acceptor(bed, listener.take(&[&caller]));
        acceptor.socket.accept(&[]).unwrap();
        caller.connected(&[&acceptor, &listener]);
        acceptor.connected(&[&caller, &listener]);
        Pair { caller, acceptor, listener }
    }
}
