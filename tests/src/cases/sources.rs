//! What comes from somebody who is not in the address vector, where that is an error
//! (FI_SOURCE_ERR). Reference: fi_cq(3), fi_av(3).

use std::sync::Arc;

use kestrel_core::{
    address_vector::{
        AddressVector, AddressVectorAttributes, AddressVectorFlags, FI_ADDR_NOTAVAIL,
        FI_ADDR_UNSPEC, Marks,
    },
    endpoint::{EndpointOptions, OptionName},
    error::Errno,
    flags::Flags,
    scalable_endpoint::ScalableEndpoint,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Node, Options, Receive, World, open_vector, pattern, same},
    cases::{addresses::named_world_with, peek::find},
    contexts::{Context, Portal, counts, next},
    one_sided::{BOTH, Rma, expose, segment},
};

/// The options of endpoints that want to be told.
pub fn telling() -> EndpointOptions {
    let mut endpoint = EndpointOptions::default();
    endpoint.capabilities |= Flags::SOURCE_ERR;
    endpoint
}

/// Two endpoints, of which the second does not know the first.
fn stranger_and_teller<P: Provider>(bed: &Bed<P>) -> World<P> {
    let nodes: Vec<_> = (0..2)
        .map(|_| bed.stranger(&Options { endpoint: telling(), ..Options::default() }))
        .collect();
    assert_eq!(nodes[0].vector.insert_one(nodes[1].endpoint.address()).unwrap(), 0);
    World { nodes }
}

/// "The completion will then be reported through fi_cq_readerr with error code
/// -FI_EADDRNOTAVAIL", and all that a good one says.
pub fn a_stranger_comes_with_its_address<P: Provider>(bed: &Bed<P>) {
    let world = stranger_and_teller(bed);
    let (stranger, teller) = (&world.nodes[0], &world.nodes[1]);
    let address = stranger.endpoint.address();
    for length in [8, 5_000, 300_000] {
        for tag in [None, Some(6)] {
            for expected in [true, false] {
                let post = || teller.receive(length, tag, 3);
                if expected {
                    post();
                }
                stranger.send(pattern(1, length), 0, tag, 2);
                if !expected {
                    world.poll(20);
                    post();
                }
                let done = world.received(1);
                let kind = if tag.is_some() { Flags::TAGGED } else { Flags::MSG };
                assert_eq!(done.errno, Some(Errno::ADDRNOTAVAIL), "{done:?}");
                assert_eq!((done.context, done.flags), (3, kind | Flags::RECV));
                assert_eq!((done.length, done.overflow), (length as u64, 0));
                assert_eq!((done.tag, done.source), (tag.unwrap_or(0), FI_ADDR_NOTAVAIL));
                assert_eq!(done.source_address, Some(address));
                same(&done.returned.unwrap(), &pattern(1, length), "it was received all the same");
                world.sent(0).good();
            }
        }
    }
    // Once it is known there is no error any more.
    let known = teller.vector.insert_one(address).unwrap();
    teller.receive(8, None, 4);
    stranger.send(vec![5; 8], 0, None, 2);
    assert_eq!(world.received(1).good().source, known);
    world.sent(0).good();
    world.nothing_more();
}

pub fn a_strangers_messages_fill_a_buffer<P: Provider>(bed: &Bed<P>) {
    let world = stranger_and_teller(bed);
    let (stranger, teller) = (&world.nodes[0], &world.nodes[1]);
    let into = Memory::zeroed(100);
    teller.endpoint.set_option(OptionName::MinMultiRecv, 40).unwrap();
    let flags = Flags::MULTI_RECV;
    let receive = Receive { pieces: into.all(), context: 9, flags, ..Receive::default() };
    teller.post_receive(&receive).unwrap();
    for nth in 0..3_u8 {
        stranger.endpoint.inject(&[nth; 30], 0).unwrap();
        let done = world.received(1);
        assert_eq!(done.errno, Some(Errno::ADDRNOTAVAIL), "{done:?}");
        assert_eq!((done.context, done.length), (9, 30));
        assert_eq!(done.buffer, into.start() + 30 * u64::from(nth));
        assert_eq!(done.flags.contains(flags), nth == 2, "70 bytes are left, 40, and 10");
    }
    world.nothing_more();
}

pub fn a_strangers_remote_data_is_told<P: Provider>(bed: &Bed<P>) {
    let world = stranger_and_teller(bed);
    let (target, from) = (Memory::zeroed(64), Memory::from(pattern(3, 64)));
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let segments = [segment(&region, 0, 64)];
    let data = Some(0xfeed);
    let write = Rma { pieces: from.all(), segments: &segments, data, ..Rma::default() };
    world.nodes[0].post_write(0, &write).unwrap();
    let done = world.received(1);
    assert_eq!((done.errno, done.data), (Some(Errno::ADDRNOTAVAIL), 0xfeed), "{done:?}");
    assert_eq!(done.source_address, Some(world.nodes[0].endpoint.address()));
    same(&target.bytes(), &from.bytes(), "written all the same");
    world.sent(0).good();
    world.nothing_more();
}

/// "If a peek request locates a matching message, the operation will complete successfully": who receives
/// the message hears of its sender.
pub fn a_peek_finds_what_a_stranger_sent<P: Provider>(bed: &Bed<P>) {
    let world = stranger_and_teller(bed);
    let tag = Some((5, 0));
    for flags in [Flags::empty(), Flags::CLAIM, Flags::DISCARD] {
        world.nodes[0].send(vec![1; 8], 0, Some(5), 0);
        let found = find(&world, flags, Receive { tag, context: 4, ..Receive::default() });
        assert_eq!((found.length, found.source), (8, FI_ADDR_NOTAVAIL), "{found:?}");
        world.sent(0).good();
        if flags == Flags::DISCARD {
            continue;
        }
        let into = Memory::zeroed(8);
        let receive = Receive { tag, flags, context: 4, pieces: into.all(), ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        let done = world.received(1);
        assert_eq!((done.errno, done.context), (Some(Errno::ADDRNOTAVAIL), 4), "{done:?}");
    }
    world.nothing_more();
}

/// "By default, all fi_addr_t's will be assigned the user ID FI_ADDR_NOTAVAIL": such a source is
/// known.
pub fn who_has_no_name_yet_is_no_stranger<P: Provider>(bed: &Bed<P>) {
    let (world, named) = named_world_with(bed, AddressVectorFlags::USER_ID, false, telling());
    assert_eq!(named.source(&world, FI_ADDR_UNSPEC), FI_ADDR_NOTAVAIL);
    named.vector.set_user_id(0, 5).unwrap();
    assert_eq!(named.source(&world, 0), 5);
}

/// fi_av(3): "all subsequent FI_EADDRNOTAVAIL error events will return FI_ADDR_NOTAVAIL until the
/// user defines a user ID for this authorization key fi_addr_t."
pub fn a_strangers_key_is_called_what_the_user_said<P: Provider>(bed: &Bed<P>) {
    let open = |flags| {
        let attributes = AddressVectorAttributes { flags, auth_keys: true, ..Default::default() };
        let vector = Arc::new(AddressVector::open(attributes).unwrap());
        let handle = vector.insert_auth_key(b"key").unwrap();
        let endpoint = EndpointOptions { vector_keys: true, ..telling() };
        let options = Options { endpoint, ..Options::default() };
        (Node::try_open(bed, &options, vector).unwrap(), handle)
    };
    let (stranger, key) = open(AddressVectorFlags::empty());
    let (teller, handle) = open(AddressVectorFlags::USER_ID);
    let (mut key_at, address) = (|_| key, teller.endpoint.address());
    stranger
        .vector
        .insert_each([address], Marks::AuthKeys(&mut key_at), |it| assert_eq!(it, Ok(0)));
    let world = World { nodes: vec![stranger, teller] };
    let told = |context| {
        world.nodes[1].receive(8, None, context);
        world.nodes[0].endpoint.inject(&[1; 8], 0).unwrap();
        let done = world.received(1);
        assert_eq!((done.context, done.errno), (context, Some(Errno::ADDRNOTAVAIL)), "{done:?}");
        done.source
    };
    assert_eq!(told(1), FI_ADDR_NOTAVAIL);
    for id in [4711, 1 << 63] {
        world.nodes[1].vector.set_auth_key_id(handle, id).unwrap();
        assert_eq!(told(id), id);
    }
    world.nothing_more();
}

/// Whether it is told is a receive context's affair, whatever the transmit context beside it has.
pub fn a_receive_context_tells_of_strangers<P: Provider>(bed: &Bed<P>) {
    let domain = bed.domain(Default::default());
    let endpoint = ScalableEndpoint::open(&domain, telling(), counts(1, 1)).unwrap();
    endpoint.bind_address_vector(&open_vector()).unwrap();
    endpoint.enable().unwrap();
    let transmit = endpoint.transmit_context(0, EndpointOptions::default()).unwrap();
    let _transmit = Context::enabled(transmit, Flags::TRANSMIT);
    let receive = endpoint.receive_context(0, telling()).unwrap();
    let receive = Context::enabled(receive, Flags::RECV);
    let stranger = Portal::open(bed, counts(1, 1));
    stranger.knows(&[endpoint.address()]);
    receive.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 5).unwrap();
    stranger.transmit[0].endpoint.inject(&[9; 8], 0).unwrap();
    let done = next(&receive, &[&stranger]);
    assert_eq!((done.errno, done.context), (Some(Errno::ADDRNOTAVAIL), 5), "{done:?}");
}
