//! Fences before an endpoint that has several addresses, and beside other endpoints. Reference:
//! fi_tagged(3), FI_FENCE: "the fenced operation, and any operation posted after the fenced operation
//! will be deferred until all previous operations targeting the same peer endpoint have completed."

use std::{ffi::c_void, time::Instant};

use crate::{
    abi::message::{MsgRma, RmaIov},
    auth_keys::{Keys, keyed},
    code,
    connections::name,
    contexts::{Portal, insert, named, open_av, scalable_world, scalable_world_that},
    flag,
    host::host,
    one_sided::{KEY, register},
    tagged::{FENCE, MATCH_COMPLETE, Message},
    triggered::{iovec, rma},
    vector_use::node_with,
    world::{Node, PATIENCE, World, close},
};

/// Sends a message that is told by its tag, which is its context too.
fn send(from: Node, word: &mut [u8; 8], tag: usize, to: u64, flags: u64) {
    let context = tag as *mut c_void;
    Message { to, context, ..Message::of(word, tag as u64) }.send(from, flags);
}

fn receive(to: Node, room: &mut [u8; 8], tag: usize) {
    assert_eq!(Message::of(room, tag as u64).receive(to, 0), 0);
}

/// The contexts of all that completes at `from`, in order, of three operations: the first is over
/// only after `release`, and the second has a fence, if there is one.
fn order(from: Node, all: &[Node], fence: u64, release: impl FnOnce()) -> Vec<usize> {
    let (mut order, start) = (Vec::new(), Instant::now());
    let mut drive = |rounds: usize| {
        for _ in 0..rounds {
            all.iter().filter(|node| node.cq != from.cq).for_each(|node| node.progress());
            match from.read() {
                Ok(entry) => order.push(entry.op_context as usize),
                Err(status) => assert_eq!(status, code::AGAIN),
            }
        }
        assert!(start.elapsed() < PATIENCE, "{order:?}");
        order.len()
    };
    // Without a fence the others overtake the first, and are connected by then.
    let overtake = if fence == 0 { 2 } else { 0 };
    while drive(1) < overtake {}
    assert_eq!(drive(1000), overtake);
    release();
    while drive(1) < 3 {}
    order
}

/// What `order` tells where the second and the third go different ways.
fn is_deferred(mut order: Vec<usize>, fence: u64) {
    let (first, others) = if fence == 0 { (2, 0..2) } else { (0, 1..3) };
    order[others].sort_unstable();
    assert_eq!((order[first], order.len()), (1, 3), "{order:?}");
}

/// The messages that were received are driven until they are reported.
fn are_received(nodes: &[Node], all: &[Node]) {
    for node in nodes {
        assert!(node.outcome(all).is_ok());
    }
}

#[test]
fn a_fence_waits_for_its_own_peer_alone() {
    let Some(host) = host("a_fence_waits_for_its_own_peer_alone") else { return };
    let world = World::new(host, 3);
    let [from, slow, other] = [0, 1, 2].map(|at| world.nodes[at]);
    let (mut words, mut rooms) = ([[1_u8; 8], [2; 8], [3; 8]], [[0_u8; 8]; 3]);
    receive(other, &mut rooms[1], 2);
    receive(slow, &mut rooms[2], 3);
    let [one, two, three] = words.each_mut();
    send(from, one, 1, 1, MATCH_COMPLETE);
    send(from, two, 2, 2, FENCE);
    assert_eq!(world.completion(from).op_context as usize, 2);
    send(from, three, 3, 1, FENCE);
    are_received(&[other], &world.nodes);
    for _ in 0..1000 {
        slow.progress();
        assert_eq!(from.read().err(), Some(code::AGAIN));
    }
    receive(slow, &mut rooms[0], 1);
    for expected in [1, 3] {
        assert_eq!(world.completion(from).op_context as usize, expected);
    }
    are_received(&[slow, slow], &world.nodes);
    assert_eq!(rooms, words);
}

#[test]
fn a_fence_waits_for_every_context_of_its_peer() {
    let Some(host) = host("a_fence_waits_for_every_context_of_its_peer") else { return };
    let world = scalable_world(host);
    let av = open_av(&world);
    let [ours, theirs] = [Portal::open(&world, av), Portal::open(&world, av)];
    let all: Vec<Node> = ours.nodes().chain(theirs.nodes()).collect();
    let (from, them) = (ours.transmit[0], insert(av, &name(theirs.sep)));
    let [first, second] = [theirs.receive[0], theirs.receive[1]];
    let mut words = [[1_u8; 8], [2; 8], [3; 8]];
    for fence in [0, FENCE] {
        let mut rooms = [[0_u8; 8]; 3];
        let [slow, fenced, behind] = rooms.each_mut();
        receive(second, fenced, 2);
        receive(first, behind, 3);
        let [one, two, three] = words.each_mut();
        send(from, one, 1, named(them, 0), MATCH_COMPLETE);
        send(from, two, 2, named(them, 1), fence);
        send(from, three, 3, named(them, 0), 0);
        is_deferred(order(from, &all, fence, || receive(first, slow, 1)), fence);
        are_received(&[first, first, second], &all);
        assert_eq!(rooms, words);
    }
    ours.close();
    theirs.close();
    assert_eq!(close(av), 0);
}

#[test]
fn a_fence_waits_for_every_key_of_its_peer() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Keys::insert(&world), Keys::insert(&world));
    let (from, them) = (node_with(&world, &ours.vector), node_with(&world, &theirs.vector));
    let [blue, pink] = ours.meet(them);
    let mut words = [[1_u8; 8], [2; 8], [3; 8]];
    for fence in [0, FENCE] {
        let mut rooms = [[0_u8; 8]; 3];
        let [slow, fenced, behind] = rooms.each_mut();
        receive(them, fenced, 2);
        receive(them, behind, 3);
        let [one, two, three] = words.each_mut();
        send(from, one, 1, blue, MATCH_COMPLETE);
        send(from, two, 2, pink, fence);
        send(from, three, 3, blue, 0);
        is_deferred(order(from, &[them], fence, || receive(them, slow, 1)), fence);
        are_received(&[them; 3], &[from]);
        assert_eq!(rooms, words);
    }
    for node in [from, them] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

#[test]
fn one_sided_operations_wait_for_every_context() {
    let Some(host) = host("one_sided_operations_wait_for_every_context") else { return };
    let world = scalable_world_that(host, flag::MSG | flag::TAGGED | flag::RMA);
    let av = open_av(&world);
    let [ours, theirs] = [Portal::open(&world, av), Portal::open(&world, av)];
    let all: Vec<Node> = ours.nodes().chain(theirs.nodes()).collect();
    let (from, them) = (ours.transmit[0], insert(av, &name(theirs.sep)));
    let (mut memory, mut source, mut word) = ([0_u64; 2], [5_u64, 6], [1_u8; 8]);
    let place = memory.as_mut_ptr();
    let region = register(&world, &mut memory, flag::REMOTE_WRITE);
    // SAFETY: the memory is there as long as the region.
    let written = || unsafe { [place.read_volatile(), place.add(1).read_volatile()] };
    for fence in [0, FENCE] {
        // SAFETY: nobody writes there any more.
        unsafe { (0..2).for_each(|at| place.add(at).write_volatile(0)) };
        let mut room = [0_u8; 8];
        send(from, &mut word, 1, named(them, 0), MATCH_COMPLETE);
        for (at, flags) in [fence, 0].into_iter().enumerate() {
            let iov = iovec(&mut source[at..=at]);
            let target = RmaIov { addr: 8 * at as u64, len: 8, key: KEY };
            let context = (2 + at) as *mut c_void;
            let post = MsgRma { addr: named(them, 1), ..rma(&iov, &target, context) };
            // SAFETY: the endpoint is open, and source and region live until all is over.
            let status = unsafe { ((*(*from.ep).rma).writemsg)(from.ep, &raw const post, flags) };
            assert_eq!(status, 0);
        }
        let release = || {
            assert_eq!(written(), if fence == 0 { source } else { [0, 0] });
            receive(theirs.receive[0], &mut room, 1);
        };
        is_deferred(order(from, &all, fence, release), fence);
        assert_eq!(written(), source);
        are_received(&[theirs.receive[0]], &all);
    }
    assert_eq!(close(region), 0);
    ours.close();
    theirs.close();
    assert_eq!(close(av), 0);
}
