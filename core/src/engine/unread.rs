//! Remote data that nobody reads.
//!
//! The data of a write takes no posted receive and no credit: a queue that is not read would grow without
//! limit, where a helper takes what arrives. So an entry of it counts against the budget of unexpected
//! messages as much as an envelope does, and from then on what brings more stays in its lane, and what is
//! behind it; its initiator waits. Who only counts has no entries, and nothing waits.
//!
//! Where completions keep an order (FI_ORDER_STRICT) data also waits for its turn behind a message that is
//! still to come. It may not stay in its lane then: the rest of that message is behind it. So it is taken, and
//! beyond the budget its write is answered when its turn comes. An initiator has only so many operations under
//! way, and what it has begun to send waits for none of them: in the end it sends nothing but the rest of the
//! message. Whoever goes on writing breaks the protocol. What an adapter has written is answered by the
//! adapter: its initiator knows of no budget, and that data waits however much it is.
//!
//! Who reads rings no bell, so sleepers that find such a packet only nap. What lies in a lane that ends
//! is taken all the same: no lane holds much.

use super::Engine;
use crate::{
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, ENVELOPE_COST, Kind},
};

/// What is known of remote data that stays in its lane.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Entries that nobody has read, at most, where the queue has no room for more.
    max: usize,
    /// A packet has been left where it is, and none has brought data since.
    waits: bool,
    /// It has been said that one was, since the queue was last read to the half.
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

    /// So many may wait.
    pub(super) fn most(&self) -> usize {
        self.max
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
        brings && self.is_unread(arrival.peer)
    }

    fn is_unread(&mut self, peer: PeerIndex) -> bool {
        let (unread, max) = self.unread_of();
        self.unread.waits = unread >= max && !self.unread.takes_all;
        if self.unread.waits {
            self.leave_unread(peer, unread);
        } else if unread < max / 2 {
            // Who keeps just behind would be told of each time that it has read one.
            self.unread.told = false;
        }
        self.unread.waits
    }

    /// Entries that nobody has read, and how many there may be.
    fn unread_of(&self) -> (usize, usize) {
        let queue = self.setup.receive.queue.as_ref();
        queue.map_or((0, usize::MAX), |queue| (queue.len(), self.unread.max.max(queue.size())))
    }

    fn has_unread(&self) -> bool {
        let (unread, max) = self.unread_of();
        unread >= max
    }

    #[cold]
    fn leave_unread(&mut self, peer: PeerIndex, unread: usize) {
        if !std::mem::replace(&mut self.unread.told, true) {
            let address = self.peers[peer as usize].address;
            tracing::warn!(
                %address,
                "remote data waits until the completion queue is read: {unread} entries are in it, as many \
                 as FI_KESTREL_UNEXPECTED_BUDGET and its size allow"
            );
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
