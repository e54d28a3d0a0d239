//! The expected side: posted receives that wait for their message.

use super::by_key::ByKey;
use super::class::{CLASS_COUNT_MAX, Class, NO_SLOT, Slot, Slots};
use super::live::{Live, OVERFLOW_SLOT};
use super::nodes::{Node, Nodes};
use super::recent::Recent;
use super::table::{Chains, Key, Link, NIL, Table};
use super::{STICKY, SourceIndex};

/// The order of a node that is in no list. No receive reaches it, as it stands for 2^56 - 1.
const VACANT: u64 = u64::MAX;

/// One posted receive; half a cache line, so that a match touches one line of them.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Posted {
    /// Sequence number in the upper 56 bits, slot of the class in the lower 8. Sequence numbers
    /// are unique, so comparing orders compares them.
    pub(super) order: u64,
    tag: u64,
    source: u32,
    pub(super) receive: u32,
    link: Link,
}

const _: () = assert!(size_of::<Posted>() == 32 && size_of::<Slot<Table>>() == 64);

impl Posted {
    #[inline]
    fn new(order: u64, key: Key, receive: u32, link: Link) -> Posted {
        let Key { tag, source } = key;
        Posted { order, tag, source, receive, link }
    }

    #[inline]
    fn key(&self) -> Key {
        Key { tag: self.tag, source: self.source }
    }

    fn slot(&self) -> usize {
        self.order as usize & 0xff
    }
}

impl Node for Posted {
    const VACANT: Posted =
        Posted { order: VACANT, tag: 0, source: 0, receive: 0, link: Link::UNLINKED };

    fn is_vacant(&self) -> bool {
        self.order == VACANT
    }

    fn vacate(&mut self) {
        self.order = VACANT;
    }
}

impl Chains for [Posted] {
    #[inline]
    fn link(&self, id: u32) -> Link {
        self[id as usize].link
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> &mut Link {
        &mut self[id as usize].link
    }

    #[inline]
    fn key(&self, id: u32) -> Key {
        self[id as usize].key()
    }
}

/// A receive of a class that found no slot.
#[derive(Debug)]
struct Overflowing {
    order: u64,
    class: Class,
    key: Key,
    id: u32,
}

/// Where a receive was found, so that taking it need not look again.
#[derive(Clone, Copy)]
struct Place {
    order: u64,
    slot: usize,
    bucket: usize,
    id: u32,
}

/// All posted receives of one matcher.
#[derive(Debug)]
pub(super) struct Expected {
    nodes: Nodes<Posted>,
    slots: Slots<Table>,
    /// By slot.
    recent: [Recent; CLASS_COUNT_MAX],
    live: Live,
    /// How many were ever posted.
    sequence: u64,
    /// In posting order, searched from the front.
    overflow: Vec<Overflowing>,
    /// Room for this many receives is made when a slot is first used.
    capacity: usize,
    /// By what cancels name them by.
    by_name: ByKey,
    by_source: ByKey,
}

impl Expected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Expected {
            nodes: Nodes::with_capacity(capacity),
            slots: Slots::new(Table::new),
            recent: [Recent::NONE; CLASS_COUNT_MAX],
            live: Live::NONE,
            sequence: 0,
            overflow: Vec::new(),
            capacity,
            by_name: ByKey::default(),
            by_source: ByKey::default(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a receive is posted.
    pub(super) fn holds(&self, receive: u32) -> bool {
        self.nodes.holds(receive & !STICKY)
    }

    #[inline(always)]
    pub(super) fn post(&mut self, source: SourceIndex, tag: u64, ignore: u64, receive: u32) {
        let class = Class::of(source, ignore);
        let key = Key { tag: tag & !ignore, source };
        self.sequence += 1;
        let mut slot = self.slots.find(class);
        if slot == NO_SLOT {
            slot = self.open(class);
            if slot == OVERFLOW_SLOT {
                return self.post_overflowing(class, key, receive);
            }
        }
        let id = receive & !STICKY;
        self.nodes.occupy(id);
        let nodes = self.nodes.as_mut_slice();
        let table = &mut self.slots.get_mut(slot).content;
        let recent = &mut self.recent[slot % CLASS_COUNT_MAX];
        if table.is_full() {
            table.reserve(nodes, table.len() as usize + 1);
            recent.renew(table);
        }
        let link = table.append(nodes, recent.bucket(table, key), id);
        let order = self.sequence << 8 | slot as u64;
        nodes[id as usize] = Posted::new(order, key, receive, link);
        self.live.mark(slot);
    }

    /// Finds a slot for a class that has none: an unused one, else one without receives.
    #[cold]
    #[inline(never)]
    fn open(&mut self, class: Class) -> usize {
        let found = self.slots.unused().or_else(|| {
            // Starting somewhere else each time keeps classes that take turns from always
            // ousting one another.
            let start = self.sequence as usize;
            (start..start + CLASS_COUNT_MAX)
                .map(|slot| slot % CLASS_COUNT_MAX)
                .find(|&slot| self.slots.get(slot).content.len() == 0)
        });
        let Some(slot) = found else {
            return OVERFLOW_SLOT;
        };
        let table = self.slots.assign(slot, class);
        table.reserve(self.nodes.as_mut_slice(), self.capacity);
        self.recent[slot].renew(table);
        slot
    }

    #[cold]
    #[inline(never)]
    fn post_overflowing(&mut self, class: Class, key: Key, receive: u32) {
        let order = self.sequence << 8 | OVERFLOW_SLOT as u64;
        let id = receive & !STICKY;
        self.nodes.occupy(id);
        self.nodes.as_mut_slice()[id as usize] = Posted::new(order, key, receive, Link::UNLINKED);
        self.overflow.push(Overflowing { order, class, key, id });
        self.live.mark(OVERFLOW_SLOT);
    }

    /// The earliest receive that matches a message from `source` with `tag`.
    #[inline]
    pub(super) fn find(&self, source: SourceIndex, tag: u64) -> Option<u32> {
        let place = match self.live.sole() {
            NO_SLOT => self.probe_all(source, tag).0?,
            slot => self.probe(slot, source, tag)?,
        };
        Some(self.nodes.as_slice()[place.id as usize].receive)
    }

    /// The earliest receive that matches a message from `source` with `tag`, removed unless it
    /// is sticky.
    #[inline(always)]
    pub(super) fn take(&mut self, source: SourceIndex, tag: u64) -> Option<u32> {
        match self.live.sole() {
            NO_SLOT => self.take_among_several(source, tag),
            slot => self.take_from(slot, source, tag),
        }
    }

    /// The same of one class. Most often it is the first of its bucket.
    #[inline(always)]
    fn take_from(&mut self, slot: usize, source: SourceIndex, tag: u64) -> Option<u32> {
        let Slot { class, content: table } = self.slots.get_mut(slot);
        let key = class.key(source, tag);
        let bucket = self.recent[slot % CLASS_COUNT_MAX].bucket(table, key);
        let id = table.first(bucket);
        if id == NIL {
            return None;
        }
        let posted = &self.nodes.as_slice()[id as usize];
        if !posted.key().matches(key) {
            return self.take_behind_first(slot, source, tag);
        }
        let receive = posted.receive;
        if receive & STICKY == 0 {
            self.nodes.release(id);
            table.unlink_first(self.nodes.as_mut_slice(), bucket, id);
        }
        Some(receive)
    }

    #[inline(never)]
    fn take_behind_first(&mut self, slot: usize, source: SourceIndex, tag: u64) -> Option<u32> {
        let place = self.probe(slot, source, tag)?;
        Some(self.detach_unless_sticky(place))
    }

    #[inline(always)]
    fn detach_unless_sticky(&mut self, place: Place) -> u32 {
        let receive = self.nodes.as_slice()[place.id as usize].receive;
        if receive & STICKY == 0 {
            self.detach(place);
        }
        receive
    }

    #[inline(never)]
    fn take_among_several(&mut self, source: SourceIndex, tag: u64) -> Option<u32> {
        let (found, vacant) = self.probe_all(source, tag);
        // A branch, so that the next match need not wait for this one's answer.
        if vacant != 0 {
            self.live.clear(vacant);
        }
        Some(self.detach_unless_sticky(found?))
    }

    /// The tag of a receive.
    pub(super) fn tag(&self, receive: u32) -> u64 {
        self.nodes.as_slice()[(receive & !STICKY) as usize].tag
    }

    /// Removes a receive.
    pub(super) fn remove(&mut self, receive: u32) {
        let id = receive & !STICKY;
        let posted = self.nodes.as_slice()[id as usize];
        assert!(!posted.is_vacant(), "receive {id} is not posted");
        let slot = posted.slot();
        // The overflow list has no buckets, and its slot is out of range; any table will do.
        let bucket = self.slots.get(slot).content.bucket(posted.key());
        self.detach(Place { order: posted.order, slot, bucket, id });
        if slot < CLASS_COUNT_MAX && self.slots.get(slot).content.len() == 0 {
            self.live.clear(1 << slot);
        }
    }

    /// The earliest match in the table of `slot`.
    #[inline(always)]
    fn probe(&self, slot: usize, source: SourceIndex, tag: u64) -> Option<Place> {
        let Slot { class, content: table } = self.slots.get(slot);
        let key = class.key(source, tag);
        let bucket = table.bucket(key);
        let id = table.find(self.nodes.as_slice(), bucket, key);
        if id == NIL {
            return None;
        }
        let order = self.nodes.as_slice()[id as usize].order;
        Some(Place { order, slot, bucket, id })
    }

    /// The earliest match in any class, and the bits in `live` of classes without receives.
    #[inline]
    fn probe_all(&self, source: SourceIndex, tag: u64) -> (Option<Place>, u32) {
        let mut earliest: Option<Place> = None;
        let mut vacant = 0;
        for slot in self.live.slots() {
            let found = if slot == OVERFLOW_SLOT {
                self.probe_overflow(source, tag)
            } else if self.slots.get(slot).content.len() == 0 {
                vacant |= 1 << slot;
                None
            } else {
                self.probe(slot, source, tag)
            };
            if let Some(place) = found
                && earliest.is_none_or(|earlier| place.order < earlier.order)
            {
                earliest = Some(place);
            }
        }
        (earliest, vacant)
    }

    #[cold]
    fn probe_overflow(&self, source: SourceIndex, tag: u64) -> Option<Place> {
        let fits = |entry: &&Overflowing| entry.key.matches(entry.class.key(source, tag));
        let found = self.overflow.iter().find(fits)?;
        Some(Place { order: found.order, slot: OVERFLOW_SLOT, bucket: 0, id: found.id })
    }

    /// Takes the receive at `place` out of its table and its place.
    #[inline(always)]
    fn detach(&mut self, place: Place) {
        let Place { order, slot, bucket, id } = place;
        // Its link stays.
        self.nodes.release(id);
        if slot == OVERFLOW_SLOT {
            return self.detach_overflowing(order);
        }
        let table = &mut self.slots.get_mut(slot).content;
        table.unlink(self.nodes.as_mut_slice(), bucket, id);
    }

    #[cold]
    #[inline(never)]
    fn detach_overflowing(&mut self, order: u64) {
        let at = self.overflow.partition_point(|entry| entry.order < order);
        self.overflow.remove(at);
        if self.overflow.is_empty() {
            self.live.clear(1 << OVERFLOW_SLOT);
        }
    }

    /// The earliest receive with `name`.
    pub(super) fn earliest(&mut self, name: u64, name_of: impl Fn(u32) -> u64) -> Option<u32> {
        let name_of = |posted: &Posted| name_of(posted.receive);
        self.by_name.earliest(&self.nodes, self.sequence, name, name_of)
    }

    /// All receives from `source` alone, in posting order. Without a look where there are none from
    /// anybody alone.
    pub(super) fn from(&mut self, source: SourceIndex) -> Vec<u32> {
        let is_directed = |slot: usize| {
            let Slot { class, content: table } = self.slots.get(slot);
            slot == OVERFLOW_SLOT || class.names_source() && table.len() > 0
        };
        if !self.live.slots().any(is_directed) {
            return Vec::new();
        }
        let source_of = |posted: &Posted| u64::from(posted.source);
        self.by_source.all(&self.nodes, self.sequence, u64::from(source), source_of)
    }

    /// All receives in posting order. Cost: a look at every place, an allocation and a sort.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, SourceIndex)> + use<> {
        let mut posted: Vec<_> = self
            .nodes
            .iter()
            .map(|(_, posted)| (posted.order, (posted.receive, posted.source)))
            .collect();
        posted.sort_unstable_by_key(|&(order, _)| order);
        posted.into_iter().map(|(_, entry)| entry)
    }
}
