//! The unexpected side: parked messages that wait for their receive.

use super::class::{CLASS_COUNT_MAX, Class, ClassIndex};
use super::pool::Pool;
use super::table::{Chains, Key, Link, NIL, Table};
use super::{SourceIndex, UnexpectedId};

/// The order of a node that holds no message. No message reaches it.
const VACANT: u64 = u64::MAX;

/// A class is kept for at least this many messages after the last search for it.
const IDLE_MIN: u64 = 4096;

/// How often, in messages, parking looks for classes that nobody searches any more.
const SWEEP_INTERVAL: u64 = 1024;

/// One parked message.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Sequence number of its arrival.
    order: u64,
    tag: u64,
    source: u32,
    message: u32,
}

/// The messages as one class sees them.
#[derive(Debug)]
struct View {
    table: Table,
    /// By index of the message, as long as the pool or shorter.
    links: Vec<Link>,
    /// Value of `sequence` at the last search.
    searched_at: u64,
}

/// A view's links with the messages that they connect.
struct Chained<'a> {
    messages: &'a [Message],
    links: &'a mut [Link],
    class: Class,
}

impl Chains for Chained<'_> {
    #[inline]
    fn link(&self, id: u32) -> Link {
        self.links[id as usize]
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> &mut Link {
        &mut self.links[id as usize]
    }

    #[inline]
    fn key(&self, id: u32) -> Key {
        let message = &self.messages[id as usize];
        self.class.key(message.source, message.tag)
    }
}

/// All parked messages of one matcher.
///
/// A message cannot know which class of receive will ask for it, so it is linked into the table of
/// every class that was searched for lately. A class's table is built at its first search, and
/// dropped when many messages passed without another one.
#[derive(Debug)]
pub(super) struct Unexpected {
    pool: Pool<Message>,
    index: ClassIndex,
    views: [View; CLASS_COUNT_MAX],
    /// One bit per slot whose table holds all parked messages.
    live: u32,
    sequence: u64,
    /// Reused when a table is built: order and index of all messages.
    arrivals: Vec<(u64, u32)>,
    capacity: usize,
}

impl Unexpected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        const EMPTY: View = View {
            table: Table::new(),
            links: Vec::new(),
            searched_at: 0,
        };
        Unexpected {
            pool: Pool::with_capacity(capacity),
            index: ClassIndex::new(),
            views: [EMPTY; CLASS_COUNT_MAX],
            live: 0,
            sequence: 0,
            arrivals: Vec::new(),
            capacity,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.pool.len() as usize
    }

    #[inline]
    pub(super) fn park(&mut self, source: SourceIndex, tag: u64, message: u32) -> UnexpectedId {
        self.sequence += 1;
        if self.sequence % SWEEP_INTERVAL == 0 {
            self.retire_idle();
        }
        let id = self.pool.insert(Message {
            order: self.sequence,
            tag,
            source,
            message,
        });
        let mut rest = self.live;
        while rest != 0 {
            let slot = rest.trailing_zeros() as usize % CLASS_COUNT_MAX;
            rest &= rest - 1;
            let view = &mut self.views[slot];
            if view.table.is_full() || view.links.len() <= id as usize {
                view.grow(self.pool.nodes(), self.index.class(slot));
            }
            let class = self.index.class(slot);
            let bucket = view.table.bucket(class.key(source, tag));
            let mut chained = Chained {
                messages: self.pool.nodes(),
                links: &mut view.links,
                class,
            };
            view.table.append(&mut chained, bucket, id);
        }
        UnexpectedId(id)
    }

    /// The earliest message that a receive of `source`, `tag` and `ignore` matches.
    #[inline]
    pub(super) fn find(
        &mut self,
        source: SourceIndex,
        tag: u64,
        ignore: u64,
    ) -> Option<(UnexpectedId, u32)> {
        let id = self.locate(source, tag, ignore);
        if id == NIL {
            return None;
        }
        Some((UnexpectedId(id), self.pool.nodes()[id as usize].message))
    }

    /// Removes the earliest message that a receive of `source`, `tag` and `ignore` matches.
    #[inline]
    pub(super) fn take(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<u32> {
        let id = self.locate(source, tag, ignore);
        if id == NIL {
            return None;
        }
        Some(self.detach(id))
    }

    /// Removes the message `id`.
    #[inline]
    pub(super) fn remove(&mut self, UnexpectedId(id): UnexpectedId) -> u32 {
        assert!(
            self.pool.nodes()[id as usize].order != VACANT,
            "message {id} is not parked"
        );
        self.detach(id)
    }

    #[inline]
    fn locate(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> u32 {
        if self.pool.len() == 0 {
            return NIL;
        }
        let class = Class::of(source, ignore);
        let key = class.key(source, tag);
        let Some(slot) = self.index.find(class).or_else(|| self.open(class)) else {
            return self.scan(class, key);
        };
        let view = &mut self.views[slot];
        view.searched_at = self.sequence;
        let chained = Chained {
            messages: self.pool.nodes(),
            links: &mut view.links,
            class,
        };
        view.table.find(&chained, view.table.bucket(key), key)
    }

    #[inline]
    fn detach(&mut self, id: u32) -> u32 {
        let Message {
            source,
            tag,
            message,
            ..
        } = self.pool.nodes()[id as usize];
        let mut rest = self.live;
        while rest != 0 {
            let slot = rest.trailing_zeros() as usize % CLASS_COUNT_MAX;
            rest &= rest - 1;
            let class = self.index.class(slot);
            let view = &mut self.views[slot];
            let bucket = view.table.bucket(class.key(source, tag));
            let mut chained = Chained {
                messages: self.pool.nodes(),
                links: &mut view.links,
                class,
            };
            view.table.unlink(&mut chained, bucket, id);
        }
        self.pool.nodes_mut()[id as usize].order = VACANT;
        self.pool.release(id);
        message
    }

    /// Builds a table for a class that has none, in an unused slot or that of an idle class.
    #[cold]
    #[inline(never)]
    fn open(&mut self, class: Class) -> Option<usize> {
        let slot = self.index.unused().or_else(|| {
            self.retire_idle();
            self.index.unused()
        })?;
        self.index.assign(slot, class);
        self.live |= 1 << slot;
        self.collect_arrivals();
        let view = &mut self.views[slot];
        view.searched_at = self.sequence;
        view.links
            .resize(self.pool.nodes().len().max(self.capacity), Link::UNLINKED);
        let mut chained = Chained {
            messages: self.pool.nodes(),
            links: &mut view.links,
            class,
        };
        view.table
            .reserve(&mut chained, self.arrivals.len().max(self.capacity));
        for &(_, id) in &self.arrivals {
            let bucket = view.table.bucket(chained.key(id));
            view.table.append(&mut chained, bucket, id);
        }
        Some(slot)
    }

    /// Drops the classes that were not searched for while many messages arrived.
    ///
    /// Dropping and building again cost time in proportion to the table and the parked messages.
    /// The table's buckets bound both, so waiting for as many arrivals keeps the cost per message
    /// constant, and more classes than slots cannot oust one another at every search.
    #[cold]
    #[inline(never)]
    fn retire_idle(&mut self) {
        for (slot, view) in self.views.iter_mut().enumerate() {
            let idle = self.sequence - view.searched_at;
            if self.live & 1 << slot != 0 && idle > IDLE_MIN.max(view.table.bucket_count() as u64) {
                view.table.clear();
                self.index.retire(slot);
                self.live &= !(1 << slot);
            }
        }
    }

    /// The earliest match by looking at every message: for classes that find no slot.
    #[cold]
    #[inline(never)]
    fn scan(&self, class: Class, key: Key) -> u32 {
        (0u32..)
            .zip(self.pool.nodes())
            .filter(|(_, message)| message.order != VACANT)
            .filter(|(_, message)| class.key(message.source, message.tag).matches(key))
            .min_by_key(|(_, message)| message.order)
            .map_or(NIL, |(id, _)| id)
    }

    fn collect_arrivals(&mut self) {
        self.arrivals.clear();
        let parked = (0u32..)
            .zip(self.pool.nodes())
            .filter(|(_, message)| message.order != VACANT);
        self.arrivals
            .extend(parked.map(|(id, message)| (message.order, id)));
        // Nearly sorted already, unless messages were taken in a random order for long.
        self.arrivals.sort_unstable();
    }

    /// All messages in order of arrival. Cost: a scan of the pool and a sort.
    pub(super) fn iter(&self) -> impl Iterator<Item = (UnexpectedId, u32, SourceIndex)> + use<> {
        let mut parked: Vec<_> = (0u32..)
            .zip(self.pool.nodes())
            .filter(|(_, message)| message.order != VACANT)
            .map(|(id, message)| {
                (
                    message.order,
                    (UnexpectedId(id), message.message, message.source),
                )
            })
            .collect();
        parked.sort_unstable_by_key(|&(order, _)| order);
        parked.into_iter().map(|(_, entry)| entry)
    }
}

impl View {
    /// Makes room for one more message.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, messages: &[Message], class: Class) {
        if self.links.len() < messages.len() {
            // As long as the pool can get without moving, so that this is rare.
            self.links
                .resize((messages.len() + 1).next_power_of_two(), Link::UNLINKED);
        }
        let mut chained = Chained {
            messages,
            links: &mut self.links,
            class,
        };
        let len = self.table.len() as usize + 1;
        self.table.reserve(&mut chained, len);
    }
}
