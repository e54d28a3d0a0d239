//! Something that an event queue drives, made of what is done then. Who waits for it sleeps.

use std::os::fd::RawFd;

use kestrel_core::{engine::sleep::Sleep, event_queue::Driven};

/// The closure tells whether anything moved.
pub struct Drives<F>(pub F);

impl<F: Fn() -> bool + Send + Sync> Driven for Drives<F> {
    fn drive(&self) -> bool {
        (self.0)()
    }
    fn arm(&self) {}
    fn fence(&self) -> fn() {
        || ()
    }
    fn how_to_sleep(&self) -> Sleep {
        Sleep::Sound
    }
    fn disarm(&self, _: Sleep) -> bool {
        false
    }
    fn ring_for_others(&self) {}
    fn bell(&self) -> Option<RawFd> {
        None
    }
}
