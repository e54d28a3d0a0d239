//! Remote memory by way of a receive context: of a scalable endpoint one is named, and it says what
//! may be done there. Reference: fi_endpoint(3), fi_rma(3), fi_atomic(3).

use std::ptr::{null_mut, without_provenance_mut};

use crate::{
    abi::{fid::FidEp, info::RxAttr},
    code,
    connections::name,
    contexts::{
        NAMED_RX_CTX, Portal, insert, named, open_av, open_sep, rx_context, scalable_world_that,
        tx_context,
    },
    flag,
    host::{Host, host},
    mixed_contexts::enabled,
    one_sided::{KEY, register},
    world::{Node, World, bind, close},
};

const UINT64: u32 = 7;
const SUM: u32 = 2;
/// Words of an operation that its initiator may do by itself.
const LONG: usize = 2_000;

/// What is done with words: with one of them, if it is atomic.
#[derive(Clone, Copy)]
enum Kind {
    Write,
    Read,
    Add,
    FetchAndAdd,
}

/// Does it at `to`, with as many words as there are, and says how it ended.
fn operate(
    (kind, from, to): (Kind, Node, u64),
    words: &[u64],
    result: &mut [u64],
    all: &[Node],
) -> Result<(), i32> {
    let (none, context, length) = (null_mut(), without_provenance_mut(5), size_of_val(words));
    let (operand, result) = (words.as_ptr().cast(), result.as_mut_ptr().cast());
    // SAFETY: the endpoint is open, and the words live until the completion has come.
    let status = unsafe {
        let (rma, atomic) = (&*(*from.ep).rma, &*(*from.ep).atomic);
        let (ep, add) = (from.ep, SUM);
        match kind {
            Kind::Write => (rma.write)(ep, operand, length, none, to, 0, KEY, context),
            Kind::Read => (rma.read)(ep, result, length, none, to, 0, KEY, context),
            Kind::Add => (atomic.write)(ep, operand, 1, none, to, 0, KEY, UINT64, add, context),
            Kind::FetchAndAdd => (atomic.readwrite)(
                ep, operand, 1, none, result, none, to, 0, KEY, UINT64, add, context,
            ),
        }
    };
    assert_eq!(status, 0);
    let (context, outcome) = match from.outcome(all) {
        Ok(entry) => (entry.op_context, Ok(())),
        Err(error) => (error.op_context, Err(-error.err)),
    };
    assert_eq!(context as usize, 5);
    outcome
}

/// The first word and the last one.
fn ends(words: *const u64, count: usize) -> [u64; 2] {
    // SAFETY: there are so many.
    [0, count - 1].map(|at| unsafe { words.add(at).read_volatile() })
}

#[test]
fn every_context_reaches_every_context() {
    let Some(host) = host("every_context_reaches_every_context") else { return };
    let world = scalable_world_that(host, flag::MSG | flag::RMA | flag::ATOMIC);
    let av = open_av(&world);
    let [ours, theirs] = [Portal::open(&world, av), Portal::open(&world, av)];
    let all: Vec<Node> = ours.nodes().chain(theirs.nodes()).collect();
    let them = insert(av, &name(theirs.sep));
    let mut memory = vec![0_u64; LONG];
    let place = memory.as_ptr();
    let region = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let pairs = [(0, 0), (0, 1), (1, 0), (1, 1)];
    for (count, (from, to)) in [2, LONG].into_iter().flat_map(|count| pairs.map(|it| (count, it))) {
        let number = 10 * (from as u64 + 2 * to + count as u64);
        let (words, mut result) = (vec![number; count], vec![0; count]);
        let mut go = |kind, found, left| {
            let what = (kind, ours.transmit[from], named(them, to));
            assert_eq!(operate(what, &words, &mut result, &all), Ok(()));
            assert_eq!(ends(result.as_ptr(), count), [found, if found == 0 { 0 } else { number }]);
            assert_eq!(ends(place, count), [left, number]);
        };
        go(Kind::Write, 0, number);
        go(Kind::Read, number, number);
        go(Kind::Add, number, 2 * number);
        go(Kind::FetchAndAdd, 2 * number, 3 * number);
    }
    // There are no others.
    let beyond = (Kind::Write, ours.transmit[0], named(them, 2));
    assert!(operate(beyond, &[1], &mut [], &all).is_err());
    assert_eq!(close(region), 0);
    ours.close();
    theirs.close();
    assert_eq!(close(av), 0);
}

/// "A receive context may be configured with fewer capabilities than the base endpoint": here one may
/// be read from, and the other one written to.
#[test]
fn a_context_permits_what_it_can() {
    let Some(host) = host("a_context_permits_what_it_can") else { return };
    let caps = [flag::REMOTE_READ, flag::REMOTE_WRITE].map(|way| flag::RMA | flag::ATOMIC | way);
    let permitted = [
        (Kind::Write, [false, true]),
        (Kind::Read, [true, false]),
        (Kind::Add, [false, true]),
        (Kind::FetchAndAdd, [false, false]),
    ];
    contexts_permit(host, caps, permitted, [[16, 16], [16, 8]]);
}

/// And of what may be done there, reads and writes are one thing and atomic operations another.
#[test]
fn a_context_permits_the_kinds_that_it_can() {
    let Some(host) = host("a_context_permits_the_kinds_that_it_can") else { return };
    let caps = [flag::RMA, flag::ATOMIC].map(|kind| kind | flag::REMOTE_READ | flag::REMOTE_WRITE);
    let permitted = [
        (Kind::Write, [true, false]),
        (Kind::Read, [true, false]),
        (Kind::Add, [false, true]),
        (Kind::FetchAndAdd, [false, true]),
    ];
    contexts_permit(host, caps, permitted, [[23, 23], [23, 7]]);
}

/// Of two contexts with these capabilities each permits so much, to one word and to many; and what the
/// first and the last word are then.
fn contexts_permit(
    host: &'static Host,
    caps: [u64; 2],
    permitted: [(Kind, [bool; 2]); 4],
    left: [[u64; 2]; 2],
) {
    let world = scalable_world_that(host, flag::MSG | flag::RMA | flag::ATOMIC);
    let av = open_av(&world);
    let (ours, sep) = (Portal::open(&world, av), open_sep(&world).unwrap());
    assert_eq!((bind(sep, av, 0), insert(av, &name(sep))), (0, 0));
    let theirs = [0, 1].map(|index| permits(&world, sep, index, caps[index as usize]));
    let all: Vec<Node> = ours.nodes().chain(theirs).collect();
    let mut memory = vec![0_u64; LONG];
    let place = memory.as_ptr();
    let region = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let mut result = vec![0; LONG];
    for (count, left) in [1, LONG].into_iter().zip(left) {
        for (kind, permitted) in permitted {
            for (at, is_permitted) in permitted.into_iter().enumerate() {
                let words = vec![7 + at as u64; count];
                let what = (kind, ours.transmit[at], named(0, at as u64));
                let expected = if is_permitted { Ok(()) } else { Err(code::ACCES) };
                assert_eq!(operate(what, &words, &mut result[..count], &all), expected);
            }
        }
        assert_eq!(ends(place, count), left);
    }
    assert_eq!(close(region), 0);
    ours.close();
    for node in theirs {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    assert_eq!((close(sep), close(av)), (0, 0));
}

/// What a peer does by itself it may do for as long as the context is open that let it; and another one
/// of the same index says anew what it may.
#[test]
fn a_closed_context_permits_nothing() {
    let Some(host) = host("a_closed_context_permits_nothing") else { return };
    let world = scalable_world_that(host, flag::MSG | flag::RMA | flag::ATOMIC);
    let av = open_av(&world);
    let (ours, sep) = (Portal::open(&world, av), open_sep(&world).unwrap());
    assert_eq!((bind(sep, av, 0), insert(av, &name(sep))), (0, 0));
    // Whoever drives it is there also when its sibling is closed.
    let sender = enabled(&world, tx_context(sep, 0, null_mut()).unwrap(), flag::SEND);
    let mut memory = vec![0_u64; LONG];
    let place = memory.as_ptr();
    let region = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let drivers: Vec<Node> = ours.nodes().chain([sender]).collect();
    let (refused, mut result) = (Err(code::ACCES), vec![0; LONG]);
    let mut write = |number: u64, all: &[Node]| {
        let what = (Kind::Write, ours.transmit[0], named(0, 0));
        operate(what, &[number; LONG], &mut result, all)
    };
    let open = |caps| {
        let receiver = permits(&world, sep, 0, flag::RMA | caps);
        (receiver, [&drivers[..], &[receiver]].concat())
    };
    let (receiver, all) = open(flag::REMOTE_WRITE);
    // The first goes as packets and asks; then they need the target no more, where that can be.
    (1..=4).for_each(|number| assert_eq!(write(number, &all), Ok(())));
    assert_eq!((close(receiver.ep), close(receiver.cq)), (0, 0));
    assert_eq!(write(5, &drivers), refused);
    let (receiver, all) = open(flag::REMOTE_READ);
    assert_eq!(write(6, &all), refused);
    assert_eq!((close(receiver.ep), close(receiver.cq)), (0, 0));
    assert_eq!(ends(place, LONG), [4, 4]);
    let (receiver, all) = open(flag::REMOTE_WRITE);
    assert_eq!(write(7, &all), Ok(()));
    assert_eq!(ends(place, LONG), [7, 7]);
    assert_eq!(close(region), 0);
    ours.close();
    for node in [receiver, sender] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    assert_eq!((close(sep), close(av)), (0, 0));
}

/// A receive context that can do this of what there is to do with memory.
fn permits(world: &World, sep: *mut FidEp, index: i32, caps: u64) -> Node {
    // SAFETY: attributes of zeroes ask for nothing.
    let mut attr: RxAttr = unsafe { std::mem::zeroed() };
    attr.caps = flag::MSG | flag::RECV | NAMED_RX_CTX | caps;
    enabled(world, rx_context(sep, index, &raw mut attr).unwrap(), flag::RECV)
}
