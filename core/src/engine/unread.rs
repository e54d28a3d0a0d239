//! Remote data that nobody reads.
//!
//! The data of a write takes no posted receive and no credit: a queue that is not read would grow without
//! limit, where a helper takes what arrives. So an entry of it counts against the budget of unexpected
//! messages as much as an envelope does, and from then on what brings more stays in its lane, and what is
//! behind it; its initiator waits. Who only counts has no entries, and nothing waits.
//!
//! Who reads rings no bell, so sleepers that find such a packet only nap. What lies in a lane that ends
//! is taken all the same: no lane holds much.

use super::Engine;
use crate::{
    transport::{Arrival, Transport},
    wire::{self, ENVELOPE_COST, Kind},
};

/// What is known of remote data that stays in its lane.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Entries that nobody has read, at most, where the queue has no room for more.
    max: usize,
    /// A packet has been left where it is, and none has brought data since.
    waits: bool,
    /// It has been said that one was, since the last was taken.
    told: bool,
    /// The lane at hand ends.
    pub(super) takes_all: bool,
}

impl Unread {
    /// As many entries as there may be envelopes.
    pub(super) fn new(budget: u64) -> Unread {
        let max = usize::try_from(budget / ENVELOPE_COST).unwrap_or(usize::MAX);
        Unread { max, ..Unread::default() }
    }

    /// A lane is gone: what was left may have been in it. The next poll finds what others have.
    pub(super) fn forget(&mut self) {
        self.waits = false;
    }
}

impl<T: Transport> Engine<T> {
    /// Whether a packet brings remote data that there is no room for.
    #[inline]
    pub(crate) fn leaves_data(&mut self, arrival: &Arrival) -> bool {
        let flags = arrival.head.flags;
        let brings = match Kind::from_byte(arrival.head.kind) {
            Some(Kind::WriteData | Kind::Written) => true,
            Some(Kind::WritePart) => flags & wire::DATA != 0 && flags & wire::LAST != 0,
            _ => false,
        };
        brings && self.is_unread()
    }

    fn is_unread(&mut self) -> bool {
        self.unread.waits = self.has_unread() && !self.unread.takes_all;
        match self.unread.waits {
            true => self.leave_unread(),
            false => self.unread.told = false,
        }
        self.unread.waits
    }

    fn has_unread(&self) -> bool {
        let queue = self.setup.receive.queue.as_ref();
        queue.is_some_and(|queue| queue.len() >= self.unread.max.max(queue.size()))
    }

    #[cold]
    fn leave_unread(&mut self) {
        if !std::mem::replace(&mut self.unread.told, true) {
            tracing::warn!("remote data waits: nobody reads the completion queue");
        }
        // They would sleep until the bell rings.
        self.wake_sound_sleepers();
    }

    /// Whether what is there to be taken may all be remote data that there is no room for.
    #[inline]
    pub(super) fn waits_for_reader(&self) -> bool {
        self.unread.waits && self.has_unread()
    }
}
