//! The expected side: posted receives that wait for their message.

use super::class::{CLASS_COUNT_MAX, Class, ClassIndex};
use super::pool::Pool;
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

impl Posted {
    const BLANK: Posted =
        Posted { order: VACANT, tag: 0, source: 0, receive: 0, link: Link::UNLINKED };

    fn slot(&self) -> usize {
        self.order as usize & 0xff
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
        let posted = &self[id as usize];
        Key {
            tag: posted.tag,
            source: posted.source,
        }
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
    id: u32,
    bucket: usize,
}

/// All posted receives of one matcher.
#[derive(Debug)]
pub(super) struct Expected {
    pool: Pool<Posted>,
    index: ClassIndex,
    tables: [Table; CLASS_COUNT_MAX],
    /// One bit per slot whose table holds receives, and one for the overflow list.
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
            index: ClassIndex::new(),
            tables: [const { Table::new() }; CLASS_COUNT_MAX],
            live: 0,
            sequence: 0,
            overflow: Vec::new(),
            capacity,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.pool.len() as usize
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        source: SourceIndex,
        tag: u64,
        ignore: u64,
        receive: u32,
    ) -> PostedId {
        let class = Class::of(source, ignore);
        let key = class.key(source, tag);
        self.sequence += 1;
        let slot = match self.index.find(class) {
            Some(slot) => slot,
            None => match self.open(class) {
                Some(slot) => slot,
                None => return self.post_overflowing(class, key, receive),
            },
        };
        let order = self.sequence << 8 | slot as u64;
        let id = self.pool.claim().unwrap_or_else(|| self.pool.insert(Posted::BLANK));
        let node = &mut self.pool.nodes_mut()[id as usize];
        node.order = order;
        node.tag = key.tag;
        node.source = key.source;
        node.receive = receive;
        let table = &mut self.tables[slot];
        if table.is_full() {
            let len = table.len() as usize + 1;
            table.reserve(self.pool.nodes_mut(), len);
        }
        let bucket = table.bucket(key);
        table.append(self.pool.nodes_mut(), bucket, id);
        self.live |= 1 << slot;
        PostedId(id)
    }

    /// Finds a slot for a class that has none: an unused one, else one without receives.
    #[cold]
    #[inline(never)]
    fn open(&mut self, class: Class) -> Option<usize> {
        let slot = self.index.unused().or_else(|| {
            // Starting somewhere else each time keeps classes that take turns from always
            // ousting one another.
            let start = self.sequence as usize;
            (start..start + CLASS_COUNT_MAX)
                .map(|slot| slot % CLASS_COUNT_MAX)
                .find(|slot| self.live & 1 << slot == 0)
        })?;
        self.index.assign(slot, class);
        self.tables[slot].reserve(self.pool.nodes_mut(), self.capacity);
        Some(slot)
    }

    #[cold]
    #[inline(never)]
    fn post_overflowing(&mut self, class: Class, key: Key, receive: u32) -> PostedId {
        let order = self.sequence << 8 | OVERFLOW_SLOT as u64;
        let node = Posted {
            order,
            tag: key.tag,
            source: key.source,
            receive,
            link: Link::UNLINKED,
        };
        let id = self.pool.insert(node);
        self.overflow.push(Overflowing {
            order,
            class,
            key,
            id,
        });
        self.live |= 1 << OVERFLOW_SLOT;
        PostedId(id)
    }

    /// The earliest receive that matches a message from `source` with `tag`.
    #[inline]
    pub(super) fn find(&self, source: SourceIndex, tag: u64) -> Option<(PostedId, u32)> {
        let place = self.locate(source, tag)?;
        Some((
            PostedId(place.id),
            self.pool.nodes()[place.id as usize].receive,
        ))
    }

    /// Removes the earliest receive that matches a message from `source` with `tag`.
    #[inline]
    pub(super) fn take(&mut self, source: SourceIndex, tag: u64) -> Option<u32> {
        let place = self.locate(source, tag)?;
        Some(self.detach(place))
    }

    /// As `take`, but a sticky receive stays.
    #[inline]
    pub(super) fn take_unless_sticky(
        &mut self,
        source: SourceIndex,
        tag: u64,
    ) -> Option<(PostedId, u32)> {
        let place = self.locate(source, tag)?;
        let receive = self.pool.nodes()[place.id as usize].receive;
        if receive & STICKY == 0 {
            self.detach(place);
        }
        Some((PostedId(place.id), receive))
    }

    /// Removes the receive `id`.
    pub(super) fn remove(&mut self, PostedId(id): PostedId) -> u32 {
        let posted = self.pool.nodes()[id as usize];
        assert!(posted.order != VACANT, "receive {id} is not posted");
        let bucket = match self.tables.get(posted.slot()) {
            Some(table) => table.bucket(Key {
                tag: posted.tag,
                source: posted.source,
            }),
            None => NIL as usize,
        };
        self.detach(Place {
            order: posted.order,
            id,
            bucket,
        })
    }

    /// Probes every class that holds receives.
    #[inline]
    fn locate(&self, source: SourceIndex, tag: u64) -> Option<Place> {
        if self.live.is_power_of_two() && self.live != 1 << OVERFLOW_SLOT {
            return self.probe(self.live.trailing_zeros() as usize, source, tag);
        }
        self.locate_among_several(source, tag)
    }

    #[inline(never)]
    fn locate_among_several(&self, source: SourceIndex, tag: u64) -> Option<Place> {
        let mut earliest: Option<Place> = None;
        let mut rest = self.live;
        while rest != 0 {
            let slot = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let found = if slot == OVERFLOW_SLOT {
                self.probe_overflow(source, tag)
            } else {
                self.probe(slot, source, tag)
            };
            if let Some(place) = found
                && earliest.is_none_or(|earlier| place.order < earlier.order)
            {
                earliest = Some(place);
            }
        }
        earliest
    }

    #[inline]
    fn probe(&self, slot: usize, source: SourceIndex, tag: u64) -> Option<Place> {
        let key = self.index.class(slot).key(source, tag);
        let table = &self.tables[slot % CLASS_COUNT_MAX];
        let bucket = table.bucket(key);
        let id = table.find(self.pool.nodes(), bucket, key);
        if id == NIL {
            return None;
        }
        Some(Place {
            order: self.pool.nodes()[id as usize].order,
            id,
            bucket,
        })
    }

    #[cold]
    fn probe_overflow(&self, source: SourceIndex, tag: u64) -> Option<Place> {
        let found = self
            .overflow
            .iter()
            .find(|entry| entry.key.matches(entry.class.key(source, tag)))?;
        Some(Place {
            order: found.order,
            id: found.id,
            bucket: NIL as usize,
        })
    }

    /// Takes the receive at `place` out of its table and the pool.
    #[inline]
    fn detach(&mut self, place: Place) -> u32 {
        let slot = place.order as usize & 0xff;
        if slot == OVERFLOW_SLOT {
            self.detach_overflowing(place.order);
        } else {
            let table = &mut self.tables[slot % CLASS_COUNT_MAX];
            table.unlink(self.pool.nodes_mut(), place.bucket, place.id);
            self.live &= !(u32::from(table.len() == 0) << slot);
        }
        let posted = &mut self.pool.nodes_mut()[place.id as usize];
        posted.order = VACANT;
        let receive = posted.receive;
        self.pool.release(place.id);
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

    /// All receives in posting order. Cost: a scan of the pool and a sort.
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
