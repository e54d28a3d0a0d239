//! A unit: one engine and the way to own it.

use std::{cell::UnsafeCell, sync::Arc, time::Instant};

use super::{
    Engine,
    abandoned::Abandoned,
    driven::PollsElsewhere,
    leaving::CONNECT_WAIT,
    ownership::Ownership,
    submission::{Submission, Unattached},
};
use crate::{
    contained::contained,
    domain::Sharing,
    endpoint::PostError,
    one_sided::RemotePost,
    operation::{ReceivePost, SendPost, set_down},
    primitive::{AtomicBool, AtomicU32, Ordering, yield_now},
    ring::submissions::Submissions,
    transport::Provider,
};

const CLOSED: Result<(), PostError> = Err(PostError::Closed);

/// Operations that may wait for an owner who is busy.
const SUBMISSIONS_MAX: usize = 256;

/// The owner at work. Dropped by a panic, which has left the engine half-way, it leaves none behind:
/// everybody is told that the endpoint is closed, where all would wait for a thread that is gone.
struct AtWork<'a, P: Provider>(&'a Unit<P>);

impl<P: Provider> Drop for AtWork<'_, P> {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: we are the owner, or the exclusive thread, and nothing refers to the engine any more.
        let engine = unsafe { (*self.0.engine.get()).take() };
        // Who closes the endpoint meanwhile waits for the owner, as beside a close: until nobody is reached by it.
        let abandoned = engine.map(Engine::abandon);
        self.0.ownership.abandon();
        abandoned.into_iter().for_each(Abandoned::tell);
    }
}

impl<P: Provider> Drop for Unit<P> {
    /// In a forked child the engine is a copy of the parent's, whose goodbye the
    /// peers would take for the parent's own: it is left alone.
    fn drop(&mut self) {
        if self.provider.forked() {
            std::mem::forget(self.engine.get_mut().take());
        }
    }
}

/// The exclusive thread at work. In builds with debug assertions it notices who comes from inside of its
/// call, or at the same time; in others it is nothing.
struct Inside<'a> {
    #[cfg(debug_assertions)]
    is_inside: &'a AtomicBool,
    #[cfg(not(debug_assertions))]
    unit: std::marker::PhantomData<&'a ()>,
}

#[cfg(debug_assertions)]
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.is_inside.store(false, Ordering::Relaxed);
    }
}

/// An engine that any thread may ask to drive.
///
/// Aligned so that it shares no line, nor a pair of lines that are fetched together, with another
/// unit, which another thread may drive.
#[repr(align(128))]
pub struct Unit<P: Provider> {
    provider: Arc<P>,
    sharing: Sharing,
    ownership: Ownership,
    /// What was deferred and is due is never refused.
    submissions: Submissions<Submission>,
    /// As many as the transmit size allows, or more, are under way: sends and one-sided operations are
    /// left for the owner no more. Only the owner writes to it.
    is_full: AtomicBool,
    /// Counts polls by the application, so that a helper knows to stay away.
    polls: AtomicU32,
    /// Those by an event queue among them.
    polls_elsewhere: PollsElsewhere,
    /// The longest message. Units: bytes.
    message_max: usize,
    /// The exclusive thread is in a call.
    #[cfg(debug_assertions)]
    is_inside: AtomicBool,
    engine: UnsafeCell<Option<Engine<P::Transport>>>,
}

// SAFETY: the engine is only touched by the owner: in shared mode whoever holds
// `ownership`, in exclusive mode the one thread at a time that the application
// promised when it opened the domain: an unsafe call, without which nobody outside of
// this crate makes a unit.
unsafe impl<P: Provider> Sync for Unit<P> {}
// SAFETY: the engine is Send, since transports are; nothing is bound to a thread.
unsafe impl<P: Provider> Send for Unit<P> {}

impl<P: Provider> Unit<P> {
    /// Puts an engine under ownership. `sharing` is its domain's, or says that any thread may call it.
    pub(crate) fn new(provider: Arc<P>, sharing: Sharing, engine: Engine<P::Transport>) -> Self {
        Unit {
            provider,
            sharing,
            ownership: Ownership::new(),
            submissions: Submissions::new(SUBMISSIONS_MAX),
            is_full: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            polls_elsewhere: PollsElsewhere::default(),
            message_max: engine.message_max(),
            #[cfg(debug_assertions)]
            is_inside: AtomicBool::new(false),
            engine: UnsafeCell::new(Some(engine)),
        }
    }

    /// The longest message. Units: bytes.
    pub fn message_max(&self) -> usize {
        self.message_max
    }

    /// The engine, for the owner.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn owned(&self) -> Option<&mut Engine<P::Transport>> {
        // SAFETY: every caller is the owner, or the exclusive thread, and lets
        // the reference go before it releases.
        unsafe { (*self.engine.get()).as_mut() }
    }

    /// The exclusive thread begins a call: the promise is that it is in no other, nor anybody else.
    #[inline(always)]
    fn enter(&self) -> Inside<'_> {
        #[cfg(debug_assertions)]
        {
            let is_inside = self.is_inside.swap(true, Ordering::Relaxed);
            assert!(!is_inside, "a call from inside of another one in a domain for one thread");
            Inside { is_inside: &self.is_inside }
        }
        #[cfg(not(debug_assertions))]
        Inside { unit: std::marker::PhantomData }
    }

    /// Polls the engine for `most` packets if nobody else does. Returns whether anything moved.
    #[inline(always)]
    pub fn progress(&self, most: usize) -> bool {
        if self.provider.forked() {
            return false;
        }
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            // As `work`, but for its closure: so it is inlined to where the completions go.
            let at_work = AtWork(self);
            let moved = match self.owned() {
                Some(engine) => engine.progress_with(most),
                None => false,
            };
            std::mem::forget(at_work);
            return moved;
        }
        if !self.ownership.try_acquire() {
            return false;
        }
        self.drain();
        self.progress_shared(most)
    }

    /// Has the owner, who has drained, or the exclusive thread do its own work.
    #[inline(always)]
    fn work<R>(&self, work: impl FnOnce(&Self) -> R) -> R {
        let at_work = AtWork(self);
        let result = work(self);
        std::mem::forget(at_work);
        result
    }

    #[inline(never)]
    fn progress_shared(&self, most: usize) -> bool {
        let moved = self.work(|unit| unit.owned().is_some_and(|engine| engine.progress_with(most)));
        self.look_for_places();
        self.release();
        moved
    }

    /// As [`Self::progress`], for an application's own poll.
    #[inline(always)]
    pub fn progress_by_application(&self, most: usize) -> bool {
        if self.sharing == Sharing::Shared {
            self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        self.progress(most)
    }

    pub(super) fn polls_elsewhere(&self) -> &PollsElsewhere {
        &self.polls_elsewhere
    }

    /// How often the application polled, for a helper to see whether it does.
    pub fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Posts a send, or leaves it for the owner.
    #[inline(always)]
    pub fn send(&self, post: SendPost<'_>) -> Result<(), PostError> {
        if self.provider.forked() {
            return Err(PostError::ForkedChild);
        }
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            return self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.send(post)));
        }
        if !self.ownership.try_acquire() {
            return self.submit_send(set_down(post));
        }
        if !self.drain() {
            self.release();
            return self.submit_send(set_down(post));
        }
        let result = self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.send(post)));
        self.look_for_places();
        self.release();
        result
    }

    /// Posts a receive, or leaves it for the owner.
    #[inline(always)]
    pub fn receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        if self.provider.forked() {
            return Err(PostError::ForkedChild);
        }
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            return self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.receive(post)));
        }
        if !self.ownership.try_acquire() {
            return self.submit_receive(set_down(post));
        }
        if !self.drain() {
            self.release();
            return self.submit_receive(set_down(post));
        }
        let result = self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.receive(post)));
        self.release();
        result
    }

    /// Posts a one-sided operation, or leaves it for the owner.
    #[inline]
    pub fn remote(&self, post: RemotePost<'_>) -> Result<(), PostError> {
        if self.provider.forked() {
            return Err(PostError::ForkedChild);
        }
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            return self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.remote(post)));
        }
        if !self.ownership.try_acquire() {
            return self.submit_remote(post);
        }
        if !self.drain() {
            self.release();
            return self.submit_remote(post);
        }
        let result = self.work(|unit| unit.owned().map_or(CLOSED, |engine| engine.remote(post)));
        self.look_for_places();
        self.release();
        result
    }

    /// Runs `work` as the owner, waiting for the present one: for cold calls.
    pub fn with<R>(
        &self,
        work: impl FnOnce(&mut Engine<P::Transport>) -> R,
    ) -> Result<R, PostError> {
        if self.provider.forked() {
            return Err(PostError::ForkedChild);
        }
        let work = |engine: &mut Engine<P::Transport>| {
            let result = work(engine);
            engine.flush();
            result
        };
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            return self.work(|unit| unit.owned().map(work).ok_or(PostError::Closed));
        }
        self.acquire();
        let result = self.work(|unit| unit.owned().map(work).ok_or(PostError::Closed));
        self.look_for_places();
        self.release();
        result
    }

    /// Drops the engine, which has been given what was left for its owner: what was injected is
    /// done for its sender, and leaves before the goodbye, for which the caller waits a second at most.
    /// Later calls answer [`PostError::Closed`].
    pub fn close(&self) {
        if self.provider.forked() {
            return;
        }
        // SAFETY: we are the owner, or the exclusive thread.
        let close = |unit: &Self| drop(unsafe { (*unit.engine.get()).take() });
        if self.sharing == Sharing::Exclusive {
            let _inside = self.enter();
            return self.work(close);
        }
        self.acquire();
        self.work(close);
        self.release();
    }

    /// Lets what its transmit context has injected leave before that closes, a second at most. Others go on
    /// meanwhile: the other context of the pair, too.
    pub fn let_injected_leave(&self) {
        let start = Instant::now();
        let _ = self.with(Engine::silence_sends);
        let progress =
            |engine: &mut Engine<P::Transport>| (engine.holds_injected(), engine.progress());
        while let Ok((true, moved)) = self.with(progress)
            && start.elapsed() < CONNECT_WAIT
        {
            if !moved {
                yield_now();
            }
        }
    }

    /// Becomes the owner, waiting for the present one, and takes all that was left for it.
    fn acquire(&self) {
        self.ownership.acquire();
        while !self.drain() {
            yield_now();
        }
    }

    #[inline(always)]
    fn release(&self) {
        self.ownership.release(
            || self.submissions.is_ready(),
            || {
                self.drain();
            },
        );
    }

    /// Takes what was submitted, in order. False if it cannot take all that was
    /// there: somebody is in the middle of a push and maybe off the core, so we
    /// do not wait. What comes after that push goes behind it.
    #[inline(always)]
    fn drain(&self) -> bool {
        self.submissions.is_empty() || self.drain_submissions()
    }

    #[cold]
    #[inline(never)]
    fn drain_submissions(&self) -> bool {
        self.work(|unit| {
            unit.owned().into_iter().for_each(Engine::begin_drain);
            let is_drained = loop {
                let is_drained = unit.submissions.drain(|submission| unit.take(submission));
                if !unit.owned().is_some_and(Engine::awaits_connections) {
                    break is_drained;
                }
            };
            unit.owned().into_iter().for_each(Engine::end_drain);
            is_drained
        })
    }

    /// For the owner. A closed engine drops what was left for it.
    fn take(&self, submission: Submission) {
        if let Some(engine) = self.owned() {
            engine.take_submission(submission);
            self.is_full.store(engine.is_full(), Ordering::Relaxed);
        }
    }

    /// For the owner, who may have made places since the last submission.
    #[inline(always)]
    fn look_for_places(&self) {
        if self.is_full.load(Ordering::Relaxed) {
            let is_full = self.owned().is_some_and(|engine| engine.is_full());
            self.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn submit_send(&self, post: SendPost<'_>) -> Result<(), PostError> {
        post.check_length(self.message_max)?;
        self.check_place()?;
        self.submit(Unattached::send(post)?)
    }

    #[cold]
    #[inline(never)]
    fn submit_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        self.submit(Unattached::receive(post))
    }

    #[cold]
    #[inline(never)]
    fn submit_remote(&self, post: RemotePost<'_>) -> Result<(), PostError> {
        self.check_place()?;
        self.submit(Unattached::remote(post)?)
    }

    /// Only what fits the ring is under way beyond the transmit size: a thread that owns the engine
    /// nearly always may find a peer that takes nothing.
    fn check_place(&self) -> Result<(), PostError> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(PostError::Again),
            false => Ok(()),
        }
    }

    /// How many operations of one direction may be posted, whoever owns the engine by then: half of
    /// what may wait for a busy owner, since the other half is the other direction's.
    pub fn submissions_left(&self) -> usize {
        match self.sharing {
            Sharing::Exclusive => usize::MAX,
            Sharing::Shared => self.submissions.room() / 2,
        }
    }

    /// Leaves an operation for the owner. A refusal has no side effect.
    fn submit(&self, post: Unattached<'_>) -> Result<(), PostError> {
        if !post.leave(|submission| self.submissions.push(submission)) {
            return Err(PostError::Again);
        }
        if self.ownership.submitted() {
            self.drain();
            self.release();
        }
        Ok(())
    }

    /// Posts what was deferred, from wherever the counter reached its threshold: maybe from within
    /// this very engine, so it waits for nobody, and nothing is refused.
    ///
    /// The engine is one that threads share, whatever the domain says.
    pub(crate) fn submit_due(&self, submission: Submission) {
        if self.provider.forked() {
            return;
        }
        self.submissions.push_always(submission, Submission::Overflow);
        if self.ownership.submitted_from_within() {
            // A bug in there is not that of the engine from within which this may be called.
            contained("an endpoint", || {
                self.drain();
                self.release();
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
