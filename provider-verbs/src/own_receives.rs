//! Receives of an endpoint whose device shares none among queue pairs: each has some of its own.
//!
//! What is posted for all waits here, and a queue pair is provided with as many as its peer is granted packets.
//! So the rules of [`crate::receive_pool`] hold as where a device shares them: what is promised to a connection
//! is posted to it alone, and what is promised to nobody is posted nowhere.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::verbs::ReceiveRequest;

/// What waits, and what is posted to whom. A queue pair's receives complete in the order of their posting.
#[derive(Default)]
pub struct OwnReceives {
    free: Vec<ReceiveRequest>,
    posted: FxHashMap<u32, VecDeque<ReceiveRequest>>,
}

impl OwnReceives {
    /// More for all.
    pub fn put(&mut self, requests: &[ReceiveRequest]) {
        self.free.extend(requests);
    }

    /// Takes up to `count`, which are about to be posted to that queue pair.
    pub fn lend(&mut self, queue_pair: u32, count: u32) -> Vec<ReceiveRequest> {
        let count = self.free.len().min(count as usize);
        let taken = self.free.split_off(self.free.len() - count);
        self.posted.entry(queue_pair).or_default().extend(&taken);
        taken
    }

    /// The oldest of a queue pair's is over, be it in error: whoever polls has it.
    pub fn complete(&mut self, queue_pair: u32) -> Option<ReceiveRequest> {
        self.posted.get_mut(&queue_pair)?.pop_front()
    }

    /// Whether a queue pair has none.
    pub fn lacks(&self, queue_pair: u32) -> bool {
        self.posted.get(&queue_pair).is_none_or(VecDeque::is_empty)
    }

    /// A queue pair uses none any more, of those that were not polled either.
    pub fn reclaim(&mut self, queue_pair: u32) {
        self.free.extend(self.posted.remove(&queue_pair).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Segment;

    fn requests(names: std::ops::Range<u64>) -> Vec<ReceiveRequest> {
        let segment = Segment { address: 0, length: 0, local_key: 0 };
        names.map(|request| ReceiveRequest { request, segment }).collect()
    }

    #[test]
    fn what_a_queue_pair_does_not_use_is_others() {
        let mut all = OwnReceives::default();
        all.put(&requests(0..6));
        let first: Vec<u64> = all.lend(7, 4).iter().map(|taken| taken.request).collect();
        assert_eq!(first.len(), 4);
        assert_eq!(all.lend(8, 4).len(), 2, "as many as there are");
        assert_eq!(all.complete(7).map(|taken| taken.request), Some(first[0]));
        assert!(!all.lacks(7) && all.lacks(9));
        all.reclaim(7);
        assert!(all.lacks(7) && all.complete(7).is_none());
        assert_eq!(all.lend(8, u32::MAX).len(), 3, "all but the one that was polled");
    }
}
