//! Waiting for events, inside of a call. Reference: fi_eq(3), `fi_eq_sread`.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{EventQueue, EventRead};
use crate::engine::sleep::rest;
use crate::transport::{Bell, EventBell, wait_any};

/// A thread that waits at a queue, which rings for it meanwhile.
struct Waiter<'a> {
    queue: &'a EventQueue,
    /// None where no descriptor was to be had: it looks again by itself.
    alarm: Option<Arc<EventBell>>,
}

impl<'a> Waiter<'a> {
    fn at(queue: &'a EventQueue) -> Waiter<'a> {
        let alarm = EventBell::new().ok().map(Arc::new);
        queue.lock().alarms.extend(alarm.clone());
        Waiter { queue, alarm }
    }

    /// Sleeps until something was added or is to be driven, unless it is there already.
    fn sleep(&self, left: Option<Duration>) {
        if let Some(alarm) = &self.alarm {
            alarm.drain();
        }
        // It looks whether there is anything, and so behind the silence.
        let Some(wait) = self.queue.prepare_wait() else { return };
        let mut bells: Vec<RawFd> = wait.descriptors();
        bells.extend(self.alarm.as_ref().map(|alarm| alarm.fd()));
        wait_any(&bells, rest(left, wait.waits_for_room() || self.alarm.is_none()));
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let is_ours =
            |alarm: &Arc<EventBell>| self.alarm.as_ref().is_some_and(|it| Arc::ptr_eq(it, alarm));
        self.queue.lock().alarms.retain(|alarm| !is_ours(alarm));
    }
}

impl EventQueue {
    /// Reads as [`Self::read`], waiting up to `timeout` (none: for ever) for the first event or error:
    /// [`EventRead::Empty`] when the time is over.
    ///
    /// It sleeps on the bells of what is driven here, and hears of whatever is added meanwhile: by
    /// connections, by address vectors and memory regions, and by [`Self::write`].
    /// # Reference
    /// fi_eq(3), `fi_eq_sread`
    pub fn read_blocking(&self, timeout: Option<Duration>) -> EventRead {
        let start = Instant::now();
        let mut waiter = None;
        loop {
            match self.read() {
                EventRead::Empty => {}
                found => return found,
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return EventRead::Empty;
            }
            waiter.get_or_insert_with(|| Waiter::at(self)).sleep(left);
        }
    }
}
