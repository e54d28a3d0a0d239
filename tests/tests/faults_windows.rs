//! One-sided operations by the adapter, on the fake: targets that do not progress, regions that
//! close, errors of the device, peers that go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_counter::CompletionCounter,
    completion_queue::{Entry, ReadError},
    domain::Sharing,
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::Pieces,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    one_sided::RemoteSegment,
};
use kestrel_tests::{
    bed::{Bed, Memory, pattern, same},
    fake::fake_bed,
    link::{Driven, Link},
    one_sided::{BOTH, Rma, expose, segment},
    reach::Reach,
    scale::{PATIENCE, leaves_in_time, unspoilt},
};
use kestrel_verbs::{VerbsOptions, fake::FakeOptions, verbs::Status};

/// Bytes that need the application's buffer to be registered, and bytes that do not.
const LENGTHS: [usize; 4] = [8, 3000, 8192, 300_000];

#[test]
fn a_target_that_does_not_progress_is_reached() {
    let target = Memory::zeroed(LENGTHS[3]);
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let before = reach.reached();
        let (source, into) = (Memory::from(pattern(seed as u64, length)), Memory::zeroed(length));
        let segments = [segment(&region, target.bytes().len() - length, length)];
        reach.write(&source, &segments);
        reach.read(&into, &segments);
        for _ in 0..2 {
            reach.done_alone().good();
        }
        same(&into.bytes(), &source.bytes(), "what was written is read");
        assert_eq!(reach.reached() - before, 2, "by the adapter: {length} bytes");
    }
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// A long operation whose buffer lies in a region of ours needs no registration of its own: the region
/// has one for all of them, until it is closed, and what it does not permit or contain has none.
#[test]
fn a_buffer_that_is_registered_is_not_registered_again() {
    let length = LENGTHS[3];
    let (target, own) = (Memory::zeroed(length), Memory::from(pattern(7, length)));
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    let source = expose(&reach.world.nodes[0], &own, Flags::WRITE, 5);
    reach.open_window(&region);
    let segments = [segment(&region, 0, length)];
    let is_reached = |pieces, reads: bool| {
        let before = reach.reached();
        let rma =
            Rma { pieces, segments: &segments, region: source.descriptor(), ..Rma::default() };
        let node = &reach.world.nodes[0];
        reach.world.post(|| if reads { node.post_read(1, &rma) } else { node.post_write(1, &rma) });
        reach.world.sent(0).good();
        reach.reached() > before
    };
    assert!(is_reached(own.all(), false), "it registers the region");
    reach.fabric.refuse_registrations(true);
    let registered = reach.fabric.tally().registered;
    target.fill(0);
    assert!(is_reached(own.all(), false), "the region is registered");
    same(&target.bytes(), &own.bytes(), "written");
    assert_eq!(reach.fabric.tally().registered, registered);
    let other = Memory::from(pattern(8, length));
    assert!(!is_reached(other.all(), false), "it does not lie in the region");
    same(&target.bytes(), &other.bytes(), "written all the same");
    assert!(!is_reached(own.all(), true), "the region may not be read into");
    same(&own.bytes(), &other.bytes(), "read all the same");
    reach.world.nodes[0].domain.close_memory(&source).unwrap();
    assert!(reach.fabric.tally().registered < registered, "it goes with the region");
    assert!(!is_reached(own.all(), false), "the region is closed");
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// The target is asked about a key that is nobody's yet, and answers; then it is a region's, before
/// the operation itself is there.
#[test]
fn a_region_that_comes_after_the_question_is_reached() {
    let (first, target, byte) = (Memory::zeroed(1), Memory::zeroed(1), Memory::zeroed(1));
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let other = expose(node, &first, BOTH, 5);
    reach.open_window(&other);
    // After a silence a poll takes one packet.
    reach.world.poll(50);
    reach.write(&byte, &[RemoteSegment { address: 0, length: 1, key: 4 }]);
    assert!(matches!(node.receives.read(&mut [Entry::default()]), Err(ReadError::Empty)));
    let region = expose(node, &target, BOTH, 4);
    reach.world.sent(0).good();
    reach.open_window(&region);
    for region in [other, region] {
        node.domain.close_memory(&region).unwrap();
    }
}

/// The adapter reads longer ones itself, also where they lie in a region that it has.
#[test]
fn an_injected_operation_needs_its_buffer_no_more() {
    const INJECTED: [usize; 4] = [64, 8_192, 9_000, 16_384];
    let (target, source) = (Memory::zeroed(INJECTED[3]), Memory::zeroed(INJECTED[3]));
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    let own = expose(&reach.world.nodes[0], &source, Flags::WRITE, 5);
    reach.open_window(&region);
    for (seed, length) in INJECTED.into_iter().enumerate() {
        for descriptor in [None, own.descriptor()] {
            let expected = pattern(seed as u64, length);
            source.piece().fill(&expected);
            reach.fabric.hold(true);
            let (segments, before) = ([segment(&region, 0, length)], reach.reached());
            let flags = Flags::INJECT | Flags::COMPLETION;
            let pieces = Pieces::One(source.piece().part(0, length));
            let rest = Rma { flags, region: descriptor, ..Rma::default() };
            let rma = Rma { pieces, segments: &segments, ..rest };
            reach.world.nodes[0].post_write(1, &rma).unwrap();
            source.scribble();
            reach.fabric.hold(false);
            reach.world.sent(0).good();
            assert_eq!(reach.reached() - before, 1, "by the adapter: {length} bytes");
            same(&target.bytes()[..length], &expected, "as it was when it was posted");
        }
    }
    for (node, region) in [(1, region), (0, own)] {
        reach.world.nodes[node].domain.close_memory(&region).unwrap();
    }
}

/// Its sender was told that it is done, and may close at once, also where the target is late: the last of
/// these wait until it has taken the data of the first.
#[test]
fn an_injected_operation_needs_its_sender_no_more() {
    unspoilt(injected_operations_arrive);
}

fn injected_operations_arrive() -> bool {
    const COUNT: u64 = 100;
    let target = Memory::zeroed(64);
    let mut reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let (source, before) = (Memory::from(pattern(1, 64)), reach.reached());
    let segments = [segment(&region, 0, 64)];
    for data in 0..COUNT {
        let (flags, data) = (Flags::INJECT, Some(data));
        let rma = Rma { pieces: source.all(), segments: &segments, flags, data, ..Rma::default() };
        reach.world.nodes[0].post_write(1, &rma).unwrap();
    }
    let queue = reach.world.nodes[1].receives.clone();
    let (is_lost, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let taken = std::thread::spawn({
        let is_lost = is_lost.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            let mut taken = Vec::new();
            while taken.len() < COUNT as usize && !is_lost.load(Ordering::Relaxed) {
                let mut entry = [Entry::default()];
                if queue.read(&mut entry).is_ok() {
                    taken.push(entry[0].data);
                }
                assert!(start.elapsed() < PATIENCE, "in vain: {taken:?}");
            }
            taken
        }
    });
    let sender = reach.world.nodes.remove(0);
    let in_time = leaves_in_time(|| drop(sender));
    is_lost.store(!in_time, Ordering::Relaxed);
    let taken = taken.join().unwrap();
    if in_time {
        assert!(taken.iter().copied().eq(0..COUNT), "all of them, in their order: {taken:?}");
        assert!(reach.reached() - before > 0, "by the adapter");
    }
    reach.world.nodes[0].domain.close_memory(&region).unwrap();
    in_time
}

/// The stale key ends the window, the target's engine says why, and nothing else suffers.
#[test]
fn a_region_that_closes_under_way_is_refused_and_messages_pass() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let source = Memory::from(pattern(7, length));
        let reach = Reach::new();
        let node = &reach.world.nodes[1];
        let region = reach.expose(&target);
        let segments = [segment(&region, 0, length)];
        reach.fabric.hold(true);
        for _ in 0..3 {
            reach.write(&source, &segments);
        }
        node.domain.close_memory(&region).unwrap();
        let closed = target.bytes();
        reach.fabric.hold(false);
        for _ in 0..3 {
            reach.world.sent(0).bad(Errno::KEYREJECTED);
        }
        same(&target.bytes(), &closed, "nothing lands after the close");
        node.receive(100, Some(3), 5);
        reach.world.nodes[0].send(pattern(2, 100), 1, Some(3), 6);
        assert_eq!(reach.world.received(1).good().context, 5);
        assert_eq!(reach.world.sent(0).good().context, 6);
        // The same key, and another window.
        let region = reach.expose(&target);
        reach.write(&source, &[segment(&region, 0, length)]);
        reach.done_alone().good();
        same(&target.bytes(), &source.bytes(), "written");
        node.domain.close_memory(&region).unwrap();
    }
}

#[test]
fn what_the_target_has_to_refuse_is_refused_by_its_engine() {
    let target = Memory::zeroed(100);
    let (source, into) = (Memory::zeroed(50), Memory::zeroed(50));
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let region = expose(node, &target, Flags::REMOTE_WRITE, 4);
    reach.open_window(&region);
    let before = reach.reached();
    reach.write(&source, &[segment(&region, 51, 50)]);
    reach.world.sent(0).bad(Errno::INVAL);
    reach.read(&into, &[segment(&region, 0, 50)]);
    reach.world.sent(0).bad(Errno::ACCES);
    reach.write(&source, &[RemoteSegment { key: 5, ..segment(&region, 0, 50) }]);
    reach.world.sent(0).bad(Errno::KEYREJECTED);
    assert_eq!(reach.reached(), before, "nothing of it by the adapter");
    node.domain.close_memory(&region).unwrap();
}

/// Whatever the device says, operations that it had not done are done by the target's engine.
#[test]
fn operations_survive_an_error_of_the_window() {
    for status in [Status::REMOTE_ACCESS, Status::LOCAL_PROTECTION, Status(99)] {
        for length in LENGTHS {
            let target = Memory::zeroed(length);
            let reach = Reach::new();
            let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
            reach.open_window(&region);
            let segments = [segment(&region, 0, length)];
            reach.fabric.hold(true);
            let sources: Vec<_> = (0..5).map(|seed| Memory::from(pattern(seed, length))).collect();
            sources.iter().for_each(|source| reach.write(source, &segments));
            let into = Memory::zeroed(length);
            reach.read(&into, &segments);
            reach.fabric.fail_sends(1, status);
            reach.fabric.hold(false);
            for _ in 0..6 {
                reach.world.sent(0).good();
            }
            same(&target.bytes(), &sources[4].bytes(), "the last write is the last");
            same(&into.bytes(), &sources[4].bytes(), "a read sees the writes before it");
            reach.world.nodes[1].domain.close_memory(&region).unwrap();
        }
    }
}

#[test]
fn a_message_waits_for_the_writes_before_it() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let source = Memory::from(pattern(3, length));
        let reach = Reach::new();
        let node = &reach.world.nodes[1];
        let region = reach.expose(&target);
        node.receive(8, Some(1), 1);
        reach.fabric.hold(true);
        reach.write(&source, &[segment(&region, 0, length)]);
        reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
        reach.world.poll(50);
        assert_eq!(reach.world.waiting(1), (0, 0));
        reach.fabric.hold(false);
        reach.world.received(1).good();
        same(&target.bytes(), &source.bytes(), "done when the message is there");
        node.domain.close_memory(&region).unwrap();
    }
}

/// A write behind a message goes the message's way, since the target's engine has to take that.
#[test]
fn a_write_does_not_overtake_a_message() {
    let target = Memory::zeroed(8);
    let source = Memory::from(vec![9; 8]);
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let region = reach.expose(&target);
    reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
    for _ in 0..3 {
        reach.write(&source, &[segment(&region, 0, 8)]);
    }
    for _ in 0..50 {
        reach.world.nodes[0].poll();
    }
    same(&target.bytes(), &[0; 8], "the target has not taken the message");
    node.receive(8, Some(1), 1);
    reach.world.received(1).good();
    for _ in 0..4 {
        reach.world.sent(0).good();
    }
    same(&target.bytes(), &[9; 8], "written");
    node.domain.close_memory(&region).unwrap();
}

/// A peer that nobody hears of any more fails what was under way to it.
#[test]
fn operations_fail_with_their_peer() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let (source, into) = (Memory::from(pattern(3, length)), Memory::zeroed(length));
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let segments = [segment(&region, 0, length)];
        reach.fabric.hold(true);
        reach.write(&source, &segments);
        reach.read(&into, &segments);
        reach.fabric.fail_sends(2, Status::RETRIES_EXCEEDED);
        reach.fabric.hold(false);
        for _ in 0..2 {
            let done = reach.world.sent(0);
            assert_eq!(done.errno, Some(Errno::CONNRESET), "{done:?}");
        }
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
        let registered = reach.fabric.tally().registered;
        assert!(registered < 8 << 20, "{registered} bytes are still registered");
    }
}

/// What the adapter has done before its peer closes is done, also if nobody has looked until then.
#[test]
fn what_was_done_before_the_end_is_done() {
    for length in LENGTHS {
        let target = Memory::zeroed(length);
        let source = Memory::from(pattern(3, length));
        let mut reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let before = reach.reached();
        for _ in 0..3 {
            reach.write(&source, &[segment(&region, 0, length)]);
        }
        assert_eq!(reach.reached() - before, 3, "by the adapter: {length} bytes");
        drop(reach.world.nodes.remove(1));
        // The news of the end comes from another thread, and is there when the operations are looked at.
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..3 {
            reach.world.sent(0).good();
        }
        same(&target.bytes(), &source.bytes(), "written");
    }
}

/// A device counts nothing, so a counter takes the region away from it.
#[test]
fn a_counter_that_is_bound_to_a_leased_region_counts() {
    let target = Memory::zeroed(8);
    let source = Memory::from(pattern(3, 8));
    let reach = Reach::new();
    let domain = &reach.world.nodes[1].domain;
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let counter = CompletionCounter::open(domain);
    domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
    for written in 1..4 {
        reach.write(&source, &[segment(&region, 0, 8)]);
        reach.world.sent(0).good();
        assert_eq!(counter.read(), written);
    }
    domain.close_memory(&region).unwrap();
}

/// Nothing stays registered for a region that is closed, and no queue pair for an endpoint.
#[test]
fn what_is_registered_goes_with_the_region_and_the_endpoint() {
    let fabric = {
        let target = Memory::zeroed(1 << 20);
        let reach = Reach::new();
        let before = reach.fabric.tally();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let open = reach.fabric.tally();
        assert_eq!(open.registered - before.registered, 1 << 20);
        assert_eq!(open.queue_pairs - before.queue_pairs, 2);
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
        assert_eq!(reach.fabric.tally().registered, before.registered);
        reach.fabric.clone()
    };
    let tally = fabric.tally();
    assert_eq!((tally.queue_pairs, tally.registered), (0, 0), "left behind");
}

/// "All canceled completions will be written before fi_shutdown returns" (fi_cm(3)): the buffers are
/// the application's then, and a read that was under way writes to none.
#[test]
fn a_shutdown_gives_the_buffers_of_reads_back() {
    const READS: [usize; 2] = [3_000, 300_000];
    let (byte, into) = (Memory::zeroed(1), Memory::zeroed(303_000));
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let bed = Bed { sharing: Sharing::Shared, ..bed };
    let target = Memory::from(vec![1; READS[1]]);
    let Link { caller, acceptor, listener: _listener } = Link::new(&bed);
    let range = MemoryRange { address: target.start(), len: READS[1] as u64 };
    let ranges = &[range];
    let attributes = MemoryRegionAttributes { ranges, access: BOTH, ..Default::default() };
    // SAFETY: the memory outlives the region, which is closed below.
    let region = unsafe { acceptor.domain.register_memory(&attributes) }.unwrap();
    let start = Instant::now();
    while fabric.tally().reached == 0 {
        let segments = [segment(&region, 0, 1)];
        let write = Rma { pieces: byte.all(), segments: &segments, ..Rma::default() };
        caller.endpoint.post_write(write.post(0)).unwrap();
        caller.done(&[&acceptor]).good();
        assert!(start.elapsed() < PATIENCE, "in vain: a window");
    }
    fabric.hold(true);
    for (length, pieces) in READS.into_iter().zip(into.cut(&READS)) {
        let segments = [segment(&region, 0, length)];
        let pieces = Pieces::One(pieces);
        let read = Rma { pieces, segments: &segments, ..Rma::default() };
        caller.endpoint.post_read(read.post(0)).unwrap();
    }
    caller.endpoint.shutdown().unwrap();
    for _ in READS {
        assert_eq!(caller.failed_already().errno, Some(Errno::CANCELED));
    }
    into.fill(7);
    fabric.hold(false);
    for _ in 0..1_000 {
        caller.drive();
        acceptor.drive();
    }
    same(&into.bytes(), &[7; 303_000], "what is the application's again");
    acceptor.domain.close_memory(&region).unwrap();
}

/// Whoever does not agree to FI_MR_ALLOCATED may map other pages where a region lies. The device, which
/// would go on with the first ones, keeps none of it registered, for peers or for our own operations
/// (but what is watched is another matter).
#[test]
fn memory_that_may_lose_its_pages_is_left_alone() {
    const STAYS: MemoryRegionMode = MemoryRegionMode::ALLOCATED;
    const MAY_GO: MemoryRegionMode = MemoryRegionMode::VIRT_ADDR;
    let length = LENGTHS[3];
    let (target, own) = (Memory::zeroed(length), Memory::from(pattern(7, length)));
    for (modes, kept) in [([STAYS, MAY_GO], false), ([MAY_GO, STAYS], true), ([MAY_GO; 2], false)] {
        target.fill(0);
        let verbs = VerbsOptions { cache_bytes: 0, ..VerbsOptions::default() };
        let reach = Reach::with(modes, FakeOptions::default(), verbs);
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        let source = expose(&reach.world.nodes[0], &own, Flags::WRITE, 5);
        let (before, reached) = (reach.fabric.tally().registered, reach.reached());
        for length in [LENGTHS; 10].into_iter().flatten() {
            let segments = [segment(&region, 0, length)];
            let pieces = Pieces::One(own.piece().part(0, length));
            let region = source.descriptor();
            let rma = Rma { pieces, segments: &segments, region, ..Rma::default() };
            reach.world.post(|| reach.world.nodes[0].post_write(1, &rma));
            reach.world.sent(0).good();
        }
        same(&target.bytes(), &own.bytes(), "written all the same");
        assert_eq!(reach.reached() > reached, kept, "by the adapter");
        let registered = reach.fabric.tally().registered - before;
        assert_eq!(registered, if kept { length } else { 0 }, "the target's region alone");
        for (node, region) in [(1, region), (0, source)] {
            reach.world.nodes[node].domain.close_memory(&region).unwrap();
        }
    }
}
