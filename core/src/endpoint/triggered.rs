//! Operations that are posted once a counter has reached a threshold. Reference: fi_trigger(3).
//!
//! What is wrong with the call is said at once; what is wrong when the time has come becomes an
//! error completion. Until then an operation has no place among those that `transmit_size` bounds.

use std::sync::Arc;

use super::{CLAIM_FLAGS, Endpoint, PostError, posting::reported};
use crate::{
    engine::{
        submission::{Due, Submission, Unattached},
        unit::Unit,
    },
    flags::Flags,
    one_sided::{Action, AtomicPost, RemotePost, RmaPost},
    operation::{ReceivePost, SendPost},
    protocol::receive::canceled,
    transport::Provider,
    triggered::{Deferrals, Key, Startable, Threshold},
};

/// An operation that waits to be posted.
struct Posted<P: Provider> {
    unit: Arc<Unit<P>>,
    submission: Submission,
    /// What a context of a pair has deferred: its unit may outlive it.
    context: Option<Arc<Deferrals>>,
}

impl<P: Provider> Startable for Posted<P> {
    fn start(self: Box<Self>) {
        let Posted { unit, submission, context } = *self;
        unit.submit_due(match context {
            Some(context) => Submission::Due(Box::new(Due { submission, context })),
            None => submission,
        });
    }

    fn cancel(self: Box<Self>) {
        let Posted { unit, submission, .. } = *self;
        // A closed endpoint reports nothing.
        let _ = unit.with(|engine| engine.fail_submission(submission, &canceled()));
    }
}

impl<P: Provider> Endpoint<P> {
    /// Posts a send once `when` has come: as [`Self::post_send`], with an allocation or two, a context with one more.
    /// With `INJECT` the pieces are copied now, else they are read then.
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_send(
        &self,
        mut post: SendPost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        self.check_flags(Flags::SEND, self.send_flags(), post.flags)?;
        self.check_sent(&post)?;
        post.check_length(enabled.unit.message_max())?;
        post.flags = reported(post.flags | when.of_operations(enabled.send.added));
        post.to &= enabled.to_mask;
        self.trigger(Flags::SEND, Unattached::send(post)?, when)
    }

    /// Posts a receive once `when` has come: as [`Self::post_receive`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_receive(
        &self,
        mut post: ReceivePost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        self.check_flags(Flags::RECV, self.receive_flags(post.flags), post.flags)?;
        if when.work.is_some() && post.flags.intersects(CLAIM_FLAGS | Flags::MULTI_RECV) {
            return Err(PostError::NotAsWork { what: "a peek, a claim or a multi-receive" });
        }
        post.pieces = self.heeded(post.pieces, post.flags);
        self.check_pieces(&post.pieces)?;
        post.from |= enabled.from_any.of_family(post.flags);
        post.flags |= when.of_operations(enabled.receive.added);
        self.trigger(Flags::RECV, Unattached::receive(post), when)
    }

    /// Posts a read once `when` has come: as [`Self::post_read`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_read(&self, post: RmaPost<'_>, when: &Threshold<P>) -> Result<(), PostError> {
        self.trigger_remote(self.prepare_rma(Action::Read, post)?, when)
    }

    /// Posts a write once `when` has come: as [`Self::post_write`], and see
    /// [`Self::trigger_send`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_write(&self, post: RmaPost<'_>, when: &Threshold<P>) -> Result<(), PostError> {
        self.trigger_remote(self.prepare_rma(Action::Write, post)?, when)
    }

    /// Posts an atomic operation once `when` has come: as [`Self::post_atomic`], and see
    /// [`Self::trigger_send`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_atomic(
        &self,
        post: AtomicPost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        self.trigger_remote(self.prepare_atomic(post)?, when)
    }

    fn trigger_remote(
        &self,
        mut post: RemotePost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        post.flags |= when.of_operations(enabled.send.added);
        post.to &= enabled.to_mask;
        self.trigger(Flags::SEND, Unattached::remote(post)?, when)
    }

    fn trigger(
        &self,
        direction: Flags,
        post: Unattached<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        if !self.options.side(direction).contains(Flags::TRIGGER) {
            return Err(PostError::NotCapable { missing: Flags::TRIGGER });
        }
        let completion = when.work.as_ref().and_then(|work| work.completion.as_ref());
        for counter in [Some(&when.counter), completion].into_iter().flatten() {
            if !Arc::ptr_eq(counter.domain(), &self.domain) {
                return Err(PostError::OtherDomain { object: "counter" });
            }
        }
        let unit = self.unit()?.clone();
        let (key, tally) = match &when.work {
            None => (Key::Operation(post.context()), None),
            Some(work) => {
                self.check_work()?;
                self.domain.works().learn(when.counter.counter());
                (Key::Work(work.id), Some(work.tally()))
            }
        };
        let work = || {
            let submission = match tally {
                None => post.taken(),
                Some(tally) => post.into_work(tally),
            };
            let context = self.seat.is_some().then(|| self.deferrals.clone());
            Box::new(Posted { unit, submission, context }) as Box<dyn Startable>
        };
        let counter = when.counter.counter();
        self.deferrals.defer(counter, when.value, key, work).map_err(|_| PostError::TriggerClosed)
    }

    /// What completes as nothing else does cannot be told apart from what is no work.
    fn check_work(&self) -> Result<(), PostError> {
        match (self.options.datagrams, self.buffers()) {
            (true, _) => Err(PostError::NotAsWork { what: "a datagram" }),
            (_, true) => Err(PostError::NotAsWork { what: "what buffers its messages" }),
            _ => Ok(()),
        }
    }
}
