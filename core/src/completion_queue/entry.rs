//! What a completion says.

use std::fmt;

use crate::{
    address::Address,
    address_vector::FI_ADDR_NOTAVAIL,
    attachment::Attachment,
    error::{Errno, HasErrno},
    flags::Flags,
};

/// A successful completion: the union of what every format of fi_cq(3) reports,
/// in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    /// The operation's context.
    pub context: u64,
    /// What completed: `TAGGED | RECV`, `MSG | SEND`, … Raw bits of [`Flags`].
    pub flags: u64,
    /// Bytes received; of a peek, the message's whole length.
    pub length: u64,
    /// Where a received message starts, for multi-receive and peek; else 0 or
    /// the posted buffer.
    pub buffer: u64,
    /// Remote CQ data, if `REMOTE_CQ_DATA` is in the flags.
    pub data: u64,
    /// The sender's tag.
    pub tag: u64,
    /// The sender's address in the endpoint's address vector, if it is known.
    pub source: u64,
    /// The buffer that a safe operation had posted.
    pub(crate) attachment: Option<Attachment>,
}

impl Entry {
    /// The flags as a set.
    pub fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.flags)
    }

    /// The buffer of a safe operation, back from the engine. Of several it is a copy of all their
    /// bytes. One of several messages has none where the sender of one of them has stopped while it was
    /// writing: see [`ErrorEntry::take_buffer`].
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        self.attachment.take().and_then(Attachment::into_buffer)
    }

    /// The buffers of a safe operation, as they were posted.
    pub fn take_buffers(&mut self) -> Option<Vec<Vec<u8>>> {
        self.attachment.take().and_then(Attachment::into_buffers)
    }
}

/// A failed completion. Reference: fi_cq(3), `fi_cq_err_entry`.
#[derive(Debug)]
pub struct ErrorEntry {
    /// The operation's context.
    pub context: u64,
    /// What failed.
    pub flags: Flags,
    /// Bytes that were placed before the failure.
    pub length: u64,
    /// The buffer, as in [`Entry::buffer`].
    pub buffer: u64,
    /// Remote CQ data, if it arrived.
    pub data: u64,
    /// The tag.
    pub tag: u64,
    /// Bytes that did not fit (`FI_ETRUNC`).
    pub overflow: u64,
    /// The error.
    pub errno: Errno,
    /// The reason in words.
    pub reason: String,
    /// The peer, by its address in the address vector if it is there.
    pub source: u64,
    /// The peer, by its address.
    pub source_address: Option<Address>,
    /// The buffer that a safe operation had posted.
    pub(crate) attachment: Option<Attachment>,
}

impl fmt::Display for ErrorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.errno, self.reason)
    }
}

// By hand: `source` is the peer, and no error behind this one.
impl std::error::Error for ErrorEntry {}

impl HasErrno for ErrorEntry {
    fn errno(&self) -> Errno {
        self.errno
    }
}

impl ErrorEntry {
    /// An error of which no more is known: no peer, no message.
    pub fn new(context: u64, flags: Flags, errno: Errno, reason: String) -> ErrorEntry {
        ErrorEntry {
            context,
            flags,
            length: 0,
            buffer: 0,
            data: 0,
            tag: 0,
            overflow: 0,
            errno,
            reason,
            source: FI_ADDR_NOTAVAIL,
            source_address: None,
            attachment: None,
        }
    }

    /// The buffer of a safe operation, back from the engine. Of several it is a copy of all their
    /// bytes. A receive that failed while its sender, who has stopped since, was writing to it has none:
    /// the sender may write when it goes on, so the buffer is never freed.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        self.attachment.take().and_then(Attachment::into_buffer)
    }

    /// The buffers of a safe operation, as they were posted; none where [`Self::take_buffer`] has none.
    pub fn take_buffers(&mut self) -> Option<Vec<Vec<u8>>> {
        self.attachment.take().and_then(Attachment::into_buffers)
    }
}
