//! Atomic operations by the adapter, on the fake: targets that do not progress, threads that meet
//! at one word, sides that disagree, regions that close, errors of the device.

use std::{sync::Arc, thread};

use kestrel_core::{
    completion_counter::CompletionCounter,
    domain::Sharing,
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory_region::MemoryRegion,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};
use kestrel_tests::{
    bed::{Bed, Memory, Options, World},
    completion::Done,
    fake::fake_provider,
    one_sided::{Atomic, BOTH, Rma, expose, options, segment},
    scale::scaled,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    verbs::Status,
};

type Fake = RcProvider<FakeDevice>;

const fn fetch(operation: AtomicOperation) -> AtomicCall {
    AtomicCall { operation, datatype: Datatype::Uint64, form: Form::Fetch }
}

/// One step of the adapter, and one that may take several.
const CALLS: [AtomicCall; 2] = [fetch(AtomicOperation::Sum), fetch(AtomicOperation::Bxor)];
const SUM: AtomicCall = CALLS[0];

fn bed(fabric: &FakeFabric, fake: FakeOptions, nic_atomics: bool) -> Bed<Fake> {
    let options = VerbsOptions { nic_atomics, ..VerbsOptions::default() };
    let provider = Arc::new(fake_provider(fabric, fake, options));
    Bed { provider, sharing: Sharing::Exclusive }
}

fn value(memory: &Memory) -> u64 {
    u64::from_ne_bytes(memory.bytes()[..8].try_into().unwrap())
}

fn word(value: u64) -> Memory {
    Memory::from(value.to_ne_bytes().to_vec())
}

/// Node 0 reaches a word of node 1's.
struct Reach {
    world: World<Fake>,
    fabric: FakeFabric,
}

impl Reach {
    fn new() -> Reach {
        Reach::with([true; 2], FakeOptions::default())
    }

    /// With what each side declares.
    fn with(declared: [bool; 2], fake: FakeOptions) -> Reach {
        Reach::over(declared, fake, &options(MemoryRegionMode::ALLOCATED))
    }

    fn over(declared: [bool; 2], fake: FakeOptions, opened: &Options) -> Reach {
        let fabric = FakeFabric::default();
        let node = |declared| bed(&fabric, fake.clone(), declared).stranger(opened);
        let world = World { nodes: declared.into_iter().map(node).collect() };
        world.introduce();
        world.warm_up();
        Reach { world, fabric }
    }

    fn post(&self, call: AtomicCall, [operand, result]: [&Memory; 2], region: &MemoryRegion) {
        let segments = [segment(region, 0, 8)];
        let (operands, results) = (operand.all(), result.all());
        let atomic = Atomic { operands, results, segments: &segments, ..Atomic::new(call) };
        self.world.post(|| self.world.nodes[0].post_atomic(1, &atomic));
    }

    /// Operations that the adapter played so far.
    fn played(&self) -> u64 {
        self.fabric.tally().atomics
    }

    /// The end of an operation of node 0, which alone is driven.
    #[track_caller]
    fn done_alone(&self) -> Done {
        self.world.drive_sends_of(0)
    }

    /// Adds nothing, by which the window is opened.
    #[track_caller]
    fn open_window(&self, region: &MemoryRegion) {
        let (zero, result) = (word(0), word(0));
        let before = self.played();
        self.post(SUM, [&zero, &result], region);
        self.world.sent(0).good();
        assert_eq!(self.played() - before, 1, "the first one goes by the adapter as well");
    }
}

#[test]
fn a_target_that_does_not_progress_is_reached() {
    let (target, operand, result) = (word(5), word(3), word(0));
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    for (call, left) in CALLS.into_iter().zip([8, 8 ^ 3]) {
        let before = value(&target);
        reach.post(call, [&operand, &result], &region);
        reach.done_alone().good();
        assert_eq!((value(&result), value(&target)), (before, left), "{call:?}");
    }
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// Threads with an endpoint each add to one word and turn bits of another, until all have met.
/// Reads and writes are another kind, which the adapter is not let in for.
#[test]
fn a_target_of_atomics_alone_is_reached() {
    let target = word(5);
    let mut opened = options(MemoryRegionMode::ALLOCATED);
    opened.endpoint.capabilities.remove(Flags::RMA);
    let reach = Reach::over([true; 2], FakeOptions::default(), &opened);
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    assert_eq!(value(&target), 5);
}

#[test]
fn initiators_in_threads_lose_no_update() {
    const THREADS: u64 = 3;
    let rounds = scaled(300, 3_000, 30_000) as u64;
    let target = Memory::zeroed(16);
    let fabric = FakeFabric::default();
    let opened = options(MemoryRegionMode::ALLOCATED);
    let owner = bed(&fabric, FakeOptions::default(), true).stranger(&opened);
    let region = expose(&owner, &target, BOTH, 4);
    let address = owner.endpoint.address();
    let work = |thread: u64| {
        let node = bed(&fabric, FakeOptions::default(), true).stranger(&opened);
        assert_eq!(node.vector.insert(&[address]).count(), 1);
        hammer(&World { nodes: vec![node] }, &region, 1 << thread, rounds);
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|nth| scope.spawn(move || work(nth))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            owner.poll();
        }
    });
    let bytes = target.bytes();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), rounds * ((1 << THREADS) - 1));
    assert_eq!(word(8), if rounds.is_multiple_of(2) { 0 } else { (1 << THREADS) - 1 });
}

/// Adds `bit` to the first word, and turns it in the second.
fn hammer(world: &World<Fake>, region: &MemoryRegion, bit: u64, rounds: u64) {
    let (operand, result) = (word(bit), word(0));
    for _ in 0..rounds {
        for (nth, call) in CALLS.into_iter().enumerate() {
            let segments = [segment(region, 8 * nth, 8)];
            let (operands, results) = (operand.all(), result.all());
            let atomic = Atomic { operands, results, segments: &segments, ..Atomic::new(call) };
            world.nodes[0].post_atomic(0, &atomic).unwrap();
            world.sent(0).good();
        }
        let turned = value(&result) & bit;
        assert!(turned == 0 || turned == bit);
    }
}

/// Whoever declares nothing has its operations played by nobody at a target that does, but for
/// reading; where the target declares nothing its processor plays, and no adapter.
#[test]
fn sides_that_disagree_never_mix() {
    let (operand, result) = (word(3), word(0));
    let read = fetch(AtomicOperation::Read);
    for (declared, played) in [([false, true], false), ([true, false], true)] {
        let target = word(5);
        let reach = Reach::with(declared, FakeOptions::default());
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        for call in CALLS {
            let before = value(&target);
            reach.post(call, [&operand, &result], &region);
            let done = reach.world.sent(0);
            if played {
                assert_eq!(done.good().errno, None);
                assert_eq!(value(&result), before);
            } else {
                let done = done.bad(Errno::OPNOTSUPP);
                assert!(done.reason.contains("FI_KESTREL_NIC_ATOMICS"), "{}", done.reason);
            }
        }
        let left = if played { 8 ^ 3 } else { 5 };
        reach.post(read, [&Memory::zeroed(0), &result], &region);
        reach.world.sent(0).good();
        assert_eq!((value(&target), value(&result)), (left, left), "{declared:?}");
        assert_eq!(reach.played(), 0, "{declared:?}");
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// What is declared does not help a device that cannot: everything is as without.
#[test]
fn a_device_without_atomics_leaves_them_to_packets() {
    let (target, operand, result) = (word(5), word(3), word(0));
    let fake = FakeOptions { has_atomics: false, ..FakeOptions::default() };
    let reach = Reach::with([true; 2], fake);
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    assert_eq!(reach.world.nodes[0].domain.atomic_count_max(SUM), Some(512));
    for (call, left) in CALLS.into_iter().zip([8, 8 ^ 3]) {
        reach.post(call, [&operand, &result], &region);
        reach.world.sent(0).good();
        assert_eq!(value(&target), left);
    }
    assert_eq!(reach.played(), 0);
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// A device that refuses without a reason that a lease tells is not asked for ever.
#[test]
fn a_device_that_always_refuses_is_given_up() {
    let (target, operand, result) = (word(5), word(3), word(0));
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    reach.fabric.refuse_atomics();
    for call in CALLS {
        reach.post(call, [&operand, &result], &region);
        reach.world.sent(0).bad(Errno::OPNOTSUPP);
    }
    assert_eq!(value(&target), 5);
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// A device counts nothing, and a processor may not play: so nobody does, and that is said.
#[test]
fn what_is_counted_is_refused() {
    let (target, operand, result) = (word(5), word(3), word(0));
    let reach = Reach::new();
    let domain = &reach.world.nodes[1].domain;
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let counter = CompletionCounter::open(domain);
    domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
    for call in CALLS {
        reach.post(call, [&operand, &result], &region);
        reach.world.sent(0).bad(Errno::OPNOTSUPP);
    }
    assert_eq!((value(&target), counter.read()), (5, 0));
    domain.close_memory(&region).unwrap();
}

/// What the device refused it has not done: the target's engine says why, and a region that comes
/// under the same key is reached again.
#[test]
fn a_region_that_closes_under_way_is_refused() {
    for call in CALLS {
        let (target, operand, result) = (word(5), word(3), word(0));
        let reach = Reach::new();
        let node = &reach.world.nodes[1];
        let region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
        reach.fabric.hold(true);
        for _ in 0..3 {
            reach.post(call, [&operand, &result], &region);
        }
        node.domain.close_memory(&region).unwrap();
        reach.fabric.hold(false);
        for _ in 0..3 {
            reach.world.sent(0).bad(Errno::KEYREJECTED);
        }
        assert_eq!(value(&target), 5, "nothing lands after the close");
        let region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
        reach.post(call, [&operand, &result], &region);
        reach.done_alone().good();
        assert_eq!(value(&result), 5);
        node.domain.close_memory(&region).unwrap();
    }
}

/// A region that is closed and registered again, under one key, while others never stop adding:
/// what was done is what was said to be done.
#[test]
fn regions_that_come_and_go_in_a_storm_count_exactly() {
    let (target, operand) = (word(0), word(1));
    let results: Vec<Memory> = (0..8).map(|_| word(0)).collect();
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let mut region = expose(node, &target, BOTH, 4);
    let (mut good, mut refused) = (0, 0);
    for round in 0..scaled(60, 400, 4_000) {
        for result in &results {
            reach.post(SUM, [&operand, result], &region);
        }
        reach.world.poll(round % 3);
        let held = round % 2 == 0;
        reach.fabric.hold(held);
        node.domain.close_memory(&region).unwrap();
        let closed = value(&target);
        reach.fabric.hold(false);
        for _ in &results {
            match reach.world.sent(0).errno {
                None => good += 1,
                Some(errno) => {
                    assert_eq!(errno, Errno::KEYREJECTED);
                    refused += 1;
                }
            }
        }
        assert_eq!(value(&target), closed, "nothing lands after the close");
        assert_eq!(value(&target), good);
        region = expose(node, &target, BOTH, 4);
        reach.open_window(&region);
    }
    assert!(good > 0 && refused > 0, "{good} were done, {refused} refused");
    node.domain.close_memory(&region).unwrap();
}

/// Whether an atomic operation was done is not known after an error that the peer's device did not
/// send: it is not tried again. What can be done again is.
#[test]
fn what_may_have_been_done_is_not_done_again() {
    for (status, known) in [(Status::REMOTE_ACCESS, true), (Status(99), false)] {
        let (target, operand, result) = (word(5), word(3), word(0));
        let into = Memory::zeroed(8);
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        reach.fabric.hold(true);
        reach.post(SUM, [&operand, &result], &region);
        let segments = [segment(&region, 0, 8)];
        let read = Rma { pieces: into.all(), segments: &segments, context: 9, ..Rma::default() };
        reach.world.nodes[0].post_read(1, &read).unwrap();
        reach.post(SUM, [&operand, &result], &region);
        reach.fabric.fail_sends(1, status);
        reach.fabric.hold(false);
        let mut ends = Vec::new();
        for _ in 0..3 {
            let done = reach.world.sent(0);
            ends.push((done.context, done.errno));
        }
        ends.sort_unstable_by_key(|&(context, _)| context);
        let end = (!known).then_some(Errno::IO);
        assert_eq!(ends, [(0, end), (0, end), (9, None)], "{status}");
        assert_eq!(value(&target), if known { 11 } else { 5 });
        // Behind the first, before the second.
        assert_eq!(value(&into), if known { 8 } else { 5 });
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// Nothing starts behind one that may have to be tried again, and nothing overtakes.
#[test]
fn what_is_behind_a_swap_waits_for_it() {
    let (target, seven, result) = (word(5), word(7), [word(0), word(0), word(0)]);
    let (source, into) = (word(100), word(0));
    let reach = Reach::new();
    let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
    reach.open_window(&region);
    let segments = [segment(&region, 0, 8)];
    let [write, read] = [&source, &into].map(|memory| Rma {
        pieces: memory.all(),
        segments: &segments,
        ..Rma::default()
    });
    reach.fabric.hold(true);
    reach.post(CALLS[1], [&seven, &result[0]], &region);
    reach.world.nodes[0].post_write(1, &write).unwrap();
    reach.post(SUM, [&seven, &result[1]], &region);
    reach.world.nodes[0].post_read(1, &read).unwrap();
    reach.post(CALLS[1], [&seven, &result[2]], &region);
    reach.world.poll(20);
    reach.fabric.hold(false);
    (0..5).for_each(|_| drop(reach.done_alone().good()));
    assert_eq!(result.each_ref().map(value), [5, 100, 107]);
    assert_eq!((value(&into), value(&target)), (107, 107 ^ 7));
    reach.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// One behind a message waits until the target has taken that.
#[test]
fn an_atomic_does_not_overtake_a_message() {
    let (target, operand, result) = (word(5), word(3), word(0));
    let reach = Reach::new();
    let node = &reach.world.nodes[1];
    let region = expose(node, &target, BOTH, 4);
    reach.open_window(&region);
    reach.world.nodes[0].send(vec![1; 8], 1, Some(1), 2);
    reach.post(SUM, [&operand, &result], &region);
    for _ in 0..50 {
        reach.world.nodes[0].poll();
    }
    assert_eq!(value(&target), 5, "the target has not taken the message");
    node.receive(8, Some(1), 1);
    reach.world.received(1).good();
    (0..2).for_each(|_| drop(reach.world.sent(0).good()));
    assert_eq!(value(&target), 8);
    node.domain.close_memory(&region).unwrap();
}

/// A peer that nobody hears of any more fails what was under way to it.
#[test]
fn atomics_fail_with_their_peer() {
    for call in CALLS {
        let (target, operand, result) = (word(5), word(3), word(0));
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        reach.fabric.hold(true);
        (0..2).for_each(|_| reach.post(call, [&operand, &result], &region));
        reach.fabric.fail_sends(2, Status::RETRIES_EXCEEDED);
        reach.fabric.hold(false);
        (0..2).for_each(|_| drop(reach.world.sent(0).bad(Errno::CONNRESET)));
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// What is injected needs its operand no more, however often it is tried.
#[test]
fn an_injected_atomic_needs_its_operand_no_more() {
    for (call, left) in CALLS.into_iter().zip([8, 5 ^ 3]) {
        let (target, operand) = (word(5), word(3));
        let reach = Reach::new();
        let region = expose(&reach.world.nodes[1], &target, BOTH, 4);
        reach.open_window(&region);
        reach.fabric.hold(true);
        let segments = [segment(&region, 0, 8)];
        let flags = Flags::INJECT | Flags::COMPLETION;
        let call = AtomicCall { form: Form::Base, ..call };
        let operands = operand.all();
        let atomic = Atomic { operands, segments: &segments, flags, ..Atomic::new(call) };
        reach.world.nodes[0].post_atomic(1, &atomic).unwrap();
        operand.scribble();
        reach.fabric.hold(false);
        reach.world.sent(0).good();
        assert_eq!(value(&target), left, "as it was when it was posted");
        reach.world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// Nobody heard whether it was played: then it is not tried again, and its target tells whether it is
/// refused.
#[test]
fn an_atomic_that_was_played_unheard_is_not_played_again() {
    for (call, left) in CALLS.into_iter().zip([8, 5 ^ 3]) {
        for closes in [false, true] {
            let (target, operand, result) = (word(5), word(3), word(0));
            let reach = Reach::new();
            let node = &reach.world.nodes[1];
            let region = expose(node, &target, BOTH, 4);
            reach.open_window(&region);
            reach.fabric.hold(true);
            reach.post(call, [&operand, &result], &region);
            if closes {
                node.domain.close_memory(&region).unwrap();
            }
            reach.fabric.lose_answers(1);
            reach.fabric.hold(false);
            let errno = if closes { Errno::KEYREJECTED } else { Errno::IO };
            reach.world.sent(0).bad(errno);
            // The first swap of two looks what is there.
            let played = call == SUM && !closes;
            assert_eq!(value(&target), if played { left } else { 5 });
            if !closes {
                reach.open_window(&region);
                node.domain.close_memory(&region).unwrap();
            }
        }
    }
}
