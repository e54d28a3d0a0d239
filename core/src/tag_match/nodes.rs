//! Where entries are kept: at the indices that the matcher's caller names them by.

/// An entry that lies in memory of its own kind.
pub(super) trait Node: Copy {
    /// What fills a place that nobody has.
    const VACANT: Self;

    /// Whether the place is nobody's.
    fn is_vacant(&self) -> bool;

    /// Marks it as nobody's.
    fn vacate(&mut self);
}

/// Nodes of one kind, in one allocation that grows by doubling and never shrinks.
///
/// A caller keeps a record of what it posts or parks, in a pool that hands out indices in memory order.
/// Indices of our own would be a second one of those.
#[derive(Debug)]
pub(super) struct Nodes<T> {
    nodes: Vec<T>,
    used: usize,
}

impl<T: Node> Nodes<T> {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Nodes { nodes: vec![T::VACANT; capacity], used: 0 }
    }

    /// How many are in use.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// All places, at their indices, those that nobody has among them.
    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[T] {
        &self.nodes
    }

    #[inline(always)]
    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.nodes
    }

    /// Whether the place `id` is in use.
    pub(super) fn holds(&self, id: u32) -> bool {
        self.nodes.get(id as usize).is_some_and(|node| !node.is_vacant())
    }

    /// Those in use, and their indices. Cost: a look at every place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.nodes).filter(|(_, node)| !node.is_vacant())
    }

    /// Makes sure that there is a place `id`, and counts it as used. It is written next.
    #[inline(always)]
    pub(super) fn occupy(&mut self, id: u32) {
        self.used += 1;
        if id as usize >= self.nodes.len() {
            self.grow(id as usize + 1);
        }
    }

    /// What a place `id` makes them grow by: mostly nothing. Units: bytes.
    #[inline(always)]
    pub(super) fn growth(&self, id: u32) -> usize {
        let grows = id as usize >= self.nodes.len();
        if grows { length_for(id as usize + 1) * size_of::<T>() } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, len: usize) {
        // The largest index stands for "none" in the chains.
        assert!(len < u32::MAX as usize, "a matcher names fewer than 2^32 - 1 entries");
        self.nodes.resize(length_for(len), T::VACANT);
    }

    /// Frees the place `id`, which is in use.
    #[inline(always)]
    pub(super) fn release(&mut self, id: u32) {
        self.nodes[id as usize].vacate();
        self.used -= 1;
    }
}

/// How many places there are where `len` are needed.
fn length_for(len: usize) -> usize {
    len.next_power_of_two().max(64)
}
