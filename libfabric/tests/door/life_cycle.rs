//! Opening and closing, in the right order and in the wrong one.

use std::{
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    code,
    completion_order::{LONG, completed, connected, post},
    flag,
    host::host,
    tagged::{MATCH_COMPLETE, Message},
    world::{World, bind, close, cq_attr, enable},
};

/// Closed objects are remembered only until many others were closed: a test that looks at
/// one keeps the test that closes many out.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn what_is_in_use_does_not_close() {
    let Some(host) = host("what_is_in_use_does_not_close") else { return };
    let mut world = World::new(host, 1);
    for status in
        [close(world.fabric), close(world.domain), close(world.av), close(world.nodes[0].cq)]
    {
        assert_eq!(status, code::BUSY);
    }
    assert_eq!(close(world.nodes[0].ep), 0);
    assert_eq!(close(world.domain), code::BUSY);
    assert_eq!(close(world.nodes[0].cq), 0);
    // The rest closes when the world is dropped.
    world.nodes.clear();
}

/// "Outstanding operations posted to the endpoint when fi_close is called will be discarded.
/// Discarded operations will silently be dropped, with no completions reported."
#[test]
fn what_is_outstanding_is_dropped_silently() {
    let Some(host) = host("what_is_outstanding_is_dropped_silently") else { return };
    for closes_sender in [false, true] {
        let (mut long, mut short) = (vec![1; LONG], [2; 8]);
        let (mut long_into, mut short_into) = (vec![0; LONG], [0; 8]);
        let (mut world, [from, to]) = connected(host, (0, 0));
        // A receive and a send that wait for nobody, and a long message under way.
        post(to, &mut short_into, 3, false);
        let unmatched = Message { context: 2 as *mut _, ..Message::of(&mut short, 2) };
        unmatched.send(from, MATCH_COMPLETE);
        post(to, &mut long_into, 1, false);
        post(from, &mut long, 1, true);
        assert!(completed(to, &[]).is_empty(), "without its sender the long one does not come");
        let (gone, left) = if closes_sender { (from, to) } else { (to, from) };
        assert_eq!((close(gone.cq), close(world.av)), (code::BUSY, code::BUSY));
        assert_eq!(close(gone.ep), 0);
        long_into.fill(9);
        for _ in 0..200 {
            left.progress();
            assert_eq!(gone.read().err(), Some(code::AGAIN), "silently");
        }
        assert_eq!(close(gone.cq), 0);
        world.nodes.retain(|node| node.ep == left.ep);
        // Who is left is told, and nobody writes where nobody receives.
        let expected: &[usize] = if closes_sender { &[1] } else { &[1, 2] };
        let failure = |_: &usize| left.outcome(&[]).err().map(|error| error.op_context as usize);
        let mut failed: Vec<_> = expected.iter().filter_map(failure).collect();
        failed.sort_unstable();
        assert_eq!(failed, expected);
        assert!(closes_sender || long_into.iter().all(|&byte| byte == 9));
    }
}

#[test]
fn a_closed_object_answers_that_it_is() {
    let Some(host) = host("a_closed_object_answers_that_it_is") else { return };
    let _alone = alone();
    let mut world = World::new(host, 2);
    let (node, other) = (world.nodes.remove(0), world.nodes[0]);
    assert_eq!(close(node.ep), 0);
    assert_eq!(close(node.ep), code::BADF);
    assert_eq!(enable(node.ep), code::BADF);
    // SAFETY: a closed endpoint can still be read for a while: that is what is tested.
    unsafe {
        let ops = &*(*node.ep).tagged;
        let byte = 1_u8;
        assert_eq!((ops.inject)(node.ep, (&raw const byte).cast(), 1, 0, 0), code::BADF as isize);
        let ops = &*(*node.ep).msg;
        let status = (ops.recv)(node.ep, null_mut(), 0, null_mut(), 0, null_mut());
        assert_eq!(status, code::BADF as isize);
    }
    assert_eq!(close(node.cq), 0);
    assert_eq!(node.read().err(), Some(code::BADF));
    assert_eq!(bind(other.ep, node.cq, flag::SEND), code::INVAL);
}

#[test]
fn enabling_needs_a_queue() {
    let Some(host) = host("enabling_needs_a_queue") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    assert_eq!(enable(ep), code::NOCQ);
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV | flag::SELECTIVE_COMPLETION), 0);
    assert_eq!(bind(ep, cq, flag::SEND), code::INVAL);
    assert_eq!(bind(ep, world.av, 0), 0);
    assert_eq!(enable(ep), 0);
    assert_eq!(enable(ep), code::OPBADSTATE);
    assert_eq!((close(ep), close(cq)), (0, 0));
}

/// fi_endpoint(3): "Associating an endpoint with a counter is in addition to binding the EP
/// with a CQ"; and what transfers out needs a queue "in order that operations that complete
/// in error may be reported".
#[test]
fn a_counter_does_not_stand_for_a_queue() {
    let Some(host) = host("a_counter_does_not_stand_for_a_queue") else { return };
    for caps in [flag::MSG, flag::RMA] {
        let world = World::empty(host, |hints| hints.caps = caps);
        let (ep, mut counter) = (world.open_ep(), null_mut());
        // SAFETY: the domain is open.
        unsafe {
            let open = (*(*world.domain).ops).cntr_open;
            assert_eq!(open(world.domain, null_mut(), &raw mut counter, null_mut()), 0);
        }
        let flags = flag::SEND | flag::RECV | flag::READ | flag::WRITE;
        assert_eq!((bind(ep, counter, flags), bind(ep, world.av, 0)), (0, 0));
        assert_eq!(enable(ep), code::NOCQ);
        let cq = world.open_cq(&mut cq_attr()).unwrap();
        assert_eq!(bind(ep, cq, flag::RECV), 0);
        assert_eq!(enable(ep), code::NOCQ, "nowhere to report what fails");
        let other = world.open_cq(&mut cq_attr()).unwrap();
        assert_eq!((bind(ep, other, flag::SEND), enable(ep)), (0, 0));
        assert_eq!([close(ep), close(cq), close(other), close(counter)], [0; 4]);
    }
}

#[test]
fn a_disabled_endpoint_takes_no_operations() {
    let Some(host) = host("a_disabled_endpoint_takes_no_operations") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let byte = 1_u8;
    // SAFETY: the endpoint is open, and the buffer has a byte.
    unsafe {
        let buffer = (&raw const byte).cast();
        let expected = code::OPBADSTATE as isize;
        let (msg, tagged, rma) = (&*(*ep).msg, &*(*ep).tagged, &*(*ep).rma);
        assert_eq!((msg.send)(ep, buffer, 1, null_mut(), 0, null_mut()), expected);
        assert_eq!((msg.inject)(ep, buffer, 1, 0), expected);
        assert_eq!((tagged.inject)(ep, buffer, 1, 0, 0), expected);
        assert_eq!((rma.inject)(ep, buffer, 1, 0, 0, 0), expected);
        assert_eq!(((*(*ep).ops).cancel)(ep.cast(), null_mut()), expected);
        assert_eq!(((*(*ep).ops).tx_size_left)(ep), expected);
    }
    assert_eq!(close(ep), 0);
}

/// More objects than are remembered once they are closed.
#[test]
fn many_objects_come_and_go() {
    let Some(host) = host("many_objects_come_and_go") else { return };
    let _alone = alone();
    let world = World::new(host, 0);
    for _ in 0..3000 {
        let mut attr = cq_attr();
        attr.size = 4;
        assert_eq!(close(world.open_cq(&mut attr).unwrap()), 0);
    }
}
