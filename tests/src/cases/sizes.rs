//! Messages of every size that means something to the protocol.

use kestrel_core::{address_vector::FI_ADDR_UNSPEC, flags::Flags, transport::Provider};

use crate::bed::{Bed, Memory, Send, World, pattern, same};
use crate::scale::{Scale, scale};

/// Around every limit of lines, chunks, eager messages and prefixes.
const SIZES: [usize; 31] = [
    0,
    1,
    7,
    8,
    9,
    16,
    17,
    40,
    41,
    47,
    48,
    49,
    391,
    392,
    393,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    32767,
    32768,
    32769,
    65535,
    65536,
    65537,
    131_072,
    262_143,
    524_289,
    1 << 20,
];

fn exchange<P: Provider>(world: &World<P>, size: usize, tag: Option<u64>, expected: bool) {
    let bytes = Memory::from(pattern(size as u64 + 1, size));
    if expected {
        world.nodes[1].receive(size, tag, 1);
    }
    for data in [None, Some(u64::MAX - 7)] {
        let send = Send { pieces: bytes.all(), tag, data, context: 2, ..Send::default() };
        world.post(|| world.nodes[0].post_send(1, &send));
        if !expected || data.is_some() {
            world.poll(3);
            world.nodes[1].receive(size, tag, 1);
        }
        let received = world.received(1).good();
        assert_eq!((received.length, received.source), (size as u64, 0));
        assert_eq!(received.flags.contains(Flags::REMOTE_CQ_DATA), data.is_some());
        assert_eq!(received.data, data.unwrap_or(0));
        same(&received.returned.unwrap(), &bytes.bytes(), &format!("{size} bytes"));
        assert_eq!(world.sent(0).context(), 2);
    }
}

pub fn expected_messages_of_every_size<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for size in SIZES {
        exchange(&world, size, None, true);
        exchange(&world, size, Some(size as u64), true);
    }
    world.nothing_more();
}

pub fn unexpected_messages_of_every_size<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for size in SIZES {
        exchange(&world, size, None, false);
        exchange(&world, size, Some(size as u64), false);
    }
    // All at once, received in the other order.
    for size in SIZES {
        world.nodes[0].send(pattern(size as u64, size), 1, Some(size as u64), size as u64);
    }
    world.poll(30);
    for size in SIZES.into_iter().rev() {
        world.nodes[1].receive(size, Some(size as u64), 0);
        let received = world.received(1).good();
        same(&received.returned.unwrap(), &pattern(size as u64, size), "in the other order");
    }
    for _ in SIZES {
        let sent = world.sent(0).good();
        let buffer = sent.returned.expect("a safe send returns its buffer");
        same(&buffer, &pattern(sent.context, sent.context as usize), "returned to its sender");
    }
    world.nothing_more();
}

pub fn messages_that_cross<P: Provider>(bed: &Bed<P>) {
    for size in [100, 9_000, 70_000, 3 << 20] {
        for posted_first in [true, false] {
            let world = bed.world(2);
            let post = |node: usize| {
                for nth in 0..4 {
                    world.nodes[node].receive(size, Some(nth), nth);
                }
            };
            if posted_first {
                (0..2).for_each(post);
            }
            for nth in 0..4 {
                for node in 0..2u64 {
                    let bytes = pattern(10 * nth + node, size);
                    world.nodes[node as usize].send(bytes, 1 - node, Some(nth), nth);
                }
            }
            if !posted_first {
                world.poll(5);
                (0..2).for_each(post);
            }
            for _ in 0..4 {
                for node in 0..2 {
                    let received = world.received(node).good();
                    let seed = 10 * received.tag + (1 - node as u64);
                    same(&received.returned.unwrap(), &pattern(seed, size), "crossing");
                    world.sent(node).good();
                }
            }
            world.nothing_more();
        }
    }
}

/// Some one at a time, and some in a stream: who compares ways to move them tries each.
pub fn one_length_again_and_again<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for size in [10_000, 40_000, 200_000] {
        for flight in [1, 7] {
            for round in 0..84 / flight {
                let bytes = |nth| pattern(1000 * round + nth, size);
                for nth in 0..flight {
                    world.nodes[1].receive(size, Some(0), nth);
                }
                for nth in 0..flight {
                    world.nodes[0].send(bytes(nth), 1, Some(0), nth);
                }
                // Each has the receive whose turn it is, but completes when it has been moved.
                let (mut received, mut sent) = (0, 0);
                for _ in 0..flight {
                    let done = world.received(1).good();
                    same(&done.returned.unwrap(), &bytes(done.context), "again");
                    received |= 1 << done.context;
                    let done = world.sent(0).good();
                    same(&done.returned.unwrap(), &bytes(done.context), "returned");
                    sent |= 1 << done.context;
                }
                let all = (1 << flight) - 1;
                assert_eq!((received, sent), (all, all), "each once");
            }
        }
    }
    world.nothing_more();
}

pub fn large_messages<P: Provider>(bed: &Bed<P>) {
    let sizes: &[usize] = match scale() {
        Scale::Quick => &[(16 << 20) + 1],
        Scale::Default => &[64 << 20],
        Scale::Full => &[64 << 20, (1 << 30) + 1],
    };
    for &size in sizes {
        let bytes = Memory::from(pattern(9, size));
        let world = bed.world(2);
        for posted_first in [true, false] {
            let post = || world.nodes[1].receive(size, Some(1), 0);
            if posted_first {
                post();
            }
            let send = Send { pieces: bytes.all(), tag: Some(1), ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            if !posted_first {
                world.poll(5);
                post();
            }
            let received = world.received(1).good();
            // SAFETY: the send has kept the memory unchanged.
            let expected = unsafe { bytes.piece().as_slice() };
            same(&received.returned.unwrap(), expected, "a large message");
            world.sent(0).good();
            assert_eq!((received.length, received.source), (size as u64, 0));
        }
    }
    assert_ne!(FI_ADDR_UNSPEC, 0);
}
