//! One-sided operations: reads, writes and atomics on a peer's registered memory.
//! Reference: fi_rma(3), fi_atomic(3).
//!
//! The initiator sends what it wants in the lane, behind whatever it sent before,
//! and the target's engine validates key, access and bounds at that moment and
//! executes. So a write follows the writes before it, a read sees them, and a
//! message that is sent behind a write finds it done. A long write is cut into
//! packets that each say where they belong, so the target keeps nothing of it; a
//! long read is served bit by bit, and writes wait at the initiator until it is
//! over. Every operation is answered: by its data, or by `Done`.
//!
//! In reading order: [`post`] takes an operation, [`push`] makes packets of it,
//! [`serve`] and [`serve_data`] are the target, which remembers [`several`] segments, [`answer`] is how
//! it ends.

pub mod answer;
pub mod post;
pub mod push;
pub mod scratch;
pub mod serve;
pub mod serve_data;
pub mod several;

use crate::{
    engine::Engine,
    one_sided::{Action, RemoteOperation},
    transport::{Arrival, Transport},
    wire::Kind,
};

/// A read of more bytes is served bit by bit. What is shorter is copied at once
/// if it must wait for room, so that later writes do not change it. Units: bytes.
pub const SNAPSHOT_MAX: usize = 4096;
/// Reads and fetching atomics that one peer may have under way with another, so
/// that what waits for room is bounded.
pub const READS_MAX: usize = 256;
/// Segments of them.
const SERVING_MAX: usize = READS_MAX * crate::one_sided::RMA_IOV_LIMIT;

/// Operations under way that bring a peer's memory to us: reads, and atomics that fetch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    all: u32,
    /// Those that the target serves bit by bit.
    long: u32,
}

impl Reads {
    #[inline(always)]
    fn note_begun(&mut self, operation: &RemoteOperation) {
        self.all += 1;
        self.long += u32::from(operation.is_long_read());
    }

    #[inline(always)]
    fn note_over(&mut self, operation: &RemoteOperation) {
        self.all -= 1;
        self.long -= u32::from(operation.is_long_read());
    }

    /// Whether another operation waits for some of these to come to their end.
    #[inline(always)]
    fn hold_up(&self, operation: &RemoteOperation) -> bool {
        let too_many = operation.action.fetches() && self.all as usize >= READS_MAX;
        // What is being read must not change before it has all left the target.
        let changes = operation.action != Action::Read && self.long > 0;
        too_many || changes
    }
}

impl RemoteOperation {
    /// Whether the target serves it bit by bit.
    fn is_long_read(&self) -> bool {
        self.action == Action::Read && self.total > SNAPSHOT_MAX
    }
}

impl<T: Transport> Engine<T> {
    /// Whether the packet is taken.
    #[inline(never)]
    pub(crate) fn arrive_one_sided(&mut self, arrival: Arrival) -> bool {
        if self.leaves_data(&arrival) {
            return false;
        }
        match Kind::from_byte(arrival.head.kind) {
            Some(Kind::Write | Kind::WriteData) => self.arrive_write(arrival),
            Some(Kind::WritePart) => self.arrive_write_part(arrival),
            Some(Kind::Read) => self.arrive_read(arrival),
            Some(Kind::Atomic) => self.arrive_atomic(arrival),
            Some(Kind::Data) => self.arrive_data(arrival),
            Some(Kind::Written) => self.arrive_written(arrival.peer, arrival.word),
            // The caller sends nothing else.
            _ => self.arrive_done(arrival.peer, arrival.word, self.transport.word(0)),
        }
        true
    }
}
