//! The unexpected side: parked messages that wait for their receive.

use super::SourceIndex;
use super::bits::Bits;
use super::class::{CLASS_COUNT_MAX, Class, NO_SLOT, Slot, Slots};
use super::nodes::{Node, Nodes};
use super::table::{Chains, Key, Link, NIL, Table};

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
}

impl Node for Message {
    const VACANT: Message = Message { order: VACANT, tag: 0, source: 0 };

    fn is_vacant(&self) -> bool {
        self.order == VACANT
    }

    fn vacate(&mut self) {
        self.order = VACANT;
    }
}

/// The messages as one class sees them.
#[derive(Debug)]
struct View {
    table: Table,
    /// By index of the message, as many as there are places or fewer.
    links: Box<[Link]>,
}

const _: () = assert!(size_of::<Slot<View>>() == 64);

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

/// Where a message was found, so that taking it need not look again.
#[derive(Clone, Copy)]
struct Place {
    slot: usize,
    bucket: usize,
    id: u32,
}

/// All parked messages of one matcher.
///
/// A message cannot know which class of receive will ask for it, so it is linked into the table of
/// every class that was searched for lately. A class's table is built at its first search, and
/// dropped when many messages passed without another one.
#[derive(Debug)]
pub(super) struct Unexpected {
    nodes: Nodes<Message>,
    slots: Slots<View>,
    /// One bit per slot whose table holds all parked messages.
    live: u32,
    sequence: u64,
    /// By slot: the value of `sequence` at the last search.
    searched_at: [u64; CLASS_COUNT_MAX],
    /// Reused when a table is built: order and index of all messages.
    arrivals: Vec<(u64, u32)>,
    capacity: usize,
}

impl Unexpected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Unexpected {
            nodes: Nodes::with_capacity(capacity),
            slots: Slots::new(View::new),
            live: 0,
            sequence: 0,
            searched_at: [0; CLASS_COUNT_MAX],
            arrivals: Vec::new(),
            capacity,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the message `id` is parked.
    pub(super) fn holds(&self, id: u32) -> bool {
        self.nodes.holds(id)
    }

    /// What parking `message` makes this grow by: mostly nothing. Units: bytes.
    #[inline]
    pub(super) fn growth(&self, message: u32) -> usize {
        let nodes = self.nodes.growth(message);
        let places = self.nodes.as_slice().len().max(nodes / size_of::<Message>());
        let of_view = |slot| self.slots.get(slot).content.growth(message, places);
        nodes + Bits(self.live).map(of_view).sum::<usize>()
    }

    #[inline]
    pub(super) fn park(&mut self, source: SourceIndex, tag: u64, message: u32) {
        self.sequence += 1;
        if self.sequence.is_multiple_of(SWEEP_INTERVAL) {
            self.retire_idle();
        }
        let (id, order) = (message, self.sequence);
        self.nodes.occupy(id);
        self.nodes.as_mut_slice()[id as usize] = Message { order, tag, source };
        for slot in Bits(self.live) {
            let Slot { class, content: view } = self.slots.get_mut(slot);
            if view.table.is_full() || view.links.len() <= id as usize {
                view.grow(self.nodes.as_slice(), *class);
            }
            let bucket = view.table.bucket(class.key(source, tag));
            let (table, mut chained) = view.chained(self.nodes.as_slice(), *class);
            let link = table.append(&mut chained, bucket, id);
            *chained.link_mut(id) = link;
        }
    }

    /// The earliest message that a receive of `source`, `tag` and `ignore` matches.
    #[inline]
    pub(super) fn find(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<u32> {
        Some(self.locate(source, tag, ignore)?.id)
    }

    /// Removes the earliest message that a receive of `source`, `tag` and `ignore` matches.
    #[inline]
    pub(super) fn take(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<u32> {
        let Place { slot, bucket, id } = self.locate(source, tag, ignore)?;
        if self.live != 1 << slot {
            self.detach(id);
            return Some(id);
        }
        let Slot { class, content: view } = self.slots.get_mut(slot);
        let (table, mut chained) = view.chained(self.nodes.as_slice(), *class);
        table.unlink(&mut chained, bucket, id);
        self.nodes.release(id);
        Some(id)
    }

    /// Removes the message `id`.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        assert!(self.holds(id), "message {id} is not parked");
        self.detach(id);
    }

    #[inline]
    fn locate(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<Place> {
        if self.nodes.len() == 0 {
            return None;
        }
        let class = Class::of(source, ignore);
        let key = Key { tag: tag & !ignore, source };
        let mut slot = self.slots.find(class);
        if slot == NO_SLOT {
            slot = self.open(class);
            if slot == NO_SLOT {
                return self.scan(class, key);
            }
        }
        self.searched_at[slot % CLASS_COUNT_MAX] = self.sequence;
        let view = &mut self.slots.get_mut(slot).content;
        let (table, chained) = view.chained(self.nodes.as_slice(), class);
        let bucket = table.bucket(key);
        let id = table.find(&chained, bucket, key);
        (id != NIL).then_some(Place { slot, bucket, id })
    }

    /// Takes the message `id` out of every table and its place.
    fn detach(&mut self, id: u32) {
        let Message { source, tag, .. } = self.nodes.as_slice()[id as usize];
        for slot in Bits(self.live) {
            let Slot { class, content: view } = self.slots.get_mut(slot);
            let bucket = view.table.bucket(class.key(source, tag));
            let (table, mut chained) = view.chained(self.nodes.as_slice(), *class);
            table.unlink(&mut chained, bucket, id);
        }
        self.nodes.release(id);
    }

    /// Builds a table for a class that has none, in an unused slot or that of an idle class.
    #[cold]
    #[inline(never)]
    fn open(&mut self, class: Class) -> usize {
        let mut unused = self.slots.unused();
        if unused.is_none() {
            self.retire_idle();
            unused = self.slots.unused();
        }
        let Some(slot) = unused else { return NO_SLOT };
        self.live |= 1 << slot;
        self.collect_arrivals();
        let view = self.slots.assign(slot, class);
        self.searched_at[slot % CLASS_COUNT_MAX] = self.sequence;
        view.reserve_links(self.nodes.as_slice().len());
        let (table, mut chained) = view.chained(self.nodes.as_slice(), class);
        table.reserve(&mut chained, self.arrivals.len().max(self.capacity));
        for &(_, id) in &self.arrivals {
            let bucket = table.bucket(chained.key(id));
            let link = table.append(&mut chained, bucket, id);
            *chained.link_mut(id) = link;
        }
        slot
    }

    /// Drops the classes that were not searched for while many messages arrived.
    ///
    /// Dropping and building again cost time in proportion to the table and the parked messages.
    /// The table's buckets bound both, so waiting for as many arrivals keeps the cost per message
    /// constant, and more classes than slots cannot oust one another at every search.
    #[cold]
    #[inline(never)]
    fn retire_idle(&mut self) {
        for slot in 0..CLASS_COUNT_MAX {
            let view = &mut self.slots.get_mut(slot).content;
            let idle = self.sequence - self.searched_at[slot];
            let idle_max = IDLE_MIN.max(view.table.bucket_count() as u64);
            if self.live & 1 << slot != 0 && idle > idle_max {
                view.table.clear();
                self.slots.retire(slot);
                self.live &= !(1 << slot);
            }
        }
    }

    /// The earliest match by looking at every message: for classes that find no slot.
    #[cold]
    #[inline(never)]
    fn scan(&self, class: Class, key: Key) -> Option<Place> {
        self.nodes
            .iter()
            .filter(|(_, message)| class.key(message.source, message.tag).matches(key))
            .min_by_key(|(_, message)| message.order)
            .map(|(id, _)| Place { slot: CLASS_COUNT_MAX, bucket: 0, id })
    }

    fn collect_arrivals(&mut self) {
        self.arrivals.clear();
        self.arrivals.extend(self.nodes.iter().map(|(id, message)| (message.order, id)));
        // Nearly sorted already, unless messages were taken in a random order for long.
        self.arrivals.sort_unstable();
    }

    /// All messages in order of arrival. Cost: a look at every place, an allocation and a sort.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, SourceIndex)> + use<> {
        let mut parked: Vec<_> =
            self.nodes.iter().map(|(id, message)| (message.order, (id, message.source))).collect();
        parked.sort_unstable_by_key(|&(order, _)| order);
        parked.into_iter().map(|(_, entry)| entry)
    }
}

impl View {
    fn new() -> Self {
        View { table: Table::new(), links: Box::new([]) }
    }

    /// The table, and the chains that its methods want.
    #[inline]
    fn chained<'a>(
        &'a mut self,
        messages: &'a [Message],
        class: Class,
    ) -> (&'a mut Table, Chained<'a>) {
        let View { table, links } = self;
        (table, Chained { messages, links, class })
    }

    /// What one more message makes the view grow by, where there are so many places for messages. Units:
    /// bytes.
    #[inline]
    fn growth(&self, message: u32, places: usize) -> usize {
        if !self.table.is_full() && (message as usize) < self.links.len() {
            return 0;
        }
        places * size_of::<Link>() + self.table.growth(self.table.len() as usize + 1)
    }

    /// Makes room for one more message.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, messages: &[Message], class: Class) {
        self.reserve_links(messages.len());
        let (table, mut chained) = self.chained(messages, class);
        table.reserve(&mut chained, table.len() as usize + 1);
    }

    fn reserve_links(&mut self, len: usize) {
        if self.links.len() < len {
            let mut links = std::mem::take(&mut self.links).into_vec();
            links.resize(len, Link::UNLINKED);
            self.links = links.into_boxed_slice();
        }
    }
}
