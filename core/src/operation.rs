//! Operations: what a caller posts, and what the engine keeps of it.

use crate::{
    attachment::Attachment,
    endpoint::PostError,
    engine::regions::Noted,
    flags::Flags,
    memory::{Piece, Pieces},
    memory_region::descriptor::Descriptor,
    protocol::{contest::Run, fetch::Fetch},
    settled::Settled,
    transport::PeerIndex,
    window::{Loan, OwnRegistration},
};

/// At most this many scatter-gather entries in one operation (`iov_limit`).
pub const IOV_LIMIT: usize = 8;
/// The longest message and the longest one-sided operation (`max_msg_size`). Units: bytes.
pub const MESSAGE_MAX: usize = 1 << 40;

/// Where the caller keeps what a post carries: taken from there, unless the post is refused.
pub type AttachmentSlot<'a> = Option<&'a mut Option<Attachment>>;

/// The same post at a place of its own, for a function that is not inlined: the post itself then need
/// not lie in memory, and most posts never do.
#[inline(always)]
pub(crate) fn set_down<P>(post: P) -> P {
    post
}

/// A send, as posted. Borrowed parts are copied if it cannot be sent at once.
#[derive(Debug)]
pub struct SendPost<'a> {
    /// The message.
    pub pieces: Pieces<'a>,
    /// The receiver's address in the address vector.
    pub to: u64,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    /// Remote CQ data, if `flags` has `REMOTE_CQ_DATA`.
    pub data: u64,
    /// Comes back in the completion.
    pub context: u64,
    /// `TAGGED` or `MSG`, `REMOTE_CQ_DATA`, `COMPLETION`, `INJECT`, `FENCE`, a
    /// completion level. `COMPLETION` here means: write an entry.
    pub flags: Flags,
    /// The region of our domain that the buffer lies in: an adapter may use its registration for longer
    /// messages, and need not make one each.
    pub region: Option<Descriptor>,
    /// The buffer of a safe operation: taken if the post succeeds.
    pub attachment: AttachmentSlot<'a>,
}

impl SendPost<'_> {
    /// A copy of the message, if it is injected.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn injected_copy(&self) -> Result<Option<Copied>, PostError> {
        match self.flags.contains(Flags::INJECT) {
            true => copied(self.pieces).map(|(_, bytes)| Some(bytes)),
            false => Ok(None),
        }
    }

    /// Refuses what is longer than a message may be. What fits a packet need not ask.
    pub fn check_length(&self, limit: usize) -> Result<(), PostError> {
        match self.pieces.total() {
            length if length > limit => Err(PostError::TooLong { length, limit }),
            _ => Ok(()),
        }
    }
}

/// Whether a cancel that names `context` can mean an operation with these flags: the calls that inject
/// name none, which is 0.
pub(crate) fn can_be_named(flags: Flags, context: u64) -> bool {
    context != 0 || !flags.contains(Flags::INJECT)
}

/// The bytes of a copy.
pub(crate) type Copied = Settled<[u8]>;

/// The message in one piece, and its bytes if they had to be gathered.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn in_one_piece(pieces: Pieces<'_>) -> Result<(Piece, Option<Copied>), PostError> {
    if let Pieces::One(piece) = pieces {
        return Ok((piece, None));
    }
    let (piece, bytes) = copied(pieces)?;
    Ok((piece, Some(bytes)))
}

/// A copy of a message: in one piece, which lives as long as its bytes.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn copied(pieces: Pieces<'_>) -> Result<(Piece, Copied), PostError> {
    let mut bytes = room_for(pieces.total())?;
    pieces.for_each_part(0, pieces.total(), |_, part| part.append_to(&mut bytes));
    let bytes = Settled::from(bytes.into_boxed_slice());
    Ok((bytes.piece(), bytes))
}

/// Room for a copy of so many bytes.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn room_for(length: usize) -> Result<Vec<u8>, PostError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| PostError::NoMemory { length })?;
    Ok(bytes)
}

/// A receive, as posted.
#[derive(Debug)]
pub struct ReceivePost<'a> {
    /// The buffers.
    pub pieces: Pieces<'a>,
    /// The only sender that may match, or `FI_ADDR_UNSPEC`.
    pub from: u64,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// Comes back in the completion.
    pub context: u64,
    /// `TAGGED` or `MSG`, `COMPLETION`, `MULTI_RECV`, `PEEK`, `CLAIM`, `DISCARD`.
    pub flags: Flags,
    /// The region of our domain that the buffer lies in: an adapter may use its registration for longer
    /// messages, and need not make one each.
    pub region: Option<Descriptor>,
    /// The buffer of a safe operation: taken if the post succeeds.
    pub attachment: AttachmentSlot<'a>,
}

/// Scatter-gather entries that outlive the post.
#[derive(Debug)]
pub enum StoredPieces {
    /// One contiguous buffer: nothing is allocated.
    One(Piece),
    /// Several.
    Many(Box<[Piece]>),
}

impl StoredPieces {
    /// No bytes.
    pub const EMPTY: StoredPieces = StoredPieces::One(Piece::EMPTY);

    /// What a send is read from: its copy, if there is one.
    pub(crate) fn of_send(pieces: Pieces<'_>, copy: &Option<Copied>) -> StoredPieces {
        match copy {
            Some(bytes) => StoredPieces::One(bytes.piece()),
            None => StoredPieces::store(pieces),
        }
    }

    /// Copies the list, not what it points to.
    #[inline(always)]
    pub fn store(pieces: Pieces<'_>) -> StoredPieces {
        match pieces {
            Pieces::One(piece) => StoredPieces::One(piece),
            Pieces::Many(pieces) => StoredPieces::Many(pieces.into()),
        }
    }

    /// As a view.
    #[inline(always)]
    pub fn view(&self) -> Pieces<'_> {
        match self {
            StoredPieces::One(piece) => Pieces::One(*piece),
            StoredPieces::Many(pieces) => Pieces::Many(pieces),
        }
    }
}

/// How far a send has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStage {
    /// In its peer's queue; nothing of it has left.
    Queued,
    /// In its peer's queue; its first packet has left, its prefix not whole.
    Prefix,
    /// The receiver's consent is awaited.
    AwaitConsent,
    /// Consent is there; parts leave as there is room.
    Streaming,
    /// All has left; the receiver's word is awaited.
    AwaitFinish,
    /// All has left; the transport's word that the peer has it is awaited.
    AwaitConfirmation,
}

/// A send that could not be finished at once.
#[derive(Debug)]
pub struct SendOperation {
    /// Lets the receiver's adapter read it. Dropped, or taken back if it outlasts that, before the memory
    /// is anybody's else.
    pub lent: Option<Loan>,
    /// Whether it is to be lent, if that had to be decided: once, however often it finds no room.
    pub lends: Option<bool>,
    /// The message.
    pub pieces: StoredPieces,
    /// A copy of an injected message.
    pub copy: Option<Copied>,
    /// The receiver.
    pub peer: PeerIndex,
    /// How far it has come.
    pub stage: SendStage,
    /// As posted.
    pub flags: Flags,
    /// As posted.
    pub tag: u64,
    /// As posted.
    pub data: u64,
    /// As posted.
    pub context: u64,
    /// Bytes in all.
    pub total: usize,
    /// Bytes that have left.
    pub sent: usize,
    /// Where its parts end: what is beyond, the receiver has or does not want.
    pub until: usize,
    /// Bytes that may leave before consent.
    pub prefix: usize,
    /// Bytes of each part, where it leaves in parts. Decided when the first leaves.
    pub part: usize,
    /// The packets of its prefix are shown to the receiver while they are copied in.
    pub shown: bool,
    /// Consent came while the prefix was still leaving.
    pub consented: bool,
    /// The receiver, who reads it, has said where we may write some of it.
    pub is_shared: bool,
    /// It is timed.
    pub run: Option<Run>,
    /// As posted.
    pub region: Option<Descriptor>,
    /// As posted.
    pub attachment: Option<Attachment>,
}

/// A posted receive.
#[derive(Debug)]
pub struct ReceiveOperation {
    /// The buffers.
    pub pieces: StoredPieces,
    /// As posted.
    pub context: u64,
    /// As posted.
    pub flags: Flags,
    /// Multi-receive: bytes already filled.
    pub filled: usize,
    /// Multi-receive: messages that still arrive into the buffer.
    pub arriving: u32,
    /// Multi-receive: no longer posted; released when `arriving` is 0.
    pub exhausted: bool,
    /// Multi-receive: canceled while messages arrived, so the release says so.
    pub canceled: bool,
    /// Where the engine remembers the region that its buffer lies in.
    pub region: Option<Noted>,
    /// As posted.
    pub attachment: Option<Attachment>,
}

impl ReceiveOperation {
    /// What an error entry needs of a multi-receive buffer that lives on.
    pub fn shadow(&self) -> ReceiveOperation {
        ReceiveOperation {
            pieces: StoredPieces::One(Piece::EMPTY),
            context: self.context,
            flags: self.flags,
            filled: 0,
            arriving: 0,
            exhausted: false,
            canceled: false,
            region: None,
            attachment: None,
        }
    }
}

/// A message that nobody has posted a receive for yet.
#[derive(Debug)]
pub struct Unexpected {
    /// The sender.
    pub peer: PeerIndex,
    /// `TAGGED` or `MSG`, and `REMOTE_CQ_DATA`.
    pub flags: Flags,
    /// Its tag.
    pub tag: u64,
    /// Its remote CQ data.
    pub data: u64,
    /// Bytes in all.
    pub total: usize,
    /// What has arrived of it.
    pub body: Body,
    /// The sender's operation, to be told when the message is matched.
    pub acknowledge: Option<u64>,
    /// The arrival under way, if more is to come.
    pub arriving: Option<u32>,
    /// The credit that it holds.
    pub cost: u64,
    /// Its lane has ended: the credit is no flow's.
    pub is_left_behind: bool,
}

/// The payload of an unexpected message: exact in size.
#[derive(Debug)]
pub enum Body {
    /// Up to 16 bytes, in place.
    Small([u64; 2]),
    /// More, or bytes that must stay where they are.
    Large(Settled<[u8]>),
}

impl Body {
    /// Lets the body stay where it is when the message's record moves.
    pub fn settle(&mut self) {
        if matches!(self, Body::Small(_)) {
            *self = self.lengthened(size_of::<[u64; 2]>());
        }
    }

    /// A body of `length` bytes that begins as this one does.
    pub fn lengthened(&mut self, length: usize) -> Body {
        let longer = Settled::from(vec![0; length].into_boxed_slice());
        self.piece().copy_to(longer.piece());
        Body::Large(longer)
    }
}

/// A long message under way, at its receiver.
#[derive(Debug)]
pub struct Incoming {
    /// The sender.
    pub peer: PeerIndex,
    /// The sender's name for it.
    pub operation: u64,
    /// Bytes in all.
    pub total: usize,
    /// Bytes that come without consent.
    pub prefix: usize,
    /// Bytes that have come, or were read.
    pub received: usize,
    /// Where what may come in packets ends: its prefix, or what we have asked for. What is read from the
    /// sender's memory may not come in packets as well.
    pub asked: usize,
    /// Where it ends for us: what is beyond we have, or do not want.
    pub end: usize,
    /// Where the rest goes.
    pub target: Target,
    /// Where the sender's memory can be read, or 0.
    pub remote: u64,
    /// Whether and how far our adapter reads it.
    pub fetch: Fetch,
    /// What our adapter knows the receive's buffer by, if that was registered before.
    pub own: Option<OwnRegistration>,
    /// The sender has nothing else to send.
    pub sender_waits: bool,
    /// A packet of it, which is the next, was left where it is until all of that is there.
    pub is_left: bool,
    /// Flags, tag and data of the message.
    pub flags: Flags,
    /// The tag.
    pub tag: u64,
    /// Remote CQ data.
    pub data: u64,
    /// The sender waits until all of it is here, and knows that by no other sign.
    pub acknowledge_whole: bool,
}

impl Incoming {
    /// What stays of one that is given up while its first packet is left where it is, and is met again: it
    /// would be taken for another message's. Of later packets nobody asks.
    pub fn left_behind(&self) -> Option<Incoming> {
        (self.is_left && self.received == 0).then(|| Incoming {
            target: Target::GivenUp,
            remote: 0,
            fetch: Fetch::of(0),
            own: None,
            acknowledge_whole: false,
            ..*self
        })
    }
}

/// Where an incoming message's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A posted receive: its index, where in its buffer the message starts, and
    /// how much fits there.
    Receive {
        /// Index of the receive operation.
        receive: u32,
        /// Byte of the buffer where the message starts.
        start: usize,
        /// Bytes that fit.
        room: usize,
    },
    /// The body of an unexpected message: its index.
    Unexpected(u32),
    /// The body of a message that is announced: its index. As much of it as will be buffered.
    Buffered(u32),
    /// Nowhere.
    Nowhere,
    /// Nowhere, and its sender knows: it is forgotten when its first packet has been taken.
    GivenUp,
}
