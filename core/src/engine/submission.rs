//! What is left for an engine's owner: operations as they were posted, which outlive the post.

use std::sync::Arc;

use super::Engine;
use crate::{
    attachment::Attachment,
    endpoint::PostError,
    error::Cause,
    flags::Flags,
    memory_region::descriptor::Descriptor,
    one_sided::{RemoteOperation, RemotePost},
    operation::{
        AttachmentSlot, Copied, ReceiveOperation, ReceivePost, SendPost, StoredPieces, room_for,
    },
    shared_context::due::Handed,
    transport::Transport,
    triggered::{Deferrals, Tally},
};

/// What a caller leaves for the owner. Boxed buffers only where threads collide, and where an
/// operation is deferred.
pub(crate) enum Submission {
    Send {
        post: Submitted,
        to: u64,
        data: u64,
        copy: Option<Copied>,
    },
    Receive {
        post: Submitted,
        from: u64,
        ignore: u64,
    },
    Remote {
        operation: Box<RemoteOperation>,
        to: u64,
    },
    /// What a context deferred, and is due.
    Due(Box<Due>),
    /// A receive of a shared context, for a message that waits here.
    Handed(Box<Handed>),
    /// The name of a request that was accepted, by an endpoint that has gone.
    Withdrawn(u64),
    /// Operations that found no room here wait beside.
    Overflow,
}

pub(crate) struct Submitted {
    pieces: StoredPieces,
    tag: u64,
    context: u64,
    flags: Flags,
    region: Option<Descriptor>,
    attachment: Option<Attachment>,
}

impl Submitted {
    /// As it was posted.
    fn as_send(&mut self, to: u64, data: u64) -> SendPost<'_> {
        let Submitted { pieces, tag, context, flags, region, attachment } = self;
        let (tag, context, flags, region) = (*tag, *context, *flags, *region);
        let (pieces, attachment) = (pieces.view(), Some(attachment));
        SendPost { pieces, to, tag, data, context, flags, region, attachment }
    }

    /// As it was posted.
    fn as_receive(&mut self, from: u64, ignore: u64) -> ReceivePost<'_> {
        let Submitted { pieces, tag, context, flags, region, attachment } = self;
        let (tag, context, flags, region) = (*tag, *context, *flags, *region);
        let (pieces, attachment) = (pieces.view(), Some(attachment));
        ReceivePost { pieces, from, tag, ignore, context, flags, region, attachment }
    }
}

/// What a context of a pair has deferred. It may have closed since the time came: then nobody has the buffers any
/// more, while the engine is its sibling's as well.
pub(crate) struct Due {
    pub submission: Submission,
    pub context: Arc<Deferrals>,
}

/// A submission whose attachment, if it has one, is still with the caller.
pub(crate) struct Unattached<'a> {
    submission: Submission,
    slot: AttachmentSlot<'a>,
}

impl<'a> Unattached<'a> {
    /// # Errors
    /// There is no memory for a copy of what is injected.
    #[cold]
    pub fn send(post: SendPost<'a>) -> Result<Self, PostError> {
        let copy = post.injected_copy()?;
        let pieces = StoredPieces::of_send(post.pieces, &copy);
        let SendPost { to, tag, data, context, flags, region, attachment: slot, .. } = post;
        let post = Submitted { pieces, tag, context, flags, region, attachment: None };
        Ok(Unattached { submission: Submission::Send { post, to, data, copy }, slot })
    }

    #[cold]
    pub fn receive(post: ReceivePost<'a>) -> Self {
        let pieces = StoredPieces::store(post.pieces);
        let ReceivePost { from, tag, ignore, context, flags, region, attachment: slot, .. } = post;
        let post = Submitted { pieces, tag, context, flags, region, attachment: None };
        Unattached { submission: Submission::Receive { post, from, ignore }, slot }
    }

    /// # Errors
    /// As [`Self::send`].
    #[cold]
    pub fn remote(mut post: RemotePost<'a>) -> Result<Self, PostError> {
        let (to, slot) = (post.to, post.attachment.take());
        // The owner finds out who the peer is.
        let mut operation = Box::new(RemoteOperation::from_post(0, post));
        operation.keep_injected(room_for)?;
        Ok(Unattached { submission: Submission::Remote { operation, to }, slot })
    }

    /// As posted.
    pub fn context(&self) -> u64 {
        match &self.submission {
            Submission::Send { post, .. } | Submission::Receive { post, .. } => post.context,
            Submission::Remote { operation, .. } => operation.context,
            Submission::Due(_)
            | Submission::Handed(_)
            | Submission::Withdrawn(_)
            | Submission::Overflow => 0,
        }
    }

    /// The submission of deferred work, which `tally` counts.
    pub fn into_work(self, tally: Tally) -> Submission {
        let mut submission = self.submission;
        match &mut submission {
            // What is received into a list of buffers goes no fast path, which knows of no work.
            Submission::Receive { post, .. } => {
                if let StoredPieces::One(piece) = post.pieces {
                    post.pieces = StoredPieces::Many(Box::new([piece]));
                }
            }
            // What is injected is counted at its level, too.
            Submission::Send { post, .. } if !post.flags.intersects(Flags::INJECT_COMPLETE) => {
                post.flags |= Flags::TRANSMIT_COMPLETE;
            }
            _ => {}
        }
        if let Some(attachment) = submission.attachment() {
            *attachment = Some(Attachment::of_work(tally));
        }
        submission
    }

    /// The submission with its buffer, which the caller has no more.
    pub fn taken(self) -> Submission {
        let Unattached { mut submission, slot } = self;
        if let Some(attachment) = submission.attachment() {
            *attachment = slot.and_then(Option::take);
        }
        submission
    }

    /// The submission with its buffer, which `leave` takes or gives back: a refusal has no side
    /// effect, the buffer is back where it was.
    pub fn leave(self, leave: impl FnOnce(Submission) -> Result<(), Submission>) -> bool {
        let Unattached { mut submission, slot } = self;
        let mut none = None;
        let slot = slot.unwrap_or(&mut none);
        if let Some(attachment) = submission.attachment() {
            *attachment = slot.take();
        }
        match leave(submission) {
            Ok(()) => true,
            Err(mut refused) => {
                *slot = refused.attachment().and_then(Option::take);
                false
            }
        }
    }
}

impl Submission {
    fn attachment(&mut self) -> Option<&mut Option<Attachment>> {
        match self {
            Submission::Send { post, .. } | Submission::Receive { post, .. } => {
                Some(&mut post.attachment)
            }
            Submission::Remote { operation, .. } => Some(&mut operation.attachment),
            Submission::Due(_)
            | Submission::Handed(_)
            | Submission::Withdrawn(_)
            | Submission::Overflow => None,
        }
    }
}

impl<T: Transport> Engine<T> {
    /// Posts what was left; what is wrong with it becomes an error completion.
    #[cold]
    pub(crate) fn take_submission(&mut self, submission: Submission) {
        match submission {
            Submission::Send { mut post, to, data, copy } => {
                self.send_submitted(post.as_send(to, data), copy);
            }
            Submission::Receive { mut post, from, ignore } => {
                self.receive_submitted(post.as_receive(from, ignore));
            }
            Submission::Remote { operation, to } => self.remote_submitted(to, *operation),
            Submission::Due(due) if due.context.is_closed() => {}
            Submission::Due(due) => self.take_submission(due.submission),
            Submission::Handed(handed) => handed.give(self),
            Submission::Withdrawn(handle) => self.withdraw(handle),
            Submission::Overflow => {}
        }
        self.flush();
    }

    /// Fails what was left and is not to be posted any more.
    #[cold]
    pub(crate) fn fail_submission(&mut self, submission: Submission, why: &Cause) {
        match submission {
            Submission::Send { mut post, to, data, .. } => {
                self.fail_unsent(post.as_send(to, data), why);
            }
            Submission::Receive { mut post, from, ignore } => {
                let receive = ReceiveOperation::from_post(post.as_receive(from, ignore));
                self.fail_receive(receive, None, 0, why);
            }
            Submission::Remote { operation, .. } => self.fail_unsent_remote(*operation, why),
            Submission::Due(_)
            | Submission::Handed(_)
            | Submission::Withdrawn(_)
            | Submission::Overflow => {}
        }
    }
}
