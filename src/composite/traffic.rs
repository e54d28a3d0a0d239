//! How much was sent, and through which transport. Counted by the owner of the engine alone, so
//! nothing is atomic.

use std::fmt;

use kestrel_core::wire::{Head, Kind};

/// What one transport took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages and one-sided operations that began.
    pub messages: u64,
    /// Their payload, what was answered to the peers' reads included.
    pub bytes: u64,
}

/// What an endpoint sent, by transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Through shared memory.
    pub near: Sent,
    /// Through an RDMA device.
    pub far: Sent,
}

impl Sent {
    /// A packet was taken.
    #[inline(always)]
    pub(super) fn count(&mut self, head: Head, words: &[u64], bytes: usize) {
        self.messages += u64::from(begins(head, words));
        self.bytes += bytes as u64;
    }
}

/// Whether a packet is the first of its message or operation.
#[inline(always)]
fn begins(head: Head, words: &[u64]) -> bool {
    /// Where a part of a longer write belongs, among its words.
    const OFFSET: usize = 3;
    if head.kind == Kind::Eager as u8 {
        return true;
    }
    if head.kind == Kind::WritePart as u8 {
        return words.get(OFFSET) == Some(&0);
    }
    [Kind::Long, Kind::Write, Kind::WriteData, Kind::Read, Kind::Atomic]
        .iter()
        .any(|&kind| head.kind == kind as u8)
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Traffic { near, far } = self;
        write!(f, "{} messages ({} bytes) through shared memory", near.messages, near.bytes)?;
        write!(f, ", {} messages ({} bytes) through RDMA", far.messages, far.bytes)
    }
}
