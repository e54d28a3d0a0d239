//! How an event queue drives a unit whose connections it reports.

use std::os::fd::RawFd;

use super::{BURST_MAX, sleep::Sleep, unit::Unit};
use crate::{
    event_queue::Driven,
    transport::{Provider, Transport},
};

impl<P: Provider> Driven for Unit<P> {
    fn drive(&self) -> bool {
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
}
