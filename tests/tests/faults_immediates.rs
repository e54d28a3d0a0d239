//! Writes that carry remote CQ data by the adapter, on the fake: who tells of them, when, and how
//! often.

use std::time::Instant;

use kestrel_core::{
    domain::DomainOptions, error::Errno, flags::Flags, info::MemoryRegionMode,
    one_sided::RemoteSegment,
};
use kestrel_tests::{
    bed::{Memory, pattern, same},
    contexts::{Portal, counts, next, nothing_more},
    fake::fake_bed,
    one_sided::{BOTH, Rma, expose, expose_in, segment},
    reach::Reach,
    scale::PATIENCE,
};
use kestrel_verbs::{VerbsOptions, fake::FakeOptions, verbs::Status};

/// What a target is told of a write.
const TOLD: Flags = Flags::RMA.union(Flags::REMOTE_WRITE).union(Flags::REMOTE_CQ_DATA);
/// The most that goes along with a write.
const MOST: u64 = u32::MAX as u64;

fn write(reach: &Reach, source: &Memory, segments: &[RemoteSegment], data: u64, flags: Flags) {
    let flags = flags | Flags::COMPLETION;
    let rma = Rma { pieces: source.all(), segments, data: Some(data), flags, ..Rma::default() };
    reach.world.post(|| reach.world.nodes[0].post_write(1, &rma));
}

/// Node 1 is told of a write.
#[track_caller]
fn told(reach: &Reach, length: usize, data: u64) {
    let done = reach.world.received(1).good();
    assert_eq!((done.flags, done.length, done.data), (TOLD, length as u64, data));
}

#[test]
fn data_of_32_bits_goes_by_the_adapter_and_more_as_a_packet() {
    for length in [8, 3_000, 300_000] {
        let target = Memory::zeroed(length);
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let segments = [segment(&region, 0, length)];
        let ways = [
            (0, Flags::empty(), 1),
            (MOST, Flags::empty(), 1),
            (MOST + 1, Flags::empty(), 0),
            // The device does not wait for the target's engine.
            (1, Flags::DELIVERY_COMPLETE, 0),
        ];
        for (seed, (data, flags, by_adapter)) in ways.into_iter().enumerate() {
            let before = reach.fabric.tally().told;
            let source = Memory::from(pattern(seed as u64, length));
            write(&reach, &source, &segments, data, flags);
            told(&reach, length, data);
            same(&target.bytes(), &source.bytes(), "there when it is told");
            reach.world.sent(0).good();
            assert_eq!(reach.fabric.tally().told - before, by_adapter, "{data} {flags:?}");
        }
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// The initiator is done with a target that does not progress, up to what that may leave untold; the
/// rest waits, and nothing is lost.
#[test]
fn a_target_that_does_not_progress_is_told_of_all_in_order() {
    const WRITES: usize = 100;
    let target = Memory::zeroed(8 * WRITES);
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let source = Memory::from(pattern(1, 8));
    let place = |nth: usize| [segment(&region, 8 * nth, 8)];
    let (mut posted, mut over) = (0, 0);
    for _ in 0..10_000 {
        if posted < WRITES {
            let segments = place(posted);
            let data = Some(posted as u64);
            let flags = Flags::COMPLETION;
            let rma =
                Rma { pieces: source.all(), segments: &segments, data, flags, ..Rma::default() };
            posted += usize::from(reach.world.nodes[0].post_write(1, &rma).is_ok());
        }
        reach.world.nodes[0].poll();
        over = reach.world.waiting(0).0;
    }
    assert!((1..WRITES).contains(&over), "{over} are over, of a target that tells nobody");
    for nth in 0..WRITES {
        told(&reach, 8, nth as u64);
        while posted < WRITES && nth >= posted / 2 {
            write(&reach, &source, &place(posted), posted as u64, Flags::empty());
            posted += 1;
        }
    }
    for _ in 0..WRITES {
        reach.world.sent(0).good();
    }
    assert_eq!(reach.fabric.tally().told, WRITES as u64, "all by the adapter");
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

#[test]
fn a_message_is_behind_the_writes_before_it() {
    let target = Memory::zeroed(8);
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let region = reach.expose(&target);
    let source = Memory::from(pattern(1, 8));
    node.receive(8, Some(1), 1);
    for data in 0..3 {
        write(&reach, &source, &[segment(&region, 0, 8)], data, Flags::empty());
    }
    reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
    for data in 0..3 {
        told(&reach, 8, data);
    }
    assert_eq!(reach.world.received(1).good().tag, 1);
    node.domain.close_memory(&region).unwrap();
}

/// What the target's device has refused goes as a packet, and is told of once. Of any other end
/// nobody knows whether it was told of, so it fails.
#[test]
fn nothing_is_told_twice() {
    for (status, known) in
        [(Status::REMOTE_ACCESS, true), (Status::LOCAL_PROTECTION, false), (Status(99), false)]
    {
        let target = Memory::zeroed(8);
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let source = Memory::from(pattern(1, 8));
        reach.fabric.hold(true);
        for data in 0..5 {
            write(&reach, &source, &[segment(&region, 0, 8)], data, Flags::empty());
        }
        reach.fabric.fail_sends(1, status);
        reach.fabric.hold(false);
        for data in 0..5 {
            if known {
                told(&reach, 8, data);
                reach.world.sent(0).good();
            } else {
                assert_eq!(reach.world.sent(0).errno, Some(Errno::IO));
            }
        }
        // The next ones find another window.
        reach.open_window(&region);
        let before = reach.fabric.tally().told;
        write(&reach, &source, &[segment(&region, 0, 8)], 9, Flags::empty());
        told(&reach, 8, 9);
        assert_eq!(reach.fabric.tally().told - before, 1);
        reach.world.poll(50);
        assert_eq!(reach.world.waiting(1).1, 0, "no more is told");
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// "Outstanding operations [...] will be discarded", and nothing else: who wrote before the receive
/// context was closed has broken nothing.
#[test]
fn what_is_told_behind_the_close_of_a_context_is_dropped() {
    let memory_region_mode = MemoryRegionMode::ALLOCATED;
    let (target, source) = (Memory::zeroed(8), Memory::from(pattern(1, 8)));
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let [ours, mut theirs] = [(); 2].map(|()| {
        let options = DomainOptions { memory_region_mode, ..DomainOptions::default() };
        Portal::on(&bed.domain(options), counts(1, 1))
    });
    ours.knows(&[theirs.endpoint.address()]);
    theirs.knows(&[ours.endpoint.address()]);
    let domain = theirs.receive[0].endpoint.domain().clone();
    let region = expose_in(&domain, &[target.piece()], BOTH, 4, Flags::empty()).unwrap();
    let segments = [segment(&region, 0, 8)];
    let (writer, start) = (&ours.transmit[0], Instant::now());
    let write = Rma { pieces: source.all(), segments: &segments, ..Rma::default() };
    while fabric.tally().reached == 0 {
        writer.endpoint.post_write(write.post(0)).unwrap();
        next(writer, &[&ours, &theirs]).good();
        assert!(start.elapsed() < PATIENCE, "in vain: a window");
    }
    writer.endpoint.post_write(Rma { data: Some(3), ..write }.post(0)).unwrap();
    next(writer, &[&ours]).good();
    assert_eq!(fabric.tally().told, 1);
    ours.receive[0].endpoint.receive(vec![0; 8], 0, 5).unwrap();
    theirs.receive.remove(0).endpoint.close();
    nothing_more(&[&ours, &theirs]);
    theirs.transmit[0].endpoint.send(vec![1; 8], 0, 6).unwrap();
    assert_eq!(next(&ours.receive[0], &[&ours, &theirs]).context(), 5);
    assert_eq!(next(&theirs.transmit[0], &[&ours, &theirs]).context(), 6);
    domain.close_memory(&region).unwrap();
}

/// A device whose queues have no room for what comes along, as when other peers have it all.
#[test]
fn where_no_data_can_come_along_it_goes_as_packets() {
    for immediates in [0, 31, 32] {
        let target = Memory::zeroed(8);
        let reach = Reach::on(FakeOptions { immediates, ..FakeOptions::default() });
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        let source = Memory::from(pattern(1, 8));
        for data in 0..100 {
            write(&reach, &source, &[segment(&region, 0, 8)], data, Flags::empty());
            told(&reach, 8, data);
            reach.world.sent(0).good();
        }
        let by_adapter = if immediates < 32 { 0 } else { 100 };
        assert_eq!(reach.fabric.tally().told, by_adapter);
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}
