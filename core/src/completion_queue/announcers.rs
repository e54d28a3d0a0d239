//! Announcements in a queue: entries that lead to memory of the endpoint that announces, and so go with
//! it. Reference: fi_endpoint(3), `fi_close`: "a provider may discard previously completed operations
//! from the associated completion queue(s)"; fi_msg(3), "Buffered Receives".
//!
//! A reader may take the entries of others in any order beside, so none is looked for when an endpoint
//! closes: whoever takes an announcement looks whether its announcer is still there.

use std::{collections::HashSet, sync::Arc};

use arc_swap::ArcSwap;

use super::{entry::Entry, store::CompletionStore};

/// The flag of an entry that is an announcement, and above which bit its announcer's number is: no
/// announcement has operation flags there.
pub(super) const ANNOUNCEMENT_MARK: u64 = 1 << 62;
const NUMBER_SHIFT: u32 = 32;
const NUMBER_MASK: u64 = (1 << 24) - 1;

/// Who announces in a queue. Nobody who reads waits for who comes or goes.
#[derive(Default)]
pub(super) struct Announcers(ArcSwap<Open>);

#[derive(Clone, Default)]
struct Open {
    last: u64,
    numbers: HashSet<u64>,
}

impl Open {
    /// Takes the next number that is free, of sixteen millions.
    fn take(&mut self) -> u64 {
        loop {
            self.last = (self.last + 1) & NUMBER_MASK;
            if self.numbers.insert(self.last) {
                return self.last;
            }
        }
    }
}

impl Announcers {
    fn enter(&self) -> u64 {
        let mut number = 0;
        self.0.rcu(|open| {
            let mut open = Open::clone(open);
            number = open.take();
            open
        });
        number
    }

    fn leave(&self, number: u64) {
        self.0.rcu(|open| {
            let mut open = Open::clone(open);
            open.numbers.remove(&number);
            open
        });
    }

    /// Makes an entry of the queue what the reader sees. False: its announcer is gone.
    pub(super) fn reveal(&self, entry: &mut Entry) -> bool {
        let number = entry.flags >> NUMBER_SHIFT & NUMBER_MASK;
        entry.flags &= !(ANNOUNCEMENT_MARK | NUMBER_MASK << NUMBER_SHIFT);
        self.0.load().numbers.contains(&number)
    }
}

/// An endpoint that announces messages in a queue. Once it is dropped, nobody is given its announcements.
pub(crate) struct Announcer {
    store: Arc<CompletionStore>,
    number: u64,
}

impl Announcer {
    pub(crate) fn new(store: &Arc<CompletionStore>) -> Announcer {
        Announcer { store: store.clone(), number: store.announcers().enter() }
    }

    pub(crate) fn announce(&self, mut entry: Entry) {
        entry.flags |= ANNOUNCEMENT_MARK | self.number << NUMBER_SHIFT;
        self.store.push_marked(entry);
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.store.announcers().leave(self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::RawFd;

    use super::*;
    use crate::{completion_queue::store::Head, domain::Sharing, transport::Bell};

    struct Silent;

    impl Bell for Silent {
        fn ring(&self) {}
        fn drain(&self) {}
        fn fd(&self) -> RawFd {
            -1
        }
    }

    #[test]
    fn announcements_go_with_who_announced_them() {
        for sharing in [Sharing::Exclusive, Sharing::Shared] {
            let store = Arc::new(CompletionStore::new(sharing, 4, Box::new(Silent)));
            let [stays, goes] = [(); 2].map(|()| Announcer::new(&store));
            let entry = |context| Entry { context, flags: 1 << 10, ..Entry::default() };
            for context in 0..30 {
                match context % 3 {
                    0 => store.push(entry(context)),
                    1 => goes.announce(entry(context)),
                    _ => stays.announce(entry(context)),
                }
            }
            drop(goes);
            let mut read = Vec::new();
            let mut entries = [(); 4].map(|()| Entry::default());
            while let Head::Taken(count) = store.pop(&mut entries) {
                read.extend(entries[..count].iter().map(|entry| (entry.context, entry.flags)));
                store.pop_each(3, |_, entry| read.push((entry.context, entry.flags)));
            }
            let left = (0..30).filter(|context| context % 3 != 1).map(|context| (context, 1 << 10));
            assert_eq!(read, left.collect::<Vec<_>>());
        }
    }
}
