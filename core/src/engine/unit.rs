//! A unit: one engine and the way to own it.

use std::{cell::UnsafeCell, sync::Arc};

use super::{
    Engine,
    ownership::Ownership,
    submission::{Submission, Unowned},
};
use crate::{
    completion_queue::store::Sharing,
    endpoint::PostError,
    one_sided::RemotePost,
    operation::{ReceivePost, SendPost, set_down},
    primitive::{AtomicBool, AtomicU32, Ordering, yield_now},
    ring::submissions::Submissions,
    transport::Provider,
};

/// Operations that may wait for an owner who is busy.
const SUBMISSIONS_MAX: usize = 256;

impl<P: Provider> Drop for Unit<P> {
    /// In a forked child the engine is a copy of the parent's, whose goodbye the
    /// peers would take for the parent's own: it is left alone.
    fn drop(&mut self) {
        if self.provider.forked() {
            std::mem::forget(self.engine.get_mut().take());
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
    /// What was deferred and is due is never refused.
    submissions: Submissions<Submission>,
    /// As many as the transmit size allows, or more, are under way: sends and one-sided operations are
    /// left for the owner no more. Only the owner writes to it.
    is_full: AtomicBool,
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
            submissions: Submissions::new(SUBMISSIONS_MAX),
            is_full: AtomicBool::new(false),
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
            return match self.owned() {
                Some(engine) => engine.progress_with(most),
                None => false,
            };
        }
        if !self.ownership.try_acquire() {
            return false;
        }
        self.drain();
        self.progress_shared(most)
    }

    #[inline(never)]
    fn progress_shared(&self, most: usize) -> bool {
        let moved = self.owned().is_some_and(|engine| engine.progress_with(most));
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
            return self.submit_send(set_down(post));
        }
        if !self.drain() {
            self.release();
            return self.submit_send(set_down(post));
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
            return self.submit_receive(set_down(post));
        }
        if !self.drain() {
            self.release();
            return self.submit_receive(set_down(post));
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
        let work = |engine: &mut Engine<P::Transport>| {
            let result = work(engine);
            engine.flush();
            result
        };
        if self.sharing == Sharing::Exclusive {
            return self.owned().map(work).ok_or(PostError::Closed);
        }
        self.acquire();
        let result = self.owned().map(work).ok_or(PostError::Closed);
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
        if self.sharing == Sharing::Shared {
            self.acquire();
        }
        // SAFETY: we are the owner, or the exclusive thread.
        let engine = unsafe { (*self.engine.get()).take() };
        drop(engine);
        if self.sharing == Sharing::Shared {
            self.release();
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
        self.submissions.drain(|submission| self.take(submission))
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
        self.submit(Unowned::send(post)?)
    }

    #[cold]
    #[inline(never)]
    fn submit_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        self.submit(Unowned::receive(post))
    }

    #[cold]
    #[inline(never)]
    fn submit_remote(&self, post: RemotePost<'_>) -> Result<(), PostError> {
        self.check_place()?;
        self.submit(Unowned::remote(post)?)
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
    fn submit(&self, post: Unowned<'_>) -> Result<(), PostError> {
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
            self.drain();
            self.release();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::SUBMISSIONS_MAX;
    use crate::{
        address_vector::AddressVector,
        completion_queue::{CompletionQueue, Entry},
        domain::{Domain, DomainOptions},
        endpoint::{Endpoint, EndpointOptions},
        flags::Flags,
        memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
        mock::{MockOptions, MockProvider},
    };
    use std::sync::Arc;

    struct Node {
        domain: Arc<Domain<MockProvider>>,
        endpoint: Arc<Endpoint<MockProvider>>,
        queue: Arc<CompletionQueue<MockProvider>>,
        vector: Arc<AddressVector>,
    }

    impl Node {
        fn open(provider: &Arc<MockProvider>) -> Node {
            let domain = Domain::open(provider.clone(), DomainOptions::default()).unwrap();
            let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
            let queue = CompletionQueue::open(&domain, 0).unwrap();
            let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
            endpoint.bind_address_vector(&vector).unwrap();
            endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
            endpoint.enable().unwrap();
            Node { domain, endpoint, queue, vector }
        }

        /// A region that peers may write to, which is closed before `memory` is looked at.
        fn target(&self, memory: &mut [u8]) -> Arc<MemoryRegion> {
            let address = memory.as_mut_ptr() as u64;
            let ranges = &[MemoryRange { address, len: memory.len() as u64 }];
            let access = Flags::REMOTE_WRITE;
            let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
            // SAFETY: the memory outlives the region, and is looked at when nobody writes there.
            unsafe { self.domain.register_memory(&attributes) }.unwrap()
        }

        /// Polls until nothing more happens, for the mock is never late; the receives that are done.
        fn received(&self) -> Vec<u64> {
            let mut done = Vec::new();
            for _ in 0..100 {
                let mut entry = [Entry::default()];
                if self.queue.read(&mut entry) == Ok(1) {
                    done.push(entry[0].context);
                }
            }
            done
        }
    }

    /// The peer takes nothing, and each post meets a busy owner.
    #[test]
    fn what_is_left_for_a_busy_owner_is_bounded() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let (from, to) = (Node::open(&provider), Node::open(&provider));
        let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
        let unit = from.endpoint.unit().unwrap();
        let under_way = || unit.with(|engine| engine.under_way()).unwrap();
        let most = EndpointOptions::default().transmit_size + SUBMISSIONS_MAX;
        let mut memory = vec![0_u8; 8];
        let region = to.target(&mut memory);
        let post = |context: u64| match context % 2 {
            0 => from.endpoint.send(vec![0; 8], peer, context),
            _ => from.endpoint.write(vec![0; 8], peer, region.base(), region.key(), context),
        };
        for _ in 0..most.div_ceil(SUBMISSIONS_MAX) + 3 {
            assert!(unit.ownership.try_acquire());
            for context in 0.. {
                if post(context).is_err() {
                    break;
                }
            }
            unit.release();
        }
        assert!((most - SUBMISSIONS_MAX..=most).contains(&under_way()), "{}", under_way());
        // Receives are bounded by nothing but the ring.
        assert!(unit.ownership.try_acquire());
        from.endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
        unit.release();
        (0..most as u64).for_each(|at| to.endpoint.receive(vec![0; 8], u64::MAX, at).unwrap());
        for _ in 0..100 {
            to.received();
            from.received();
        }
        assert_eq!(under_way(), 0);
        assert!(unit.ownership.try_acquire());
        assert!(post(0).is_ok() && post(1).is_ok(), "there are places again");
        unit.release();
        to.domain.close_memory(&region).unwrap();
    }

    /// Its sender was told that it is done, and may make no progress from then on.
    #[test]
    fn what_was_injected_for_a_busy_owner_leaves_when_that_lets_go() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let (one, other, to) = (0, 1, 2);
        let nodes = [one, other, to].map(|_| Node::open(&provider));
        let mut memory = vec![0_u8; 8];
        let region = nodes[to].target(&mut memory);
        nodes[to].endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
        for from in [one, other] {
            let peer = nodes[from].vector.insert_one(nodes[to].endpoint.address()).unwrap();
            let (endpoint, unit) = (&nodes[from].endpoint, nodes[from].endpoint.unit().unwrap());
            assert!(unit.ownership.try_acquire());
            match from == one {
                true => endpoint.inject(&[2; 8], peer).unwrap(),
                false => endpoint.inject_write(&[3; 8], peer, region.base(), region.key()).unwrap(),
            }
            unit.release();
        }
        assert_eq!(nodes[to].received(), [1]);
        nodes[to].domain.close_memory(&region).unwrap();
        assert_eq!(memory, [3; 8]);
    }

    /// An owner that has let go, and lost the race for what was left for it meanwhile to one who
    /// closes.
    #[test]
    fn what_was_left_for_an_owner_leaves_before_the_endpoint_closes() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let (from, to) = (Node::open(&provider), Node::open(&provider));
        let peer = from.vector.insert_one(to.endpoint.address()).unwrap();
        for context in 1..=2 {
            to.endpoint.receive(vec![0; 8], u64::MAX, context).unwrap();
        }
        from.endpoint.inject(&[1; 8], peer).unwrap();
        assert_eq!(to.received(), [1], "they are connected");
        let unit = from.endpoint.unit().unwrap();
        assert!(unit.ownership.try_acquire());
        from.endpoint.inject(&[2; 8], peer).unwrap();
        assert_eq!(to.received(), [], "its owner is busy");
        unit.ownership.release(|| false, || {});
        from.endpoint.close();
        assert_eq!(to.received(), [2]);
    }
}
