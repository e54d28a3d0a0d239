//! Endpoints of datagrams with shared contexts. Reference: fi_endpoint(3), "SHARED CONTEXTS".

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::{CompletionQueue, Entry},
    domain::DomainOptions,
    endpoint::{Endpoint, EndpointError, EndpointOptions},
    flags::Flags,
    shared_context::SharedTransmit,
    transport::Provider,
};

use crate::{
    bed::{Bed, Options, World, open_vector, pattern, same},
    cases::shared_contexts::senders_with,
};

/// "fi_srx_context … share\[s\] receive context resources": here, too, a receive is whoever's
/// message comes first.
pub fn endpoints_share_receives<P: Provider>(bed: &Bed<P>) {
    let (mut sharers, world) = senders_with(bed, 3, 1, &Options::datagrams());
    let peer = &world.nodes[0];
    let waiting = || world.poll(1);
    for (round, expected) in [true, false, true, false].into_iter().enumerate() {
        for member in [2, 0, 1] {
            let (context, bytes) = (10 * round as u64 + member, pattern(member, 500));
            let post = || sharers.shared.receive(vec![0; 500], FI_ADDR_UNSPEC, context).unwrap();
            if expected {
                post();
            }
            peer.endpoint.send_data(bytes.clone(), member, 77, 1).unwrap();
            if !expected {
                for _ in 0..50 {
                    waiting();
                    sharers.poll();
                }
                post();
            }
            let (at, done) = sharers.next(waiting);
            assert_eq!((at as u64, done.context, done.errno), (member, context, None), "{done:?}");
            assert_eq!((done.source, done.data), (0, 77));
            same(&done.returned.unwrap(), &bytes, "a datagram");
        }
    }
    // Several find one buffer, whoever they are for.
    sharers.shared.receive_multi(vec![0; 4096], FI_ADDR_UNSPEC, 5).unwrap();
    for member in [1, 0, 2] {
        peer.endpoint.inject(&[7; 100], member).unwrap();
        let (at, done) = sharers.next(waiting);
        assert_eq!((at as u64, done.context, done.length), (member, 5, 100));
    }
    // Who closes takes none of them along.
    drop(sharers.members.remove(2));
    peer.endpoint.inject(&[8; 100], 1).unwrap();
    let (at, done) = sharers.next(waiting);
    assert_eq!((at, done.context, done.length), (1, 5, 100));
}

/// "fi_stx_context": what is sent by it goes out of each endpoint, and is told there.
pub fn endpoints_share_a_transmit_context<P: Provider>(bed: &Bed<P>) {
    let world = World { nodes: vec![bed.stranger(&Options::datagrams())] };
    let peer = &world.nodes[0];
    let domain = bed.domain(DomainOptions::default());
    let shares = EndpointOptions { shares_transmit: true, ..Options::datagrams().endpoint };
    let shared = SharedTransmit::open(&domain, Options::datagrams().endpoint).unwrap();
    let vector = open_vector();
    vector.insert_one(peer.endpoint.address()).unwrap();
    for context in 1..4 {
        let endpoint = Endpoint::open(&domain, shares.clone()).unwrap();
        endpoint.bind_address_vector(&vector).unwrap();
        let unbound = EndpointError::NoSharedContext { direction: "transmit" };
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
        assert_eq!(endpoint.enable().unwrap_err(), unbound);
        endpoint.bind_shared_transmit(&shared).unwrap();
        endpoint.enable().unwrap();
        peer.receive(8, None, context);
        endpoint.send(vec![context as u8; 8], 0, context).unwrap();
        let mut entry = [Entry::default()];
        world.drive("a datagram leaves", || queue.read(&mut entry).is_ok());
        assert_eq!(entry[0].context, context);
        assert_eq!(world.received(0).good().context, context);
    }
    shared.close().unwrap();
}
