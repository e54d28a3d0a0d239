//! The monitor of the process's memory: which ranges were unmapped, moved or discarded.
//!
//! A device goes on with the pages that it registered, wherever the process has mapped others since. So
//! who keeps a registration has to hear of that before he uses it again, and may not believe what he has
//! not heard yet. The kernel tells by userfaultfd, to a thread of ours, and whoever unmaps memory waits
//! until the thread has taken the event. The order is this:
//!
//! 1. the kernel notes that something changes, and changes it;
//! 2. the thread says that it takes events ([`Invalidations::begin`]), takes them, and writes them down;
//! 3. whoever unmapped goes on, and the kernel's note goes.
//!
//! A look ([`MemoryMonitor::caught_up`]) asks the kernel first, which says whether it has such a note, and
//! reads what is written down then. So a change that happened before is seen as one or the other, also
//! by threads that map new memory there while the first one still waits. (Of `madvise` the event comes
//! before the pages go: who sends from memory that another thread of his is discarding at that moment has
//! either, now and later. What is sent from is not for anybody to discard.)
//!
//! The thread allocates nothing, frees nothing and takes no lock: it would wait for itself.

use std::{
    io,
    ops::Range,
    sync::{Arc, Barrier, Mutex, PoisonError, Weak},
    thread::{Builder, JoinHandle},
};

use kestrel_core::{
    fork_guard, threads,
    transport::{Bell as _, EventBell},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    thread::{CpuSet, sched_setaffinity},
};

use super::{
    invalidations::{Caught, Invalidations},
    mappings::own_memory_around,
    userfaultfd::{Look, Userfaultfd},
};
use crate::memory::PAGE_BYTES;

/// The process's monitor, as long as anybody has it: memory is watched by one at a time.
static MONITOR: Mutex<Weak<MemoryMonitor>> = Mutex::new(Weak::new());

/// What the thread has. Dropped in this order: when the memory of what follows is freed, nobody waits for
/// the thread any more.
struct Shared {
    userfaultfd: Userfaultfd,
    invalidations: Invalidations,
    started: Barrier,
    stop: EventBell,
}

/// The thread, and what it tells. Fields drop in this order: the thread may end when nothing is watched.
pub struct MemoryMonitor {
    shared: Arc<Shared>,
    watched: Mutex<Watched>,
    thread: MonitorThread,
}

/// Joined when it is dropped.
struct MonitorThread {
    handle: Option<JoinHandle<()>>,
    forks: u32,
}

/// Memory that is watched: ranges that do not touch, and how far their invalidations are known.
#[derive(Default)]
struct Watched {
    position: u64,
    ranges: Vec<Range<usize>>,
}

impl MemoryMonitor {
    /// The process's monitor; started, if there is none.
    ///
    /// # Errors
    /// The kernel tells us nothing, or no thread can be started.
    pub fn of_process() -> io::Result<Arc<MemoryMonitor>> {
        let mut monitor = MONITOR.lock().unwrap_or_else(PoisonError::into_inner);
        let there = monitor.upgrade().filter(|there| !fork_guard::forked(there.thread.forks));
        if let Some(there) = there {
            return Ok(there);
        }
        let started = Arc::new(MemoryMonitor::start()?);
        *monitor = Arc::downgrade(&started);
        Ok(started)
    }

    fn start() -> io::Result<MemoryMonitor> {
        let shared = Arc::new(Shared {
            userfaultfd: Userfaultfd::open()?,
            invalidations: Invalidations::default(),
            started: Barrier::new(2),
            stop: EventBell::new()?,
        });
        let run = shared.clone();
        let builder = Builder::new().name("kestrel-memory".to_owned());
        let handle = Some(threads::start(builder, move || run.run())?);
        // Nothing is watched before the thread is there: on the way it may do anything.
        shared.started.wait();
        let thread = MonitorThread { handle, forks: fork_guard::generation() };
        Ok(MemoryMonitor { shared, watched: Mutex::default(), thread })
    }
}

/// What tells whoever keeps registrations that memory has changed.
pub trait Watcher {
    /// Where a reader begins that has kept nothing yet.
    fn position(&self) -> u64;

    /// Watches the memory around a range, whole mappings of it, so that they stay whole.
    ///
    /// Cost: some µs; where it is new, reading all of the process's mappings.
    fn watch(&self, memory: &Range<usize>) -> Watch;

    /// Tells what was invalidated since that position, which moves on, if all of it is known, and the page at
    /// `at` is watched.
    fn caught_up(
        &self,
        at: usize,
        position: &mut u64,
        tell: &mut dyn FnMut(Range<usize>),
    ) -> Caught;

    /// Tells what is written down.
    fn read(&self, position: &mut u64, tell: &mut dyn FnMut(Range<usize>)) -> Caught;

    /// Whether there is something to read.
    fn is_behind(&self, position: u64) -> bool;
}

/// Whether memory is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// It is.
    Yes,
    /// Something changes just now.
    NotYet,
    /// It cannot be: a file or another process may change it, or somebody else watches it.
    Never,
}

impl Watcher for MemoryMonitor {
    fn position(&self) -> u64 {
        self.shared.invalidations.position()
    }

    fn watch(&self, memory: &Range<usize>) -> Watch {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if !watched.forget_invalidated(&self.shared.invalidations) {
            return Watch::NotYet;
        }
        if watched.ranges.iter().any(|range| holds(range, memory)) {
            return Watch::Yes;
        }
        let Ok(Some(whole)) = own_memory_around(memory) else {
            return Watch::Never;
        };
        if let Err(error) = self.shared.userfaultfd.watch(&whole) {
            tracing::debug!("memory at {:#x} cannot be watched: {error}", whole.start);
            return Watch::Never;
        }
        watched.note(whole);
        Watch::Yes
    }

    fn caught_up(
        &self,
        at: usize,
        position: &mut u64,
        tell: &mut dyn FnMut(Range<usize>),
    ) -> Caught {
        let page = at / PAGE_BYTES * PAGE_BYTES;
        let page = page..page + PAGE_BYTES;
        let look = self.shared.userfaultfd.look(&page);
        if look == Look::Changing {
            return Caught::NotYet;
        }
        let mut told = false;
        let caught = self.read(position, &mut |range| {
            told |= overlap(&range, &page);
            tell(range);
        });
        if look == Look::Unwatched && !told {
            // Somebody else has had it watched no more, and who knows what.
            self.watched.lock().unwrap_or_else(PoisonError::into_inner).ranges.clear();
            return Caught::Missed;
        }
        caught
    }

    fn read(&self, position: &mut u64, tell: &mut dyn FnMut(Range<usize>)) -> Caught {
        self.shared.invalidations.read(position, tell)
    }

    fn is_behind(&self, position: u64) -> bool {
        self.shared.invalidations.is_behind(position)
    }
}

impl Drop for MemoryMonitor {
    /// Nothing is watched any more when the thread and we have let go of the descriptor. It has to be
    /// closed before the thread ends: its stack, which it discards then, may be watched. In a forked child
    /// the thread is the parent's, who still needs it.
    fn drop(&mut self) {
        if fork_guard::forked(self.thread.forks) {
            return;
        }
        // Where a child has a copy of the descriptor nobody reads its events any more.
        let watched = self.watched.get_mut().unwrap_or_else(PoisonError::into_inner);
        watched.ranges.iter().for_each(|range| self.shared.userfaultfd.unwatch(range));
        self.shared.stop.ring();
    }
}

impl Drop for MonitorThread {
    fn drop(&mut self) {
        match self.handle.take() {
            // It does not panic.
            Some(thread) if !fork_guard::forked(self.forks) => drop(thread.join()),
            thread => std::mem::forget(thread),
        }
    }
}

impl Shared {
    fn run(&self) {
        // Whoever started it may be bound to a processor that is never free.
        let mut everywhere = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|nth| everywhere.set(nth));
        let _ = sched_setaffinity(None, &everywhere);
        self.started.wait();
        while !self.is_stopped() {
            // The events that come in between are those of others who see that they are taken.
            self.invalidations.begin();
            while self.userfaultfd.read(|range| self.invalidations.write(&range)) {}
            self.invalidations.end();
        }
    }

    /// Sleeps until there are events. Returns whether nobody wants them any more.
    fn is_stopped(&self) -> bool {
        let mut descriptors =
            [PollFd::new(&self.userfaultfd, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        // Interrupted, or without memory: it looks.
        let _ = poll(&mut descriptors, None);
        // Somebody closed what is not his.
        let is_broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        !descriptors[1].revents().is_empty() || descriptors[0].revents().intersects(is_broken)
    }
}

impl Watched {
    /// Takes out what is not watched any more. Returns whether all of that is known.
    fn forget_invalidated(&mut self, invalidations: &Invalidations) -> bool {
        let ranges = &mut self.ranges;
        match invalidations.read(&mut self.position, |gone| subtract(ranges, &gone)) {
            Caught::Up => true,
            Caught::NotYet => false,
            Caught::Missed => {
                self.ranges.clear();
                true
            }
        }
    }

    /// Notes that a range is watched.
    fn note(&mut self, whole: Range<usize>) {
        subtract(&mut self.ranges, &whole);
        self.ranges.push(whole);
    }
}

pub fn holds(range: &Range<usize>, part: &Range<usize>) -> bool {
    range.start <= part.start && part.end <= range.end
}

pub fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Takes `gone` out of all ranges.
fn subtract(ranges: &mut Vec<Range<usize>>, gone: &Range<usize>) {
    let mut left = Vec::new();
    ranges.retain_mut(|range| {
        if !overlap(range, gone) {
            return true;
        }
        if gone.end < range.end {
            left.push(gone.end..range.end);
        }
        range.end = gone.start;
        range.start < range.end
    });
    ranges.append(&mut left);
}

#[cfg(test)]
mod tests;
