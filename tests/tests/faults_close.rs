//! A peer that closes its endpoint, while its process lives on, is gone like one that died.

use kestrel_core::{
    address_vector::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC},
    completion_counter::CompletionCounter,
    config::CmaPolicy,
    endpoint::{Endpoint, EndpointOptions, OptionName},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    mock::MockOptions,
};
use kestrel_tests::{
    bed::Options,
    bytes::{pattern, same},
    mock::mock_bed,
    node::{Done, Node, NodeOptions, Wait, says_gone},
    process::eventually,
    reserved::own_address,
    scale::{PATIENCE, leaves_in_time, unspoilt},
    traffic::{self, Mix, Operation, Traffic},
};

/// Sends from `from` to `to`'s node until one message has arrived there.
fn greet(from: &Node, to: u64, there: &Node) {
    there.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    from.endpoint.inject(&[7; 8], to).unwrap();
    eventually("a greeting", || {
        assert!(from.poll().is_none());
        there.poll().is_some_and(|done| done.well().context == 1)
    });
}

/// Everything that depends on a closed peer fails; `wait` tells how it is waited for.
fn all_end(node: &Node, traffic: &mut Traffic, wait: Wait) {
    while traffic.under_way(Operation::Send) + traffic.under_way(Operation::ReceiveDirected) > 0 {
        let done = node.within(PATIENCE, wait);
        let done = done.unwrap_or_else(|| panic!("no news: {}", traffic.describe()));
        assert!(traffic.take(done).is_none());
    }
    for (operation, error) in &traffic.failed {
        assert!(says_gone(error.errno), "{operation:?}: {error:?}");
    }
}

fn depends_on_a_peer_that_closes(answers: bool, wait: Wait) {
    let (here, there) = (Node::open(), Node::open());
    let to = here.insert(there.address());
    let back = there.insert(here.address());
    greet(&here, to, &there);
    if answers {
        greet(&there, back, &here);
    }
    let mut traffic = Traffic::new(to, 1, 1, Mix::default());
    traffic.post_sentinel(&here);
    for (class, length) in [(5, 8u64), (6, 10_000), (7, 200_000)] {
        traffic.post_level(&here, traffic::tag(class, length), Flags::MATCH_COMPLETE, false);
    }
    assert!(here.poll().is_none());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(there);
        });
        all_end(&here, &mut traffic, wait);
    });
    assert_eq!(traffic.failed.len(), 4);
}

#[test]
fn sends_to_a_peer_that_closes_fail() {
    for answers in [false, true] {
        for wait in [Wait::Polling, Wait::Sleeping] {
            depends_on_a_peer_that_closes(answers, wait);
        }
    }
}

#[test]
fn what_a_peer_sent_before_it_closed_arrives() {
    for _ in 0..20 {
        let (here, there) = (Node::open(), Node::open());
        let (to, back) = (here.insert(there.address()), there.insert(here.address()));
        greet(&here, to, &there);
        greet(&there, back, &here);
        for number in 0..50u64 {
            there.endpoint.inject_tagged(&[number as u8; 40], back, number).unwrap();
        }
        drop(there);
        for number in 0..50u64 {
            here.endpoint.receive_tagged(vec![0; 40], to, number, 0, number).unwrap();
            let mut entry = here.next().well();
            assert_eq!(entry.context, number);
            assert_eq!(entry.take_buffer().unwrap(), [number as u8; 40]);
        }
    }
}

/// Whom it cannot answer, it has heard all the same.
#[test]
fn what_a_peer_sent_before_it_closed_arrives_though_an_answer_finds_nobody() {
    unspoilt(|| {
        let (here, there) = (Node::open(), Node::with(&NodeOptions::at(own_address())));
        let (to, back) = (here.insert(there.address()), there.insert(here.address()));
        let is_sent = leaves_in_time(|| {
            for number in 0..50u64 {
                there.endpoint.inject_tagged(&[number as u8; 40], back, number).unwrap();
            }
            drop(there);
        });
        if !is_sent || !finds_nobody(&here, to) {
            return false;
        }
        for number in 0..50u64 {
            here.endpoint.receive_tagged(vec![0; 40], FI_ADDR_UNSPEC, number, 0, number).unwrap();
            assert_eq!(here.next().well().take_buffer().unwrap(), [number as u8; 40]);
        }
        true
    });
}

/// Whether it is told so by a call that looks for the peer as long as it lasts, and for messages only
/// afterwards. That is a second at most, and a quarter more than it takes.
fn finds_nobody(here: &Node, to: u64) -> bool {
    here.endpoint.inject_tagged(&[0; 8], to, 99).is_err()
}

/// What is delivered when its sender is known to be gone bears the name that it has by then.
#[test]
fn what_comes_at_the_end_bears_the_name_that_was_inserted_before() {
    unspoilt(|| {
        let (here, there) = (Node::open(), Node::with(&NodeOptions::at(own_address())));
        let back = there.insert(here.address());
        there.endpoint.send_tagged(vec![0; 8], back, 0, 0).unwrap();
        there.next().well();
        here.endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 0, 0, 0).unwrap();
        assert_eq!(here.next().well().source, FI_ADDR_NOTAVAIL, "nobody is inserted yet");
        let to = here.insert(there.address());
        there.endpoint.inject_tagged(&[1; 8], back, 1).unwrap();
        here.endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 1, 0, 1).unwrap();
        drop(there);
        // The message comes meanwhile.
        let is_told = finds_nobody(&here, to);
        if is_told {
            assert_eq!(here.next().well().source, to);
        }
        is_told
    });
}

/// It has left when the call returns: nobody reads it where its sender had it.
#[test]
fn what_was_injected_at_first_survives_its_endpoint() {
    const LENGTH: usize = 12 << 10;
    for cma in [CmaPolicy::On, CmaPolicy::Auto, CmaPolicy::Off] {
        unspoilt(|| {
            let [here, there] = [(); 2].map(|()| Node::with(&NodeOptions::with_cma(cma)));
            let back = there.insert(here.address());
            let is_sent = leaves_in_time(|| {
                there.endpoint.inject_tagged(&pattern(1, LENGTH), back, 1).unwrap();
                drop(there);
            });
            if is_sent {
                let into = vec![0; LENGTH];
                here.endpoint.receive_tagged(into, FI_ADDR_UNSPEC, 1, 0, 1).unwrap();
                let mut entry = here.next().well();
                same(&entry.take_buffer().unwrap(), &pattern(1, LENGTH), "injected");
            }
            is_sent
        });
    }
}

/// Where credit is missing the envelope alone has left, and the rest is asked for while the endpoint closes.
#[test]
fn what_was_injected_without_credit_survives_its_endpoint() {
    const LENGTH: usize = 16 << 10;
    const COUNT: u64 = 5;
    let survives = |cma| {
        let [here, there] = [(); 2].map(|()| Node::with(&NodeOptions::with_cma(cma)));
        let (to, back) = (here.insert(there.address()), there.insert(here.address()));
        greet(&here, to, &there);
        greet(&there, back, &here);
        for number in 0..COUNT {
            there.endpoint.inject_tagged(&pattern(number, LENGTH), back, number).unwrap();
        }
        // What comes to it meanwhile is nobody's any more.
        there.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
        here.endpoint.inject(&[1; 8], to).unwrap();
        for number in 0..COUNT {
            here.endpoint.receive_tagged(vec![0; LENGTH], to, number, 0, number).unwrap();
        }
        let mut received = Vec::new();
        let in_time = closes_in_time(there, || received.extend(here.poll()));
        while in_time && received.len() < COUNT as usize {
            received.push(here.next());
        }
        for (number, done) in (0..).zip(received).filter(|_| in_time) {
            let mut entry = done.well();
            assert_eq!(entry.context, number);
            same(&entry.take_buffer().unwrap(), &pattern(number, LENGTH), "injected");
        }
        in_time
    };
    for cma in [CmaPolicy::On, CmaPolicy::Auto, CmaPolicy::Off] {
        unspoilt(|| survives(cma));
    }
}

/// Closes it in another thread, while this one polls; whether it had the time for what waits.
fn closes_in_time(node: Node, mut poll: impl FnMut()) -> bool {
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || leaves_in_time(|| drop(node)));
        while !closing.is_finished() {
            poll();
        }
        closing.join().unwrap()
    })
}

/// It could not leave before what the read asked for had come.
#[test]
fn what_was_injected_behind_a_read_survives_its_endpoint() {
    unspoilt(injected_behind_a_read_survives);
}

fn injected_behind_a_read_survives() -> bool {
    const LENGTH: usize = 16 << 10;
    let [here, there] = [(); 2].map(|()| Node::with(&NodeOptions::with_cma(CmaPolicy::Off)));
    let (to, back) = (here.insert(there.address()), there.insert(here.address()));
    greet(&here, to, &there);
    greet(&there, back, &here);
    let mut memory = vec![0_u8; LENGTH];
    let ranges = &[MemoryRange { address: memory.as_mut_ptr() as u64, len: LENGTH as u64 }];
    let access = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
    // SAFETY: the memory outlives the region, and is looked at when nobody writes there.
    let region = unsafe { here.domain.register_memory(&attributes) }.unwrap();
    let (base, key) = (region.base(), region.key());
    there.endpoint.read(vec![0; LENGTH], back, base, key, 1).unwrap();
    there.endpoint.inject_write(&[7; 8], back, base, key).unwrap();
    let in_time = closes_in_time(there, || assert!(here.poll().is_none()));
    // What it has sent before its goodbye.
    (0..100).for_each(|_| assert!(here.poll().is_none()));
    here.domain.close_memory(&region).unwrap();
    assert!(!in_time || memory[..8] == [7; 8]);
    in_time
}

/// A receiver that buffers has asked for its start alone.
#[test]
fn what_was_injected_and_announced_survives_its_endpoint() {
    unspoilt(injected_and_announced_survives);
}

fn injected_and_announced_survives() -> bool {
    const LENGTH: usize = 16 << 10;
    const COUNT: u64 = 8;
    let endpoint = EndpointOptions { buffered: true, ..EndpointOptions::default() };
    let settings = vec![(OptionName::BufferedLimit, 1_000), (OptionName::BufferedMin, 64)];
    let bed = mock_bed(MockOptions::default());
    let world = bed.world_with(2, &Options { endpoint, settings, ..Options::default() });
    let (from, to) = (world.nodes[0].endpoint.clone(), &world.nodes[1]);
    (0..COUNT).for_each(|seed| from.inject(&pattern(seed, LENGTH), 1).unwrap());
    let announced: Vec<u64> = (0..COUNT).map(|_| world.received(1).good().context).collect();
    world.poll(20);
    let in_time = std::thread::scope(|scope| {
        let closing = scope.spawn(move || leaves_in_time(|| from.close()));
        // Long enough for the other thread to wait, and far less than the second that it waits.
        std::thread::sleep(std::time::Duration::from_millis(50));
        for (seed, &context) in (0..).zip(&announced) {
            to.endpoint.claim(context, vec![0; LENGTH], seed).unwrap();
        }
        while !closing.is_finished() {
            to.poll();
        }
        closing.join().unwrap()
    });
    for seed in (0..COUNT).filter(|_| in_time) {
        eventually("a claim", || {
            to.poll();
            world.waiting(1).1 > 0
        });
        let claimed = world.received_already(1).good();
        assert_eq!(claimed.context, seed);
        same(&claimed.returned.unwrap(), &pattern(seed, LENGTH), "injected");
    }
    in_time
}

/// "Discarded operations will silently be dropped": nobody counts them, whatever is heard while the endpoint waits
/// for what was injected. Its peer says goodbye meanwhile.
#[test]
fn who_closes_counts_nothing_of_what_is_dropped() {
    const LENGTH: usize = 16 << 10;
    let [here, of_domain] = [(); 2].map(|()| Node::with(&NodeOptions::with_cma(CmaPolicy::Off)));
    let domain = &of_domain.domain;
    let there = Endpoint::open(domain, EndpointOptions::default()).unwrap();
    let counter = CompletionCounter::open(domain);
    there.bind_counter(&counter, Flags::SEND).unwrap();
    there.bind_completion_queue(&of_domain.queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    there.bind_address_vector(&of_domain.vector).unwrap();
    there.enable().unwrap();
    let back = of_domain.insert(here.address());
    there.inject(&[7; 8], back).unwrap();
    here.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    eventually("a greeting", || here.poll().is_some());
    eventually("a count", || counter.read() == 1);
    for number in 0..5 {
        there.inject_tagged(&pattern(number, LENGTH), back, number).unwrap();
    }
    there.send(vec![0; LENGTH], back, 6).unwrap();
    let before = counter.read();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| there.close());
        // Long enough for the other thread to wait, and far less than the second that it waits.
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(here);
        closing.join().unwrap();
    });
    assert_eq!((counter.read(), counter.counter().read_error()), (before, 0));
}

#[test]
fn an_endpoint_at_the_same_address_is_a_new_peer() {
    let here = Node::open();
    let address = own_address();
    let to = here.insert(address);
    for round in 0..20u64 {
        let there = Node::with(&NodeOptions::at(address));
        let back = there.insert(here.address());
        if round % 2 == 0 {
            greet(&there, back, &here);
        }
        greet(&here, to, &there);
        here.endpoint.receive_tagged(vec![0; 8], to, 1, 0, round).unwrap();
        if round % 3 == 0 {
            greet(&there, back, &here);
        }
        drop(there);
        let deadline = PATIENCE;
        let Some(Done::Badly(error)) = here.within(deadline, Wait::Sleeping) else {
            panic!("the receive of round {round} stays posted")
        };
        assert_eq!(error.context, round);
        assert!(says_gone(error.errno), "{error:?}");
    }
}
