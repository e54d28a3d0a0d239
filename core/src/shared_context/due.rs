//! Receives of a shared context that are posted once a counter has reached a threshold.
//! Reference: fi_trigger(3).
//!
//! A receive is due where the counter changes, maybe in the middle of an engine's poll. So posting it
//! waits for no engine: it goes into the pool, or among the submissions of the endpoint that its
//! message waits at. If the message is gone when that one comes to it, it is posted again.

use std::sync::{Arc, Weak};

use super::{
    pool::{Envelope, Matched, Parked},
    receive::SharedReceive,
};
use crate::{
    endpoint::{CLAIM_FLAGS, PostError},
    engine::{Engine, submission::Submission},
    flags::Flags,
    operation::{ReceiveOperation, ReceivePost},
    transport::{Provider, Transport},
    triggered::{Key, Startable, Threshold},
};

/// A receive that waits to be posted. A context that is gone has nothing to post.
struct Waiting<P: Provider> {
    context: Weak<SharedReceive<P>>,
    envelope: Envelope,
    operation: ReceiveOperation,
}

impl<P: Provider> Startable for Waiting<P> {
    fn start(self: Box<Self>) {
        if let Some(context) = self.context.upgrade() {
            context.post_due(self.envelope, self.operation);
        }
    }

    fn cancel(self: Box<Self>) {
        if let Some(context) = self.context.upgrade() {
            context.tell_canceled(self.operation);
        }
    }
}

/// Whoever posts a receive again that was handed over in vain.
trait Poster: Send + Sync {
    fn post_due(self: Arc<Self>, envelope: Envelope, operation: ReceiveOperation);
}

impl<P: Provider> Poster for SharedReceive<P> {
    fn post_due(self: Arc<Self>, envelope: Envelope, operation: ReceiveOperation) {
        if self.domain().provider().forked() {
            return;
        }
        self.post_one(envelope, operation, |Parked { member, message, .. }, operation| {
            let Some(unit) = self.member(member) else { return Err(operation) };
            let matched = Some(Matched { operation, buffer: None });
            let handed = Handed { matched, message, envelope, context: self.clone() };
            unit.submit_due(Submission::Handed(Box::new(handed)));
            Ok(())
        });
    }
}

/// A receive on its way to the endpoint that its message waits at.
pub(crate) struct Handed {
    matched: Option<Matched>,
    message: u64,
    envelope: Envelope,
    context: Arc<dyn Poster>,
}

impl Handed {
    /// For the endpoint's engine, which may have the message no more.
    pub(crate) fn give<T: Transport>(mut self, engine: &mut Engine<T>) {
        engine.receive_shared(&mut self.matched, self.message);
    }
}

impl Drop for Handed {
    /// What nobody has taken is posted again: the message is gone, or the whole endpoint.
    fn drop(&mut self) {
        if let Some(Matched { operation, .. }) = self.matched.take() {
            self.context.clone().post_due(self.envelope, operation);
        }
    }
}

impl<P: Provider> SharedReceive<P> {
    /// Whether it was opened for triggered receives: then threads share its endpoints' engines,
    /// whatever the domain says.
    pub(crate) fn is_triggered(&self) -> bool {
        self.capabilities().contains(Flags::TRIGGER)
    }

    /// Posts a receive of one message once `when` has come: as [`Self::post_receive`], with one
    /// allocation or two. What is wrong with it is said at once.
    ///
    /// # Errors
    /// It is a peek, a claim or a multi-receive, or deferred work; the context was opened without
    /// `TRIGGER`; and as of [`Self::post_receive`].
    /// # Reference
    /// fi_trigger(3)
    pub fn trigger_receive(
        self: &Arc<Self>,
        post: ReceivePost<'_>,
        when: &Threshold<P>,
    ) -> Result<(), PostError> {
        if !self.is_triggered() {
            return Err(PostError::NotCapable { missing: Flags::TRIGGER });
        }
        if when.work.is_some() {
            return Err(PostError::NotAsWork { what: "a receive of a shared context" });
        }
        if post.flags.intersects(CLAIM_FLAGS | Flags::MULTI_RECV) {
            return Err(PostError::BadFlags { flags: post.flags });
        }
        if !Arc::ptr_eq(when.counter.domain(), self.domain()) {
            return Err(PostError::OtherDomain { object: "counter" });
        }
        let (envelope, key) = (self.envelope(&post)?, Key::Operation(post.context));
        let waiting = || {
            let (context, operation) = (Arc::downgrade(self), ReceiveOperation::from_post(post));
            Box::new(Waiting { context, envelope, operation }) as Box<dyn Startable>
        };
        let deferred = self.deferrals.defer(when.counter.counter(), when.value, key, waiting);
        deferred.map_err(|_| PostError::TriggerClosed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::sources::Source;
    use super::*;
    use crate::memory::Pieces;

    struct Posts(Mutex<Vec<u64>>);

    impl Poster for Posts {
        fn post_due(self: Arc<Self>, _: Envelope, operation: ReceiveOperation) {
            self.0.lock().unwrap().push(operation.context);
        }
    }

    fn handed(context: Arc<Posts>, number: u64) -> Handed {
        let operation = ReceiveOperation::from_post(ReceivePost {
            pieces: Pieces::Many(&[]),
            from: 0,
            tag: 0,
            ignore: 0,
            context: number,
            flags: Flags::MSG,
            region: None,
            attachment: None,
        });
        let envelope = Envelope { tagged: false, source: Source::Anybody, tag: 0, ignore: 0 };
        let matched = Some(Matched { operation, buffer: None });
        Handed { matched, message: 0, envelope, context }
    }

    #[test]
    fn a_receive_that_nobody_takes_is_posted_again() {
        let posts = Arc::new(Posts(Mutex::default()));
        drop(handed(posts.clone(), 5));
        let mut taken = handed(posts.clone(), 6);
        taken.matched = None;
        drop(taken);
        assert_eq!(*posts.0.lock().unwrap(), [5]);
    }
}
