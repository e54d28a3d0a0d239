//! Peeks at what waits for a shared receive context, and what they claim. Reference: fi_tagged(3).
//!
//! A peek looks at the names in the pool: at the messages of all endpoints, in the order in which
//! receives would take them. What it finds is told by the endpoint that has it. As receives do, it
//! asks that one's engine after it has let go of the pool. So a message that it only looks at may be
//! another's by then, as at any time after a peek; one that it claims or discards it has taken.

use super::{pool::Envelope, receive::SharedReceive};
use crate::{
    endpoint::PostError, engine::BURST_MAX, flags::Flags, operation::ReceivePost,
    protocol::claim::claims, transport::Provider,
};

impl<P: Provider> SharedReceive<P> {
    /// Posts a peek, or what retrieves or discards a message that a peek has claimed.
    #[cold]
    pub(super) fn post_special(
        &self,
        envelope: Envelope,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        match post.flags.contains(Flags::PEEK) {
            true => self.peek(envelope, &post),
            false => self.claim(post),
        }
    }

    /// "If no message is found matching the tags specified in the peek request, then a completion
    /// queue error entry with err field set to FI_ENOMSG will be available": at one of the
    /// endpoints.
    ///
    /// # Errors
    /// There is no endpoint, whose queue it could be available in.
    fn peek(&self, envelope: Envelope, post: &ReceivePost<'_>) -> Result<(), PostError> {
        let first = self.first_member().ok_or(PostError::NotEnabled)?;
        if claims(post.flags) && self.pool.lock().is_claimed(post.context) {
            return Err(PostError::ClaimedBefore { context: post.context });
        }
        self.look_for_arrivals(envelope);
        while let Some((member, message)) = self.find(envelope, post) {
            let asked = self.member(member).map(|unit| {
                // A closed endpoint has no messages.
                unit.with(|engine| engine.peek_shared(message, post)).unwrap_or(false)
            });
            if asked == Some(true) {
                return Ok(());
            }
            // It has gone with its endpoint, or its sender.
            let mut pool = self.pool.lock();
            pool.forget(member, |gone| gone == message);
            if claims(post.flags) {
                pool.take_claimed(post.context);
            }
        }
        first.with(|engine| engine.report_no_message(post))
    }

    /// The endpoint and the name of the first message that a peek is for, which has it alone from
    /// now on if it says so.
    fn find(&self, envelope: Envelope, post: &ReceivePost<'_>) -> Option<(u32, u64)> {
        let mut pool = self.pool.lock();
        let found = match post.flags.intersects(Flags::CLAIM | Flags::DISCARD) {
            true => pool.take_parked(envelope),
            false => pool.find_parked(envelope),
        }?;
        if claims(post.flags) {
            pool.claim(post.context, found);
        }
        Some((found.member, found.message))
    }

    /// Has endpoints that nobody drives take what has arrived, until a message is among it: who
    /// peeks in a loop always finds an answer in a queue, and drives nothing by reading it.
    fn look_for_arrivals(&self, envelope: Envelope) {
        const POLLS_MAX: usize = 32;
        for _ in 0..POLLS_MAX {
            if self.pool.lock().find_parked(envelope).is_some() {
                return;
            }
            let moved = self.all_members().iter().filter(|unit| unit.progress(BURST_MAX)).count();
            if moved == 0 {
                return;
            }
        }
    }

    /// "The same fi_context structure used for an FI_PEEK + FI_CLAIM operation must be used by the
    /// paired FI_CLAIM request."
    fn claim(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let missing = PostError::NothingClaimed { context: post.context };
        let claimed = self.pool.lock().take_claimed(post.context);
        let unit = claimed.and_then(|parked| self.member(parked.member)).ok_or(missing)?;
        unit.with(|engine| engine.claim_shared(post)).unwrap_or(Err(missing))
    }
}
