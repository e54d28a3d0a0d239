//! The expected side: posted receives that wait for their message.

use super::bits::Bits;
use super::class::{CLASS_COUNT_MAX, Class, NO_SLOT, Slot, Slots};
use super::pool::{Node, Pool};
use super::table::{Chains, Key, Link, NIL, Table};
use super::{PostedId, STICKY, SourceIndex};

/// Set in `live` while the overflow list holds receives; also the slot that those carry.
const OVERFLOW_SLOT: usize = CLASS_COUNT_MAX;

/// The order of a node that is in no list. No receive reaches it, as it stands for 2^56 - 1.
const VACANT: u64 = u64::MAX;

/// One posted receive; half a cache line, so that a match touches one line of the pool.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Posted {
    /// Sequence number in the upper 56 bits, slot of the class in the lower 8. Sequence numbers
    /// are unique, so comparing orders compares them.
    order: u64,
    tag: u64,
    source: u32,
    receive: u32,
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
    pool: Pool<Posted>,
    slots: Slots<Table>,
    /// One bit per slot whose table may hold receives, and one for the overflow list if it does.
    ///
    /// A table's bit outlives its last receive until a message meets several bits: clearing it in
    /// every match would make each match wait for the one before, through this word.
    live: u32,
    sequence: u64,
    /// In posting order, searched from the front.
    overflow: Vec<Overflowing>,
    /// Room for this many receives is made when a slot is first used.
    capacity: usize,
}

impl Expected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Expected {
            pool: Pool::with_capacity(capacity),
            slots: Slots::new(Table::new),
            live: 0,
            sequence: 0,
            overflow: Vec::new(),
            capacity,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.pool.len()
    }

    #[inline(always)]
    pub(super) fn post(
        &mut self,
        source: SourceIndex,
        tag: u64,
        ignore: u64,
        receive: u32,
    ) -> PostedId {
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
        let id = self.pool.allocate();
        let nodes = self.pool.nodes_mut();
        let table = &mut self.slots.get_mut(slot).content;
        if table.is_full() {
            table.reserve(nodes, table.len() as usize + 1);
        }
        let link = table.append(nodes, table.bucket(key), id);
        let order = self.sequence << 8 | slot as u64;
        nodes[id as usize] = Posted::new(order, key, receive, link);
        self.live |= 1 << slot;
        PostedId(id)
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
        table.reserve(self.pool.nodes_mut(), self.capacity);
        slot
    }

    #[cold]
    #[inline(never)]
    fn post_overflowing(&mut self, class: Class, key: Key, receive: u32) -> PostedId {
        let order = self.sequence << 8 | OVERFLOW_SLOT as u64;
        let id = self.pool.allocate();
        self.pool.nodes_mut()[id as usize] = Posted::new(order, key, receive, Link::UNLINKED);
        self.overflow.push(Overflowing { order, class, key, id });
        self.live |= 1 << OVERFLOW_SLOT;
        PostedId(id)
    }

    /// The earliest receive that matches a message from `source` with `tag`.
    #[inline]
    pub(super) fn find(&self, source: SourceIndex, tag: u64) -> Option<(PostedId, u32)> {
        let place = match self.only_live_slot() {
            Some(slot) => self.probe(slot, source, tag)?,
            None => self.probe_all(source, tag).0?,
        };
        let receive = self.pool.nodes()[place.id as usize].receive;
        Some((PostedId(place.id), receive))
    }

    /// The earliest receive that matches a message from `source` with `tag`, removed unless it
    /// is sticky.
    #[inline(always)]
    pub(super) fn take(&mut self, source: SourceIndex, tag: u64) -> Option<(PostedId, u32)> {
        match self.only_live_slot() {
            Some(slot) => {
                let place = self.probe(slot, source, tag)?;
                Some(self.detach_unless_sticky(place))
            }
            None => self.take_among_several(source, tag),
        }
    }

    #[inline(always)]
    fn detach_unless_sticky(&mut self, place: Place) -> (PostedId, u32) {
        let receive = self.pool.nodes()[place.id as usize].receive;
        if receive & STICKY == 0 {
            self.detach(place);
        }
        (PostedId(place.id), receive)
    }

    #[inline(never)]
    fn take_among_several(&mut self, source: SourceIndex, tag: u64) -> Option<(PostedId, u32)> {
        let (found, vacant) = self.probe_all(source, tag);
        // A branch, so that the next match need not wait for this one's answer.
        if vacant != 0 {
            self.live &= !vacant;
        }
        Some(self.detach_unless_sticky(found?))
    }

    /// The tag of the receive `id`.
    pub(super) fn tag(&self, PostedId(id): PostedId) -> u64 {
        self.pool.nodes()[id as usize].tag
    }

    /// Removes the receive `id`.
    pub(super) fn remove(&mut self, PostedId(id): PostedId) -> u32 {
        let posted = self.pool.nodes()[id as usize];
        assert!(posted.order != VACANT, "receive {id} is not posted");
        let slot = posted.slot();
        // The overflow list has no buckets, and its slot is out of range; any table will do.
        let bucket = self.slots.get(slot).content.bucket(posted.key());
        let receive = self.detach(Place { order: posted.order, slot, bucket, id });
        if slot < CLASS_COUNT_MAX && self.slots.get(slot).content.len() == 0 {
            self.live &= !(1 << slot);
        }
        receive
    }

    #[inline(always)]
    fn only_live_slot(&self) -> Option<usize> {
        let slot = self.live.trailing_zeros() as usize;
        let others = self.live & self.live.wrapping_sub(1);
        (others == 0 && slot < CLASS_COUNT_MAX).then_some(slot)
    }

    /// The earliest match in the table of `slot`.
    #[inline(always)]
    fn probe(&self, slot: usize, source: SourceIndex, tag: u64) -> Option<Place> {
        let Slot { class, content: table } = self.slots.get(slot);
        let key = class.key(source, tag);
        let bucket = table.bucket(key);
        let id = table.find(self.pool.nodes(), bucket, key);
        if id == NIL {
            return None;
        }
        let order = self.pool.nodes()[id as usize].order;
        Some(Place { order, slot, bucket, id })
    }

    /// The earliest match in any class, and the bits in `live` of classes without receives.
    #[inline]
    fn probe_all(&self, source: SourceIndex, tag: u64) -> (Option<Place>, u32) {
        let mut earliest: Option<Place> = None;
        let mut vacant = 0;
        for slot in Bits(self.live) {
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

    /// Takes the receive at `place` out of its table and the pool.
    #[inline(always)]
    fn detach(&mut self, place: Place) -> u32 {
        let Place { order, slot, bucket, id } = place;
        let nodes = self.pool.nodes_mut();
        if slot != OVERFLOW_SLOT {
            self.slots.get_mut(slot).content.unlink(nodes, bucket, id);
        }
        let posted = &mut nodes[id as usize];
        posted.order = VACANT;
        let receive = posted.receive;
        self.pool.release(id);
        if slot == OVERFLOW_SLOT {
            self.detach_overflowing(order);
        }
        receive
    }

    #[cold]
    #[inline(never)]
    fn detach_overflowing(&mut self, order: u64) {
        let at = self.overflow.partition_point(|entry| entry.order < order);
        self.overflow.remove(at);
        if self.overflow.is_empty() {
            self.live &= !(1 << OVERFLOW_SLOT);
        }
    }

    /// All receives in posting order. Cost: a scan of the pool, an allocation and a sort.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PostedId, u32, SourceIndex)> + use<> {
        let mut posted: Vec<_> = (0u32..)
            .zip(self.pool.nodes())
            .filter(|(_, posted)| posted.order != VACANT)
            .map(|(id, posted)| (posted.order, (PostedId(id), posted.receive, posted.source)))
            .collect();
        posted.sort_unstable_by_key(|&(order, _)| order);
        posted.into_iter().map(|(_, entry)| entry)
    }
}
