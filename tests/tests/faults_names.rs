//! Processes of this host that take the name of an address of another host: shared memory has any as a name, and
//! the endpoint there is reached otherwise.

use std::{sync::Arc, time::Instant};

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address::Address,
    domain::Sharing,
    error::{Cause, Errno},
    mock::{MockOptions, MockProvider},
    transport::{Provider, Transport, TransportEvent},
};
use kestrel_shm::{ShmOptions, ShmProvider, transport::ShmTransport};
use kestrel_tests::{
    bed::{Bed, Options, World},
    scale::PATIENCE,
};

type Mixed = CompositeProvider<ShmProvider, MockProvider>;

fn shm() -> ShmProvider {
    ShmProvider::new(ShmOptions::default()).unwrap()
}

/// Near peers are met by shared memory, and others on that network.
fn here(network: &MockProvider) -> World<Mixed> {
    let provider = Arc::new(Mixed::both(shm(), network.clone()));
    Bed { provider, sharing: Sharing::Exclusive }.world(1)
}

/// An endpoint of another host, at a port that no other test has: impostors take its name on this host.
fn elsewhere(network: &MockProvider, port: u16) -> World<MockProvider> {
    let mut options = Options::default();
    // Kept for documents: nobody has it.
    options.endpoint.address = Some(Address::new([192, 0, 2, 1].into(), port));
    let bed = Bed { provider: Arc::new(network.clone()), sharing: Sharing::Exclusive };
    bed.world_with(1, &options)
}

/// A message from one to the other, which calls it by that number.
fn talk<P: Provider, Q: Provider>(from: &World<P>, to: &World<Q>, number: u64, source: u64) {
    to.nodes[0].receive(8, None, 7);
    from.nodes[0].send(vec![1; 8], number, None, 8);
    from.drive("it comes", || {
        to.nodes[0].poll();
        to.waiting(0).1 > 0
    });
    let received = to.received(0).good();
    assert_eq!((received.context, received.source), (7, source));
    assert_eq!(from.sent(0).context(), 8);
}

/// Connects to `to`, and says why that is refused, if it is.
fn connect(impostor: &mut ShmTransport, to: Address) -> Option<Cause> {
    impostor.connect(0, to);
    let start = Instant::now();
    loop {
        match impostor.event() {
            Some(TransportEvent::Connected { .. }) => return None,
            Some(TransportEvent::Failed { reason, .. }) => return Some(reason),
            _ => assert!(start.elapsed() < PATIENCE, "no answer"),
        }
    }
}

#[test]
fn nobody_speaks_for_an_endpoint_of_another_host() {
    let network = MockProvider::new(MockOptions::default());
    let (here, there) = (here(&network), elsewhere(&network, 5000));
    let [ours, theirs] = [here.nodes[0].endpoint.address(), there.nodes[0].endpoint.address()];
    let to_there = here.nodes[0].vector.insert_one(theirs).unwrap();
    let to_here = there.nodes[0].vector.insert_one(ours).unwrap();
    talk(&here, &there, to_there, to_here);
    talk(&there, &here, to_here, to_there);
    let mut impostor = shm().open(Some(theirs), &[]).unwrap();
    let refused = connect(&mut impostor, ours).map(|refused| refused.errno);
    here.nothing_more();
    talk(&here, &there, to_there, to_here);
    talk(&there, &here, to_here, to_there);
    assert_eq!(refused, Some(Errno::CONNREFUSED));
}

#[test]
fn a_name_of_another_hosts_is_not_looked_for_here() {
    let network = MockProvider::new(MockOptions::default());
    let (here, there) = (here(&network), elsewhere(&network, 5001));
    let [ours, theirs] = [here.nodes[0].endpoint.address(), there.nodes[0].endpoint.address()];
    let _impostor = shm().open(Some(theirs), &[]).unwrap();
    let to_there = here.nodes[0].vector.insert_one(theirs).unwrap();
    let to_here = there.nodes[0].vector.insert_one(ours).unwrap();
    talk(&here, &there, to_there, to_here);
}
