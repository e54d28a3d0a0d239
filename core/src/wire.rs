//! What a packet says: the kinds, their words and their flags.
//!
//! `docs/protocol.md` is the prose of this file. A head is 32 bits, so that it
//! shares one 64-bit word with a lane's stamp; what else a kind needs travels as
//! whole words in front of the payload.

/// The protocol's version, exchanged when two endpoints connect.
pub const VERSION: u16 = 10;

/// Beside the error number of a `Finish`: the receiver's adapter has read the message into a buffer that
/// was registered for that alone.
pub const REGISTERED: u64 = 1 << 32;

/// What a packet is. Anything else from a peer breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A whole message. Word: tag. Words: `[data] [operation]`.
    Eager = 1,
    /// The start of a message in several packets. Word: tag. Words:
    /// `operation, total, prefix, data, remote`; the upper half of the prefix is a key, of a
    /// message that is lent.
    Long = 2,
    /// A further part of a long message. Word: operation. Words: `offset`.
    Part = 3,
    /// The receiver wants some of the message in parts: all that is left, or the start of it
    /// first. Word: operation. Words: `from, to`.
    Consent = 4,
    /// The receiver has it all, or gives it up. Word: operation. Words: `errno`, with
    /// [`REGISTERED`].
    Finish = 5,
    /// A message that asked for it was delivered or matched. Word: operation. Words: `0`.
    Acknowledge = 6,
    /// The endpoint closes. Word: what has come to it, as its transport says it, or 0. No words.
    Bye = 7,
    /// Bytes for a stretch of registered memory. Word: operation. Words: `key, address`.
    Write = 8,
    /// Bytes for a stretch of registered memory, with remote CQ data. Word: operation. Words: `key,
    /// address, data`.
    WriteData = 9,
    /// Some of the bytes for a longer stretch. Word: operation. Words: `key,
    /// address, length, offset, data`: address and length of the stretch.
    WritePart = 10,
    /// A stretch of registered memory is wanted. Word: operation. Words: `key,
    /// address, length, offset`: the offset is the one in the operation's buffer.
    Read = 11,
    /// Operands for a stretch of registered memory. Word: operation. Words: `key,
    /// address, call`.
    Atomic = 12,
    /// What a read or an atomic asked for. Word: operation. Words: `offset`.
    Data = 13,
    /// A one-sided operation is done, or refused. Word: operation. Words: `errno`.
    Done = 14,
    /// The receiver reads a message itself, and the sender may help. Word: operation. Words:
    /// `claim, address, wanted, block`.
    Share = 15,
    /// The sender has helped. Word: operation. Words: `from`: from there on all is written.
    Wrote = 16,
    /// A connection is asked for. Word: the request's nonce. Payload: the application's data.
    Request = 17,
    /// A connection is accepted, by the endpoint that says so. Word: the nonce. Payload: the
    /// application's data.
    Accept = 18,
    /// A connection is rejected. Word: the nonce. Payload: the application's data.
    Reject = 19,
    /// The caller has heard that it was accepted. Word: the nonce.
    Established = 20,
    /// The sender wants a window to the receiver's memory. No word of its own. Words: an
    /// invitation.
    Invite = 21,
    /// The receiver's end of it exists. Words: an invitation, or zeroes.
    Admit = 22,
    /// What may be reached of a region through a window? Word: key. No words.
    Ask = 23,
    /// The answer. Word: key. Words: a lease: `base, length, address, remote key and access`.
    Lease = 24,
    /// The sender is another pair of contexts than the first of its endpoint: said before all
    /// else. Word: the pair's index.
    Context = 25,
    /// The sender gives up a message that it had begun. Word: operation. No words.
    Withdraw = 26,
    /// An adapter of the peer's has written to our memory, and given data along. Word: the data,
    /// and the bytes that were written in the upper half. No words.
    Written = 27,
}

impl Kind {
    /// The kind that a byte stands for.
    #[inline(always)]
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Eager,
            2 => Kind::Long,
            3 => Kind::Part,
            4 => Kind::Consent,
            5 => Kind::Finish,
            6 => Kind::Acknowledge,
            7 => Kind::Bye,
            8 => Kind::Write,
            9 => Kind::WriteData,
            10 => Kind::WritePart,
            11 => Kind::Read,
            12 => Kind::Atomic,
            13 => Kind::Data,
            14 => Kind::Done,
            15 => Kind::Share,
            16 => Kind::Wrote,
            17 => Kind::Request,
            18 => Kind::Accept,
            19 => Kind::Reject,
            20 => Kind::Established,
            21 => Kind::Invite,
            22 => Kind::Admit,
            23 => Kind::Ask,
            24 => Kind::Lease,
            25 => Kind::Context,
            26 => Kind::Withdraw,
            27 => Kind::Written,
            _ => return None,
        })
    }
}

/// The message is tagged.
pub const TAGGED: u8 = 1;
/// Remote CQ data travels along.
pub const DATA: u8 = 2;
/// The sender waits until the message is delivered.
pub const ACK_DELIVERY: u8 = 4;
/// The sender waits until the message is matched.
pub const ACK_MATCH: u8 = 8;
/// Of one-sided packets: the operation's last, to be answered.
pub const LAST: u8 = 4;
/// Of one-sided packets: what they change is to be on its storage before it is answered.
pub const COMMIT: u8 = 8;
/// The sender has nothing else to send: it would help to copy what is read from its memory. The
/// receiver waits for the message, and may see payload of it while it is copied in.
pub const WAITS: u8 = 16;
/// Of a rejection: as many requests wait as the listener takes.
pub const FULL: u8 = 1;
/// Of a rejection: the listener, or the endpoint that was opened for the request, was closed
/// without an answer.
pub const UNANSWERED: u8 = 2;
/// Of a rejection: who had accepted went before the connection stood.
pub const WITHDRAWN: u8 = 3;
/// The bits that core uses; the rest is the transport's.
pub const CORE_FLAGS: u8 = 0x1f;

/// What each message costs of the credit beside its payload: the memory that
/// its envelope takes while it is unexpected. Units: bytes.
pub const ENVELOPE_COST: u64 = 96;

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// A [`Kind`], as the peer wrote it.
    pub kind: u8,
    /// Flags of this module below, the transport's own above.
    pub flags: u8,
    /// Free for the transport: the length of what lies in the packet itself.
    pub length: u16,
}

impl Head {
    /// A head of `kind`.
    #[inline(always)]
    pub const fn new(kind: Kind, flags: u8) -> Head {
        Head { kind: kind as u8, flags, length: 0 }
    }

    /// As one 32-bit word.
    #[inline(always)]
    pub const fn to_word(self) -> u32 {
        self.kind as u32 | (self.flags as u32) << 8 | (self.length as u32) << 16
    }

    /// From one 32-bit word.
    #[inline(always)]
    pub const fn from_word(word: u32) -> Head {
        Head { kind: word as u8, flags: (word >> 8) as u8, length: (word >> 16) as u16 }
    }

    /// Whether the packet is a whole message that has nothing with it but its payload, in the
    /// line of the head or in whatever way the transport needs no flag for.
    #[inline(always)]
    pub const fn is_plain(self) -> bool {
        let beside_tagged = self.to_word() & !((TAGGED as u32) << 8) & 0xffff;
        beside_tagged == Kind::Eager as u32
    }

    /// Whether its payload may be copied in when the packet is published.
    #[inline(always)]
    pub const fn is_shown(self) -> bool {
        let is_message = self.kind == Kind::Eager as u8
            || self.kind == Kind::Long as u8
            || self.kind == Kind::Part as u8;
        is_message && self.flags & WAITS != 0
    }

    /// How many inline words precede the payload of a packet of this head's kind.
    /// An unknown kind has none: core refuses it.
    #[inline(always)]
    pub const fn words(self) -> usize {
        if self.kind == Kind::Eager as u8 {
            return self.eager_words();
        }
        WORDS[self.kind as usize % WORDS.len()] as usize
    }

    /// How many words precede the payload of an eager message.
    #[inline(always)]
    pub const fn eager_words(self) -> usize {
        (self.flags & DATA != 0) as usize + (self.flags & (ACK_DELIVERY | ACK_MATCH) != 0) as usize
    }
}

/// Words of each kind but the first, which has its own rule; kinds that do not
/// exist share a place, which matters to nobody.
const WORDS: [u8; 32] = {
    let mut words = [0; 32];
    words[Kind::Long as usize] = LONG_WORDS as u8;
    words[Kind::Part as usize] = PART_WORDS as u8;
    words[Kind::Consent as usize] = 2;
    words[Kind::Finish as usize] = 1;
    words[Kind::Acknowledge as usize] = 1;
    words[Kind::Write as usize] = 2;
    words[Kind::WriteData as usize] = 3;
    words[Kind::WritePart as usize] = 5;
    words[Kind::Read as usize] = 4;
    words[Kind::Atomic as usize] = 3;
    words[Kind::Data as usize] = 1;
    words[Kind::Done as usize] = 1;
    words[Kind::Share as usize] = REPLY_WORDS as u8;
    words[Kind::Wrote as usize] = 1;
    words[Kind::Invite as usize] = 4;
    words[Kind::Admit as usize] = 4;
    words[Kind::Lease as usize] = 4;
    words
};

/// Words of the longest reply.
pub const REPLY_WORDS: usize = 4;
/// Words in front of the payload of a long message's first packet.
pub const LONG_WORDS: usize = 5;
/// Words in front of the payload of its further packets.
pub const PART_WORDS: usize = 1;
