//! What kestrel logs goes to libfabric's log: levels, subsystems and filters are those
//! that the user sets with `FI_LOG_LEVEL` and its siblings.

use std::{
    ffi::{CString, c_int},
    fmt::{self, Write},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::Interest,
};

use crate::host;

/// libfabric's subsystems, by what the path of a module has in it.
const SUBSYSTEMS: [(&str, c_int); 9] = [
    ("completion_queue", 6),
    ("address_vector", 5),
    ("memory_region", 8),
    ("event_queue", 7),
    ("counter", 9),
    ("endpoint", 3),
    ("engine", 3),
    ("fabric::fabric", 1),
    ("domain", 2),
];

/// Sends events to libfabric from now on.
pub fn install() {
    // Refused only if it is there already: then this library was initialised before.
    let _ = tracing::subscriber::set_global_default(ToHost);
}

struct ToHost;

fn level(level: Level) -> c_int {
    match level {
        Level::ERROR | Level::WARN => 0,
        Level::INFO => 2,
        Level::DEBUG | Level::TRACE => 3,
    }
}

fn subsystem(target: &str) -> c_int {
    let known = SUBSYSTEMS.iter().find(|(name, _)| target.contains(name));
    known.map_or(0, |(_, number)| *number)
}

impl Subscriber for ToHost {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // libfabric decides each time: its filters may be set after ours are asked.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && host::log_enabled(level(*metadata.level()), subsystem(metadata.target()))
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(String::new());
        event.record(&mut line);
        // A string with a zero byte in it is not worth a line.
        let (Ok(text), Ok(target)) = (CString::new(line.0), CString::new(metadata.target())) else {
            return;
        };
        let (level, subsystem) = (level(*metadata.level()), subsystem(metadata.target()));
        host::log(level, subsystem, &target, metadata.line().unwrap_or(0), &text);
    }

    // Spans are not used.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// An event in one line: the message, then the other fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}
