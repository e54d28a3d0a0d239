//! Windows that end because nobody answered, though the peer is there: its device has refused, or has done
//! what it was asked for, and was not heard. On the fake.

use kestrel_core::{error::Errno, flags::Flags};
use kestrel_tests::{
    bed::{Memory, pattern, same},
    one_sided::{BOTH, Rma, expose, segment},
    reach::Reach,
};

/// Inline, from a bounce buffer, and from the application's.
const LENGTHS: [usize; 3] = [8, 3000, 300_000];

/// A message from node 0 to node 1, over the connection that there was.
#[track_caller]
fn a_message_passes(reach: &Reach) {
    reach.world.nodes[1].receive(100, Some(3), 5);
    reach.world.nodes[0].send(pattern(2, 100), 1, Some(3), 6);
    assert_eq!(reach.world.received(1).good().context, 5);
    assert_eq!(reach.world.sent(0).good().context, 6);
}

#[test]
fn a_refusal_that_is_lost_fails_its_operation_alone() {
    for length in LENGTHS {
        for reads in [false, true] {
            let [stays, goes] = [(); 2].map(|()| Memory::zeroed(length));
            let (source, into) = (Memory::from(pattern(7, length)), Memory::zeroed(length));
            let reach = Reach::new();
            let node = &reach.world.nodes[1];
            let [stays_open, closes] =
                [(&stays, 4), (&goes, 5)].map(|(memory, key)| expose(node, memory, BOTH, key));
            reach.open_window(&stays_open);
            reach.open_window(&closes);
            let pairs = reach.fabric.tally().queue_pairs;
            reach.write(&source, &[segment(&stays_open, 0, length)]);
            reach.fabric.hold(true);
            if reads {
                reach.read(&into, &[segment(&closes, 0, length)]);
            } else {
                reach.write(&source, &[segment(&closes, 0, length)]);
            }
            node.domain.close_memory(&closes).unwrap();
            reach.fabric.lose_answers(1);
            reach.fabric.hold(false);
            reach.world.sent(0).good();
            reach.world.sent(0).bad(Errno::KEYREJECTED);
            same(&stays.bytes(), &source.bytes(), "written before");
            same(&goes.bytes(), &vec![0; length], "refused");
            a_message_passes(&reach);
            reach.open_window(&stays_open);
            assert_eq!(reach.fabric.tally().queue_pairs, pairs, "another window, and no more");
            node.domain.close_memory(&stays_open).unwrap();
        }
    }
}

/// Its owner may have seen it, and written there since.
#[test]
fn what_may_have_been_written_is_not_written_again() {
    for data in [None, Some(9)] {
        for length in LENGTHS {
            let target = Memory::zeroed(length);
            let source = Memory::from(pattern(7, length));
            let reach = Reach::new();
            let node = &reach.world.nodes[1];
            let region = reach.expose(&target);
            let segments = [segment(&region, 0, length)];
            let write = Rma { pieces: source.all(), segments: &segments, data, ..Rma::default() };
            reach.fabric.lose_answers(1);
            reach.world.post(|| reach.world.nodes[0].post_write(1, &write));
            same(&target.bytes(), &source.bytes(), "it was written");
            target.fill(0);
            reach.world.sent(0).bad(Errno::IO);
            same(&target.bytes(), &vec![0; length], "once");
            if data.is_some() {
                assert_eq!(reach.world.received(1).good().data, 9);
            }
            a_message_passes(&reach);
            node.domain.close_memory(&region).unwrap();
        }
    }
}

#[test]
fn what_was_read_unheard_is_read_again() {
    for length in LENGTHS {
        let target = Memory::from(pattern(7, length));
        let into = Memory::zeroed(length);
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        reach.fabric.lose_answers(1);
        reach.read(&into, &[segment(&region, 0, length)]);
        reach.world.sent(0).good();
        same(&into.bytes(), &target.bytes(), "read");
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// What is behind an operation in doubt waits until its target has told of that.
#[test]
fn what_is_behind_it_keeps_its_place() {
    let target = Memory::zeroed(64);
    let (first, second) = (Memory::from(pattern(1, 64)), Memory::from(pattern(2, 64)));
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let region = reach.expose(&target);
    reach.fabric.lose_answers(1);
    reach.write(&first, &[segment(&region, 0, 64)]);
    node.receive(8, Some(1), 1);
    reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 7);
    reach.write(&second, &[segment(&region, 0, 64)]);
    for _ in 0..50 {
        reach.world.nodes[0].poll();
    }
    same(&target.bytes(), &first.bytes(), "the target has not been polled");
    reach.world.received(1).good();
    let ends: Vec<_> = (0..3).map(|_| reach.world.sent(0)).collect();
    let ends: Vec<_> = ends.iter().map(|done| (done.context, done.errno)).collect();
    assert_eq!(ends.iter().filter(|&&end| end == (0, Some(Errno::IO))).count(), 1, "{ends:?}");
    assert!(ends.contains(&(0, None)) && ends.contains(&(7, None)), "{ends:?}");
    same(&target.bytes(), &second.bytes(), "written behind it");
    node.domain.close_memory(&region).unwrap();
}

/// Who was asked may go, and who asks as well.
#[test]
fn an_end_that_comes_first_ends_it() {
    for length in LENGTHS {
        for target_goes in [true, false] {
            let target = Memory::zeroed(length);
            let source = Memory::from(pattern(7, length));
            let mut reach = Reach::new();
            let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
            reach.open_window(&region);
            reach.fabric.lose_answers(1);
            let segments = [segment(&region, 0, length)];
            let flags = Flags::COMPLETION;
            let write = Rma {
                pieces: source.all(),
                segments: &segments,
                context: 77,
                flags,
                ..Rma::default()
            };
            reach.world.post(|| reach.world.nodes[0].post_write(1, &write));
            for _ in 0..50 {
                reach.world.nodes[0].poll();
            }
            let canceled = reach.world.nodes[0].endpoint.cancel(77);
            assert!(canceled.is_err(), "it may have been done");
            if target_goes {
                drop(reach.world.nodes.remove(1));
                reach.world.sent(0).bad(Errno::CONNRESET);
            }
            reach.world.nodes.truncate(1);
            drop(reach.world.nodes.remove(0));
            let tally = reach.fabric.tally();
            assert_eq!(tally.queue_pairs, 0, "left behind");
        }
    }
}
