//! How an event queue drives a unit whose connections it reports.

use std::os::fd::RawFd;

use super::{BURST_MAX, sleep::Sleep, unit::Unit};
use crate::{
    event_queue::Driven,
    primitive::{AtomicU32, Ordering},
    transport::{Provider, Transport},
};

impl<P: Provider> Driven for Unit<P> {
    fn drive(&self) -> bool {
        self.polls_elsewhere().note_own();
        self.progress_by_application(BURST_MAX)
    }

    // A closed unit has nobody to ask, here and below.
    fn arm(&self) {
        let _ = self.with(|engine| engine.arm());
    }

    fn fence(&self) -> fn() {
        P::Transport::fence_armed
    }

    fn how_to_sleep(&self) -> Sleep {
        self.with(|engine| engine.how_to_sleep()).unwrap_or(Sleep::Sound)
    }

    fn disarm(&self, sleep: Sleep) -> bool {
        self.with(|engine| engine.disarm(sleep)).unwrap_or(false)
    }

    fn ring_for_others(&self) {
        let _ = self.with(|engine| engine.ring_for_others());
    }

    fn bell(&self) -> Option<RawFd> {
        self.with(|engine| engine.bell()).ok()
    }

    fn is_polled_elsewhere(&self) -> bool {
        self.polls_elsewhere().have_been(self.polls())
    }
}

/// Tells an application's polls of a unit from those by its event queue.
#[derive(Default)]
pub(super) struct PollsElsewhere {
    /// By the event queue.
    own: AtomicU32,
    /// Others, when that was asked last.
    seen: AtomicU32,
}

impl PollsElsewhere {
    fn note_own(&self) {
        self.own.fetch_add(1, Ordering::Relaxed);
    }

    /// Of `polls` in all.
    fn have_been(&self, polls: u32) -> bool {
        let others = polls.wrapping_sub(self.own.load(Ordering::Relaxed));
        self.seen.swap(others, Ordering::Relaxed) != others
    }
}
