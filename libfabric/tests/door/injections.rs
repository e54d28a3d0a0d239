//! Buffers that are the application's again before their data has arrived. Reference:
//! fi_endpoint(3), "OPERATION FLAGS"; fi_cq(3), "COMPLETION".

use std::{ffi::c_void, time::Instant};

use crate::{
    abi::{
        attributes::Iovec,
        fid::FidEp,
        message::{Msg, MsgRma, RmaIov},
    },
    code,
    completion_order::{LONG, completed, connected},
    flag,
    host::{Host, host},
    one_sided::{KEY, register},
    tagged::{FENCE, INJECT, INJECT_COMPLETE, MATCH_COMPLETE, Message},
    triggered::{msg, rma},
    world::{PATIENCE, World, close},
};

const ANYBODY: u64 = u64::MAX;
const TAG: u64 = 5;

/// A call that injects.
struct Injection {
    name: &'static str,
    writes: bool,
    /// Whether it has an entry in the end: FI_INJECT as a flag speaks of the buffer alone.
    completes: bool,
}

const CALLS: [Injection; 9] = [
    Injection { name: "fi_inject", writes: false, completes: false },
    Injection { name: "fi_injectdata", writes: false, completes: false },
    Injection { name: "fi_tinject", writes: false, completes: false },
    Injection { name: "fi_tinjectdata", writes: false, completes: false },
    Injection { name: "fi_inject_write", writes: true, completes: false },
    Injection { name: "fi_inject_writedata", writes: true, completes: false },
    Injection { name: "fi_sendmsg", writes: false, completes: true },
    Injection { name: "fi_tsendmsg", writes: false, completes: true },
    Injection { name: "fi_writemsg", writes: true, completes: true },
];

/// Calls it for peer 1, with bytes that need to be there no longer than that.
fn post(name: &str, ep: *mut FidEp, bytes: &mut [u8]) -> isize {
    let (at, length) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len());
    let (iov, target) =
        (Iovec { base: at, len: length }, RmaIov { addr: 0, len: length, key: KEY });
    let context = std::ptr::null_mut();
    let (message, write): (Msg, MsgRma) = (msg(&iov, 1, context), rma(&iov, &target, context));
    // SAFETY: the endpoint is open, and there are that many bytes.
    unsafe {
        let (msg, tagged, rma) = (&*(*ep).msg, &*(*ep).tagged, &*(*ep).rma);
        match name {
            "fi_inject" => (msg.inject)(ep, at, length, 1),
            "fi_injectdata" => (msg.injectdata)(ep, at, length, 9, 1),
            "fi_tinject" => (tagged.inject)(ep, at, length, 1, TAG),
            "fi_tinjectdata" => (tagged.injectdata)(ep, at, length, 9, 1, TAG),
            "fi_inject_write" => (rma.inject)(ep, at, length, 1, 0, KEY),
            "fi_inject_writedata" => (rma.injectdata)(ep, at, length, 9, 1, 0, KEY),
            "fi_sendmsg" => (msg.sendmsg)(ep, &message, INJECT),
            "fi_tsendmsg" => (tagged.sendmsg)(ep, &Message::of(bytes, TAG).raw(), INJECT),
            "fi_writemsg" => (rma.writemsg)(ep, &write, INJECT),
            _ => unreachable!("{name}"),
        }
    }
}

/// Injects to an endpoint that nobody is connected to yet, and uses the buffer for something else. The
/// sender is driven on, or is not.
fn arrives(host: &'static Host, call: &Injection, length: usize, is_driven: bool) {
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut memory = vec![0_u64; length.div_ceil(8).max(1)];
    let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
    let (mut bytes, mut room) = (vec![7; length], vec![0; length]);
    if !call.writes {
        let is_tagged = call.name.starts_with("fi_t");
        let posted = match is_tagged {
            true => Message::of(&mut room, TAG).receive(to, 0),
            false => to.receive(&mut room, ANYBODY, 0),
        };
        assert_eq!(posted, 0);
    }
    assert_eq!(post(call.name, from.ep, &mut bytes), 0, "{} of {length}", call.name);
    bytes.fill(0xee);
    let driven = &world.nodes[usize::from(!is_driven)..];
    if call.writes {
        let start = Instant::now();
        let place = memory.as_ptr().cast::<u8>();
        // SAFETY: there are that many bytes.
        while !(0..length).all(|at| unsafe { place.add(at).read_volatile() } == 7) {
            driven.iter().for_each(|node| node.progress());
            assert!(start.elapsed() < PATIENCE, "{} of {length} did not arrive", call.name);
        }
    } else {
        let told = to.outcome(driven).map(|entry| entry.len).map_err(|error| error.err);
        assert_eq!((told, room), (Ok(length), vec![7; length]), "{}", call.name);
    }
    if call.completes {
        world.completion(from);
    }
    (0..20).for_each(|_| world.nodes.iter().for_each(|node| node.progress()));
    assert_eq!(from.read().err(), Some(code::AGAIN), "{}", call.name);
    assert_eq!(close(mr), 0);
}

/// "FI_INJECT: Indicates that all outbound data buffers should be returned to user's control
/// immediately after a data transfer call returns, even if the operation is handled asynchronously."
#[test]
fn an_injected_buffer_is_free_at_once() {
    let Some(host) = host("an_injected_buffer_is_free_at_once") else { return };
    let world = World::new(host, 0);
    // SAFETY: the info is libfabric's.
    let most = unsafe { (*(*world.info).tx_attr).inject_size };
    for call in &CALLS {
        [1, 8, 41, 100, most].into_iter().for_each(|length| arrives(host, call, length, true));
    }
}

/// Nothing tells its sender when it has left: so that is no affair of its sender's any more.
#[test]
fn what_was_injected_needs_its_sender_no_more() {
    let Some(host) = host("what_was_injected_needs_its_sender_no_more") else { return };
    for call in CALLS.iter().filter(|call| !call.completes) {
        [8, 100].into_iter().for_each(|length| arrives(host, call, length, false));
    }
}

/// "FI_INJECT_COMPLETE: Indicates that a completion should be generated when the source buffer(s) may
/// be reused. A completion guarantees that the buffers will not be read from again."
#[test]
fn a_buffer_is_free_when_its_inject_completion_comes() {
    let Some(host) = host("a_buffer_is_free_when_its_inject_completion_comes") else { return };
    let (world, [from, to]) = connected(host, (0, 0));
    for length in [0, 8, 300, 5_000, LONG] {
        let (mut sent, mut room) = (vec![7; length], vec![0; length]);
        let into = Message::of(&mut room, TAG);
        // What is short needs neither a receive nor the receiver's engine.
        let (is_short, others) = (length <= 300, [to]);
        if !is_short {
            assert_eq!(into.receive(to, 0), 0);
        }
        Message::of(&mut sent, TAG).send(from, INJECT_COMPLETE);
        let told = from.outcome(&others[usize::from(is_short)..]);
        assert!(told.is_ok(), "{length} bytes");
        sent.fill(0xee);
        if is_short {
            assert_eq!(into.receive(to, 0), 0);
        }
        assert_eq!(world.completion(to).len, length);
        assert!(room.iter().all(|&byte| byte == 7), "{length} bytes");
    }
}

/// The same of one that cannot leave yet, since it waits for a message that nobody has received.
#[test]
fn an_injected_write_that_waits_has_its_bytes() {
    let Some(host) = host("an_injected_write_that_waits_has_its_bytes") else { return };
    let (world, [from, to]) = connected(host, (0, 0));
    let mut memory = vec![0_u64; 5];
    let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
    // SAFETY: the words are there.
    let written = |at: usize| unsafe { memory.as_ptr().add(at).read_volatile() };
    let (mut sent, mut room, mut words) = ([1; 8], [0; 8], [7_u64; 5]);
    Message::of(&mut sent, TAG).send(from, MATCH_COMPLETE);
    let length = size_of_val(&words);
    let iov = Iovec { base: words.as_mut_ptr().cast(), len: length };
    let target = RmaIov { addr: 0, len: length, key: KEY };
    let write: MsgRma = rma(&iov, &target, std::ptr::null_mut());
    // SAFETY: the endpoint is open, and an injected write needs its words for the call alone.
    let posted = unsafe { ((*(*from.ep).rma).writemsg)(from.ep, &write, INJECT | FENCE) };
    assert_eq!(posted, 0);
    words.fill(0xee);
    assert!(completed(from, &[to]).is_empty(), "the message is first");
    assert!((0..5).all(|at| written(at) == 0), "the message is first");
    assert_eq!(Message::of(&mut room, TAG).receive(to, 0), 0);
    for node in [to, from, from] {
        world.completion(node);
    }
    assert!((0..5).all(|at| written(at) == 7), "what was there when it was posted");
    assert_eq!(close(mr), 0);
}
