//! Remote reads and writes. Reference: fi_rma(3).
//!
//! The calls with pieces are what everything comes down to, the C door's calls
//! included. The safe ones take the buffer over, and their completion hands it back.

use super::{DefaultFlags, Endpoint, PostError, message::Refused};
use crate::{
    attachment::Attachment,
    flags::Flags,
    memory::{Piece, Pieces},
    one_sided::{Action, RMA_IOV_LIMIT, RemotePost, RemoteSegment, RmaPost},
    operation::MESSAGE_MAX,
    transport::Provider,
};

/// What an operation may ask for beside its default.
const READ_FLAGS: Flags = Flags::COMPLETION
    .union(Flags::MORE)
    .union(Flags::FENCE)
    .union(Flags::TRANSMIT_COMPLETE)
    .union(Flags::DELIVERY_COMPLETE)
    .union(Flags::INJECT_COMPLETE);
pub(super) const WRITE_FLAGS: Flags =
    READ_FLAGS.union(Flags::COMMIT_COMPLETE).union(Flags::INJECT).union(Flags::REMOTE_CQ_DATA);

impl<P: Provider> Endpoint<P> {
    /// Posts a read of a peer's memory into `post.pieces`.
    ///
    /// `post.flags` are the operation's own and replace the endpoint's defaults;
    /// `COMPLETION` is added where the binding is not selective.
    ///
    /// Ownership: the pieces are the engine's until the completion. Cost: no
    /// system call, no lock; no allocation for one segment, once as many
    /// operations were under way before.
    /// # Errors
    /// [`PostError`], as of [`Self::post_send`]; [`PostError::LengthsDiffer`] where the target's
    /// memory is not as long as the pieces. Whether the target permits it is known when it answers: a
    /// key, a range or an access that is wrong there is a failed completion.
    /// # Reference
    /// fi_rma(3), `fi_readmsg`
    #[inline]
    pub fn post_read(&self, mut post: RmaPost<'_>) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.post_rma(Action::Read, post)
    }

    /// Posts a write of `post.pieces` to a peer's memory.
    ///
    /// As [`Self::post_read`]; with `INJECT` the pieces are the caller's again when
    /// this returns. Every level of completion is the same: the bytes are in the
    /// target's memory, and it said so. With `COMMIT_COMPLETE` they are on the storage behind it
    /// as well, which the target's engine waits for; the region has `RMA_PMEM`.
    /// # Errors
    /// As [`Self::post_read`].
    /// # Reference
    /// fi_rma(3), `fi_writemsg`
    #[inline]
    pub fn post_write(&self, mut post: RmaPost<'_>) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.post_write_unreported(post)
    }

    /// Posts a write that writes an entry when it succeeds only if its flags say
    /// `COMPLETION`: what the inject calls come down to.
    ///
    /// # Errors
    /// As [`Self::post_read`].
    #[inline]
    pub fn post_write_unreported(&self, post: RmaPost<'_>) -> Result<(), PostError> {
        self.post_rma(Action::Write, post)
    }

    #[inline(always)]
    pub(super) fn add_completion(&self, flags: &mut Flags) {
        if let Ok(enabled) = self.enabled() {
            *flags |= enabled.send.added;
        }
    }

    #[inline]
    fn post_rma(&self, action: Action, post: RmaPost<'_>) -> Result<(), PostError> {
        self.enabled()?.remote(self.prepare_rma(action, post)?)
    }

    /// What the engine takes, after all checks of what was posted.
    #[inline(always)]
    pub(super) fn prepare_rma<'a>(
        &self,
        action: Action,
        post: RmaPost<'a>,
    ) -> Result<RemotePost<'a>, PostError> {
        let (allowed, needed) = match action {
            Action::Read => (READ_FLAGS, Flags::RMA | Flags::READ),
            _ => (WRITE_FLAGS, Flags::RMA | Flags::WRITE),
        };
        if !allowed.contains(post.flags) {
            return Err(PostError::BadFlags { flags: post.flags });
        }
        if post.flags.contains(Flags::INJECT) {
            self.check_inject(post.pieces.total())?;
        }
        let RmaPost { pieces, to, segments, data, context, flags, region, attachment } = post;
        self.check_pieces(&pieces)?;
        let total = self.check_remote(needed, segments)?;
        if total != pieces.total() {
            return Err(PostError::LengthsDiffer { local: pieces.total(), remote: total });
        }
        let none = Pieces::One(Piece::EMPTY);
        let (source, results) =
            if action == Action::Read { (none, pieces) } else { (pieces, none) };
        Ok(RemotePost {
            action,
            source,
            compare: none,
            results,
            to,
            segments,
            total,
            data,
            context,
            flags,
            region,
            attachment,
        })
    }

    /// Checks what all one-sided operations need; answers the bytes of all segments.
    #[inline]
    pub(super) fn check_remote(
        &self,
        needed: Flags,
        segments: &[RemoteSegment],
    ) -> Result<usize, PostError> {
        let missing = needed.difference(self.options.side(Flags::SEND));
        if !missing.is_empty() {
            return Err(PostError::NotCapable { missing });
        }
        let (count, limit) = (segments.len(), RMA_IOV_LIMIT);
        if count > limit {
            return Err(PostError::TooManyPieces { count, limit });
        }
        let mut total = 0_u64;
        for segment in segments {
            total = total.saturating_add(segment.length);
        }
        let limit = MESSAGE_MAX;
        if total > limit as u64 {
            return Err(PostError::TooLong { length: total as usize, limit });
        }
        Ok(total as usize)
    }

    /// Reads `buffer.len()` bytes at `address` of the peer's region `key` into
    /// `buffer`.
    ///
    /// Shape: one contiguous buffer. Units: bytes; `address` is the target's own, or an offset into
    /// the region, as [`RemoteSegment::address`] says. Ownership: the engine's until the completion
    /// with `context`, which returns the buffer. Cost: as [`Self::post_read`], and one small
    /// allocation.
    /// # Errors
    /// As [`Self::post_read`]; the buffer comes back.
    /// # Reference
    /// fi_rma(3), `fi_read`
    pub fn read(
        &self,
        buffer: Vec<u8>,
        to: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.rma_owned(Action::Read, buffer, to, (address, key), None, context)
    }

    /// Writes `buffer` to `address` of the peer's region `key`.
    ///
    /// Shape, units, ownership and cost: as [`Self::read`].
    /// # Errors
    /// As there.
    /// # Reference
    /// fi_rma(3), `fi_write`
    pub fn write(
        &self,
        buffer: Vec<u8>,
        to: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.rma_owned(Action::Write, buffer, to, (address, key), None, context)
    }

    /// As [`Self::write`], with 8 bytes for the peer's receive queue.
    ///
    /// # Errors
    /// As [`Self::read`].
    /// # Reference
    /// fi_rma(3), `fi_writedata`
    pub fn write_data(
        &self,
        buffer: Vec<u8>,
        to: u64,
        (address, key): (u64, u64),
        data: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.rma_owned(Action::Write, buffer, to, (address, key), Some(data), context)
    }

    /// Writes a copy of `bytes`; there is no completion unless it fails.
    ///
    /// Limit and ownership: as [`Self::inject`].
    /// # Errors
    /// As [`Self::post_read`]; [`PostError::InjectTooLarge`], [`PostError::NoMemory`],
    /// [`PostError::Unreachable`] as of [`Self::inject`].
    /// # Reference
    /// fi_rma(3), `fi_inject_write`
    #[inline]
    pub fn inject_write(
        &self,
        bytes: &[u8],
        to: u64,
        address: u64,
        key: u64,
    ) -> Result<(), PostError> {
        // SAFETY: an injected write is copied before the call returns, and the
        // engine never writes to a piece that is sent.
        let piece = unsafe { Piece::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        self.post_write_unreported(RmaPost {
            pieces: Pieces::One(piece),
            to,
            segments: &[RemoteSegment { address, length: bytes.len() as u64, key }],
            data: 0,
            context: 0,
            flags: DefaultFlags::injected(self.defaults.write()),
            region: None,
            attachment: None,
        })
    }

    fn rma_owned(
        &self,
        action: Action,
        buffer: Vec<u8>,
        to: u64,
        (address, key): (u64, u64),
        data: Option<u64>,
        context: u64,
    ) -> Result<(), Refused> {
        let (attachment, piece) = Attachment::new(buffer);
        let mut attachment = Some(attachment);
        let mut flags = self.defaults.transmit() & WRITE_FLAGS | Flags::COMPLETION;
        flags.set(Flags::REMOTE_CQ_DATA, data.is_some());
        if action == Action::Read {
            flags &= READ_FLAGS;
        }
        let post = RmaPost {
            pieces: Pieces::One(piece),
            to,
            segments: &[RemoteSegment { address, length: piece.len() as u64, key }],
            data: data.unwrap_or(0),
            context,
            flags,
            region: None,
            attachment: Some(&mut attachment),
        };
        let result = self.post_rma(action, post);
        result.map_err(|error| Refused { error, buffer: Attachment::reclaim(attachment) })
    }
}
