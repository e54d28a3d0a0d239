//! Datagrams of socket endpoints. Reference: fi_endpoint(3), "SOCKET ENDPOINTS".

use std::{sync::Arc, time::Duration};

use kestrel_core::{
    address_vector::{AddressVector, FI_ADDR_NOTAVAIL},
    domain::{Domain, DomainOptions},
    endpoint::{EndpointError, EndpointOptions},
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    socket_endpoint::{Readiness, Received, SocketEndpoint, SocketError, SocketKind},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, open_vector, pattern, same},
    scale::PATIENCE,
    socket::{IN, OUT, shown, shows},
};

struct Datagrams<P: Provider> {
    socket: SocketEndpoint<P>,
    vector: Arc<AddressVector>,
    domain: Arc<Domain<P>>,
}

impl<P: Provider> Datagrams<P> {
    fn open(bed: &Bed<P>) -> Datagrams<P> {
        let domain = bed.domain(DomainOptions::default());
        let options = EndpointOptions::default();
        let socket = SocketEndpoint::open(&domain, SocketKind::Datagram, options).unwrap();
        let vector = open_vector();
        socket.bind_address_vector(&vector).unwrap();
        socket.enable().unwrap();
        Datagrams { socket, vector, domain }
    }

    /// Two that know each other as 0.
    fn pair(bed: &Bed<P>) -> [Datagrams<P>; 2] {
        let pair = [Datagrams::open(bed), Datagrams::open(bed)];
        pair[0].vector.insert_one(pair[1].socket.address()).unwrap();
        pair[1].vector.insert_one(pair[0].socket.address()).unwrap();
        pair
    }

    /// The next datagram, and who sent it.
    #[track_caller]
    fn next(&self) -> (Vec<u8>, u64) {
        let mut buffer = vec![0; 64 << 10];
        let received = self.socket.receive_blocking(&mut buffer, Some(PATIENCE)).unwrap();
        assert_eq!(received.length, received.total);
        buffer.truncate(received.length);
        (buffer, received.source)
    }
}

/// "Provides … UDP socket-like semantics": each is whole, and of one sender.
pub fn datagrams_are_whole_and_have_a_source<P: Provider>(bed: &Bed<P>) {
    let [one, other] = Datagrams::pair(bed);
    let memory = Memory::from(pattern(50, 400));
    for length in [0, 1, 8, 48, 500] {
        let bytes = pattern(length as u64, length);
        assert_eq!(one.socket.send_to(&bytes, 0), Ok(length));
        let (found, source) = other.next();
        same(&found, &bytes, "a datagram");
        assert_eq!(source, 0);
    }
    let cut = memory.cut(&[100, 0, 300]);
    assert_eq!(one.socket.send_pieces(Pieces::Many(&cut), 0, Flags::empty()), Ok(400));
    assert_eq!(one.socket.inject(b"injected", 0), Ok(8));
    same(&other.next().0, &pattern(50, 400), "what was gathered");
    assert_eq!(other.next().0, b"injected");
    let stranger = Datagrams::open(bed);
    stranger.vector.insert_one(other.socket.address()).unwrap();
    assert_eq!(stranger.socket.send_to(b"who", 0), Ok(3));
    assert_eq!(other.next(), (b"who".to_vec(), FI_ADDR_NOTAVAIL));
}

/// What does not fit is lost, as the receiver is told; what is only looked at stays.
pub fn a_short_buffer_cuts_a_datagram<P: Provider>(bed: &Bed<P>) {
    let [one, other] = Datagrams::pair(bed);
    assert_eq!(one.socket.send_to(b"first one", 0), Ok(9));
    assert_eq!(one.socket.send_to(b"second", 0), Ok(6));
    let room = Memory::zeroed(5);
    other.socket.wait(Readiness::RECEIVE, Some(PATIENCE)).unwrap();
    let cut = Ok(Received { length: 5, total: 9, source: 0 });
    assert_eq!(other.socket.receive_pieces(room.all(), Flags::PEEK), cut);
    assert_eq!(other.socket.receive_pieces(room.all(), Flags::empty()), cut);
    assert_eq!(room.bytes(), b"first");
    assert_eq!(other.next().0, b"second");
    assert_eq!(other.socket.receive(&mut [0; 8]), Err(SocketError::Again));
}

/// The descriptor shows a datagram that nobody has asked for, and that there is none.
pub fn a_datagram_is_shown_by_the_descriptor<P: Provider>(bed: &Bed<P>) {
    let [one, other] = Datagrams::pair(bed);
    let fd = other.socket.descriptor().unwrap();
    shows(fd, OUT);
    one.socket.send_to(b"", 0).unwrap();
    shows(fd, IN | OUT);
    assert_eq!(other.next().0, b"");
    assert_eq!(shown(fd), OUT);
    let short = Some(Duration::from_millis(20));
    let waited = other.socket.receive_blocking(&mut [0; 8], short);
    assert_eq!(waited, Err(SocketError::Again));
}

/// A receiver that takes nothing keeps no sender, and hears the earliest when it does.
pub fn who_receives_nothing_stops_nobody<P: Provider>(bed: &Bed<P>) {
    const COUNT: u64 = 3000;
    let [one, other] = Datagrams::pair(bed);
    for number in 0..COUNT {
        loop {
            match one.socket.send_to(&number.to_le_bytes(), 0) {
                Ok(count) => break assert_eq!(count, 8),
                Err(error) => assert_eq!(error, SocketError::Again),
            }
            one.socket.wait(Readiness::SEND, Some(PATIENCE)).unwrap();
        }
    }
    let mut last = None;
    let mut bytes = [0; 8];
    let short = Some(Duration::from_millis(200));
    while let Ok(received) = other.socket.receive_blocking(&mut bytes, short) {
        assert_eq!(received.length, 8);
        let number = Some(u64::from_le_bytes(bytes));
        assert!(number > last, "{number:?} after {last:?}");
        last = number;
    }
    assert!(last.is_some());
}

/// Errors are of the call: too long, nobody's address, no connection, no vector.
pub fn what_datagram_sockets_have_not_is_refused<P: Provider>(bed: &Bed<P>) {
    let [one, _other] = Datagrams::pair(bed);
    let long = one.socket.send_to(&vec![0; 1 << 20], 0).unwrap_err();
    assert!(matches!(long, SocketError::TooLong { length, .. } if length == 1 << 20), "{long}");
    assert_eq!(one.socket.send_to(b"x", 99).unwrap_err().errno(), Errno::INVAL);
    let address = one.socket.address();
    assert_eq!(one.socket.connect(address, &[]).unwrap_err().errno(), Errno::NOSYS);
    assert_eq!(one.socket.accept(&[]).unwrap_err().errno(), Errno::NOSYS);
    assert_eq!(one.socket.shutdown().unwrap_err().errno(), Errno::NOSYS);
    let options = EndpointOptions::default();
    let alone = SocketEndpoint::open(&one.domain, SocketKind::Datagram, options).unwrap();
    assert_eq!(alone.enable(), Err(EndpointError::NoAddressVector.into()));
}
