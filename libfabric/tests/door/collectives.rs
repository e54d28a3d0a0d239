//! Collectives, which kestrel does not have: who asks is told at once. Reference: fi_collective(3).

use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

use crate::{
    abi::{fid::FidAv, info::Info},
    code, flag,
    host::host,
    world::{World, close, info},
};

const COLLECTIVE: u64 = 1 << 6;
const NONE: *mut c_void = null_mut();

#[test]
fn who_asks_for_collectives_finds_nothing() {
    let Some(host) = host("who_asks_for_collectives_finds_nothing") else { return };
    let found = info(host, |hints: &mut Info| hints.caps = flag::MSG | COLLECTIVE);
    assert_eq!(found, Err(code::NODATA));
    let found = info(host, |_| {}).unwrap();
    // SAFETY: libfabric's list, with all attributes.
    unsafe {
        assert_eq!((*found).caps & COLLECTIVE, 0);
        assert_eq!((*(*found).tx_attr).caps & COLLECTIVE, 0);
        assert_eq!((*(*found).rx_attr).caps & COLLECTIVE, 0);
        (host.freeinfo)(found);
    }
}

#[test]
fn collective_calls_are_refused() {
    let Some(host) = host("collective_calls_are_refused") else { return };
    let world = World::new(host, 1);
    let (ep, mut mc, mut set) = (world.nodes[0].ep, null_mut(), NONE);
    let (mut av, mut members) = (null_mut::<FidAv>(), [0_u64; 2]);
    // SAFETY: the objects are open. Nobody looks at what is null, and of what fi_join is given,
    // which is a set and its address, nobody takes the bytes for those of a group.
    unsafe {
        let (domain, calls) = (&*(*world.domain).ops, &*(*ep).collective);
        let asked = (domain.query_collective)(world.domain, 0, NONE, 0);
        assert_eq!(asked, code::NOSYS);
        let place = members.as_mut_ptr().cast();
        let joined = ((*(*ep).cm).join)(ep, place, COLLECTIVE, &raw mut mc, NONE);
        assert_eq!((joined, mc.is_null()), (code::NOSYS, true));
        let posted = [
            (calls.barrier)(ep, 0, NONE),
            (calls.broadcast)(ep, NONE, 0, NONE, 0, 0, 0, 0, NONE),
            (calls.alltoall)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, NONE),
            (calls.allreduce)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, 0, NONE),
            (calls.allgather)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, NONE),
            (calls.reduce_scatter)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, 0, NONE),
            (calls.reduce)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, 0, 0, NONE),
            (calls.scatter)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, 0, NONE),
            (calls.gather)(ep, null(), 0, NONE, NONE, NONE, 0, 0, 0, 0, NONE),
            (calls.msg)(ep, null(), NONE, null_mut(), 0, 0),
            (calls.barrier2)(ep, 0, 0, NONE),
        ];
        assert_eq!(posted, [code::NOSYS as isize; 11]);
        assert_eq!((domain.av_open)(world.domain, &mut std::mem::zeroed(), &raw mut av, NONE), 0);
        let vectors = &*(*av).ops;
        assert_eq!((vectors.av_set)(av, NONE, &raw mut set, NONE), code::NOSYS);
    }
    assert_eq!(close(av), 0);
}
