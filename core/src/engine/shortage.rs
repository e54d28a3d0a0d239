//! Where there is no memory for a message that nobody has asked for, or it cannot be told for the moment whose
//! context sends it.
//!
//! It stays in its lane until there is, or until a receive is posted for it. A lane that ends would take
//! it along: so the event that ends the lane is put off, half a second at most, and passes go on to look at
//! the lane. Then what still finds neither is dropped, and said to be lost. Events behind it wait as well:
//! but as long as that goes on only once.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::Engine;
use crate::{
    operation::{Body, room_for},
    transport::{PeerIndex, Transport, TransportEvent},
    wire::Kind,
};

/// How long an event waits for memory. Survivors are to know of a dead peer within a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// What goes on is said again after so long.
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// A map looks at so many of the bytes beside its places at once, also at the last ones. Units: bytes.
const GROUP: usize = 16;

/// What is known of the memory that there is not.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// When it was last said that a message waits for memory.
    told: Option<Instant>,
    /// When it was last said that a peer waits since it has left too much behind.
    told_left_behind: Option<Instant>,
    /// The last packet that found nothing of what is short is still in its lane.
    waits: bool,
    /// What finds nothing is dropped.
    drops: bool,
    /// The event that ends the lane of a peer, which is not empty.
    put_off: Option<(TransportEvent, PeerIndex)>,
    /// Since when there has been nothing for what was in such lanes.
    since: Option<Instant>,
}

impl Shortage {
    /// Whether the event that ends the lane of `peer` is put off.
    pub(crate) fn puts_off(&self, peer: PeerIndex) -> bool {
        self.put_off.as_ref().is_some_and(|&(_, of)| of == peer)
    }

    /// Whether it is to be said that a peer waits since it has left too much behind.
    pub(crate) fn tells_left_behind(&mut self) -> bool {
        !self.drops && is_due(&mut self.told_left_behind)
    }

    /// Whether any event is put off.
    pub(crate) fn holds_event(&self) -> bool {
        self.put_off.is_some()
    }

    /// All with `peer` is over: there is nothing more for an event to end, nor to begin but by `adopt`.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        let is_over = |(event, of): &(TransportEvent, PeerIndex)| {
            *of == peer && !matches!(event, TransportEvent::Incoming { .. })
        };
        if self.put_off.as_ref().is_some_and(is_over) {
            self.put_off = None;
        }
    }
}

/// Whether something that goes on is to be said, which was last said then: now it is.
fn is_due(told: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let is_due = told.is_none_or(|at| now - at >= SAID_AGAIN);
    if is_due {
        *told = Some(now);
    }
    is_due
}

/// What one more entry makes a map grow by: mostly nothing. Units: bytes.
pub(crate) fn growth_of<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    if map.len() < map.capacity() {
        return 0;
    }
    // The places are a power of two, one in eight of them is free, and each has a byte beside it.
    let places = ((map.capacity() + 1) * 8).div_ceil(7).next_power_of_two().max(4);
    places * (size_of::<(K, V)>() + 1) + GROUP
}

impl<T: Transport> Engine<T> {
    /// Memory for `length` bytes of a message that nobody has asked for, where there are `beside` more for
    /// what else has to grow.
    #[inline]
    pub(crate) fn memory_for(&mut self, length: usize, beside: usize) -> Option<Body> {
        let body = Body::try_new(length).filter(|_| beside == 0 || room_for(beside).is_ok());
        if body.is_none() {
            self.lack_memory(length);
        }
        body
    }

    #[cold]
    fn lack_memory(&mut self, length: usize) {
        self.shortage.waits = true;
        let Shortage { drops, told, .. } = &mut self.shortage;
        if !*drops && is_due(told) {
            tracing::warn!(
                endpoint = %self.transport.address(), length,
                "no memory for an unexpected message: its sender waits"
            );
        }
    }

    /// Whether a message that found no memory is done with, since its lane ends.
    #[cold]
    pub(crate) fn drops_for_memory(&self) -> bool {
        self.shortage.drops
    }

    /// A packet stays in its lane, and what is behind it, until something that is short has come back: at
    /// its end the lane waits for that as for memory.
    #[cold]
    pub(crate) fn leave_for_the_moment(&mut self) {
        self.shortage.waits = true;
    }

    /// Whether there is something to be told beside packets.
    #[inline(always)]
    pub(crate) fn has_event(&self) -> bool {
        self.transport.has_event() || self.shortage.holds_event()
    }

    /// What is to be told next. What ends a lane comes when all in it has been delivered.
    pub(super) fn next_event(&mut self) -> Option<TransportEvent> {
        let put_off = self.shortage.put_off.take().map(|(event, _)| event);
        let event = put_off.or_else(|| self.transport.event())?;
        let Some(peer) = self.ends_lane_of(&event) else {
            return Some(event);
        };
        if self.shortage.since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            self.drain_whole(peer);
        } else if self.drain(peer).is_some() {
            self.shortage.since = None;
        } else {
            self.shortage.since.get_or_insert_with(Instant::now);
            self.shortage.put_off = Some((event, peer));
            // Nothing rings when what is short has come back.
            self.wake_sound_sleepers();
            return None;
        }
        Some(event)
    }

    /// Whose lane to us is over with an event, if it is.
    fn ends_lane_of(&self, event: &TransportEvent) -> Option<PeerIndex> {
        match *event {
            TransportEvent::Died { peer }
            | TransportEvent::Lost { peer, .. }
            | TransportEvent::Closed { peer } => Some(peer),
            // Whom we cannot answer may have sent before.
            TransportEvent::Failed { peer, .. } => Some(peer),
            TransportEvent::Connected { peer, incarnation } => {
                let known = self.peers[peer as usize].incarnation;
                Some(peer).filter(|_| known.is_some_and(|known| known != incarnation))
            }
            TransportEvent::Incoming { address, key, .. } => {
                self.by_address.get(&(address, key)).copied()
            }
            _ => None,
        }
    }

    /// Delivers what `peer` had published; what finds nothing of what is short is lost.
    pub(crate) fn drain_whole(&mut self, peer: PeerIndex) {
        self.know_sources();
        self.shortage.drops = true;
        let lost = self.drain(peer);
        self.shortage.drops = false;
        match lost {
            None | Some(0) => self.shortage.since = None,
            Some(lost) => {
                let address = self.peers[peer as usize].address;
                tracing::error!(
                    %address, lost,
                    "the last messages of a peer that is gone are lost: there is no memory for them, or it \
                     cannot be told whose context it is"
                );
            }
        }
    }

    /// Delivers what `peer` had published. Bounded by what a lane can hold. Returns how much of it was
    /// dropped, or none while it waits: for what is short, or to learn what the peer is called now. What is
    /// not whole never will be.
    fn drain(&mut self, peer: PeerIndex) -> Option<usize> {
        if !self.knows_sources() {
            return None;
        }
        self.unread.takes_all = true;
        let lost = self.drain_lane(peer);
        self.unread.takes_all = false;
        lost
    }

    fn drain_lane(&mut self, peer: PeerIndex) -> Option<usize> {
        const PACKETS_MAX: usize = 1 << 16;
        let mut lost = 0;
        for _ in 0..PACKETS_MAX {
            let Some(arrival) = self.transport.arrival_from(peer) else {
                break;
            };
            if arrival.head.kind == Kind::Bye as u8 {
                self.transport.take_receipt(peer, arrival.word);
                self.transport.consume();
                break;
            }
            (self.has_news, self.shortage.waits) = (false, false);
            let delivered = self.deliver(arrival);
            let (waits, drops) = (self.shortage.waits, self.shortage.drops);
            lost += usize::from(waits && (delivered || drops));
            if !delivered {
                return Some(lost).filter(|_| !waits || drops);
            }
        }
        Some(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::growth_of;

    #[test]
    fn a_map_grows_when_it_is_full_to_twice_its_places() {
        let mut map: HashMap<u64, u32> = HashMap::new();
        let mut grown = Vec::new();
        for name in 0..1_000 {
            let (growth, capacity) = (growth_of(&map), map.capacity());
            map.insert(name, 0);
            assert_eq!(growth > 0, map.capacity() > capacity, "{name}");
            grown.extend(Some(growth).filter(|&growth| growth > 0));
        }
        // A few places at first, then twice as many each time.
        assert!(grown[0] <= 8 * 17 + 16, "{grown:?}");
        assert!(grown[1..].is_sorted_by(|less, more| *more - 16 == 2 * (*less - 16)), "{grown:?}");
        assert_eq!(grown.last(), Some(&(2_048 * 17 + 16)), "of seven eighths");
    }
}
