//! Waiting: blocking reads, descriptors, counters, event queues, wait and poll sets.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    time::{Duration, Instant},
};

use kestrel_tests::process::{eventually, woken};

use crate::{
    abi::{
        attributes::{CntrAttr, CqTaggedEntry, EqAttr, EqEntry, WaitAttr},
        fid::{Fid, FidCntr, FidCq, FidEq, FidPoll, FidWait},
        info::Info,
    },
    code,
    datagrams::asks_for_datagrams,
    flag,
    host::{Host, host},
    world::{Node, PATIENCE, World, bind, close, cq_attr, enable},
};

const WAIT_UNSPEC: u32 = 1;
const WAIT_SET: u32 = 2;
pub const WAIT_FD: u32 = 3;
pub const GETWAIT: c_int = 5;
const GETWAITOBJ: c_int = 16;

pub fn waiting_world(host: &'static Host, wait_obj: u32) -> World {
    waiting_world_of(host, wait_obj, |_| {})
}

fn waiting_world_of(host: &'static Host, wait_obj: u32, change: fn(&mut Info)) -> World {
    let mut world = World::empty(host, change);
    for _ in 0..2 {
        let mut attr = cq_attr();
        attr.wait_obj = wait_obj;
        world.add_node(&mut attr, 0);
    }
    world
}

/// Posts a receive of nothing at node 1.
pub fn expect(world: &World) {
    let ep = world.nodes[1].ep;
    // SAFETY: there is no buffer.
    let status = unsafe { ((*(*ep).msg).recv)(ep, null_mut(), 0, null_mut(), 0, null_mut()) };
    assert_eq!(status, 0);
}

/// Sends nothing from node 0 to node 1, and sees it leave.
pub fn send(node: Node) {
    let start = Instant::now();
    // SAFETY: there is no buffer.
    while unsafe { ((*(*node.ep).msg).inject)(node.ep, null_mut(), 0, 1) } != 0 {
        node.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    // The first message waits for its connection.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        node.progress();
    }
}

pub fn blocking_read(node: Node, timeout_ms: c_int) -> isize {
    // SAFETY: there is room for the one entry that is asked for.
    unsafe {
        let mut entry: CqTaggedEntry = std::mem::zeroed();
        let sread = (*(*node.cq).ops).sread;
        sread(node.cq, (&raw mut entry).cast(), 1, std::ptr::null(), timeout_ms)
    }
}

/// The objects are C's own: libfabric says that threads may share them (FI_THREAD_SAFE).
pub struct Shared(pub World);
// SAFETY: as said.
unsafe impl Sync for Shared {}

#[test]
fn a_blocking_read_ends_by_message_time_or_signal() {
    let Some(host) = host("a_blocking_read_ends_by_message_time_or_signal") else { return };
    let world = Shared(waiting_world(host, WAIT_UNSPEC));
    assert_eq!(blocking_read(world.0.nodes[1], 20), code::AGAIN as isize);
    is_woken_by_a_message(&world);
    // One signal before the read, and one to who sleeps in it.
    signal(&world.0);
    assert_eq!(woken(|| blocking_read(world.0.nodes[1], 20_000)), code::AGAIN as isize);
    assert_eq!(read_while_another(&world, signal), code::AGAIN as isize);
}

/// Signals the queue of node 1.
pub fn signal(world: &World) {
    let cq = world.nodes[1].cq;
    // SAFETY: the queue is open.
    assert_eq!(unsafe { ((*(*cq).ops).signal)(cq) }, 0);
}

/// Node 1 sleeps when node 0 sends to it.
fn is_woken_by_a_message(world: &Shared) {
    expect(&world.0);
    assert_eq!(read_while_another(world, |world| send(world.nodes[0])), 1);
}

/// Reads the queue of node 1 while another thread does something, a moment later, which has to wake it.
fn read_while_another(world: &Shared, act: fn(&World)) -> isize {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Shared(world) = world;
            std::thread::sleep(Duration::from_millis(20));
            act(world);
        });
        woken(|| blocking_read(world.0.nodes[1], 20_000))
    })
}

/// Also the first one of a peer that nothing was heard of.
#[test]
fn a_datagram_wakes_a_sleeper() {
    let Some(host) = host("a_datagram_wakes_a_sleeper") else { return };
    let world = Shared(waiting_world_of(host, WAIT_UNSPEC, asks_for_datagrams));
    (0..3).for_each(|_| is_woken_by_a_message(&world));
}

#[test]
fn a_queue_that_is_only_polled_cannot_be_waited_for() {
    let Some(host) = host("a_queue_that_is_only_polled_cannot_be_waited_for") else { return };
    let world = World::new(host, 1);
    assert_eq!(blocking_read(world.nodes[0], 0), code::INVAL as isize);
    assert_eq!(try_wait(&world, world.nodes[0].cq.cast()), code::INVAL);
}

pub fn try_wait(world: &World, mut fid: *mut Fid) -> c_int {
    // SAFETY: both objects are open.
    unsafe { ((*(*world.fabric).ops).trywait)(world.fabric, &raw mut fid, 1) }
}

pub fn descriptor<T>(object: *mut T) -> c_int {
    let (fid, mut fd) = (object.cast::<Fid>(), -1);
    // SAFETY: the object is open; the command writes an `int`.
    let status = unsafe { ((*(*fid).ops).control)(fid, GETWAIT, (&raw mut fd).cast::<c_void>()) };
    assert_eq!(status, 0);
    fd
}

pub fn is_readable(fd: c_int, timeout_ms: c_int) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, timeout_ms) == 1 }
}

#[test]
fn a_descriptor_tells_of_a_message() {
    let Some(host) = host("a_descriptor_tells_of_a_message") else { return };
    let world = waiting_world(host, WAIT_FD);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    expect(&world);
    let fd = descriptor(to.cq);
    let start = Instant::now();
    // What connecting rings for is seen first; after that it is quiet.
    while try_wait(&world, to.cq.cast()) != 0 || is_readable(fd, 10) {
        assert_eq!(to.read().err(), Some(code::AGAIN));
        assert!(start.elapsed() < PATIENCE);
    }
    send(from);
    loop {
        assert!(is_readable(fd, 20_000), "the message was not announced");
        if to.read().is_ok() {
            break;
        }
        let _ = try_wait(&world, to.cq.cast());
        from.progress();
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn event_queues_carry_what_is_written() {
    let Some(host) = host("event_queues_carry_what_is_written") else { return };
    let world = World::new(host, 0);
    let mut eq: *mut FidEq = null_mut();
    let mut attr = EqAttr { wait_obj: WAIT_FD, flags: flag::WRITE, ..zeroed() };
    // SAFETY: buffers have these lengths.
    unsafe {
        let open = (*(*world.fabric).ops).eq_open;
        assert_eq!(open(world.fabric, &mut attr, &raw mut eq, null_mut()), 0);
        let (ops, fd) = (&*(*eq).ops, descriptor(eq));
        let (mut event, mut entry) = (0, EqEntry { data: 5, ..zeroed() });
        let place = (&raw mut entry).cast::<c_void>();
        assert_eq!((ops.read)(eq, &raw mut event, place, 24, 0), code::AGAIN as isize);
        assert_eq!((ops.sread)(eq, &raw mut event, place, 24, 10, 0), code::AGAIN as isize);
        assert!(!is_readable(fd, 0));
        assert_eq!((ops.write)(eq, 77, place, 24, 0), 24);
        assert!(is_readable(fd, 0));
        assert_eq!((ops.read)(eq, &raw mut event, place, 8, 0), code::TOOSMALL as isize);
        assert_eq!((ops.read)(eq, &raw mut event, place, 24, flag::PEEK), 24);
        assert!(is_readable(fd, 0), "a peek consumes nothing");
        entry.data = 0;
        assert_eq!((ops.sread)(eq, &raw mut event, place, 24, 1000, 0), 24);
        assert_eq!((event, entry.data), (77, 5));
        assert!(!is_readable(fd, 0));
        assert_eq!((ops.readerr)(eq, null_mut(), 0), code::INVAL as isize);
        assert_eq!((ops.read)(eq, null_mut(), place, 24, 0), code::INVAL as isize);
    }
    assert_eq!(close(world.fabric), code::BUSY);
    assert_eq!(close(eq), 0);
}

fn zeroed<T>() -> T {
    // SAFETY: used for attributes and entries, of which zeroes are values.
    unsafe { std::mem::zeroed() }
}

fn open_counter(world: &World, attr: &mut CntrAttr) -> *mut FidCntr {
    let mut counter = null_mut();
    // SAFETY: the domain is open.
    unsafe {
        let open = (*(*world.domain).ops).cntr_open;
        assert_eq!(open(world.domain, attr, &raw mut counter, null_mut()), 0);
    }
    counter
}

#[test]
fn counters_count_and_wait() {
    let Some(host) = host("counters_count_and_wait") else { return };
    let world = World::new(host, 0);
    let counter = open_counter(&world, &mut zeroed());
    // SAFETY: the counter is open.
    unsafe {
        let ops = &*(*counter).ops;
        assert_eq!(((ops.add)(counter, 3), (ops.read)(counter)), (0, 3));
        assert_eq!((ops.wait)(counter, 3, 0), 0);
        assert_eq!((ops.wait)(counter, 4, 10), code::TIMEDOUT);
        assert_eq!(((ops.adderr)(counter, 2), (ops.readerr)(counter)), (0, 2));
        assert_eq!(((ops.set)(counter, 0), (ops.seterr)(counter, 0)), (0, 0));
        assert_eq!(((ops.read)(counter), (ops.readerr)(counter)), (0, 0));
    }
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    assert_eq!(bind(ep, counter, flag::SEND | flag::REMOTE_WRITE), 0);
    assert_eq!((bind(ep, world.av, 0), enable(ep)), (0, 0));
    assert_eq!(close(counter), code::BUSY);
    assert_eq!((close(ep), close(cq), close(counter)), (0, 0, 0));
}

#[test]
fn enabling_rings_for_nobody_who_does_not_sleep() {
    let Some(host) = host("enabling_rings_for_nobody_who_does_not_sleep") else { return };
    let world = waiting_world(host, WAIT_FD);
    for node in &world.nodes {
        assert_eq!(try_wait(&world, node.cq.cast()), 0);
        assert!(!is_readable(descriptor(node.cq), 0));
    }
}

/// A counter with a descriptor, bound to an endpoint of its own.
pub fn counted_node(world: &mut World, flags: u64) -> (*mut FidCntr, Node) {
    let counter = open_counter(world, &mut CntrAttr { wait_obj: WAIT_FD, ..zeroed() });
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    assert_eq!(bind(ep, counter, flags), 0);
    assert_eq!((bind(ep, world.av, 0), enable(ep)), (0, 0));
    assert_eq!(world.insert(ep), world.nodes.len() as u64);
    world.nodes.push(Node { cq, ep });
    (counter, Node { cq, ep })
}

#[test]
fn a_descriptor_tells_of_a_count() {
    let Some(host) = host("a_descriptor_tells_of_a_count") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let fd = descriptor(counter);
    // SAFETY: the counter is open.
    let ops = unsafe { &*(*counter).ops };
    // SAFETY: as above.
    let read = || unsafe { (ops.read)(counter) };
    assert_eq!(try_wait(&world, counter.cast()), 0);
    assert!(!is_readable(fd, 0));
    // What the application does itself, as another thread of it would.
    // SAFETY: as above.
    unsafe { (ops.add)(counter, 1) };
    assert!(is_readable(fd, 0));
    assert_eq!(try_wait(&world, counter.cast()), code::AGAIN, "it has not been seen");
    assert_eq!(try_wait(&world, counter.cast()), 0);
    assert!(!is_readable(fd, 0));
    // SAFETY: as above.
    unsafe { (ops.adderr)(counter, 1) };
    assert!(is_readable(fd, 0));
    // SAFETY: as above.
    assert_eq!((read(), unsafe { (ops.readerr)(counter) }), (1, 1));
    assert_eq!(try_wait(&world, counter.cast()), 0, "all of it has been seen");
    // What a peer does.
    expect(&world);
    send(world.nodes[0]);
    let start = Instant::now();
    while read() < 2 {
        if try_wait(&world, counter.cast()) == 0 {
            assert!(is_readable(fd, 20_000), "the message was not announced");
        }
        world.nodes[0].progress();
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(to.read().map(|entry| entry.flags), Ok(flag::MSG | flag::RECV));
    assert_eq!(close(to.ep), 0);
    assert_eq!((close(counter), close(to.cq)), (0, 0));
    world.nodes.pop();
}

/// One thread sleeps until the count is there; what counts is done by another.
#[test]
fn a_waiter_is_woken_by_what_another_thread_counts() {
    let Some(host) = host("a_waiter_is_woken_by_what_another_thread_counts") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    let shared = Shared(world);
    let (world, counter_at) = (&shared, counter as usize);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let counter = counter_at as *mut FidCntr;
            // SAFETY: the counter is open.
            woken(|| unsafe { ((*(*counter).ops).wait)(counter, 3, 20_000) })
        });
        let Shared(world) = world;
        std::thread::sleep(Duration::from_millis(20));
        expect(world);
        send(world.nodes[0]);
        // SAFETY: the counter is open.
        unsafe { ((*(*counter).ops).add)(counter, 2) };
        assert_eq!(waiter.join().unwrap(), 0);
    });
    let Shared(mut world) = shared;
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

/// fi_cq(3), of `fi_cq_readerr`: "If no error completions are available to read from the CQ, returns
/// -FI_EAGAIN". There is one, though nobody has read the success in front of it.
#[test]
fn an_error_is_there_when_its_counter_tells_of_it() {
    let Some(host) = host("an_error_is_there_when_its_counter_tells_of_it") else { return };
    let mut world = World::new(host, 1);
    let (counter, to) = counted_node(&mut world, flag::RECV);
    expect(&world);
    send(world.nodes[0]);
    let mut room = [0_u8; 8];
    let room = room.as_mut_ptr().cast::<c_void>();
    // SAFETY: the objects are open, and the buffer outlives its receive.
    unsafe {
        let ops = &*(*counter).ops;
        assert_eq!((ops.wait)(counter, 1, 10_000), 0);
        assert_eq!(((*(*to.ep).msg).recv)(to.ep, room, 8, null_mut(), u64::MAX, room), 0);
        assert_eq!(((*(*to.ep).ops).cancel)(to.ep.cast(), room), 0);
        assert_eq!(((ops.read)(counter), (ops.readerr)(counter)), (1, 1));
    }
    let error = to.read_error().unwrap();
    assert_eq!((error.err, error.op_context), (-code::CANCELED, room));
    assert_eq!(to.read_error().err(), Some(code::AGAIN));
    assert_eq!(to.read().map(|entry| entry.flags), Ok(flag::MSG | flag::RECV));
    assert_eq!(to.read().err(), Some(code::AGAIN));
    world.nodes.pop();
    assert_eq!((close(to.ep), close(counter), close(to.cq)), (0, 0, 0));
}

#[test]
fn a_poll_set_names_who_has_something() {
    let Some(host) = host("a_poll_set_names_who_has_something") else { return };
    let world = World::new(host, 2);
    let (cq, mut poll): (_, *mut FidPoll) = (world.nodes[1].cq, null_mut());
    let mut contexts = [null_mut::<c_void>(); 4];
    let counter = open_counter(&world, &mut zeroed());
    // SAFETY: all objects are open, and the array has four places.
    unsafe {
        (*counter).fid.context = counter.cast();
        (*cq).fid.context = cq.cast();
        let open = (*(*world.domain).ops).poll_open;
        assert_eq!(open(world.domain, null_mut(), &raw mut poll), 0);
        let ops = &*(*poll).ops;
        assert_eq!((ops.poll_add)(poll, cq.cast(), 0), 0);
        assert_eq!((ops.poll_add)(poll, counter.cast(), 0), 0);
        assert_eq!((ops.poll_add)(poll, counter.cast(), 0), code::INVAL);
        assert_eq!((ops.poll_add)(poll, world.domain.cast(), 0), code::INVAL);
        assert_eq!((ops.poll)(poll, contexts.as_mut_ptr(), 4), 0);
        ((*(*counter).ops).add)(counter, 1);
        assert_eq!((ops.poll)(poll, contexts.as_mut_ptr(), 4), 1);
        assert_eq!(contexts[0], counter.cast());
        assert_eq!((ops.poll_del)(poll, counter.cast(), 0), 0);
        assert_eq!((ops.poll_del)(poll, counter.cast(), 0), code::INVAL);
        // A completion is there until it is read, however often it is asked for.
        expect(&world);
        send(world.nodes[0]);
        eventually("the message", || (ops.poll)(poll, contexts.as_mut_ptr(), 4) == 1);
        assert_eq!((ops.poll)(poll, contexts.as_mut_ptr(), 4), 1);
        assert_eq!(contexts[0], cq.cast());
        assert!(world.nodes[1].read().is_ok());
        assert_eq!((ops.poll)(poll, contexts.as_mut_ptr(), 4), 0);
    }
    assert_eq!((close(poll), close(counter)), (0, 0));
}

#[test]
fn a_wait_set_wakes_for_a_member() {
    let Some(host) = host("a_wait_set_wakes_for_a_member") else { return };
    let world = World::new(host, 0);
    let (mut set, mut eq): (*mut FidWait, *mut FidEq) = (null_mut(), null_mut());
    // SAFETY: all objects are open.
    unsafe {
        let ops = &*(*world.fabric).ops;
        let mut attr = WaitAttr { wait_obj: WAIT_FD, flags: 0 };
        assert_eq!((ops.wait_open)(world.fabric, &mut attr, &raw mut set), 0);
        let mut attr = EqAttr { wait_obj: WAIT_SET, wait_set: set, flags: flag::WRITE, ..zeroed() };
        assert_eq!((ops.eq_open)(world.fabric, &mut attr, &raw mut eq, null_mut()), 0);
        let mut attr = cq_attr();
        (attr.wait_obj, attr.wait_set) = (WAIT_SET, set);
        let cq: *mut FidCq = world.open_cq(&mut attr).unwrap();
        let wait = (*(*set).ops).wait;
        assert_eq!(wait(set, 10), code::TIMEDOUT);
        assert_eq!(try_wait(&world, set.cast()), 0);
        assert!(!is_readable(descriptor(set), 0));
        let mut kind = 0_u32;
        let control = (*(*set).fid.ops).control;
        assert_eq!(control(set.cast(), GETWAITOBJ, (&raw mut kind).cast()), 0);
        assert_eq!(kind, WAIT_FD);
        let entry: EqEntry = zeroed();
        assert_eq!(((*(*eq).ops).write)(eq, 1, (&raw const entry).cast(), 24, 0), 24);
        assert!(is_readable(descriptor(set), 0));
        assert_eq!(try_wait(&world, set.cast()), code::AGAIN);
        assert_eq!(wait(set, 10_000), 0);
        assert_eq!(close(set), code::BUSY);
        assert_eq!((close(eq), close(cq), close(set)), (0, 0, 0));
    }
}

/// fi_poll(3): "changed since the last call to … fi_cntr_set": a count that is what it was, because it
/// was set, has changed all the same.
#[test]
fn a_counter_that_was_set_has_changed() {
    let Some(host) = host("a_counter_that_was_set_has_changed") else { return };
    let world = World::new(host, 0);
    let mut attr = CntrAttr { wait_obj: WAIT_FD, ..zeroed() };
    let counter = open_counter(&world, &mut attr);
    let (mut poll, mut found): (*mut FidPoll, _) = (null_mut(), null_mut());
    // SAFETY: the objects are open, and there is room for one context.
    unsafe {
        let open = (*(*world.domain).ops).poll_open;
        assert_eq!(open(world.domain, null_mut(), &raw mut poll), 0);
        let (sets, counts) = (&*(*poll).ops, &*(*counter).ops);
        assert_eq!((sets.poll_add)(poll, counter.cast(), 0), 0);
        for _ in 0..3 {
            assert_eq!(((counts.set)(counter, 0), (counts.add)(counter, 5)), (0, 0));
            assert_eq!(try_wait(&world, counter.cast()), code::AGAIN);
            assert_eq!(try_wait(&world, counter.cast()), 0, "it is known by now");
            assert_eq!((sets.poll)(poll, &raw mut found, 1), 1);
            assert_eq!((sets.poll)(poll, &raw mut found, 1), 0);
            assert_eq!((counts.read)(counter), 5);
        }
    }
    assert_eq!((close(poll), close(counter)), (0, 0));
}
