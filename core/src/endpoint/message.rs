//! Untagged messages, the safe calls. Reference: fi_msg(3).
//!
//! A safe call takes the buffer over and its completion hands it back. On an
//! error the buffer comes back with it.

use super::{DefaultFlags, Endpoint, PostError};
use crate::{
    attachment::Attachment,
    completion_queue::Entry,
    error::{Errno, HasErrno},
    flags::Flags,
    memory::{Piece, Pieces},
    operation::{ReceivePost, SendPost},
    transport::Provider,
};

/// An operation that was refused, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: PostError,
    /// The caller's buffer, untouched.
    pub buffer: Vec<u8>,
}

impl HasErrno for Refused {
    fn errno(&self) -> Errno {
        self.error.errno()
    }
}

impl<P: Provider> Endpoint<P> {
    /// Sends `buffer` to `to`.
    ///
    /// Shape: one contiguous message. Units: bytes. Ownership: the engine's
    /// until the completion with `context`, which returns the buffer. Cost: as
    /// [`Self::post_send`], and one small allocation.
    /// # Errors
    /// As [`Self::post_send`]; the buffer comes back.
    /// # Reference
    /// fi_msg(3), `fi_send`
    pub fn send(&self, buffer: Vec<u8>, to: u64, context: u64) -> Result<(), Refused> {
        self.send_owned(buffer, to, 0, None, context, Flags::MSG)
    }

    /// As [`Self::send`], with 8 bytes of remote CQ data.
    ///
    /// # Errors
    /// As there.
    /// # Reference
    /// fi_msg(3), `fi_senddata`
    pub fn send_data(
        &self,
        buffer: Vec<u8>,
        to: u64,
        data: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.send_owned(buffer, to, 0, Some(data), context, Flags::MSG)
    }

    /// Sends a copy of `bytes`; there is no completion unless it fails.
    /// At most [`super::EndpointOptions::inject_size`] bytes. The first message to
    /// a peer waits for its connection, a second at most, so that it needs no progress afterwards.
    ///
    /// Shape: one contiguous message. Units: bytes. Ownership: the caller's again when this returns.
    /// Cost: no system call, no allocation, no lock, for a message of one packet to a connected peer.
    /// # Errors
    /// As [`Self::post_send`]; [`PostError::InjectTooLarge`], [`PostError::NoMemory`] for the copy of
    /// one that has to wait, [`PostError::Unreachable`] if the peer was not reached.
    /// # Reference
    /// fi_msg(3), `fi_inject`
    #[inline(always)]
    pub fn inject(&self, bytes: &[u8], to: u64) -> Result<(), PostError> {
        self.inject_as(bytes, to, 0, None, Flags::MSG)
    }

    /// As [`Self::inject`], with remote CQ data.
    ///
    /// # Errors
    /// As there.
    /// # Reference
    /// fi_msg(3), `fi_injectdata`
    #[inline(always)]
    pub fn inject_data(&self, bytes: &[u8], to: u64, data: u64) -> Result<(), PostError> {
        self.inject_as(bytes, to, 0, Some(data), Flags::MSG)
    }

    /// Receives the next message from `from` (or anyone: `FI_ADDR_UNSPEC`) into
    /// `buffer`, whose length is its room. A longer message fails with FI_ETRUNC.
    ///
    /// Shape: one contiguous buffer. Units: bytes. Ownership: the engine's until the completion with
    /// `context`, which returns the buffer. Cost: as [`Self::post_receive`], and one small allocation.
    /// # Errors
    /// As [`Self::post_receive`]; the buffer comes back.
    /// # Reference
    /// fi_msg(3), `fi_recv`
    pub fn receive(&self, buffer: Vec<u8>, from: u64, context: u64) -> Result<(), Refused> {
        self.receive_owned(buffer, from, 0, 0, context, Flags::MSG)
    }

    /// Receives messages into `buffer`, one after the other, until less than the
    /// minimum is left; the last completion, which says `MULTI_RECV`, returns the buffer. Until then
    /// [`Self::copy_received`] shows the messages.
    ///
    /// # Errors
    /// As [`Self::receive`].
    /// # Reference
    /// fi_msg(3), FI_MULTI_RECV
    pub fn receive_multi(&self, buffer: Vec<u8>, from: u64, context: u64) -> Result<(), Refused> {
        self.receive_owned(buffer, from, 0, 0, context, Flags::MSG | Flags::MULTI_RECV)
    }

    /// A copy of the message that `completion` tells of, which lies in a buffer of
    /// [`Self::receive_multi`] that has not come back.
    ///
    /// In a buffer that has come back the message begins at byte `completion.buffer` less the address of
    /// its first byte. Cost: cold; waits for whoever drives the endpoint.
    /// # Errors
    /// [`PostError::NotInBuffer`]: the buffer was released meanwhile, or is none of this endpoint's
    /// own; [`PostError::NoMemory`] for the copy.
    pub fn copy_received(&self, completion: &Entry) -> Result<Vec<u8>, PostError> {
        self.unit()?.with(|engine| engine.copy_received(completion))?
    }

    pub(super) fn send_owned(
        &self,
        buffer: Vec<u8>,
        to: u64,
        tag: u64,
        data: Option<u64>,
        context: u64,
        family: Flags,
    ) -> Result<(), Refused> {
        let (attachment, piece) = Attachment::new(buffer);
        let mut attachment = Some(attachment);
        let mut flags = family | self.default_send_flags();
        flags.set(Flags::REMOTE_CQ_DATA, data.is_some());
        let post = SendPost {
            pieces: Pieces::One(piece),
            to,
            tag,
            data: data.unwrap_or(0),
            context,
            flags: flags | Flags::COMPLETION,
            region: None,
            attachment: Some(&mut attachment),
        };
        let result = self.post_send(post);
        result.map_err(|error| Refused { error, buffer: Attachment::reclaim(attachment) })
    }

    pub(super) fn receive_owned(
        &self,
        buffer: Vec<u8>,
        from: u64,
        tag: u64,
        ignore: u64,
        context: u64,
        family: Flags,
    ) -> Result<(), Refused> {
        let (attachment, piece) = Attachment::new(buffer);
        let mut attachment = Some(attachment);
        let post = ReceivePost {
            pieces: Pieces::One(piece),
            from,
            tag,
            ignore,
            context,
            flags: family | self.default_receive_flags(family) | Flags::COMPLETION,
            region: None,
            attachment: Some(&mut attachment),
        };
        let result = self.post_receive(post);
        result.map_err(|error| Refused { error, buffer: Attachment::reclaim(attachment) })
    }

    #[inline(always)]
    pub(super) fn inject_as(
        &self,
        bytes: &[u8],
        to: u64,
        tag: u64,
        data: Option<u64>,
        family: Flags,
    ) -> Result<(), PostError> {
        // SAFETY: an injected message is copied before the call returns, and the
        // engine never writes to a piece that is sent.
        let piece = unsafe { Piece::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        let mut flags = family | DefaultFlags::injected(self.default_send_flags());
        flags.set(Flags::REMOTE_CQ_DATA, data.is_some());
        let post = SendPost {
            pieces: Pieces::One(piece),
            to,
            tag,
            data: data.unwrap_or(0),
            context: 0,
            flags,
            region: None,
            attachment: None,
        };
        self.post_unreported(post)
    }
}
