//! What an operation carries to its completion: the buffer of a safe one, which the engine owns from
//! post to completion, or what counts deferred work.
//!
//! A safe post moves a `Vec<u8>` in; its completion hands it back. Whatever
//! happens in between (cancel, an error, the endpoint or the queue dropped), the
//! memory stays where it is until the engine has let go of it, and so has whoever
//! writes to it for the engine. One such never says so: a peer that was stopped in
//! the middle of a copy. Memory that it may write to is never freed, and the entry
//! that would hand it back comes without it.

use std::fmt;

use crate::{memory::Piece, triggered::Tally};

/// What an operation carries to its completion: the caller's buffers, or what counts deferred work.
///
/// Moving the `Vec` does not move its bytes, so the piece stays valid. The box
/// keeps a completion entry within one cache line.
pub struct Attachment(Box<Held>);

enum Held {
    Buffer(Vec<u8>),
    Buffers(Vec<Vec<u8>>),
    Work(Tally),
    /// Buffers that were, and that are never freed.
    Leaked,
}

impl fmt::Debug for Attachment {
    /// The length alone: a message's bytes belong into no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Held::Buffer(buffer) => write!(f, "Attachment({} bytes)", buffer.len()),
            Held::Buffers(buffers) => {
                let bytes: usize = buffers.iter().map(Vec::len).sum();
                write!(f, "Attachment({bytes} bytes in {} buffers)", buffers.len())
            }
            Held::Work(_) => write!(f, "Attachment(work)"),
            Held::Leaked => write!(f, "Attachment(leaked)"),
        }
    }
}

impl Attachment {
    /// Takes `buffer` over, and the piece that covers its whole length.
    pub(crate) fn new(mut buffer: Vec<u8>) -> (Attachment, Piece) {
        let piece = Piece::of_owned(&mut buffer);
        (Attachment(Box::new(Held::Buffer(buffer))), piece)
    }

    /// Takes several over, and the pieces that cover them.
    pub(crate) fn of_several(mut buffers: Vec<Vec<u8>>) -> (Attachment, Vec<Piece>) {
        let pieces = buffers.iter_mut().map(|buffer| Piece::of_owned(buffer)).collect();
        (Attachment(Box::new(Held::Buffers(buffers))), pieces)
    }

    /// Has deferred work be counted.
    pub(crate) fn of_work(tally: Tally) -> Attachment {
        Attachment(Box::new(Held::Work(tally)))
    }

    /// What counts the operation, if it is deferred work: its completion takes it.
    #[inline(always)]
    pub(crate) fn take_tally(attachment: &mut Option<Attachment>) -> Option<Tally> {
        if attachment.is_none() { None } else { Attachment::take_held(attachment) }
    }

    #[cold]
    fn take_held(attachment: &mut Option<Attachment>) -> Option<Tally> {
        let is_work = |attachment: &mut Attachment| matches!(*attachment.0, Held::Work(_));
        match *attachment.take_if(is_work)?.0 {
            Held::Work(tally) => Some(tally),
            Held::Buffer(_) | Held::Buffers(_) | Held::Leaked => None,
        }
    }

    /// Has buffers never be freed, since somebody may write to them at any time. How many bytes they are;
    /// none if there is no buffer of ours.
    pub(crate) fn leak(attachment: &mut Option<Attachment>) -> Option<usize> {
        let held = &mut *attachment.as_mut()?.0;
        match std::mem::replace(held, Held::Leaked) {
            Held::Buffer(buffer) => Some(buffer.leak().len()),
            Held::Buffers(buffers) => {
                Some(buffers.into_iter().map(|buffer| buffer.leak().len()).sum())
            }
            other => {
                *held = other;
                None
            }
        }
    }

    /// The buffer of a post that was refused, which has therefore stayed here.
    pub(crate) fn reclaim(attachment: Option<Attachment>) -> Vec<u8> {
        attachment.and_then(Attachment::into_buffer).unwrap_or_default()
    }

    /// Gives the buffer back, unless it is leaked; of several the bytes of all, copied.
    pub(crate) fn into_buffer(self) -> Option<Vec<u8>> {
        match *self.0 {
            Held::Buffer(buffer) => Some(buffer),
            Held::Buffers(buffers) => Some(buffers.concat()),
            Held::Work(_) => Some(Vec::new()),
            Held::Leaked => None,
        }
    }

    /// Gives all buffers back, unless they are leaked.
    pub(crate) fn into_buffers(self) -> Option<Vec<Vec<u8>>> {
        match *self.0 {
            Held::Buffer(buffer) => Some(vec![buffer]),
            Held::Buffers(buffers) => Some(buffers),
            Held::Work(_) => Some(Vec::new()),
            Held::Leaked => None,
        }
    }
}
