//! Several threads and one descriptor: what one of them does takes nothing from who sleeps on it.
//! fi_poll(3): "The application must call fi_trywait and obtain a return value of FI_SUCCESS prior to
//! blocking on a native wait object"; then it is signaled, whatever others do meanwhile.

use std::{ffi::c_int, time::Instant};

use crate::{
    abi::fid::{Fid, FidCntr},
    code, flag,
    host::host,
    waiting::{
        Shared, WAIT_FD, counted_node, descriptor, expect, is_readable, send, try_wait,
        waiting_world,
    },
    world::{Node, PATIENCE, World, close},
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

#[test]
fn a_count_that_is_read_leaves_others_asleep() {
    let Some(host) = host("a_count_that_is_read_leaves_others_asleep") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let world = Shared(world);
    let (fd, address) = (descriptor(counter), counter as usize);
    // SAFETY: the counter is open.
    let read = move || unsafe {
        let counter = address as *mut FidCntr;
        ((*(*counter).ops).read)(counter)
    };
    // As above.
    expect(&world.0);
    send(world.0.nodes[0]);
    let start = Instant::now();
    while read() == 0 || try_wait(&world.0, address as *mut Fid) != 0 || is_readable(fd, 10) {
        world.0.nodes[0].progress();
        assert!(start.elapsed() < PATIENCE);
    }
    expect(&world.0);
    elsewhere(&world, |_| assert_eq!(read(), 1));
    assert!(!is_readable(fd, 0), "there is nothing yet");
    send(world.0.nodes[0]);
    assert!(is_readable(fd, 20_000), "the message was not announced");
    while read() < 2 {
        world.0.nodes[0].progress();
        assert!(start.elapsed() < PATIENCE);
    }
    let Shared(mut world) = world;
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}
