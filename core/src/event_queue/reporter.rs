//! Where an endpoint's events go, and what it is called there.

use std::sync::Arc;

use super::{ErrorEvent, Event, EventQueue};
use crate::error::{Cause, Errno};

/// An event queue, and an endpoint's name in its events.
#[derive(Clone)]
pub struct Reporter {
    /// The event queue.
    pub queue: Arc<EventQueue>,
    /// The endpoint's name in events: opaque here.
    pub fid: u64,
    /// "Operations that complete in error that are not associated with valid operational context will
    /// use the endpoint context in any error reporting structures" (fi_endpoint(3)).
    pub context: u64,
}

impl Reporter {
    /// Unbinds a passive endpoint's queue: nothing is reported by that name any more, and what was
    /// is forgotten.
    pub(crate) fn let_go(self) {
        self.queue.discard(self.fid);
        // Counted when it was bound, so this cannot fail.
        let _ = self.queue.binds().unbind();
    }

    pub(crate) fn push(&self, event: Event) {
        self.queue.push(event);
    }

    /// "The error entry will provide additional details describing the reason for the failed
    /// attempt" (fi_cm(3)).
    pub(crate) fn fail(&self, errno: Errno, reason: String, error_data: Vec<u8>) {
        tracing::info!("a connection failed: {reason}");
        let error =
            ErrorEvent { error_data, reason, ..ErrorEvent::new(self.fid, self.context, errno) };
        self.queue.push_error(error);
    }

    /// "Critical errors are reported through the event queue associated with the EP" (fi_endpoint(3)).
    pub(crate) fn report_failure(&self, why: &Cause) {
        let Cause { errno, reason } = why.clone();
        self.queue
            .push_error(ErrorEvent { reason, ..ErrorEvent::new(self.fid, self.context, errno) });
    }
}
