//! What `fi_control` tells and changes, and how much room is left. Reference: fi_endpoint(3).

use std::ptr::null_mut;

use crate::{
    abi::fid::{FidCntr, FidEp},
    code, flag,
    host::host,
    tagged::{CLAIM, FENCE, MORE},
    world::{World, bind, close, cq_attr, enable, info},
};

const GETOPSFLAG: i32 = 2;
const SETOPSFLAG: i32 = 3;
const COMPLETION: u64 = 1 << 24;
const MULTICAST: u64 = 1 << 5;

fn control(ep: *mut FidEp, command: i32, flags: &mut u64) -> i32 {
    let flags: *mut u64 = flags;
    // SAFETY: the endpoint is open; these commands take a `uint64_t *`.
    unsafe { ((*(*ep).fid.ops).control)(ep.cast(), command, flags.cast()) }
}

/// The default flags of one direction.
pub fn flags_of(ep: *mut FidEp, mut direction: u64) -> u64 {
    assert_eq!(control(ep, GETOPSFLAG, &mut direction), 0);
    direction
}

/// fi_cntr(3): FI_GETOPSFLAG "returns the current default operational flags associated with the
/// counter", FI_SETOPSFLAG "modifies" them. There is no flag that would mean something.
#[test]
fn a_counter_has_no_operation_flags() {
    let Some(host) = host("a_counter_has_no_operation_flags") else { return };
    let world = World::new(host, 0);
    let mut counter: *mut FidCntr = null_mut();
    // SAFETY: the objects are open; zeroes are the defaults; these commands take a `uint64_t *`.
    unsafe {
        let (mut attr, open) = (std::mem::zeroed(), (*(*world.domain).ops).cntr_open);
        assert_eq!(open(world.domain, &raw mut attr, &raw mut counter, null_mut()), 0);
        let control = (*(*counter).fid.ops).control;
        let mut flags = COMPLETION;
        let place = (&raw mut flags).cast();
        assert_eq!(control(counter.cast(), SETOPSFLAG, place), code::BADFLAGS);
        assert_eq!(control(counter.cast(), GETOPSFLAG, place), 0);
        assert_eq!(*place.cast::<u64>(), 0);
        assert_eq!(control(counter.cast(), SETOPSFLAG, place), 0);
        assert_eq!(control(counter.cast(), GETOPSFLAG, null_mut()), code::INVAL);
    }
    assert_eq!(close(counter), 0);
}

fn send(ep: *mut FidEp, context: usize) {
    // SAFETY: the endpoint is open; there is no buffer.
    let answer =
        unsafe { ((*(*ep).msg).send)(ep, null_mut(), 0, null_mut(), 0, context as *mut _) };
    assert_eq!(answer, 0);
}

/// "The given flags will override the previous transmit and receive attributes".
#[test]
fn operation_flags_are_told_and_changed() {
    let Some(host) = host("operation_flags_are_told_and_changed") else { return };
    let mut world = World::empty(host, |_| {});
    let node = world.add_node(&mut cq_attr(), flag::SELECTIVE_COMPLETION);
    let both = [flag::SEND, flag::RECV];
    assert_eq!(both.map(|direction| flags_of(node.ep, direction)), [0, 0]);
    send(node.ep, 1);
    assert_eq!(control(node.ep, SETOPSFLAG, &mut (flag::SEND | COMPLETION)), 0);
    let now = both.map(|direction| flags_of(node.ep, direction));
    assert_eq!(now, [COMPLETION, 0], "one direction's");
    send(node.ep, 2);
    assert_eq!(control(node.ep, SETOPSFLAG, &mut { flag::SEND }), 0);
    send(node.ep, 3);
    assert_eq!(world.completion(node).op_context as usize, 2);
    for _ in 0..100 {
        assert_eq!(node.read().err(), Some(code::AGAIN));
    }
    // The argument of a query may be one that was set before.
    assert_eq!(flags_of(node.ep, flag::SEND | COMPLETION), 0);
    // "must include FI_TRANSMIT or FI_RECV (not both)".
    for command in [GETOPSFLAG, SETOPSFLAG] {
        for mut flags in [0, flag::SEND | flag::RECV, COMPLETION] {
            assert_eq!(control(node.ep, command, &mut flags), code::BADFLAGS, "{flags:#x}");
        }
    }
    // What each call says by itself, and what an endpoint of this type cannot do.
    let not_for_all = [flag::RECV | 1 << 62, flag::RECV | CLAIM, flag::RECV | flag::PEEK];
    let not_here = [flag::SEND | flag::REMOTE_CQ_DATA, flag::SEND | MULTICAST];
    for mut flags in not_for_all.into_iter().chain(not_here) {
        assert_eq!(control(node.ep, SETOPSFLAG, &mut flags), code::BADFLAGS, "{flags:#x}");
    }
    // What is said of one call and those around it may be set, and no endpoint is opened with it.
    for asked in [FENCE, MORE] {
        assert_eq!(control(node.ep, SETOPSFLAG, &mut (flag::SEND | asked)), 0, "{asked:#x}");
        assert_eq!(flags_of(node.ep, flag::SEND), asked);
        // SAFETY: hints have all attributes.
        let opened = info(host, |hints| unsafe { (*hints.tx_attr).op_flags = asked });
        assert_eq!(opened, Err(code::NODATA), "{asked:#x}");
    }
    assert_eq!(control(node.ep, 77, &mut 0), code::NOSYS);
    // SAFETY: the endpoint is open; what is null is what is tested.
    let null = unsafe { ((*(*node.ep).fid.ops).control)(node.ep.cast(), GETOPSFLAG, null_mut()) };
    assert_eq!(null, code::INVAL);
}

/// "A lower bound on the number of … operations that may be posted".
#[test]
fn what_is_left_can_be_posted() {
    let Some(host) = host("what_is_left_can_be_posted") else { return };
    // SAFETY: hints have all attributes.
    let world = World::empty(host, |hints| unsafe { (*hints.tx_attr).size = 8 });
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    // SAFETY: the endpoint is open; there is nothing to tell of it before it is enabled.
    let both = unsafe { [((*(*ep).ops).tx_size_left)(ep), ((*(*ep).ops).rx_size_left)(ep)] };
    assert_eq!(both, [code::OPBADSTATE as isize; 2]);
    assert_eq!((bind(ep, cq, flag::SEND | flag::RECV), bind(ep, world.av, 0)), (0, 0));
    assert_eq!(enable(ep), 0);
    // SAFETY: the endpoint is open.
    let left = || unsafe { ((*(*ep).ops).tx_size_left)(ep) };
    assert_eq!(left(), 8);
    assert_eq!(world.insert(ep), 0);
    // Nobody polls, so that no connection is made and nothing leaves.
    for posted in 0..8 {
        send(ep, posted);
        assert_eq!(left(), 7 - posted as isize);
    }
    // SAFETY: as above; there is no buffer.
    unsafe {
        let more = ((*(*ep).msg).send)(ep, null_mut(), 0, null_mut(), 0, null_mut());
        assert_eq!(more as i32, code::AGAIN);
        let left = ((*(*ep).ops).rx_size_left)(ep);
        // As few as one thread can be sure of while another drives the endpoint.
        assert!((1..=(*(*world.info).rx_attr).size as isize).contains(&left));
        for _ in 0..left {
            let posted = ((*(*ep).msg).recv)(ep, null_mut(), 0, null_mut(), u64::MAX, null_mut());
            assert_eq!(posted, 0);
        }
    }
    assert_eq!((close(ep), close(cq)), (0, 0));
}

/// "Operations posted without a valid context parameter … cannot be canceled."
#[test]
fn what_has_no_context_cannot_be_canceled() {
    let Some(host) = host("what_has_no_context_cannot_be_canceled") else { return };
    let world = World::new(host, 1);
    let node = world.nodes[0];
    // SAFETY: the endpoint is open; there is no buffer.
    unsafe {
        let recv = (*(*node.ep).msg).recv;
        assert_eq!(recv(node.ep, null_mut(), 0, null_mut(), u64::MAX, null_mut()), 0);
        let cancel = (*(*node.ep).ops).cancel;
        assert_eq!(cancel(node.ep.cast(), null_mut()) as i32, code::NOENT);
    }
    assert_eq!(node.read().err(), Some(code::AGAIN));
    send(node.ep, 1);
    let done = [world.completion(node), world.completion(node)];
    assert!(done.iter().any(|done| done.op_context.is_null()), "it was received");
}
