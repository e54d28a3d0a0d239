//! Mixed messages between two nodes, each of which checks itself.
//!
//! A message's tag says its class (who receives it) and its seed; the seed says
//! its length and every byte. So a receiver needs to know nothing, and whatever
//! is lost, doubled, mixed up or cut short shows.

use std::collections::HashMap;

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::Entry,
    endpoint::PostError,
    flags::Flags,
    memory::{Piece, Pieces},
    operation::SendPost,
};

use crate::{
    node::{Done, Node},
    random::Random,
};

/// Received by anyone's receives.
pub const ANY: u64 = 1;
/// Received by receives that name their sender.
pub const DIRECTED: u64 = 2;
/// Never received: unexpected at the receiver.
pub const BACKLOG: u64 = 3;

/// Never sent.
pub const SENTINEL: u64 = 4;

const CLASS_SHIFT: u32 = 56;
/// The bits of a tag that are a message's own.
pub const SEED_MASK: u64 = (1 << 40) - 1;
const LENGTH_BITS: u32 = 20;
/// The longest message. Units: bytes.
pub const LENGTH_MAX: usize = 300 << 10;

/// The tag of a message.
pub fn tag(class: u64, seed: u64) -> u64 {
    class << CLASS_SHIFT | seed
}

/// A seed for a message of `length` bytes.
pub fn seed(random: &mut Random, length: usize) -> u64 {
    random.below(1 << (40 - LENGTH_BITS)) << LENGTH_BITS | length as u64
}

/// The bytes of the message with this seed.
pub fn content(seed: u64) -> Vec<u8> {
    let length = (seed & ((1 << LENGTH_BITS) - 1)) as usize;
    let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(0xd134_2543_de82_ef95);
    }
    bytes.truncate(length);
    bytes
}

/// Panics if `entry` is not a message of this module, whole and right.
#[track_caller]
pub fn check(entry: &Entry, buffer: &[u8]) {
    let seed = entry.tag & SEED_MASK;
    let expected = content(seed);
    assert_eq!(entry.length as usize, expected.len(), "the length of {entry:?}");
    let differs = expected.iter().zip(buffer).position(|(one, other)| one != other);
    assert_eq!(differs, None, "the content of {entry:?}");
}

/// What an operation under way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A send.
    Send,
    /// A receive from anyone.
    ReceiveAny,
    /// A receive from the one peer.
    ReceiveDirected,
}

/// What mixed traffic consists of.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Sends that are under way at most.
    pub sends: usize,
    /// Receives of each kind that are posted.
    pub receives: usize,
    /// Whether messages go to receives from anyone, too.
    pub undirected: bool,
    /// Messages that nobody receives, at most.
    pub backlog: usize,
    /// The longest message. Units: bytes.
    pub length: usize,
}

impl Default for Mix {
    fn default() -> Self {
        Mix { sends: 24, receives: 6, undirected: true, backlog: 24, length: LENGTH_MAX }
    }
}

/// One node's side of the traffic with one peer.
pub struct Traffic {
    mix: Mix,
    random: Random,
    to: u64,
    /// Names this traffic in contexts: the upper 16 bits.
    id: u64,
    next: u64,
    under_way: HashMap<u64, (Operation, Vec<u8>)>,
    backlog: usize,
    /// Messages received, all of them right.
    pub received: u64,
    /// Sends that completed well.
    pub sent: u64,
    /// Operations that completed badly.
    pub failed: Vec<(Operation, kestrel_core::completion_queue::ErrorEntry)>,
}

impl Traffic {
    /// Traffic with the peer at `to`. `id` is not used by other traffic of the node.
    pub fn new(to: u64, id: u64, seed: u64, mix: Mix) -> Traffic {
        Traffic {
            mix,
            random: Random::new(seed),
            to,
            id,
            next: 1,
            under_way: HashMap::new(),
            backlog: 0,
            received: 0,
            sent: 0,
            failed: Vec::new(),
        }
    }

    fn context(&mut self) -> u64 {
        self.next += 1;
        self.id << 48 | self.next
    }

    /// How many operations of one kind are under way.
    pub fn under_way(&self, operation: Operation) -> usize {
        self.under_way.values().filter(|(kind, _)| *kind == operation).count()
    }

    /// Keeps receives posted, and posts some sends.
    pub fn post(&mut self, node: &Node) {
        self.post_receives(node);
        for _ in 0..self.random.below(4) {
            if self.under_way(Operation::Send) < self.mix.sends {
                self.post_send(node);
            }
        }
    }

    /// Keeps receives posted.
    pub fn post_receives(&mut self, node: &Node) {
        for (operation, class, from) in [
            (Operation::ReceiveAny, ANY, FI_ADDR_UNSPEC),
            (Operation::ReceiveDirected, DIRECTED, self.to),
        ] {
            let wanted = if class == ANY && !self.mix.undirected { 0 } else { self.mix.receives };
            for _ in self.under_way(operation)..wanted {
                let context = self.context();
                let posted = node.endpoint.receive_tagged(
                    vec![0; self.mix.length],
                    from,
                    tag(class, 0),
                    SEED_MASK,
                    context,
                );
                posted.expect("a receive is posted");
                self.under_way.insert(context, (operation, Vec::new()));
            }
        }
    }

    /// Posts a directed receive that no message finds: it ends when the peer does.
    pub fn post_sentinel(&mut self, node: &Node) {
        let context = self.context();
        let posted =
            node.endpoint.receive_tagged(vec![0; 8], self.to, tag(SENTINEL, 0), 0, context);
        posted.expect("a receive is posted");
        self.under_way.insert(context, (Operation::ReceiveDirected, Vec::new()));
    }

    fn length(&mut self) -> usize {
        let length = match self.random.below(16) {
            0..=5 => self.random.below(49),
            6..=9 => self.random.below(1 << 10),
            10..=11 => self.random.below(8 << 10),
            12..=13 => self.random.below(64 << 10),
            14 => 0,
            _ => self.random.between(64 << 10, LENGTH_MAX as u64),
        };
        (length as usize).min(self.mix.length)
    }

    /// Posts a send of any kind.
    pub fn post_send(&mut self, node: &Node) {
        let length = self.length();
        let backlog = self.backlog < self.mix.backlog && self.random.once_in(8);
        let least = if self.mix.undirected { ANY } else { DIRECTED };
        let class = if backlog { BACKLOG } else { self.random.between(least, DIRECTED) };
        self.backlog += usize::from(backlog);
        let seed = seed(&mut self.random, length);
        let kind = self.random.below(8);
        if kind == 0 && length <= 1024 {
            match node.endpoint.inject_tagged(&content(seed), self.to, tag(class, seed)) {
                Ok(()) => self.sent += 1,
                // Who does not come any more is not reached.
                Err(PostError::Again | PostError::Unreachable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            return;
        }
        let level = match kind {
            1 => Flags::DELIVERY_COMPLETE,
            2 => Flags::MATCH_COMPLETE,
            _ => Flags::empty(),
        };
        self.post_level(node, tag(class, seed), level, kind == 3);
    }

    /// Posts a send with this tag at this completion level, in one piece or several.
    pub fn post_level(&mut self, node: &Node, tag: u64, level: Flags, in_pieces: bool) {
        let mut bytes = content(tag & SEED_MASK);
        // SAFETY: the bytes stay in `under_way`, and so where they are, until completion.
        let whole = unsafe { Piece::new(bytes.as_mut_ptr(), bytes.len()) };
        let third = bytes.len() / 3;
        let pieces =
            [whole.part(0, third), whole.part(third, third), whole.part(2 * third, usize::MAX)];
        let context = self.context();
        let posted = node.endpoint.post_send(SendPost {
            pieces: if in_pieces { Pieces::Many(&pieces) } else { Pieces::One(whole) },
            to: self.to,
            tag,
            data: 0,
            context,
            flags: Flags::TAGGED | level,
            region: None,
            attachment: None,
        });
        match posted {
            Ok(()) => {
                self.under_way.insert(context, (Operation::Send, bytes));
            }
            Err(PostError::Again) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes a completion up, or gives it back if it is not of this traffic.
    pub fn take(&mut self, done: Done) -> Option<Done> {
        let context = done.context();
        if context == 0 {
            // An injected message that failed.
            if let Done::Badly(error) = done {
                self.failed.push((Operation::Send, error));
            }
            return None;
        }
        if context >> 48 != self.id {
            return Some(done);
        }
        let (operation, _) =
            self.under_way.remove(&context).unwrap_or_else(|| panic!("completed twice: {done:?}"));
        match done {
            Done::Badly(error) => self.failed.push((operation, error)),
            Done::Well(_) if operation == Operation::Send => self.sent += 1,
            Done::Well(mut entry) => {
                let buffer = entry.take_buffer().expect("a receive gives its buffer back");
                check(&entry, &buffer);
                self.received += 1;
            }
        }
        None
    }

    /// The longest name of what is still under way, for a message.
    pub fn describe(&self) -> String {
        format!(
            "{} sends, {} undirected and {} directed receives under way; {} sent, {} received, {} \
             failed",
            self.under_way(Operation::Send),
            self.under_way(Operation::ReceiveAny),
            self.under_way(Operation::ReceiveDirected),
            self.sent,
            self.received,
            self.failed.len()
        )
    }
}
