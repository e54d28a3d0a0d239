//! Event queues: what happens to objects rather than to messages, as typed
//! events and error entries. Reference: fi_eq(3).
//!
//! No data path leads here, so one mutex and two deques are enough. Reading drives the
//! endpoints whose connections are reported here. A thread waits in [`EventQueue::read_blocking`].
//! The C door waits by itself: it is told through [`EventQueue::set_notify`], and sleeps on
//! [`EventWait::descriptors`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::bind_count::{BindCount, BindError};
use crate::error::{Errno, HasErrno};
use crate::flags::Flags;
use crate::sleepers::Sleepers;
use crate::transport::{Bell, EventBell};

mod driven;
mod event;
pub(crate) mod reporter;
mod waiting;

pub use driven::{Driven, EventWait};
pub use event::{ErrorEvent, Event};

/// What reading a queue finds.
#[derive(Clone, Debug, PartialEq)]
pub enum EventRead {
    /// The first event.
    Event(Event),
    /// The caller's test refused the first event, which stays first.
    Refused,
    /// Nothing is there: FI_EAGAIN.
    Empty,
    /// An error entry waits to be read first: FI_EAVAIL.
    ErrorAvailable,
}

/// Why a queue refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its message")]
pub enum EventQueueError {
    #[error("event {code} cannot be written: the queue was opened without FI_WRITE")]
    NotWritable { code: u32 },
    #[error("event queue flags {flags:#x} are not supported")]
    UnsupportedFlags { flags: u64 },
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl HasErrno for EventQueueError {
    fn errno(&self) -> Errno {
        match self {
            EventQueueError::NotWritable { .. } => Errno::INVAL,
            EventQueueError::UnsupportedFlags { .. } => Errno::BADFLAGS,
            EventQueueError::Bind(error) => error.errno(),
        }
    }
}

/// How to open an event queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventQueueAttributes {
    /// "Specifies the minimum size of an event queue." It grows, and so never overruns.
    pub size: usize,
    /// `WRITE`: the application will write events. `AFFINITY` is accepted; it asks for nothing here.
    pub flags: Flags,
}

type Notify = Arc<dyn Fn() + Send + Sync>;

/// A queue of events, and one of errors.
pub struct EventQueue {
    attributes: EventQueueAttributes,
    binds: BindCount,
    queues: Mutex<Queues>,
    /// What is driven when the queue is read.
    driven: ArcSwap<driven::All>,
    /// Who waits, and has to look anew when there is more to drive.
    sleepers: Arc<Sleepers>,
}

#[derive(Default)]
struct Queues {
    events: VecDeque<Event>,
    errors: VecDeque<ErrorEvent>,
    notify: Option<Notify>,
    /// Of threads that wait inside of a call.
    alarms: Vec<Arc<EventBell>>,
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.errors.is_empty()
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What `read_if` calls has the queues, and may format.
        let waiting = self.queues.try_lock().ok().map(|it| (it.events.len(), it.errors.len()));
        let (events, errors) = waiting.unzip();
        f.debug_struct("EventQueue")
            .field("attributes", &self.attributes)
            .field("events", &events)
            .field("errors", &errors)
            .field("bound", &self.binds.count())
            .finish_non_exhaustive()
    }
}

impl EventQueue {
    /// Opens a queue.
    ///
    /// # Errors
    /// [`EventQueueError::UnsupportedFlags`].
    pub fn open(attributes: EventQueueAttributes) -> Result<Self, EventQueueError> {
        let unsupported = attributes.flags.difference(Flags::WRITE.union(Flags::AFFINITY));
        if !unsupported.is_empty() {
            return Err(EventQueueError::UnsupportedFlags { flags: unsupported.bits() });
        }
        let binds = BindCount::default();
        let (queues, driven, sleepers) = Default::default();
        Ok(EventQueue { attributes, binds, queues, driven, sleepers })
    }

    /// What it was opened with.
    pub fn attributes(&self) -> &EventQueueAttributes {
        &self.attributes
    }

    /// Adds an event, and wakes who waits.
    pub fn push(&self, event: Event) {
        self.push_with(|queues| queues.events.push_back(event));
    }

    /// Adds an error entry, and wakes who waits.
    pub fn push_error(&self, error: ErrorEvent) {
        self.push_with(|queues| queues.errors.push_back(error));
    }

    /// Adds an event of the application's own.
    ///
    /// # Errors
    /// [`EventQueueError::NotWritable`]: "If the FI_WRITE flag is not set,
    /// then the application may not invoke fi_eq_write."
    pub fn write(&self, code: u32, bytes: &[u8]) -> Result<(), EventQueueError> {
        if !self.attributes.flags.contains(Flags::WRITE) {
            return Err(EventQueueError::NotWritable { code });
        }
        self.push(Event::User { code, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Takes the first event, unless an error waits: "Attempting to read from an
    /// EQ while an item is in the error queue results in an FI_EAVAIL failure."
    pub fn read(&self) -> EventRead {
        self.read_if(|_| true)
    }

    /// Takes the first event if `accept` says so: a caller whose buffer is
    /// too small leaves it where it is. `accept` runs under the queue's mutex.
    pub fn read_if(&self, accept: impl FnOnce(&Event) -> bool) -> EventRead {
        self.progress();
        let mut queues = self.lock();
        if !queues.errors.is_empty() {
            return EventRead::ErrorAvailable;
        }
        match queues.events.front() {
            None => EventRead::Empty,
            Some(event) if !accept(event) => EventRead::Refused,
            Some(_) => queues.events.pop_front().map_or(EventRead::Empty, EventRead::Event),
        }
    }

    /// What [`read`](Self::read) would take, left where it is (FI_PEEK).
    pub fn peek(&self) -> EventRead {
        self.progress();
        let queues = self.lock();
        if !queues.errors.is_empty() {
            return EventRead::ErrorAvailable;
        }
        queues.events.front().cloned().map_or(EventRead::Empty, EventRead::Event)
    }

    /// Takes the first error entry; `None` is FI_EAGAIN.
    pub fn read_error(&self) -> Option<ErrorEvent> {
        self.lock().errors.pop_front()
    }

    /// The first error entry, left where it is.
    pub fn peek_error(&self) -> Option<ErrorEvent> {
        self.lock().errors.front().cloned()
    }

    /// Whether a read would find nothing, neither event nor error.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether what waits may be made quiet: there is nothing to read, and nobody still sleeps who has to
    /// look anew, since there is more to drive.
    pub fn is_quiet(&self) -> bool {
        !self.sleepers.owe() && self.is_empty()
    }

    /// Forgets the events and errors of an object that goes away, so that
    /// none can be read that names it. Only where the manual pages ask for it.
    pub fn discard(&self, fid: u64) {
        let mut queues = self.lock();
        queues.errors.retain(|error| error.fid != fid);
        queues.events.retain(|event| match event {
            Event::ConnectionRequest { fid: of, .. }
            | Event::Connected { fid: of, .. }
            | Event::Shutdown { fid: of }
            | Event::MemoryRegionComplete { fid: of, .. }
            | Event::AddressVectorComplete { fid: of, .. }
            | Event::JoinComplete { fid: of, .. } => *of != fid,
            Event::User { .. } => true,
        });
    }

    /// Forgets a request for a connection that nobody has read of: who asked has gone.
    pub(crate) fn retract_request(&self, passive: u64, handle: u64) {
        self.lock().events.retain(|event| match event {
            Event::ConnectionRequest { fid, info, .. } => (*fid, info.handle) != (passive, handle),
            _ => true,
        });
    }

    /// Has `notify` called after everything that is added, from the thread
    /// that adds it and outside the queue's mutex; at once, if something is
    /// there already. It replaces the hook before.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn set_notify(&self, notify: Box<dyn Fn() + Send + Sync>) {
        let notify: Notify = notify.into();
        let mut queues = self.lock();
        queues.notify = Some(notify.clone());
        let waiting = !queues.is_empty();
        drop(queues);
        if waiting {
            notify();
        }
    }

    /// The objects bound to it: they count themselves in and out here.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// Closes it; "any events which remain on the EQ when it is closed are lost."
    ///
    /// # Errors
    /// [`EventQueueError::Bind`] while something is bound.
    pub fn close(&self) -> Result<(), EventQueueError> {
        self.binds.close()?;
        let mut queues = self.lock();
        // Whoever waits in a call still does.
        let alarms = std::mem::take(&mut queues.alarms);
        *queues = Queues { alarms, ..Queues::default() };
        Ok(())
    }

    fn push_with(&self, add: impl FnOnce(&mut Queues)) {
        let mut queues = self.lock();
        add(&mut queues);
        queues.alarms.iter().for_each(|alarm| alarm.ring());
        let notify = queues.notify.clone();
        drop(queues);
        if let Some(notify) = notify {
            notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Nothing under the mutex leaves the deques half changed.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn queue(flags: Flags) -> EventQueue {
        EventQueue::open(EventQueueAttributes { size: 2, flags }).unwrap()
    }

    #[test]
    fn events_come_in_order_and_a_peek_consumes_none() {
        let queue = queue(Flags::empty());
        assert_eq!(queue.read(), EventRead::Empty);
        for fid in 0..100 {
            queue.push(Event::Shutdown { fid });
        }
        assert_eq!(queue.peek(), EventRead::Event(Event::Shutdown { fid: 0 }));
        assert!(!queue.is_empty());
        for fid in 0..100 {
            assert_eq!(queue.read(), EventRead::Event(Event::Shutdown { fid }));
        }
        assert_eq!((queue.read(), queue.peek()), (EventRead::Empty, EventRead::Empty));
    }

    #[test]
    fn an_error_is_read_before_any_event() {
        let queue = queue(Flags::empty());
        queue.push(Event::Shutdown { fid: 1 });
        let error = ErrorEvent::new(2, 3, Errno::CONNREFUSED);
        queue.push_error(error.clone());
        assert_eq!(
            (queue.read(), queue.peek()),
            (EventRead::ErrorAvailable, EventRead::ErrorAvailable)
        );
        assert_eq!(queue.peek_error(), Some(error.clone()));
        assert_eq!((queue.read_error(), queue.read_error()), (Some(error), None));
        assert_eq!(queue.read(), EventRead::Event(Event::Shutdown { fid: 1 }));
    }

    #[test]
    fn a_refused_event_stays_first() {
        let queue = queue(Flags::WRITE);
        queue.write(7, &[1, 2, 3]).unwrap();
        let fits = |len| move |event: &Event| matches!(event, Event::User { bytes, .. } if bytes.len() <= len);
        assert_eq!(queue.read_if(fits(2)), EventRead::Refused);
        let expected = Event::User { code: 7, bytes: vec![1, 2, 3] };
        assert_eq!(queue.read_if(fits(3)), EventRead::Event(expected));
        assert_eq!(queue.read_if(fits(3)), EventRead::Empty);
    }

    #[test]
    fn writing_needs_the_write_flag() {
        let refused = queue(Flags::empty()).write(7, &[]).unwrap_err();
        assert_eq!(refused, EventQueueError::NotWritable { code: 7 });
        assert_eq!(refused.errno(), Errno::INVAL);
        let attributes = EventQueueAttributes { size: 0, flags: Flags::WRITE | Flags::MSG };
        let refused = EventQueue::open(attributes).err();
        assert_eq!(refused, Some(EventQueueError::UnsupportedFlags { flags: 2 }));
    }

    #[test]
    fn codes_are_those_of_libfabric() {
        let op = (1, 2, 3);
        let events = [
            Event::ConnectionRequest { fid: 1, info: Box::default(), data: vec![] },
            Event::Connected { fid: 1, data: vec![] },
            Event::Shutdown { fid: 1 },
            Event::MemoryRegionComplete { fid: op.0, context: op.1, data: op.2 },
            Event::AddressVectorComplete { fid: op.0, context: op.1, data: op.2 },
            Event::JoinComplete { fid: op.0, context: op.1, data: op.2 },
            Event::User { code: 99, bytes: vec![] },
        ];
        let codes: Vec<u32> = events.iter().map(Event::code).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 99]);
    }

    #[test]
    fn the_hook_hears_of_events_errors_and_what_waited_already() {
        let queue = queue(Flags::empty());
        queue.push(Event::Shutdown { fid: 1 });
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        queue.set_notify(Box::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        queue.push(Event::Shutdown { fid: 2 });
        queue.push_error(ErrorEvent::new(1, 1, Errno::IO));
        assert_eq!(calls.load(Ordering::SeqCst), 3);
        queue.read_error();
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn the_hook_may_use_the_queue() {
        let queue = Arc::new(queue(Flags::empty()));
        let reader = Arc::downgrade(&queue);
        queue.set_notify(Box::new(move || {
            if let Some(queue) = reader.upgrade() {
                queue.read();
            }
        }));
        queue.push(Event::Shutdown { fid: 1 });
        assert!(queue.is_empty());
    }

    #[test]
    fn discard_forgets_one_object_only() {
        let queue = queue(Flags::empty());
        queue.push(Event::Shutdown { fid: 1 });
        queue.push(Event::Shutdown { fid: 2 });
        queue.push_error(ErrorEvent::new(1, 0, Errno::IO));
        queue.discard(1);
        assert_eq!(queue.read(), EventRead::Event(Event::Shutdown { fid: 2 }));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_bound_queue_does_not_close() {
        let queue = queue(Flags::empty());
        queue.binds().bind().unwrap();
        assert_eq!(queue.close().unwrap_err().errno(), Errno::BUSY);
        queue.binds().unbind().unwrap();
        queue.close().unwrap();
    }
}
