//! The contexts of one index, which leave each other alone. Reference: fi_endpoint(3).

use std::{
    ffi::c_int,
    ptr::{null_mut, without_provenance_mut},
};

use crate::{
    abi::fid::FidEp,
    code,
    connections::name,
    contexts::{
        MIN_MULTI_RECV, completion, insert, named, open_av, open_sep, receive, rx_context,
        scalable_world, send, tx_context,
    },
    flag,
    host::host,
    world::{Node, World, bind, close, cq_attr, enable},
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
