//! Tagged messages: every call of fi_tagged(3), and every flag of its `…msg` calls.

use std::{ffi::c_void, ptr::null_mut, time::Instant};

use crate::{
    abi::{
        attributes::{CqTaggedEntry, Iovec},
        message::MsgTagged,
    },
    code,
    contexts::{MIN_MULTI_RECV, completion},
    flag,
    host::host,
    world::{Node, PATIENCE, World, cq_attr},
};

const NONE: *mut c_void = null_mut();
const ANYBODY: u64 = u64::MAX;
pub const NOMSG: i32 = 42;

pub const MORE: u64 = 1 << 18;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const MATCH_COMPLETE: u64 = 1 << 31;
pub const DISCARD: u64 = 1 << 58;
pub const CLAIM: u64 = 1 << 59;

/// A `struct fi_msg_tagged` of one buffer.
pub struct Message {
    pub iov: Iovec,
    pub to: u64,
    pub tag: u64,
    pub ignore: u64,
    pub data: u64,
    pub context: *mut c_void,
}

impl Message {
    pub fn of(bytes: &mut [u8], tag: u64) -> Message {
        let iov = Iovec { base: bytes.as_mut_ptr().cast(), len: bytes.len() };
        Message { iov, to: 1, tag, ignore: 0, data: 0, context: NONE }
    }

    pub fn raw(&self) -> MsgTagged {
        MsgTagged {
            msg_iov: &raw const self.iov,
            desc: null_mut(),
            iov_count: 1,
            addr: self.to,
            tag: self.tag,
            ignore: self.ignore,
            context: self.context,
            data: self.data,
        }
    }

    /// `fi_tsendmsg`. The buffer lives until the completion.
    pub fn send(&self, node: Node, flags: u64) {
        // SAFETY: the endpoint is open, and callers keep the buffer.
        let status = unsafe { ((*(*node.ep).tagged).sendmsg)(node.ep, &self.raw(), flags) };
        assert_eq!(status, 0);
    }

    /// `fi_trecvmsg`, from anybody. The buffer lives until the completion.
    pub fn receive(&self, node: Node, flags: u64) -> isize {
        let message = MsgTagged { addr: ANYBODY, ..self.raw() };
        // SAFETY: the endpoint is open, and callers keep the buffer.
        unsafe { ((*(*node.ep).tagged).recvmsg)(node.ep, &raw const message, flags) }
    }
}

/// What a peek, a claim or a discard completes with: an entry, or an error's number.
fn outcome(world: &World, node: Node) -> Result<CqTaggedEntry, i32> {
    node.outcome(&world.nodes).map_err(|error| error.err)
}

/// Asks until the message is there.
pub fn find(world: &World, node: Node, message: &Message, flags: u64) -> CqTaggedEntry {
    let start = Instant::now();
    loop {
        assert_eq!(message.receive(node, flag::PEEK | flags), 0);
        match outcome(world, node) {
            Ok(entry) => return entry,
            Err(error) => assert_eq!(error, NOMSG),
        }
        // The sender is driven by its own queue.
        world.nodes.iter().for_each(|node| node.progress());
        assert!(start.elapsed() < PATIENCE, "no message came");
    }
}

#[test]
fn every_call_sends_and_every_call_receives() {
    let Some(host) = host("every_call_sends_and_every_call_receives") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut received) = ([7_u8; 24], [0_u8; 24]);
    for (send, receive) in
        (0..6_u64).flat_map(|send| (0..3_u64).map(move |receive| (send, receive)))
    {
        let tag = send << 8 | receive;
        received.fill(0);
        sent.fill(tag as u8 | 1);
        let expected = sent;
        let into = Message { ignore: 0xf000, ..Message::of(&mut received, tag | 0x1000) };
        let out = Message { data: 99, ..Message::of(&mut sent, tag) };
        // SAFETY: both buffers live until their completions have come.
        unsafe {
            let ops = &*(*to.ep).tagged;
            let (place, length, iov) = (into.iov.base, into.iov.len, &raw const into.iov);
            let status = match receive {
                0 => (ops.recv)(to.ep, place, length, NONE, 0, into.tag, into.ignore, NONE),
                1 => (ops.recvv)(to.ep, iov, null_mut(), 1, 0, into.tag, into.ignore, NONE),
                _ => into.receive(to, 0),
            };
            assert_eq!(status, 0);
            let ops = &*(*from.ep).tagged;
            let (place, length, iov) = (out.iov.base.cast_const(), out.iov.len, &raw const out.iov);
            let status = match send {
                0 => (ops.send)(from.ep, place, length, NONE, 1, tag, NONE),
                1 => (ops.sendv)(from.ep, iov, null_mut(), 1, 1, tag, NONE),
                2 => (ops.sendmsg)(from.ep, &out.raw(), flag::REMOTE_CQ_DATA),
                3 => (ops.inject)(from.ep, place, length, 1, tag),
                4 => (ops.senddata)(from.ep, place, length, NONE, 99, 1, tag, NONE),
                _ => (ops.injectdata)(from.ep, place, length, 99, 1, tag),
            };
            assert_eq!(status, 0);
        }
        let done = world.completion(to);
        assert_eq!((done.tag, done.len), (tag, 24));
        let has_data = done.flags & flag::REMOTE_CQ_DATA != 0;
        assert_eq!(
            (has_data, done.data),
            ([2, 4, 5].contains(&send), if has_data { 99 } else { 0 })
        );
        // An injected message writes no entry.
        if ![3, 5].contains(&send) {
            assert_eq!(world.completion(from).flags, flag::TAGGED | flag::SEND);
        }
        assert_eq!(received, expected);
    }
}

/// "Posted receives are searched in the order in which they were posted in order to match sends."
#[test]
fn the_earliest_receive_takes_a_message() {
    let Some(host) = host("the_earliest_receive_takes_a_message") else { return };
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | flag::DIRECTED_RECV;
    });
    let nodes = [(); 3].map(|()| world.add_node(&mut cq_attr(), 0));
    let to = nodes[2];
    // Of one sender; of anybody, with any tag; of the other sender, with either of two tags; and
    // of anybody again.
    let receives = [(0, 5, 0), (ANYBODY, 0, u64::MAX), (1, 4, 1), (ANYBODY, 5, 0)];
    for (context, (from, tag, ignore)) in receives.into_iter().enumerate() {
        // SAFETY: the endpoint is open; there is no buffer.
        let status = unsafe {
            let recv = (*(*to.ep).tagged).recv;
            recv(to.ep, NONE, 0, NONE, from, tag, ignore, context as *mut c_void)
        };
        assert_eq!(status, 0);
    }
    for (from, earliest) in [(1, 1), (0, 0), (1, 2), (1, 3)] {
        Message { to: 2, ..Message::of(&mut [], 5) }.send(nodes[from], 0);
        assert_eq!(world.completion(to).op_context as usize, earliest);
        world.completion(nodes[from]);
    }
}

#[test]
fn a_peek_tells_what_is_there_and_copies_it() {
    let Some(host) = host("a_peek_tells_what_is_there_and_copies_it") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut room) = ([7_u8; 40], [0_u8; 64]);
    let nothing = Message::of(&mut [], 5);
    let context = (&raw const nothing) as *mut c_void;
    assert_eq!(Message { context, ..Message::of(&mut [], 5) }.receive(to, flag::PEEK), 0);
    let missed = to.outcome(&world.nodes).err().unwrap();
    assert_eq!((missed.err, missed.op_context, missed.len), (NOMSG, context, 0));
    assert_eq!((missed.flags, missed.tag), (flag::TAGGED | flag::RECV, 5));
    Message { data: 3, ..Message::of(&mut sent, 5) }.send(from, flag::REMOTE_CQ_DATA);
    let told = find(&world, to, &nothing, 0);
    assert_eq!((told.len, told.tag, told.data, told.buf), (40, 5, 3, NONE));
    assert_eq!(told.flags, flag::TAGGED | flag::RECV | flag::REMOTE_CQ_DATA);
    // "The returned data is limited to the size of the input buffer(s) or the message size".
    for (length, copied) in [(10, 10), (64, 40)] {
        room.fill(9);
        let place = room.as_mut_ptr();
        let told = find(&world, to, &Message::of(&mut room[..length], 5), 0);
        assert_eq!((told.len, told.buf), (40, place.cast()));
        assert_eq!((&room[..copied], &room[copied..]), (&[7; 64][..copied], &[9; 64][copied..]));
    }
    // Into several.
    let mut rooms = [[9_u8; 30]; 2];
    let iov = rooms.each_mut().map(|room| Iovec { base: room.as_mut_ptr().cast(), len: 30 });
    let both = MsgTagged { msg_iov: iov.as_ptr(), iov_count: 2, addr: ANYBODY, ..nothing.raw() };
    // SAFETY: the endpoint is open, and both live until the completion.
    let asked = unsafe { ((*(*to.ep).tagged).recvmsg)(to.ep, &raw const both, flag::PEEK) };
    assert_eq!((asked, world.completion(to).len), (0, 40));
    assert_eq!((rooms[0], &rooms[1][..10], rooms[1][10]), ([7; 30], &[7; 10][..], 9));
    // "the user's first input buffer", also where that has no bytes.
    let iov = [Iovec { len: 0, ..iov[0] }, iov[1]];
    let second = MsgTagged { msg_iov: iov.as_ptr(), ..both };
    // SAFETY: as above.
    let asked = unsafe { ((*(*to.ep).tagged).recvmsg)(to.ep, &raw const second, flag::PEEK) };
    assert_eq!((asked, world.completion(to).buf), (0, iov[0].base));
    room.fill(0);
    assert_eq!(Message::of(&mut room, 5).receive(to, 0), 0);
    assert_eq!((world.completion(to).len, &room[..40]), (40, &sent[..]));
    world.completion(from);
    assert_eq!(nothing.receive(to, flag::PEEK), 0);
    assert_eq!(outcome(&world, to).err(), Some(NOMSG));
}

/// "The returned completion data will indicate the meta-data associated with the message, such as … source
/// address."
#[test]
fn a_peek_tells_whom_a_message_is_from() {
    let Some(host) = host("a_peek_tells_whom_a_message_is_from") else { return };
    let mut world = World::empty(host, |hints| hints.caps = flag::TAGGED | flag::SOURCE);
    let nodes = [(); 3].map(|()| world.add_node(&mut cq_attr(), 0));
    let to = nodes[2];
    for from in [1, 0] {
        let mut sent = [7_u8; 8];
        Message { to: 2, ..Message::of(&mut sent, from as u64) }.send(nodes[from], 0);
        let asked = Message::of(&mut [], from as u64);
        find(&world, to, &asked, 0);
        for flags in [0, DISCARD] {
            assert_eq!(asked.receive(to, flag::PEEK | flags), 0);
            let (told, source) = completion(to, &nodes);
            assert_eq!((told.tag, source), (from as u64, from as u64));
        }
        world.completion(nodes[from]);
    }
}

#[test]
fn a_claim_is_paired_by_its_context() {
    let Some(host) = host("a_claim_is_paired_by_its_context") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut first, mut second, mut room) = ([1_u8; 40], [2_u8; 40], [0_u8; 40]);
    Message::of(&mut first, 5).send(from, 0);
    Message::of(&mut second, 5).send(from, 0);
    // Two `struct fi_context`.
    let contexts = [[0_u64; 8]; 2];
    let [ours, other] = contexts.each_ref().map(|context| (&raw const *context) as *mut c_void);
    let asked = Message { context: ours, ..Message::of(&mut [], 5) };
    let told = find(&world, to, &asked, CLAIM);
    assert_eq!((told.op_context, told.len), (ours, 40));
    // What is claimed is nobody else's: a receive gets the other one.
    assert_eq!(Message::of(&mut room, 5).receive(to, 0), 0);
    assert_eq!((world.completion(to).len, room), (40, second));
    let stranger = Message { context: other, ..Message::of(&mut room, 5) };
    assert_eq!(stranger.receive(to, CLAIM), code::INVAL as isize);
    let claim = Message { context: ours, ..Message::of(&mut room, 5) };
    assert_eq!(claim.receive(to, CLAIM), 0);
    let done = world.completion(to);
    assert_eq!((done.op_context, done.len, room), (ours, 40, first));
    assert_eq!(claim.receive(to, CLAIM), code::INVAL as isize, "once");
    assert_eq!([world.completion(from).len, world.completion(from).len], [0, 0]);
    // A context names one message: a second one that it claimed would be nobody's.
    Message::of(&mut first, 5).send(from, 0);
    Message::of(&mut second, 5).send(from, 0);
    let peeked = Message { context: ours, ..Message::of(&mut room, 5) };
    let told = find(&world, to, &peeked, CLAIM);
    // "An application may supply a buffer if it desires to receive data as a part of the peek".
    assert_eq!((told.len, told.buf, room), (40, peeked.iov.base, first));
    assert_eq!(asked.receive(to, flag::PEEK | CLAIM), code::INVAL as isize);
    // A claim receives: what does not fit is cut, and the length of the rest told.
    let short = Message { context: ours, ..Message::of(&mut room[..8], 5) };
    assert_eq!(short.receive(to, CLAIM), 0);
    let cut = to.outcome(&world.nodes).err().unwrap();
    assert_eq!((cut.err, cut.len, cut.olen, cut.op_context), (-code::TRUNC, 8, 32, ours));
    room.fill(0);
    assert_eq!(Message::of(&mut room, 5).receive(to, 0), 0);
    assert_eq!((world.completion(to).len, room), (40, second));
    assert_eq!([world.completion(from).len, world.completion(from).len], [0, 0]);
}

/// FI_MULTI_RECV of messages with a tag: one buffer takes them, and goes back with the last one.
#[test]
fn one_buffer_takes_tagged_messages() {
    let Some(host) = host("one_buffer_takes_tagged_messages") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut room, mut least) = ([1_u8; 40], [0_u8; 100], 30_usize);
    // SAFETY: the endpoint is open, the value a `size_t`.
    unsafe {
        let (setopt, value) = ((*(*to.ep).ops).setopt, (&raw mut least).cast());
        assert_eq!(setopt(to.ep.cast(), 0, MIN_MULTI_RECV, value, 8), 0);
    }
    let into = Message::of(&mut room, 5);
    assert_eq!(into.receive(to, flag::MULTI_RECV), 0);
    for (at, released) in [(0, 0), (40, flag::MULTI_RECV)] {
        let mut other = [0_u8; 40];
        Message::of(&mut sent, 6).send(from, 0);
        assert_eq!(Message::of(&mut other, 6).receive(to, 0), 0);
        assert_eq!(world.completion(to).tag, 6, "it is no message of the buffer's");
        Message::of(&mut sent, 5).send(from, 0);
        let done = world.completion(to);
        assert_eq!((done.tag, done.len), (5, 40));
        assert_eq!(done.flags, flag::TAGGED | flag::RECV | released);
        assert_eq!(done.buf as usize - into.iov.base as usize, at);
    }
    assert_eq!((&room[..80], &room[80..]), (&[1; 80][..], &[0; 20][..]));
    assert_eq!([(); 4].map(|()| world.completion(from).len), [0; 4]);
}

#[test]
fn what_is_discarded_is_gone() {
    let Some(host) = host("what_is_discarded_is_gone") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut room) = ([1_u8; 40], [9_u8; 40]);
    let context = [0_u64; 8];
    let context = (&raw const context) as *mut c_void;
    for claimed in [false, true] {
        // "or was discarded by the target application"
        Message::of(&mut sent, 5).send(from, MATCH_COMPLETE);
        let message = Message { context, ..Message::of(&mut room, 5) };
        if claimed {
            find(&world, to, &Message { context, ..Message::of(&mut [], 5) }, CLAIM);
            assert_eq!(message.receive(to, CLAIM | DISCARD), 0);
            assert_eq!(outcome(&world, to).map(|done| done.op_context).ok(), Some(context));
        } else {
            assert_eq!(find(&world, to, &message, DISCARD).len, 40);
        }
        assert_eq!(room, [9; 40], "buffers are ignored");
        world.completion(from);
        assert_eq!(Message::of(&mut [], 5).receive(to, flag::PEEK), 0);
        assert_eq!(outcome(&world, to).err(), Some(NOMSG));
    }
    // Even buffers that cannot be.
    Message::of(&mut sent, 5).send(from, 0);
    let mut nowhere = Message { context, ..Message::of(&mut [], 5) };
    (nowhere.iov.base, nowhere.iov.len) = (null_mut(), 40);
    assert_eq!(find(&world, to, &nowhere, DISCARD).len, 40);
    world.completion(from);
    // A peek that claims and discards at once discards.
    Message::of(&mut sent, 5).send(from, MATCH_COMPLETE);
    let both = Message { context, ..Message::of(&mut room, 5) };
    assert_eq!(find(&world, to, &both, CLAIM | DISCARD).len, 40);
    world.completion(from);
    assert_eq!(both.receive(to, CLAIM), code::INVAL as isize, "nothing is claimed");
    // Discarding is of a peek or of a claim.
    assert_eq!(Message::of(&mut room, 5).receive(to, DISCARD), code::BADFLAGS as isize);
}

/// Programs post such receives for messages without bytes, by every call.
#[test]
fn a_null_buffer_has_no_room() {
    let Some(host) = host("a_null_buffer_has_no_room") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut nowhere = Message::of(&mut [], 5);
    (nowhere.iov.base, nowhere.iov.len) = (null_mut(), 64);
    let iov = &raw const nowhere.iov;
    for call in 0..3 {
        // SAFETY: there is no buffer.
        let posted = unsafe {
            let ops = &*(*to.ep).tagged;
            match call {
                0 => (ops.recv)(to.ep, null_mut(), 64, NONE, 0, 5, 0, NONE),
                1 => (ops.recvv)(to.ep, iov, null_mut(), 1, 0, 5, 0, NONE),
                _ => nowhere.receive(to, 0),
            }
        };
        assert_eq!(posted, 0, "{call}");
        Message::of(&mut [], 5).send(from, 0);
        assert_eq!(world.completion(to).len, 0);
    }
    // SAFETY: as above.
    let sent = unsafe { ((*(*from.ep).tagged).sendmsg)(from.ep, &nowhere.raw(), 0) };
    assert_eq!(sent, code::INVAL as isize, "nothing is sent from nowhere");
}

#[test]
fn every_flag_of_a_send_is_taken() {
    let Some(host) = host("every_flag_of_a_send_is_taken") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let (mut sent, mut room) = ([1_u8; 8], [0_u8; 8]);
    let levels = [0, INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE];
    for level in levels {
        for hint in [0, MORE, FENCE, COMPLETION, INJECT, MORE | FENCE | INJECT] {
            room.fill(0);
            Message::of(&mut sent, 5).send(from, level | hint);
            // "Applies to fi_sendmsg and fi_recvmsg" (fi_msg(3)).
            let receive = hint & COMPLETION | level & TRANSMIT_COMPLETE;
            assert_eq!(Message::of(&mut room, 5).receive(to, receive), 0);
            assert_eq!((world.completion(to).len, room), (8, sent));
            assert_eq!(world.completion(from).flags, flag::TAGGED | flag::SEND);
        }
    }
    // Not before it was matched.
    Message::of(&mut sent, 6).send(from, MATCH_COMPLETE);
    find(&world, to, &Message::of(&mut [], 6), 0);
    for _ in 0..1000 {
        assert_eq!((from.read().err(), to.read().err()), (Some(code::AGAIN), Some(code::AGAIN)));
    }
    assert_eq!(Message::of(&mut room, 6).receive(to, 0), 0);
    world.completion(to);
    world.completion(from);
}
