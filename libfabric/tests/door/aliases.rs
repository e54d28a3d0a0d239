//! Aliases: other ways to the same endpoint, with default flags of their own.
//! Reference: fi_endpoint(3), `fi_ep_alias`.

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{
        attributes::Alias,
        fid::{Fid, FidEp},
    },
    code, flag,
    host::host,
    world::{World, bind, close, cq_attr, enable},
};

const ALIAS: i32 = 4;
const COMPLETION: u64 = 1 << 24;

/// `fi_ep_alias`.
pub fn alias(ep: *mut FidEp, flags: u64) -> Result<*mut FidEp, i32> {
    let mut other: *mut Fid = null_mut();
    let mut asked = Alias { fid: &raw mut other, flags };
    // SAFETY: the endpoint is open; the command takes a `struct fi_alias`.
    let status =
        unsafe { ((*(*ep).fid.ops).control)(ep.cast(), ALIAS, (&raw mut asked).cast::<c_void>()) };
    if status == 0 { Ok(other.cast()) } else { Err(status) }
}

fn send(ep: *mut FidEp, context: usize) {
    // SAFETY: the endpoint is open; there is no buffer.
    let answer =
        unsafe { ((*(*ep).msg).send)(ep, null_mut(), 0, null_mut(), 0, context as *mut c_void) };
    assert_eq!(answer, 0);
}

#[test]
fn an_alias_differs_by_its_default_flags() {
    let Some(host) = host("an_alias_differs_by_its_default_flags") else { return };
    let mut world = World::empty(host, |_| {});
    let node = world.add_node(&mut cq_attr(), flag::SELECTIVE_COMPLETION);
    let other = alias(node.ep, flag::SEND | COMPLETION).unwrap();
    send(node.ep, 1);
    send(other, 2);
    send(node.ep, 3);
    // Only the alias asks for completions, and only of sends.
    let done = world.completion(node);
    assert_eq!((done.op_context as usize, done.flags), (2, flag::MSG | flag::SEND));
    for _ in 0..100 {
        assert_eq!(node.read().err(), Some(code::AGAIN));
    }
    assert_eq!(close(node.ep), code::BUSY, "an alias is open");
    let third = alias(other, flag::RECV).unwrap();
    assert_eq!(close(other), 0);
    assert_eq!(close(node.ep), code::BUSY, "an alias of an alias is open");
    send(third, 4);
    assert_eq!(world.completion(node).op_context as usize, 4, "inherited from the first alias");
    assert_eq!(close(third), 0);
}

#[test]
fn an_alias_can_do_what_its_endpoint_can() {
    let Some(host) = host("an_alias_can_do_what_its_endpoint_can") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let other = alias(ep, flag::SEND).unwrap();
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!(bind(other, cq, flag::SEND | flag::RECV), 0);
    assert_eq!((bind(ep, world.av, 0), enable(other)), (0, 0));
    assert_eq!(enable(ep), code::OPBADSTATE);
    let names = [ep, other].map(|ep| {
        let (mut name, mut length) = ([0_u8; 64], 64);
        // SAFETY: the endpoint is open, and the buffer that long.
        let status =
            unsafe { ((*(*ep).cm).getname)(ep.cast(), name.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(status, 0);
        name
    });
    assert_eq!(names[0], names[1]);
    assert_eq!([close(other), close(ep), close(cq)], [0; 3]);
}

#[test]
fn aliases_are_of_one_direction() {
    let Some(host) = host("aliases_are_of_one_direction") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    for flags in [0, flag::SEND | flag::RECV, COMPLETION, flag::SEND | 1 << 62] {
        assert_eq!(alias(ep, flags).err(), Some(code::BADFLAGS), "{flags:#x}");
    }
    let mut nowhere = Alias { fid: null_mut(), flags: flag::SEND };
    // SAFETY: the endpoint is open; what is null is what is tested.
    unsafe {
        let control = (*(*ep).fid.ops).control;
        assert_eq!(control(ep.cast(), ALIAS, null_mut()), code::INVAL);
        assert_eq!(control(ep.cast(), ALIAS, (&raw mut nowhere).cast()), code::INVAL);
    }
}
