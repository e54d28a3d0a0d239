//! What is posted to a shared receive context beside plain receives. Reference: fi_endpoint(3),
//! "SHARED CONTEXTS".

use std::{ffi::c_void, time::Instant};

use crate::{
    abi::{attributes::CqTaggedEntry, fid::FidEp},
    code,
    contexts::{close_sharers, open_shared, open_sharers, share, sharing_world},
    control::flags_of,
    flag,
    host::host,
    kind,
    tagged::{CLAIM, DISCARD, Message, NOMSG},
    triggered::{TRIGGER, add, counter, iovec, msg, nothing, when},
    world::{Node, PATIENCE, World, close},
};

/// Posts the peek until its message is there: the second endpoint tells of that, and the first
/// one of misses.
fn find([first, second]: [Node; 2], peek: &Message, flags: u64) -> CqTaggedEntry {
    let start = Instant::now();
    loop {
        assert_eq!(peek.receive(first, flag::PEEK | flags), 0);
        match second.read() {
            Ok(entry) => return entry,
            Err(status) => assert_eq!(status, code::AGAIN),
        }
        assert_eq!(missed(first), NOMSG);
        assert!(start.elapsed() < PATIENCE, "no message came");
    }
}

/// The error that waits in a queue.
fn missed(node: Node) -> i32 {
    assert_eq!(node.read().err(), Some(code::AVAIL));
    node.read_error().unwrap().err
}

#[test]
fn a_peek_looks_at_every_endpoint() {
    let Some(host) = host("a_peek_looks_at_every_endpoint") else { return };
    let mut world = sharing_world(host, kind::RDM);
    let (stx, srx) = open_shared(&world);
    let nodes = open_sharers(&mut world, stx, srx);
    // What is asked of the context is answered in the queues of its endpoints.
    let asked = nodes.map(|Node { cq, .. }| Node { cq, ep: srx });
    let send = |bytes: &[u8]| {
        // SAFETY: the endpoint is open, and the bytes are read during the call.
        unsafe {
            let (from, inject) = (nodes[0].ep, (*(*nodes[0].ep).tagged).inject);
            assert_eq!(inject(from, bytes.as_ptr().cast(), bytes.len(), 1, 5), 0);
        }
    };
    let mut into = [0_u8; 8];
    let (one, other) = (0x10 as *mut _, 0x20 as *mut _);
    let peek = Message { context: one, ..Message::of(&mut [], 5) };
    let receive = Message { context: one, ..Message::of(&mut into, 5) };
    send(b"a peeker");
    for flags in [0, 0, CLAIM] {
        let told = find(asked, &peek, flags);
        assert_eq!((told.op_context, told.len, told.tag), (one, 8, 5));
        assert_eq!(told.flags, flag::TAGGED | flag::RECV);
    }
    assert_eq!((peek.receive(asked[0], flag::PEEK), missed(nodes[0])), (0, NOMSG));
    let stranger = Message { context: other, ..Message::of(&mut [], 5) };
    assert_eq!(stranger.receive(asked[0], CLAIM), code::INVAL as isize);
    assert_eq!(receive.receive(asked[0], CLAIM), 0);
    let entry = world.completion(nodes[1]);
    assert_eq!((entry.op_context, entry.len, &into), (one, 8, b"a peeker"));
    assert_eq!(receive.receive(asked[0], CLAIM), code::INVAL as isize, "once");
    for claims in [true, false] {
        send(b"unwanted");
        if claims {
            find(asked, &peek, CLAIM);
            assert_eq!(peek.receive(asked[0], CLAIM | DISCARD), 0);
            assert_eq!(world.completion(nodes[1]).op_context, one);
        } else {
            assert_eq!(find(asked, &peek, DISCARD).len, 8);
        }
        assert_eq!((peek.receive(asked[0], flag::PEEK), missed(nodes[0])), (0, NOMSG));
    }
    assert_eq!(peek.receive(asked[0], DISCARD), code::BADFLAGS as isize);
    close_sharers(&mut world, stx, srx);
}

/// Triggered receives are for contexts of those who ask for them, as endpoints' are.
#[test]
fn a_receive_waits_for_its_threshold() {
    let Some(host) = host("a_receive_waits_for_its_threshold") else { return };
    const ANYBODY: u64 = u64::MAX;
    const CANCELED: i32 = 125;
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | TRIGGER;
        share(hints, kind::RDM);
    });
    let (stx, srx) = open_shared(&world);
    let nodes = open_sharers(&mut world, stx, srx);
    let cntr = counter(&world);
    let mut received = [0_u64];
    let into = iovec(&mut received);
    let mut contexts = [1, 2].map(|threshold| when(cntr, threshold));
    let [first, second] = contexts.each_mut().map(|when| (&raw mut **when).cast::<c_void>());
    // SAFETY: the context is open; the buffer and what says when live until the completions.
    let post = |srx: *mut FidEp, when: *mut c_void| unsafe {
        let recvmsg = (*(*srx).msg).recvmsg;
        recvmsg(srx, &msg(&into, ANYBODY, when), TRIGGER) as i32
    };
    assert_eq!((post(srx, first), post(srx, second)), (0, 0));
    // SAFETY: the endpoint is open, and the word is read during the call.
    unsafe {
        let (word, inject) = (4711_u64, (*(*nodes[0].ep).msg).inject);
        assert_eq!(inject(nodes[0].ep, (&raw const word).cast(), 8, 1), 0);
    }
    nothing(&world);
    assert_eq!(close(cntr), code::BUSY);
    add(cntr, 1);
    assert_eq!(world.completion(nodes[1]).op_context, first);
    assert_eq!(received, [4711]);
    // SAFETY: the context is open.
    unsafe {
        let cancel = (*(*srx).ops).cancel;
        assert_eq!(cancel(srx.cast(), second), 0);
        assert_eq!(cancel(srx.cast(), second), code::NOENT as isize);
    }
    assert_eq!((missed(nodes[0]), close(cntr)), (CANCELED, 0));
    close_sharers(&mut world, stx, srx);
    let world = sharing_world(host, kind::RDM);
    let (stx, srx) = open_shared(&world);
    let cntr = counter(&world);
    let mut untold = when(cntr, 1);
    assert_eq!(post(srx, (&raw mut *untold).cast()), code::OPNOTSUPP);
    assert_eq!((close(cntr), close(stx), close(srx)), (0, 0, 0));
}

/// "Operations posted without a valid context parameter … cannot be canceled", nor asked for more
/// flags than a receive has.
#[test]
fn what_has_no_context_stays_posted() {
    let Some(host) = host("what_has_no_context_stays_posted") else { return };
    let mut world = sharing_world(host, kind::RDM);
    let (stx, srx) = open_shared(&world);
    let nodes = open_sharers(&mut world, stx, srx);
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: all of it is open; there is no buffer.
    unsafe {
        assert_eq!(((*(*srx).msg).recv)(srx, none, 0, none, u64::MAX, none), 0);
        assert_eq!(((*(*srx).ops).cancel)(srx.cast(), none) as i32, code::NOENT);
        assert_eq!(((*(*nodes[0].ep).msg).inject)(nodes[0].ep, none, 0, 1), 0);
    }
    assert!(world.completion(nodes[1]).op_context.is_null(), "it was received");
    let flags = [flag::RECV, flag::RECV | 1 << 24].map(|asked| flags_of(srx, asked));
    assert_eq!(flags, [0, 0]);
    close_sharers(&mut world, stx, srx);
}
