//! One way between two stations: a queue of packets.

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::Station;
use crate::{
    auth_key::KeyNumber,
    ring::{claims::Claims, lane::INLINE_WORDS},
    wire::Head,
};

pub(super) struct Lane {
    pub(super) from: Arc<Station>,
    pub(super) to: Arc<Station>,
    /// What `to` calls the key that was proved.
    pub(super) key: KeyNumber,
    pub(super) queue: Mutex<Packets>,
    pub(super) claims: Claims,
}

#[derive(Default)]
pub(super) struct Packets {
    pub(super) packets: VecDeque<Packet>,
    pub(super) credit: u64,
}

pub(super) struct Packet {
    pub(super) head: Head,
    pub(super) word: u64,
    pub(super) words: [u64; INLINE_WORDS],
    pub(super) payload: Vec<u8>,
    /// How often half of it is seen before all of it is.
    looks: Cell<u32>,
}

impl Packet {
    /// A packet without words and payload. A message that its receiver waits for may be seen while
    /// it is copied in, for a time that its tag decides: not at all, shortly, or so long that
    /// nobody waits for it.
    pub(super) fn new(head: Head, word: u64) -> Packet {
        let looks = if head.is_shown() { 700 * (word % 4) as u32 } else { 0 };
        let (words, payload) = ([0; INLINE_WORDS], Vec::new());
        Packet { head, word, words, payload, looks: Cell::new(looks) }
    }

    /// It was left, and is whole when it is met again.
    pub(super) fn leave(&self) {
        self.looks.set(0);
    }

    /// How much of its payload is seen.
    pub(super) fn placed(&self) -> usize {
        let Some(fewer) = self.looks.get().checked_sub(1) else {
            return self.payload.len();
        };
        self.looks.set(fewer);
        self.payload.len() / 2
    }
}
