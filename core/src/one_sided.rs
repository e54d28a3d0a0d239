//! One-sided operations: what a caller posts, and what the engine keeps of it.

use crate::{
    attachment::Attachment,
    engine::report::Counted,
    flags::Flags,
    memory::Pieces,
    memory_region::descriptor::Descriptor,
    operation::{AttachmentSlot, StoredPieces},
    protocol::{
        atomic::{AtomicCall, Form},
        contest::Run,
    },
    settled::Settled,
    transport::PeerIndex,
    window::OwnRegistration,
};

/// At most this many remote segments in one operation (`rma_iov_limit`).
pub const RMA_IOV_LIMIT: usize = 8;

/// A stretch of a peer's registered memory. Reference: fi_rma(3), `struct fi_rma_iov`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSegment {
    /// With `VIRT_ADDR` the target's own address, else an offset into the region.
    pub address: u64,
    /// Units: bytes.
    pub length: u64,
    /// The region's key.
    pub key: u64,
}

/// A remote read or write, as posted.
#[derive(Debug)]
pub struct RmaPost<'a> {
    /// Where the data comes from (a write), or goes (a read).
    pub pieces: Pieces<'a>,
    /// The target's address in the address vector.
    pub to: u64,
    /// The target's memory: as many bytes as `pieces` has.
    pub segments: &'a [RemoteSegment],
    /// Remote CQ data, if `flags` has `REMOTE_CQ_DATA`.
    pub data: u64,
    /// Comes back in the completion.
    pub context: u64,
    /// `REMOTE_CQ_DATA` (writes), `COMPLETION`, `INJECT` (writes), `FENCE`, `MORE`, a
    /// completion level. `COMPLETION` here means: write an entry.
    pub flags: Flags,
    /// The region of our domain that the buffer lies in: an adapter may use its
    /// registration for longer operations, and need not make one each. Cost, of an
    /// operation that does: a lock of the region's, which others hold for a moment; the first waits
    /// for the registration.
    pub region: Option<Descriptor>,
    /// The buffer of a safe operation: taken if the post succeeds.
    pub attachment: AttachmentSlot<'a>,
}

/// An atomic operation of any form, as posted. Pieces and segments hold whole elements.
#[derive(Debug)]
pub struct AtomicPost<'a> {
    /// What is done, to which type, and what comes back.
    pub call: AtomicCall,
    /// The first operands; none for `ATOMIC_READ`.
    pub operands: Pieces<'a>,
    /// What is compared with, or the mask: for the compare form alone.
    pub compare: Pieces<'a>,
    /// Where the values from before go: for the fetch and compare forms.
    pub results: Pieces<'a>,
    /// The target's address in the address vector.
    pub to: u64,
    /// The target's memory; lengths in bytes.
    pub segments: &'a [RemoteSegment],
    /// Told in an error entry alone.
    pub data: u64,
    /// Comes back in the completion.
    pub context: u64,
    /// As [`RmaPost::flags`]; `REMOTE_CQ_DATA` is not possible.
    pub flags: Flags,
}

/// What a one-sided operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Local bytes to the target.
    Write,
    /// The target's bytes to us.
    Read,
    /// Operands to the target, and maybe earlier values to us.
    Atomic(AtomicCall),
}

impl Action {
    /// Whether its end is told by the data that it asked for.
    #[inline(always)]
    pub fn fetches(self) -> bool {
        match self {
            Action::Write => false,
            Action::Read => true,
            Action::Atomic(call) => call.form != Form::Base,
        }
    }

    /// What counts it.
    #[inline(always)]
    pub fn counted(self) -> Counted {
        if self.fetches() { Counted::Reads } else { Counted::Writes }
    }

    /// What a completion entry says of it. Reference: fi_cq(3).
    #[inline(always)]
    pub fn completion_flags(self) -> Flags {
        let direction = if self.fetches() { Flags::READ } else { Flags::WRITE };
        match self {
            Action::Write | Action::Read => Flags::RMA | direction,
            Action::Atomic(_) => Flags::ATOMIC | direction,
        }
    }
}

/// Any one-sided operation, as the engine takes it.
pub struct RemotePost<'a> {
    /// What it does.
    pub action: Action,
    /// What is sent.
    pub source: Pieces<'a>,
    /// What is compared with.
    pub compare: Pieces<'a>,
    /// Where what comes back goes.
    pub results: Pieces<'a>,
    /// The target's address in the address vector.
    pub to: u64,
    /// The target's memory.
    pub segments: &'a [RemoteSegment],
    /// Bytes of the target's memory in all.
    pub total: usize,
    /// Remote CQ data.
    pub data: u64,
    /// Comes back in the completion.
    pub context: u64,
    /// As posted.
    pub flags: Flags,
    /// As posted.
    pub region: Option<Descriptor>,
    /// The buffer of a safe operation.
    pub attachment: AttachmentSlot<'a>,
}

/// Remote segments that outlive the post.
#[derive(Debug)]
pub enum StoredSegments {
    /// One: nothing is allocated.
    One(RemoteSegment),
    /// Several, or none.
    Many(Box<[RemoteSegment]>),
}

impl StoredSegments {
    /// Copies the list.
    #[inline(always)]
    fn store(segments: &[RemoteSegment]) -> StoredSegments {
        match segments {
            [one] => StoredSegments::One(*one),
            many => StoredSegments::Many(many.into()),
        }
    }

    /// The segment that byte `at` of the operation lies in, and how far in.
    #[inline(always)]
    pub fn at(&self, at: usize) -> (RemoteSegment, u64) {
        match self {
            StoredSegments::One(segment) => (*segment, at as u64),
            StoredSegments::Many(segments) => segment_of_many(segments, at as u64),
        }
    }
}

#[cold]
#[inline(never)]
fn segment_of_many(segments: &[RemoteSegment], mut at: u64) -> (RemoteSegment, u64) {
    for segment in segments {
        if at < segment.length {
            return (*segment, at);
        }
        at -= segment.length;
    }
    (RemoteSegment::default(), 0)
}

/// How far a one-sided operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteStage {
    /// In its peer's queue; nothing of it has left.
    Queued,
    /// At the head of its peer's queue; some packets have left.
    Leaving,
    /// All packets have left; the target's word, or data, is awaited.
    Awaiting,
    /// The adapter carries it out.
    InWindow,
    /// In its peer's queue: the adapter may have carried it out, and the target is asked about it.
    Doubtful,
    /// The target was asked, and its word is awaited.
    Asked,
}

/// A one-sided operation that the target has not answered yet.
#[derive(Debug)]
pub struct RemoteOperation {
    /// Lets our adapter use its buffer. Dropped before the memory is anybody's else.
    pub own: Option<OwnRegistration>,
    /// The target.
    pub peer: PeerIndex,
    /// How far it has come.
    pub stage: RemoteStage,
    /// What it does.
    pub action: Action,
    /// As posted.
    pub flags: Flags,
    /// As posted.
    pub data: u64,
    /// As posted.
    pub context: u64,
    /// As posted.
    pub region: Option<Descriptor>,
    /// The target's memory.
    pub segments: StoredSegments,
    /// Bytes of it in all.
    pub total: usize,
    /// Bytes of it that the packets which have left are about.
    pub sent: usize,
    /// Bytes that have come back.
    pub received: usize,
    /// What is sent.
    pub source: StoredPieces,
    /// What is compared with.
    pub compare: StoredPieces,
    /// Where what comes back goes.
    pub results: StoredPieces,
    /// A copy of what an injected operation sends.
    pub copy: Option<Settled<[u8]>>,
    /// It is timed.
    pub run: Option<Run>,
    /// What an adapter that compares and swaps found, or 0.
    pub guess: u64,
    /// It was written, and nobody knows whether in time.
    pub landed: bool,
    /// How often a window closed over it.
    pub refusals: u32,
    /// Its context is closed: its end is awaited, and told to nobody.
    pub discarded: bool,
    /// As posted.
    pub attachment: Option<Attachment>,
}

impl RemoteOperation {
    /// The record of an operation: lists are copied, not what they point to.
    #[inline(always)]
    pub fn from_post(peer: PeerIndex, post: RemotePost<'_>) -> RemoteOperation {
        RemoteOperation {
            own: None,
            peer,
            stage: RemoteStage::Queued,
            action: post.action,
            flags: post.flags,
            data: post.data,
            context: post.context,
            region: post.region,
            segments: StoredSegments::store(post.segments),
            total: post.total,
            sent: 0,
            received: 0,
            source: StoredPieces::store(post.source),
            compare: StoredPieces::store(post.compare),
            results: StoredPieces::store(post.results),
            copy: None,
            run: None,
            guess: 0,
            landed: false,
            refusals: 0,
            discarded: false,
            attachment: post.attachment.and_then(Option::take),
        }
    }

    /// Copies what an injected operation sends, whose buffers are the caller's
    /// again when the post returns, to where `room` has so many bytes for it.
    ///
    /// # Errors
    /// Those of `room`.
    #[cold]
    pub fn keep_injected<E>(
        &mut self,
        room: impl FnOnce(usize) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        if !self.flags.contains(Flags::INJECT) || self.copy.is_some() {
            return Ok(());
        }
        let (source, compare) = (self.source.view(), self.compare.view());
        let (length, rest) = (source.total(), compare.total());
        let mut bytes = room(length + rest)?;
        source.for_each_part(0, length, |_, part| part.append_to(&mut bytes));
        compare.for_each_part(0, rest, |_, part| part.append_to(&mut bytes));
        // All of what there is: to cut it may take memory.
        bytes.resize(bytes.capacity(), 0);
        let bytes = Settled::from(bytes.into_boxed_slice());
        let all = bytes.piece();
        self.source = StoredPieces::One(all.part(0, length));
        self.compare = StoredPieces::One(all.part(length, rest));
        self.copy = Some(bytes);
        Ok(())
    }

    /// Whether an adapter may have to try it several times.
    #[inline(always)]
    pub fn may_repeat(&self) -> bool {
        matches!(self.action, Action::Atomic(call) if !call.is_one_step())
    }

    /// Whether something of it has left for `peer`, so that it dies with the
    /// peer's present incarnation.
    pub fn has_begun_with(&self, peer: PeerIndex) -> bool {
        self.peer == peer && self.stage != RemoteStage::Queued
    }
}
