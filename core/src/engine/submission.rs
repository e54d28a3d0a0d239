//! What is left for an engine's owner: operations as they were posted, which outlive the post.

use super::Engine;
use crate::{
    endpoint::PostError,
    error::Cause,
    flags::Flags,
    memory_region::descriptor::Descriptor,
    one_sided::{RemoteOperation, RemotePost},
    operation::{Copied, Lent, ReceiveOperation, ReceivePost, SendPost, StoredPieces, room_for},
    owned::Owner,
    shared_context::due::Handed,
    transport::Transport,
    triggered::Tally,
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
    owner: Option<Owner>,
}

impl Submitted {
    /// As it was posted.
    fn as_send(&mut self, to: u64, data: u64) -> SendPost<'_> {
        let Submitted { pieces, tag, context, flags, region, owner } = self;
        let (tag, context, flags, region) = (*tag, *context, *flags, *region);
        let (pieces, owner) = (pieces.view(), Some(owner));
        SendPost { pieces, to, tag, data, context, flags, region, owner }
    }

    /// As it was posted.
    fn as_receive(&mut self, from: u64, ignore: u64) -> ReceivePost<'_> {
        let Submitted { pieces, tag, context, flags, region, owner } = self;
        let (tag, context, flags, region) = (*tag, *context, *flags, *region);
        let (pieces, owner) = (pieces.view(), Some(owner));
        ReceivePost { pieces, from, tag, ignore, context, flags, region, owner }
    }
}

/// A submission whose operation's buffer, if it has one, is still with the caller.
pub(crate) struct Unowned<'a> {
    submission: Submission,
    lent: Lent<'a>,
}

impl<'a> Unowned<'a> {
    /// # Errors
    /// There is no memory for a copy of what is injected.
    #[cold]
    pub fn send(post: SendPost<'a>) -> Result<Self, PostError> {
        let mut copy = post.injected_copy()?;
        let pieces = StoredPieces::of_send(post.pieces, &mut copy);
        let SendPost { to, tag, data, context, flags, region, owner: lent, .. } = post;
        let post = Submitted { pieces, tag, context, flags, region, owner: None };
        Ok(Unowned { submission: Submission::Send { post, to, data, copy }, lent })
    }

    #[cold]
    pub fn receive(post: ReceivePost<'a>) -> Self {
        let pieces = StoredPieces::store(post.pieces);
        let ReceivePost { from, tag, ignore, context, flags, region, owner: lent, .. } = post;
        let post = Submitted { pieces, tag, context, flags, region, owner: None };
        Unowned { submission: Submission::Receive { post, from, ignore }, lent }
    }

    /// # Errors
    /// As [`Self::send`].
    #[cold]
    pub fn remote(mut post: RemotePost<'a>) -> Result<Self, PostError> {
        let (to, lent) = (post.to, post.owner.take());
        // The owner finds out who the peer is.
        let mut operation = Box::new(RemoteOperation::from_post(0, post));
        operation.keep_injected(room_for)?;
        Ok(Unowned { submission: Submission::Remote { operation, to }, lent })
    }

    /// As posted.
    pub fn context(&self) -> u64 {
        match &self.submission {
            Submission::Send { post, .. } | Submission::Receive { post, .. } => post.context,
            Submission::Remote { operation, .. } => operation.context,
            Submission::Handed(_) | Submission::Withdrawn(_) | Submission::Overflow => 0,
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
        if let Some(owner) = submission.owner() {
            *owner = Some(Owner::of_work(tally));
        }
        submission
    }

    /// The submission with its buffer, which the caller has no more.
    pub fn taken(self) -> Submission {
        let Unowned { mut submission, lent } = self;
        if let Some(owner) = submission.owner() {
            *owner = lent.and_then(Option::take);
        }
        submission
    }

    /// The submission with its buffer, which `leave` takes or gives back: a refusal has no side
    /// effect, the buffer is back where it was.
    pub fn leave(self, leave: impl FnOnce(Submission) -> Result<(), Submission>) -> bool {
        let Unowned { mut submission, lent } = self;
        let mut none = None;
        let lent = lent.unwrap_or(&mut none);
        if let Some(owner) = submission.owner() {
            *owner = lent.take();
        }
        match leave(submission) {
            Ok(()) => true,
            Err(mut refused) => {
                *lent = refused.owner().and_then(Option::take);
                false
            }
        }
    }
}

impl Submission {
    fn owner(&mut self) -> Option<&mut Option<Owner>> {
        match self {
            Submission::Send { post, .. } | Submission::Receive { post, .. } => {
                Some(&mut post.owner)
            }
            Submission::Remote { operation, .. } => Some(&mut operation.owner),
            Submission::Handed(_) | Submission::Withdrawn(_) | Submission::Overflow => None,
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
            Submission::Handed(_) | Submission::Withdrawn(_) | Submission::Overflow => {}
        }
    }
}
