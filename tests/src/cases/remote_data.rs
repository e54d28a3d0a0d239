//! Remote CQ data of writes. Reference: fi_rma(3), fi_endpoint(3).

use std::time::{Duration, Instant};

use kestrel_core::{
    completion_queue::Entry,
    domain::{DomainOptions, ProgressMode, Sharing},
    flags::Flags,
    one_sided::RemoteSegment,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Receive, World, pattern, same},
    one_sided::{BOTH, MODES, Rma, expose, options, segment},
    process::woken,
    scale::PATIENCE,
};

pub fn remote_data_needs_no_receive<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 100_000] {
        let target = Memory::zeroed(length);
        let from = Memory::from(pattern(2, length));
        let posted = Memory::zeroed(8);
        let world = bed.world(2);
        let receive = Receive { pieces: posted.all(), context: 9, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [segment(&region, 0, length)];
        for data in [0, u64::MAX, 0x1122_3344_5566_7788] {
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_write(1, &Rma { data: Some(data), ..write }).unwrap();
            let done = world.received(1).good();
            same(&target.bytes(), &from.bytes(), "written when the data is told");
            let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
            assert_eq!((done.context, done.flags, done.data, done.source), (0, flags, data, 0));
            assert_eq!(done.length, length as u64);
            world.sent(0).good();
        }
        world.nothing_more();
        world.nodes[0].send(vec![1; 8], 1, None, 1);
        assert_eq!(world.received(1).context(), 9);
    }
}

/// The data of a write is told when all of it is there; of one that was refused in part, never.
pub fn what_is_refused_in_part_tells_no_data<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(2, &options(MODES[0]));
    let (from, target) = (Memory::from(pattern(1, 600)), Memory::zeroed(600));
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let good = segment(&region, 0, 300);
    let bad = RemoteSegment { key: !good.key, ..good };
    for (segments, errno) in [([bad, good], true), ([good, bad], true), ([good, good], false)] {
        let data = Some(7);
        let write = Rma { pieces: from.all(), segments: &segments, data, ..Rma::default() };
        world.nodes[0].post_write(1, &write).unwrap();
        assert_eq!(world.sent(0).errno.is_some(), errno);
        world.poll(50);
        if !errno {
            assert_eq!(world.received(1).good().data, 7);
        }
        world.nothing_more();
    }
}

/// Entries that nobody need read, by the budget below: as many as it has room for envelopes.
const UNREAD: usize = 682;

fn frugal<P: Provider>(bed: &Bed<P>, count: usize, progress: ProgressMode) -> World<P> {
    let domain = DomainOptions { unexpected_budget: 64 << 10, progress, ..Default::default() };
    bed.world_with(count, &Options { domain, queue_size: 2, ..Options::default() })
}

/// Writes with data from node 0 to node 1, until it takes no more though it is driven.
fn fill<P: Provider>(world: &World<P>, write: &Rma<'_>, receives: impl Fn()) -> u64 {
    let (mut posted, mut last) = (0, Instant::now());
    while last.elapsed() < Duration::from_millis(200) && posted < 20 * UNREAD as u64 {
        let write = Rma { data: Some(posted), ..*write };
        if world.nodes[0].post_write(1, &write).is_ok() {
            (posted, last) = (posted + 1, Instant::now());
        }
        world.nodes[0].poll();
        receives();
    }
    posted
}

/// A target whose application reads nothing keeps no more than it has memory for, and the rest waits at
/// the initiators; others get through.
pub fn data_that_nobody_reads_waits<P: Provider>(bed: &Bed<P>) {
    for progress in [ProgressMode::Manual, ProgressMode::Automatic] {
        if bed.sharing == Sharing::Exclusive && progress != ProgressMode::Manual {
            continue;
        }
        let (target, from) = (Memory::zeroed(8), Memory::zeroed(8));
        let world = frugal(bed, 3, progress);
        world.warm_up();
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [segment(&region, 0, 8)];
        let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
        let node = &world.nodes[1];
        let posted = fill(&world, &write, || _ = node.receives.poll());
        // What other threads have taken meanwhile comes on top, and what lies in the lanes is not over.
        let over = world.waiting(0).0;
        assert!(over < 3 * UNREAD, "{over} of {posted} are over");
        // A third one is heard: what it writes is written, and it is answered.
        from.fill(7);
        let start = Instant::now();
        world.nodes[2].post_write(1, &write).unwrap();
        while world.waiting(2).0 == 0 {
            node.receives.poll();
            world.nodes[2].poll();
            assert!(start.elapsed() < PATIENCE, "in vain: another peer's write");
        }
        world.sent(2).good();
        for data in 0..posted {
            assert_eq!(world.received(1).good().data, data);
            world.sent(0).good();
        }
        world.nothing_more();
    }
}

/// A thread that waits for something else, which is behind the data, goes on when somebody has read:
/// who reads rings no bell.
pub fn who_sleeps_hears_of_what_waited_behind_data<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let memory = [(); 2].map(|()| Memory::zeroed(8));
    let from = Memory::zeroed(8);
    let world = frugal(bed, 2, ProgressMode::Manual);
    world.warm_up();
    let regions = [0, 1].map(|at| expose(&world.nodes[at], &memory[at], BOTH, 0));
    let segments = regions.each_ref().map(|region| [segment(region, 0, 8)]);
    let write = Rma { pieces: from.all(), segments: &segments[1], ..Rma::default() };
    let node = &world.nodes[1];
    let sends = &node.sends;
    std::thread::scope(|scope| {
        let mut done = [Entry::default()];
        let sleeper = scope.spawn(move || {
            let read = woken(|| sends.read_blocking(&mut done, Some(PATIENCE)));
            (read, done[0].context)
        });
        std::thread::sleep(Duration::from_millis(50));
        let posted = fill(&world, &write, || _ = node.receives.poll());
        node.post_write(0, &Rma { segments: &segments[0], context: 5, ..write }).unwrap();
        (0..1_000).for_each(|_| world.nodes[0].poll());
        std::thread::sleep(Duration::from_millis(50));
        // The last of these is read behind the last look at what has arrived.
        let mut entries: Vec<Entry> = (0..posted).map(|_| Entry::default()).collect();
        let count = node.receives.read(&mut entries).unwrap();
        assert!(count > 0, "{count} of {posted}");
        let start = Instant::now();
        while !sleeper.is_finished() {
            // The other side takes what was written, and answers.
            world.nodes[0].poll();
            assert!(start.elapsed() < PATIENCE, "in vain: the thread that sleeps");
        }
        assert_eq!(sleeper.join().unwrap(), (Ok(1), 5));
    });
}
