//! The memory of a lane, for models: what two processes share otherwise.

use std::ptr::NonNull;

use kestrel_core::ring::lane::{LaneConsumer, LaneControl, LaneProducer, Line};
use loom::sync::Arc;

/// Kept by both ends for as long as they use it.
pub struct Memory {
    lines: Box<[Line]>,
    control: Box<LaneControl>,
}

/// An end, and the memory that it points into.
pub struct Held<E> {
    pub end: E,
    _memory: Arc<Memory>,
}

/// Both ends of an untouched lane of `count` lines.
pub fn lane(count: usize) -> (Held<LaneProducer>, Held<LaneConsumer>) {
    let lines = (0..count).map(|_| Line::default()).collect();
    let memory = Arc::new(Memory { lines, control: Box::default() });
    let first = NonNull::from(&*memory.lines).cast();
    let control = NonNull::from(&*memory.control);
    // SAFETY: the boxes hold `count` lines and a control block and live as long as
    // either end; there is one producer and one consumer.
    let producer = unsafe { LaneProducer::new(first, count, control) };
    // SAFETY: as above.
    let consumer = unsafe { LaneConsumer::new(first, count, control) };
    (Held { end: producer, _memory: memory.clone() }, Held { end: consumer, _memory: memory })
}
