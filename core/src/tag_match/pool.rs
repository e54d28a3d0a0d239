//! A pool of nodes named by dense indices.

/// A node that a pool can hold.
pub(super) trait Node: Copy {
    /// What fills a place before its first use.
    const VACANT: Self;
}

/// Nodes of one kind, in one allocation that grows by doubling and never shrinks.
///
/// Free indices are a stack beside the nodes, not a list through them: a list would chase one
/// cache miss after another once nodes were freed in a random order. For the same reason a pool
/// that becomes empty forgets the stack and hands out indices from 0 again, in memory order.
#[derive(Debug)]
pub(super) struct Pool<T> {
    nodes: Vec<T>,
    free: Vec<u32>,
    /// Nodes from here on have not been handed out since the pool was last empty.
    fresh: u32,
}

impl<T: Node> Pool<T> {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Pool { nodes: vec![T::VACANT; capacity], free: Vec::with_capacity(capacity), fresh: 0 }
    }

    /// How many nodes are in use.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// All places, at their indices. Some are free: their owner marks those.
    #[inline]
    pub(super) fn nodes(&self) -> &[T] {
        &self.nodes
    }

    #[inline]
    pub(super) fn nodes_mut(&mut self) -> &mut [T] {
        &mut self.nodes
    }

    /// Hands out a free place, whose content is stale.
    #[inline(always)]
    pub(super) fn allocate(&mut self) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        let id = self.fresh;
        if id as usize == self.nodes.len() {
            self.grow();
        }
        self.fresh = id + 1;
        id
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = (self.nodes.len() * 2).max(64);
        // The largest index stands for "none" in the chains.
        assert!(len < u32::MAX as usize, "a matcher holds fewer than 2^31 entries");
        self.nodes.resize(len, T::VACANT);
        // Reserved here, so that releasing a node never allocates.
        self.free.reserve(len - self.free.len());
    }

    /// Frees the place `id`, which must be in use.
    #[inline(always)]
    pub(super) fn release(&mut self, id: u32) {
        if self.len() == 1 {
            self.free.clear();
            self.fresh = 0;
        } else {
            self.free.push(id);
        }
    }
}
