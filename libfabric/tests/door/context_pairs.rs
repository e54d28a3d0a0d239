//! The contexts of one index, which leave each other alone. Reference: fi_endpoint(3).

use std::{
    ffi::c_int,
    ptr::{null_mut, without_provenance_mut},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use crate::{
    abi::fid::FidEp,
    code,
    connections::name,
    contexts::{
        MIN_MULTI_RECV, Portal, completion, insert, named, open_av, open_sep, receive, rx_context,
        scalable_world, send, tx_context,
    },
    flag,
    host::host,
    waiting::{WAIT_FD, descriptor, is_readable, try_wait},
    world::{Node, PATIENCE, World, bind, close, cq_attr, enable},
};

const CONNRESET: c_int = 104;
const UNSPEC: u64 = u64::MAX;
/// More than leaves without its receiver's consent.
const LONG: usize = 1 << 20;

/// A scalable endpoint with the first context of each direction.
struct Pair {
    sep: *mut FidEp,
    transmit: Node,
    receive: Node,
}

impl Pair {
    fn open(world: &World, av: *mut crate::abi::fid::FidAv) -> Pair {
        let sep = open_sep(world).expect("a scalable endpoint");
        assert_eq!((bind(sep, av, 0), enable(sep)), (0, 0));
        let enabled = |ep, flags| {
            let cq = world.open_cq(&mut cq_attr()).expect("a queue");
            assert_eq!((bind(ep, cq, flags), enable(ep)), (0, 0));
            Node { cq, ep }
        };
        let transmit = enabled(tx_context(sep, 0, null_mut()).unwrap(), flag::SEND);
        let receive = enabled(rx_context(sep, 0, null_mut()).unwrap(), flag::RECV);
        Pair { sep, transmit, receive }
    }

    fn close(self) {
        for node in [self.transmit, self.receive] {
            // One of them may be closed.
            let closed = close(node.ep);
            assert!(closed == 0 || closed == code::BADF, "{closed}");
        }
        assert_eq!(close(self.sep), 0);
        for node in [self.transmit, self.receive] {
            assert_eq!(close(node.cq), 0);
        }
    }
}

fn cancel(ep: *mut FidEp, context: usize) -> c_int {
    // SAFETY: the endpoint is open; a context is only compared.
    unsafe { ((*(*ep).ops).cancel)(ep.cast(), without_provenance_mut(context)) as c_int }
}

fn long_send(ep: *mut FidEp, from: &[u8], to: u64, context: usize) {
    // SAFETY: the endpoint is open; the buffer outlives what is read of it.
    let status = unsafe {
        let context = without_provenance_mut(context);
        ((*(*ep).msg).send)(ep, from.as_ptr().cast(), from.len(), null_mut(), to, context)
    };
    assert_eq!(status, 0);
}

fn long_receive(ep: *mut FidEp, into: &mut [u8], context: usize) {
    // SAFETY: as above.
    let status = unsafe {
        let context = without_provenance_mut(context);
        ((*(*ep).msg).recv)(ep, into.as_mut_ptr().cast(), into.len(), null_mut(), UNSPEC, context)
    };
    assert_eq!(status, 0);
}

#[test]
fn what_is_canceled_or_set_is_a_contexts_own() {
    let Some(host) = host("what_is_canceled_or_set_is_a_contexts_own") else { return };
    let world = scalable_world(host);
    let av = open_av(&world);
    let pair = Pair::open(&world, av);
    assert_eq!(insert(av, &name(pair.sep)), 0);
    let all = [pair.transmit, pair.receive];
    let (sent, mut received) = (7, 0);
    assert_eq!(receive(pair.receive.ep, &mut received, 5), 0);
    assert_eq!(cancel(pair.transmit.ep, 5), code::NOENT);
    let mut minimum = 100_usize;
    for (ep, status) in [(pair.transmit.ep, code::NOPROTOOPT), (pair.receive.ep, 0)] {
        // SAFETY: the context is open, the value a `size_t`.
        unsafe {
            let (setopt, getopt) = ((*(*ep).ops).setopt, (*(*ep).ops).getopt);
            let (place, mut length) = ((&raw mut minimum).cast(), 8);
            assert_eq!(setopt(ep.cast(), 0, MIN_MULTI_RECV, place, 8), status);
            assert_eq!(getopt(ep.cast(), 0, MIN_MULTI_RECV, place, &raw mut length), status);
        }
    }
    assert_eq!(send(pair.transmit.ep, &sent, named(0, 0), 6), 0);
    assert_eq!(completion(pair.receive, &all).0.op_context as usize, 5);
    assert_eq!((completion(pair.transmit, &all).0.op_context as usize, received), (6, sent));
    assert_eq!(receive(pair.receive.ep, &mut received, 5), 0);
    assert_eq!(cancel(pair.receive.ep, 5), 0);
    assert_eq!(pair.receive.read().err(), Some(code::AVAIL));
    assert_eq!(pair.receive.read_error().unwrap().err, -code::CANCELED);
    pair.close();
    assert_eq!(close(av), 0);
}

#[test]
fn a_closed_context_leaves_its_sibling_what_is_under_way() {
    let Some(host) = host("a_closed_context_leaves_its_sibling_what_is_under_way") else { return };
    let world = scalable_world(host);
    let av = open_av(&world);
    let [ours, theirs] = [Pair::open(&world, av), Pair::open(&world, av)];
    let (us, them) = (insert(av, &name(ours.sep)), insert(av, &name(theirs.sep)));
    let all = [ours.transmit, ours.receive, theirs.transmit, theirs.receive];
    let progress = || (0..50).for_each(|_| all.iter().for_each(|node| node.progress()));
    let (first, second) = (vec![1_u8; LONG], vec![2_u8; LONG]);
    let mut into = vec![0_u8; LONG];
    // The message that our transmit context has begun waits for its receive there; theirs waits
    // for one here, where the context is closed.
    long_send(ours.transmit.ep, &first, them, 10);
    long_send(theirs.transmit.ep, &second, us, 20);
    progress();
    assert_eq!(close(ours.receive.ep), 0);
    while theirs.transmit.read().err() == Some(code::AGAIN) {
        progress();
    }
    let refused = theirs.transmit.read_error().unwrap();
    assert_eq!((refused.op_context as usize, refused.err), (20, CONNRESET));
    long_receive(theirs.receive.ep, &mut into, 30);
    assert_eq!(completion(theirs.receive, &all).0.op_context as usize, 30);
    assert_eq!(completion(ours.transmit, &all).0.op_context as usize, 10);
    assert_eq!(into, first);
    // The same with the directions exchanged.
    long_send(ours.transmit.ep, &first, them, 11);
    long_send(theirs.transmit.ep, &second, them, 21);
    progress();
    assert_eq!(close(theirs.transmit.ep), 0);
    long_receive(theirs.receive.ep, &mut into, 31);
    let mut received = completion_or_error(theirs.receive, &all);
    if received.1 != 0 {
        // That of the closed context was the first one.
        assert_eq!(received, (31, CONNRESET));
        long_receive(theirs.receive.ep, &mut into, 32);
        received = completion_or_error(theirs.receive, &all);
    }
    assert_eq!(received.1, 0);
    assert_eq!((completion(ours.transmit, &all).0.op_context as usize, into), (11, first));
    for pair in [ours, theirs] {
        pair.close();
    }
    assert_eq!(close(av), 0);
}

/// The context of the next completion of `node`, and its error.
fn completion_or_error(node: Node, all: &[Node]) -> (usize, c_int) {
    loop {
        all.iter().for_each(|other| other.progress());
        match node.read() {
            Ok(entry) => return (entry.op_context as usize, 0),
            Err(code::AVAIL) => {
                let error = node.read_error().unwrap();
                return (error.op_context as usize, error.err);
            }
            Err(status) => assert_eq!(status, code::AGAIN),
        }
    }
}

/// Pairs of contexts each with a queue of its own, which has a descriptor.
fn waiting_pairs(world: &World, av: *mut crate::abi::fid::FidAv) -> (*mut FidEp, [[Node; 2]; 2]) {
    let sep = open_sep(world).expect("a scalable endpoint");
    assert_eq!((bind(sep, av, 0), enable(sep)), (0, 0));
    let pairs = [0, 1].map(|index| {
        let mut attr = cq_attr();
        attr.wait_obj = WAIT_FD;
        let cq = world.open_cq(&mut attr).expect("a queue");
        let (transmit, receive) =
            (tx_context(sep, index, null_mut()), rx_context(sep, index, null_mut()));
        [(transmit, flag::SEND), (receive, flag::RECV)].map(|(ep, direction)| {
            let ep = ep.expect("a context");
            assert_eq!((bind(ep, cq, direction), enable(ep)), (0, 0));
            Node { cq, ep }
        })
    });
    (sep, pairs)
}

/// Who sleeps on the queue of one pair is woken, though nobody reads the other's any more: by the first
/// message of a peer, and by one of a peer that it knows.
#[test]
fn a_context_wakes_its_sleeper_while_its_sibling_is_idle() {
    let Some(host) = host("a_context_wakes_its_sleeper_while_its_sibling_is_idle") else { return };
    let worlds = [scalable_world(host), scalable_world(host)];
    let vectors = [open_av(&worlds[0]), open_av(&worlds[1])];
    let [(client, sending), (server, waiting)] =
        [0, 1].map(|at| waiting_pairs(&worlds[at], vectors[at]));
    let to = insert(vectors[0], &name(server));
    let buffer = 7_u64;
    let mut places = [0_u64; 4];
    let place = |places: &mut [u64; 4], at: usize| &raw mut places[at];
    // Something goes to the first pair, whose sleeper then stays where it is.
    // SAFETY: the places stay until all is closed.
    unsafe { assert_eq!(receive(waiting[0][1].ep, &mut *place(&mut places, 0), 1), 0) };
    assert_eq!(send(sending[0][0].ep, &buffer, named(to, 0), 2), 0);
    completion(waiting[0][1], &[sending[0][0]]);
    completion(sending[0][0], &[waiting[0][1]]);
    while try_wait(&worlds[1], waiting[0][1].cq.cast()) != 0 {
        waiting[0][1].progress();
    }
    for (round, by) in [(1, 0), (2, 1), (3, 0)] {
        // SAFETY: as above.
        unsafe { assert_eq!(receive(waiting[1][1].ep, &mut *place(&mut places, round), 3), 0) };
        let (queue, start) = (waiting[1][1].cq, Instant::now());
        let fd = descriptor(queue);
        while try_wait(&worlds[1], queue.cast()) != 0 || is_readable(fd, 10) {
            assert_eq!(waiting[1][1].read().err(), Some(code::AGAIN));
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(send(sending[by][0].ep, &buffer, named(to, 1), 4), 0);
        let mut entry = None;
        while entry.is_none() {
            // It connects first, for which it is driven.
            sending[by][0].read().ok();
            if is_readable(fd, 1) && try_wait(&worlds[1], queue.cast()) == code::AGAIN {
                entry = waiting[1][1].read().ok();
            }
            assert!(start.elapsed() < PATIENCE, "round {round}: its sleeper is not woken");
        }
        assert_eq!(places[round], buffer);
    }
    for (end, pairs) in [(client, sending), (server, waiting)] {
        for node in pairs.iter().flatten() {
            assert_eq!(close(node.ep), 0);
        }
        assert_eq!((close(end), close(pairs[0][0].cq), close(pairs[1][0].cq)), (0, 0, 0));
    }
    assert_eq!(vectors.map(close), [0, 0]);
}

/// A transmit context, and the receive context that it sends to, for the thread that uses them.
struct Own([Node; 2]);

// SAFETY: they are used by one thread, which need not be the one that opened them.
unsafe impl Send for Own {}

impl Own {
    const COUNT: u64 = 4_000;

    /// Sends numbers to `to`, in order and one at a time, until all threads have received theirs.
    fn pass(self, to: u64, unfinished: &AtomicUsize) {
        let ([from, into], start) = (self.0, Instant::now());
        let (words, mut room): (Vec<u64>, _) = ((0..Self::COUNT).collect(), 0);
        let (mut sent, mut told, mut received) = (0, 0, 0);
        assert_eq!(receive(into.ep, &mut room, 0), 0);
        while unfinished.load(Ordering::Relaxed) > 0 {
            if let Some(word) = words.get(sent) {
                let context = to as usize + sent;
                sent += usize::from(send(from.ep, word, to, context) == 0);
            }
            if let Ok(entry) = from.read() {
                assert_eq!(entry.op_context as usize, to as usize + told, "its own, in its order");
                told += 1;
            }
            if let Ok(entry) = into.read() {
                assert_eq!((entry.op_context as u64, room), (received, received));
                received += 1;
                match received {
                    Self::COUNT => _ = unfinished.fetch_sub(1, Ordering::Relaxed),
                    _ => assert_eq!(receive(into.ep, &mut room, received as usize), 0),
                }
            }
            assert!(start.elapsed() < PATIENCE, "{received} messages came");
        }
    }
}

/// "No synchronization is needed when accessing contexts in parallel", each of which has a queue of its own.
#[test]
fn contexts_are_used_by_threads_of_their_own() {
    let Some(host) = host("contexts_are_used_by_threads_of_their_own") else { return };
    let world = scalable_world(host);
    let av = open_av(&world);
    let portal = Portal::open(&world, av);
    assert_eq!(insert(av, &name(portal.sep)), 0);
    let unfinished = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        // Of each index one thread has the transmit context, and the other one the receive context.
        for [from, to] in [[0, 1], [1, 0]] {
            let own = Own([portal.transmit[from], portal.receive[to]]);
            let unfinished = &unfinished;
            scope.spawn(move || own.pass(named(0, to as u64), unfinished));
        }
    });
    portal.close();
    assert_eq!(close(av), 0);
}
