//! How an event queue is waited for: inside of a call, on its descriptor, or in a set.

use std::{sync::Arc, time::Duration};

use kestrel_core::{
    engine::sleep::rest,
    event_queue::{EventQueue, EventWait},
};

use crate::waiting::{self, Armed, Signal, Waitable};

/// What a waiter needs.
pub struct Shared {
    pub queue: Arc<EventQueue>,
    /// Readable while something is in the queue.
    pub signal: Arc<Signal>,
}

impl Shared {
    /// Sleeps until there is something to read or to drive.
    pub fn sleep(&self, left: Option<Duration>) {
        self.settle();
        let Some(wait) = self.queue.prepare_wait() else {
            return;
        };
        let mut descriptors = wait.descriptors();
        descriptors.push(self.signal.fd());
        waiting::sleep(&descriptors, rest(left, wait.waits_for_room()));
    }

    fn arm_by(&self, prepare: fn(&EventQueue) -> Option<EventWait>) -> Option<Box<dyn Armed>> {
        self.settle();
        let wait = prepare(&self.queue)?;
        Some(Box::new(Listening { signal: self.signal.clone(), wait }))
    }

    /// Makes the descriptor silent, if there is nothing left that it tells anybody.
    pub fn settle(&self) {
        if self.queue.is_quiet() {
            self.signal.lower();
            // What came in between had raised it before we lowered it.
            if !self.queue.is_quiet() {
                self.signal.raise();
            }
        }
    }
}

impl Waitable for Shared {
    fn is_ready(&self) -> bool {
        self.queue.progress();
        !self.queue.is_empty()
    }

    fn drive(&self) {
        self.queue.progress();
    }

    fn arm(&self) -> Option<Box<dyn Armed>> {
        self.arm_by(EventQueue::prepare_wait)
    }
}

/// The same, of who never calls fi_trywait, and need not sleep at all.
pub struct Unasked<'a>(pub &'a Shared);

impl Waitable for Unasked<'_> {
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn drive(&self) {
        self.0.drive();
    }

    fn arm(&self) -> Option<Box<dyn Armed>> {
        self.0.arm_by(EventQueue::prepare_wait_for_idle)
    }
}

struct Listening {
    signal: Arc<Signal>,
    wait: EventWait,
}

impl Armed for Listening {
    fn descriptors(&self) -> Vec<i32> {
        let mut all = self.wait.descriptors();
        all.push(self.signal.fd());
        all
    }

    fn looks_again(&self) -> bool {
        self.wait.waits_for_room()
    }
}
