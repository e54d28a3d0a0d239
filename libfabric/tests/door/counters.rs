//! What counters of an endpoint count. Reference: fi_endpoint(3), `fi_ep_bind`; fi_cntr(3).

use std::{ffi::c_void, ptr::null_mut, time::Instant};

use crate::{
    abi::fid::{FidCntr, FidEp},
    flag,
    host::host,
    one_sided::{KEY, register},
    triggered::counter,
    world::{Node, PATIENCE, World, bind, close, cq_attr},
};

const RMA_EVENT: u64 = 1 << 56;
const UINT64: u32 = 7;
const SUM: u32 = 2;
const CSWAP: u32 = 12;
const NONE: *mut c_void = null_mut();

/// Successes and errors.
pub fn counts(cntr: *mut FidCntr) -> (u64, u64) {
    // SAFETY: the counter is open.
    unsafe { (((*(*cntr).ops).read)(cntr), ((*(*cntr).ops).readerr)(cntr)) }
}

/// Waits until a counter has counted so much, while all of these are driven, and no entry is read.
#[track_caller]
pub fn awaits(cntr: *mut FidCntr, expected: (u64, u64), driven: &[Node]) {
    let start = Instant::now();
    while counts(cntr) != expected {
        driven.iter().for_each(|node| node.progress());
        assert!(start.elapsed() < PATIENCE, "{:?} instead of {expected:?}", counts(cntr));
    }
}

/// Adds an endpoint with a counter for each of these kinds of operations.
pub fn add_counted<const N: usize>(world: &mut World, kinds: [u64; N]) -> [*mut FidCntr; N] {
    let ep = world.open_ep();
    let counters = kinds.map(|kind| {
        let cntr = counter(world);
        assert_eq!(bind(ep, cntr, kind), 0);
        cntr
    });
    world.add(ep, &mut cq_attr(), 0);
    counters
}

/// Closes the endpoints, and then what they were bound to.
pub fn close_counted(world: &mut World, counters: &[*mut FidCntr]) {
    for Node { cq, ep } in world.nodes.drain(..) {
        assert_eq!((close(ep), close(cq)), (0, 0));
    }
    counters.iter().for_each(|&cntr| assert_eq!(close(cntr), 0));
}

/// "Use of this flag requires that the endpoint be created using FI_RMA_EVENT", of FI_REMOTE_READ and
/// FI_REMOTE_WRITE: whoever can be a target has it without asking, and whoever cannot is refused nothing
/// by it, since one counter is often bound for all kinds at once.
#[test]
fn who_can_be_a_target_has_its_events() {
    let Some(host) = host("who_can_be_a_target_has_its_events") else { return };
    const KINDS: [u64; 3] = [flag::REMOTE_READ, flag::REMOTE_WRITE, flag::SEND | flag::RECV];
    for (caps, has) in [
        (flag::MSG | flag::RMA, RMA_EVENT),
        (flag::MSG | flag::ATOMIC | flag::REMOTE_WRITE, RMA_EVENT),
        (flag::MSG | flag::RMA | flag::READ | flag::WRITE | RMA_EVENT, 0),
        (flag::MSG, 0),
    ] {
        let mut world = World::empty(host, |hints| hints.caps = caps);
        // SAFETY: the info is libfabric's.
        assert_eq!(unsafe { (*world.info).caps } & RMA_EVENT, has, "{caps:#x}");
        let counters = add_counted(&mut world, KINDS);
        let [node] = world.nodes[..] else { unreachable!() };
        let nothing = [].as_mut_slice();
        if caps & (flag::READ | flag::WRITE | flag::REMOTE_WRITE) == 0 {
            assert_eq!((node.receive(nothing, u64::MAX, 0), node.send(&[], 0, 0)), (0, 0));
            awaits(counters[2], (2, 0), &[node]);
        }
        assert_eq!([counts(counters[0]), counts(counters[1])], [(0, 0); 2], "{caps:#x}");
        close_counted(&mut world, &counters);
    }
}

/// What reads and writes here, and is read and written there.
struct Words {
    local: Vec<u64>,
    compared: u64,
    fetched: u64,
}

type Call = fn(&mut Words, *mut FidEp, u64) -> isize;

/// Calls that FI_READ and FI_REMOTE_READ count.
const READS: [Call; 3] = [
    |words, ep, key| {
        let (at, length) = (words.local.as_mut_ptr().cast(), size_of_val(&words.local[..]));
        // SAFETY: the endpoint is open, and the words outlive their operations, here and below.
        unsafe { ((*(*ep).rma).read)(ep, at, length, NONE, 1, 0, key, NONE) }
    },
    |words, ep, key| {
        let (at, old) = (words.local.as_ptr().cast(), (&raw mut words.fetched).cast());
        // SAFETY: as above.
        unsafe {
            let call = (*(*ep).atomic).readwrite;
            call(ep, at, 1, NONE, old, NONE, 1, 0, key, UINT64, SUM, NONE)
        }
    },
    |words, ep, key| {
        let (at, old) = (words.local.as_ptr().cast(), (&raw mut words.fetched).cast());
        let other = (&raw const words.compared).cast();
        // SAFETY: as above.
        unsafe {
            let call = (*(*ep).atomic).compwrite;
            call(ep, at, 1, NONE, other, NONE, old, NONE, 1, 0, key, UINT64, CSWAP, NONE)
        }
    },
];

/// Calls that FI_WRITE and FI_REMOTE_WRITE count.
const WRITES: [Call; 4] = [
    |words, ep, key| {
        let (at, length) = (words.local.as_ptr().cast(), size_of_val(&words.local[..]));
        // SAFETY: as above.
        unsafe { ((*(*ep).rma).write)(ep, at, length, NONE, 1, 0, key, NONE) }
    },
    |words, ep, key| {
        let at = words.local.as_ptr().cast();
        // SAFETY: as above.
        unsafe { ((*(*ep).rma).inject)(ep, at, 8, 1, 0, key) }
    },
    |words, ep, key| {
        let at = words.local.as_ptr().cast();
        // SAFETY: as above.
        unsafe { ((*(*ep).atomic).write)(ep, at, 1, NONE, 1, 0, key, UINT64, SUM, NONE) }
    },
    |words, ep, key| {
        let at = words.local.as_ptr().cast();
        // SAFETY: as above.
        unsafe { ((*(*ep).atomic).inject)(ep, at, 1, 1, 0, key, UINT64, SUM) }
    },
];

/// "FI_READ: Increments the specified counter whenever an RMA read, atomic fetch, or atomic compare
/// operation initiated from the endpoint has completed successfully or in error"; FI_WRITE, of "an RMA
/// write or base atomic operation"; and FI_REMOTE_READ and FI_REMOTE_WRITE at the endpoint that they
/// target.
#[test]
fn both_ends_count_reads_and_writes_apart() {
    let Some(host) = host("both_ends_count_reads_and_writes_apart") else { return };
    let mut world =
        World::empty(host, |hints| hints.caps = flag::MSG | flag::RMA | flag::ATOMIC | RMA_EVENT);
    let [reads, writes] = add_counted(&mut world, [flag::READ, flag::WRITE]);
    let [remote_reads, remote_writes] =
        add_counted(&mut world, [flag::REMOTE_READ, flag::REMOTE_WRITE]);
    let from = world.nodes[0].ep;
    for words in [1, 40, 600, 12_500] {
        let mut memory = vec![0_u64; words];
        let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
        let mut words = Words { local: vec![1; words], compared: 0, fetched: 0 };
        let (already, written) = (counts(reads).0, counts(writes).0);
        for (call, done) in WRITES.iter().zip(written + 1..) {
            assert_eq!(call(&mut words, from, KEY), 0);
            awaits(writes, (done, 0), &world.nodes);
            awaits(remote_writes, (done, 0), &world.nodes);
        }
        for (call, done) in READS.iter().zip(already + 1..) {
            assert_eq!(call(&mut words, from, KEY), 0);
            awaits(reads, (done, 0), &world.nodes);
            awaits(remote_reads, (done, 0), &world.nodes);
        }
        // Neither kind counts for the other.
        assert_eq!((counts(reads).0, counts(writes).0), (already + 3, written + 4));
        assert_eq!((counts(remote_reads).0, counts(remote_writes).0), (already + 3, written + 4));
        assert_eq!(close(mr), 0);
    }
    close_counted(&mut world, &[reads, writes, remote_reads, remote_writes]);
}

/// What fails is an error at its initiator, and nothing at its target.
#[test]
fn failed_reads_and_writes_are_counted_as_errors() {
    let Some(host) = host("failed_reads_and_writes_are_counted_as_errors") else { return };
    let mut world =
        World::empty(host, |hints| hints.caps = flag::MSG | flag::RMA | flag::ATOMIC | RMA_EVENT);
    let [reads, writes] = add_counted(&mut world, [flag::READ, flag::WRITE]);
    let [remote_reads, remote_writes] =
        add_counted(&mut world, [flag::REMOTE_READ, flag::REMOTE_WRITE]);
    let from = world.nodes[0].ep;
    let mut words = Words { local: vec![1; 4], compared: 0, fetched: 0 };
    for (call, failed) in WRITES.iter().zip(1..) {
        assert_eq!(call(&mut words, from, !KEY), 0);
        awaits(writes, (0, failed), &world.nodes);
    }
    for (call, failed) in READS.iter().zip(1..) {
        assert_eq!(call(&mut words, from, !KEY), 0);
        awaits(reads, (0, failed), &world.nodes);
    }
    let told = [reads, writes, remote_reads, remote_writes].map(counts);
    assert_eq!(told, [(0, 3), (0, 4), (0, 0), (0, 0)]);
    close_counted(&mut world, &[reads, writes, remote_reads, remote_writes]);
}
