//! Endpoints that have their authorization keys from their address vectors. Reference: fi_av(3),
//! `fi_av_insert_auth_key`.

use std::sync::Arc;

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorFlags, FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, Marks},
    endpoint::{EndpointError, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Node, Options, Receive, World, pattern, same},
    cases::sources::telling,
    contexts::Sharers,
};

const BLUE: &[u8] = b"blue";
const RED: &[u8] = b"red";

/// Endpoints with those keys each, which know nobody.
fn strangers<P: Provider>(bed: &Bed<P>, keys: &[&[&[u8]]]) -> World<P> {
    let node = |keys: &&[&[u8]]| bed.stranger(&with_keys(keys));
    World { nodes: keys.iter().map(node).collect() }
}

fn with_keys(keys: &[&[u8]]) -> Options {
    Options { keys: keys.iter().map(|key| key.to_vec()).collect(), ..Options::default() }
}

/// Has a node know another one by a key.
fn meet<P: Provider>(world: &World<P>, who: usize, whom: usize, key: &[u8]) -> u64 {
    insert(&world.nodes[who].vector, world.nodes[whom].endpoint.address(), key)
}

fn insert(vector: &AddressVector, address: kestrel_core::address::Address, key: &[u8]) -> u64 {
    let handle = vector.insert_auth_key(key).unwrap();
    let (mut handle_at, mut found) = (|_| handle, FI_ADDR_NOTAVAIL);
    let marks = Marks::AuthKeys(&mut handle_at);
    assert_eq!(vector.insert_each([address], marks, |result| found = result.unwrap()), 1);
    found
}

/// A receive into `memory`, from whoever proved the key behind this handle.
fn by_key(memory: &Memory, handle: u64, tag: Option<u64>, context: u64) -> Receive<'static> {
    let (from, tag) = (handle, tag.map(|tag| (tag, 0)));
    Receive { pieces: memory.all(), from, tag, context, flags: Flags::AUTH_KEY }
}

/// "These fi_addr_t's can be used as the target for local data transfer operations."
pub fn peers_talk_by_a_key_that_both_have<P: Provider>(bed: &Bed<P>) {
    let world = strangers(bed, &[&[b"own", BLUE], &[BLUE, b"another"]]);
    // Somebody else comes first, so that both have numbers of their own.
    insert(&world.nodes[1].vector, world.nodes[1].endpoint.address(), b"another");
    let (there, back) = (meet(&world, 0, 1, BLUE), meet(&world, 1, 0, BLUE));
    assert_eq!((there, back), (0, 1));
    for (at, length) in [8, 5_000, 300_000].into_iter().enumerate() {
        let (context, bytes) = (at as u64, pattern(at as u64, length));
        world.nodes[1].receive(length, Some(4), context);
        world.nodes[0].send(bytes.clone(), there, Some(4), context);
        let done = world.received(1).good();
        assert_eq!((done.context, done.source), (context, back));
        same(&done.returned.unwrap(), &bytes, "there");
        world.sent(0).good();
        world.nodes[1].send(bytes.clone(), back, None, context);
        world.poll(20);
        world.nodes[0].receive(length, None, context);
        let done = world.received(0).good();
        assert_eq!(done.source, there);
        same(&done.returned.unwrap(), &bytes, "and back");
        world.sent(1).good();
    }
    world.nothing_more();
}

/// "Only peer endpoints that are programmed to use the same authorization key may communicate."
pub fn who_proves_no_key_is_not_heard<P: Provider>(bed: &Bed<P>) {
    let mut world = strangers(bed, &[&[BLUE, RED], &[b"third", RED]]);
    let own_key = |key: &[u8]| EndpointOptions { auth_key: key.to_vec(), ..Default::default() };
    for key in [BLUE, b"", b"fourth"] {
        let options = Options { endpoint: own_key(key), ..Options::default() };
        world.nodes.push(bed.stranger(&options));
    }
    let to = world.nodes[0].endpoint.address();
    world.nodes[0].receive(8, None, 0);
    // By a key that it has, and the other has not.
    let there = meet(&world, 1, 0, b"third");
    world.nodes[1].send(pattern(1, 8), there, None, 1);
    assert_eq!(world.sent(1).bad(Errno::CONNREFUSED).context, 1);
    // Without one, and with another one.
    for stranger in [3, 4] {
        assert_eq!(world.nodes[stranger].vector.insert_one(to), Ok(0));
        world.nodes[stranger].send(pattern(2, 8), 0, None, 2);
        world.sent(stranger).bad(Errno::CONNREFUSED);
    }
    // The same key is the same, wherever an endpoint has it from.
    assert_eq!(world.nodes[2].vector.insert_one(to), Ok(0));
    let back = meet(&world, 0, 2, BLUE);
    world.nodes[2].send(pattern(3, 8), 0, None, 3);
    let done = world.received(0).good();
    assert_eq!(done.source, back);
    same(&done.returned.unwrap(), &pattern(3, 8), "the only one that is heard");
    world.sent(2).good();
    world.nothing_more();
}

/// "If the endpoint supports FI_DIRECTED_RECV, these fi_addr_t's can be used to restrict receive
/// buffers to a specific endpoint address and authorization key."
pub fn a_peer_by_two_keys_is_two_sources<P: Provider>(bed: &Bed<P>) {
    let world = strangers(bed, &[&[BLUE, RED], &[RED, BLUE]]);
    let there = [BLUE, RED].map(|key| meet(&world, 0, 1, key));
    let back = [BLUE, RED].map(|key| meet(&world, 1, 0, key));
    assert_eq!((there, back), ([0, 1], [0, 1]));
    let node = &world.nodes[1];
    let send = |key: usize, tag| {
        world.nodes[0].send(pattern(key as u64, 64), there[key], tag, 0);
        world.sent(0).good();
    };
    for tag in [Some(3), None] {
        for is_late in [false, true] {
            let post = |key: usize| match tag {
                Some(tag) => {
                    node.endpoint.receive_tagged(vec![0; 64], back[key], tag, 0, key as u64)
                }
                None => node.endpoint.receive(vec![0; 64], back[key], key as u64),
            };
            if is_late {
                send(0, tag);
                send(1, tag);
                world.poll(20);
                post(1).unwrap();
                post(0).unwrap();
            } else {
                post(1).unwrap();
                post(0).unwrap();
                send(0, tag);
                send(1, tag);
            }
            for done in [world.received(1).good(), world.received(1).good()] {
                assert_eq!(done.source, back[done.context as usize]);
                same(&done.returned.unwrap(), &pattern(done.context, 64), "by its own key");
            }
        }
    }
    // Without one of them in the vector, its messages have no name.
    node.vector.remove(&[back[0]]).unwrap();
    node.receive(64, None, 5);
    send(0, None);
    assert_eq!(world.received(1).good().source, FI_ADDR_NOTAVAIL);
    world.nothing_more();
}

/// "All subsequent FI_EADDRNOTAVAIL error events will return the authorization key fi_addr_t
/// handle": an address can be inserted by it.
pub fn a_stranger_comes_with_the_key_that_it_proved<P: Provider>(bed: &Bed<P>) {
    let telling = Options { endpoint: telling(), ..with_keys(&[BLUE, RED]) };
    let world = World { nodes: vec![bed.stranger(&with_keys(&[RED])), bed.stranger(&telling)] };
    let (to, node) = (meet(&world, 0, 1, RED), &world.nodes[1]);
    let red = node.vector.insert_auth_key(RED).unwrap();
    node.receive(8, None, 1);
    world.nodes[0].endpoint.inject(&[1; 8], to).unwrap();
    let done = world.received(1);
    assert_eq!((done.errno, done.source), (Some(Errno::ADDRNOTAVAIL), red), "{done:?}");
    let known = insert(&node.vector, done.source_address.unwrap(), RED);
    node.receive(8, None, 2);
    world.nodes[0].endpoint.inject(&[2; 8], to).unwrap();
    assert_eq!(world.received(1).good().source, known);
    world.nothing_more();
}

/// "For endpoints enabled with FI_DIRECTED_RECV, authorization key fi_addr_t's can be used to
/// restrict incoming messages to only endpoint addresses within the authorization key."
pub fn a_receive_by_key_takes_from_all_who_prove_it<P: Provider>(bed: &Bed<P>) {
    let memories: Vec<Memory> = (0..4).map(|_| Memory::zeroed(64)).collect();
    let world = strangers(bed, &[&[BLUE, RED], &[BLUE], &[RED], &[RED]]);
    let to: Vec<u64> =
        [(1, BLUE), (2, RED), (3, RED)].map(|(who, key)| meet(&world, who, 0, key)).to_vec();
    let receiver = &world.nodes[0];
    let red = receiver.vector.insert_auth_key(RED).unwrap();
    let blue = receiver.vector.insert_auth_key(BLUE).unwrap();
    let send = |who: usize, tag| {
        world.nodes[who].send(pattern(who as u64, 64), to[who - 1], tag, 0);
        world.sent(who).good();
    };
    for tag in [Some(7), None] {
        // Posted before, in between a receive from anybody: the earliest that matches.
        receiver.post_receive(&by_key(&memories[0], red, tag, 10)).unwrap();
        receiver.receive(64, tag, 11);
        receiver.post_receive(&by_key(&memories[1], blue, tag, 12)).unwrap();
        receiver.post_receive(&by_key(&memories[2], red, tag, 13)).unwrap();
        let mut order = Vec::new();
        for who in [1, 2, 3, 1] {
            send(who, tag);
            order.push(world.received(0).good().context);
        }
        assert_eq!(order, [11, 10, 13, 12]);
        same(&memories[0].bytes(), &pattern(2, 64), "red");
        same(&memories[2].bytes(), &pattern(3, 64), "red as well");
        same(&memories[1].bytes(), &pattern(1, 64), "blue");
        // Posted when they wait.
        for who in [1, 2, 3] {
            send(who, tag);
        }
        world.poll(50);
        for (handle, context, from) in [(red, 20, 2), (blue, 21, 1), (red, 22, 3)] {
            receiver.post_receive(&by_key(&memories[3], handle, tag, context)).unwrap();
            assert_eq!(world.received(0).good().context, context);
            same(&memories[3].bytes(), &pattern(from, 64), "what waited");
        }
    }
    world.nothing_more();
    // One that leaves takes no receive by key along.
    receiver.post_receive(&by_key(&memories[0], red, None, 30)).unwrap();
    world.nodes[3].endpoint.close();
    world.poll(50);
    send(2, None);
    assert_eq!(world.received(0).good().context, 30);
}

/// A tag that is posted for buffered messages is directed as any receive is.
pub fn a_buffered_tag_is_directed_by_key<P: Provider>(bed: &Bed<P>) {
    let mut world = strangers(bed, &[&[BLUE], &[RED]]);
    let mut buffering = with_keys(&[BLUE, RED]);
    buffering.endpoint.buffered = true;
    world.nodes.push(bed.stranger(&buffering));
    let to = [BLUE, RED].map(|key| meet(&world, usize::from(key == RED), 2, key));
    let receiver = &world.nodes[2];
    let blue = receiver.vector.insert_auth_key(BLUE).unwrap();
    let ignored = Memory::zeroed(8);
    let red = meet(&world, 2, 1, RED);
    let to_red = Receive { flags: Flags::empty(), ..by_key(&ignored, red, Some(7), 1) };
    for posted_first in [true, false] {
        let post = || {
            receiver.post_receive(&to_red).unwrap();
            receiver.post_receive(&by_key(&ignored, blue, Some(7), 0)).unwrap();
        };
        if posted_first {
            post();
        }
        for (who, to) in to.into_iter().enumerate() {
            world.nodes[who].send(pattern(who as u64, 8), to, Some(7), 0);
            world.sent(who).good();
        }
        if !posted_first {
            world.poll(50);
            post();
        }
        for _ in to {
            let announced = world.received(2).good();
            let look = |posted: u64, bytes: &[u8]| same(bytes, &pattern(posted, 8), "its own");
            receiver.endpoint.look_at_announced(announced.context, look).unwrap();
            receiver.endpoint.discard(announced.context).unwrap();
        }
    }
    world.nothing_more();
}

/// "Users post receive buffers directly to a shared receive context" (fi_endpoint(3)), also those
/// that are directed by key.
pub fn a_shared_receive_by_key_takes_from_all_who_prove_it<P: Provider>(bed: &Bed<P>) {
    let memories: Vec<Memory> = (0..4).map(|_| Memory::zeroed(64)).collect();
    let sharers = Sharers::open(bed, 2, &with_keys(&[BLUE, RED]));
    let world = strangers(bed, &[&[BLUE], &[RED], &[RED, BLUE]]);
    let shared = &sharers.shared;
    let [blue, red] = [BLUE, RED].map(|key| sharers.vector.insert_auth_key(key).unwrap());
    let send = |who: usize, key: &[u8], member: usize, tag| {
        let to = insert(&world.nodes[who].vector, sharers.addresses()[member], key);
        world.nodes[who].send(pattern(who as u64, 64), to, tag, 0);
        world.drive("a send completes", || {
            sharers.poll();
            world.waiting(who).0 > 0
        });
        world.sent(who).good();
    };
    let next = || {
        let (at, done) = sharers.next(|| world.poll(1));
        (at, done.context())
    };
    let sends = [(0, BLUE, 0), (1, RED, 1), (2, RED, 0), (2, BLUE, 1)];
    for tag in [Some(7), None] {
        // Posted before, with one from anybody in between: the earliest that matches.
        shared.post_receive(by_key(&memories[0], red, tag, 10).post()).unwrap();
        let any = Receive { flags: Flags::empty(), ..by_key(&memories[1], u64::MAX, tag, 11) };
        shared.post_receive(any.post()).unwrap();
        shared.post_receive(by_key(&memories[2], blue, tag, 12).post()).unwrap();
        shared.post_receive(by_key(&memories[3], red, tag, 13).post()).unwrap();
        for ((who, key, member), context) in sends.into_iter().zip([11, 10, 13, 12]) {
            send(who, key, member, tag);
            assert_eq!(next(), (member, context));
        }
        for (memory, from) in memories.iter().zip([1, 0, 2, 2]) {
            same(&memory.bytes(), &pattern(from, 64), "what was directed there");
        }
        // Posted when they wait, whichever endpoint has them.
        sends.into_iter().for_each(|(who, key, member)| send(who, key, member, tag));
        for (handle, from, member) in [(red, 1, 1), (blue, 0, 0), (blue, 2, 1), (red, 2, 0)] {
            shared.post_receive(by_key(&memories[0], handle, tag, from).post()).unwrap();
            assert_eq!(next(), (member, from));
            same(&memories[0].bytes(), &pattern(from, 64), "what waited");
        }
    }
    // "A specific endpoint address and authorization key": the other key's message is not meant.
    let one = insert(&sharers.vector, world.nodes[2].endpoint.address(), BLUE);
    let directed = Receive { flags: Flags::empty(), ..by_key(&memories[0], one, None, 20) };
    shared.post_receive(directed.post()).unwrap();
    send(2, RED, 1, None);
    send(2, BLUE, 0, None);
    assert_eq!(next(), (0, 20));
    shared.post_receive(by_key(&memories[0], red, None, 21).post()).unwrap();
    assert_eq!(next(), (1, 21));
}

/// "Later authorization key insertions will not propagate to already enabled endpoints": a key that
/// no endpoint of the context has is no key to receive by, until one has it.
pub fn a_shared_context_has_the_keys_of_its_endpoints<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(64);
    let mut sharers = Sharers::open(bed, 1, &with_keys(&[BLUE]));
    let world = strangers(bed, &[&[RED]]);
    let red = sharers.vector.insert_auth_key(RED).unwrap();
    let late = insert(&sharers.vector, world.nodes[0].endpoint.address(), RED);
    let by_red = by_key(&memory, red, None, 5);
    let from_late = Receive { flags: Flags::empty(), ..by_key(&memory, late, None, 6) };
    let post =
        |sharers: &Sharers<P>, receive: &Receive<'_>| sharers.shared.post_receive(receive.post());
    let unknown = PostError::UnknownAddress { address: red };
    assert_eq!(post(&sharers, &by_red), Err(unknown), "it came too late");
    assert_eq!(post(&sharers, &from_late), Err(PostError::NotByOurKeys { address: late }));
    assert_eq!(post(&sharers, &by_key(&memory, late, None, 0)).unwrap_err().errno(), Errno::INVAL);
    sharers.add(&sharers.members[0].endpoint.options().clone());
    post(&sharers, &by_red).unwrap();
    post(&sharers, &from_late).unwrap();
    let to = insert(&world.nodes[0].vector, sharers.addresses()[1], RED);
    for context in [5, 6] {
        world.nodes[0].endpoint.inject(&[1; 8], to).unwrap();
        let (at, done) = sharers.next(|| world.poll(1));
        assert_eq!((at, done.source, done.context()), (1, late, context));
    }
    // A context whose endpoints have one key alone does not know the flag.
    let plain = Sharers::open(bed, 1, &Options::default());
    let refused = post(&plain, &by_key(&memory, 0, None, 0)).unwrap_err();
    assert_eq!(refused.errno(), Errno::BADFLAGS);
}

/// "Otherwise, the fi_addr_t will be treated as an fi_addr_t returned from the fi_av_insert and
/// related functions"; "Later authorization key insertions will not propagate".
pub fn only_the_keys_of_the_enabling_count<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(8);
    let world = strangers(bed, &[&[BLUE], &[BLUE, RED]]);
    let (node, vector) = (&world.nodes[0], &world.nodes[0].vector);
    let address = world.nodes[1].endpoint.address();
    let (late, none) = (meet(&world, 0, 1, RED), vector.insert_one(address).unwrap());
    for fi_addr in [late, none] {
        let refused = PostError::NotByOurKeys { address: fi_addr };
        assert_eq!(refused.errno(), Errno::NOKEY);
        assert_eq!(node.endpoint.inject(&[1], fi_addr), Err(refused));
        assert_eq!(node.endpoint.receive(vec![1], fi_addr, 0).unwrap_err().error, refused);
        assert_eq!(node.endpoint.write(vec![1], fi_addr, 0, 0, 0).unwrap_err().error, refused);
    }
    let [blue, red] = [BLUE, RED].map(|key| vector.insert_auth_key(key).unwrap());
    let unknown = PostError::UnknownAddress { address: blue };
    assert_eq!(node.endpoint.inject(&[1], blue), Err(unknown), "a key is nobody's address");
    assert_eq!(node.endpoint.receive(vec![1], blue, 0).unwrap_err().error, unknown);
    let known = meet(&world, 0, 1, BLUE);
    let refused = |at| node.post_receive(&by_key(&memory, at, None, 0)).unwrap_err().errno();
    assert_eq!([red, known, late].map(refused), [Errno::INVAL; 3], "too late, and no keys");
    node.post_receive(&by_key(&memory, FI_ADDR_UNSPEC, None, 1)).unwrap();
    let back = meet(&world, 1, 0, BLUE);
    world.nodes[1].endpoint.inject(&[1], back).unwrap();
    assert_eq!(world.received(0).good().context, 1);
    // An endpoint that has one key alone does not know the flag.
    let plain = bed.world(1);
    let refused = plain.nodes[0].post_receive(&by_key(&memory, 0, None, 0)).unwrap_err();
    assert_eq!(refused.errno(), Errno::BADFLAGS);
}

/// "The address will only be removed if all endpoints, which have been enabled against the
/// corresponding authorization key, have been closed."
pub fn a_key_is_removed_when_its_endpoints_are_closed<P: Provider>(bed: &Bed<P>) {
    let world = strangers(bed, &[&[BLUE, RED]]);
    let (node, vector) = (&world.nodes[0], &world.nodes[0].vector);
    let [blue, late] = [BLUE, b"late"].map(|key| vector.insert_auth_key(key).unwrap());
    let busy = vector.remove_auth_keys(&[blue]).unwrap_err();
    assert_eq!(busy.errno(), Errno::BUSY);
    assert_eq!(vector.lookup_auth_key(blue).unwrap().bytes(), BLUE);
    vector.remove_auth_keys(&[late]).unwrap();
    assert_eq!(vector.lookup_auth_key(late).unwrap_err().errno(), Errno::INVAL);
    node.endpoint.close();
    vector.remove_auth_keys(&[blue]).unwrap();
    assert_eq!(vector.remove_auth_keys(&[blue]).unwrap_err().errno(), Errno::INVAL);
}

/// An endpoint and its address vector agree where keys are, and there is one.
pub fn enabling_takes_a_key<P: Provider>(bed: &Bed<P>) {
    let enable = |vector_keys: bool, vector: Arc<AddressVector>| {
        let options = EndpointOptions { vector_keys, ..EndpointOptions::default() };
        Node::try_open(bed, &Options { endpoint: options, ..Options::default() }, vector).err()
    };
    let keyed = || crate::bed::open_vector_with(true);
    let plain = crate::bed::open_vector;
    assert_eq!(enable(false, plain()), None);
    assert_eq!(enable(true, plain()), Some(EndpointError::OtherKeys { wanted: true }));
    assert_eq!(enable(false, keyed()), Some(EndpointError::OtherKeys { wanted: false }));
    let none = enable(true, keyed()).unwrap();
    assert_eq!(none.errno(), Errno::INVAL, "{none}");
    let vector = keyed();
    for key in 0..64_u8 {
        vector.insert_auth_key(&[key]).unwrap();
    }
    assert_eq!(enable(true, vector.clone()), None);
    vector.insert_auth_key(&[64]).unwrap();
    assert_eq!(enable(true, vector).map(|error| error.errno()), Some(Errno::INVAL));
}

/// fi_mr(3): "Only peer endpoints that are programmed to use the same authorization key may access
/// the memory region", and one address alone, or a key of several, where that is asked for.
pub fn regions_are_for_those_who_prove_a_key<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(4096);
    let world = strangers(bed, &[&[BLUE, RED], &[BLUE, RED], &[RED]]);
    let target = &world.nodes[0];
    let blue = target.vector.insert_auth_key(BLUE).unwrap();
    let one = meet(&world, 0, 1, RED);
    let to = [(1, BLUE), (1, RED), (2, RED)].map(|(who, key)| (who, meet(&world, who, 0, key)));
    let late = target.vector.insert_auth_key(b"late").unwrap();
    let (any, mark) = (AddressVectorFlags::empty(), AddressVectorFlags::AUTH_KEY);
    for (source, flags, permitted) in [
        (FI_ADDR_UNSPEC, any, [true, true, true]),
        (blue, mark, [true, false, false]),
        (one, any, [false, true, false]),
        (late, mark, [false, false, false]),
    ] {
        let audience = target.vector.audience(source, flags).unwrap();
        let attributes = MemoryRegionAttributes {
            ranges: &[MemoryRange { address: memory.start(), len: 4096 }],
            access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
            audience: Some(&audience),
            ..Default::default()
        };
        // SAFETY: the memory outlives the world.
        let region = unsafe { target.domain.register_memory(&attributes) }.unwrap();
        for ((who, to), permitted) in to.into_iter().zip(permitted) {
            let endpoint = &world.nodes[who].endpoint;
            // Twice: what has asked for a window has one then, if it gets one.
            for length in [8, 4096, 8, 4096] {
                let bytes = pattern(length as u64 + to, length);
                endpoint.write(bytes.clone(), to, region.base(), region.key(), 0).unwrap();
                let written = world.sent(who);
                endpoint.read(vec![0; length], to, region.base(), region.key(), 0).unwrap();
                let read = world.sent(who);
                if permitted {
                    written.good();
                    same(&read.good().returned.unwrap(), &bytes, "read");
                } else {
                    written.bad(Errno::ACCES);
                    read.bad(Errno::ACCES);
                }
            }
        }
        target.domain.close_memory(&region).unwrap();
    }
    assert!(target.vector.audience(blue, any).is_err(), "a key is nobody's address");
    assert!(target.vector.audience(one, mark).is_err(), "an address is no key");
    world.nothing_more();
}

/// Datagrams too come by a key.
pub fn datagrams_come_by_a_key<P: Provider>(bed: &Bed<P>) {
    let datagrams = |keys: &[&[u8]]| {
        let endpoint = Options::datagrams().endpoint;
        bed.stranger(&Options { endpoint, ..with_keys(keys) })
    };
    let world = World {
        nodes: vec![datagrams(&[BLUE, RED]), datagrams(&[RED, BLUE]), datagrams(&[b"third"])],
    };
    let memories = [Memory::zeroed(64), Memory::zeroed(64)];
    let there = [BLUE, RED].map(|key| meet(&world, 0, 1, key));
    let back = [BLUE, RED].map(|key| meet(&world, 1, 0, key));
    let lost = meet(&world, 2, 1, b"third");
    let handles = [BLUE, RED].map(|key| world.nodes[1].vector.insert_auth_key(key).unwrap());
    for at in [1, 0] {
        world.nodes[1].post_receive(&by_key(&memories[at], handles[at], None, at as u64)).unwrap();
    }
    world.nodes[2].send(pattern(9, 64), lost, None, 0);
    world.sent(2);
    for (at, memory) in memories.iter().enumerate() {
        let done = loop {
            // One may be lost.
            world.nodes[0].send(pattern(at as u64, 64), there[at], None, 0);
            world.sent(0).good();
            world.poll(20);
            if world.waiting(1).1 > 0 {
                break world.received(1).good();
            }
        };
        assert_eq!((done.context, done.source), (at as u64, back[at]));
        same(&memory.bytes(), &pattern(at as u64, 64), "by its key");
    }
}
