//! The hash table of one class: buckets of first-in first-out chains.

/// The end of a chain, and the content of an empty bucket.
pub(super) const NIL: u32 = u32::MAX;

/// Buckets of the smallest table; a power of two.
const BUCKET_COUNT_MIN: usize = 64;

/// Buckets per entry before the table doubles.
const BUCKETS_PER_ENTRY: usize = 2;

/// Tags that differ in these low bits only are neighbours, and share cache lines of buckets.
const RUN_MASK_MAX: u64 = 63;

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
    pub(super) const UNLINKED: Link = Link {
        next: NIL,
        prev: NIL,
    };
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
    heads: Vec<u32>,
    run_mask: u64,
    len: u32,
}

impl Table {
    /// A table without memory: `reserve` comes before anything else.
    pub(super) const fn new() -> Self {
        Table {
            heads: Vec::new(),
            run_mask: 0,
            len: 0,
        }
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
    /// exclusive or; where the run lies comes from a folded multiplication of all other bits with
    /// the source. Two keys of one run never share a bucket, any others do with the probability of
    /// a random hash, provided that a run is not longer than the table.
    #[inline]
    pub(super) fn bucket(&self, key: Key) -> usize {
        let place_in_run = key.tag & self.run_mask;
        let run = (key.tag ^ place_in_run) ^ 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(run) * u128::from(u64::from(key.source) ^ 0xd6e8_feb8_6659_fd93);
        let mixed = product as u64 ^ (product >> 64) as u64;
        (mixed ^ place_in_run) as usize & self.heads.len().wrapping_sub(1)
    }

    /// The earliest entry in `bucket` that has `key`, or `NIL`.
    #[inline]
    pub(super) fn find(&self, chains: &(impl Chains + ?Sized), bucket: usize, key: Key) -> u32 {
        let mut id = self.heads[bucket];
        while id != NIL && !chains.key(id).matches(key) {
            id = chains.link(id).next;
        }
        id
    }

    /// Appends entry `id`, whose key belongs to `bucket`.
    #[inline]
    pub(super) fn append(&mut self, chains: &mut (impl Chains + ?Sized), bucket: usize, id: u32) {
        let head = self.heads[bucket];
        if head == NIL {
            self.heads[bucket] = id;
            *chains.link_mut(id) = Link {
                next: NIL,
                prev: id,
            };
        } else {
            let tail = chains.link(head).prev;
            chains.link_mut(tail).next = id;
            chains.link_mut(head).prev = id;
            *chains.link_mut(id) = Link {
                next: NIL,
                prev: tail,
            };
        }
        self.len += 1;
    }

    /// Takes entry `id`, which is in `bucket`, out of its chain.
    #[inline]
    pub(super) fn unlink(&mut self, chains: &mut (impl Chains + ?Sized), bucket: usize, id: u32) {
        let Link { next, prev } = chains.link(id);
        let head = self.heads[bucket];
        if head == id {
            self.heads[bucket] = next;
            if next != NIL {
                chains.link_mut(next).prev = prev;
            }
        } else {
            chains.link_mut(prev).next = next;
            // The last entry's neighbour is the first, which knows the last.
            let after = if next == NIL { head } else { next };
            chains.link_mut(after).prev = prev;
        }
        self.len -= 1;
    }

    /// Whether one more entry needs `reserve` first.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len as usize * BUCKETS_PER_ENTRY >= self.heads.len()
    }

    /// Makes room for `len` entries in all, and never less than there is.
    #[cold]
    #[inline(never)]
    pub(super) fn reserve(&mut self, chains: &mut (impl Chains + ?Sized), len: usize) {
        let bucket_count = (len * BUCKETS_PER_ENTRY)
            .next_power_of_two()
            .max(BUCKET_COUNT_MIN);
        if bucket_count <= self.heads.len() {
            return;
        }
        let heads = std::mem::replace(&mut self.heads, vec![NIL; bucket_count]);
        self.run_mask = RUN_MASK_MAX.min(bucket_count as u64 - 1);
        self.len = 0;
        // Entries of one key share a chain, so chain order keeps them in order.
        for head in heads {
            let mut id = head;
            while id != NIL {
                let next = chains.link(id).next;
                let bucket = self.bucket(chains.key(id));
                self.append(chains, bucket, id);
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
