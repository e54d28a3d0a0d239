//! What a target remembers of a peer's operation of several segments until its last packet: nothing
//! one-sided of that peer comes in between.

use std::sync::Arc;

use crate::{
    flags::Flags,
    memory_region::MemoryRegion,
    transport::Arrival,
    wire::{self, Kind},
};

/// An operation of which a segment was done, or refused, and more are to come.
#[derive(Debug)]
pub struct Several {
    /// The peer's name for it.
    operation: u64,
    /// Its initiator was told of a refusal: what follows is not done, nor counted.
    refused: bool,
    /// What has been done. Units: bytes.
    bytes: u64,
    /// Regions that count what was done to them: once, and when no more comes of it.
    counting: Vec<(Arc<MemoryRegion>, Flags)>,
}

/// What is known of the operation that a peer is in the middle of.
pub type InTheMiddle = Option<Box<Several>>;

/// Whether a packet is its operation's last.
#[inline(always)]
pub fn is_last(arrival: &Arrival) -> bool {
    arrival.head.flags & wire::LAST != 0
}

/// Whether remote data comes with the packet of a write.
#[inline(always)]
pub fn carries_data(arrival: &Arrival) -> bool {
    arrival.head.kind == Kind::WriteData as u8 || arrival.head.flags & wire::DATA != 0
}

impl Several {
    fn of(operation: u64, refused: bool) -> Box<Several> {
        Box::new(Several { operation, refused, bytes: 0, counting: Vec::new() })
    }

    /// Whether a packet is of an operation that was refused: nobody waits for it any more.
    #[inline(always)]
    pub fn was_refused(known: &mut InTheMiddle, arrival: &Arrival) -> bool {
        known.is_some() && Several::goes_on(known, arrival)
    }

    #[cold]
    #[inline(never)]
    fn goes_on(known: &mut InTheMiddle, arrival: &Arrival) -> bool {
        if known.as_ref().is_some_and(|several| several.operation != arrival.word) {
            Several::give_up(known);
        }
        let refused = known.as_ref().is_some_and(|several| several.refused);
        if refused && is_last(arrival) {
            *known = None;
        }
        refused
    }

    /// No more comes of an operation: its initiator has given it up, or is gone. What was done is counted.
    #[cold]
    pub fn give_up(known: &mut InTheMiddle) {
        known.take().iter().for_each(|several| several.count());
    }

    /// A packet was refused, and its initiator is told.
    #[cold]
    #[inline(never)]
    pub fn refuse(known: &mut InTheMiddle, operation: u64, last: bool) {
        Several::give_up(known);
        *known = (!last).then(|| Several::of(operation, true));
    }

    /// Refuses what comes of an operation, if a peer is in the middle of it.
    #[cold]
    pub fn refuse_rest(known: &mut InTheMiddle, operation: u64) {
        if known.as_ref().is_some_and(|several| several.operation == operation) {
            Several::refuse(known, operation, false);
        }
    }

    /// A segment of `bytes` is done. Counts it, if it is all of its operation and tells no remote data: the entry
    /// comes before the count.
    #[inline(always)]
    pub fn note(
        known: &mut InTheMiddle,
        arrival: &Arrival,
        bytes: u64,
        region: &Arc<MemoryRegion>,
        kinds: Flags,
    ) {
        let tells_data = carries_data(arrival) && region.is_counted();
        if is_last(arrival) && known.is_none() && !tells_data {
            return region.count(kinds);
        }
        Several::keep(known, arrival.word, bytes, region, kinds);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn keep(
        known: &mut InTheMiddle,
        operation: u64,
        bytes: u64,
        region: &Arc<MemoryRegion>,
        kinds: Flags,
    ) {
        let several = known.get_or_insert_with(|| Several::of(operation, false));
        several.bytes = several.bytes.saturating_add(bytes);
        let is_known = |(known, _): &(Arc<MemoryRegion>, Flags)| Arc::ptr_eq(known, region);
        if region.is_counted() && !several.counting.iter().any(is_known) {
            several.counting.push((region.clone(), kinds));
        }
    }

    /// What has been done. Units: bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// No more comes of the operation: counts it.
    #[cold]
    #[inline(never)]
    pub fn count(&self) {
        self.counting.iter().for_each(|(region, kinds)| region.count(*kinds));
    }
}
