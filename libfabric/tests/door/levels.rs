//! When an operation completes at its initiator. Reference: fi_cq(3), "COMPLETION"; fi_endpoint(3),
//! "OPERATION FLAGS".

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{attributes::Iovec, message::RmaIov},
    code,
    completion_order::connected,
    flag,
    host::host,
    one_sided::{KEY, register},
    tagged::{
        DELIVERY_COMPLETE, DISCARD, INJECT_COMPLETE, MATCH_COMPLETE, Message, TRANSMIT_COMPLETE,
        find,
    },
    triggered::rma,
    world::{Node, World, close},
};

const TAG: u64 = 5;
/// In a packet, in several of them, and by whatever brings what is longer.
const LENGTHS: [usize; 6] = [0, 8, 300, 5_000, 60_000, 1 << 20];

fn message(bytes: &mut [u8], context: usize) -> Message {
    Message { context: context as *mut c_void, ..Message::of(bytes, TAG) }
}

/// Nothing completes in some rounds in which these are driven.
#[track_caller]
fn nothing(nodes: &[Node], length: usize) {
    for _ in 0..200 {
        for node in nodes {
            assert_eq!(node.read().err(), Some(code::AGAIN), "{length} bytes");
        }
    }
}

/// "FI_TRANSMIT_COMPLETE: … The state of the operation at the peer endpoint is not defined."
#[test]
fn a_short_message_is_transmitted_without_a_receive() {
    let Some(host) = host("a_short_message_is_transmitted_without_a_receive") else { return };
    let (world, [from, to]) = connected(host, (0, 0));
    for flags in [0, INJECT_COMPLETE, TRANSMIT_COMPLETE] {
        for length in [0, 8, 300] {
            let (mut sent, mut room) = (vec![7; length], vec![0; length]);
            message(&mut sent, 1).send(from, flags);
            // The receiver's engine does not run.
            let told = from.outcome(&[]).map(|entry| entry.op_context as usize);
            assert_eq!(told.map_err(|error| error.err), Ok(1), "{length} bytes, {flags:#x}");
            assert_eq!(message(&mut room, 2).receive(to, 0), 0);
            assert_eq!(world.completion(to).len, length);
            assert_eq!(room, sent);
        }
    }
}

/// "FI_DELIVERY_COMPLETE: Indicates that a completion should not be generated until an operation has
/// been processed by the destination endpoint(s)"; "if an application buffer was ready to receive the
/// results of the message when it arrived, then delivery complete indicates that the data was placed
/// into the application's buffer."
#[test]
fn delivery_waits_for_the_receivers_engine() {
    let Some(host) = host("delivery_waits_for_the_receivers_engine") else { return };
    for length in LENGTHS {
        for is_expected in [true, false] {
            let (world, [from, to]) = connected(host, (0, 0));
            let (mut sent, mut room) = (vec![7; length], vec![0; length]);
            let into = message(&mut room, 2);
            if is_expected {
                assert_eq!(into.receive(to, 0), 0);
            }
            message(&mut sent, 1).send(from, DELIVERY_COMPLETE);
            nothing(&[from], length);
            if !is_expected {
                (0..20).for_each(|_| [from, to].into_iter().for_each(Node::progress));
                assert_eq!(into.receive(to, 0), 0);
            }
            assert_eq!(world.completion(from).op_context as usize, 1);
            assert!(!is_expected || room == sent, "placed in the buffer: {length} bytes");
            assert_eq!(world.completion(to).op_context as usize, 2);
            assert!(room == sent, "{length} bytes");
            nothing(&[from, to], length);
        }
    }
}

/// "FI_MATCH_COMPLETE: Indicates that a completion should be generated only after the operation has
/// been matched with an application specified buffer."
#[test]
fn match_waits_until_the_message_is_matched() {
    let Some(host) = host("match_waits_until_the_message_is_matched") else { return };
    for length in LENGTHS {
        for is_discarded in [false, true] {
            let (world, [from, to]) = connected(host, (0, 0));
            let (mut sent, mut room) = (vec![7; length], vec![0; length]);
            message(&mut sent, 1).send(from, MATCH_COMPLETE);
            nothing(&[from, to], length);
            if is_discarded {
                find(&world, to, &message(&mut [], 2), DISCARD);
            } else {
                assert_eq!(message(&mut room, 2).receive(to, 0), 0);
                assert_eq!(world.completion(to).len, length);
                assert!(room == sent, "{length} bytes");
            }
            assert_eq!(world.completion(from).op_context as usize, 1);
            nothing(&[from, to], length);
        }
    }
}

/// "A completion guarantees that the result of the operation is available": of a write, in the memory
/// of the target.
#[test]
fn a_delivered_write_is_in_memory() {
    let Some(host) = host("a_delivered_write_is_in_memory") else { return };
    for words in [1, 40, 600, 125_000] {
        let world = World::new(host, 2);
        let from = world.nodes[0];
        let (mut memory, mut sent) = (vec![0_u64; words], vec![7_u64; words]);
        let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
        let length = size_of_val(&sent[..]);
        let iov = Iovec { base: sent.as_mut_ptr().cast(), len: length };
        let target = RmaIov { addr: 0, len: length, key: KEY };
        // SAFETY: the endpoint is open, and the words outlive the operation.
        unsafe {
            let writemsg = (*(*from.ep).rma).writemsg;
            let write = rma(&iov, &target, null_mut());
            assert_eq!(writemsg(from.ep, &write, DELIVERY_COMPLETE), 0);
        }
        world.completion(from);
        // SAFETY: the words are there.
        let word = |at: usize| unsafe { memory.as_ptr().add(at).read_volatile() };
        assert!((0..words).all(|at| word(at) == 7), "{length} bytes");
        assert_eq!(close(mr), 0);
    }
}
