use super::*;
use crate::{
    domain::DomainOptions,
    mock::{MockOptions, MockProvider},
};
use std::thread;

/// Enabling makes its buffers anew: who finds it enabled has to find those.
#[test]
fn nobody_finds_it_enabled_before_its_buffers_are_there() {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let options = EndpointOptions::default();
    let socket = SocketEndpoint::open(&domain, SocketKind::Datagram, options).unwrap();
    let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
    socket.bind_address_vector(&vector).unwrap();
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
