//! What becomes of an engine that a panic has left half-way.

use std::mem::ManuallyDrop;

use super::{Engine, report::Side};
use crate::{
    completion_queue::ErrorEntry,
    connection::manager::Manager,
    contained::contained,
    error::{Cause, Errno},
    flags::Flags,
    transport::Transport,
};

const REASON: &str =
    "a bug in kestrel has closed this endpoint: the message of its panic says where";

/// What is left of it, for ever: a goodbye would be one of half-changed state, and what it owns may be half given back.
pub(super) struct Abandoned<T: Transport>(ManuallyDrop<Engine<T>>);

impl<T: Transport> Engine<T> {
    /// Closes the endpoint to its peers, who hear of it by the end of its transport: that is in no need of what the
    /// engine has left half-way.
    pub(super) fn abandon(self) -> Abandoned<T> {
        let engine = ManuallyDrop::new(self);
        // SAFETY: read once, of what is neither dropped nor looked at again.
        let transport = unsafe { std::ptr::read(&raw const engine.transport) };
        // Nothing escapes while the first panic unwinds.
        contained("the end of an endpoint", || drop(transport));
        Abandoned(engine)
    }
}

impl<T: Transport> Abandoned<T> {
    /// Tells who waits for it here. What was under way is not known any more: an error of each direction stands for
    /// all of it.
    pub(super) fn tell(mut self) {
        contained("the end of an endpoint", || {
            let setup = &self.0.setup;
            let tell = |side: &Side, flags| {
                side.fail(ErrorEntry::new(0, flags, Errno::OTHER, REASON.into()));
            };
            tell(&setup.transmit, Flags::SEND);
            tell(&setup.receive, Flags::RECV);
            let counters = [&setup.one_sided.read, &setup.one_sided.write];
            counters.into_iter().flatten().for_each(|counter| counter.add_error(1));
            // The listener tells a caller, who has not heard of us.
            let connection = self.0.manager.as_deref_mut().and_then(Manager::connection);
            drop(connection.and_then(|connection| connection.promise.take()));
            self.0.tell_of_failure(&Cause { errno: Errno::OTHER, reason: REASON.into() });
        });
    }
}
