//! Completion queues. Reference: fi_cq(3), and what fi_endpoint(3) says of
//! binding and selective completion.

pub(crate) mod announcers;
pub mod entry;
#[allow(unsafe_code)]
mod entry_ring;
#[allow(unsafe_code)]
mod in_place;
mod signal;
#[allow(unsafe_code)]
pub mod store;
mod waiting;
#[allow(unsafe_code)]
mod window;

use std::fmt;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

pub use entry::{Entry, ErrorEntry};
use store::{CompletionStore, Head};
pub use waiting::QueueWait;
use window::Window;

use crate::{
    bind_count::BindCount,
    domain::{Domain, Sharing},
    driven_units::DrivenUnits,
    engine::{idle::Idle, unit::Unit},
    error::{Errno, HasErrno},
    transport::Provider,
};

/// Entries that a queue holds before it grows, if the application says nothing.
const SIZE_DEFAULT: usize = 1024;
/// Packets that a poll may take although the reader has room for fewer completions.
const BURST_MIN: usize = 8;

/// Reads that find something at once, of which the last one drives the endpoints all the same.
const UNDRIVEN_MAX: u32 = 32;

/// Why nothing could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nothing is there.
    #[error("no completion is available")]
    Empty,
    /// The next completion is an error: read it with `read_error`.
    #[error("the next completion is an error")]
    ErrorAvailable,
    /// The wait was ended by `signal`.
    #[error("the wait was ended by a signal")]
    Signaled,
    /// The process is a forked child of the one that opened the queue.
    #[error("a forked child cannot use its parent's completion queue")]
    ForkedChild,
}

impl HasErrno for ReadError {
    fn errno(&self) -> Errno {
        match self {
            ReadError::Empty | ReadError::Signaled => Errno::AGAIN,
            ReadError::ErrorAvailable => Errno::AVAIL,
            ReadError::ForkedChild => Errno::OPNOTSUPP,
        }
    }
}

/// A completion queue, opened on a domain and bound to endpoints.
///
/// Reading it drives the endpoints bound to it (manual progress). Aligned as units are.
#[repr(align(128))]
pub struct CompletionQueue<P: Provider> {
    domain: Arc<Domain<P>>,
    store: Arc<CompletionStore>,
    units: DrivenUnits<P>,
    idle: Idle,
    /// Reads that found something at once since one drove because of that. Threads may lose each
    /// other's counts.
    undriven: AtomicU32,
    bound: BindCount,
}

impl<P: Provider> fmt::Debug for CompletionQueue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("bound", &self.bound.count())
            .field("blocked", &self.store.signal.blocked())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> CompletionQueue<P> {
    /// Opens a queue for `size` entries (0: the default); it grows beyond.
    ///
    /// # Errors
    /// No descriptors are left.
    /// # Reference
    /// fi_cq(3), `fi_cq_open`
    pub fn open(
        domain: &Arc<Domain<P>>,
        size: usize,
    ) -> Result<Arc<Self>, crate::domain::OpenError> {
        let size = if size == 0 { SIZE_DEFAULT } else { size };
        Self::open_for(domain, size.min(1 << 20), domain.sharing())
    }

    /// Opens a queue that any thread may use if `sharing` says so, whatever the domain's rule is.
    pub(crate) fn open_for(
        domain: &Arc<Domain<P>>,
        size: usize,
        sharing: Sharing,
    ) -> Result<Arc<Self>, crate::domain::OpenError> {
        let wake = domain.provider().new_bell()?;
        Ok(Arc::new(CompletionQueue {
            domain: domain.clone(),
            store: Arc::new(CompletionStore::new(sharing, size, wake)),
            units: DrivenUnits::new(sharing),
            idle: Idle::default(),
            undriven: AtomicU32::new(0),
            bound: BindCount::default(),
        }))
    }

    /// The domain that the queue was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    pub(crate) fn store(&self) -> &Arc<CompletionStore> {
        &self.store
    }

    /// What is bound to it: endpoints count themselves in and out here, and so do poll sets.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn binds(&self) -> &BindCount {
        &self.bound
    }

    /// Reads completions into `entries` and returns how many: one at least. Where there is no room for any it drives
    /// progress, and returns 0 if some are there.
    ///
    /// Drives progress first if nothing is waiting, and now and then if something is: who posts and
    /// reads in turn may always find a completion. Cost: no system call, no
    /// allocation, no lock, except that many empty reads in a row yield the core.
    /// # Errors
    /// [`ReadError::Empty`]; [`ReadError::ErrorAvailable`] where the next one failed, until
    /// [`Self::read_error`] has taken it; [`ReadError::ForkedChild`].
    /// # Reference
    /// fi_cq(3), `fi_cq_read`
    #[inline]
    pub fn read(&self, entries: &mut [Entry]) -> Result<usize, ReadError> {
        match self.store.pop(entries) {
            Head::Taken(count) => return self.found(Ok(count)),
            Head::Error => return self.found(Err(ReadError::ErrorAvailable)),
            Head::Empty => {}
        }
        let most = entries.len().max(BURST_MIN);
        let window = self.store.open_window(entries);
        let moved = self.units.progress(most);
        let head = match window.map_or(0, Window::close) {
            0 => self.store.pop(entries),
            taken => Head::Taken(taken),
        };
        self.answer(head, moved, entries.len())
    }

    /// Reads as [`Self::read`], but hands each completion to `take` with its
    /// position, for callers that keep completions in another form. What `take` does may read the
    /// queue as well.
    ///
    /// Cost: as [`Self::read`], without a buffer of entries. [`Self::read_in_place`] copies none.
    /// # Errors
    /// As there.
    #[inline]
    pub fn read_with(
        &self,
        count: usize,
        mut take: impl FnMut(usize, &Entry),
    ) -> Result<usize, ReadError> {
        self.read_by(count, count.max(BURST_MIN), |store| store.pop_each(count, &mut take))
    }

    #[inline(always)]
    fn read_by(
        &self,
        count: usize,
        burst: usize,
        mut pop: impl FnMut(&CompletionStore) -> Head,
    ) -> Result<usize, ReadError> {
        match pop(&self.store) {
            Head::Taken(count) => return self.found(Ok(count)),
            Head::Error => return self.found(Err(ReadError::ErrorAvailable)),
            Head::Empty => {}
        }
        let moved = self.units.progress(burst);
        self.answer(pop(&self.store), moved, count)
    }

    /// The outcome of a read that has not driven the endpoints.
    #[inline(always)]
    fn found(&self, outcome: Result<usize, ReadError>) -> Result<usize, ReadError> {
        let undriven = self.undriven.load(Ordering::Relaxed) + 1;
        self.undriven.store(undriven % UNDRIVEN_MAX, Ordering::Relaxed);
        if undriven == UNDRIVEN_MAX {
            self.drive();
        }
        outcome
    }

    #[cold]
    #[inline(never)]
    fn drive(&self) {
        self.units.progress(BURST_MIN);
    }

    #[inline(always)]
    fn answer(&self, head: Head, moved: bool, most: usize) -> Result<usize, ReadError> {
        let head = match head {
            Head::Empty if most == 0 => self.store.what_is_there(),
            head => head,
        };
        match head {
            Head::Taken(count) => {
                self.idle.reset();
                Ok(count)
            }
            Head::Error => Err(ReadError::ErrorAvailable),
            Head::Empty => Err(self.nothing(moved)),
        }
    }

    #[inline(always)]
    fn nothing(&self, moved: bool) -> ReadError {
        if moved {
            self.idle.reset();
        } else if self.domain.provider().forked() {
            return ReadError::ForkedChild;
        } else {
            self.idle.idle();
        }
        ReadError::Empty
    }

    /// Takes the earliest error, None if there is none. No read need have met it, since a counter may
    /// have told of it. It does not drive progress.
    /// Reference: fi_cq(3), `fi_cq_readerr`: "If no error completions are available to read from the
    /// CQ, returns -FI_EAGAIN".
    pub fn read_error(&self) -> Option<ErrorEntry> {
        self.store.pop_error()
    }

    /// Ends the wait of a blocked reader, or of the next one.
    /// Reference: fi_cq(3), `fi_cq_signal`.
    pub fn signal(&self) {
        self.store.signal();
    }

    /// Closes the queue.
    ///
    /// # Errors
    /// [`BindError::Busy`](crate::bind_count::BindError::Busy) while an endpoint is bound to it,
    /// [`BindError::Closed`](crate::bind_count::BindError::Closed) the second time.
    pub fn close(&self) -> Result<(), crate::bind_count::BindError> {
        self.bound.close()
    }

    pub(crate) fn add_unit(&self, unit: &Arc<Unit<P>>) {
        self.units.add(unit);
        self.store.tell_of_unit();
    }

    pub(crate) fn remove_unit(&self, unit: &Arc<Unit<P>>) {
        self.units.remove(unit);
    }
}
