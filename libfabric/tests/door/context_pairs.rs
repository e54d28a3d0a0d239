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
        completion, insert, named, open_av, open_sep, receive, rx_context, scalable_world, send,
        tx_context,
    },
    flag,
    host::host,
    world::{Node, World, bind, close, cq_attr, enable},
};

const MIN_MULTI_RECV: c_int = 0;
const CANCELED: c_int = 125;

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
            assert_eq!(close(node.ep), 0);
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
    assert_eq!(pair.receive.read_error().unwrap().err, CANCELED);
    pair.close();
    assert_eq!(close(av), 0);
}
