//! What an event queue drives: the endpoints whose connections are reported in it, so that
//! whoever waits for an event also makes it happen.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::EventQueue;
use crate::engine::sleep::Sleep;
use crate::sleepers::{Entered, Sleepers};

/// An endpoint that an event queue drives.
pub trait Driven: Send + Sync {
    /// Moves it forward, unless somebody else does. Returns whether anything moved.
    fn drive(&self) -> bool;
    /// Asks for the bell; `disarm` follows in any case.
    fn arm(&self) -> Sleep;
    /// The counterpart of each `arm`, with its answer.
    fn disarm(&self, sleep: Sleep);
    /// What a sleeper waits for; none of a closed one.
    fn bell(&self) -> Option<RawFd>;
}

/// All that a queue drives.
#[derive(Default)]
pub(super) struct All {
    connections: Vec<Arc<dyn Driven>>,
    listeners: Vec<Arc<dyn Driven>>,
    /// Listeners that are closed, for as long as others hold them.
    closed: Vec<Weak<dyn Driven>>,
}

impl All {
    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.listeners.is_empty() && self.closed.is_empty()
    }
}

/// A wait for a queue's events: while it lives, peers ring. It holds nothing of what it waits for: an
/// endpoint that is closed meanwhile gives its place up.
pub struct EventWait {
    driven: Vec<Weak<dyn Driven>>,
    /// What those of them answered that were asked.
    sleeps: Vec<Sleep>,
    sleepers: Arc<Sleepers>,
    entered: Entered,
}

impl EventWait {
    /// What becomes readable when an endpoint has to be driven.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.driven.iter().filter_map(|driven| driven.upgrade()?.bell()).collect()
    }

    /// Whether a sleeper must look again by itself, soon.
    pub fn waits_for_room(&self) -> bool {
        self.sleeps.contains(&Sleep::Nap)
    }
}

impl Drop for EventWait {
    fn drop(&mut self) {
        for (driven, &sleep) in self.driven.iter().zip(&self.sleeps) {
            if let Some(driven) = driven.upgrade() {
                driven.disarm(sleep);
            }
        }
        // It looks anew. Who else is to does, as long as nobody makes quiet: see `is_quiet`.
        self.sleepers.leave(self.entered);
    }
}

impl EventQueue {
    /// Drives what reports here: part of every read.
    pub fn progress(&self) {
        if self.drives.load(Ordering::Acquire) {
            for driven in self.driven() {
                driven.drive();
            }
        }
    }

    /// Has the endpoints that were connected here say what they know: part of a listener's drive,
    /// before it reports a request. Who asks twice was told first that the first request succeeded,
    /// and said so to another endpoint than the listener.
    pub(crate) fn catch_up(&self) {
        let connections = self.lock_driven().connections.clone();
        for driven in connections {
            driven.drive();
        }
    }

    fn driven(&self) -> Vec<Arc<dyn Driven>> {
        let mut all = self.lock_driven();
        if !all.closed.is_empty() {
            all.closed.retain(|closed| closed.strong_count() > 0);
            self.drives.store(!all.is_empty(), Ordering::Release);
        }
        let open = all.connections.iter().chain(&all.listeners).cloned();
        open.chain(all.closed.iter().filter_map(Weak::upgrade)).collect()
    }

    fn lock_driven(&self) -> MutexGuard<'_, All> {
        // Nothing under the mutex panics half-way.
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has reads drive an endpoint with a connection.
    ///
    /// For the C door, and endpoints with connections.
    #[doc(hidden)]
    pub fn add_driven(&self, driven: Arc<dyn Driven>) {
        self.lock_driven().connections.push(driven);
        self.drive_from_now_on();
    }

    /// Has reads drive a listener, which calls [`Self::catch_up`].
    pub(crate) fn add_listener(&self, listener: Arc<dyn Driven>) {
        self.lock_driven().listeners.push(listener);
        self.drive_from_now_on();
    }

    /// Has reads drive a listener that is closed, as long as others hold its place: it refuses whoever
    /// asks there.
    pub(crate) fn add_closed_listener<D: Driven + 'static>(&self, listener: &Arc<D>) {
        let listener: Arc<dyn Driven> = listener.clone();
        self.lock_driven().closed.push(Arc::downgrade(&listener));
        self.drive_from_now_on();
    }

    fn drive_from_now_on(&self) {
        self.drives.store(true, Ordering::Release);
        // None of those who sleep knows its bell yet.
        self.sleepers.call();
        self.push_with(|_| {});
    }

    /// Has reads drive it no more.
    pub fn remove_driven<D: Driven>(&self, driven: &Arc<D>) {
        let place = Arc::as_ptr(driven).cast::<()>();
        let mut all = self.lock_driven();
        let All { connections, listeners, .. } = &mut *all;
        for list in [connections, listeners] {
            list.retain(|known| Arc::as_ptr(known).cast::<()>() != place);
        }
        self.drives.store(!all.is_empty(), Ordering::Release);
    }

    /// Makes ready to sleep until something happens. None: look again first.
    pub fn prepare_wait(&self) -> Option<EventWait> {
        self.progress();
        let (sleepers, entered) = (self.sleepers.clone(), self.sleepers.enter());
        let (driven, sleeps) = (Vec::new(), Vec::new());
        let mut wait = EventWait { driven, sleeps, sleepers, entered };
        for driven in self.driven() {
            let sleep = driven.arm();
            wait.driven.push(Arc::downgrade(&driven));
            wait.sleeps.push(sleep);
            if sleep == Sleep::Awake {
                return None;
            }
        }
        self.is_empty().then_some(wait)
    }
}
