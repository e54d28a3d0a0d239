//! The safe calls with all there is to say: several buffers, and flags for one operation.
//! Reference: fi_msg(3), `fi_sendmsg`, `fi_recvmsg`; fi_tagged(3), `fi_tsendmsg`, `fi_trecvmsg`.

use super::{Endpoint, PostError};
use crate::{
    address_vector::FI_ADDR_UNSPEC,
    attachment::Attachment,
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    operation::{ReceivePost, SendPost},
    transport::Provider,
};

/// A message to be sent. The buffers are the engine's until the completion, whose
/// [`take_buffers`](crate::completion_queue::Entry::take_buffers) gives them back; if no completion is
/// asked for they are dropped when the operation is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedSend {
    /// The message, end to end. At most as many as `iov_limit`.
    pub buffers: Vec<Vec<u8>>,
    /// The peer, by its address in the address vector.
    pub to: u64,
    /// The tag; none of an untagged message.
    pub tag: Option<u64>,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Comes back in the completion.
    pub context: u64,
    /// `COMPLETION`, `INJECT`, `MORE`, `FENCE`, and a completion level; in place of the default flags.
    pub flags: Flags,
}

impl Default for OwnedSend {
    /// A message of no bytes to the first address, which completes.
    fn default() -> OwnedSend {
        let (buffers, to, tag, data, context) = (Vec::new(), 0, None, None, 0);
        OwnedSend { buffers, to, tag, data, context, flags: Flags::COMPLETION }
    }
}

/// A receive, or a look at what has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedReceive {
    /// Where the message goes, end to end; none with `PEEK` or `DISCARD`.
    pub buffers: Vec<Vec<u8>>,
    /// The only sender that may match, or `FI_ADDR_UNSPEC`.
    pub from: u64,
    /// The tag, and the bits of it that do not count; none of untagged messages.
    pub tag: Option<(u64, u64)>,
    /// Comes back in the completion. It names the message that is claimed.
    pub context: u64,
    /// `COMPLETION`, `MULTI_RECV`, `PEEK`, `CLAIM`, `DISCARD`; in place of the default flags. A receive
    /// with buffers always completes, since nothing else gives them back with what was received.
    pub flags: Flags,
}

impl Default for OwnedReceive {
    /// Whatever comes first.
    fn default() -> OwnedReceive {
        let (buffers, from, tag, context) = (Vec::new(), FI_ADDR_UNSPEC, None, 0);
        OwnedReceive { buffers, from, tag, context, flags: Flags::COMPLETION }
    }
}

/// A safe post of several buffers that was refused, and the buffers.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedBuffers {
    /// Why.
    pub error: PostError,
    /// The caller's buffers, untouched.
    pub buffers: Vec<Vec<u8>>,
}

impl HasErrno for RefusedBuffers {
    fn errno(&self) -> Errno {
        self.error.errno()
    }
}

fn family(is_tagged: bool) -> Flags {
    if is_tagged { Flags::TAGGED } else { Flags::MSG }
}

fn refused(error: PostError, attachment: Option<Attachment>) -> RefusedBuffers {
    RefusedBuffers {
        error,
        buffers: attachment.and_then(Attachment::into_buffers).unwrap_or_default(),
    }
}

impl<P: Provider> Endpoint<P> {
    /// Sends a message of several buffers, with flags of its own. Cost: as [`Self::post_send`], and
    /// two small allocations.
    ///
    /// # Errors
    /// As [`Self::post_send`]; the buffers come back.
    pub fn send_message(&self, message: OwnedSend) -> Result<(), RefusedBuffers> {
        let OwnedSend { buffers, to, tag, data, context, mut flags } = message;
        let (attachment, pieces) = Attachment::of_several(buffers);
        let mut attachment = Some(attachment);
        flags.set(Flags::REMOTE_CQ_DATA, data.is_some());
        let result = self.post_send(SendPost {
            pieces: Pieces::Many(&pieces),
            to,
            tag: tag.unwrap_or(0),
            data: data.unwrap_or(0),
            context,
            flags: flags | family(tag.is_some()),
            region: None,
            attachment: Some(&mut attachment),
        });
        result.map_err(|error| refused(error, attachment))
    }

    /// Receives into several buffers, or looks for a message, claims or discards it. Cost: as
    /// [`Self::post_receive`], and two small allocations.
    ///
    /// # Errors
    /// As [`Self::post_receive`]; the buffers come back.
    pub fn receive_message(&self, receive: OwnedReceive) -> Result<(), RefusedBuffers> {
        let OwnedReceive { buffers, from, tag, context, mut flags } = receive;
        flags.set(Flags::COMPLETION, flags.contains(Flags::COMPLETION) || !buffers.is_empty());
        let (attachment, pieces) = Attachment::of_several(buffers);
        let mut attachment = Some(attachment);
        let (asked, ignore) = tag.unwrap_or((0, 0));
        let result = self.post_receive(ReceivePost {
            pieces: Pieces::Many(&pieces),
            from,
            tag: asked,
            ignore,
            context,
            flags: flags | family(tag.is_some()),
            region: None,
            attachment: Some(&mut attachment),
        });
        result.map_err(|error| refused(error, attachment))
    }
}
