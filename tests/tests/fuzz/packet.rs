//! Packets as a peer may send them: arbitrary, plausible, or an answer.

use kestrel_core::{
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    ring::claims::CLAIMS,
    transport::PeerIndex,
    window::{Access, Lease},
    wire::{Head, Kind, LAST},
};
use kestrel_tests::{packets, random::Random};

/// A packet as a peer may send it: right in form, arbitrary in content.
#[derive(Clone, Debug)]
pub struct Packet {
    pub peer: PeerIndex,
    pub head: Head,
    pub word: u64,
    pub words: [u64; 6],
    pub length: usize,
}

/// The key of the only region that a peer can reach, and its length.
pub const KEY: u64 = 5;
pub const REGION: u64 = 32 << 10;
/// The key by which we reach peers' memory.
pub const THEIR_KEY: u64 = 1;

pub fn number(random: &mut Random) -> u64 {
    match random.below(7) {
        0 => 0,
        1 => u64::MAX - random.below(4),
        2 => 1 << random.below(64),
        3 => random.below(3) << 32 | random.below(8),
        4 => random.below(70_000),
        5 => random.below(8),
        _ => random.number(),
    }
}

impl Packet {
    /// An untagged message that can be read, and is lent.
    pub fn lent(peer: PeerIndex, operation: u64, total: u64) -> Packet {
        let words = [operation, total, 7 << 32, 0, 1 << 20, 0];
        Packet { peer, head: Head::new(Kind::Long, 0), word: 0, words, length: 0 }
    }

    /// Its sender gives it up.
    pub fn withdrawal(peer: PeerIndex, operation: u64) -> Packet {
        let head = Head::new(Kind::Withdraw, 0);
        Packet { peer, head, word: operation, words: [0; 6], length: 0 }
    }

    /// An operation of ours is refused.
    pub fn refusal(peer: PeerIndex, operation: u64) -> Packet {
        let head = Head::new(Kind::Done, 0);
        Packet { peer, head, word: operation, words: [5, 0, 0, 0, 0, 0], length: 0 }
    }

    pub fn arbitrary(random: &mut Random, peer: PeerIndex) -> Packet {
        let length = [0, 1, 8, 40, 400, 4_000, 32_768][random.below(7) as usize];
        Packet {
            peer,
            head: Head {
                kind: packets::kind(random),
                flags: random.number() as u8 & 0x1f,
                length: 0,
            },
            word: number(random),
            words: std::array::from_fn(|_| number(random)),
            length,
        }
    }

    /// The same with values that the protocol may well accept.
    pub fn plausible(mut self, random: &mut Random) -> Packet {
        let Some(kind) = Kind::from_byte(self.head.kind) else { return self };
        let name = random.below(3) << 32 | random.below(6);
        match kind {
            Kind::Eager => self.word = random.below(4),
            Kind::Long => self.begin(random, name),
            Kind::Part => {
                self.word = name;
                self.words[0] = [0, 1, 8, 40, 400, 4_000, 32_768][random.below(7) as usize];
            }
            Kind::Write | Kind::WriteData | Kind::WritePart | Kind::Read | Kind::Atomic => {
                self.reach(kind, random, name);
            }
            Kind::Data => (self.word, self.words[0]) = (name, random.below(3) * 8),
            Kind::Consent | Kind::Finish | Kind::Acknowledge | Kind::Done | Kind::Withdraw => {
                (self.word, self.words[0]) = (name, random.below(2) * 5);
            }
            Kind::Share => {
                let claim = random.below(3) << 8 | random.below(CLAIMS as u64 + 1);
                let wanted = [9_000, 70_000][random.below(2) as usize];
                self.word = name;
                self.words[..4].copy_from_slice(&[claim, number(random), wanted, 4 << 10]);
            }
            Kind::Wrote => {
                (self.word, self.words[0]) = (name, [0, 8 << 10, 70_000][random.below(3) as usize]);
            }
            Kind::Request | Kind::Accept | Kind::Reject | Kind::Established => {
                (self.word, self.length) = (random.below(4), self.length.min(400));
            }
            Kind::Invite | Kind::Admit => self.words[0] = random.below(3),
            Kind::Ask => self.word = KEY,
            Kind::Lease => {
                let access = Access { read: true, write: true, atomic: random.once_in(2) };
                let (length, remote_key) = (random.below(100_000), 7);
                let lease = Lease { base: 0, length, address: 1 << 20, remote_key, access };
                self.word = THEIR_KEY;
                self.words[..4].copy_from_slice(&lease.to_words());
            }
            Kind::Bye => {}
            Kind::Context => self.word = random.between(1, 4),
            Kind::Written => self.word = random.below(100_000) << 32 | random.below(8),
        }
        self
    }

    /// What a peer may answer to a packet, if that wants an answer.
    pub fn answer(random: &mut Random, to: &Packet) -> Option<Packet> {
        let kind = match Kind::from_byte(to.head.kind)? {
            Kind::Invite => Kind::Admit,
            Kind::Ask => Kind::Lease,
            Kind::Share => Kind::Wrote,
            Kind::Long => [Kind::Share, Kind::Consent, Kind::Finish][random.below(3) as usize],
            Kind::Read => Kind::Data,
            Kind::Atomic => Kind::Data,
            Kind::Write | Kind::WriteData | Kind::WritePart if to.head.flags & LAST != 0 => {
                Kind::Done
            }
            _ => return None,
        };
        let (words, length) = (std::array::from_fn(|_| number(random)), 8);
        let head = Head { length: 0, ..Head::new(kind, 0) };
        let mut packet = Packet { peer: to.peer, head, word: 0, words, length }.plausible(random);
        packet.word = if to.head.kind == Kind::Long as u8 { to.words[0] } else { to.word };
        match kind {
            Kind::Admit => packet.words[0] = 1 + random.below(3),
            // All of the message, in blocks.
            Kind::Share => packet.words[2] = to.words[1],
            Kind::Consent => (packet.words[0], packet.words[1]) = (to.words[2], to.words[1]),
            Kind::Done | Kind::Finish => packet.words[0] = random.below(8) / 7,
            Kind::Data if to.head.kind == Kind::Read as u8 => {
                (packet.words[0], packet.length) = (to.words[3], to.words[2] as usize);
            }
            Kind::Data => {
                let call = to.words[2];
                (packet.words[0], packet.length) = (call >> 48, (call >> 32) as usize & 0xffff);
            }
            _ => {}
        }
        Some(packet)
    }

    /// The start of a message in several packets, or of one that is read or fetched.
    fn begin(&mut self, random: &mut Random, name: u64) {
        let total = random.below(100_000);
        let mut prefix = if random.once_in(4) { 0 } else { total.min(65_536) };
        self.length = self.length.min(prefix as usize);
        if prefix == 0 && random.once_in(2) {
            // The key of what it lends.
            prefix = 7 << 32;
        }
        (self.word, self.words[0]) = (random.below(4), name);
        (self.words[1], self.words[2]) = (total, prefix);
    }

    /// Something that a peer may do to our memory.
    fn reach(&mut self, kind: Kind, random: &mut Random, name: u64) {
        self.word = name;
        (self.words[0], self.words[1]) = (KEY, random.below(REGION));
        match kind {
            Kind::WritePart => {
                self.words[2] = random.below(REGION);
                self.length = self.length.min(self.words[2] as usize);
                self.words[3] = random.below(self.words[2] - self.length as u64 + 1);
            }
            Kind::Read => (self.words[2], self.length) = (random.below(REGION), 0),
            Kind::Atomic => {
                let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
                let call = AtomicCall {
                    operation: AtomicOperation::ALL[pick(random, AtomicOperation::ALL.len())],
                    datatype: Datatype::ALL[pick(random, Datatype::ALL.len())],
                    form: Form::ALL[pick(random, Form::ALL.len())],
                };
                let length = call.datatype.size() * random.between(1, 20) as usize;
                self.words[2] = call.to_word(length, 0);
                self.length = call.payload(length);
            }
            _ => {}
        }
    }
}
