//! Who drives the endpoints: helpers, and several threads at once.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kestrel_core::{
    domain::{DomainOptions, ProgressMode, Sharing},
    endpoint::{Endpoint, PostError, message::Refused},
    error::Errno,
    flags::Flags,
    transport::Provider,
};

use crate::bed::{Bed, Memory, Options, Receive, pattern, same};
use crate::completion::{Done, read_all, read_each};
use crate::scale::{PATIENCE, scaled};

/// The receiver's application sleeps; its helper matches, consents and finishes.
fn received_while_asleep<P: Provider>(bed: &Bed<P>, progress: ProgressMode) {
    let domain = DomainOptions { progress, ..DomainOptions::default() };
    for length in [8, 300, 5_000, 300_000, 8 << 20] {
        let into = Memory::zeroed(length);
        let bytes = pattern(length as u64, length);
        let world = bed.world_with(2, &Options { domain: domain.clone(), ..Options::default() });
        for round in 0..3u64 {
            into.scribble();
            let receive = Receive {
                pieces: into.all(),
                tag: Some((round, 0)),
                context: 5,
                ..Receive::default()
            };
            world.nodes[1].post_receive(&receive).unwrap();
            world.nodes[0].send(bytes.clone(), 1, Some(round), 6);
            // Nobody polls anything: only helpers move.
            let start = Instant::now();
            // SAFETY: read while a helper may write: only compared, after the wait as well.
            let arrived = || unsafe { into.piece().as_slice() == &bytes[..] };
            while !arrived() {
                assert!(start.elapsed() < PATIENCE, "in vain: {length} bytes");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(world.received(1).context(), 5);
            assert_eq!(world.sent(0).context(), 6);
            same(&into.bytes(), &bytes, "content");
        }
        world.nothing_more();
    }
}

pub fn a_sleeping_helper_delivers<P: Provider>(bed: &Bed<P>) {
    received_while_asleep(bed, ProgressMode::Automatic);
}

/// One of the two domains spins, at most: the other finds the core taken.
pub fn a_spinning_helper_delivers<P: Provider>(bed: &Bed<P>) {
    let usable = core_affinity::get_core_ids().unwrap_or_default();
    let core = usable.first().expect("this thread runs somewhere").id;
    received_while_asleep(bed, ProgressMode::Spinning(vec![core]));
}

pub fn a_delivery_completes_while_its_receiver_sleeps<P: Provider>(bed: &Bed<P>) {
    let domain = DomainOptions { progress: ProgressMode::Automatic, ..DomainOptions::default() };
    let bytes = Memory::from(pattern(1, 5_000));
    let world = bed.world_with(2, &Options { domain, ..Options::default() });
    let send = crate::bed::Send {
        pieces: bytes.all(),
        flags: Flags::DELIVERY_COMPLETE,
        ..crate::bed::Send::default()
    };
    for _ in 0..10 {
        world.nodes[0].post_send(1, &send).unwrap();
        let start = Instant::now();
        while world.waiting(0).0 == 0 {
            world.nodes[0].poll();
            assert!(start.elapsed() < PATIENCE, "in vain");
            std::thread::sleep(Duration::from_micros(200));
        }
        world.sent(0).good();
    }
    for _ in 0..10 {
        world.nodes[1].receive(5_000, None, 0);
        world.received(1).good();
    }
}

/// Who posts and reads a completion in turn has one to read each time, and hears of what comes all the
/// same.
pub fn who_always_finds_a_completion_drives<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    let into = Memory::zeroed(8);
    let [node, other] = [0, 1].map(|node: usize| &world.nodes[node]);
    node.post_receive(&Receive { pieces: into.all(), ..Receive::default() }).unwrap();
    other.send(pattern(1, 8), 0, None, 1);
    let start = Instant::now();
    while world.waiting(1).0 == 0 {
        other.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: a send");
    }
    for context in 0..1_000 {
        other.receive(8, None, context);
        node.send(vec![2; 8], 1, None, context);
        while read_each(&node.sends, 1, |_, _| {}) != Ok(1) {
            other.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: a send of the other");
        }
        other.poll();
        if into.bytes() == pattern(1, 8) {
            return;
        }
    }
    panic!("nothing came");
}

/// What is under way then keeps nobody. That the helpers end is seen by the test of cores, whose process has
/// no others.
pub fn a_domain_closes_under_its_helper<P: Provider>(bed: &Bed<P>) {
    for _ in 0..10 {
        let domain =
            DomainOptions { progress: ProgressMode::Automatic, ..DomainOptions::default() };
        let world = bed.world_with(2, &Options { domain, ..Options::default() });
        world.nodes[0].send(vec![1; 10], 1, None, 0);
        world.nodes[1].receive(10, None, 0);
        drop(world);
    }
}

/// What the threads of one endpoint share.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    canceled: AtomicU64,
    stop: AtomicBool,
}

pub fn four_threads_post_poll_and_cancel<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let per_thread = scaled(300u64, 1_000, 30_000);
    let world = bed.world(2);
    let counts = Arc::new(Counts::default());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let counts = &counts;
            let [sender, receiver] = [0, 1].map(|node: usize| &world.nodes[node].endpoint);
            let sends = &world.nodes[0].sends;
            scope.spawn(move || {
                for number in 0..per_thread {
                    let poll = || read_all(sends, |done| count(counts, done));
                    exchange_and_cancel(sender, receiver, thread << 32 | number, poll);
                }
            });
        }
        // Four more poll.
        for thread in 0..4 {
            let node = &world.nodes[thread % 2];
            let (sends, receives) = (node.sends.clone(), node.receives.clone());
            let counts = counts.clone();
            scope.spawn(move || {
                while !counts.stop.load(Ordering::Relaxed) {
                    read_one(&sends, &counts);
                    read_one(&receives, &counts);
                    std::thread::yield_now();
                }
            });
        }
        let done = || {
            let total = 4 * per_thread;
            counts.sent.load(Ordering::Relaxed) == total
                && counts.received.load(Ordering::Relaxed) == total
                && counts.canceled.load(Ordering::Relaxed) == total
        };
        while !done() && start.elapsed() < PATIENCE * 4 && !counts.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
        counts.stop.store(true, Ordering::Relaxed);
    });
    let total = 4 * per_thread;
    assert_eq!(counts.sent.load(Ordering::Relaxed), total, "sent");
    assert_eq!(counts.received.load(Ordering::Relaxed), total, "received");
    assert_eq!(counts.canceled.load(Ordering::Relaxed), total, "canceled");
}

/// A message that the first endpoint sends and the second receives, and a receive
/// that nobody sends to. The tag says who sent it and how many came before, so its
/// content is known.
fn exchange_and_cancel<P: Provider>(
    sender: &Endpoint<P>,
    receiver: &Endpoint<P>,
    tag: u64,
    poll: impl Fn(),
) {
    let length = [8, 40, 200, 1_000, 9_000, 70_000][tag as u32 as usize % 6];
    let start = Instant::now();
    let until_taken = |mut buffer: Vec<u8>, post: &dyn Fn(Vec<u8>) -> Result<(), Refused>| {
        let length = buffer.len();
        while let Err(refused) = post(buffer) {
            assert_eq!(refused.error, PostError::Again);
            assert_eq!(refused.buffer.len(), length, "a refused buffer comes back");
            assert!(start.elapsed() < PATIENCE, "in vain: a post");
            poll();
            buffer = refused.buffer;
        }
    };
    let never = 1 << 63 | tag;
    until_taken(vec![0; length], &|room| receiver.receive_tagged(room, u64::MAX, tag, 0, tag));
    until_taken(vec![1], &|room| receiver.receive_tagged(room, u64::MAX, never, 0, never));
    until_taken(pattern(tag, length), &|bytes| sender.send_tagged(bytes, 1, tag, tag));
    receiver.cancel(never).unwrap();
}

/// Reads one completion: several threads read, so an announced error may be
/// another's.
fn read_one<P: Provider>(
    queue: &kestrel_core::completion_queue::CompletionQueue<P>,
    counts: &Counts,
) {
    use kestrel_core::completion_queue::ReadError;
    match read_each(queue, 16, |_, entry| count(counts, entry.into())) {
        Ok(_) | Err(ReadError::Empty) => {}
        Err(ReadError::ErrorAvailable) => {
            if let Some(error) = queue.read_error() {
                count(counts, error.into());
            }
        }
        Err(error) => panic!("{error}"),
    }
}

fn count(counts: &Counts, done: Done) {
    match done.errno {
        Some(errno) => {
            assert_eq!((errno, done.context >> 63), (Errno::CANCELED, 1), "{done:?}");
            counts.canceled.fetch_add(1, Ordering::Relaxed);
        }
        None if done.flags.contains(Flags::SEND) => {
            counts.sent.fetch_add(1, Ordering::Relaxed);
        }
        None => {
            assert_eq!(done.tag, done.context);
            let buffer = done.returned.expect("the buffer comes back");
            same(&buffer, &pattern(done.tag, buffer.len()), "content");
            counts.received.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub fn each_threads_messages_stay_in_order<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let per_thread = scaled(2_000u64, 6_000, 200_000);
    let world = bed.world(2);
    world.warm_up();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let sender = &world.nodes[0].endpoint;
            scope.spawn(move || {
                for number in 0..per_thread {
                    let bytes = [number.to_le_bytes(), thread.to_le_bytes()].concat();
                    while let Err(error) = sender.inject_data(&bytes, 1, thread) {
                        assert_eq!(error, PostError::Again);
                        assert!(start.elapsed() < PATIENCE * 4, "in vain: an inject");
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = HashMap::new();
        for context in 0..3 * per_thread {
            world.nodes[1].receive(16, None, context);
            let received = world.received(1).good();
            let buffer = received.returned.unwrap();
            let number = u64::from_le_bytes(buffer[..8].try_into().unwrap());
            let expected = next.entry(received.data).or_insert(0);
            assert_eq!(number, *expected, "of thread {}", received.data);
            *expected += 1;
        }
    });
    world.nothing_more();
}
