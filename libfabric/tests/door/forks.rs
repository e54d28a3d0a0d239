//! Forked children of a process that uses kestrel through libfabric: they exit, exec and
//! call, and the parent's messages go on.

use std::{
    ffi::{CStr, c_void},
    ptr::{null, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

use kestrel_tests::{
    fork::{fork, wait},
    process::{Peer, child_role, say},
};

use crate::{
    abi::{
        attributes::{CntrAttr, EqAttr},
        fid::{Fid, FidCntr, FidCq, FidEq, FidMr, FidWait},
        info::FabricAttr,
    },
    calls::{self, Arguments},
    code,
    discovery::provider,
    flag,
    host::host,
    one_sided::register_as,
    waiting::Shared,
    world::{World, bind, close, cq_attr, enable},
};

const NONE: *mut c_void = null_mut();
const WAIT_UNSPEC: u32 = 1;
const WAIT_FD: u32 = 3;

/// A process of its own, since a fork of this one would carry the locks of other tests.
#[test]
fn forked_children_exit_exec_and_call() {
    if host("forked_children_exit_exec_and_call").is_none() {
        return;
    }
    Peer::start("forks").be_done();
}

/// A fork while another thread opens and closes: its child opens and closes as well, what it inherited, too,
/// whatever lock that thread held.
#[test]
fn a_child_finds_no_lock_held() {
    if host("a_child_finds_no_lock_held").is_none() {
        return;
    }
    Peer::start("busy-forks").be_done();
}

/// A handler of `exit` comes after the end of its thread's own data, where texts without a buffer are kept.
#[test]
fn handlers_of_exit_are_told_texts() {
    if host("handlers_of_exit_are_told_texts").is_none() {
        return;
    }
    Peer::start("exits").be_done();
}

/// What the test starts.
pub fn exiting_child() {
    static QUEUE: AtomicPtr<FidCq> = AtomicPtr::new(null_mut());
    extern "C" fn ask() {
        let queue = QUEUE.load(Ordering::Relaxed);
        // SAFETY: the queue is open, and the text ends.
        unsafe {
            let text = ((*(*queue).ops).strerror)(queue, 11, null(), null_mut(), 0);
            assert!(CStr::from_ptr(text).count_bytes() > 0);
        }
    }
    let Some(_) = child_role().filter(|role| role[0] == "exits") else { return };
    let host = host("exiting_child").expect("it was there a moment ago");
    let mut world = World::empty(host, |_| {});
    QUEUE.store(world.add_node(&mut cq_attr(), 0).cq, Ordering::Relaxed);
    std::mem::forget(world);
    ask();
    say("done");
    // SAFETY: the handler needs what stays.
    unsafe {
        assert_eq!(libc::atexit(ask), 0);
        libc::exit(0)
    }
}

/// The same, for a test of its own.
pub fn busy_child() {
    let Some(_) = child_role().filter(|role| role[0] == "busy-forks") else { return };
    let host = host("busy_child").expect("it was there a moment ago");
    let mut world = World::empty(host, |_| {});
    let queue = world.add_node(&mut cq_attr(), 0).cq as usize;
    let shared = Shared(world);
    let ask = move || {
        let queue = queue as *mut FidCq;
        let mut text = [0; 64];
        // SAFETY: the queue is open, and the buffer has that length.
        unsafe { ((*(*queue).ops).strerror)(queue, 11, null(), text.as_mut_ptr(), text.len()) };
        i32::from(text[0] == 0)
    };
    let mut memory = [0_u64; 2];
    let [own, others] = memory.each_mut().map(std::slice::from_mut);
    let inherited = register_as(&shared.0, own, flag::REMOTE_WRITE, 0, 0) as usize;
    // Our own call, asked for once: libfabric has a lock as well, which a child inherits.
    let open = provider().fabric;
    let open_and_close = move || {
        let mut fabric = null_mut();
        // SAFETY: zeroes are no name and no version; the fabric is closed once.
        unsafe {
            let mut attr: FabricAttr = std::mem::zeroed();
            open(&raw mut attr, &raw mut fabric, NONE) + close(fabric)
        }
    };
    let close_inherited = || close(inherited as *mut FidMr);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (shared, is_over) = (&shared, &is_over);
        scope.spawn(move || {
            let Shared(world) = shared;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(open_and_close(), 0);
                assert_eq!(close(register_as(world, others, flag::REMOTE_WRITE, 1, 0)), 0);
            }
        });
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(ask(), 0);
            }
        });
        for _ in 0..100 {
            let open = || (0..100).map(|_| open_and_close()).sum::<i32>();
            assert_eq!(wait(fork(|| open() + ask() + close_inherited())), 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(close_inherited(), 0);
    drop(shared);
    say("done");
}

/// What [`Peer`] starts.
pub fn child() {
    let Some(_) = child_role().filter(|role| role[0] == "forks") else { return };
    let host = host("child").expect("it was there a moment ago");
    let mut world = World::empty(host, |_| {});
    for _ in 0..2 {
        let mut attr = cq_attr();
        attr.wait_obj = WAIT_UNSPEC;
        world.add_node(&mut attr, 0);
    }
    exchange(&world);
    // SAFETY: exit runs libfabric's and our destructors in the child, which is the point.
    assert_eq!(wait(fork(|| unsafe { libc::exit(3) })), 3);
    exchange(&world);
    let arguments = [c"true".as_ptr(), std::ptr::null()];
    // SAFETY: a path and a list that ends.
    assert_eq!(wait(fork(|| unsafe { libc::execvp(arguments[0], arguments.as_ptr()) })), 0);
    exchange(&world);
    let objects = Objects::open(&world);
    assert_eq!(wait(fork(|| call_everything(&world, &objects))), 0);
    exchange(&world);
    objects.close();
    assert_eq!(wait(fork(|| close_everything(&mut world))), 0);
    exchange(&world);
    assert_eq!(wait(fork(|| start_afresh(host))), 0);
    exchange(&world);
    drop(world);
    say("done");
}

/// A message each way, long and short.
fn exchange(world: &World) {
    for (from, to, length) in [(0, 1, 8), (1, 0, 8), (0, 1, 100_000), (1, 0, 100_000)] {
        let (sender, receiver) = (world.nodes[from], world.nodes[to]);
        let (sent, mut received) = (vec![length as u8 | 1; length], vec![0_u8; length]);
        // SAFETY: both buffers live until the completions have come.
        unsafe {
            let recv = (*(*receiver.ep).msg).recv;
            let place = received.as_mut_ptr().cast();
            assert_eq!(recv(receiver.ep, place, length, NONE, u64::MAX, NONE), 0);
            let send = (*(*sender.ep).msg).send;
            assert_eq!(send(sender.ep, sent.as_ptr().cast(), length, NONE, to as u64, NONE), 0);
        }
        world.completion(receiver);
        world.completion(sender);
        assert!(received == sent);
    }
}

/// One of each kind, beside what the world has.
struct Objects {
    counter: *mut FidCntr,
    eq: *mut FidEq,
    set: *mut FidWait,
}

impl Objects {
    fn open(world: &World) -> Objects {
        let (mut counter, mut eq, mut set) = (null_mut(), null_mut(), null_mut());
        // SAFETY: attributes of zeroes are valid; the parents are open.
        unsafe {
            let mut attr: CntrAttr = std::mem::zeroed();
            let open = (*(*world.domain).ops).cntr_open;
            assert_eq!(open(world.domain, &raw mut attr, &raw mut counter, NONE), 0);
            let ops = &*(*world.fabric).ops;
            let mut attr = EqAttr { wait_obj: WAIT_FD, flags: flag::WRITE, ..std::mem::zeroed() };
            assert_eq!((ops.eq_open)(world.fabric, &raw mut attr, &raw mut eq, NONE), 0);
            assert_eq!((ops.wait_open)(world.fabric, null_mut(), &raw mut set), 0);
        }
        Objects { counter, eq, set }
    }

    fn close(self) {
        assert_eq!((close(self.counter), close(self.eq), close(self.set)), (0, 0, 0));
    }
}

/// Calls everything on the parent's objects; the number of the first call that answers
/// otherwise than with "not supported", or 0.
fn call_everything(world: &World, objects: &Objects) -> i32 {
    let refused = code::OPNOTSUPP as isize;
    let ep = world.nodes[0].ep;
    let posts = calls::all(Arguments::good());
    if let Some(at) = posts.iter().position(|call| call.on(ep) != refused) {
        println!("{} answered {}", posts[at].name, posts[at].on(ep));
        return 100 + at as i32;
    }
    let answers = control_answers(world, objects);
    if let Some(at) = answers.iter().position(|&answer| answer != refused) {
        println!("call {at} answered {}", answers[at]);
        return 1 + at as i32;
    }
    0
}

fn control_answers(world: &World, objects: &Objects) -> Vec<isize> {
    let (node, av, domain) = (world.nodes[0], world.av, world.domain);
    let (ep, cq, Objects { counter, eq, set }) = (node.ep, node.cq, objects);
    let (counter, eq, set) = (*counter, *eq, *set);
    let (mut address, mut length, mut event) = ([0_u8; 64], 64_usize, 0_u32);
    let (place, length): (*mut c_void, _) = (address.as_mut_ptr().cast(), &raw mut length);
    let (mut fid, mut new): (*mut Fid, _) = (eq.cast(), null_mut());
    // SAFETY: the objects are copies of the parent's open ones; buffers have these lengths.
    unsafe {
        let (cqs, counters) = (&*(*cq).ops, &*(*counter).ops);
        let (events, domains) = (&*(*eq).ops, &*(*domain).ops);
        vec![
            (cqs.read)(cq, place, 1),
            (cqs.sread)(cq, place, 1, std::ptr::null(), -1),
            (cqs.signal)(cq) as isize,
            (counters.wait)(counter, 1, -1) as isize,
            (counters.add)(counter, 1) as isize,
            (events.read)(eq, &raw mut event, place, 64, 0),
            (events.sread)(eq, &raw mut event, place, 64, -1, 0),
            (events.write)(eq, 1, place, 8, 0),
            ((*(*set).ops).wait)(set, -1) as isize,
            ((*(*world.fabric).ops).trywait)(world.fabric, &raw mut fid, 1) as isize,
            ((*(*av).ops).insert)(av, place, 1, null_mut(), 0, NONE) as isize,
            ((*(*av).ops).lookup)(av, 0, place, length) as isize,
            ((*(*ep).ops).cancel)(ep.cast(), NONE),
            ((*(*ep).ops).tx_size_left)(ep),
            ((*(*ep).cm).getname)(ep.cast(), place, length) as isize,
            enable(ep) as isize,
            bind(ep, av, 0) as isize,
            world.open_cq(&mut cq_attr()).err().unwrap_or(0) as isize,
            (domains.endpoint)(domain, world.info, &raw mut new, NONE) as isize,
            ((*(*domain).mr).reg)(domain.cast(), place, 8, 0, 0, 5, 0, &mut null_mut(), NONE)
                as isize,
        ]
    }
}

/// A child may close what it inherited: that tells nobody anything.
fn close_everything(world: &mut World) -> i32 {
    let mut statuses = Vec::new();
    for node in std::mem::take(&mut world.nodes) {
        statuses.extend([close(node.ep), close(node.cq)]);
    }
    statuses.extend([close(world.av), close(world.domain), close(world.fabric)]);
    statuses.iter().position(|&status| status != 0).map_or(0, |at| 1 + at as i32)
}

/// A child may open everything anew.
fn start_afresh(host: &'static crate::host::Host) -> i32 {
    let world = World::new(host, 2);
    exchange(&world);
    0
}
