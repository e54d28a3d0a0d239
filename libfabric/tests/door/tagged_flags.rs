//! What flags of fi_tagged(3) do, where something would be otherwise without them; and what is
//! ignored, where it is.

use std::{
    ffi::c_void,
    ptr::{self, null_mut},
    time::Instant,
};

use crate::{
    code, flag,
    host::{Host, host},
    tagged::{COMPLETION, FENCE, INJECT, MATCH_COMPLETE, Message},
    world::{Node, PATIENCE, World, cq_attr},
};

const NONE: *mut c_void = null_mut();

/// Waits until the bytes have come, while both are driven; then nothing more comes.
fn await_bytes(nodes: [Node; 2], place: &[u8; 8], expected: &[u8; 8]) {
    let start = Instant::now();
    // SAFETY: the place is valid for reads.
    while unsafe { ptr::read_volatile(place) } != *expected {
        nodes.iter().for_each(|node| node.progress());
        assert!(start.elapsed() < PATIENCE, "no message came");
    }
    for _ in 0..200 {
        nodes.iter().for_each(|node| node.progress());
    }
}

/// "Flags specified with fi_trecvmsg / fi_tsendmsg override most flags previously configured with the
/// endpoint": here FI_COMPLETION among its op_flags.
#[test]
fn flags_of_a_message_override_those_of_the_endpoint() {
    let Some(host) = host("flags_of_a_message_override_those_of_the_endpoint") else { return };
    for defaults in [COMPLETION, 0] {
        let mut world = World::empty(host, |hints| {
            // SAFETY: hints have all attributes.
            unsafe {
                (*hints.tx_attr).op_flags = defaults;
                (*hints.rx_attr).op_flags = defaults;
            }
        });
        let selective = flag::SELECTIVE_COMPLETION;
        let [from, to] = [(); 2].map(|()| world.add_node(&mut cq_attr(), selective));
        let mut number = 0_u8;
        // What is said with the message, or nothing.
        for flags in [Some((0, 0)), Some((COMPLETION, 0)), Some((0, COMPLETION)), None] {
            number += 1;
            let (mut sent, mut room) = ([number; 8], [0_u8; 8]);
            let expected = sent;
            let (out, into) = (Message::of(&mut sent, 5), Message::of(&mut room, 5));
            let (place, iov) = (into.iov.base, out.iov.base.cast_const());
            match flags {
                Some((send, receive)) => {
                    assert_eq!(into.receive(to, receive), 0);
                    out.send(from, send);
                }
                // SAFETY: the buffers live until all is over.
                None => unsafe {
                    let (ours, theirs) = (&*(*from.ep).tagged, &*(*to.ep).tagged);
                    assert_eq!((theirs.recv)(to.ep, place, 8, NONE, u64::MAX, 5, 0, NONE), 0);
                    assert_eq!((ours.send)(from.ep, iov, 8, NONE, 1, 5, NONE), 0);
                },
            }
            await_bytes([from, to], &room, &expected);
            let (send, receive) = flags.unwrap_or((defaults, defaults));
            for (node, flags) in [(from, send), (to, receive)] {
                let entry = node.read().map(|entry| entry.flags & flag::TAGGED);
                let told = if flags == 0 { Err(code::AGAIN) } else { Ok(flag::TAGGED) };
                assert_eq!(entry, told, "{flags:?} with {defaults}");
                assert_eq!(node.read().err(), Some(code::AGAIN));
            }
        }
    }
}

/// Sends a byte of its own eight times, to the third of these.
fn inject(nodes: &[Node; 3], from: usize, tagged: bool) {
    let (ep, word, start) = (nodes[from].ep, [10 + from as u8; 8], Instant::now());
    let post = || {
        let word = word.as_ptr().cast();
        // SAFETY: the endpoint is open; the word is copied.
        unsafe {
            match tagged {
                true => ((*(*ep).tagged).inject)(ep, word, 8, 2, 5),
                false => ((*(*ep).msg).inject)(ep, word, 8, 2),
            }
        }
    };
    while post() != 0 {
        nodes.iter().for_each(|node| node.progress());
        assert!(start.elapsed() < PATIENCE);
    }
}

/// A domain for endpoints with tags and without, and this capability.
fn world_that_directs(host: &'static Host, capability: u64) -> World {
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | capability & flag::DIRECTED_RECV;
    });
    if capability == flag::TAGGED_DIRECTED_RECV {
        world.reopen_as(2 << 16);
        // SAFETY: the info has all attributes.
        unsafe {
            (*world.info).caps |= capability;
            (*(*world.info).rx_attr).caps |= capability;
        }
    }
    // SAFETY: the info is libfabric's.
    let has = unsafe { (*world.info).caps } & (flag::DIRECTED_RECV | flag::TAGGED_DIRECTED_RECV);
    assert_eq!(has, capability);
    world
}

/// Three endpoints with this capability; the last one receives what the first two send, each a byte of its
/// own.
fn receive_from_two(capability: u64) {
    let Some(host) = host("receives from one of two senders") else { return };
    let mut world = world_that_directs(host, capability);
    let nodes = [(); 3].map(|()| world.add_node(&mut cq_attr(), 0));
    let to = nodes[2];
    // Who is connected is heard within a poll, so that one sender's messages are there before the other's.
    for from in [0, 1] {
        let mut greeting = [0_u8; 8];
        let into = Message { to: u64::MAX, ..Message::of(&mut greeting, 5) };
        assert_eq!(into.receive(to, 0), 0);
        inject(&nodes, from, true);
        assert_eq!(world.completion(to).len, 8);
    }
    for (tagged, early) in [(true, true), (true, false), (false, true), (false, false)] {
        let directed = capability == flag::DIRECTED_RECV || (tagged && capability != 0);
        let mut rooms = [[0_u8; 8]; 3];
        // The second sender's receive comes first, then anybody's, then the first sender's.
        let mut post = || {
            for (at, source) in [1, u64::MAX, 0].into_iter().enumerate() {
                let room = rooms[at].as_mut_ptr().cast();
                let context = at as *mut c_void;
                // SAFETY: the endpoint is open, and the room outlives the operation.
                let status = unsafe {
                    match tagged {
                        true => {
                            let recv = (*(*to.ep).tagged).recv;
                            recv(to.ep, room, 8, NONE, source, 5, 0, context)
                        }
                        false => ((*(*to.ep).msg).recv)(to.ep, room, 8, NONE, source, context),
                    }
                };
                assert_eq!(status, 0);
            }
        };
        if early {
            post();
        }
        for from in [0, 0, 1] {
            inject(&nodes, from, tagged);
            for _ in 0..200 {
                nodes.iter().for_each(|node| node.progress());
            }
        }
        if !early {
            post();
        }
        for _ in 0..3 {
            assert_eq!(world.completion(to).len, 8);
        }
        let found = rooms.map(|room| room[0]);
        // Without FI_DIRECTED_RECV "this field is ignored".
        assert_eq!(found, if directed { [11, 10, 10] } else { [10, 10, 11] }, "{tagged}, {early}");
    }
    // Also if it is no address at all.
    let mut room = [0_u8; 8];
    // SAFETY: the endpoint is open, and the room outlives the receive.
    unsafe {
        let (recv, place) = ((*(*to.ep).tagged).recv, room.as_mut_ptr().cast());
        let status = recv(to.ep, place, 8, NONE, 4711, 5, 0, place);
        assert_eq!(status as i32, if capability != 0 { code::INVAL } else { 0 });
    }
}

#[test]
fn a_directed_receive_takes_from_one_of_two_senders() {
    receive_from_two(flag::DIRECTED_RECV);
}

/// "Similar to FI_DIRECTED_RECV, but only applies to tagged receive operations" (fi_getinfo(3)), since
/// version 2.0.
#[test]
fn a_directed_receive_may_have_to_be_tagged() {
    receive_from_two(flag::TAGGED_DIRECTED_RECV);
}

#[test]
fn without_directed_receives_a_source_is_ignored() {
    receive_from_two(0);
}

/// "The fenced operation, and any operation posted after the fenced operation will be deferred
/// until all previous operations targeting the same peer endpoint have completed."
#[test]
fn a_fence_defers_what_follows() {
    let Some(host) = host("a_fence_defers_what_follows") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut sent = [[1_u8; 8], [2; 8], [3; 8]];
    let contexts = [[0_u64; 8]; 3];
    let context = |at: usize| (&raw const contexts[at]) as *mut c_void;
    for fence in [0, FENCE] {
        let mut rooms = [[0_u8; 8]; 3];
        let mut receive = |at: usize| {
            let into = Message { context: context(at), ..Message::of(&mut rooms[at], at as u64) };
            assert_eq!(into.receive(to, 0), 0);
        };
        receive(1);
        receive(2);
        // Nobody receives the first.
        for (at, flags) in [MATCH_COMPLETE, fence, 0].into_iter().enumerate() {
            let out = Message { context: context(at), ..Message::of(&mut sent[at], at as u64) };
            out.send(from, flags);
        }
        let mut order = Vec::new();
        let mut drive = |rounds: usize| {
            for _ in 0..rounds {
                to.progress();
                order.extend(from.read().map(|entry| entry.op_context));
            }
            order.len()
        };
        // Without a fence the others overtake it, and are connected by then.
        let (start, overtake) = (Instant::now(), if fence == 0 { 2 } else { 0 });
        while drive(1) < overtake {
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(drive(1000), overtake);
        receive(0);
        while drive(1) < 3 {
            assert!(start.elapsed() < PATIENCE);
        }
        let expected = if fence == 0 { [1, 2, 0] } else { [0, 1, 2] };
        assert_eq!(order, expected.map(context));
        for _ in 0..3 {
            world.completion(to);
        }
        assert_eq!(rooms, sent);
    }
}

/// "The data buffer should be returned to user immediately after the send call returns"; and
/// "-FI_EAGAIN" has no side effect.
#[test]
fn an_injected_buffer_may_change_at_once() {
    let Some(host) = host("an_injected_buffer_may_change_at_once") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    let mut word = [0_u8; 8];
    let mut taken = 0_u8;
    // Not driving the receiver, so that some wait here for room, until there is no place for one.
    for number in 0..u8::MAX {
        word = [number; 8];
        let out = Message::of(&mut word, 5).raw();
        // SAFETY: the endpoint is open, and the word is copied.
        let status = unsafe { ((*(*from.ep).tagged).sendmsg)(from.ep, &raw const out, INJECT) };
        word.fill(0xee);
        if status != 0 {
            assert_eq!(status, code::AGAIN as isize);
            break;
        }
        taken = number + 1;
    }
    assert!(taken > 0 && word == [0xee; 8]);
    for number in 0..taken {
        let mut room = [0_u8; 8];
        assert_eq!(Message::of(&mut room, 5).receive(to, 0), 0);
        assert_eq!((world.completion(to).len, room), (8, [number; 8]));
        world.completion(from);
    }
    for _ in 0..200 {
        to.progress();
        assert_eq!(from.read().err(), Some(code::AGAIN));
    }
}

/// "-FI_EAGAIN: See fi_msg(3)": what was refused was not sent, and may be posted again.
#[test]
fn what_finds_no_place_has_no_side_effect() {
    let Some(host) = host("what_finds_no_place_has_no_side_effect") else { return };
    let world = World::new(host, 2);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    // SAFETY: the info is libfabric's.
    let size = unsafe { (*(*world.info).tx_attr).size };
    let mut words: Vec<[u8; 8]> = (0..=size as u64).map(u64::to_ne_bytes).collect();
    let out: Vec<Message> = words.iter_mut().map(|word| Message::of(word, 5)).collect();
    for message in &out[..size] {
        message.send(from, MATCH_COMPLETE);
    }
    // SAFETY: the endpoint is open.
    let (last, sendmsg) = (out[size].raw(), unsafe { (*(*from.ep).tagged).sendmsg });
    for _ in 0..3 {
        // SAFETY: the endpoint is open, and the words outlive their operations.
        let status = unsafe { sendmsg(from.ep, &raw const last, MATCH_COMPLETE) };
        assert_eq!(status, code::AGAIN as isize, "{size} are under way");
    }
    let receive = |number: u64| {
        let mut room = [0_u8; 8];
        assert_eq!(Message::of(&mut room, 5).receive(to, 0), 0);
        world.completion(to);
        assert_eq!(u64::from_ne_bytes(room), number);
        world.completion(from);
    };
    receive(0);
    out[size].send(from, MATCH_COMPLETE);
    (1..=size as u64).for_each(receive);
    let mut room = [0_u8; 8];
    assert_eq!(Message::of(&mut room, 5).receive(to, flag::PEEK), 0);
    let start = Instant::now();
    while to.read().err() != Some(code::AVAIL) {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(to.read_error().unwrap().err, crate::tagged::NOMSG, "nothing came twice");
}
