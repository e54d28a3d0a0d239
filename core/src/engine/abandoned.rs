//! What becomes of an engine that a panic has left half-way.

use std::{
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{Engine, report::Side};
use crate::{
    completion_queue::ErrorEntry, connection::manager::Manager, error::Errno, flags::Flags,
    transport::Transport,
};

const REASON: &str =
    "a bug in kestrel has closed this endpoint: the message of its panic says where";

impl<T: Transport> Engine<T> {
    /// Closes the endpoint: who waits for it here is told, and peers hear of it by the end of its transport, which is
    /// in no need of what the engine has left half-way. All else stays for ever, since a goodbye would be one of
    /// half-changed state.
    pub(super) fn abandon(self) {
        let engine = ManuallyDrop::new(self);
        // What another panic leaves out is left out: nothing escapes while the first one unwinds.
        let _ = catch_unwind(AssertUnwindSafe(|| engine.tell_abandoned()));
        // SAFETY: read once, of what is neither dropped nor looked at again.
        let transport = unsafe { std::ptr::read(&raw const engine.transport) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(transport)));
    }

    /// What was under way is not known any more: an error of each direction stands for all of it.
    fn tell_abandoned(&self) {
        let tell = |side: &Side, flags| {
            side.fail(ErrorEntry::new(0, flags, Errno::OTHER, REASON.into()));
        };
        tell(&self.setup.transmit, Flags::SEND);
        tell(&self.setup.receive, Flags::RECV);
        let reporter = self.manager.as_deref().and_then(|manager| match manager {
            Manager::Listener(listener) => listener.reporter.as_ref(),
            Manager::Connection(connection) => Some(&connection.reporter),
        });
        if let Some(reporter) = reporter {
            reporter.fail(Errno::OTHER, REASON.into(), Vec::new());
        }
    }
}
