//! Where completions wait to be read.
//!
//! Never overruns: beyond its size it grows. Errors keep their place among the
//! successes: a mark in the queue stands for each, and reading stops at it
//! (fi_cq(3): "-FI_EAVAIL"). Who asks for an error gets it though nobody met its mark:
//! a counter may have told of it. The mark is stepped over later.

use std::cell::UnsafeCell;

use super::{
    announcers::{ANNOUNCEMENT_MARK, Announcers},
    entry::{Entry, ErrorEntry},
    entry_ring::EntryRing,
    signal::Signal,
    window::Window,
};
use crate::{
    domain::Sharing,
    primitive::{AtomicBool, AtomicIsize, Ordering, SegQueue, fence},
    ring::mpmc::{Popped, Ring},
    sleepers::{Entered, Sleepers},
    transport::Bell,
};

/// The flag of an entry that only marks the place of an error.
const ERROR_MARK: u64 = 1 << 63;
/// The flags of an entry that is not simply handed over.
const MARKS: u64 = ERROR_MARK | ANNOUNCEMENT_MARK;

#[allow(clippy::large_enum_variant)] // One a queue; a box would add a load to each completion.
enum Queue {
    Exclusive(UnsafeCell<EntryRing>),
    /// The overflow is used from when the ring is full until the overflow is empty
    /// again, and read when the ring is empty, so that each producer's entries stay
    /// in order (for one reader; several readers have no order among them).
    Shared {
        ring: Ring<Entry>,
        overflow: SegQueue<Entry>,
    },
}

/// The engine's side of a completion queue. Aligned as units are.
#[repr(align(128))]
pub struct CompletionStore {
    queue: Queue,
    /// Entries that it was to hold before it has to grow.
    size: usize,
    errors: SegQueue<ErrorEntry>,
    /// Marks that were met, less the errors that were taken. Above 0 an error is to be read before
    /// anything else; below, so many marks stand for errors that were taken before.
    errors_met: AtomicIsize,
    announcers: Box<Announcers>,
    pub(super) signal: Signal,
    sleepers: Sleepers,
    /// An entry has had the bell rung, or is about to, and nobody has silenced it since.
    rung: AtomicBool,
    wake: Box<dyn Bell>,
}

// SAFETY: the exclusive queue is touched by one thread at a time: opening a domain for exclusive use
// is unsafe and demands exactly that, and so does `exclusive`; nobody outside of this crate makes one
// otherwise. All else is Sync.
unsafe impl Sync for CompletionStore {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for CompletionStore {}

/// What the head of the queue is.
pub enum Head {
    /// Nothing there.
    Empty,
    /// Entries were taken: this many.
    Taken(usize),
    /// An error comes first.
    Error,
}

/// What an entry with a mark stands for.
enum Met {
    /// A message that can be claimed: the entry is one as the others are, by now.
    Announcement,
    /// An error that was read, or a message that is gone.
    Nothing,
    /// An error that is to be read.
    Error,
}

impl Head {
    /// So many entries were taken, and nothing follows.
    #[inline(always)]
    fn after(taken: usize) -> Head {
        if taken == 0 { Head::Empty } else { Head::Taken(taken) }
    }

    /// The same, and an error follows.
    fn at_error(taken: usize) -> Head {
        if taken == 0 { Head::Error } else { Head::Taken(taken) }
    }
}

impl CompletionStore {
    /// A store that any thread may use, for whoever drives an engine by itself. It holds `size` entries
    /// before it has to grow.
    pub fn shared(size: usize, wake: Box<dyn Bell>) -> Self {
        Self::new(Sharing::Shared, size, wake)
    }

    /// As [`Self::shared`], for one thread at a time.
    ///
    /// # Safety
    /// No two threads are inside calls on the store, or of an engine that completes there, at the same
    /// time, nor is any such call made from inside of another one.
    pub unsafe fn exclusive(size: usize, wake: Box<dyn Bell>) -> Self {
        Self::new(Sharing::Exclusive, size, wake)
    }

    /// A store for a domain of this `sharing`.
    pub(crate) fn new(sharing: Sharing, size: usize, wake: Box<dyn Bell>) -> Self {
        let queue = match sharing {
            Sharing::Exclusive => Queue::Exclusive(UnsafeCell::new(EntryRing::with_capacity(size))),
            Sharing::Shared => Queue::Shared { ring: Ring::new(size), overflow: SegQueue::new() },
        };
        CompletionStore {
            queue,
            size,
            errors: SegQueue::new(),
            errors_met: AtomicIsize::new(0),
            announcers: Box::default(),
            signal: Signal::default(),
            sleepers: Sleepers::default(),
            rung: AtomicBool::new(false),
            wake,
        }
    }

    /// Adds a completion. Cost: no system call unless somebody sleeps; then one, until it is awake.
    #[inline(always)]
    pub fn push(&self, entry: Entry) {
        match &self.queue {
            // SAFETY: exclusive use, as `Sharing::Exclusive` says.
            Queue::Exclusive(queue) => unsafe { (*queue.get()).push_back(entry) },
            Queue::Shared { ring, overflow } => {
                push_shared(ring, overflow, entry);
                // F2: pairs with F1 in `enter_sleep`: either the sleeper sees the entry
                // or we see the sleeper.
                fence(Ordering::SeqCst);
                if self.sleepers.any() {
                    self.ring_once();
                }
            }
        }
    }

    /// Adds a failed completion.
    #[cold]
    #[inline(never)]
    pub fn push_error(&self, error: ErrorEntry) {
        self.errors.push(error);
        self.push_marked(Entry { flags: ERROR_MARK, ..Entry::default() });
    }

    /// Adds an entry that its reader has to look at.
    #[cold]
    pub(super) fn push_marked(&self, entry: Entry) {
        if let Queue::Exclusive(queue) = &self.queue {
            // What comes after the mark must not overtake it.
            // SAFETY: exclusive use, as `Sharing::Exclusive` says.
            unsafe { (*queue.get()).stop_window() };
        }
        self.push(entry);
    }

    /// Who announces messages here.
    pub(super) fn announcers(&self) -> &Announcers {
        &self.announcers
    }

    /// Moves completions over `entries`, as many as are there and fit.
    #[inline(always)]
    pub fn pop(&self, entries: &mut [Entry]) -> Head {
        if self.errors_met.load(Ordering::Relaxed) > 0 {
            return Head::Error;
        }
        let mut taken = 0;
        while let Some(entry) = entries.get_mut(taken)
            && self.pop_into(entry)
        {
            if entry.flags & MARKS == 0 {
                taken += 1;
                continue;
            }
            match self.meet(entry) {
                Met::Announcement => taken += 1,
                Met::Nothing => {}
                Met::Error => return Head::at_error(taken),
            }
        }
        Head::after(taken)
    }

    /// Hands up to `count` completions to `take`, one after the other, each with
    /// its position: for readers that keep them in another form.
    #[inline(always)]
    pub fn pop_each(&self, count: usize, mut take: impl FnMut(usize, &Entry)) -> Head {
        if self.errors_met.load(Ordering::Relaxed) > 0 {
            return Head::Error;
        }
        self.pop_copies(count, |at, entry| {
            take(at, entry);
            // Not inside of the next pop: who drops what it owned may come back here.
            entry.attachment = None;
        })
    }

    /// As [`Self::pop_each`], but an entry that nobody else could pop is read where it is.
    ///
    /// # Safety
    /// `take` makes no call on the store, nor on anything that adds to it or takes from it.
    #[inline(always)]
    pub unsafe fn pop_each_in_place(
        &self,
        count: usize,
        mut take: impl FnMut(usize, &Entry),
    ) -> Head {
        if self.errors_met.load(Ordering::Relaxed) > 0 {
            return Head::Error;
        }
        match &self.queue {
            // SAFETY: the caller promises the same.
            Queue::Exclusive(queue) => unsafe { self.pop_in_place(queue, count, take) },
            Queue::Shared { .. } => self.pop_copies(count, |at, entry| take(at, entry)),
        }
    }

    /// An entry is read where it was written a moment ago.
    ///
    /// # Safety
    /// As [`Self::pop_each_in_place`].
    #[inline(always)]
    unsafe fn pop_in_place(
        &self,
        queue: &UnsafeCell<EntryRing>,
        count: usize,
        mut take: impl FnMut(usize, &Entry),
    ) -> Head {
        // SAFETY: exclusive use, as `Sharing::Exclusive` says, and `take` does not come back here.
        let queue = unsafe { &mut *queue.get() };
        let mut taken = 0;
        while taken < count
            && let Some(entry) = queue.front()
        {
            if entry.flags & MARKS == 0 {
                take(taken, entry);
                queue.drop_front();
                taken += 1;
                continue;
            }
            let mut marked = Entry::default();
            queue.pop_into(&mut marked);
            match self.meet(&mut marked) {
                Met::Announcement => take(taken, &marked),
                Met::Nothing => continue,
                Met::Error => return Head::at_error(taken),
            }
            taken += 1;
        }
        Head::after(taken)
    }

    #[inline(always)]
    fn pop_copies(&self, count: usize, mut take: impl FnMut(usize, &mut Entry)) -> Head {
        let mut entry = Entry::default();
        let mut taken = 0;
        while taken < count && self.pop_into(&mut entry) {
            if entry.flags & MARKS == 0 {
                take(taken, &mut entry);
                taken += 1;
                continue;
            }
            match self.meet(&mut entry) {
                Met::Announcement => take(taken, &mut entry),
                Met::Nothing => continue,
                Met::Error => return Head::at_error(taken),
            }
            taken += 1;
        }
        Head::after(taken)
    }

    /// What a read of no entries finds: "Attempting to read from a CQ while an item is in the error queue results in
    /// fi_cq_read failing" (fi_cq(3)), wherever its mark is.
    #[cold]
    pub fn what_is_there(&self) -> Head {
        match self.is_empty() {
            _ if !self.errors.is_empty() => Head::Error,
            true => Head::Empty,
            false => Head::Taken(0),
        }
    }

    /// An entry with a mark was taken from the queue.
    #[cold]
    #[inline(never)]
    fn meet(&self, entry: &mut Entry) -> Met {
        if entry.flags & ERROR_MARK == 0 {
            return match self.announcers.reveal(entry) {
                true => Met::Announcement,
                false => Met::Nothing,
            };
        }
        // R7: pairs with A7 in `pop_error`: the error was there before its mark.
        let met = self.errors_met.fetch_add(1, Ordering::Release);
        // F3: pairs with F1 in `enter_sleep`, and lies before the look that may find nothing more: one that goes to sleep
        // beside this reader would count the mark as one of what is left, and nobody rings for that.
        fence(Ordering::SeqCst);
        match met >= 0 {
            true => Met::Error,
            false => Met::Nothing,
        }
    }

    /// Lets what completes from now on go straight to `entries`, as many as fit, until the window is
    /// closed. Nothing was there before. None where threads share the queue.
    #[inline(always)]
    pub(super) fn open_window<'a>(&'a self, entries: &'a mut [Entry]) -> Option<Window<'a>> {
        match &self.queue {
            Queue::Exclusive(queue) => Some(Window::open(queue, entries)),
            Queue::Shared { .. } => None,
        }
    }

    #[inline(always)]
    fn pop_into(&self, target: &mut Entry) -> bool {
        match &self.queue {
            // SAFETY: exclusive use, as `Sharing::Exclusive` says.
            Queue::Exclusive(queue) => unsafe { (*queue.get()).pop_into(target) },
            Queue::Shared { ring, overflow } => match ring.pop() {
                Popped::Item(entry) => {
                    *target = entry;
                    true
                }
                Popped::Pending => false,
                Popped::Empty => !overflow.is_empty() && pop_overflowed(ring, overflow, target),
            },
        }
    }

    /// Takes the earliest error, if there is one.
    pub fn pop_error(&self) -> Option<ErrorEntry> {
        // A7: pairs with R7 in `meet`: who was told of an error by a reader finds it.
        self.errors_met.load(Ordering::Acquire);
        // Not before it is taken: a reader would step over the mark of one that is still there.
        let error = self.errors.pop()?;
        self.errors_met.fetch_sub(1, Ordering::Relaxed);
        Some(error)
    }

    /// Whether nothing can be read.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let entries = match &self.queue {
            // SAFETY: exclusive use, as `Sharing::Exclusive` says.
            Queue::Exclusive(queue) => unsafe { (*queue.get()).is_empty() },
            Queue::Shared { ring, overflow } => !ring.is_ready() && overflow.is_empty(),
        };
        match self.errors_met.load(Ordering::Relaxed) {
            0 => entries,
            met => met < 0 && self.len() == 0,
        }
    }

    /// How many entries it holds before it has to grow.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many entries are there, or were a moment ago; marks of errors that were read are none.
    pub fn len(&self) -> usize {
        let read_first = self.errors_met.load(Ordering::Relaxed).min(0).unsigned_abs();
        self.kept().saturating_sub(read_first)
    }

    /// The same with all marks.
    fn kept(&self) -> usize {
        match &self.queue {
            // SAFETY: exclusive use, as `Sharing::Exclusive` says.
            Queue::Exclusive(queue) => unsafe { (*queue.get()).len() },
            Queue::Shared { ring, overflow } => {
                let beyond = if overflow.is_empty() { 0 } else { overflow.len() };
                ring.size() - ring.room() + beyond
            }
        }
    }

    /// Announces a sleeper, who must look once more before sleeping. Returns what
    /// [`Self::leave_sleep`] wants to know.
    pub fn enter_sleep(&self) -> Entered {
        let entered = self.sleepers.enter();
        // F1: pairs with F2 and F3, in `push`, `wake_sleepers` and `meet`.
        fence(Ordering::SeqCst);
        entered
    }

    /// The sleeper is awake again. The bell falls silent, unless it may have rung for others, too:
    /// for whoever takes what is there, or for all, and some have not answered.
    pub fn leave_sleep(&self, entered: Entered) {
        self.wake.drain();
        // R8: pairs with A8 in `ring_once`: an entry that found the bell rung is seen behind this.
        self.rung.swap(false, Ordering::AcqRel);
        if self.sleepers.leave(entered) || !self.is_empty() || self.signal.is_awaited() {
            self.wake_sleepers();
        }
    }

    /// There is an endpoint more, which none of those who sleep listens to.
    pub fn tell_of_unit(&self) {
        self.sleepers.call();
        self.wake_sleepers();
    }

    /// Ends a wait. Whoever silences the bell of who is blocked rings again.
    pub fn signal(&self) {
        self.signal.give();
        self.wake.ring();
    }

    /// The bell that wakes sleepers.
    pub fn wake(&self) -> &dyn Bell {
        &*self.wake
    }

    /// Rings for an entry. A sleeper that has yet to wake finds those that come meanwhile, too.
    #[cold]
    fn ring_once(&self) {
        // A8: pairs with R8 in `leave_sleep`.
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.wake.ring();
        }
    }

    /// Wakes those who sleep, after something came for them.
    pub fn wake_sleepers(&self) {
        // F2: pairs with F1 in `enter_sleep`: either the sleeper sees what came
        // or we see the sleeper.
        fence(Ordering::SeqCst);
        if self.sleepers.any() {
            self.wake.ring();
        }
    }
}

#[inline(always)]
fn push_shared(ring: &Ring<Entry>, overflow: &SegQueue<Entry>, entry: Entry) {
    if !overflow.is_empty() {
        overflow.push(entry);
    } else if let Err(entry) = ring.push(entry) {
        overflow.push(entry);
    }
}

/// The next entry after an empty ring and an overflow that was not.
#[cold]
#[inline(never)]
fn pop_overflowed(ring: &Ring<Entry>, overflow: &SegQueue<Entry>, target: &mut Entry) -> bool {
    // What is in the overflow was pushed after the ring had been full, maybe since
    // we looked: then what filled it comes first.
    let entry = match ring.pop() {
        Popped::Item(entry) => Some(entry),
        Popped::Pending => None,
        Popped::Empty => overflow.pop(),
    };
    entry.map(|entry| *target = entry).is_some()
}

#[cfg(all(test, not(loom)))]
mod tests;
