//! Messages of both families, as an application sends them.

use std::{
    ffi::{CStr, c_void},
    ptr::null_mut,
};

use crate::{
    abi::{attributes::Iovec, message::MsgTagged},
    code, flag,
    host::host,
    one_sided::register_as,
    world::{World, auth_key, close, cq_attr},
};

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + length) as u8).collect()
}

#[test]
fn tagged_messages_of_all_sizes_arrive() {
    let Some(host) = host("tagged_messages_of_all_sizes_arrive") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    for (tag, length) in [0, 1, 8, 64, 1000, 10_000, 1_000_000].into_iter().enumerate() {
        let (sent, mut received) = (bytes(length), vec![0_u8; length]);
        let tag = tag as u64;
        // SAFETY: both buffers live until their completions have come.
        unsafe {
            let place = received.as_mut_ptr().cast::<c_void>();
            let context = &raw const received as *mut c_void;
            let ops = &*(*to.ep).tagged;
            assert_eq!((ops.recv)(to.ep, place, length, null_mut(), 0, tag, 0, context), 0);
            let ops = &*(*from.ep).tagged;
            let start = sent.as_ptr().cast();
            let none = null_mut();
            assert_eq!((ops.senddata)(from.ep, start, length, none, 99, 1, tag, none), 0);
            let done = world.completion(to);
            assert_eq!((done.op_context, done.len, done.tag), (context, length, tag));
            assert_eq!((done.data, done.buf), (99, place));
            assert_eq!(done.flags, flag::TAGGED | flag::RECV | flag::REMOTE_CQ_DATA);
        }
        assert_eq!(world.completion(from).flags, flag::TAGGED | flag::SEND);
        assert!(received == sent, "{length} bytes");
    }
}

#[test]
fn lists_are_gathered_and_scattered() {
    let Some(host) = host("lists_are_gathered_and_scattered") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut received) = (bytes(300), vec![0_u8; 300]);
    let parts = |bytes: &mut [u8], at: usize| {
        let (left, right) = bytes.split_at_mut(at);
        [left, right].map(|part| Iovec { base: part.as_mut_ptr().cast(), len: part.len() })
    };
    let (gathered, scattered) = (parts(&mut sent, 17), parts(&mut received, 250));
    let message = |iov: &[Iovec; 2], addr| MsgTagged {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr,
        tag: 5,
        ignore: 0,
        context: null_mut(),
        data: 0,
    };
    // SAFETY: buffers and lists live until the completions have come.
    unsafe {
        let msg = message(&scattered, u64::MAX);
        assert_eq!(((*(*to.ep).tagged).recvmsg)(to.ep, &raw const msg, 0), 0);
        let msg = message(&gathered, 1);
        assert_eq!(((*(*from.ep).tagged).sendmsg)(from.ep, &raw const msg, 0), 0);
    }
    assert_eq!(world.completion(to).len, 300);
    world.completion(from);
    assert!(received == sent);
}

#[test]
fn selective_queues_tell_what_is_asked_for() {
    let Some(host) = host("selective_queues_tell_what_is_asked_for") else { return };
    let mut world = World::empty(host, |_| {});
    let node = world.add_node(&mut cq_attr(), flag::SELECTIVE_COMPLETION);
    let mut word = 5_u64;
    // SAFETY: the word lives until all is over; each is alone in using it.
    unsafe {
        let ops = &*(*node.ep).msg;
        let place = (&raw mut word).cast::<c_void>();
        assert_eq!((ops.inject)(node.ep, place, 8, 0), 0);
        assert_eq!((ops.recv)(node.ep, place, 8, null_mut(), 0, null_mut()), 0);
        for _ in 0..1000 {
            assert_eq!(node.read().err(), Some(code::AGAIN));
        }
    }
    assert_eq!(word, 5);
}

/// "Operations that fail asynchronously will still generate completions, even if a completion is not
/// requested" (fi_endpoint(3)).
#[test]
fn selective_queues_tell_of_errors_unasked() {
    let Some(host) = host("selective_queues_tell_of_errors_unasked") else { return };
    let mut world = World::empty(host, |_| {});
    let node = world.add_node(&mut cq_attr(), flag::SELECTIVE_COMPLETION);
    let nobody = world.insert_nobody();
    let (sent, mut room) = ([3_u8; 40], [0_u8; 8]);
    let failed = || {
        let error = node.outcome(&[]).err().expect("nobody asked for an entry");
        (error.op_context as usize, error.err)
    };
    assert_eq!((node.receive(&mut room, u64::MAX, 1), node.send(&sent, 0, 2)), (0, 0));
    assert_eq!(failed(), (1, -code::TRUNC));
    assert_eq!(node.send(&sent, nobody, 3), 0);
    assert_eq!(failed().0, 3);
    assert_eq!((node.receive(&mut room, u64::MAX, 4), node.cancel(4)), (0, 0));
    assert_eq!(failed(), (4, -code::CANCELED));
    assert_eq!(node.read().err(), Some(code::AGAIN));
}

#[test]
fn what_does_not_fit_is_an_error_entry() {
    let Some(host) = host("what_does_not_fit_is_an_error_entry") else { return };
    let world = World::new(host, 1);
    let node = world.nodes[0];
    let (sent, mut room) = ([3_u8; 40], [0_u8; 8]);
    assert_eq!(node.read_error().err(), Some(code::AGAIN));
    // SAFETY: the buffers live until all is over.
    unsafe {
        let ops = &*(*node.ep).msg;
        let place = room.as_mut_ptr().cast::<c_void>();
        assert_eq!((ops.recv)(node.ep, place, 8, null_mut(), 0, place), 0);
        assert_eq!((ops.inject)(node.ep, sent.as_ptr().cast(), 40, 0), 0);
        let start = std::time::Instant::now();
        let status = loop {
            match node.read() {
                Err(code::AGAIN) => assert!(start.elapsed() < crate::world::PATIENCE),
                other => break other.err(),
            }
        };
        assert_eq!(status, Some(code::AVAIL));
        let error = node.read_error().unwrap();
        const TRUNC: i32 = 265;
        assert_eq!((error.err, error.olen, error.op_context), (TRUNC, 32, place));
        let mut text = [0; 80];
        let strerror = (*(*node.cq).ops).strerror;
        let none = std::ptr::null();
        let told = strerror(node.cq, error.prov_errno, none, text.as_mut_ptr(), text.len());
        let told = CStr::from_ptr(told).to_owned();
        let general = strerror(node.cq, 0xfff << 16 | TRUNC, none, text.as_mut_ptr(), text.len());
        assert!(!told.is_empty() && *told != *CStr::from_ptr(general), "{told:?}");
        assert!(!CStr::from_ptr(strerror(node.cq, 0, none, null_mut(), 0)).is_empty());
    }
}

#[test]
fn a_canceled_receive_says_so() {
    let Some(host) = host("a_canceled_receive_says_so") else { return };
    let world = World::new(host, 1);
    let node = world.nodes[0];
    let mut room = [0_u8; 8];
    // SAFETY: the buffer lives until all is over.
    unsafe {
        let place = room.as_mut_ptr().cast::<c_void>();
        let ops = &*(*node.ep).tagged;
        assert_eq!((ops.recv)(node.ep, place, 8, null_mut(), u64::MAX, 1, 0, place), 0);
        let cancel = (*(*node.ep).ops).cancel;
        assert_eq!(cancel(node.ep.cast(), place), 0);
        assert_eq!(node.read().err(), Some(code::AVAIL));
        let error = node.read_error().unwrap();
        const CANCELED: i32 = 125;
        assert_eq!((error.err, error.op_context), (CANCELED, place));
        assert_eq!(error.flags, flag::TAGGED | flag::RECV);
    }
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
#[test]
fn a_domains_key_is_that_of_its_endpoints() {
    let Some(host) = host("a_domains_key_is_that_of_its_endpoints") else { return };
    keys_part(|key| {
        let mut world = World::empty(host, |hints| {
            // SAFETY: hints have all attributes.
            let attr = unsafe { &mut *hints.domain_attr };
            (attr.auth_key, attr.auth_key_size) = auth_key(key);
        });
        world.add_node(&mut cq_attr(), 0);
        world
    });
}

/// "The domain authorization key will be used if auth_key_size is set to 0"; otherwise it is the
/// endpoint's own that counts.
#[test]
fn an_endpoint_has_a_key_of_its_own() {
    let Some(host) = host("an_endpoint_has_a_key_of_its_own") else { return };
    keys_part(|key| {
        let mut world = World::empty(host, |hints| {
            // SAFETY: hints have all attributes.
            let (domain, ep) = unsafe { (&mut *hints.domain_attr, &mut *hints.ep_attr) };
            (domain.auth_key, domain.auth_key_size) = auth_key(b"everybody's");
            (ep.auth_key, ep.auth_key_size) = auth_key(key);
        });
        world.add_node(&mut cq_attr(), 0);
        world
    });
}

/// Endpoints that were opened with one key talk; with different ones they refuse each other.
fn keys_part(open: impl Fn(&[u8]) -> World) {
    const CONNREFUSED: i32 = 111;
    let ours = open(b"job 17");
    let node = ours.nodes[0];
    for (key, refused) in [(b"job 17", false), (b"job 18", true)] {
        let theirs = open(key);
        let (peer, to) = (theirs.nodes[0], ours.insert(theirs.nodes[0].ep));
        let mut room = [0_u8; 8];
        // SAFETY: the buffers live until all is over.
        unsafe {
            let place = room.as_mut_ptr().cast::<c_void>();
            let ops = &*(*peer.ep).msg;
            assert_eq!((ops.recv)(peer.ep, place, 8, null_mut(), u64::MAX, place), 0);
            let ops = &*(*node.ep).msg;
            // It waits for a connection, and mostly knows by then.
            match (ops.inject)(node.ep, [7_u8; 8].as_ptr().cast(), 8, to) {
                0 => {}
                failed => {
                    assert_eq!((failed as i32, refused), (-CONNREFUSED, true));
                    assert_eq!(peer.read().err(), Some(code::AGAIN));
                    continue;
                }
            }
        }
        let start = std::time::Instant::now();
        let (failed, arrived) = loop {
            match (node.read().err(), peer.read()) {
                (Some(code::AGAIN), Err(code::AGAIN)) => {
                    assert!(start.elapsed() < crate::world::PATIENCE, "refused: {refused}");
                }
                (failed, arrived) => break (failed == Some(code::AVAIL), arrived.is_ok()),
            }
        };
        assert_eq!((failed, arrived), (refused, !refused));
        if refused {
            assert_eq!(node.read_error().unwrap().err, CONNREFUSED);
        }
    }
}

/// "desc: Descriptor associated with the data buffer" (fi_msg(3)): ours is fi_mr_desc's. No call needs one,
/// and what is none of a region's is not followed. Over queue pairs the later ones of these are read by
/// the device without a registration of their own.
#[test]
fn messages_take_the_descriptors_of_their_buffers() {
    let Some(host) = host("messages_take_the_descriptors_of_their_buffers") else { return };
    let _alone = crate::life_cycle::alone();
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let length = 100_000;
    let (mut sent, mut received) = (vec![0_u64; length / 8], vec![0_u64; length / 8]);
    let access = flag::SEND | flag::RECV | flag::REMOTE_READ;
    let regions = [(&mut sent, 5), (&mut received, 6)]
        .map(|(memory, key)| register_as(&world, memory, access, key, 0));
    // SAFETY: regions are open.
    let own = regions.map(|region| unsafe { (*region).mem_desc });
    assert!(own.iter().all(|desc| !desc.is_null()) && own[0] != own[1]);
    let bad = [null_mut(), std::ptr::without_provenance_mut(99)];
    let descriptors = [own, own, own, [own[1], own[0]], bad, [own[0], bad[1]], own];
    for (nth, [mut source, mut place]) in descriptors.into_iter().enumerate() {
        let tag = nth as u64;
        sent.fill(tag + 1);
        let message = |iov: &Iovec, desc, addr| MsgTagged {
            msg_iov: iov,
            desc,
            iov_count: 1,
            addr,
            tag,
            ignore: 0,
            context: null_mut(),
            data: 0,
        };
        let (bytes, into) = (sent.as_mut_ptr(), received.as_mut_ptr());
        let [from_there, to_here] =
            [bytes, into].map(|memory| Iovec { base: memory.cast(), len: length });
        // SAFETY: the buffers live until the completions have come.
        unsafe {
            let (ops, none) = (&*(*to.ep).tagged, null_mut::<c_void>());
            match nth % 2 {
                0 => {
                    let posted = (ops.recv)(to.ep, into.cast(), length, place, 0, tag, 0, none);
                    assert_eq!(posted, 0);
                    let bytes = bytes.cast();
                    assert_eq!((ops.send)(from.ep, bytes, length, source, 1, tag, none), 0);
                }
                _ => {
                    let receive = message(&to_here, &raw mut place, 0);
                    assert_eq!((ops.recvmsg)(to.ep, &raw const receive, 0), 0);
                    let send = message(&from_there, &raw mut source, 1);
                    assert_eq!((ops.sendmsg)(from.ep, &raw const send, 1 << 24), 0);
                }
            }
            world.completion(to);
            world.completion(from);
        }
        assert!(received == sent, "message {nth}");
    }
    for region in regions {
        assert_eq!(close(region), 0);
    }
}
