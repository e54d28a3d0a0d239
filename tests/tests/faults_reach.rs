//! One-sided operations that the initiator carries out by itself, over shared memory: targets that
//! do not progress, regions that close, leases that run out, the kernel that forbids it.

use std::time::{Duration, Instant};

use kestrel_core::{
    completion_counter::CompletionCounter,
    config::CmaPolicy,
    error::Errno,
    flags::Flags,
    info::MessageOrder,
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    ring::leases::LEASES,
};
use kestrel_shm::ShmOptions;
use kestrel_tests::{
    bed::{Memory, pattern, same},
    completion::is_rung,
    one_sided::{Atomic, BOTH, Rma, expose, expose_ranges, segment},
    scale::PATIENCE,
    shm_reach::{LENGTHS, SHORT, ShmReach, alone},
};

const FETCH_ADD: AtomicCall =
    AtomicCall { operation: AtomicOperation::Sum, datatype: Datatype::Uint64, form: Form::Fetch };

#[test]
fn a_target_that_does_not_progress_is_reached() {
    let target = Memory::zeroed(LENGTHS[3]);
    let reach = ShmReach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let (source, into) = (Memory::from(pattern(seed as u64, length)), Memory::zeroed(length));
        let segments = [segment(&region, target.bytes().len() - length, length)];
        reach.write(&source, &segments);
        reach.read(&into, &segments);
        reach.done_alone();
        reach.done_alone();
        same(&into.bytes(), &source.bytes(), "what was written is read");
    }
    reach.close(&region);
    reach.world.nothing_more();
}

#[test]
fn an_operation_of_one_call_is_complete_when_the_post_returns() {
    let target = Memory::zeroed(SHORT);
    let reach = ShmReach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let source = Memory::from(pattern(3, SHORT));
    reach.write(&source, &[segment(&region, 0, SHORT)]);
    same(&target.bytes(), &source.bytes(), "nobody was polled");
    reach.done_alone();
    reach.close(&region);
}

#[test]
fn a_region_that_closed_is_refused_and_messages_pass() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let source = Memory::from(pattern(7, length));
        let reach = ShmReach::new();
        let node = &reach.world.nodes[1];
        let region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
        let segments = [segment(&region, 0, length)];
        // A long one is under way when the region closes.
        reach.write(&source, &segments);
        reach.close(&region);
        let closed = target.bytes();
        let first = reach.world.sent(0);
        assert!(matches!(first.errno, None | Some(Errno::KEYREJECTED)), "{first:?}");
        reach.write(&source, &segments);
        reach.world.sent(0).bad(Errno::KEYREJECTED);
        same(&target.bytes(), &closed, "nothing lands after the close");
        node.receive(100, Some(3), 5);
        reach.world.nodes[0].send(pattern(2, 100), 1, Some(3), 6);
        assert_eq!(reach.world.received(1).good().context, 5);
        assert_eq!(reach.world.sent(0).good().context, 6);
        // The same key, and another lease.
        let region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
        reach.write(&source, &[segment(&region, 0, length)]);
        reach.done_alone();
        same(&target.bytes(), &source.bytes(), "written");
        reach.close(&region);
    }
}

#[test]
fn a_key_may_mean_a_longer_region_later() {
    let target = Memory::zeroed(LENGTHS[2]);
    let source = Memory::from(pattern(7, LENGTHS[2]));
    let reach = ShmReach::new();
    let node = &reach.world.nodes[1];
    let [short, _] = target.cut(&[SHORT, LENGTHS[2] - SHORT])[..] else { panic!("two pieces") };
    let region = expose_ranges(node, &[short], BOTH, 4).unwrap();
    reach.open_window(&region);
    reach.close(&region);
    let region = expose(node, &target, BOTH, 4);
    let segments = [segment(&region, 0, LENGTHS[2])];
    reach.write(&source, &segments);
    reach.world.sent(0).good();
    target.scribble();
    reach.write(&source, &segments);
    reach.done_alone();
    same(&target.bytes(), &source.bytes(), "written");
    reach.close(&region);
}

#[test]
fn what_the_target_has_to_refuse_is_refused_by_its_engine() {
    let target = Memory::zeroed(2 * SHORT);
    let local = Memory::zeroed(SHORT);
    let reach = ShmReach::new();
    for (access, writes) in [(Flags::REMOTE_READ, true), (Flags::REMOTE_WRITE, false)] {
        let region = expose(&reach.world.nodes[1], &target, access, 4);
        let beyond = [segment(&region, SHORT + 1, SHORT)];
        let forbidden = [segment(&region, 0, SHORT)];
        for _ in 0..3 {
            for (write, segments, errno) in [
                (!writes, &beyond, Errno::INVAL),
                (writes, &forbidden, Errno::ACCES),
                (writes, &[RemoteSegment { key: 5, ..forbidden[0] }], Errno::KEYREJECTED),
            ] {
                match write {
                    true => reach.write(&local, segments),
                    false => reach.read(&local, segments),
                }
                reach.world.sent(0).bad(errno);
            }
            // What is allowed goes on, by itself in the end.
            match writes {
                true => reach.read(&local, &forbidden),
                false => reach.write(&local, &forbidden),
            }
            reach.world.sent(0).good();
        }
        reach.close(&region);
    }
}

#[test]
fn a_message_finds_the_writes_before_it_done() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let source = Memory::from(pattern(3, length));
        let reach = ShmReach::new();
        let node = &reach.world.nodes[1];
        let region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
        node.receive(8, Some(1), 1);
        reach.write(&source, &[segment(&region, 0, length)]);
        reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
        reach.world.received(1).good();
        same(&target.bytes(), &source.bytes(), "done when the message is there");
        reach.close(&region);
    }
}

/// A write behind a message goes the message's way, since the target's engine has to take that.
#[test]
fn a_write_does_not_overtake_a_message() {
    let target = Memory::zeroed(SHORT);
    let source = Memory::from(vec![9; SHORT]);
    let reach = ShmReach::new();
    let node = &reach.world.nodes[1];
    let region = expose(node, &target, BOTH, 4);
    reach.open_window(&region);
    reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
    for _ in 0..3 {
        reach.write(&source, &[segment(&region, 0, SHORT)]);
    }
    for _ in 0..50 {
        reach.world.nodes[0].poll();
    }
    same(&target.bytes(), &vec![0; SHORT], "the target has not taken the message");
    node.receive(8, Some(1), 1);
    reach.world.received(1).good();
    for _ in 0..4 {
        reach.world.sent(0).good();
    }
    same(&target.bytes(), &source.bytes(), "written");
    reach.close(&region);
}

/// Unless nobody has asked for that order: of reads and of writes, each for itself.
#[test]
fn what_need_not_follow_a_message_does_not_wait_for_its_receiver() {
    let (writes, reads) = (MessageOrder::WAS, MessageOrder::RAS);
    for left_out in [writes, reads, writes | reads] {
        for order in [writes, reads] {
            let target = Memory::zeroed(SHORT);
            let memory = Memory::from(vec![9; SHORT]);
            let reach = ShmReach::in_order(alone(), MessageOrder::all() - left_out);
            let node = &reach.world.nodes[1];
            let region = expose(node, &target, BOTH, 4);
            reach.open_window(&region);
            reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 3);
            reach.world.sent(0).good();
            let segments = [segment(&region, 0, SHORT)];
            match order == writes {
                true => reach.write(&memory, &segments),
                false => reach.read(&memory, &segments),
            }
            assert_eq!(reach.ends_alone(), left_out.contains(order), "{order:?} {left_out:?}");
            node.receive(8, Some(1), 1);
            reach.world.received(1).good();
            reach.world.sent(0).good();
            same(&memory.bytes(), &target.bytes(), "both have it");
            reach.close(&region);
        }
    }
}

/// "The fenced operation [...] will be deferred until all previous operations targeting the same peer
/// endpoint have completed", and finds what they did, also where nobody has asked for an order.
#[test]
fn what_is_fenced_follows_a_message_in_any_case() {
    let target = Memory::zeroed(SHORT);
    let source = Memory::from(vec![9; SHORT]);
    let reach = ShmReach::in_order(alone(), MessageOrder::SAS);
    let (ours, theirs) = (&reach.world.nodes[0], &reach.world.nodes[1]);
    let region = expose(theirs, &target, BOTH, 4);
    reach.open_window(&region);
    ours.send(vec![1; 8], 1, Some(1), 3);
    reach.world.sent(0).good();
    let segments = &[segment(&region, 0, SHORT)];
    let fenced = Rma { pieces: source.all(), segments, flags: Flags::FENCE, ..Rma::default() };
    reach.world.post(|| ours.post_write(1, &fenced));
    assert!(!reach.ends_alone(), "the target has not taken the message");
    same(&target.bytes(), &vec![0; SHORT], "nor is anything written");
    theirs.receive(8, Some(1), 1);
    reach.world.received(1).good();
    reach.world.sent(0).good();
    same(&target.bytes(), &source.bytes(), "written");
    reach.close(&region);
}

/// The same of what waits for its connection together with the messages: the first write asks for the
/// window, and is answered while some of them are left in the lane.
#[test]
fn what_is_fenced_before_there_is_a_connection_follows_messages() {
    let target = Memory::zeroed(16 * SHORT);
    let (before, behind) = (Memory::from(vec![7; SHORT]), Memory::from(vec![9; 16 * SHORT]));
    let reach = ShmReach::of_strangers(alone(), MessageOrder::SAS);
    let (ours, theirs) = (&reach.world.nodes[0], &reach.world.nodes[1]);
    let region = expose(theirs, &target, BOTH, 4);
    // It can answer at once from now on.
    theirs.send(vec![1; 8], 0, Some(1), 0);
    ours.receive(8, Some(1), 0);
    assert_eq!((reach.world.sent(1).context(), reach.world.received(0).context()), (0, 0));
    reach.world.poll(50);
    reach.write(&before, &[segment(&region, 0, SHORT)]);
    let segments = &[segment(&region, 0, 16 * SHORT)];
    (0..12).for_each(|context| ours.send(vec![1; 8], 1, Some(1), context));
    let fenced = Rma { pieces: behind.all(), segments, flags: Flags::FENCE, ..Rma::default() };
    reach.world.post(|| ours.post_write(1, &fenced));
    let (start, is_written) = (Instant::now(), || target.bytes().starts_with(&before.bytes()));
    while !is_written() && start.elapsed() < PATIENCE {
        ours.poll();
        theirs.receives.poll();
    }
    (0..50).for_each(|_| ours.poll());
    same(&target.bytes()[..SHORT], &before.bytes(), "the target has not taken the messages");
    (0..14).for_each(|_| drop(reach.world.sent(0).good()));
    same(&target.bytes(), &behind.bytes(), "written");
    reach.close(&region);
}

/// Short ones go as packets and long ones by themselves: each finds what was posted before it.
#[test]
fn both_ways_together_keep_the_order() {
    let length = 200_000;
    let target = Memory::zeroed(length);
    let into = Memory::zeroed(length);
    let counts: Vec<Memory> = (0..50).map(|_| Memory::zeroed(8)).collect();
    let one = Memory::from(1_u64.to_ne_bytes().to_vec());
    let sources: Vec<Memory> = (0..50_u8).map(|nth| Memory::from(vec![nth; length - 8])).collect();
    let reach = ShmReach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let (counter, rest) = ([segment(&region, 0, 8)], [segment(&region, 8, length - 8)]);
    for (nth, (count, source)) in counts.iter().zip(&sources).enumerate() {
        reach.write(source, &rest);
        let atomic = Atomic {
            operands: one.all(),
            results: count.all(),
            segments: &counter,
            ..Atomic::new(FETCH_ADD)
        };
        reach.world.post(|| reach.world.nodes[0].post_atomic(1, &atomic));
        reach.read(&into, &[segment(&region, 0, length)]);
        for _ in 0..3 {
            reach.world.sent(0).good();
        }
        let expected = [&(nth as u64 + 1).to_ne_bytes()[..], &source.bytes()].concat();
        same(&into.bytes(), &expected, "a read sees what was before it");
        assert_eq!(count.bytes(), (nth as u64).to_ne_bytes());
    }
    // The same without waiting in between.
    for source in &sources {
        reach.write(source, &rest);
        reach.write(&one, &counter);
    }
    reach.read(&into, &[segment(&region, 0, length)]);
    for _ in 0..2 * sources.len() + 1 {
        reach.world.sent(0).good();
    }
    let expected = [&1_u64.to_ne_bytes()[..], &sources[49].bytes()].concat();
    same(&into.bytes(), &expected, "the last of all");
    reach.close(&region);
}

#[test]
fn a_counter_that_is_bound_to_a_leased_region_counts() {
    let target = Memory::zeroed(SHORT);
    let source = Memory::from(pattern(3, SHORT));
    let reach = ShmReach::new();
    let domain = &reach.world.nodes[1].domain;
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let counter = CompletionCounter::open(domain);
    domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
    for written in 1..4 {
        reach.write(&source, &[segment(&region, 0, SHORT)]);
        reach.world.sent(0).good();
        assert_eq!(counter.read(), written);
    }
    reach.close(&region);
}

/// Leases are taken back for others, and given again: every region is reached all the same.
#[test]
fn regions_may_outnumber_the_leases() {
    let regions = LEASES + 60;
    let target = Memory::zeroed(regions * SHORT);
    let source = Memory::zeroed(SHORT);
    let reach = ShmReach::new();
    let node = &reach.world.nodes[1];
    let pieces = target.cut(&vec![SHORT; regions]);
    let open = |(key, piece): (usize, _)| expose_ranges(node, &[piece], BOTH, key as u64).unwrap();
    let regions: Vec<_> = pieces.into_iter().enumerate().map(open).collect();
    for round in 1..4_u8 {
        source.fill(round);
        for region in &regions {
            reach.write(&source, &[segment(region, 0, SHORT)]);
            reach.world.sent(0).good();
        }
        assert!(target.bytes().iter().all(|&byte| byte == round), "round {round}");
    }
    for region in &regions {
        reach.open_window(region);
        reach.close(region);
        reach.write(&source, &[segment(region, 0, SHORT)]);
        reach.world.sent(0).bad(Errno::KEYREJECTED);
    }
}

/// Its memory is still there, and lent to nobody any more.
#[test]
fn an_endpoint_that_closed_is_out_of_reach() {
    let target = Memory::zeroed(SHORT);
    let source = Memory::from(vec![9; SHORT]);
    let mut reach = ShmReach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let node = reach.world.nodes.pop().unwrap();
    node.endpoint.close();
    let start = Instant::now();
    reach.write(&source, &[segment(&region, 0, SHORT)]);
    assert!(reach.world.sent(0).errno.is_some());
    same(&target.bytes(), &[0; SHORT], "written after the close");
    node.domain.close_memory(&region).unwrap();
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn where_it_is_switched_off_the_target_is_needed() {
    let target = Memory::zeroed(SHORT);
    let source = Memory::from(pattern(1, SHORT));
    let reach = ShmReach::with(ShmOptions { cma: CmaPolicy::Off, ..ShmOptions::default() });
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    for _ in 0..10 {
        reach.write(&source, &[segment(&region, 0, SHORT)]);
        assert!(!reach.ends_alone());
        reach.world.sent(0).good();
        std::thread::sleep(Duration::from_millis(1));
    }
    same(&target.bytes(), &source.bytes(), "written");
    reach.close(&region);
}

/// What one call does not copy whoever polls goes on with, and no peer rings for it.
#[test]
fn who_sleeps_is_told_of_an_operation_that_is_half_copied() {
    let long = LENGTHS[3];
    let (target, source) = (Memory::zeroed(long), Memory::from(pattern(1, long)));
    let reach = ShmReach::new();
    let [node, other] = &reach.world.nodes[..] else { unreachable!() };
    let region = expose(other, &target, BOTH, 4);
    reach.open_window(&region);
    reach.world.poll(50);
    let [first, second] = [&node.receives, &node.sends].map(|queue| queue.prepare_wait().unwrap());
    reach.write(&source, &[segment(&region, 0, long)]);
    assert!(is_rung(&first), "it sleeps on, and nobody copies the rest");
    drop(first);
    assert!(is_rung(&second), "one that woke silenced the bell");
    drop(second);
    reach.done_alone();
    same(&target.bytes(), &source.bytes(), "written");
    reach.close(&region);
}
