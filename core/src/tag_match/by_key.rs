//! Posted receives by something that no message asks for: what a cancel names them by, or whom alone they
//! are for.
//!
//! Nothing is kept of that where receives are posted and matched. Who asks looks at all of them; and when as
//! much was looked at as it takes to sort them, they are sorted. So he who cancels one pays for one look, and
//! he who cancels all of them does not look at all of them each time. What is sorted stays true of what was
//! posted by then: orders are unique, so a place that has another order by now is somebody else's.

use super::{expected::Posted, nodes::Nodes};

/// How often all places are looked at before what is in them is sorted.
const LOOKS_PER_SORT: usize = 16;

/// A receive that was posted when they were sorted.
#[derive(Debug)]
struct Entry {
    key: u64,
    order: u64,
    id: u32,
    /// Of the first with its key: from there on so many are not posted any more, itself included.
    gone: u32,
}

impl Entry {
    /// The receive, if it is still posted.
    fn receive(&self, nodes: &Nodes<Posted>) -> Option<u32> {
        let posted = nodes.as_slice()[self.id as usize];
        (posted.order == self.order).then_some(posted.receive)
    }
}

/// Receives by a key that each has, and keeps while it is posted.
#[derive(Debug, Default)]
pub(super) struct ByKey {
    /// By key, and by order where that is the same.
    entries: Vec<Entry>,
    /// How many had ever been posted when they were sorted.
    sorted_at: u64,
    /// Places that were looked at since.
    looked_at: usize,
}

impl ByKey {
    /// The earliest receive with `key` that is posted, of `count` that ever were.
    pub(super) fn earliest(
        &mut self,
        nodes: &Nodes<Posted>,
        count: u64,
        key: u64,
        key_of: impl Fn(&Posted) -> u64,
    ) -> Option<u32> {
        if nodes.len() == 0 {
            return None;
        }
        // Whatever was posted since they were sorted is later.
        let found = match self.first(nodes, key) {
            None if self.is_sorted(nodes, count, &key_of) => self.first(nodes, key),
            None => look_for_earliest(nodes, key, key_of),
            found => found,
        };
        self.give_room_back(nodes.len() == 1 && found.is_some());
        found
    }

    /// All receives with `key` that are posted, of `count` that ever were, in posting order.
    pub(super) fn all(
        &mut self,
        nodes: &Nodes<Posted>,
        count: u64,
        key: u64,
        key_of: impl Fn(&Posted) -> u64,
    ) -> Vec<u32> {
        if nodes.len() == 0 {
            return Vec::new();
        }
        let found = match self.is_sorted(nodes, count, &key_of) {
            true => self.all_sorted(nodes, key),
            false => look_for_all(nodes, key, key_of),
        };
        self.give_room_back(nodes.len() == found.len());
        found
    }

    /// Whether all of them are sorted by now. Otherwise all places are about to be looked at.
    fn is_sorted(
        &mut self,
        nodes: &Nodes<Posted>,
        count: u64,
        key_of: impl Fn(&Posted) -> u64,
    ) -> bool {
        if self.sorted_at == count {
            return true;
        }
        let places = nodes.as_slice().len();
        let is_due = self.looked_at >= LOOKS_PER_SORT * places;
        match is_due {
            true => self.sort(nodes, count, key_of),
            false => self.looked_at += places,
        }
        is_due
    }

    fn sort(&mut self, nodes: &Nodes<Posted>, count: u64, key_of: impl Fn(&Posted) -> u64) {
        (self.sorted_at, self.looked_at) = (count, 0);
        let entries = nodes.iter().map(|(id, posted)| {
            let (key, order) = (key_of(posted), posted.order);
            Entry { key, order, id, gone: 0 }
        });
        self.entries.clear();
        self.entries.extend(entries);
        self.entries.sort_unstable_by_key(|entry| (entry.key, entry.order));
    }

    fn place_of(&self, key: u64) -> usize {
        self.entries.partition_point(|entry| entry.key < key)
    }

    /// The first with `key` that is sorted, and still posted. What is gone is passed over once.
    fn first(&mut self, nodes: &Nodes<Posted>, key: u64) -> Option<u32> {
        let place = self.place_of(key);
        let gone = self.entries.get(place).filter(|first| first.key == key)?.gone as usize;
        let rest = self.entries[place + gone..].iter().take_while(|entry| entry.key == key);
        let mut passed = 0;
        let found = rest.map(|entry| entry.receive(nodes)).find(|receive| {
            passed += u32::from(receive.is_none());
            receive.is_some()
        });
        self.entries[place].gone += passed;
        found.flatten()
    }

    fn all_sorted(&self, nodes: &Nodes<Posted>, key: u64) -> Vec<u32> {
        let from = self.entries[self.place_of(key)..].iter();
        from.take_while(|entry| entry.key == key).filter_map(|entry| entry.receive(nodes)).collect()
    }

    /// They are sorted no more if all that are posted are about to go.
    fn give_room_back(&mut self, all_go: bool) {
        if all_go {
            *self = ByKey::default();
        }
    }
}

fn look_for_earliest(
    nodes: &Nodes<Posted>,
    key: u64,
    key_of: impl Fn(&Posted) -> u64,
) -> Option<u32> {
    let mut earliest: Option<&Posted> = None;
    for (_, posted) in nodes.iter() {
        let is_earlier = earliest.is_none_or(|earlier| posted.order < earlier.order);
        if is_earlier && key_of(posted) == key {
            earliest = Some(posted);
        }
    }
    earliest.map(|posted| posted.receive)
}

fn look_for_all(nodes: &Nodes<Posted>, key: u64, key_of: impl Fn(&Posted) -> u64) -> Vec<u32> {
    let same = nodes.iter().map(|(_, posted)| posted).filter(|posted| key_of(posted) == key);
    let mut found: Vec<&Posted> = same.collect();
    found.sort_unstable_by_key(|posted| posted.order);
    found.into_iter().map(|posted| posted.receive).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{super::nodes::Node, *};

    /// So many posted receives.
    fn posted(count: u32) -> Nodes<Posted> {
        let mut nodes = Nodes::<Posted>::with_capacity(0);
        for id in 0..count {
            nodes.occupy(id);
            let posted = &mut nodes.as_mut_slice()[id as usize];
            assert!(posted.is_vacant());
            (posted.order, posted.receive) = (u64::from(id + 1) << 8, id);
        }
        nodes
    }

    /// How often it is asked what a receive is called, for each, while all are taken off by `names`.
    fn asked(name_of: impl Fn(u32) -> u64, names: impl ExactSizeIterator<Item = u64>) -> usize {
        let (count, asked) = (names.len(), Cell::new(0_usize));
        let (mut nodes, mut by_name) = (posted(count as u32), ByKey::default());
        for name in names {
            let found = by_name.earliest(&nodes, count as u64, name, |posted| {
                asked.set(asked.get() + 1);
                name_of(posted.receive)
            });
            nodes.release(found.expect("it is posted"));
        }
        assert!(nodes.len() == 0 && by_name.entries.capacity() == 0);
        asked.get().div_ceil(count)
    }

    #[test]
    fn who_takes_all_off_does_not_look_at_all_each_time() {
        const COUNT: u32 = 1000;
        let own = |receive: u32| u64::from(receive);
        assert!(asked(own, (0..COUNT).map(own)) <= LOOKS_PER_SORT + 1, "in posting order");
        assert!(asked(own, (0..COUNT).rev().map(own)) <= LOOKS_PER_SORT + 1, "the last first");
        let mixed = (0..COUNT).map(|nth| own(nth * 7 % COUNT));
        assert!(asked(own, mixed) <= LOOKS_PER_SORT + 1, "in no order");
        assert!(asked(|_| 5, (0..COUNT).map(|_| 5)) <= LOOKS_PER_SORT + 1, "of one name");
    }

    #[test]
    fn what_is_gone_is_passed_over_once() {
        const COUNT: u32 = 100;
        let (mut nodes, mut by_name) = (posted(COUNT), ByKey::default());
        by_name.sort(&nodes, COUNT.into(), |_| 5);
        for next in 0..COUNT - 1 {
            let found = by_name.earliest(&nodes, COUNT.into(), 5, |_| panic!("they are sorted"));
            assert_eq!((found, by_name.entries[0].gone), (Some(next), next));
            nodes.release(next);
        }
        assert_eq!(by_name.earliest(&nodes, COUNT.into(), 6, |_| panic!("they are sorted")), None);
    }

    #[test]
    fn who_asks_for_each_in_turn_does_not_look_at_all_each_time() {
        const COUNT: usize = 1000;
        let (nodes, asked) = (posted(COUNT as u32), Cell::new(0));
        let mut by_source = ByKey::default();
        for source in 0..COUNT as u32 {
            let found = by_source.all(&nodes, COUNT as u64, source.into(), |posted| {
                asked.set(asked.get() + 1);
                posted.receive.into()
            });
            assert_eq!(found, [source]);
        }
        assert!(asked.get() <= (LOOKS_PER_SORT + 1) * COUNT, "{asked:?}");
    }
}
