//! Signals: of one, somebody who waits hears.

use std::{
    ptr::null_mut,
    sync::atomic::{AtomicI32, Ordering},
    time::Instant,
};

use kestrel_tests::process::{eventually, is_asleep};

use crate::{
    code,
    host::host,
    waiting::{
        Shared, WAIT_FD, blocking_read, descriptor, expect, is_readable, send, signal, try_wait,
        waiting_world,
    },
    world::PATIENCE,
};

/// A signal is one signal, also for who waits on a descriptor.
#[test]
fn a_signal_keeps_nobody_awake() {
    let Some(host) = host("a_signal_keeps_nobody_awake") else { return };
    let world = waiting_world(host, WAIT_FD);
    let node = world.nodes[1];
    signal(&world);
    assert_eq!(try_wait(&world, node.cq.cast()), code::AGAIN, "look");
    assert_eq!(try_wait(&world, node.cq.cast()), 0, "and wait");
    assert!(!is_readable(descriptor(node.cq), 0));
    // Who asks for no entries waits for none.
    let start = Instant::now();
    // SAFETY: as above; nothing is written.
    let read = unsafe {
        let sread = (*(*node.cq).ops).sread;
        sread(node.cq, null_mut(), 0, std::ptr::null(), -1)
    };
    assert_eq!(read, code::AGAIN as isize);
    assert!(start.elapsed() < PATIENCE);
}

/// "A count value of 0 may be used to drive progress" (fi_cq(3)), and what is driven so is seen: libfabric's own examples
/// end their loops by that.
#[test]
fn a_read_of_no_entries_tells_what_there_is() {
    let Some(host) = host("a_read_of_no_entries_tells_what_there_is") else { return };
    let world = waiting_world(host, WAIT_FD);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    // SAFETY: the queue is open, and nothing is written.
    let look = || unsafe { ((*(*to.cq).ops).read)(to.cq, null_mut(), 0) as i32 };
    let start = Instant::now();
    let until = |answer| {
        while look() != answer {
            from.progress();
            assert!(start.elapsed() < PATIENCE, "{answer} never comes");
        }
        // SAFETY: as above.
        let blocking = unsafe {
            let sread = (*(*to.cq).ops).sread;
            sread(to.cq, null_mut(), 0, std::ptr::null(), -1) as i32
        };
        assert_eq!(blocking, answer, "and a read that may block");
    };
    until(code::AGAIN);
    expect(&world);
    send(from);
    until(0);
    let mut short = [0; 4];
    assert_eq!((to.receive(&mut short, u64::MAX, 0), from.send(&[0; 8], 1, 0)), (0, 0));
    until(code::AVAIL);
    assert!(to.read().is_ok(), "the message of before");
    assert_eq!(look(), code::AVAIL);
    assert_eq!(to.read().err(), Some(code::AVAIL));
    assert_eq!(to.read_error().unwrap().err, 265);
    assert_eq!(look(), code::AGAIN);
}

/// "fi_cq_signal … Unblock any thread waiting in fi_cq_sread": whoever else waits for the queue.
#[test]
fn a_signal_is_for_who_is_blocked() {
    let Some(host) = host("a_signal_is_for_who_is_blocked") else { return };
    let world = Shared(waiting_world(host, WAIT_FD));
    // Whoever waits on the descriptor beside looks once for all, or makes ready again and again.
    for looks_once in [true, false, true] {
        let thread = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let (world, thread) = (&world, &thread);
            let blocked = scope.spawn(move || {
                // SAFETY: it has no preconditions.
                thread.store(unsafe { libc::gettid() }, Ordering::Relaxed);
                blocking_read(world.0.nodes[1], 40_000)
            });
            let (node, start) = (world.0.nodes[1], Instant::now());
            eventually("it is blocked", || is_asleep(thread.load(Ordering::Relaxed)));
            assert_eq!(try_wait(&world.0, node.cq.cast()), 0);
            signal(&world.0);
            if looks_once {
                assert!(node.read().is_err());
            }
            while !blocked.is_finished() {
                if !looks_once {
                    try_wait(&world.0, node.cq.cast());
                }
                assert!(start.elapsed() < PATIENCE, "nobody was woken");
            }
            assert_eq!(blocked.join().unwrap(), code::AGAIN as isize);
        });
    }
}
