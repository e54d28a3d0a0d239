//! Loom models of a lane: one producer beside one consumer.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_lane`
#![cfg(loom)]

mod models;

use kestrel_core::ring::lane::{LINE_WORDS, LaneConsumer, LaneProducer};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use models::{explore, lane::lane};

/// A continuation line of packet `n`, every word of it telling which.
fn content(n: u32) -> [u64; LINE_WORDS - 1] {
    std::array::from_fn(|index| u64::from(n) << 32 | index as u64)
}

/// Sends packet `n` in `lines` lines, waiting for room.
fn send(producer: &mut LaneProducer, n: u32, lines: u64) {
    while !producer.has_room(lines).unwrap() {
        thread::yield_now();
    }
    producer.first_line().put(0, u64::from(n));
    producer.first_line().put(6, !u64::from(n));
    for nth in 1..lines {
        producer.put_continuation(nth, content(n));
    }
    producer.publish(n, lines);
}

/// Takes packet `n` of `lines` lines, waiting for it.
fn take(consumer: &mut LaneConsumer, n: u32, lines: u64) {
    let meta = loop {
        match consumer.peek() {
            Some(meta) => break meta,
            None => thread::yield_now(),
        }
    };
    assert_eq!(meta, n, "out of order, lost, or seen twice");
    assert_eq!((consumer.word(0), consumer.word(6)), (n.into(), !u64::from(n)), "torn");
    for nth in 1..lines {
        assert_eq!(consumer.continuation(nth), content(n), "torn");
    }
    consumer.advance(lines);
}

/// Packets of these lengths through a lane of `count` lines; the head is
/// published after every `batch` packets.
fn stream(name: &str, count: usize, lengths: &'static [u64], batch: usize) {
    explore(name, 3, move || {
        let (mut sender, mut receiver) = lane(count);
        let sending = thread::spawn(move || {
            for (n, &lines) in lengths.iter().enumerate() {
                send(&mut sender.end, 1 + n as u32, lines);
            }
        });
        for (n, &lines) in lengths.iter().enumerate() {
            take(&mut receiver.end, 1 + n as u32, lines);
            if (n + 1) % batch == 0 {
                receiver.end.publish_head();
            }
        }
        sending.join().unwrap();
        assert_eq!(receiver.end.peek(), None, "more than was sent");
    });
}

#[test]
fn packets_stay_in_order_and_whole_around_the_end() {
    stream("two lines, one at a time", 2, &[1, 1, 1, 1, 1], 1);
}

#[test]
fn a_head_may_be_published_seldom() {
    stream("two lines, both at a time", 2, &[1, 1, 1, 1], 2);
}

#[test]
fn continuation_lines_belong_to_their_packet() {
    stream("four lines, mixed packets", 4, &[2, 1, 3, 2], 1);
}

#[test]
fn a_full_lane_waits_for_the_head() {
    explore("a full lane", 3, || {
        let (mut sender, mut receiver) = lane(2);
        send(&mut sender.end, 1, 1);
        send(&mut sender.end, 2, 1);
        assert!(!sender.end.has_room(1).unwrap());
        let sending = thread::spawn(move || {
            let room = sender.end.has_room(2).unwrap();
            if sender.end.has_room(1).unwrap() {
                send(&mut sender.end, 3, 1);
            }
            (sender, room)
        });
        take(&mut receiver.end, 1, 1);
        take(&mut receiver.end, 2, 1);
        // Consumed, but not given back: nothing may lie where we still read.
        assert_eq!((receiver.end.word(0), receiver.end.unpublished()), (1, 2));
        receiver.end.publish_head();
        let (mut sender, room) = sending.join().unwrap();
        assert!(sender.end.has_room(1).unwrap());
        let third = receiver.end.peek();
        assert!(third.is_none_or(|meta| meta == 3));
        assert!(!room || third == Some(3), "room for two is room for one");
    });
}

#[test]
fn a_packet_that_was_given_up_leaves_nothing_visible() {
    explore("a packet given up", 3, || {
        let (mut sender, mut receiver) = lane(4);
        let sending = thread::spawn(move || {
            let producer = &mut sender.end;
            producer.first_line().put(0, 7);
            producer.put_continuation(1, content(7));
            producer.put_continuation(2, content(7));
            // Here it might be killed. It goes on with something shorter instead.
            send(producer, 1, 1);
        });
        let early = receiver.end.peek();
        assert!(early.is_none_or(|meta| meta == 1));
        sending.join().unwrap();
        take(&mut receiver.end, 1, 1);
        assert_eq!(receiver.end.peek(), None, "a line of the packet given up passes for one");
    });
}

#[test]
fn the_head_gives_back_what_packets_point_at() {
    explore("a chunk beside a lane", 4, || {
        // Not atomic: loom sees whether one side writes while the other reads.
        let chunk = Arc::new(UnsafeCell::new(0));
        let (mut sender, mut receiver) = lane(4);
        let lent = chunk.clone();
        let sending = thread::spawn(move || {
            for n in 1..=3 {
                while sender.end.head() < sender.end.position() {
                    sender.end.refresh().unwrap();
                    thread::yield_now();
                }
                // SAFETY: all packets that point at it were given back.
                lent.with_mut(|chunk| unsafe { *chunk = n });
                send(&mut sender.end, n, 1);
            }
        });
        for n in 1..=3 {
            take(&mut receiver.end, n, 1);
            // SAFETY: not given back yet.
            assert_eq!(chunk.with(|chunk| unsafe { *chunk }), n);
            receiver.end.publish_head();
        }
        sending.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "torn")]
fn the_model_sees_what_is_written_after_it_was_published() {
    explore("content behind its publication", 2, || {
        let (mut sender, mut receiver) = lane(4);
        let sending = thread::spawn(move || {
            let producer = &mut sender.end;
            producer.first_line().put(0, 1);
            producer.first_line().put(6, !1);
            producer.publish(1, 1);
            producer.put_continuation(0, content(1));
        });
        take(&mut receiver.end, 1, 2);
        sending.join().unwrap();
    });
}
