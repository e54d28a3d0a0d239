//! The hash table of one class: buckets of first-in first-out chains.

/// The end of a chain, and the content of an empty bucket.
pub(super) const NIL: u32 = u32::MAX;

/// Buckets of the smallest table; a power of two.
const BUCKET_COUNT_MIN: usize = 256;

/// Buckets per entry, at least. Many buckets are cheap, at four bytes; a message that probes the
/// tables of other classes than its own mostly finds an empty one, and reads no entry.
const BUCKETS_PER_ENTRY: usize = 4;

/// Tags that differ in these low bits only are neighbours, and share cache lines of buckets.
const RUN_MASK_MAX: u32 = 63;

/// What entries are compared by: a tag without the ignored bits, and a source or `ANY_SOURCE`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) tag: u64,
    pub(super) source: u32,
}

impl Key {
    /// Equality in one branch: a walk along a chain is predicted better so.
    #[inline]
    pub(super) fn matches(self, other: Key) -> bool {
        (self.tag ^ other.tag) | u64::from(self.source ^ other.source) == 0
    }
}

/// The place of an entry in its chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The entry that came after this one, or `NIL`.
    next: u32,
    /// The entry that came before this one. The first entry's is the last: an append finds the
    /// end of the chain through it, and a bucket needs no second word.
    prev: u32,
}

impl Link {
    pub(super) const UNLINKED: Link = Link { next: NIL, prev: NIL };
}

/// Where the entries and links of a table are kept; entries are named by index.
pub(super) trait Chains {
    fn link(&self, id: u32) -> Link;
    fn link_mut(&mut self, id: u32) -> &mut Link;
    fn key(&self, id: u32) -> Key;
}

/// Entries by key; entries of one key leave in the order in which they came.
///
/// It doubles with an amortised rehash and never shrinks.
#[derive(Debug)]
pub(super) struct Table {
    /// First entry of every chain; empty or a power of two long.
    heads: Box<[u32]>,
    run_mask: u32,
    /// Leaves as many bits of a hash as number the buckets.
    shift: u32,
    len: u32,
    /// The table doubles before it holds more.
    len_max: u32,
}

impl Table {
    /// A table without memory: `reserve` comes before anything else.
    pub(super) fn new() -> Self {
        Table { heads: Box::new([]), run_mask: 0, shift: 0, len: 0, len_max: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn bucket_count(&self) -> usize {
        self.heads.len()
    }

    /// The bucket of `key`.
    ///
    /// Runs of neighbouring tags fill neighbouring buckets, permuted within the run by an
    /// exclusive or; where the run lies is a multiplicative hash of all other bits and the source.
    /// Two keys of one run and source never share a bucket, and any others seldom do, provided
    /// that a run is not longer than the table.
    ///
    /// # Reference  Knuth, The Art of Computer Programming, volume 3, 6.4 (Fibonacci hashing)
    #[inline(always)]
    pub(super) fn bucket(&self, key: Key) -> usize {
        let place_in_run = key.tag & u64::from(self.run_mask);
        let run = key.tag ^ place_in_run ^ u64::from(key.source).wrapping_mul(0x5851_f42d);
        let hash = run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift;
        (hash ^ place_in_run) as usize
    }

    /// The earliest entry in `bucket` that has `key`, or `NIL`.
    #[inline(always)]
    pub(super) fn find(&self, chains: &(impl Chains + ?Sized), bucket: usize, key: Key) -> u32 {
        let mut id = self.heads[bucket];
        while id != NIL && !chains.key(id).matches(key) {
            id = chains.link(id).next;
        }
        id
    }

    /// The first entry of `bucket`, or `NIL`: what most often is looked for.
    #[inline(always)]
    pub(super) fn first(&self, bucket: usize) -> u32 {
        self.heads[bucket]
    }

    /// Takes entry `id`, which is the first in `bucket`, out of its chain.
    #[inline(always)]
    pub(super) fn unlink_first(
        &mut self,
        chains: &mut (impl Chains + ?Sized),
        bucket: usize,
        id: u32,
    ) {
        let Link { next, prev } = chains.link(id);
        self.heads[bucket] = next;
        if next != NIL {
            chains.link_mut(next).prev = prev;
        }
        self.len -= 1;
    }

    /// Appends entry `id`, whose key belongs to `bucket`, and returns the link it must carry.
    #[inline(always)]
    #[must_use]
    pub(super) fn append(
        &mut self,
        chains: &mut (impl Chains + ?Sized),
        bucket: usize,
        id: u32,
    ) -> Link {
        self.len += 1;
        let head = self.heads[bucket];
        if head == NIL {
            self.heads[bucket] = id;
            return Link { next: NIL, prev: id };
        }
        let first = chains.link_mut(head);
        let tail = first.prev;
        first.prev = id;
        chains.link_mut(tail).next = id;
        Link { next: NIL, prev: tail }
    }

    /// Takes entry `id`, which is in `bucket`, out of its chain.
    #[inline(always)]
    pub(super) fn unlink(&mut self, chains: &mut (impl Chains + ?Sized), bucket: usize, id: u32) {
        let head = self.heads[bucket];
        if head == id {
            return self.unlink_first(chains, bucket, id);
        }
        let Link { next, prev } = chains.link(id);
        chains.link_mut(prev).next = next;
        // The last entry's neighbour is the first, which knows the last.
        let after = if next == NIL { head } else { next };
        chains.link_mut(after).prev = prev;
        self.len -= 1;
    }

    /// Whether one more entry needs `reserve` first.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.len == self.len_max
    }

    /// What `len` entries make the table grow by. Units: bytes.
    pub(super) fn growth(&self, len: usize) -> usize {
        let bucket_count = bucket_count_for(len);
        if bucket_count > self.heads.len() { bucket_count * size_of::<u32>() } else { 0 }
    }

    /// Makes room for `len` entries in all, and never less than there is.
    #[cold]
    #[inline(never)]
    pub(super) fn reserve(&mut self, chains: &mut (impl Chains + ?Sized), len: usize) {
        let bucket_count = bucket_count_for(len);
        if bucket_count <= self.heads.len() {
            return;
        }
        let heads = std::mem::replace(&mut self.heads, vec![NIL; bucket_count].into_boxed_slice());
        self.shift = u64::BITS - bucket_count.trailing_zeros();
        self.len_max = (bucket_count / BUCKETS_PER_ENTRY) as u32;
        self.run_mask = RUN_MASK_MAX.min(bucket_count as u32 - 1);
        self.len = 0;
        // Entries of one key share a chain, so chain order keeps them in order.
        for head in heads {
            let mut id = head;
            while id != NIL {
                let next = chains.link(id).next;
                let bucket = self.bucket(chains.key(id));
                let link = self.append(chains, bucket, id);
                *chains.link_mut(id) = link;
                id = next;
            }
        }
    }

    /// Forgets all entries, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.heads.fill(NIL);
        self.len = 0;
    }
}

/// The buckets of a table of `len` entries.
fn bucket_count_for(len: usize) -> usize {
    (len * BUCKETS_PER_ENTRY).next_power_of_two().max(BUCKET_COUNT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Entries {
        links: Vec<Link>,
        keys: Vec<Key>,
    }

    impl Chains for Entries {
        fn link(&self, id: u32) -> Link {
            self.links[id as usize]
        }

        fn link_mut(&mut self, id: u32) -> &mut Link {
            &mut self.links[id as usize]
        }

        fn key(&self, id: u32) -> Key {
            self.keys[id as usize]
        }
    }

    /// Steps along chains, per entry, to find all `keys` in a table that grew to hold them.
    fn steps_per_entry(keys: Vec<Key>) -> f64 {
        let len = keys.len();
        let mut entries = Entries { links: vec![Link::UNLINKED; len], keys };
        let mut table = Table::new();
        for id in 0..len as u32 {
            if table.is_full() {
                table.reserve(&mut entries, id as usize + 1);
            }
            let bucket = table.bucket(entries.key(id));
            let link = table.append(&mut entries, bucket, id);
            *entries.link_mut(id) = link;
        }
        let mut steps = 0;
        for id in 0..len as u32 {
            let mut at = table.heads[table.bucket(entries.key(id))];
            while at != id {
                steps += 1;
                at = entries.link(at).next;
            }
            steps += 1;
        }
        f64::from(steps) / len as f64
    }

    /// A random hash at this load takes 1.13 steps or less; twice that is still flat.
    fn assert_spread(what: &str, key: impl Fn(u64) -> (u64, u32)) {
        for len in [32, 64, 1000, 1024, 20_000] {
            let keys = (0..len).map(key_of(&key)).collect();
            let steps = steps_per_entry(keys);
            assert!(steps < 2.25, "{what}: {steps:.2} steps per entry at {len}");
        }
    }

    fn key_of(key: impl Fn(u64) -> (u64, u32)) -> impl Fn(u64) -> Key {
        move |n| {
            let (tag, source) = key(n);
            Key { tag, source }
        }
    }

    #[test]
    fn spreads_strided_tags() {
        for shift in 0..46 {
            let stride = 1 << shift;
            assert_spread(&format!("stride 2^{shift}"), |n| (n * stride, 3));
            assert_spread(&format!("stride 5*2^{shift}"), |n| (n * stride * 5, u32::MAX));
        }
    }

    #[test]
    fn spreads_sources() {
        assert_spread("one tag of many sources", |n| (7, n as u32));
        assert_spread("a tag for each source", |n| (n, n as u32));
        for shift in 0..46 {
            let stride = 1 << shift;
            assert_spread(&format!("8 sources, 2^{shift}"), |n| (n / 8 * stride, n as u32 % 8));
            assert_spread(&format!("source at 2^{shift}"), |n| (n * stride, n as u32));
        }
    }

    #[test]
    fn spreads_tags_of_two_fields() {
        for low in [0, 4, 6, 8, 12, 16, 20] {
            for high in [28, 31, 32, 36, 40, 44, 48] {
                let what = format!("fields at 2^{low} and 2^{high}");
                let tag = |lower: u64, upper: u64| (lower << low) + (upper << high);
                assert_spread(&what, |n| (tag(n % 32, n / 32), 1));
                assert_spread(&what, |n| (tag(n % 200, n / 200), 1));
            }
        }
    }
}
