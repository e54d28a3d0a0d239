//! The order in which received data is written, for an application that asks for one. Reference:
//! fi_endpoint(3), "comp_order" of receive contexts.

use std::{ffi::c_void, iter, ptr::null_mut, time::Instant};

use kestrel_tests::watched::Watched;

use crate::{
    code,
    completion_order::{LONG, STRICT, answered, completed, connected, order, post},
    host::{Host, host},
    kind,
    world::{Node, PATIENCE, World, info},
};

pub const DATA: u64 = 1 << 16;
/// A write after a send.
const WAS: u64 = 1 << 5;
const UNSPEC: u64 = u64::MAX;

/// The order of messages in the answer to hints with the order of data, and with this one.
fn message_order(host: &Host, asked: u64) -> Result<u64, i32> {
    let found = info(host, |hints| {
        order(hints, kind::RDM, (0, DATA));
        // SAFETY: hints have all attributes.
        unsafe { (*hints.rx_attr).msg_order = asked };
    })?;
    // SAFETY: libfabric's answer, with all attributes.
    unsafe {
        let answer = (*(*found).rx_attr).msg_order;
        (host.freeinfo)(found);
        Ok(answer)
    }
}

#[test]
fn an_order_of_data_is_for_who_asks() {
    let Some(host) = host("an_order_of_data_is_for_who_asks") else { return };
    for kind in [kind::RDM, kind::MSG, kind::DGRAM] {
        for asked in [(0, DATA), (0, STRICT | DATA), (STRICT, STRICT | DATA)] {
            assert_eq!(answered(host, kind, asked), Ok(asked));
        }
        // Nothing that is sent is written here.
        assert_eq!(answered(host, kind, (DATA, 0)), Err(code::NODATA));
    }
    assert_eq!(answered(host, kind::SOCK_STREAM, (0, DATA)), Err(code::NODATA));
    let kept = message_order(host, 0).unwrap();
    assert_eq!(kept & WAS, 0);
    assert_eq!(message_order(host, kept), Ok(kept));
    assert_eq!(message_order(host, WAS), Err(code::NODATA));
}

/// An untagged message in one piece, or a receive of one.
fn post_one(node: Node, start: *mut u8, length: usize, sends: bool) {
    let (buffer, context) = (start.cast::<c_void>(), null_mut());
    // SAFETY: the endpoint is open, and the test keeps the bytes until their completions.
    let status = unsafe {
        let calls = &*(*node.ep).msg;
        match sends {
            true => (calls.send)(node.ep, buffer, length, null_mut(), 1, context),
            false => (calls.recv)(node.ep, buffer, length, null_mut(), UNSPEC, context),
        }
    };
    assert_eq!(status, 0);
}

#[test]
fn received_data_is_written_in_order() {
    let Some(host) = host("received_data_is_written_in_order") else { return };
    let (_world, [from, to]): (World, _) = connected(host, (0, DATA));
    for length in [8, 3_000, LONG, 1 << 20, 8 << 20] {
        let watched = Watched::new(iter::once(0..length).collect());
        let piece = watched.piece(0..length);
        watched.watch(|| {
            for round in 1..=4 {
                let mut bytes = vec![round; length];
                post_one(to, piece.as_ptr(), length, false);
                post_one(from, bytes.as_mut_ptr(), length, true);
                let (mut over, start) = (0, Instant::now());
                while over < 2 {
                    for node in [from, to] {
                        over += usize::from(node.read().is_ok());
                        watched.check();
                    }
                    assert!(start.elapsed() < PATIENCE, "{over} completions came");
                }
                assert!(watched.is_all(0, round));
            }
        });
    }
}

#[test]
fn messages_are_written_in_the_order_of_matching() {
    let Some(host) = host("messages_are_written_in_the_order_of_matching") else { return };
    for asked in [0, DATA, STRICT | DATA] {
        let (mut long, mut short) = (vec![1; LONG], [2; 8]);
        let watched = Watched::new(vec![0..LONG, LONG..LONG + 8]);
        let (world, [from, to]) = connected(host, (0, asked));
        for (piece, tag) in watched.pieces().iter().zip([1, 2]) {
            // SAFETY: the bytes are there until the receive is over, and nobody else writes them.
            let into = unsafe { std::slice::from_raw_parts_mut(piece.as_ptr(), piece.len()) };
            post(to, into, tag, false);
        }
        post(from, &mut long, 1, true);
        post(from, &mut short, 2, true);
        // Without its sender the long one does not come.
        let early = completed(to, &[]);
        assert_eq!(early.is_empty(), asked != 0);
        assert!(watched.is_all(1, if asked == 0 { 2 } else { 0 }));
        let rest = (early.len()..2).map(|_| world.completion(to).op_context as usize);
        let order: Vec<usize> = early.iter().copied().chain(rest).collect();
        assert_eq!(order, if asked == 0 { [2, 1] } else { [1, 2] });
        assert!(watched.is_all(0, 1) && watched.is_all(1, 2));
    }
}
