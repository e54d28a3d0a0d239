//! A unit: one engine and the way to own it.

use std::{cell::UnsafeCell, sync::Arc};

use super::{Engine, ownership::Ownership};
use crate::{
    completion_queue::store::Sharing,
    endpoint::PostError,
    flags::Flags,
    memory::Piece,
    one_sided::{RemoteOperation, RemotePost},
    operation::{ReceivePost, SendPost, StoredPieces},
    owned::Owner,
    primitive::{AtomicU32, Ordering, yield_now},
    ring::mpmc::{Popped, Ring},
    transport::Provider,
};

/// Operations that may wait for an owner who is busy.
const SUBMISSIONS_MAX: usize = 256;

/// What a caller leaves for the owner. Boxed buffers only where threads collide.
enum Submission {
    Send { post: Submitted, to: u64, data: u64, copy: Option<Box<[u8]>> },
    Receive { post: Submitted, from: u64, ignore: u64 },
    Remote { operation: Box<RemoteOperation>, to: u64 },
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

struct Submitted {
    pieces: StoredPieces,
    tag: u64,
    context: u64,
    flags: Flags,
    owner: Option<Owner>,
}

impl Submission {
    fn into_owner(self) -> Option<Owner> {
        match self {
            Submission::Send { post, .. } | Submission::Receive { post, .. } => post.owner,
            Submission::Remote { operation, .. } => operation.owner,
        }
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
    submissions: Ring<Submission>,
    /// Counts polls by the application, so that a helper knows to stay away.
    polls: AtomicU32,
    /// The longest message. Units: bytes.
    message_max: usize,
    engine: UnsafeCell<Option<Engine<P::Transport>>>,
}

// SAFETY: the engine is only touched by the owner: in shared mode whoever holds
// `ownership`, in exclusive mode the one thread at a time that the application
// promised when it opened the domain (an unsafe call).
unsafe impl<P: Provider> Sync for Unit<P> {}
// SAFETY: the engine is Send, since transports are; nothing is bound to a thread.
unsafe impl<P: Provider> Send for Unit<P> {}

impl<P: Provider> Unit<P> {
    /// Puts an engine under ownership.
    pub fn new(provider: Arc<P>, sharing: Sharing, engine: Engine<P::Transport>) -> Self {
        Unit {
            provider,
            sharing,
            ownership: Ownership::new(),
            submissions: Ring::new(SUBMISSIONS_MAX),
            polls: AtomicU32::new(0),
            message_max: engine.message_max(),
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

    /// Polls the engine for `most` packets if nobody else does. Returns whether anything moved.
    #[inline(always)]
    pub fn progress(&self, most: usize) -> bool {
        if self.provider.forked() {
            return false;
        }
        if self.sharing == Sharing::Exclusive {
            return self.owned().is_some_and(|engine| engine.progress_with(most));
        }
        if !self.ownership.try_acquire() {
            return false;
        }
        self.drain();
        let moved = self.owned().is_some_and(|engine| engine.progress_with(most));
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
            return self.owned().ok_or(PostError::Closed)?.send(post);
        }
        if !self.ownership.try_acquire() {
            return self.submit_send(post);
        }
        if !self.drain() {
            self.release();
            return self.submit_send(post);
        }
        let result = self.owned().map_or(Err(PostError::Closed), |engine| engine.send(post));
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
            return self.owned().ok_or(PostError::Closed)?.receive(post);
        }
        if !self.ownership.try_acquire() {
            return self.submit_receive(post);
        }
        if !self.drain() {
            self.release();
            return self.submit_receive(post);
        }
        let result = self.owned().map_or(Err(PostError::Closed), |engine| engine.receive(post));
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
            return self.owned().ok_or(PostError::Closed)?.remote(post);
        }
        if !self.ownership.try_acquire() {
            return self.submit_remote(post);
        }
        if !self.drain() {
            self.release();
            return self.submit_remote(post);
        }
        let result = self.owned().map_or(Err(PostError::Closed), |engine| engine.remote(post));
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
        if self.sharing == Sharing::Exclusive {
            return self.owned().map(work).ok_or(PostError::Closed);
        }
        self.ownership.acquire();
        while !self.drain() {
            yield_now();
        }
        let result = self.owned().map(work).ok_or(PostError::Closed);
        self.release();
        result
    }

    /// Drops the engine. Later calls answer [`PostError::Closed`].
    pub fn close(&self) {
        if self.provider.forked() {
            return;
        }
        if self.sharing == Sharing::Shared {
            self.ownership.acquire();
        }
        // SAFETY: we are the owner, or the exclusive thread.
        let engine = unsafe { (*self.engine.get()).take() };
        drop(engine);
        if self.sharing == Sharing::Shared {
            self.release();
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
        for _ in 0..SUBMISSIONS_MAX {
            let submission = match self.submissions.pop() {
                Popped::Item(submission) => submission,
                Popped::Empty => return true,
                Popped::Pending => return false,
            };
            let Some(engine) = self.owned() else { continue };
            match submission {
                Submission::Send { post, to, data, copy } => {
                    let Submitted { pieces: stored, tag, context, flags, mut owner } = post;
                    let owner = Some(&mut owner);
                    let pieces = stored.view();
                    engine.send_submitted(SendPost {
                        pieces,
                        to,
                        tag,
                        data,
                        context,
                        flags,
                        owner,
                    });
                    drop(copy);
                }
                Submission::Remote { operation, to } => engine.remote_submitted(to, *operation),
                Submission::Receive { post, from, ignore } => {
                    let Submitted { pieces: stored, tag, context, flags, mut owner } = post;
                    let owner = Some(&mut owner);
                    let pieces = stored.view();
                    engine.receive_submitted(ReceivePost {
                        pieces,
                        from,
                        tag,
                        ignore,
                        context,
                        flags,
                        owner,
                    });
                }
            }
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn submit_send(&self, post: SendPost<'_>) -> Result<(), PostError> {
        post.check_length(self.message_max)?;
        let total = post.pieces.total();
        let inject = post.flags.contains(Flags::INJECT);
        let mut pieces = StoredPieces::store(post.pieces);
        let mut copy = None;
        if inject {
            let mut bytes = Vec::with_capacity(total);
            post.pieces.for_each_part(0, total, |part| part.append_to(&mut bytes));
            let mut bytes = bytes.into_boxed_slice();
            pieces = StoredPieces::One(Piece::of_owned(&mut bytes));
            copy = Some(bytes);
        }
        let SendPost { to, tag, data, context, flags, owner: lent, .. } = post;
        self.submit(lent, |owner| {
            let post = Submitted { pieces, tag, context, flags, owner };
            Submission::Send { post, to, data, copy }
        })
    }

    #[cold]
    #[inline(never)]
    fn submit_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let pieces = StoredPieces::store(post.pieces);
        let ReceivePost { from, tag, ignore, context, flags, owner: lent, .. } = post;
        self.submit(lent, |owner| {
            let post = Submitted { pieces, tag, context, flags, owner };
            Submission::Receive { post, from, ignore }
        })
    }

    #[cold]
    #[inline(never)]
    fn submit_remote(&self, mut post: RemotePost<'_>) -> Result<(), PostError> {
        let (to, lent) = (post.to, post.owner.take());
        // The owner finds out who the peer is.
        let mut operation = Box::new(RemoteOperation::from_post(0, post));
        operation.keep_injected();
        self.submit(lent, |owner| {
            operation.owner = owner;
            Submission::Remote { operation, to }
        })
    }

    /// Leaves what `write` makes of the operation's buffer, if it has one, for the
    /// owner. A refusal has no side effect: the buffer is back where it was.
    fn submit(
        &self,
        lent: Option<&mut Option<Owner>>,
        write: impl FnOnce(Option<Owner>) -> Submission,
    ) -> Result<(), PostError> {
        let mut none = None;
        let lent = lent.unwrap_or(&mut none);
        if let Err(refused) = self.submissions.push(write(lent.take())) {
            *lent = refused.into_owner();
            return Err(PostError::Again);
        }
        if self.ownership.submitted() {
            self.drain();
            self.release();
        }
        Ok(())
    }
}
