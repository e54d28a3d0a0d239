//! What an event queue drives: the endpoints whose connections are reported in it, so that
//! whoever waits for an event also makes it happen.

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use super::EventQueue;
use crate::arming::{arm_all, disarm_all};
use crate::contained::contained;
use crate::engine::sleep::Sleep;
use crate::rota::Roster;
use crate::sleepers::{Entered, Sleepers};

/// An endpoint that an event queue drives.
pub trait Driven: Send + Sync {
    /// Moves it forward, unless somebody else does. Returns whether anything moved.
    fn drive(&self) -> bool;
    /// Asks for the bell; `disarm` follows in any case.
    fn arm(&self);
    /// What has to lie between `arm` and `how_to_sleep`: once for all that have the same.
    fn fence(&self) -> fn();
    /// How to sleep with the bell that was asked for.
    fn how_to_sleep(&self) -> Sleep;
    /// The counterpart of each `arm`, with what `how_to_sleep` answered: [`Sleep::Awake`] if it was not
    /// asked. True if others sleep on: `fence` follows, and then `ring_for_others`.
    fn disarm(&self, sleep: Sleep) -> bool;
    /// Rings for who sleeps on, if something is there whose ring may have been silenced.
    fn ring_for_others(&self);
    /// What a sleeper waits for; none of a closed one.
    fn bell(&self) -> Option<RawFd>;
    /// Whether the application has driven it since this was asked last, otherwise than by its event queue.
    fn is_polled_elsewhere(&self) -> bool {
        false
    }
}

type List = Vec<Arc<dyn Driven>>;

/// All that a queue drives.
#[derive(Default)]
pub(super) struct All {
    connections: Roster<dyn Driven>,
    listeners: List,
    /// Listeners that are closed, for as long as others hold them.
    closed: Vec<Weak<dyn Driven>>,
}

impl All {
    /// Each of them.
    fn each(&self) -> List {
        let connections = self.connections.members().iter().cloned();
        connections.chain(self.all_listeners()).collect()
    }

    fn all_listeners(&self) -> impl Iterator<Item = Arc<dyn Driven>> {
        self.listeners.iter().cloned().chain(self.closed.iter().filter_map(Weak::upgrade))
    }

    /// The same with other connections and listeners, and without closed ones that nobody holds any more.
    fn changed(&self, change: impl FnOnce(&mut List, &mut List)) -> All {
        let (mut listeners, mut closed) = (self.listeners.clone(), self.closed.clone());
        let connections = self.connections.changed(|list| change(list, &mut listeners));
        closed.retain(|closed| closed.strong_count() > 0);
        All { connections, listeners, closed }
    }
}

/// A wait for a queue's events: while it lives, peers ring. It holds nothing of what it waits for: an
/// endpoint that is closed meanwhile gives its place up.
pub struct EventWait {
    driven: Vec<Weak<dyn Driven>>,
    /// See [`arm_all`].
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
        let armed = self.driven.iter().zip(&self.sleeps);
        disarm_all(armed.filter_map(|(driven, &sleep)| Some((driven.upgrade()?, sleep))));
        // It looks anew. Who else is to does, as long as nobody makes quiet: see `is_quiet`.
        self.sleepers.leave(self.entered);
    }
}

impl EventQueue {
    /// Drives what reports here: part of every read. Of many connections those alone that it is time for.
    pub fn progress(&self) {
        let all = self.driven.load();
        all.connections.drive(|driven| driven.drive());
        all.all_listeners().for_each(|driven| _ = driven.drive());
    }

    /// Has the endpoints that were connected here say what they know: part of a listener's drive,
    /// before it reports a request. Who asks twice was told first that the first request succeeded,
    /// and said so to another endpoint than the listener.
    pub(crate) fn catch_up(&self) {
        for driven in self.driven.load().connections.members() {
            // Within the listener's drive, which a bug in there is not to end.
            contained("a connection", || driven.drive());
        }
    }

    /// Has reads drive an endpoint with a connection.
    ///
    /// For the C door, and endpoints with connections.
    #[doc(hidden)]
    pub fn add_driven(&self, driven: Arc<dyn Driven>) {
        self.drive_from_now_on(|all| {
            all.changed(|connections, _| connections.push(driven.clone()))
        });
    }

    /// Has reads drive a listener, which calls [`Self::catch_up`].
    pub(crate) fn add_listener(&self, listener: Arc<dyn Driven>) {
        self.drive_from_now_on(|all| all.changed(|_, listeners| listeners.push(listener.clone())));
    }

    /// Has reads drive a listener that is closed, as long as others hold its place: it refuses whoever
    /// asks there.
    pub(crate) fn add_closed_listener<D: Driven + 'static>(&self, listener: &Arc<D>) {
        let listener: Arc<dyn Driven> = listener.clone();
        self.drive_from_now_on(|all| {
            let mut all = all.changed(|_, _| {});
            all.closed.push(Arc::downgrade(&listener));
            all
        });
    }

    fn drive_from_now_on(&self, change: impl Fn(&All) -> All) {
        self.driven.rcu(|all| change(all));
        // None of those who sleep knows its bell yet.
        self.sleepers.call();
        self.push_with(|_| {});
    }

    /// Has reads drive it no more.
    pub fn remove_driven<D: Driven>(&self, driven: &Arc<D>) {
        let place = Arc::as_ptr(driven).cast::<()>();
        let is_other = |known: &Arc<dyn Driven>| Arc::as_ptr(known).cast::<()>() != place;
        self.driven.rcu(|all| {
            all.changed(|connections, listeners| {
                connections.retain(is_other);
                listeners.retain(is_other);
            })
        });
    }

    /// Makes ready to sleep until something happens. None: look again first.
    pub fn prepare_wait(&self) -> Option<EventWait> {
        self.prepare_wait_for(|_| true)
    }

    /// The same for who may not sleep at all: what the application polls elsewhere rings no bell, which every message
    /// would. Whoever polls it tells what becomes of its connection.
    pub fn prepare_wait_for_idle(&self) -> Option<EventWait> {
        self.prepare_wait_for(|driven| !driven.is_polled_elsewhere())
    }

    fn prepare_wait_for(&self, rings: impl Fn(&dyn Driven) -> bool) -> Option<EventWait> {
        // Of many a read drives some alone, and to drive each costs less than to arm it.
        self.driven.load().each().iter().for_each(|driven| _ = driven.drive());
        if !self.is_empty() {
            return None;
        }
        let (sleepers, entered) = (self.sleepers.clone(), self.sleepers.enter());
        let mut all = self.driven.load().each();
        all.retain(|driven| rings(&**driven));
        let sleeps = arm_all(&all);
        let is_awake = sleeps.contains(&Sleep::Awake);
        let driven = all.iter().map(Arc::downgrade).collect();
        let wait = EventWait { driven, sleeps, sleepers, entered };
        (!is_awake && self.is_empty()).then_some(wait)
    }
}
