//! One way between two stations: a queue of packets.

use std::{
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
}
