//! Several threads and one descriptor: what one of them does takes nothing from who sleeps on it.
//! fi_poll(3): "The application must call fi_trywait and obtain a return value of FI_SUCCESS prior to
//! blocking on a native wait object"; then it is signaled, whatever others do meanwhile.

use std::{ffi::c_int, time::Instant};

use crate::{
    abi::fid::{FidCntr, FidEq},
    code,
    connections::{CONNECTED, End, Place, SHUTDOWN, has_event, name},
    flag,
    host::host,
    waiting::{
        Shared, WAIT_FD, blocking_read, counted_node, descriptor, expect, is_readable, send,
        try_wait, waiting_world,
    },
    world::{Node, PATIENCE, World, bind, close, enable},
};

/// Runs `what` in a thread of its own, to its end.
fn elsewhere(world: &Shared, what: impl Fn(&World) + Sync) {
    let (world, what) = (&world, &what);
    std::thread::scope(|scope| scope.spawn(move || what(&world.0)).join().unwrap());
}

/// Makes ready to sleep on the queue: what connecting rings for is seen first.
fn fall_asleep(world: &World, node: Node) -> c_int {
    let (fd, start) = (descriptor(node.cq), Instant::now());
    while try_wait(world, node.cq.cast()) != 0 || is_readable(fd, 10) {
        assert_eq!(node.read().err(), Some(code::AGAIN));
        assert!(start.elapsed() < PATIENCE);
    }
    fd
}

/// Programs that wait on the descriptor and never ask first (fi_trywait) are told all the same, from the first wait on:
/// so do LDMS, Derecho and others.
#[test]
fn who_never_asks_is_told_all_the_same() {
    let Some(host) = host("who_never_asks_is_told_all_the_same") else { return };
    let world = waiting_world(host, WAIT_FD);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (fd, start) = (descriptor(to.cq), Instant::now());
    assert!(is_readable(fd, 0), "nobody has looked yet");
    for round in 0..4 {
        expect(&world);
        while is_readable(fd, 10) {
            match round {
                3 => assert_eq!(blocking_read(to, 1), code::AGAIN as isize),
                _ => assert_eq!(to.read().err(), Some(code::AGAIN)),
            }
            assert!(start.elapsed() < PATIENCE, "it is never silent");
        }
        // Who looks again and again is told as well.
        (0..10).for_each(|_| assert_eq!(to.read().err(), Some(code::AGAIN)));
        assert!(!is_readable(fd, 10), "nothing has happened");
        send(from);
        loop {
            assert!(is_readable(fd, 20_000), "the message was not announced");
            if to.read().is_ok() {
                break;
            }
            from.progress();
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(is_readable(fd, 0), "there may be more");
    }
}

/// Reads those alone whose descriptor can be read, until there is an event in the last.
fn sleep_on(queues: &[*mut FidEq]) {
    let start = Instant::now();
    let reads = |&queue: &*mut FidEq| is_readable(descriptor(queue), 10) && has_event(queue);
    while !queues.iter().map(reads).fold(false, |_, last| last) {
        assert!(start.elapsed() < PATIENCE, "nobody was woken");
    }
}

/// The same of event queues: who sleeps on nothing else hears of all that becomes of a connection.
#[test]
fn who_never_asks_is_told_of_connections() {
    let Some(host) = host("who_never_asks_is_told_of_connections") else { return };
    let place = Place::listening(host);
    let caller = place.open_ep(place.info).unwrap();
    let start = Instant::now();
    for queue in [place.events, caller.eq] {
        assert!(is_readable(descriptor(queue), 0), "nobody has looked yet");
        while is_readable(descriptor(queue), 10) {
            assert!(!has_event(queue));
            assert!(start.elapsed() < PATIENCE, "it is never silent");
        }
    }
    assert_eq!(caller.connect(&name(place.pep), b""), 0);
    sleep_on(&[caller.eq, place.events]);
    let acceptor = place.acceptor(&place.request(None));
    assert_eq!(acceptor.accept(b""), 0);
    sleep_on(&[acceptor.eq, place.events, caller.eq]);
    sleep_on(&[caller.eq, place.events, acceptor.eq]);
    assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    assert_eq!(acceptor.shutdown(0), 0);
    sleep_on(&[acceptor.eq, caller.eq]);
    assert_eq!(caller.sees(SHUTDOWN), b"");
    [caller, acceptor].into_iter().for_each(End::close);
    place.close();
}

/// A sleeper on the queue of node 1 is woken by a message, whatever another thread did meanwhile.
fn is_woken_after(test: &str, what: impl Fn(&World) + Sync) {
    let Some(host) = host(test) else { return };
    let world = Shared(waiting_world(host, WAIT_FD));
    let [from, to] = [world.0.nodes[0], world.0.nodes[1]];
    // The peers are connected, so that one message is all that rings.
    expect(&world.0);
    send(from);
    world.0.completion(to);
    expect(&world.0);
    let fd = fall_asleep(&world.0, to);
    elsewhere(&world, what);
    assert!(!is_readable(fd, 0), "there is nothing yet");
    send(from);
    assert!(is_readable(fd, 20_000), "the message was not announced");
    world.0.completion(to);
    // All of it was seen, so that the next sleep is a quiet one.
    fall_asleep(&world.0, to);
}

#[test]
fn a_read_leaves_others_asleep_on_the_descriptor() {
    is_woken_after("a_read_leaves_others_asleep_on_the_descriptor", |world| {
        assert_eq!(world.nodes[1].read().err(), Some(code::AGAIN));
    });
}

#[test]
fn a_second_sleeper_that_goes_leaves_the_first() {
    is_woken_after("a_second_sleeper_that_goes_leaves_the_first", |world| {
        let to = world.nodes[1];
        fall_asleep(world, to);
        assert_eq!(to.read().err(), Some(code::AGAIN));
    });
}

/// Threads that ended asleep, and one that was told to look first.
#[test]
fn who_is_told_to_look_leaves_others_asleep() {
    is_woken_after("who_is_told_to_look_leaves_others_asleep", |world| {
        let to = world.nodes[1];
        fall_asleep(world, to);
        // SAFETY: the queue is open.
        assert_eq!(unsafe { ((*(*to.cq).ops).signal)(to.cq) }, 0);
        assert_eq!(try_wait(world, to.cq.cast()), code::AGAIN);
        assert_eq!(to.read().err(), Some(code::AGAIN));
    });
}

/// A counter of messages.
#[derive(Clone, Copy)]
struct Count(*mut FidCntr);

// SAFETY: any thread may call with it while it is open.
unsafe impl Send for Count {}
// SAFETY: as above.
unsafe impl Sync for Count {}

impl Count {
    fn read(self) -> u64 {
        // SAFETY: the counter is open.
        unsafe { ((*(*self.0).ops).read)(self.0) }
    }

    fn try_wait(self, world: &World) -> c_int {
        try_wait(world, self.0.cast())
    }

    /// Waits until it is so much.
    fn await_count(self, world: &World, count: u64) {
        let start = Instant::now();
        while self.read() < count {
            world.nodes[0].progress();
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

/// A sleeper on the descriptor of a counter of messages that is at 1 is woken, whatever another thread did
/// meanwhile, and whatever was then `done` here. Messages come from node 0, and what they need is there.
fn is_woken_of_counts(
    test: &str,
    what: impl Fn(&World, Count) + Sync,
    done: impl Fn(&World, Count),
) {
    let Some(host) = host(test) else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let world = Shared(world);
    let (fd, count) = (descriptor(counter), Count(counter));
    // As above.
    expect(&world.0);
    send(world.0.nodes[0]);
    let start = Instant::now();
    while count.read() == 0 || count.try_wait(&world.0) != 0 || is_readable(fd, 10) {
        world.0.nodes[0].progress();
        assert!(start.elapsed() < PATIENCE);
    }
    expect(&world.0);
    elsewhere(&world, |world| what(world, count));
    done(&world.0, count);
    assert!(is_readable(fd, 20_000), "the message was not announced");
    count.await_count(&world.0, 2);
    let Shared(mut world) = world;
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

/// Who waits for a count and never asks first, as above.
#[test]
fn who_never_asks_is_told_of_a_count() {
    let Some(host) = host("who_never_asks_is_told_of_a_count") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let (count, fd, start) = (Count(counter), descriptor(counter), Instant::now());
    for value in 0..4 {
        assert!(value > 0 || is_readable(fd, 0), "nobody has looked yet");
        while is_readable(fd, 10) {
            assert_eq!(count.read(), value);
            assert!(start.elapsed() < PATIENCE, "it is never silent");
        }
        expect(&world);
        send(world.nodes[0]);
        loop {
            assert!(is_readable(fd, 20_000), "the message was not announced");
            if count.read() > value {
                break;
            }
            world.nodes[0].progress();
            assert!(start.elapsed() < PATIENCE);
        }
    }
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

#[test]
fn a_count_that_is_read_leaves_others_asleep() {
    let look = |_: &World, count: Count| assert_eq!(count.read(), 1);
    is_woken_of_counts("a_count_that_is_read_leaves_others_asleep", look, |world, count| {
        assert!(!is_readable(descriptor(count.0), 0), "there is nothing yet");
        send(world.nodes[0]);
    });
}

/// It has changed since the sleeper asked, whoever has seen that, and sleeps on the same descriptor since.
#[test]
fn a_count_that_was_seen_elsewhere_wakes_all_the_same() {
    let see = |world: &World, count: Count| {
        send(world.nodes[0]);
        count.await_count(world, 2);
        let start = Instant::now();
        while count.try_wait(world) != 0 {
            assert!(start.elapsed() < PATIENCE);
        }
    };
    is_woken_of_counts("a_count_that_was_seen_elsewhere_wakes_all_the_same", see, |_, _| ());
}

/// What one thread has read, and does not wait for, another one may still wait for.
#[test]
fn a_count_that_was_read_elsewhere_is_news() {
    let Some(host) = host("a_count_that_was_read_elsewhere_is_news") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let (world, count) = (Shared(world), Count(counter));
    for value in 1..=3 {
        assert_eq!((count.read(), count.try_wait(&world.0)), (value - 1, 0));
        assert_eq!(count.read(), value - 1, "awake");
        elsewhere(&world, |_| {
            // SAFETY: the counter is open.
            assert_eq!(unsafe { ((*(*count.0).ops).add)(count.0, 1) }, 0);
            assert_eq!(count.read(), value);
        });
        assert_eq!(count.try_wait(&world.0), code::AGAIN);
    }
    let Shared(mut world) = world;
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

/// fi_trywait lets a thread wait, which then is over; who waits after it sleeps.
#[test]
fn a_thread_that_is_over_keeps_nobody_awake() {
    let Some(host) = host("a_thread_that_is_over_keeps_nobody_awake") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let world = Shared(world);
    let (fd, count) = (descriptor(counter), Count(counter));
    let sleeps = |world: &World| {
        count.read();
        assert_eq!((count.try_wait(world), is_readable(fd, 0)), (0, false));
    };
    elsewhere(&world, sleeps);
    for value in 1..=3 {
        sleeps(&world.0);
        // SAFETY: the counter is open.
        assert_eq!(unsafe { ((*(*counter).ops).add)(counter, 1) }, 0);
        assert!(is_readable(fd, 20_000), "the count was not announced");
        assert_eq!(count.read(), value);
        assert!(!is_readable(fd, 0), "nobody sleeps any more");
        elsewhere(&world, sleeps);
    }
    let Shared(mut world) = world;
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

/// Peers have the bell of a closed endpoint as well, and the next endpoint's may have its number.
#[test]
fn a_closed_endpoint_keeps_nobody_awake() {
    let Some(host) = host("a_closed_endpoint_keeps_nobody_awake") else { return };
    for is_replaced in [false, true] {
        let mut world = waiting_world(host, WAIT_FD);
        let [from, to] = [world.nodes[0], world.nodes[1]];
        expect(&world);
        send(from);
        world.completion(to);
        expect(&world);
        let fd = fall_asleep(&world, to);
        send(from);
        assert!(is_readable(fd, 20_000), "the message was not announced");
        // What rang is not looked for again.
        assert_eq!(to.read().map(|entry| entry.flags), Ok(flag::MSG | flag::RECV));
        world.nodes.pop();
        assert_eq!(close(to.ep), 0);
        let next = is_replaced.then(|| world.open_ep());
        if let Some(next) = next {
            assert_eq!(bind(next, to.cq, flag::SEND | flag::RECV), 0);
            assert_eq!((bind(next, world.av, 0), enable(next)), (0, 0));
        }
        let start = Instant::now();
        while try_wait(&world, to.cq.cast()) != 0 {
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(!is_readable(fd, 0), "there is nothing to see");
        assert_eq!((next.map_or(0, close), close(to.cq)), (0, 0));
    }
}
