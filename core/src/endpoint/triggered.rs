//! Operations that are posted once a counter has reached a threshold. Reference: fi_trigger(3).
//!
//! What is wrong with the call is said at once; what is wrong when the time has come becomes an
//! error completion. Until then an operation has no place among those that `transmit_size` bounds.

use std::sync::Arc;

use super::{Endpoint, PostError};
use crate::{
    engine::{
        submission::{Submission, Unowned},
        unit::Unit,
    },
    flags::Flags,
    one_sided::{Action, AtomicPost, RemotePost, RmaPost},
    operation::{ReceivePost, SendPost},
    protocol::receive::canceled,
    transport::Provider,
    triggered::{Threshold, Work},
};

/// An operation that waits to be posted.
struct Posted<P: Provider> {
    unit: Arc<Unit<P>>,
    submission: Submission,
}

impl<P: Provider> Work for Posted<P> {
    fn start(self: Box<Self>) {
        self.unit.submit_due(self.submission);
    }

    fn cancel(self: Box<Self>) {
        let Posted { unit, submission } = *self;
        // A closed endpoint reports nothing.
        let _ = unit.with(|engine| engine.fail_submission(submission, &canceled()));
    }
}

impl<P: Provider> Endpoint<P> {
    /// Posts a send once `when` has come: as [`Self::post_send`], with one allocation or two.
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
        self.check_pieces(&post.pieces)?;
        if post.flags.contains(Flags::INJECT) {
            self.check_inject(post.pieces.total())?;
        }
        post.check_length(enabled.unit.message_max())?;
        post.flags |= enabled.send.added;
        post.to &= enabled.to_mask;
        self.trigger(Unowned::send(post), when)
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
        self.check_flags(Flags::RECV, self.receive_flags(), post.flags)?;
        self.check_pieces(&post.pieces)?;
        post.from |= enabled.from_any;
        post.flags |= enabled.receive.added;
        self.trigger(Unowned::receive(post), when)
    }

    /// Posts a read once `when` has come: as [`Self::post_read`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_read(
        &self,
        mut post: RmaPost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.trigger_remote(self.prepare_rma(Action::Read, post)?, when)
    }

    /// Posts a write once `when` has come: as [`Self::post_write`], and see
    /// [`Self::trigger_send`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_write(
        &self,
        mut post: RmaPost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.trigger_remote(self.prepare_rma(Action::Write, post)?, when)
    }

    /// Posts an atomic operation once `when` has come: as [`Self::post_atomic`], and see
    /// [`Self::trigger_send`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_atomic(
        &self,
        mut post: AtomicPost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.trigger_remote(self.prepare_atomic(post)?, when)
    }

    fn trigger_remote(
        &self,
        mut post: RemotePost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        post.to &= self.enabled()?.to_mask;
        self.trigger(Unowned::remote(post), when)
    }

    fn trigger(&self, post: Unowned<'_>, when: &Threshold<P>) -> Result<(), PostError> {
        if !self.options.capabilities.contains(Flags::TRIGGER) {
            return Err(PostError::NotCapable { missing: Flags::TRIGGER });
        }
        if !Arc::ptr_eq(when.counter.domain(), &self.domain) {
            return Err(PostError::OtherDomain { object: "counter" });
        }
        let (unit, context) = (self.unit()?.clone(), post.context());
        let work = || Box::new(Posted { unit, submission: post.taken() }) as Box<dyn Work>;
        let counter = when.counter.counter();
        self.deferrals
            .defer(counter, when.value, context, work)
            .map_err(|_| PostError::TriggerClosed)
    }
}
