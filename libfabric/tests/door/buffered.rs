//! Messages that the provider buffers and announces: FI_BUFFERED_RECV and FI_VARIABLE_MSG, for
//! applications of version 1 of the interface. Reference: fi_msg(3), fi_tagged(3).

use std::{
    ffi::c_void,
    ptr::{null_mut, without_provenance_mut},
};

use crate::{
    abi::{
        attributes::{CqTaggedEntry, Iovec},
        fid::FidEp,
        info::Info,
        message::{Msg, MsgTagged},
    },
    code, flag,
    host::{Host, host},
    tagged::{CLAIM, DISCARD, MORE},
    world::{Node, World, cq_attr, info},
};

const BUFFERED_RECV: u64 = 1 << 51;
const VARIABLE_MSG: u64 = 1 << 48;
const BUFFERED_MIN: i32 = 2;
pub const BUFFERED_LIMIT: i32 = 3;
const NONE: *mut c_void = null_mut();
const ANYBODY: u64 = u64::MAX;

/// `struct fi_recv_context`.
#[repr(C)]
struct RecvContext {
    ep: *mut FidEp,
    context: *mut c_void,
}

/// Two endpoints that buffer, because the hints say so.
pub fn world(host: &'static Host, change: impl FnOnce(&mut Info)) -> World {
    let mut world = World::empty(host, change);
    for _ in 0..2 {
        world.add_node(&mut cq_attr(), 0);
    }
    world
}

pub fn buffering(info: &mut Info) {
    info.mode |= BUFFERED_RECV;
}

fn variable(info: &mut Info) {
    info.caps = flag::MSG | flag::TAGGED | VARIABLE_MSG;
}

/// A byte of every message, by its place.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + length) as u8).collect()
}

pub fn starts_with(announced: &CqTaggedEntry, expected: &[u8]) {
    // SAFETY: so much is there until the message is taken.
    let found = unsafe { std::slice::from_raw_parts(announced.buf.cast::<u8>(), expected.len()) };
    assert_eq!(found, expected);
}

/// `fi_recvmsg` or `fi_trecvmsg` into `room`, for what was announced.
pub fn take(node: Node, announced: &CqTaggedEntry, room: &mut [u8], flags: u64) -> isize {
    let iov = Iovec { base: room.as_mut_ptr().cast(), len: room.len() };
    let (msg_iov, desc, iov_count, addr) = (&raw const iov, null_mut(), 1, ANYBODY);
    let context = announced.op_context;
    // SAFETY: the endpoint is open, and callers keep the room.
    unsafe {
        if announced.flags & flag::TAGGED == 0 {
            let msg = Msg { msg_iov, desc, iov_count, addr, context, data: 0 };
            return ((*(*node.ep).msg).recvmsg)(node.ep, &raw const msg, flags);
        }
        let (tag, ignore, data) = (announced.tag, 0, 0);
        let msg = MsgTagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data };
        ((*(*node.ep).tagged).recvmsg)(node.ep, &raw const msg, flags)
    }
}

pub fn send(node: Node, bytes: &[u8], tag: Option<u64>) {
    let (place, length) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the endpoint is open, and callers keep the bytes.
    let status = unsafe {
        match tag {
            None => ((*(*node.ep).msg).send)(node.ep, place, length, NONE, 1, NONE),
            Some(tag) => ((*(*node.ep).tagged).send)(node.ep, place, length, NONE, 1, tag, NONE),
        }
    };
    assert_eq!(status, 0);
}

/// Posts a tag, the lowest bit of which does not count, by one of the calls that there are, and with
/// buffers that nobody may look at: none where there should be some, and what is no memory.
fn post_tag(node: Node, call: usize, tag: u64, context: *mut c_void) {
    let nowhere = std::ptr::dangling::<Iovec>();
    let lists = [(null_mut(), 1), (nowhere.cast_mut(), 1), (nowhere.cast_mut(), 1 << 40)];
    let (msg_iov, iov_count) = lists[call / 3 % 3];
    let (msg_iov, desc, addr, ignore, data) = (msg_iov.cast_const(), null_mut(), ANYBODY, 1, 0);
    let msg = MsgTagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data };
    // SAFETY: the endpoint is open.
    let status = unsafe {
        let ops = &*(*node.ep).tagged;
        match call % 3 {
            0 => (ops.recv)(node.ep, null_mut(), 1 << 40, NONE, addr, tag, 1, context),
            1 => (ops.recvv)(node.ep, msg_iov, desc, iov_count, addr, tag, 1, context),
            _ => (ops.recvmsg)(node.ep, &raw const msg, 0),
        }
    };
    assert_eq!(status, 0, "call {call}");
}

fn messages_are_announced(host: &'static Host, change: fn(&mut Info)) {
    const LENGTHS: [usize; 5] = [0, 8, 400, 16 << 10, 200_000];
    let world = world(host, change);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let contexts = [0_u64; 2];
    let [posted, ours] = contexts.each_ref().map(|context| (&raw const *context) as *mut c_void);
    let mut calls = 0;
    for (length, tag) in LENGTHS.iter().flat_map(|&length| [(length, None), (length, Some(9))]) {
        let bytes = bytes(length);
        for claims in [true, false] {
            if let Some(tag) = tag {
                // "Parameters related to the input buffers are ignored (e.g. buf, len, iov, desc)."
                post_tag(to, calls, tag | 1, posted);
                calls += 1;
            }
            send(from, &bytes, tag);
            let announced = world.completion(to);
            let is_long = length > 16 << 10;
            let family = if tag.is_some() { flag::TAGGED } else { flag::MSG };
            let more = if is_long { MORE } else { 0 };
            assert_eq!(announced.flags, family | flag::RECV | more);
            assert_eq!((announced.len, announced.tag), (length, tag.unwrap_or(0)));
            starts_with(&announced, &bytes[..if is_long { 64 } else { length }]);
            // SAFETY: the context of an announcement is such a struct until the message is taken.
            let context = unsafe { &mut *announced.op_context.cast::<RecvContext>() };
            let expected = if tag.is_some() { (null_mut(), posted) } else { (to.ep, NONE) };
            assert_eq!((context.ep, context.context), expected);
            if claims {
                context.context = ours;
                let mut room = vec![0; length];
                assert_eq!(take(to, &announced, &mut room, CLAIM), 0);
                let claimed = world.completion(to);
                assert_eq!(claimed.flags, family | flag::RECV | CLAIM);
                assert_eq!((claimed.op_context, claimed.len), (ours, length));
                assert!(room == bytes, "{length} bytes");
            } else {
                assert_eq!(take(to, &announced, &mut [], DISCARD), 0);
            }
            world.completion(from);
            let again = take(to, &announced, &mut [], DISCARD);
            assert_eq!(again, code::INVAL as isize, "it is gone");
            assert_eq!(to.read().err(), Some(code::AGAIN), "a discard completes silently");
        }
    }
}

#[test]
fn buffered_messages_are_announced_claimed_and_discarded() {
    let Some(host) = host("buffered_messages_are_announced_claimed_and_discarded") else { return };
    messages_are_announced(host, buffering);
}

#[test]
fn variable_messages_are_announced_claimed_and_discarded() {
    let Some(host) = host("variable_messages_are_announced_claimed_and_discarded") else { return };
    messages_are_announced(host, variable);
}

/// "When the claim operation completes, a standard receive completion entry will be generated": it is
/// an error's where the room is too small, as a receive's would be.
#[test]
fn what_does_not_fit_a_claim_is_an_error() {
    let Some(host) = host("what_does_not_fit_a_claim_is_an_error") else { return };
    let world = world(host, buffering);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let ours = (&raw const world) as *mut c_void;
    for (length, tag) in
        [300, 9_000, 200_000].into_iter().flat_map(|it| [(it, None), (it, Some(9))])
    {
        let bytes = bytes(length);
        for room in [0, 50, length - 1, length] {
            if let Some(tag) = tag {
                post_tag(to, 0, tag, NONE);
            }
            send(from, &bytes, tag);
            let announced = world.completion(to);
            // SAFETY: the context of an announcement is such a struct until the message is taken.
            unsafe { (*announced.op_context.cast::<RecvContext>()).context = ours };
            let mut place = vec![0; room];
            assert_eq!(take(to, &announced, &mut place, CLAIM), 0);
            match to.outcome(&world.nodes) {
                Ok(claimed) => {
                    assert_eq!((claimed.op_context, claimed.len, room), (ours, length, length));
                }
                Err(cut) => {
                    assert_eq!((cut.err, cut.op_context), (-code::TRUNC, ours));
                    assert_eq!((cut.len, cut.olen, room < length), (room, length - room, true));
                }
            }
            assert!(place == bytes[..room], "{room} of {length} bytes");
            world.completion(from);
            assert_eq!(take(to, &announced, &mut [], CLAIM), code::INVAL as isize, "it is gone");
        }
    }
}

/// "The handling of buffered receives follows all message ordering restrictions assigned to an
/// endpoint": also where a short message is here before a long one that was sent first.
#[test]
fn announcements_keep_the_order_of_messages() {
    let Some(host) = host("announcements_keep_the_order_of_messages") else { return };
    const LENGTHS: [usize; 7] = [8, 200_000, 0, 300, 16 << 10, 70_000, 9_000];
    let world = world(host, buffering);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    for tag in [None, Some(9)] {
        let sent: Vec<Vec<u8>> = (0..42).map(|nth| bytes(LENGTHS[nth % 7])).collect();
        // Tags are matched in the order of their posting, so that they are told in it, too.
        for nth in (0..sent.len()).filter(|_| tag.is_some()) {
            post_tag(to, nth, 9, without_provenance_mut(nth));
        }
        sent.iter().for_each(|bytes| send(from, bytes, tag));
        let mut kept = Vec::new();
        for (nth, bytes) in sent.iter().enumerate() {
            let announced = world.completion(to);
            assert_eq!(announced.len, bytes.len(), "message {nth}");
            // SAFETY: the context of an announcement is such a struct until the message is taken.
            let context = unsafe { (*announced.op_context.cast::<RecvContext>()).context };
            assert_eq!(context as usize, if tag.is_some() { nth } else { 0 });
            match nth % 2 {
                0 => assert_eq!(take(to, &announced, &mut [], DISCARD), 0),
                _ => kept.push((announced, bytes)),
            }
        }
        // Claims come in any order.
        for (announced, bytes) in kept.into_iter().rev() {
            let mut room = vec![0; bytes.len()];
            assert_eq!(take(to, &announced, &mut room, CLAIM), 0);
            assert_eq!(world.completion(to).len, bytes.len());
            assert!(room == *bytes);
        }
        for _ in &sent {
            world.completion(from);
        }
    }
}

#[test]
fn nobody_buffers_who_did_not_ask() {
    let Some(host) = host("nobody_buffers_who_did_not_ask") else { return };
    let told = |change: fn(&mut Info)| {
        let found = info(host, change).unwrap();
        // SAFETY: libfabric's own info, with all attributes.
        unsafe {
            let told = ((*found).mode, (*(*found).rx_attr).mode, (*found).caps & VARIABLE_MSG);
            (host.freeinfo)(found);
            told
        }
    };
    assert_eq!(told(buffering), (BUFFERED_RECV, BUFFERED_RECV, 0));
    assert_eq!(told(variable), (0, 0, VARIABLE_MSG));
    assert_eq!(told(|_| {}), (0, 0, 0));
    assert_eq!(told(|info| info.mode = u64::MAX), (0, 0, 0));
    let shared = |info: &mut Info| {
        buffering(info);
        // SAFETY: hints have all attributes.
        unsafe { (*info.ep_attr).rx_ctx_cnt = usize::MAX };
    };
    assert_eq!(info(host, shared).err(), Some(code::NODATA));
}

#[test]
fn untagged_receives_are_not_posted() {
    let Some(host) = host("untagged_receives_are_not_posted") else { return };
    let world = world(host, buffering);
    let (to, mut room) = (world.nodes[1], [0_u8; 8]);
    // SAFETY: the endpoint is open, and the room outlives the call.
    unsafe {
        let (ops, place) = (&*(*to.ep).msg, room.as_mut_ptr().cast());
        let status = (ops.recv)(to.ep, place, 8, NONE, ANYBODY, NONE);
        assert_eq!(status, code::INVAL as isize);
    }
}

pub fn set(ep: *mut FidEp, name: i32, mut value: usize) -> i32 {
    let place = (&raw mut value).cast();
    // SAFETY: the endpoint is open, the value a `size_t`.
    unsafe { ((*(*ep).ops).setopt)(ep.cast(), 0, name, place, 8) }
}

pub fn get(ep: *mut FidEp, name: i32) -> Result<usize, i32> {
    let (mut value, mut length) = (0_usize, 8);
    let place = (&raw mut value).cast();
    // SAFETY: as above.
    let status = unsafe { ((*(*ep).ops).getopt)(ep.cast(), 0, name, place, &raw mut length) };
    if status == 0 { Ok(value) } else { Err(status) }
}

#[test]
fn how_much_is_buffered_is_an_option() {
    let Some(host) = host("how_much_is_buffered_is_an_option") else { return };
    let world = world(host, buffering);
    let ep = world.open_ep();
    assert_eq!((get(ep, BUFFERED_LIMIT), get(ep, BUFFERED_MIN)), (Ok(16 << 10), Ok(64)));
    assert_eq!(set(ep, BUFFERED_LIMIT, usize::MAX), 0);
    let most = get(ep, BUFFERED_LIMIT).unwrap();
    assert_eq!(set(ep, BUFFERED_LIMIT, most + 1), code::MSGSIZE);
    assert_eq!((set(ep, BUFFERED_MIN, 900), set(ep, BUFFERED_LIMIT, 500)), (0, 0));
    assert_eq!((get(ep, BUFFERED_LIMIT), get(ep, BUFFERED_MIN)), (Ok(500), Ok(500)));
    assert_eq!(set(ep, BUFFERED_MIN, 501), code::INVAL);
    assert_eq!(crate::world::close(ep), 0);
    let enabled = world.nodes[0].ep;
    assert_eq!(set(enabled, BUFFERED_LIMIT, 1000), code::OPBADSTATE);
    let plain = World::new(host, 1);
    assert_eq!(get(plain.nodes[0].ep, BUFFERED_LIMIT), Ok(16 << 10), "the provider's default");
    assert_eq!(get(plain.nodes[0].ep, BUFFERED_MIN), Err(code::NOPROTOOPT));
    assert_eq!(set(plain.nodes[0].ep, BUFFERED_LIMIT, 1000), code::NOPROTOOPT);
}
