//! A long message that both sides copy, block by block: whatever one of them is permitted, however
//! late it comes, every byte arrives once; and nobody writes to a buffer that was given back.

use std::sync::Arc;

use kestrel_core::{
    domain::Sharing,
    error::Errno,
    memory::Pieces,
    mock::{MockOptions, MockProvider},
};
use kestrel_tests::bed::{Bed, Memory, Options, Receive, Send, World, pattern, same};

/// Longer than what one poll copies, in blocks of one MiB.
const LONG: usize = (6 << 20) + 5;

fn bed() -> Bed<MockProvider> {
    let options = MockOptions { read_remote: true, ..MockOptions::default() };
    Bed { provider: Arc::new(MockProvider::new(options)), sharing: Sharing::Exclusive }
}

fn post(world: &World<MockProvider>, bytes: &Memory, into: Pieces<'_>) {
    let send = Send { pieces: bytes.all(), tag: Some(1), context: 3, ..Send::default() };
    world.nodes[0].post_send(1, &send).unwrap();
    let receive = Receive { pieces: into, tag: Some((1, 0)), context: 4, ..Receive::default() };
    world.nodes[1].post_receive(&receive).unwrap();
}

fn copied(bed: &Bed<MockProvider>, world: &World<MockProvider>) -> (usize, usize) {
    let address = |node: usize| world.nodes[node].endpoint.address();
    (bed.provider.copied(address(1)).0, bed.provider.copied(address(0)).1)
}

#[test]
fn both_sides_copy_and_no_byte_twice() {
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
    post(&world, &bytes, into.all());
    world.received(1).good();
    same(&into.bytes(), &pattern(1, LONG), "copied by both");
    assert_eq!(world.sent(0).context(), 3);
    let (read, written) = copied(&bed, &world);
    assert_eq!(read + written, LONG);
    assert!(read >= 2 << 20 && written >= 2 << 20, "{read} read and {written} written");
    world.nothing_more();
}

#[test]
fn a_side_that_is_away_costs_nothing() {
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
    post(&world, &bytes, into.all());
    for _ in 0..50 {
        world.nodes[1].poll();
    }
    assert_eq!(world.waiting(1).1, 1, "nobody polled the sender");
    world.received_already(1).good();
    assert_eq!(copied(&bed, &world), (LONG, 0));
    same(&into.bytes(), &pattern(1, LONG), "read alone");
    world.sent(0).good();
}

/// It has helped, and everything is there.
#[test]
fn a_sender_that_helps_once_and_goes_away_is_not_waited_for() {
    for length in [4 << 20, LONG, 8 << 20] {
        for writes in [9, 0] {
            let bed = bed();
            let world = bed.world(2);
            world.warm_up();
            bed.provider.forbid_copying(world.nodes[0].endpoint.address(), 9, writes);
            let (bytes, into) = (Memory::from(pattern(1, length)), Memory::zeroed(length));
            post(&world, &bytes, into.all());
            world.nodes[1].poll();
            world.nodes[0].poll();
            for _ in 0..50 {
                world.nodes[1].poll();
            }
            assert_eq!(world.waiting(1).1, 1, "{length} bytes: nobody polled the sender again");
            world.received_already(1).good();
            same(&into.bytes(), &pattern(1, length), "copied by both");
            let (read, written) = copied(&bed, &world);
            assert_eq!((read + written, written > 0), (length, writes > 0));
            world.sent(0).good();
            world.nothing_more();
        }
    }
}

/// Whoever is refused, and whenever: the other side copies, or the rest comes in parts.
#[test]
fn permission_may_end_at_any_moment() {
    for length in [3_000, 200_000, LONG] {
        for (reads, writes) in (0..8).map(|nth| (nth % 4, nth / 4 * 9)).chain([(9, 0), (9, 1)]) {
            let bed = bed();
            let world = bed.world(2);
            world.warm_up();
            let address = |node: usize| world.nodes[node].endpoint.address();
            bed.provider.forbid_copying(address(1), reads, 9);
            bed.provider.forbid_copying(address(0), 9, writes);
            let what = format!("{length} bytes, {reads} reads and {writes} writes");
            for seed in 0..3 {
                let (bytes, into) = (Memory::from(pattern(seed, length)), Memory::zeroed(length));
                post(&world, &bytes, into.all());
                assert_eq!(world.received(1).good().length, length as u64, "{what}");
                same(&into.bytes(), &pattern(seed, length), &what);
                world.sent(0).good();
            }
            world.nothing_more();
        }
    }
}

#[test]
fn what_does_not_fit_is_neither_read_nor_written() {
    for room in [0, 1, 70_000, LONG - 5] {
        for reads in [0, 1, 9] {
            let bed = bed();
            let world = bed.world(2);
            world.warm_up();
            bed.provider.forbid_copying(world.nodes[1].endpoint.address(), reads, 9);
            let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
            into.scribble();
            post(&world, &bytes, Pieces::One(into.piece().part(0, room)));
            let error = world.received(1).bad(Errno::TRUNC);
            assert_eq!(
                (error.length, error.overflow),
                (room as u64, (LONG - room) as u64),
                "{room} {reads}"
            );
            let found = into.bytes();
            same(&found[..room], &pattern(1, LONG)[..room], "what fits");
            assert!(found[room..].iter().all(|&byte| byte == 0xee), "beyond the room");
            world.sent(0).good();
        }
    }
}

#[test]
fn a_receiver_that_closes_is_written_to_no_more() {
    for polls in 0..2 {
        let bed = bed();
        let mut world = bed.world(2);
        world.warm_up();
        let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
        post(&world, &bytes, into.all());
        for _ in 0..polls {
            world.nodes[1].poll();
            world.nodes[0].poll();
        }
        drop(world.nodes.pop());
        into.scribble();
        for _ in 0..20 {
            world.nodes[0].poll();
        }
        assert!(into.bytes().iter().all(|&byte| byte == 0xee), "written after the close");
        world.sent(0).bad(Errno::CONNRESET);
    }
}

#[test]
fn what_is_read_of_a_sender_that_closed_is_not_believed() {
    for polls in 0..3 {
        let bed = bed();
        let mut world = bed.world(2);
        world.warm_up();
        let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
        post(&world, &bytes, into.all());
        for _ in 0..polls {
            world.nodes[1].poll();
        }
        world.nodes.swap(0, 1);
        drop(world.nodes.pop());
        bytes.scribble();
        world.drive("the receiver hears of it", || world.waiting(0).1 == 1);
        world.received_already(0).bad(Errno::CONNRESET);
    }
}

#[test]
fn buffers_in_pieces_and_many_at_once() {
    let bed = bed();
    let world = bed.world_with(2, &Options::default());
    world.warm_up();
    let length = 300_000;
    let messages: Vec<_> =
        (0..12).map(|seed| (Memory::from(pattern(seed, length)), Memory::zeroed(length))).collect();
    for (nth, (bytes, into)) in messages.iter().enumerate() {
        let pieces = into.cut(&[1, 100_000, 199_999]);
        let into = if nth % 2 == 0 { into.all() } else { Pieces::Many(&pieces) };
        post(&world, bytes, into);
    }
    for _ in &messages {
        world.received(1).good();
        world.sent(0).good();
    }
    for (seed, (_, into)) in messages.iter().enumerate() {
        same(&into.bytes(), &pattern(seed as u64, length), "one of many");
    }
    world.nothing_more();
}

/// It is not asked for again, either: a receive from it waits for whoever comes in its place.
#[test]
fn a_receiver_that_died_is_helped_no_more() {
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let (bytes, into) = (Memory::from(pattern(1, LONG)), Memory::zeroed(LONG));
    post(&world, &bytes, into.all());
    world.nodes[1].poll();
    world.nodes[0].poll();
    let written = copied(&bed, &world).1;
    assert!((1..LONG).contains(&written), "{written} bytes: it has begun");
    bed.provider.delay_connections(50);
    bed.provider.kill(world.nodes[1].endpoint.address());
    world.nodes[0].poll();
    world.sent(0).bad(Errno::CONNRESET);
    let from = Receive { from: 1, context: 5, ..Receive::default() };
    world.nodes[0].post_receive(&from).unwrap();
    (0..100).for_each(|_| world.nodes[0].poll());
    assert_eq!(world.waiting(0), (0, 0), "nobody looks for it");
}
