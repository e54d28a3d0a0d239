//! A long message that is not whole for a while, and short ones that come behind it.

use std::time::Instant;

use kestrel_core::{
    flags::Flags,
    memory::{Piece, Pieces},
    transport::Provider,
};

use crate::{
    bed::{Memory, Send, World, pattern},
    scale::PATIENCE,
};

/// Half a message that needs its sender several times. In two pieces nobody reads it where it lies.
pub const HALF: usize = 8 << 20;
/// Its tag and context.
pub const FIRST: u64 = 1;

/// The message.
pub fn long() -> Memory {
    Memory::from(pattern(1, 2 * HALF))
}

/// Its send, of memory that was cut into the halves.
pub fn first(halves: &[Piece]) -> Send<'_> {
    Send { pieces: Pieces::Many(halves), tag: Some(FIRST), context: FIRST, ..Send::default() }
}

/// Sends it from node 0 to node 1, for a receive that is posted.
pub fn start_long<P: Provider>(world: &World<P>, long: &Memory) {
    world.nodes[1].receive(2 * HALF, Some(FIRST), FIRST);
    world.nodes[0].post_send(1, &first(&long.cut(&[HALF, HALF]))).unwrap();
}

/// A message that tells its sender when it has come.
pub fn short(bytes: &Memory, tag: u64) -> Send<'_> {
    let (pieces, flags) = (bytes.all(), Flags::DELIVERY_COMPLETE);
    Send { pieces, tag: Some(tag), context: tag, flags, ..Send::default() }
}

/// Drives the sender of the long message, and who receives it, until `count` others have come: not
/// long enough for the long one, which does not come then without its sender.
pub fn until_come<P: Provider>(world: &World<P>, count: usize, receiver: impl Fn()) {
    let start = Instant::now();
    loop {
        world.nodes[0].poll();
        if world.waiting(0).0 >= count {
            break;
        }
        receiver();
        assert!(start.elapsed() < PATIENCE, "in vain: short messages");
    }
    (0..100).for_each(|_| receiver());
}
