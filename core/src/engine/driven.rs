//! How an event queue drives a unit whose connections it reports.

use std::os::fd::RawFd;

use super::{BURST_MAX, unit::Unit};
use crate::{event_queue::Driven, transport::Provider};

impl<P: Provider> Driven for Unit<P> {
    fn drive(&self) -> bool {
        self.progress_by_application(BURST_MAX)
    }

    // A closed unit has nobody to ask, here and below.
    fn arm(&self) -> bool {
        self.with(|engine| engine.arm()).unwrap_or(true)
    }

    fn disarm(&self) {
        let _ = self.with(|engine| engine.disarm());
    }

    fn bell(&self) -> Option<RawFd> {
        self.with(|engine| engine.bell()).ok()
    }

    fn waits_for_room(&self) -> bool {
        self.with(|engine| engine.waits_for_room()).unwrap_or(false)
    }
}
