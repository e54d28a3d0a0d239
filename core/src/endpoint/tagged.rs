//! Tagged messages, the safe calls. Reference: fi_tagged(3).
//!
//! A message matches a receive when
//! `send_tag & ~ignore == recv_tag & ~ignore`; the earliest posted wins.

use super::{Endpoint, PostError, message::Refused};
use crate::{
    flags::Flags,
    memory::{Piece, Pieces},
    operation::ReceivePost,
    transport::Provider,
};

impl<P: Provider> Endpoint<P> {
    /// Sends `buffer` with `tag` to `to`.
    ///
    /// Shape, units, ownership and cost: as [`Self::send`].
    /// # Errors
    /// As [`Self::post_send`]; the buffer comes back.
    /// # Reference
    /// fi_tagged(3), `fi_tsend`
    pub fn send_tagged(
        &self,
        buffer: Vec<u8>,
        to: u64,
        tag: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.send_owned(buffer, to, tag, None, context, Flags::TAGGED)
    }

    /// As [`Self::send_tagged`], with remote CQ data.
    ///
    /// # Errors
    /// As there.
    /// # Reference
    /// fi_tagged(3), `fi_tsenddata`
    pub fn send_tagged_data(
        &self,
        buffer: Vec<u8>,
        to: u64,
        tag: u64,
        data: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.send_owned(buffer, to, tag, Some(data), context, Flags::TAGGED)
    }

    /// Sends a copy of `bytes` with `tag`; there is no completion unless it fails.
    ///
    /// Limit, shape, units, ownership and cost: as [`Self::inject`].
    /// # Errors
    /// As [`Self::inject`].
    /// # Reference
    /// fi_tagged(3), `fi_tinject`
    #[inline(always)]
    pub fn inject_tagged(&self, bytes: &[u8], to: u64, tag: u64) -> Result<(), PostError> {
        self.inject_as(bytes, to, tag, None, Flags::TAGGED)
    }

    /// As [`Self::inject_tagged`], with remote CQ data.
    ///
    /// # Errors
    /// As [`Self::inject`].
    /// # Reference
    /// fi_tagged(3), `fi_tinjectdata`
    #[inline(always)]
    pub fn inject_tagged_data(
        &self,
        bytes: &[u8],
        to: u64,
        tag: u64,
        data: u64,
    ) -> Result<(), PostError> {
        self.inject_as(bytes, to, tag, Some(data), Flags::TAGGED)
    }

    /// Receives a message with `tag`, not counting the bits of `ignore`, from
    /// `from` (or anyone: `FI_ADDR_UNSPEC`) into `buffer`.
    ///
    /// Shape, units, ownership and cost: as [`Self::receive`].
    /// # Errors
    /// As [`Self::post_receive`]; the buffer comes back.
    /// # Reference
    /// fi_tagged(3), `fi_trecv`
    pub fn receive_tagged(
        &self,
        buffer: Vec<u8>,
        from: u64,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.receive_owned(buffer, from, tag, ignore, context, Flags::TAGGED)
    }

    /// Asks whether such a message has arrived; the answer is a completion: the
    /// message's length, tag, data and source, or FI_ENOMSG. With `CLAIM` among
    /// `flags` nobody else can receive it from then on, with `DISCARD` it is
    /// dropped.
    ///
    /// # Errors
    /// As [`Self::post_receive`]; [`PostError::ClaimedBefore`] where a message is claimed with this
    /// `context`.
    /// # Reference
    /// fi_tagged(3), FI_PEEK
    pub fn peek_tagged(
        &self,
        from: u64,
        tag: u64,
        ignore: u64,
        flags: Flags,
        context: u64,
    ) -> Result<(), PostError> {
        self.post_receive(ReceivePost {
            pieces: Pieces::One(Piece::EMPTY),
            from,
            tag,
            ignore,
            context,
            flags: Flags::TAGGED | Flags::PEEK | flags,
            region: None,
            attachment: None,
        })
    }
}
