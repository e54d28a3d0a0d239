//! Pools: records that live at a small index, so that an operation is named by
//! a number that can cross the wire and come back stale without harm.

/// A pool of records. Indices are reused, last freed first, and in memory order again once none was in
/// use: whoever posts many after that walks through memory. Each reuse has a new generation. Memory grows by
/// doubling up to the most that was ever in use and is kept, so the steady state allocates
/// nothing.
pub struct Pool<R> {
    records: Vec<Slot<R>>,
    /// The list of those that were freed.
    free: u32,
    /// From here on none was handed out since none was in use.
    fresh: u32,
    used: u32,
}

struct Slot<R> {
    generation: u32,
    next_free: u32,
    record: Option<R>,
}

impl<R> Slot<R> {
    /// Puts a record into a free slot. An assignment would look whether there is one to drop.
    #[inline(always)]
    fn fill(&mut self, record: R) {
        debug_assert!(self.record.is_none());
        std::mem::forget(self.record.replace(record));
    }
}

const NONE: u32 = u32::MAX;

impl<R> Default for Pool<R> {
    fn default() -> Self {
        Pool::with_capacity(0)
    }
}

impl<R> Pool<R> {
    /// A pool with memory for `capacity` records.
    pub fn with_capacity(capacity: usize) -> Self {
        Pool { records: Vec::with_capacity(capacity), free: NONE, fresh: 0, used: 0 }
    }

    /// Makes sure that there is memory for `capacity` records.
    pub fn reserve(&mut self, capacity: usize) {
        self.records.reserve(capacity.saturating_sub(self.records.len()));
    }

    /// The index that the next record gets.
    #[inline(always)]
    pub fn next_index(&self) -> u32 {
        if self.free == NONE { self.fresh } else { self.free }
    }

    /// What the next record makes the pool grow by: mostly nothing. Units: bytes.
    #[inline(always)]
    pub fn growth(&self) -> usize {
        let (index, capacity) = (self.next_index() as usize, self.records.capacity());
        if index < capacity { 0 } else { (2 * capacity).max(4) * size_of::<Slot<R>>() }
    }

    /// Records in use.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.used as usize
    }

    /// Whether no record is in use.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Puts a record in and returns its index.
    #[inline(always)]
    pub fn insert(&mut self, record: R) -> u32 {
        self.used += 1;
        let index = self.free;
        if let Some(slot) = self.records.get_mut(index as usize) {
            self.free = slot.next_free;
            slot.fill(record);
            return index;
        }
        let index = self.fresh;
        self.fresh += 1;
        match self.records.get_mut(index as usize) {
            Some(slot) => slot.fill(record),
            None => {
                self.records.push(Slot { generation: 0, next_free: NONE, record: Some(record) })
            }
        }
        index
    }

    /// The record at `index` is gone.
    #[inline(always)]
    fn free(&mut self, index: u32) {
        let slot = &mut self.records[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_free = self.free;
        self.free = index;
        self.used -= 1;
        if self.used == 0 {
            (self.free, self.fresh) = (NONE, 0);
        }
    }

    /// Takes the record at `index` out. Panics if there is none: an index inside
    /// the engine that names nothing is a bug.
    #[inline(always)]
    pub fn remove(&mut self, index: u32) -> R {
        let slot = &mut self.records[index as usize];
        let record = slot.record.take().expect("the index names a record in use");
        self.free(index);
        record
    }

    /// Drops the record at `index`, which is in use.
    #[inline(always)]
    pub fn release(&mut self, index: u32) {
        let slot = &mut self.records[index as usize];
        debug_assert!(slot.record.is_some());
        slot.record = None;
        self.free(index);
    }

    /// The record at `index`.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&R> {
        self.records.get(index as usize)?.record.as_ref()
    }

    /// The record at `index`, to change it.
    #[inline(always)]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut R> {
        self.records.get_mut(index as usize)?.record.as_mut()
    }

    /// A name for the record that no later record at this index will have.
    #[inline(always)]
    pub fn name(&self, index: u32) -> u64 {
        u64::from(self.records[index as usize].generation) << 32 | u64::from(index)
    }

    /// The index that `name` stands for, if its record is still in use.
    #[inline(always)]
    pub fn index_of(&self, name: u64) -> Option<u32> {
        let index = name as u32;
        let slot = self.records.get(index as usize)?;
        (slot.record.is_some() && slot.generation == (name >> 32) as u32).then_some(index)
    }

    /// The indices in use, in no particular order. Cost: a look at each place up to the last in use.
    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        let used = |(index, slot): (usize, &Slot<R>)| slot.record.as_ref().map(|_| index as u32);
        self.records.iter().enumerate().filter_map(used).take(self.len())
    }
}

impl<R> std::ops::Index<u32> for Pool<R> {
    type Output = R;

    #[inline(always)]
    fn index(&self, index: u32) -> &R {
        self.get(index).expect("the index names a record in use")
    }
}

impl<R> std::ops::IndexMut<u32> for Pool<R> {
    #[inline(always)]
    fn index_mut(&mut self, index: u32) -> &mut R {
        self.get_mut(index).expect("the index names a record in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_finds_nobody() {
        let mut pool = Pool::default();
        let index = pool.insert("first");
        let name = pool.name(index);
        assert_eq!(pool.index_of(name), Some(index));
        assert_eq!(pool.remove(index), "first");
        assert_eq!(pool.index_of(name), None);
        assert_eq!(pool.insert("second"), index);
        assert_eq!(pool.index_of(name), None);
        assert_eq!(pool.len(), 1);
    }

    #[test]
    fn freed_indices_are_used_before_new_ones() {
        let mut pool = Pool::with_capacity(4);
        let indices: Vec<_> = (0..4).map(|n| pool.insert(n)).collect();
        pool.remove(indices[2]);
        pool.remove(indices[0]);
        assert_eq!(pool.insert(10), indices[0]);
        assert_eq!(pool.insert(11), indices[2]);
        assert_eq!(pool.insert(12), 4);
        assert!(pool.index_of(u64::MAX).is_none());
    }

    #[test]
    fn an_emptied_pool_begins_anew() {
        let mut pool = Pool::default();
        let indices: Vec<_> = (0..5).map(|n| pool.insert(n)).collect();
        let names: Vec<_> = indices.iter().map(|&index| pool.name(index)).collect();
        for index in [3, 0, 4, 1, 2] {
            pool.release(indices[index]);
        }
        assert_eq!((0..6).map(|n| pool.insert(n)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(names.into_iter().all(|name| pool.index_of(name).is_none()));
    }

    #[test]
    fn all_in_use_are_listed_between_those_that_are_not() {
        let mut pool = Pool::default();
        (0..5).for_each(|n| assert_eq!(pool.insert(n), n));
        [0, 3].into_iter().for_each(|index| pool.release(index));
        assert!(pool.indices().eq([1, 2, 4]));
        [1, 2, 4].into_iter().for_each(|index| pool.release(index));
        assert_eq!(pool.indices().count(), 0);
    }
}
