use super::*;
use crate::{
    domain::DomainOptions,
    mock::{MockOptions, MockProvider},
};
use std::thread;

/// One of datagrams, with an address vector that is empty.
fn datagrams() -> SocketEndpoint<MockProvider> {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let options = EndpointOptions::default();
    let socket = SocketEndpoint::open(&domain, SocketKind::Datagram, options).unwrap();
    let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
    socket.bind_address_vector(&vector).unwrap();
    socket
}

/// Also while somebody else drives it, who would find that out when the call is over.
#[test]
fn nobody_sends_to_an_address_that_was_not_inserted() {
    let socket = datagrams();
    socket.enable().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                socket.endpoint().unit().unwrap().progress(16);
            }
        });
        let sends = (0..20_000).map(|_| socket.send_to(b"to nobody", 99));
        let others = sends.filter(|sent| !matches!(sent, Err(SocketError::Post(_)))).count();
        // Before anything else: who drives would never end.
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(others, 0);
    });
}

/// Enabling makes its buffers anew: who finds it enabled has to find those.
#[test]
fn nobody_finds_it_enabled_before_its_buffers_are_there() {
    let socket = datagrams();
    thread::scope(|scope| {
        let flow = socket.socket.lock();
        let enabling = scope.spawn(|| socket.enable());
        // Time for it to go on without the lock.
        thread::sleep(Duration::from_millis(50));
        assert!(socket.endpoint().unit().is_err());
        drop(flow);
        assert_eq!(enabling.join().unwrap(), Ok(()));
    });
    assert!(socket.endpoint().unit().is_ok());
}
