//! Single-copy: a long message goes from one buffer to the other without a place between.
//!
//! The receiver reads the sender's memory as soon as it has matched the message, and offers the
//! sender to write some of it: the two share the work block by block (see
//! [`crate::ring::claims`]), and one that is away costs nothing, since the other takes all.
//!
//! A sender keeps its buffer until the receiver's Finish, and a receiver its buffer until every
//! block is written, so both stay valid in between. A receiver that gives a message up waits for a block
//! that is being written, but not for ever: see [`pull`]. What cannot be read comes in parts.
//!
//! - [`pull`]: the receiver's side.
//! - [`help`]: the sender's.

pub mod help;
pub mod pull;

use std::collections::VecDeque;

use self::{help::Helping, pull::Pull};

/// Messages that are under way like that.
#[derive(Default)]
pub(crate) struct Copies {
    /// Read from their senders' memory.
    pub pulls: VecDeque<Pull>,
    /// Ours, which we help a receiver with.
    pub helps: VecDeque<Helping>,
}

impl Copies {
    /// Whether there is nothing to copy.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.pulls.is_empty() && self.helps.is_empty()
    }
}

/// What is known of that between a peer and us.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerCopies {
    /// Offers open to it, for messages that we read from it: a bit each.
    offered: u8,
    /// How many offers there were.
    generation: u16,
    /// It did not let us read its memory.
    pub unreadable: bool,
    /// It did not let us write to its memory.
    unwritable: bool,
}

impl PeerCopies {
    /// There is a new lane to it.
    pub fn note_connected(&mut self) {
        self.unwritable = false;
    }

    /// There is a new lane from it.
    pub fn note_heard(&mut self) {
        (self.unreadable, self.offered) = (false, 0);
    }
}

/// Bytes that one poll copies of a message at most, so that the poll stays short.
pub(crate) const STRETCH: usize = 1 << 20;

/// What a block of a message is a multiple of, and so has at least: each block costs whoever copies it a
/// system call. It has [`STRETCH`] at most.
pub(crate) const BLOCK_MIN: usize = 4 << 10;
