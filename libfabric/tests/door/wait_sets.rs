//! Wait sets with members of each kind, waits that yield, and waits that the pages forbid.
//! Reference: fi_poll(3), fi_cq(3), fi_cntr(3), fi_eq(3).

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    sync::atomic::{AtomicPtr, Ordering},
    time::{Duration, Instant},
};

use kestrel_tests::process::woken;

use crate::{
    abi::{
        attributes::{CntrAttr, CqTaggedEntry, EqAttr, EqEntry, PollFd, WaitAttr, WaitPollFd},
        fid::{Fid, FidCntr, FidCq, FidEq, FidWait},
    },
    code, flag,
    host::{Host, host},
    triggered::add,
    waiting::{GETWAIT, Shared, descriptor, is_readable, try_wait},
    world::{Node, PATIENCE, World, bind, close, cq_attr, enable},
};

const WAIT_NONE: u32 = 0;
const WAIT_UNSPEC: u32 = 1;
const WAIT_SET: u32 = 2;
const WAIT_FD: u32 = 3;
const WAIT_YIELD: u32 = 5;
const WAIT_POLLFD: u32 = 6;
const FOREVER_MS: c_int = PATIENCE.as_millis() as c_int;

fn zeroed<T>() -> T {
    // SAFETY: used for attributes and entries, of which zeroes are values.
    unsafe { std::mem::zeroed() }
}

/// What is waited for in one way: a queue and a counter of an endpoint's receives, and an event queue.
struct Waited {
    world: Shared,
    node: Node,
    counter: *mut FidCntr,
    eq: *mut FidEq,
    set: *mut FidWait,
}

// SAFETY: libfabric says that threads may share these objects (FI_THREAD_SAFE).
unsafe impl Sync for Waited {}

impl Waited {
    /// With one endpoint more, 0, which sends to 1.
    fn by(host: &'static Host, wait_obj: u32, set_obj: u32) -> Waited {
        let world = World::new(host, 1);
        let (mut set, mut counter, mut eq) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the objects are open, and each place is valid.
        unsafe {
            let ops = &*(*world.fabric).ops;
            if wait_obj == WAIT_SET {
                let mut attr = WaitAttr { wait_obj: set_obj, flags: 0 };
                assert_eq!((ops.wait_open)(world.fabric, &mut attr, &raw mut set), 0);
            }
            let mut attr = EqAttr { wait_obj, wait_set: set, flags: flag::WRITE, ..zeroed() };
            assert_eq!((ops.eq_open)(world.fabric, &mut attr, &raw mut eq, null_mut()), 0);
            let mut attr = CntrAttr { wait_obj, wait_set: set, ..zeroed() };
            let open = (*(*world.domain).ops).cntr_open;
            assert_eq!(open(world.domain, &mut attr, &raw mut counter, null_mut()), 0);
        }
        let mut attr = cq_attr();
        (attr.wait_obj, attr.wait_set) = (wait_obj, set);
        let cq: *mut FidCq = world.open_cq(&mut attr).unwrap();
        let ep = world.open_ep();
        assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
        assert_eq!(bind(ep, counter, flag::RECV), 0);
        assert_eq!((bind(ep, world.av, 0), enable(ep)), (0, 0));
        assert_eq!(world.insert(ep), 1);
        Waited { world: Shared(world), node: Node { cq, ep }, counter, eq, set }
    }

    fn close(self) {
        let Waited { world, node, counter, eq, set } = self;
        assert_eq!([close(node.ep), close(node.cq), close(counter), close(eq)], [0; 4]);
        if !set.is_null() {
            assert_eq!(close(set), 0);
        }
        drop(world);
    }

    /// Waits while another thread does something, a moment later, which has to wake it.
    fn while_another<R>(&self, act: impl FnOnce(&Waited) + Send, wait: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                act(self);
            });
            woken(wait)
        })
    }

    /// A message from endpoint 0, for which there is a receive.
    fn message(&self) {
        let (from, start) = (self.world.0.nodes[0], Instant::now());
        // SAFETY: the endpoints are open; there is no buffer.
        unsafe {
            let recv = (*(*self.node.ep).msg).recv;
            assert_eq!(recv(self.node.ep, null_mut(), 0, null_mut(), u64::MAX, null_mut()), 0);
            while ((*(*from.ep).msg).inject)(from.ep, null_mut(), 0, 1) != 0 {
                from.progress();
                assert!(start.elapsed() < PATIENCE);
            }
        }
        // The first one waits for its connection.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            from.progress();
        }
    }

    fn event(&self) {
        let entry: EqEntry = zeroed();
        // SAFETY: the queue is open, and the entry has this length.
        let written =
            unsafe { ((*(*self.eq).ops).write)(self.eq, 7, (&raw const entry).cast(), 24, 0) };
        assert_eq!(written, 24);
    }

    fn wait_on_set(&self, timeout_ms: c_int) -> c_int {
        // SAFETY: the set is open.
        unsafe { ((*(*self.set).ops).wait)(self.set, timeout_ms) }
    }

    fn read_counter(&self) -> u64 {
        // SAFETY: the counter is open.
        unsafe { ((*(*self.counter).ops).read)(self.counter) }
    }

    fn wait_for_count(&self, threshold: u64, timeout_ms: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { ((*(*self.counter).ops).wait)(self.counter, threshold, timeout_ms) }
    }

    fn read_events_blocking(&self, timeout_ms: c_int) -> isize {
        let (mut event, mut entry) = (0, zeroed::<EqEntry>());
        let place = (&raw mut entry).cast::<c_void>();
        // SAFETY: the queue is open, and there is room for an entry.
        unsafe { ((*(*self.eq).ops).sread)(self.eq, &raw mut event, place, 24, timeout_ms, 0) }
    }

    fn read_blocking(&self, timeout_ms: c_int) -> isize {
        let mut entry: CqTaggedEntry = zeroed();
        let place = (&raw mut entry).cast();
        // SAFETY: as above.
        unsafe { ((*(*self.node.cq).ops).sread)(self.node.cq, place, 1, null(), timeout_ms) }
    }
}

/// "Waits on a wait set until one or more of its underlying wait objects is signaled": by a message, by
/// what is counted, and by an event, whatever carries the set.
#[test]
fn every_kind_of_member_wakes_its_set() {
    let Some(host) = host("every_kind_of_member_wakes_its_set") else { return };
    for set_obj in [WAIT_UNSPEC, WAIT_FD, WAIT_YIELD] {
        let waited = Waited::by(host, WAIT_SET, set_obj);
        let outcome =
            |act: fn(&Waited)| waited.while_another(act, || waited.wait_on_set(FOREVER_MS));
        assert_eq!(waited.wait_on_set(10), code::TIMEDOUT, "nothing has happened");
        assert_eq!(outcome(Waited::message), 0);
        let start = Instant::now();
        while waited.node.read().is_err() {
            waited.world.0.nodes[0].progress();
            assert!(start.elapsed() < PATIENCE);
        }
        // The same message was counted.
        while waited.read_counter() < 1 || waited.wait_on_set(10) != code::TIMEDOUT {
            assert!(start.elapsed() < PATIENCE);
        }
        let count = |waited: &Waited| {
            // SAFETY: the counter is open.
            assert_eq!(unsafe { ((*(*waited.counter).ops).add)(waited.counter, 5) }, 0);
        };
        assert_eq!(outcome(count), 0);
        assert_eq!((waited.read_counter(), waited.wait_on_set(10)), (6, code::TIMEDOUT));
        assert_eq!(outcome(Waited::event), 0);
        waited.close();
    }
}

/// FI_WAIT_YIELD: "Indicates that the CQ will wait without a wait object but instead yield on every
/// wait. Allows usage of fi_cq_sread and fi_cq_sreadfrom through a spin"; of counters and event queues
/// likewise.
#[test]
fn who_yields_is_told_as_well() {
    let Some(host) = host("who_yields_is_told_as_well") else { return };
    let waited = Waited::by(host, WAIT_YIELD, 0);
    assert_eq!(waited.read_blocking(10), code::AGAIN as isize);
    assert_eq!(waited.wait_for_count(1, 10), code::TIMEDOUT);
    assert_eq!(waited.read_events_blocking(10), code::AGAIN as isize);
    assert_eq!(waited.while_another(Waited::message, || waited.read_blocking(FOREVER_MS)), 1);
    assert_eq!(waited.wait_for_count(1, FOREVER_MS), 0);
    let counted = waited.while_another(Waited::message, || waited.wait_for_count(2, FOREVER_MS));
    assert_eq!(counted, 0);
    assert_eq!(waited.read_blocking(FOREVER_MS), 1);
    assert_eq!(waited.while_another(Waited::event, || waited.read_events_blocking(FOREVER_MS)), 24);
    waited.close();
}

/// FI_WAIT_POLLFD: "similar to FI_WAIT_FD, but allows the wait mechanism to use multiple file descriptors". Ours is
/// one, which never changes, and an application that has none yet sees that.
#[test]
fn a_descriptor_may_be_told_in_a_list() {
    let Some(host) = host("a_descriptor_may_be_told_in_a_list") else { return };
    let waited = Waited::by(host, WAIT_POLLFD, 0);
    let sets = Waited::by(host, WAIT_SET, WAIT_POLLFD);
    let objects: [*mut Fid; 4] =
        [waited.node.cq.cast(), waited.counter.cast(), waited.eq.cast(), sets.set.cast()];
    let told = objects.map(|object| {
        let mut entry: PollFd = zeroed();
        let ask = |nfds, fd| {
            let mut list = WaitPollFd { change_index: 0, nfds, fd };
            // SAFETY: the object is open, and the list has room for as many as it says.
            let status =
                unsafe { ((*(*object).ops).control)(object, GETWAIT, (&raw mut list).cast()) };
            assert_ne!(list.change_index, 0);
            (status, list.nfds)
        };
        assert_eq!(ask(0, null_mut()), (code::TOOSMALL, 1));
        assert_eq!(ask(1, null_mut()), (code::INVAL, 1));
        assert_eq!(ask(2, &raw mut entry), (0, 1));
        assert_eq!(entry.events, libc::POLLIN);
        entry.fd
    });
    assert_eq!(waited.read_events_blocking(0), code::AGAIN as isize);
    assert!(!is_readable(told[2], 0));
    waited.event();
    assert!(is_readable(told[2], 0));
    assert_eq!(waited.read_events_blocking(FOREVER_MS), 24);
    waited.close();
    sets.close();
}

/// "It is invalid for applications to call this function if the EQ has been configured with a wait
/// object of FI_WAIT_NONE or FI_WAIT_SET", and likewise queues of completions and counters. Counters
/// and event queues that are to be polled are waited for all the same.
#[test]
fn what_is_waited_for_elsewhere_or_not_at_all_blocks_nobody() {
    let Some(host) = host("what_is_waited_for_elsewhere_or_not_at_all_blocks_nobody") else {
        return;
    };
    for wait_obj in [WAIT_NONE, WAIT_SET] {
        let waited = Waited::by(host, wait_obj, 1);
        assert_eq!(waited.read_blocking(-1), code::INVAL as isize);
        let is_set = wait_obj == WAIT_SET;
        let in_vain = if is_set { code::INVAL } else { code::AGAIN };
        assert_eq!(waited.read_events_blocking(10), in_vain as isize);
        let in_vain = if is_set { code::INVAL } else { code::TIMEDOUT };
        assert_eq!(waited.wait_for_count(1, 10), in_vain);
        // Also where there is something already.
        // SAFETY: the counter is open.
        assert_eq!(unsafe { ((*(*waited.counter).ops).add)(waited.counter, 1) }, 0);
        assert_eq!(waited.wait_for_count(1, -1), if is_set { code::INVAL } else { 0 });
        waited.close();
    }
}

/// Who waits for a set hears of those who join it meanwhile: also where nobody was in it.
#[test]
fn who_joins_a_set_is_heard_by_those_who_wait() {
    let Some(host) = host("who_joins_a_set_is_heard_by_those_who_wait") else { return };
    let waited = Waited::by(host, WAIT_SET, WAIT_UNSPEC);
    let late: AtomicPtr<FidEq> = AtomicPtr::default();
    let join = |waited: &Waited| {
        let mut attr =
            EqAttr { wait_obj: WAIT_SET, wait_set: waited.set, flags: flag::WRITE, ..zeroed() };
        let entry: EqEntry = zeroed();
        let (fabric, mut queue) = (waited.world.0.fabric, null_mut());
        // SAFETY: the objects are open, and the place is valid.
        unsafe {
            let place = &raw mut queue;
            assert_eq!(((*(*fabric).ops).eq_open)(fabric, &mut attr, place, null_mut()), 0);
            late.store(queue, Ordering::Relaxed);
            // Whoever waits looks at the new one, and sleeps again.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(((*(*queue).ops).write)(queue, 7, (&raw const entry).cast(), 24, 0), 24);
        }
    };
    assert_eq!(waited.while_another(join, || waited.wait_on_set(FOREVER_MS)), 0);
    assert_eq!(close(late.into_inner()), 0);
    waited.close();
}

/// What one of them hears is not for it alone.
#[test]
fn all_who_wait_hear_of_a_count() {
    let Some(host) = host("all_who_wait_hear_of_a_count") else { return };
    let waited = Waited::by(host, WAIT_SET, WAIT_UNSPEC);
    std::thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| waited.wait_on_set(FOREVER_MS)));
        // Long enough for both to sleep.
        std::thread::sleep(Duration::from_millis(50));
        add(waited.counter, 1);
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [0, 0]);
    });
    waited.close();
}

/// Who is asleep hears of one who has joined, though another thread has looked and goes elsewhere.
#[test]
fn who_joins_a_set_is_heard_though_another_looks() {
    let Some(host) = host("who_joins_a_set_is_heard_though_another_looks") else { return };
    let waited = Waited::by(host, WAIT_SET, WAIT_FD);
    let fd = descriptor(waited.set);
    let sleeps = |waited: &Waited| try_wait(&waited.world.0, waited.set.cast());
    let start = Instant::now();
    while sleeps(&waited) != 0 || is_readable(fd, 10) {
        assert!(start.elapsed() < PATIENCE);
    }
    let (domain, mut late) = (waited.world.0.domain, null_mut());
    let mut attr = CntrAttr { wait_obj: WAIT_SET, wait_set: waited.set, ..zeroed() };
    // SAFETY: the objects are open, and the place is valid.
    unsafe {
        let open = (*(*domain).ops).cntr_open;
        assert_eq!(open(domain, &mut attr, &raw mut late, null_mut()), 0);
    }
    add(late, 1);
    std::thread::scope(|scope| {
        let looks = || assert_eq!(sleeps(&waited), code::AGAIN);
        scope.spawn(looks).join().unwrap();
    });
    assert!(is_readable(fd, 0));
    assert_eq!(sleeps(&waited), code::AGAIN);
    assert_eq!(sleeps(&waited), 0, "it was seen here, too");
    assert!(!is_readable(fd, 0));
    assert_eq!(close(late), 0);
    waited.close();
}
