//! Two threads that sleep on queues of one endpoint: what wakes one, or ends its
//! wait, leaves the other's bell on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    completion_queue::Entry,
    domain::DomainOptions,
    endpoint::EndpointOptions,
    flags::Flags,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    node::{CompletionQueue, Domain, Endpoint, Node},
    scale::{PATIENCE, scaled},
};

#[test]
fn a_sleeper_that_gives_up_leaves_the_others_their_bell() {
    let provider = Arc::new(ShmProvider::new(ShmOptions::default()).unwrap());
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let (transmit, receive) =
        (CompletionQueue::open(&domain, 0).unwrap(), CompletionQueue::open(&domain, 0).unwrap());
    let vector = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.bind_completion_queue(&transmit, Flags::TRANSMIT).unwrap();
    endpoint.bind_completion_queue(&receive, Flags::RECV).unwrap();
    endpoint.enable().unwrap();
    let sender = Node::open();
    let to = sender.insert(endpoint.address());
    for round in 0..scaled(20, 100, 1000) as u64 {
        endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, round).unwrap();
        let slept = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut entry = [Entry::default()];
                let start = Instant::now();
                let read = receive.read_blocking(&mut entry, Some(PATIENCE));
                assert!(read.is_ok(), "round {round}: {read:?}");
                assert_eq!(entry[0].context, round);
                start.elapsed()
            });
            // By now the other sleeps; this one waits in vain for a moment, and goes away.
            std::thread::sleep(Duration::from_millis(1));
            let mut entry = [Entry::default()];
            let nap = Some(Duration::from_micros(400));
            assert!(transmit.read_blocking(&mut entry, nap).is_err());
            sender.endpoint.inject(&[1; 8], to).unwrap();
            while round == 0 && !sleeper.is_finished() {
                // The first message has a connection to wait for.
                assert!(sender.poll().is_none());
            }
            sleeper.join().unwrap()
        });
        // It was woken by the message, not by the end of its patience.
        assert!(slept < PATIENCE / 2, "round {round}: {slept:?}");
    }
}
