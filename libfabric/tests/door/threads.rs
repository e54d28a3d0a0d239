//! Threads that do everything at once on shared objects, under FI_THREAD_SAFE.

use std::{
    ffi::c_void,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use kestrel_tests::{random::Random, scale::scaled};

use crate::{
    abi::fid::FidMr,
    code, flag,
    host::{Host, host},
    life_cycle::alone,
    storm::{Kind, NEVER, NODES, Operation, SIZE_MAX, STRAY, Storm, fill, message},
    world::{PATIENCE, bind, close, cq_attr, enable},
};

const MANUAL: u32 = 2;
const AUTO: u32 = 1;
/// Threads that send from each endpoint.
const SENDERS: usize = 2;
/// Sends that a thread has under way at most.
const WINDOW: usize = 4;
const UINT64: u32 = 7;
const SUM: u32 = 2;
/// The region that atomics go to, on each endpoint's domain: they share one.
const SUM_KEY: u64 = 17;

#[test]
fn threads_do_everything_at_once_with_manual_progress() {
    let Some(host) = host("threads_do_everything_at_once_with_manual_progress") else { return };
    everything_at_once(host, MANUAL);
}

#[test]
fn threads_do_everything_at_once_with_automatic_progress() {
    let Some(host) = host("threads_do_everything_at_once_with_automatic_progress") else { return };
    everything_at_once(host, AUTO);
}

/// Ends the other threads if this one panics.
struct Alarm<'a>(&'a Storm);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.over.store(true, Ordering::Release); // S1: pairs with S2
        }
    }
}

/// How often the threads that disturb did what they do.
#[derive(Default)]
struct Tally {
    decoys: AtomicU64,
    inserted: AtomicU64,
    endpoints: AtomicU64,
    regions: AtomicU64,
    sums: AtomicU64,
}

impl Tally {
    /// Whether each of the threads that disturb has done its share.
    fn is_disturbed(&self, storm: &Storm) -> bool {
        let share = scaled(20, 100, 2_000);
        let all = [&self.decoys, &self.inserted, &self.endpoints, &self.regions];
        all.into_iter()
            .chain([&storm.strayed])
            .map(|count| count.load(Ordering::Relaxed))
            .all(|count| count >= share)
    }
}

fn bump(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn everything_at_once(host: &'static Host, data_progress: u32) {
    let _alone = alone();
    let length = scaled(600, 8_000, 200_000);
    let storm = Storm::new(host, data_progress, NODES * SENDERS, length);
    let mut sum = Box::new(0_u64);
    let place = &raw mut *sum;
    // SAFETY: the word stays until the region is closed.
    let region = unsafe { register(&storm, place.cast(), 8, SUM_KEY) };
    let (tally, passing) = (Tally::default(), AtomicU64::new(u64::MAX));
    let work = all_work(&storm, &tally, &passing);
    std::thread::scope(|scope| {
        for work in work {
            let storm = &storm;
            scope.spawn(move || {
                let _alarm = Alarm(storm);
                work();
            });
        }
        watch(&storm, || {
            // SAFETY: the word lives; other threads add to it.
            let now = unsafe { place.read_volatile() };
            let is_summed = now == tally.sums.load(Ordering::Relaxed);
            storm.has_arrived() && is_summed && tally.is_disturbed(&storm)
        });
    });
    assert_eq!(*sum, tally.sums.load(Ordering::Relaxed));
    assert_eq!(close(region), 0);
}

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// What each thread does.
fn all_work<'a>(storm: &'a Storm, tally: &'a Tally, passing: &'a AtomicU64) -> Vec<Work<'a>> {
    let mut work: Vec<Work<'a>> = vec![
        Box::new(move || cancel(storm, tally)),
        Box::new(move || insert_addresses(storm, tally)),
        Box::new(move || come_and_go(storm, tally, passing)),
        Box::new(move || send_to_passing(storm, passing)),
        Box::new(move || register_and_close(storm, tally)),
    ];
    for sender in 0..NODES * SENDERS {
        work.push(Box::new(move || send_streams(storm, tally, sender)));
    }
    for node in 0..NODES {
        work.push(Box::new(move || until_over(storm, || storm.poll(node))));
        work.push(Box::new(move || until_over(storm, || storm.wait(node, 5))));
    }
    work
}

/// Waits for the end, and for somebody to do something until then.
fn watch(storm: &Storm, is_done: impl Fn() -> bool) {
    let (mut seen, mut since) = (0, Instant::now());
    while !storm.is_over() {
        if is_done() {
            storm.over.store(true, Ordering::Release); // S1: pairs with S2
        }
        let now = storm.moves.load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, now) != now {
            since = Instant::now();
        }
        if since.elapsed() > 2 * PATIENCE {
            // A thread may hang inside a call, so that nobody could wait for it.
            let counts: Vec<u64> = storm.streams.iter().map(|stream| stream.count()).collect();
            eprintln!("nothing moves: {counts:?} of {} arrived", storm.length);
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until_over(storm: &Storm, mut work: impl FnMut()) {
    while !storm.is_over() {
        work();
    }
}

/// # Safety
/// The memory stays until the region is closed, and may be written to until then.
unsafe fn register(storm: &Storm, start: *const c_void, length: usize, key: u64) -> *mut FidMr {
    let (domain, mut mr) = (storm.world.domain, null_mut());
    let access = flag::REMOTE_READ | flag::REMOTE_WRITE;
    // SAFETY: the domain is open; the caller vouches for the memory.
    let status = unsafe {
        let reg = (*(*domain).mr).reg;
        reg(domain.cast(), start, length, access, 0, key, 0, &raw mut mr, null_mut())
    };
    assert_eq!(status, 0);
    mr
}

/// Sends one stream to each endpoint, and adds to the common sum now and then.
fn send_streams(storm: &Storm, tally: &Tally, sender: usize) {
    let from = sender / SENDERS;
    let slots: Vec<_> = (0..WINDOW).map(|_| Operation::new(Kind::Send, from, 0)).collect();
    let stream = |to: usize| (sender * NODES + to) as u64;
    for number in 0..storm.length {
        for to in 0..NODES {
            let Some(slot) = free_slot(storm, from, &slots) else { return };
            let length = fill(slot.buffer(), stream(to), number);
            let answer = if length <= 64 && number % 2 == 0 {
                inject(storm, from, &slot.buffer()[..length], to as u64, stream(to))
            } else {
                storm.send(slot, length, to as u64, stream(to))
            };
            assert!(answer == 0 || storm.is_over(), "a send: {answer}");
        }
        if number % 8 == 0 {
            add_one(storm, tally, from);
        }
    }
    while slots.iter().any(|slot| slot.is_busy()) && !storm.is_over() {
        storm.poll(from);
    }
}

fn free_slot(
    storm: &Storm,
    node: usize,
    slots: &[&'static Operation],
) -> Option<&'static Operation> {
    loop {
        if let Some(slot) = slots.iter().find(|slot| !slot.is_busy()) {
            return Some(slot);
        }
        if storm.is_over() {
            return None;
        }
        storm.poll(node);
    }
}

fn inject(storm: &Storm, node: usize, bytes: &[u8], to: u64, tag: u64) -> isize {
    let ep = storm.node(node).ep;
    storm.insist(node, || {
        // SAFETY: the endpoint is open.
        unsafe { ((*(*ep).tagged).inject)(ep, bytes.as_ptr().cast(), bytes.len(), to, tag) }
    })
}

fn add_one(storm: &Storm, tally: &Tally, from: usize) {
    let (ep, one, to) = (storm.node(from).ep, 1_u64, (from + 1) % NODES);
    // Counted first: the sum must not be complete before all of it is under way.
    bump(&tally.sums);
    let answer = storm.insist(from, || {
        let one = (&raw const one).cast();
        // SAFETY: the endpoint is open.
        unsafe { ((*(*ep).atomic).inject)(ep, one, 1, to as u64, 0, SUM_KEY, UINT64, SUM) }
    });
    assert!(answer == 0 || storm.is_over(), "an atomic: {answer}");
}

/// Cancels receives of streams, which are posted again, and receives of its own.
fn cancel(storm: &Storm, tally: &Tally) {
    let mut random = Random::new(7);
    let decoys: Vec<_> =
        (0..NODES).map(|node| Operation::new(Kind::Decoy, node, NEVER | node as u64)).collect();
    until_over(storm, || {
        let stream = random.below(storm.streams.len() as u64);
        storm.cancel(storm.streams[stream as usize]);
        for decoy in decoys.iter().filter(|decoy| !decoy.is_busy()) {
            bump(&tally.decoys);
            storm.receive(decoy);
            storm.cancel(decoy);
        }
        std::thread::yield_now();
    });
}

/// Inserts, looks up and removes addresses where nobody is.
fn insert_addresses(storm: &Storm, tally: &Tally) {
    let (av, mut random) = (storm.world.av, Random::new(8));
    until_over(storm, || {
        let count = random.between(1, 20) as usize;
        let ports: Vec<u16> = (0..count).map(|_| random.between(1, 1_000) as u16).collect();
        let address = |port: &u16| {
            let [high, low] = port.to_be_bytes();
            [2, 0, high, low, 127, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]
        };
        let bytes: Vec<u8> = ports.iter().flat_map(address).collect();
        let mut fi_addrs = vec![0_u64; count];
        // SAFETY: the vector is open, and all buffers have these lengths.
        unsafe {
            let (ops, start) = (&*(*av).ops, bytes.as_ptr().cast());
            let inserted = (ops.insert)(av, start, count, fi_addrs.as_mut_ptr(), 0, null_mut());
            assert_eq!(inserted, count as i32);
            let (mut found, mut length) = ([0_u8; 16], 16);
            let place = found.as_mut_ptr().cast();
            assert_eq!((ops.lookup)(av, fi_addrs[count - 1], place, &raw mut length), 0);
            assert_eq!(found[..], bytes[16 * (count - 1)..]);
            assert_eq!((ops.remove)(av, fi_addrs.as_mut_ptr(), count, 0), 0);
        }
        bump(&tally.inserted);
        std::thread::yield_now();
    });
}

/// Opens an endpoint, sends, receives, and closes it with all of that under way.
fn come_and_go(storm: &Storm, tally: &Tally, passing: &AtomicU64) {
    let (world, mut random) = (&storm.world, Random::new(9));
    let mut bytes = vec![1_u8; SIZE_MAX];
    until_over(storm, || {
        let (cq, ep) = (world.open_cq(&mut cq_attr()).unwrap(), world.open_ep());
        assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
        assert_eq!((bind(ep, world.av, 0), enable(ep)), (0, 0));
        let node = crate::world::Node { cq, ep };
        let mut fi_addr = world.insert(ep);
        passing.store(fi_addr, Ordering::Release); // S1: pairs with S2
        // SAFETY: the buffer outlives the endpoint, and nobody looks at what comes.
        unsafe {
            let (ops, start) = (&*(*ep).tagged, bytes.as_mut_ptr());
            let none = null_mut::<c_void>();
            for to in 0..NODES as u64 {
                for length in [8, 3_000, 100_000] {
                    let answer = (ops.send)(ep, start.cast(), length, none, to, STRAY, none);
                    assert!(answer == 0 || answer == code::AGAIN as isize, "{answer}");
                }
            }
            let answer = (ops.recv)(ep, start.cast(), SIZE_MAX, none, u64::MAX, STRAY, 0, none);
            assert_eq!(answer, 0);
        }
        // Some leave before they are connected, some in the middle, some when all is sent.
        let (polls, mut sent) = (random.below(3_000), 0);
        for _ in 0..polls {
            match node.read() {
                Ok(_) => sent += 1,
                Err(_) => drop(node.read_error()),
            }
            if sent == 6 || storm.is_over() {
                break;
            }
        }
        storm.moves.fetch_add(1, Ordering::Relaxed);
        passing.store(u64::MAX, Ordering::Release); // S1: pairs with S2
        assert_eq!((close(ep), close(cq)), (0, 0));
        // SAFETY: one address.
        let status = unsafe { ((*(*world.av).ops).remove)(world.av, &raw mut fi_addr, 1, 0) };
        assert_eq!(status, 0);
        bump(&tally.endpoints);
    });
}

/// Sends to whoever comes and goes. Each send must end, whatever becomes of its peer.
fn send_to_passing(storm: &Storm, passing: &AtomicU64) {
    let slots: Vec<_> = (0..WINDOW).map(|_| Operation::new(Kind::Doomed, 0, 0)).collect();
    let mut number = 0;
    until_over(storm, || {
        let to = passing.load(Ordering::Acquire); // S2: pairs with S1
        if to == u64::MAX {
            return std::thread::yield_now();
        }
        let Some(slot) = free_slot(storm, 0, &slots) else { return };
        number += 1;
        let answer = storm.send(slot, message(STRAY, number).0, to, STRAY);
        // Refused, where the address was removed meanwhile.
        let known = [0, code::AGAIN as isize, code::INVAL as isize];
        assert!(known.contains(&answer), "a send to nobody: {answer}");
    });
    let start = Instant::now();
    while slots.iter().any(|slot| slot.is_busy()) {
        (0..NODES).for_each(|node| storm.poll(node));
        assert!(start.elapsed() < PATIENCE, "a send to somebody who left does not end");
    }
}

/// Closes regions that a peer writes to: nothing is written after that.
fn register_and_close(storm: &Storm, tally: &Tally) {
    let (write, mut random) = (Operation::new(Kind::Doomed, 0, 0), Random::new(10));
    let mut memory = vec![0_u8; SIZE_MAX];
    until_over(storm, || {
        let key = random.between(1_000, 1_010);
        // SAFETY: the memory stays, and is looked at with volatile reads or once it is closed.
        let region = unsafe { register(storm, memory.as_ptr().cast(), SIZE_MAX, key) };
        let length = random.between(1, SIZE_MAX as u64) as usize;
        let (ep, byte) = (storm.node(0).ep, random.number() as u8);
        write.buffer()[..length].fill(byte);
        write.set_busy(true);
        let answer = storm.insist(0, || {
            let (start, none) = (write.buffer().as_ptr().cast(), null_mut());
            // SAFETY: the endpoint is open; the buffer waits for the completion.
            unsafe { ((*(*ep).rma).write)(ep, start, length, none, 1, 0, key, write.context()) }
        });
        assert!(answer == 0 || storm.is_over(), "a write: {answer}");
        let waits = random.once_in(2);
        while answer == 0 && waits && write.is_busy() && !storm.is_over() {
            storm.poll(0);
        }
        assert_eq!(close(region), 0);
        if waits && !storm.is_over() {
            assert!(memory[..length].iter().all(|&at| at == byte), "{length} bytes of {byte}");
        }
        memory.fill(0);
        while answer == 0 && write.is_busy() && !storm.is_over() {
            storm.poll(0);
        }
        // SAFETY: nobody writes any more, if the library keeps its word: which is the question.
        let is_clean =
            (0..SIZE_MAX).all(|at| unsafe { memory.as_ptr().add(at).read_volatile() } == 0);
        assert!(is_clean, "written to after the region was closed");
        bump(&tally.regions);
    });
}
