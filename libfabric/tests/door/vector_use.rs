//! Address vectors that endpoints are bound to. Reference: fi_av(3).

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    time::Instant,
};

use crate::{
    abi::fid::FidEp,
    code, flag,
    host::host,
    vectors::Vector,
    world::{Node, PATIENCE, World, bind, close, cq_attr, enable},
};

const NONE: *mut c_void = null_mut();
const NOTAVAIL: u64 = u64::MAX;
const USER_ID: u64 = 1 << 41;

/// An endpoint bound to a vector of its own.
fn node_with(world: &World, vector: &Vector) -> Node {
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    let ep = world.open_ep();
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    assert_eq!((bind(ep, vector.av, 0), enable(ep)), (0, 0));
    Node { cq, ep }
}

fn name_of(ep: *mut FidEp) -> [u8; 16] {
    let (mut address, mut length) = ([0_u8; 16], 16);
    // SAFETY: the endpoint is open, and the buffer has that length.
    unsafe {
        let place = address.as_mut_ptr().cast();
        assert_eq!(((*(*ep).cm).getname)(ep.cast(), place, &raw mut length), 0);
    }
    address
}

fn insert_name(vector: &Vector, name: &[u8; 16], fi_addr: &mut u64, flags: u64) -> c_int {
    // SAFETY: the vector is open, the name an address of its format.
    unsafe {
        ((*(*vector.av).ops).insert)(vector.av, name.as_ptr().cast(), 1, fi_addr, flags, NONE)
    }
}

/// Sends a message to itself, and answers whom the completion says that it is from.
fn source_of_own(node: Node, to: u64) -> u64 {
    let mut word = 5_u64;
    let start = Instant::now();
    // SAFETY: the word lives until all is over.
    unsafe {
        let ops = &*(*node.ep).msg;
        let place = (&raw mut word).cast::<c_void>();
        assert_eq!((ops.recv)(node.ep, place, 8, NONE, u64::MAX, place), 0);
        while (ops.inject)(node.ep, place, 8, to) != 0 {
            node.progress();
        }
        loop {
            let (mut entry, mut source) = ([0_u64; 6], 7);
            let read = (*(*node.cq).ops).readfrom;
            match read(node.cq, entry.as_mut_ptr().cast(), 1, &raw mut source) {
                1 if entry[1] & flag::RECV != 0 => return source,
                1 => {}
                status => assert_eq!(status, code::AGAIN as isize),
            }
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn completions_tell_user_ids() {
    let Some(host) = host("completions_tell_user_ids") else { return };
    let world = World::empty(host, |hints| hints.caps = flag::MSG | flag::SOURCE | USER_ID);
    // SAFETY: the info is open.
    assert_ne!(unsafe { (*world.info).caps } & USER_ID, 0);
    // By insertion: the array is read, and then written.
    let vector = Vector::open(&world, 0);
    let node = node_with(&world, &vector);
    let mut fi_addr = 4711;
    assert_eq!(insert_name(&vector, &name_of(node.ep), &mut fi_addr, USER_ID), 1);
    assert_eq!((fi_addr, source_of_own(node, 0)), (0, 4711));
    // SAFETY: the vectors are open.
    let set = |vector: &Vector, fi_addr, id, flags| unsafe {
        ((*(*vector.av).ops).set_user_id)(vector.av, fi_addr, id, flags)
    };
    assert_eq!(set(&vector, 0, 5, 0), code::INVAL, "the vector was opened without");
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], USER_ID, NONE), code::INVAL, "no ids");
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    // By vector: nobody has a name until it is given.
    let vector = Vector::open(&world, USER_ID);
    let node = node_with(&world, &vector);
    let name = name_of(node.ep);
    assert_eq!(insert_name(&vector, &name, &mut fi_addr, USER_ID), code::INVAL);
    assert_eq!(insert_name(&vector, &name, &mut fi_addr, 0), 1);
    assert_eq!((fi_addr, source_of_own(node, 0)), (0, NOTAVAIL));
    assert_eq!((set(&vector, 0, 4712, 0), source_of_own(node, 0)), (0, 4712));
    assert_eq!((set(&vector, 1, 5, 0), set(&vector, 0, 5, 1)), (code::INVAL, code::BADFLAGS));
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
}
