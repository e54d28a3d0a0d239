//! How much was sent, and through which transport. Counted by the owner of the engine alone, so
//! nothing is atomic.

use std::fmt;

use kestrel_core::{
    window::{Request, Started},
    wire::{Head, Kind},
};

/// What one transport took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages and one-sided operations that began.
    pub messages: u64,
    /// The lengths of the messages, also where the receiver fetches the rest by itself, and the
    /// payload of one-sided operations, answers to the peers' reads included.
    pub bytes: u64,
    /// One-sided operations of those messages that an adapter did: the device, or the kernel. What
    /// a window could not do counts again as the packets that it went in.
    pub by_adapter: u64,
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
        if head.kind == Kind::Eager as u8 {
            self.messages += 1;
            self.bytes += bytes as u64;
        } else {
            self.count_other(head, words, bytes);
        }
    }

    /// An adapter was asked for an operation. Its reads are counted here: their target hears of none. What
    /// is fetched its sender has counted.
    #[inline(always)]
    pub(super) fn count_request(&mut self, request: &Request, started: Started) {
        if !request.is_fetch() {
            self.count_started(request.local.len(), started);
        }
    }

    /// The same of an operation on that many bytes.
    #[inline(always)]
    pub(super) fn count_started(&mut self, bytes: usize, started: Started) {
        if started.is_started() {
            self.messages += 1;
            self.bytes += bytes as u64;
            self.by_adapter += 1;
        }
    }

    #[inline(never)]
    fn count_other(&mut self, head: Head, words: &[u64], bytes: usize) {
        /// Among a long message's words: how long it is.
        const TOTAL: usize = 1;
        /// Among those of a part of a longer write: where it belongs.
        const OFFSET: usize = 3;
        let word = |index| words.get(index).copied().unwrap_or(0);
        let bytes = bytes as u64;
        let (begins, bytes) = match Kind::from_byte(head.kind) {
            Some(Kind::Long) => (true, word(TOTAL)),
            Some(Kind::Part) => (false, 0),
            Some(Kind::WritePart) => (word(OFFSET) == 0, bytes),
            Some(Kind::Write | Kind::WriteData | Kind::Read | Kind::Atomic) => (true, bytes),
            _ => (false, bytes),
        };
        self.messages += u64::from(begins);
        self.bytes += bytes;
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Traffic { near, far } = self;
        write!(f, "{} messages ({} bytes) through shared memory", near.messages, near.bytes)?;
        write!(f, ", {} messages ({} bytes) through RDMA", far.messages, far.bytes)?;
        write!(
            f,
            "; {} of these by the kernel and {} by the device",
            near.by_adapter, far.by_adapter
        )
    }
}
