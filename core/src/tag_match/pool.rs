//! A pool of nodes named by dense indices.

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
    len: u32,
}

impl<T: Copy> Pool<T> {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Pool {
            nodes: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            fresh: 0,
            len: 0,
        }
    }

    /// How many nodes are in use.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Every node that may be in use, at its index. Some are free: the owner marks those.
    #[inline]
    pub(super) fn nodes(&self) -> &[T] {
        &self.nodes
    }

    #[inline]
    pub(super) fn nodes_mut(&mut self) -> &mut [T] {
        &mut self.nodes
    }

    /// Claims a node whose fields the caller sets one by one, if the pool has
    /// one: a node that is built elsewhere and copied would be loaded in wider
    /// pieces than it was stored in, and wait for the store buffer.
    #[inline]
    pub(super) fn claim(&mut self) -> Option<u32> {
        let id = match self.free.last() {
            Some(&id) => id,
            None => self.fresh,
        };
        if id as usize >= self.nodes.len() {
            return None;
        }
        if self.free.pop().is_none() {
            self.fresh += 1;
        }
        self.len += 1;
        Some(id)
    }

    /// Stores `node` in a free place and returns its index.
    #[inline]
    pub(super) fn insert(&mut self, node: T) -> u32 {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = self.fresh;
                self.fresh += 1;
                id
            }
        };
        self.len += 1;
        match self.nodes.get_mut(id as usize) {
            Some(place) => *place = node,
            None => self.extend(node),
        }
        id
    }

    #[cold]
    #[inline(never)]
    fn extend(&mut self, node: T) {
        // The largest index stands for "none" in the chains.
        assert!(
            self.nodes.len() < u32::MAX as usize,
            "a matcher holds fewer than 2^32 - 1 entries"
        );
        self.nodes.push(node);
        // Grown here, so that releasing a node never allocates.
        let missing = self.nodes.capacity() - self.free.len();
        self.free.reserve(missing);
    }

    /// Frees the place `id`, which must be in use.
    #[inline]
    pub(super) fn release(&mut self, id: u32) {
        self.len -= 1;
        if self.len == 0 {
            self.free.clear();
            self.fresh = 0;
        } else {
            self.free.push(id);
        }
    }
}
