//! Address vectors in use: removal, reinsertion, duplicates, late insertion, users' own names.

use std::{net::IpAddr, sync::Arc};

use kestrel_core::{
    address::Address,
    address_vector::{
        AddressVector, AddressVectorAttributes, AddressVectorFlags, FI_ADDR_NOTAVAIL,
        FI_ADDR_UNSPEC, Marks, fi_rx_addr,
    },
    completion_queue::CompletionQueue,
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    transport::Provider,
};

use crate::bed::{Bed, Node, Options, World, open_vector};
use crate::completion::read_all;

pub fn a_removed_address_is_unknown<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(3);
    world.warm_up();
    let node = &world.nodes[0];
    let (first, second) = (world.nodes[1].endpoint.address(), world.nodes[2].endpoint.address());
    node.vector.remove(&[1]).unwrap();
    let unknown = PostError::UnknownAddress { address: 1 };
    assert_eq!(node.endpoint.inject(&[1], 1), Err(unknown));
    assert_eq!(node.endpoint.receive(vec![1], 1, 0).unwrap_err().error, unknown);
    // What it sends has no name any more.
    world.nodes[1].endpoint.inject(&[1], 0).unwrap();
    node.receive(8, None, 0);
    assert_eq!(world.received(0).good().source, FI_ADDR_NOTAVAIL);
    // Its number goes to another, which is then known by its lowest.
    assert_eq!(node.vector.insert_one(second).unwrap(), 1);
    node.endpoint.inject(&[2], 1).unwrap();
    world.nodes[2].receive(8, None, 0);
    assert_eq!(world.received(2).good().length, 1);
    world.nodes[2].endpoint.inject(&[1], 0).unwrap();
    node.receive(8, None, 0);
    assert_eq!(world.received(0).good().source, 1, "the lowest of two");
    assert_eq!(node.vector.insert_one(first).unwrap(), 3);
    node.endpoint.inject(&[3], 3).unwrap();
    world.nodes[1].receive(8, None, 0);
    world.received(1).good();
    world.nodes[1].endpoint.inject(&[1], 0).unwrap();
    node.receive(8, Some(0), 4);
    node.endpoint.cancel(4).unwrap();
    world.received(0).bad(Errno::CANCELED);
    node.receive(8, None, 0);
    assert_eq!(world.received(0).good().source, 3);
    world.nothing_more();
}

pub fn duplicates_reach_the_same_peer<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let address = world.nodes[1].endpoint.address();
    let other = world.nodes[0].vector.insert_one(address).unwrap();
    assert_eq!(other, 2);
    for (number, to) in [1, 2, 1, 2].into_iter().enumerate() {
        world.post(|| world.nodes[0].endpoint.inject(&[number as u8], to));
    }
    for number in 0..4 {
        world.nodes[1].receive(1, None, 0);
        assert_eq!(world.received(1).good().returned.unwrap(), [number], "in one order");
    }
    // A receive directed at either name takes from it.
    world.nodes[1].endpoint.inject(&[7], 0).unwrap();
    world.nodes[0].endpoint.receive(vec![0; 1], 2, 5).unwrap();
    assert_eq!(world.received(0).good().context, 5);
    world.nodes[0].vector.remove(&[1]).unwrap();
    world.nodes[0].endpoint.inject(&[8], 2).unwrap();
    world.nodes[1].receive(1, None, 0);
    assert_eq!(world.received(1).good().returned.unwrap(), [8]);
}

/// An address is the same however it is written: it is a target, a source, and what receives are
/// directed at. So it is in a symmetric vector, which keeps its addresses as runs.
pub fn a_mapped_address_is_the_same_peer<P: Provider>(bed: &Bed<P>) {
    for flags in [AddressVectorFlags::empty(), AddressVectorFlags::SYMMETRIC] {
        mapped_addresses_are_the_same_peers(bed, flags);
    }
}

fn mapped_addresses_are_the_same_peers<P: Provider>(bed: &Bed<P>, flags: AddressVectorFlags) {
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    let open = |_| {
        let vector = Arc::new(AddressVector::open(attributes.clone()).unwrap());
        Node::try_open(bed, &Options::default(), vector).unwrap()
    };
    let world = World { nodes: (0..2).map(open).collect() };
    let mapped = |node: usize| {
        let address = world.nodes[node].endpoint.address();
        match address.ip() {
            IpAddr::V4(ip) => Address::new(ip.to_ipv6_mapped().into(), address.port()),
            IpAddr::V6(_) => address,
        }
    };
    let there = world.nodes[0].vector.insert_one(mapped(1)).unwrap();
    let here = world.nodes[1].vector.insert_one(mapped(0)).unwrap();
    // Of somebody whom nothing was sent to, nor directed at, it knows nothing but the address.
    world.nodes[1].receive(8, None, 0);
    world.post(|| world.nodes[0].endpoint.inject(&[0; 8], there));
    assert_eq!(world.received(1).good().source, here);
    world.nodes[1].endpoint.receive(vec![0; 8], here, 1).unwrap();
    world.post(|| world.nodes[0].endpoint.inject(&[1; 8], there));
    assert_eq!(world.received(1).good().source, here);
    world.nodes[1].send(vec![2; 8], here, None, 2);
    world.nodes[0].receive(8, None, 3);
    assert_eq!(world.received(0).good().source, there);
    // As it was inserted.
    let told = world.nodes[0].vector.lookup(there).unwrap();
    assert_eq!(told.format(), mapped(1).format());
}

pub fn a_source_is_known_once_it_is_inserted<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(1);
    let domain = bed.domain(Default::default());
    let stranger = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    stranger.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    let vector = open_vector();
    stranger.bind_address_vector(&vector).unwrap();
    stranger.enable().unwrap();
    vector.insert_one(world.nodes[0].endpoint.address()).unwrap();
    let drive = || {
        world.drive("a stranger's message", || {
            read_all(&queue, |done| {
                done.good();
            });
            world.waiting(0).1 > 0
        });
        world.received(0).good()
    };
    for length in [8, 5_000, 300_000] {
        world.nodes[0].receive(length, None, 0);
        stranger.send(vec![1; length], 0, 0).unwrap();
        assert_eq!(drive().source, FI_ADDR_NOTAVAIL);
    }
    // Unexpected before, known when received.
    stranger.inject(&[1], 0).unwrap();
    world.poll(20);
    assert_eq!(world.nodes[0].vector.insert_one(stranger.address()).unwrap(), 1);
    world.nodes[0].receive(8, None, 0);
    assert_eq!(drive().source, 1);
    world.nodes[0].vector.remove(&[1]).unwrap();
    world.nodes[0].receive(8, None, 0);
    stranger.inject(&[1], 0).unwrap();
    assert_eq!(drive().source, FI_ADDR_NOTAVAIL);
}

/// Endpoints that know each other, the first by a vector that was opened with these flags, in
/// which the second is at 0, and is called 70 if `marked`.
fn named_world<P: Provider>(
    bed: &Bed<P>,
    flags: AddressVectorFlags,
    marked: bool,
) -> (World<P>, Named<P>) {
    named_world_with(bed, flags, marked, EndpointOptions::default())
}

/// The same, with these options of the first.
pub fn named_world_with<P: Provider>(
    bed: &Bed<P>,
    flags: AddressVectorFlags,
    marked: bool,
    options: EndpointOptions,
) -> (World<P>, Named<P>) {
    let world = bed.world(1);
    let domain = bed.domain(Default::default());
    let endpoint = Endpoint::open(&domain, options).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    let vector = std::sync::Arc::new(AddressVector::open(attributes).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.enable().unwrap();
    assert_eq!(world.nodes[0].vector.insert_one(endpoint.address()).unwrap(), 1);
    let mut id = |_| 70;
    let marks = if marked { Marks::UserIds(&mut id) } else { Marks::None };
    let address = world.nodes[0].endpoint.address();
    assert_eq!(vector.insert_each([address], marks, |result| assert_eq!(result, Ok(0))), 1);
    (world, Named { endpoint, queue, vector })
}

/// The first endpoint of a named world.
pub struct Named<P: Provider> {
    endpoint: Arc<Endpoint<P>>,
    queue: Arc<CompletionQueue<P>>,
    /// Its vector.
    pub vector: Arc<AddressVector>,
}

impl<P: Provider> Named<P> {
    /// Whom the next message from `world` is said to come from, received from `from`.
    pub fn source(&self, world: &World<P>, from: u64) -> u64 {
        self.endpoint.receive(vec![0; 8], from, 0).unwrap();
        world.nodes[0].endpoint.inject(&[1], 1).unwrap();
        let mut source = None;
        world.drive("a message with a source", || {
            read_all(&self.queue, |done| source = Some(done.good().source));
            source.is_some()
        });
        source.unwrap()
    }
}

/// fi_av(3): "this flag associates a user-assigned identifier with each AV entry that is returned
/// with any completion entry in place of the AV's address", and "that value must be used for all
/// data transfer operations" of the one that insertion answers.
pub fn completions_name_a_source_as_its_insertion_said<P: Provider>(bed: &Bed<P>) {
    let (world, named) = named_world(bed, AddressVectorFlags::empty(), true);
    assert_eq!(named.source(&world, FI_ADDR_UNSPEC), 70);
    assert_eq!(named.source(&world, 0), 70, "it goes by its number in operations");
    let unknown = named.endpoint.receive(vec![0; 8], 70, 0).unwrap_err().error;
    assert_eq!(unknown, PostError::UnknownAddress { address: 70 });
    let nobody = nobody_beside(named.endpoint.address());
    let mut id = |_| 71;
    named.vector.insert_each([nobody], Marks::UserIds(&mut id), |_| ());
    named.endpoint.send(vec![1; 8], 1, 0).unwrap();
    let mut failed = None;
    world.drive("an error", || {
        read_all(&named.queue, |done| failed = Some(done));
        failed.is_some()
    });
    assert_eq!(failed.unwrap().bad(Errno::HOSTUNREACH).source, 71, "errors as well");
}

/// fi_av(3): "all subsequent target events corresponding to the address being inserted will return
/// FI_ADDR_NOTAVAIL until the user defines a user ID for this fi_addr_t".
pub fn a_vector_with_user_ids_names_no_source_until_told<P: Provider>(bed: &Bed<P>) {
    let (world, named) = named_world(bed, AddressVectorFlags::USER_ID, false);
    assert_eq!(named.source(&world, FI_ADDR_UNSPEC), FI_ADDR_NOTAVAIL);
    for id in [5, 1 << 63, 6] {
        named.vector.set_user_id(0, id).unwrap();
        assert_eq!(named.source(&world, 0), id);
    }
}

/// A symmetric vector's addresses lead to the same peers as any other's.
pub fn a_symmetric_vector_reaches_everybody<P: Provider>(bed: &Bed<P>) {
    let (world, named) = named_world(bed, AddressVectorFlags::SYMMETRIC, false);
    assert_eq!(named.source(&world, 0), 0);
    // Another is put in front of it, and it comes back behind.
    let address = world.nodes[0].endpoint.address();
    assert_eq!(named.vector.insert_one(address.with_port(1)).unwrap(), 1);
    named.vector.remove(&[0]).unwrap();
    assert_eq!(named.source(&world, FI_ADDR_UNSPEC), FI_ADDR_NOTAVAIL);
    assert_eq!(named.vector.insert_one(named.endpoint.address()).unwrap(), 0);
    assert_eq!(named.vector.insert_one(address).unwrap(), 2);
    assert_eq!(named.source(&world, 2), 2);
}

pub fn receive_context_bits_are_ignored<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    let attributes = AddressVectorAttributes { rx_ctx_bits: 8, ..Default::default() };
    let vector = std::sync::Arc::new(AddressVector::open(attributes).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.enable().unwrap();
    let own = vector.insert_one(endpoint.address()).unwrap();
    let start = std::time::Instant::now();
    for rx_index in [0, 1, 255] {
        let to = fi_rx_addr(own, rx_index, 8);
        endpoint.inject(&[1], to).unwrap();
        endpoint.receive(vec![0; 1], to, rx_index).unwrap();
        let mut found = None;
        while found.is_none() {
            read_all(&queue, |done| found = Some(done.context()));
            assert!(start.elapsed() < crate::scale::PATIENCE);
        }
        assert_eq!(found, Some(rx_index));
    }
}

/// Where nobody listens. The port of an endpoint that closed may be the next one's, of the test beside this one.
pub(super) fn nobody_beside(address: Address) -> Address {
    address.with_port(1)
}

/// What a node calls nobody.
pub(super) fn insert_nobody<P: Provider>(node: &Node<P>) -> u64 {
    node.vector.insert_one(nobody_beside(node.endpoint.address())).unwrap()
}

pub fn nobody_there_is_an_error_of_the_operation<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(1);
    let nobody = nobody_beside(world.nodes[0].endpoint.address());
    let to = world.nodes[0].vector.insert_one(nobody).unwrap();
    for length in [8, 5_000, 300_000] {
        world.nodes[0].send(vec![1; length], to, Some(1), 6);
        let error = world.sent(0);
        assert_eq!(error.errno, Some(Errno::HOSTUNREACH), "{error:?}");
        assert_eq!((error.context, error.source), (6, to));
        assert_eq!(error.source_address, Some(nobody));
        assert_eq!(error.returned.unwrap().len(), length, "the buffer comes back");
    }
    // An inject names no context by which an entry would be known: the call itself is refused, unless it
    // takes long to know.
    match world.nodes[0].endpoint.inject(&[1], to) {
        Ok(()) => drop(world.sent(0).bad(Errno::HOSTUNREACH)),
        Err(refused) => {
            assert!(matches!(refused, PostError::Unreachable { errno: Errno::HOSTUNREACH, .. }));
            world.poll(1);
            world.nothing_more();
        }
    }
}
