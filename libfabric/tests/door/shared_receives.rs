//! What is posted to a shared receive context beside plain receives. Reference: fi_endpoint(3),
//! "SHARED CONTEXTS".

use std::{ffi::c_void, ptr::null_mut, time::Instant};

use crate::{
    abi::{
        attributes::CqTaggedEntry,
        fid::FidEp,
        info::{Info, RxAttr},
    },
    buffered::buffering,
    code,
    connections::{CONNECTED, End, Place, SHUTDOWN, are_told},
    contexts::{
        SHARED, close_sharers, completion, open_shared, open_sharer, open_sharers, open_srx, share,
        sharing_world,
    },
    control::flags_of,
    flag,
    host::host,
    kind,
    tagged::{CLAIM, DISCARD, Message, NOMSG},
    triggered::{TRIGGER, add, counter, iovec, msg, nothing, when},
    vectors::Vector,
    world::{Node, PATIENCE, World, bind, close, cq_attr, enable, info},
};

const ANY: u64 = u64::MAX;

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
        // Of receives FI_REMOTE_CQ_DATA says nothing.
        recvmsg(srx, &msg(&into, ANYBODY, when), TRIGGER | flag::REMOTE_CQ_DATA) as i32
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

/// "The buffers usable by any endpoint bound to the shared receive context": by connections, here.
#[test]
fn connections_share_receives() {
    let Some(host) = host("connections_share_receives") else { return };
    let shares = |hints: &mut Info| {
        // SAFETY: hints have all attributes.
        unsafe { (*hints.ep_attr).rx_ctx_cnt = SHARED }
    };
    let place = Place::that(host, kind::MSG, shares);
    assert_eq!(place.listen(), 0);
    let srx = open_srx(place.domain, place.info);
    // SAFETY: the info is libfabric's. Who calls receives by itself.
    unsafe { (*(*place.info).ep_attr).rx_ctx_cnt = 1 };
    let pairs = [(); 3].map(|()| sharing_connection(&place, srx));
    for length in [8, 5_000, 300_000] {
        let mut rooms = [(); 3].map(|()| vec![0_u8; length]);
        // Of a connection "this field is ignored".
        for (context, (room, source)) in rooms.iter_mut().zip([u64::MAX, 0, 4711]).enumerate() {
            assert_eq!(Node { ep: srx, cq: null_mut() }.receive(room, source, context), 0);
        }
        // The earliest posted goes first, whichever connection has a message.
        for (turn, [caller, acceptor]) in pairs.iter().rev().map(|it| it.map(End::node)).enumerate()
        {
            let bytes = vec![1 + turn as u8; length];
            assert_eq!(caller.send(&bytes, 0, 9), 0);
            let entry = acceptor.outcome(&[caller]).ok().expect("a message");
            assert_eq!((entry.op_context as usize, entry.len), (turn, length));
            assert!(caller.outcome(&[acceptor]).is_ok());
            assert!(rooms[turn] == bytes, "{length} bytes");
        }
    }
    let [ended, [caller, acceptor], rest] = pairs;
    let mut rooms = [[0_u8; 8]; 2];
    assert_eq!(Node { ep: srx, cq: null_mut() }.receive(&mut rooms[0], 0, 3), 0);
    assert_eq!(ended[0].shutdown(0), 0);
    assert_eq!(ended[1].sees(SHUTDOWN), b"");
    ended.into_iter().for_each(End::close);
    // It took no receive along, and the others go on, both ways.
    assert_eq!(caller.node().receive(&mut rooms[1], 0, 4), 0);
    let nodes = [caller.node(), acceptor.node()];
    for (from, to, context) in [(0, 1, 3), (1, 0, 4)] {
        assert_eq!(nodes[from].send(&[7; 8], 0, 9), 0);
        for (node, expected) in [(to, context), (from, 9)] {
            let done = nodes[node].outcome(&nodes).ok().expect("it completes");
            assert_eq!(done.op_context as usize, expected);
        }
    }
    assert_eq!((rooms, close(srx)), ([[7; 8]; 2], code::BUSY));
    [caller, acceptor].into_iter().chain(rest).for_each(End::close);
    assert_eq!(close(srx), 0);
    place.close();
}

/// Who calls, and who accepts and takes its receives from there.
fn sharing_connection(place: &Place, srx: *mut FidEp) -> [End; 2] {
    let caller = place.caller(b"");
    let acceptor = place.acceptor(&place.request(caller));
    assert_eq!((bind(acceptor.ep, srx, 0), acceptor.accept(b"")), (0, 0));
    are_told([caller, acceptor]);
    assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    [caller, acceptor]
}

/// "Endpoints associated with a shared receive context must use a subset of the receive context's
/// attributes. Note that this is the reverse of the requirement for receive contexts for scalable
/// endpoints": what the domain was opened with is no bound, and a context without attributes can do
/// what endpoints can.
#[test]
fn a_shared_context_can_do_more_than_the_domain_was_opened_for() {
    let Some(host) = host("a_shared_context_can_do_more_than_the_domain_was_opened_for") else {
        return;
    };
    let asks = |caps: u64| {
        move |hints: &mut Info| {
            hints.caps = caps;
            share(hints, kind::RDM);
        }
    };
    let mut world = World::empty(host, asks(flag::MSG));
    let tagged = info(host, asks(flag::TAGGED | flag::SOURCE | flag::DIRECTED_RECV)).unwrap();
    // SAFETY: both lists are libfabric's; the objects are open.
    unsafe {
        let ops = &*(*world.domain).ops;
        let attrs = [((*tagged).tx_attr, (*tagged).rx_attr), (null_mut(), null_mut())];
        let first = std::mem::replace(&mut world.info, tagged);
        for (tx, rx) in attrs {
            let (mut stx, mut srx) = (null_mut(), null_mut());
            assert_eq!((ops.stx_ctx)(world.domain, tx, &raw mut stx, null_mut()), 0);
            assert_eq!((ops.srx_ctx)(world.domain, rx, &raw mut srx, null_mut()), 0);
            let nodes = open_sharers(&mut world, stx, srx);
            let (mut sent, mut room) = ([7_u8; 8], [0_u8; 8]);
            let asked = Node { ep: srx, cq: nodes[1].cq };
            assert_eq!(Message::of(&mut room, 5).receive(asked, 0), 0);
            let to = world.insert(nodes[1].ep);
            Message { to, ..Message::of(&mut sent, 5) }.send(nodes[0], 0);
            assert_eq!((world.completion(nodes[1]).len, room), (8, sent));
            close_sharers(&mut world, stx, srx);
        }
        (host.freeinfo)(first);
    }
}

/// Who shares receives posts buffers for them, also where the domain is one of endpoints that buffer.
#[test]
fn a_shared_context_takes_buffers_of_several_messages() {
    let Some(host) = host("a_shared_context_takes_buffers_of_several_messages") else { return };
    let world = World::empty(host, buffering);
    // SAFETY: the info has all attributes, and the domain is open.
    unsafe {
        let own = (*world.info).rx_attr;
        let mut attr = RxAttr { op_flags: flag::MULTI_RECV, mode: 0, ..*own };
        let (ops, mut srx) = (&*(*world.domain).ops, null_mut());
        assert_eq!((ops.srx_ctx)(world.domain, &raw mut attr, &raw mut srx, null_mut()), 0);
        assert_eq!((attr.op_flags, close(srx)), (flag::MULTI_RECV, 0));
    }
}

/// A source is "ignored" without FI_DIRECTED_RECV (fi_tagged(3)), also at a context that was opened
/// without attributes.
#[test]
fn who_asked_for_no_sources_hears_everybody() {
    let Some(host) = host("who_asked_for_no_sources_hears_everybody") else { return };
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG;
        share(hints, kind::RDM);
    });
    let (mut stx, mut srx) = (null_mut(), null_mut());
    // SAFETY: the domain is open.
    unsafe {
        let (ops, none) = (&*(*world.domain).ops, null_mut());
        assert_eq!((ops.stx_ctx)(world.domain, null_mut(), &raw mut stx, none), 0);
        assert_eq!((ops.srx_ctx)(world.domain, null_mut(), &raw mut srx, none), 0);
    }
    let mut rooms = [[0_u8; 8]; 2];
    let asked = Node { ep: srx, cq: null_mut() };
    // Before anybody is bound, and after.
    assert_eq!(asked.receive(&mut rooms[0], 0, 1), 0);
    let nodes = open_sharers(&mut world, stx, srx);
    assert_eq!(asked.receive(&mut rooms[1], 0, 2), 0);
    for context in [1, 2] {
        assert_eq!(nodes[1].send(&[7; 8], 0, 9), 0);
        assert_eq!(world.completion(nodes[0]).op_context as usize, context);
        world.completion(nodes[1]);
    }
    assert_eq!(rooms, [[7; 8]; 2]);
    close_sharers(&mut world, stx, srx);
}

/// "All connectionless endpoints associated with a shared receive context must also share the same
/// address vector": so that a source is the same for all of them.
#[test]
fn endpoints_that_share_receives_share_a_vector() {
    let Some(host) = host("endpoints_that_share_receives_share_a_vector") else { return };
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::SOURCE | flag::DIRECTED_RECV;
        share(hints, kind::RDM);
    });
    let (stx, srx) = open_shared(&world);
    open_sharers(&mut world, stx, srx);
    let other = Vector::open(&world, 0);
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    assert_eq!([bind(ep, stx, 0), bind(ep, srx, 0), bind(ep, other.av, 0)], [0; 3]);
    assert_eq!([enable(ep), close(ep), close(cq)], [code::INVAL, 0, 0]);
    // SAFETY: the info is libfabric's. Who sends shares nothing.
    unsafe { ((*(*world.info).ep_attr).tx_ctx_cnt, (*(*world.info).ep_attr).rx_ctx_cnt) = (1, 1) };
    let (one, two) = (2, 3);
    for _ in [one, two] {
        world.add_node(&mut cq_attr(), 0);
    }
    let (nodes, asked) = (world.nodes.clone(), Node { ep: srx, cq: null_mut() });
    let mut rooms = [[0_u8; 8]; 3];
    for member in [0, 1] {
        for (room, (source, context)) in rooms.iter_mut().zip([(two, 2), (one, 1), (ANY, 3)]) {
            assert_eq!(asked.receive(room, source, context), 0);
        }
        for (from, context) in [(one, 1), (one, 3), (two, 2)] {
            assert_eq!(nodes[from as usize].send(&[7; 8], member, 9), 0);
            let (entry, source) = completion(nodes[member as usize], &nodes);
            assert_eq!((entry.op_context as usize, source), (context, from));
            world.completion(nodes[from as usize]);
        }
    }
    // Nobody is called that.
    assert_eq!(asked.receive(&mut rooms[0], 77, 0), code::INVAL as isize);
    // When they are closed, others may have another one.
    for node in world.nodes.drain(..) {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    // SAFETY: as above.
    unsafe {
        ((*(*world.info).ep_attr).tx_ctx_cnt, (*(*world.info).ep_attr).rx_ctx_cnt) =
            (SHARED, SHARED);
    }
    let next = open_sharer(&world, &[other.av.cast(), stx.cast(), srx]);
    world.nodes.push(next);
    close_sharers(&mut world, stx, srx);
}

/// "Flags that control the operation of operations submitted against the context": its own, and not
/// those of what its domain was opened with.
#[test]
fn a_shared_context_inherits_no_flags() {
    let Some(host) = host("a_shared_context_inherits_no_flags") else { return };
    let mut world = World::empty(host, |hints| {
        share(hints, kind::RDM);
        hints.caps = flag::MSG | flag::MULTI_RECV;
        // SAFETY: hints have all attributes.
        unsafe { (*hints.rx_attr).op_flags = flag::MULTI_RECV };
    });
    // SAFETY: the info has all attributes.
    unsafe { (*(*world.info).rx_attr).op_flags = 0 };
    let (stx, srx) = open_shared(&world);
    let nodes = open_sharers(&mut world, stx, srx);
    let (asked, mut rooms) = (Node { ep: srx, cq: null_mut() }, [[0_u8; 1 << 10]; 2]);
    for (context, room) in rooms.iter_mut().enumerate() {
        assert_eq!(asked.receive(room, ANY, context), 0);
    }
    for context in [0, 1] {
        assert_eq!(nodes[0].send(&[7; 8], 1, 9), 0);
        let (entry, _) = completion(nodes[1], &nodes);
        assert_eq!((entry.op_context as usize, entry.flags & flag::MULTI_RECV), (context, 0));
        world.completion(nodes[0]);
    }
    close_sharers(&mut world, stx, srx);
}
