//! Completion queues. Reference: fi_cq(3).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_queue::{CompletionQueue, Entry, ReadError},
    domain::Sharing,
    error::{Errno, HasErrno},
    transport::Provider,
};

use crate::bed::{Bed, Options, pattern, same};
use crate::completion::{Done, read_each};
use crate::process::woken;
use crate::scale::{PATIENCE, scaled};

pub fn read_takes_what_fits_in_order<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for context in 0..10 {
        world.nodes[1].receive(8, None, context);
        world.nodes[0].send(vec![context as u8; 8], 1, None, context);
    }
    let (sends, receives) = (&world.nodes[0].sends, &world.nodes[1].receives);
    let mut entries: Vec<Entry> = (0..4).map(|_| Entry::default()).collect();
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while sent < 10 || received < 10 {
        for (queue, next) in [(sends, &mut sent), (receives, &mut received)] {
            match queue.read(&mut entries) {
                Ok(count) => {
                    assert!((1..=4).contains(&count));
                    for entry in &entries[..count] {
                        assert_eq!(entry.context, *next);
                        *next += 1;
                    }
                }
                Err(error) => assert_eq!(error, ReadError::Empty),
            }
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(ReadError::Empty.errno(), Errno::AGAIN);
}

pub fn reading_nothing_drives_progress<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.nodes[1].receive(100_000, None, 1);
    world.nodes[0].send(pattern(1, 100_000), 1, None, 2);
    let start = Instant::now();
    let mut buffer = None;
    while buffer.is_none() {
        // The receiver's queue of sends has nothing to do with the message.
        let found = [0, 1].map(|node| world.nodes[node].sends.read(&mut []));
        assert!(matches!(found, [Ok(0) | Err(ReadError::Empty), Err(ReadError::Empty)]));
        if start.elapsed() > Duration::from_millis(1) {
            let taken = read_each(&world.nodes[1].receives, 1, |_, mut entry| {
                buffer = entry.take_buffer();
            });
            assert!(matches!(taken, Ok(1) | Err(ReadError::Empty)));
        }
        assert!(start.elapsed() < PATIENCE);
    }
    same(&buffer.unwrap(), &pattern(1, 100_000), "content");
    let sends = &world.nodes[0].sends;
    while sends.read(&mut []) != Ok(0) {
        world.nodes[1].poll();
        assert!(start.elapsed() < PATIENCE, "it is complete");
    }
    assert_eq!(world.sent(0).context(), 2);
    assert_eq!(sends.read(&mut []), Err(ReadError::Empty));
}

pub fn an_error_at_the_head_stops_reading<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let queue = &world.nodes[1].receives;
    for (context, room) in [(0, 8), (1, 4), (2, 8), (3, 4)] {
        world.nodes[1].receive(room, None, context);
    }
    // Completed in order, unread.
    for _ in 0..4 {
        world.nodes[0].send(vec![1; 8], 1, None, 0);
    }
    for _ in 0..4 {
        world.drive_sends_of(0);
    }
    // However long a machine keeps us between two of them.
    let (start, mut reads) = (Instant::now(), 0);
    while reads < 1_000 || start.elapsed() < Duration::from_millis(50) {
        assert_eq!(world.nodes[1].sends.read(&mut []), Err(ReadError::Empty));
        reads += 1;
    }
    assert_eq!(
        queue.read(&mut []),
        Err(ReadError::ErrorAvailable),
        "an item is in the error queue"
    );
    let mut entries: Vec<Entry> = (0..8).map(|_| Entry::default()).collect();
    assert_eq!(queue.read(&mut entries), Ok(1), "reading stops at the error");
    assert_eq!(entries[0].context, 0);
    for _ in 0..2 {
        assert_eq!(queue.read(&mut entries), Err(ReadError::ErrorAvailable));
    }
    assert_eq!(ReadError::ErrorAvailable.errno(), Errno::AVAIL);
    let error: Done = queue.read_error().expect("the error").into();
    assert_eq!(error.bad(Errno::TRUNC).context, 1);
    assert_eq!(queue.read(&mut entries), Ok(1));
    assert_eq!(entries[0].context, 2);
    assert_eq!(queue.read(&mut entries), Err(ReadError::ErrorAvailable));
    let error: Done = queue.read_error().expect("the other error").into();
    assert_eq!(error.bad(Errno::TRUNC).context, 3);
    assert_eq!(queue.read(&mut []), Err(ReadError::Empty));
    assert_eq!(queue.read(&mut entries), Err(ReadError::Empty));
    assert!(queue.read_error().is_none());
}

pub fn a_small_queue_never_overruns<P: Provider>(bed: &Bed<P>) {
    let count = scaled(20_000u64, 100_000, 1_000_000);
    let world = bed.world_with(1, &Options { queue_size: 16, ..Options::default() });
    let node = &world.nodes[0];
    for number in 0..count {
        // To itself, so that nobody need poll between.
        node.endpoint.receive_tagged(Vec::new(), u64::MAX, number, 0, number).unwrap();
        node.endpoint.cancel(number).unwrap();
    }
    for number in 0..count {
        let mut error = None;
        if error.is_none() {
            assert_eq!(node.receives.read(&mut [Entry::default()]), Err(ReadError::ErrorAvailable));
            error = node.receives.read_error();
        }
        assert_eq!(error.unwrap().context, number);
    }
    // Successes: through the protocol, the queues unread.
    let count = count / 5;
    for number in 0..count {
        node.endpoint.receive_tagged(Vec::new(), u64::MAX, number, 0, number).unwrap();
        world.post(|| {
            let posted = node.endpoint.inject_tagged(&[], 0, number);
            let _ = node.sends.read(&mut []);
            posted
        });
    }
    for number in 0..count {
        assert_eq!(world.received(0).context(), number);
    }
    world.nothing_more();
}

pub fn a_blocked_reader_times_out<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(1);
    let queue = &world.nodes[0].receives;
    let mut entries = [Entry::default()];
    for timeout in [0, 3] {
        let (timeout, start) = (Duration::from_millis(timeout), Instant::now());
        assert_eq!(queue.read_blocking(&mut entries, Some(timeout)), Err(ReadError::Empty));
        assert!(start.elapsed() >= timeout);
    }
}

pub fn a_signal_is_remembered<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(1);
    let queue = &world.nodes[0].receives;
    let mut entries = [Entry::default()];
    queue.signal();
    let outcome = queue.read_blocking(&mut entries, Some(PATIENCE));
    assert_eq!(outcome, Err(ReadError::Signaled));
    assert_eq!(ReadError::Signaled.errno(), Errno::AGAIN);
    let short = Some(Duration::from_millis(2));
    assert_eq!(queue.read_blocking(&mut entries, short), Err(ReadError::Empty), "once");
    // A completion comes before a signal.
    world.nodes[0].receive(0, Some(1), 9);
    world.nodes[0].endpoint.cancel(9).unwrap();
    queue.signal();
    let outcome = queue.read_blocking(&mut entries, Some(PATIENCE));
    assert_eq!(outcome, Err(ReadError::ErrorAvailable));
    queue.read_error().unwrap();
    assert_eq!(queue.read_blocking(&mut entries, short), Err(ReadError::Signaled));
}

/// Reads one context, asleep if need be.
fn next_context<P: Provider>(queue: &CompletionQueue<P>) -> u64 {
    let mut entries = [Entry::default()];
    match woken(|| queue.read_blocking(&mut entries, Some(PATIENCE))) {
        Ok(1) => entries[0].context,
        outcome => panic!("{outcome:?}"),
    }
}

pub fn a_signal_wakes_a_sleeper<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let world = bed.world(1);
    let queue = world.nodes[0].receives.clone();
    let sleeper = std::thread::spawn(move || {
        woken(|| queue.read_blocking(&mut [Entry::default()], Some(PATIENCE)))
    });
    std::thread::sleep(Duration::from_millis(20));
    world.nodes[0].receives.signal();
    assert_eq!(sleeper.join().unwrap(), Err(ReadError::Signaled));
}

pub fn a_message_wakes_a_sleeper<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    for length in [8, 5_000, 1 << 20] {
        let world = bed.world(2);
        world.warm_up();
        for round in 0..20 {
            world.nodes[1].receive(length, None, round);
            let queue = world.nodes[1].receives.clone();
            let sleeper = std::thread::spawn(move || next_context(&queue));
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            world.nodes[0].send(pattern(round, length), 1, None, round);
            // A sender who sleeps meanwhile is woken by the consent.
            assert_eq!(next_context(&world.nodes[0].sends), round);
            assert_eq!(sleeper.join().unwrap(), round);
        }
    }
}

pub fn two_sleepers_do_not_put_each_other_to_rest<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    // Both queues of one endpoint have a sleeper; the one that wakes first goes
    // away without driving the endpoint for the other.
    let world = bed.world(2);
    world.warm_up();
    for round in 0..20 {
        let receives = world.nodes[1].receives.clone();
        let sleeper = std::thread::spawn(move || next_context(&receives));
        let sends = world.nodes[1].sends.clone();
        let passing = std::thread::spawn(move || {
            let short = Some(Duration::from_millis(5));
            sends.read_blocking(&mut [Entry::default()], short)
        });
        assert_eq!(passing.join().unwrap(), Err(ReadError::Empty));
        world.nodes[1].receive(8, None, round);
        let start = Instant::now();
        world.nodes[0].endpoint.inject(&[1; 8], 1).unwrap();
        while !sleeper.is_finished() && start.elapsed() < PATIENCE {
            world.nodes[0].poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sleeper.join().unwrap(), round);
    }
}

pub fn each_producers_entries_stay_in_order<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    // One thread produces while another reads a queue that always overflows.
    let world = bed.world_with(1, &Options { queue_size: 2, ..Options::default() });
    let count = scaled(5_000u64, 50_000, 500_000);
    let endpoint = world.nodes[0].endpoint.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let over = stop.clone();
    let producer = std::thread::spawn(move || {
        for number in 0..count {
            endpoint.receive(Vec::new(), u64::MAX, number).unwrap();
            endpoint.cancel(number).unwrap();
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    });
    let start = Instant::now();
    let mut next = 0;
    while next < count {
        let found = world.nodes[0].receives.read(&mut [Entry::default()]);
        if found == Err(ReadError::ErrorAvailable) {
            let error = world.nodes[0].receives.read_error().unwrap();
            if error.context != next {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(error.context, next);
            next += 1;
        }
        assert!(start.elapsed() < PATIENCE * 3);
    }
    producer.join().unwrap();
}
