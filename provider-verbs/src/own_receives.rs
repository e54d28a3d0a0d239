//! Receives of an endpoint whose device shares none among queue pairs: each has some of its own.
//!
//! What is posted for all waits here, and a queue pair is provided with as many as its peer is granted packets.
//! So the rules of [`crate::receive_pool`] hold as where a device shares them: what is promised to a connection
//! is posted to it alone, and what is promised to nobody is posted nowhere.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::verbs::ReceiveRequest;

/// Of a request's name: its buffer. Above it is when it was posted, so that what a device says late of one that
/// was taken back is not believed of another.
const NAME: u64 = u32::MAX as u64;

/// What waits, and what is posted to whom. A queue pair's receives complete in the order of their posting.
#[derive(Default)]
pub struct OwnReceives {
    free: Vec<ReceiveRequest>,
    posted: FxHashMap<u32, VecDeque<ReceiveRequest>>,
    /// How often receives were taken back.
    reclaims: u32,
}

impl OwnReceives {
    /// More for all.
    pub fn put(&mut self, requests: &[ReceiveRequest]) {
        self.free.extend(requests);
    }

    /// Takes up to `count`, which are about to be posted to that queue pair.
    pub fn lend(&mut self, queue_pair: u32, count: u32) -> Vec<ReceiveRequest> {
        let count = self.free.len().min(count as usize);
        let mut taken = self.free.split_off(self.free.len() - count);
        for taken in &mut taken {
            taken.request = taken.request & NAME | u64::from(self.reclaims) << 32;
        }
        self.posted.entry(queue_pair).or_default().extend(&taken);
        taken
    }

    /// The last of those that were lent could not be posted.
    pub fn take_back(&mut self, queue_pair: u32, count: usize) {
        let Some(posted) = self.posted.get_mut(&queue_pair) else { return };
        self.free.extend(posted.split_off(posted.len().saturating_sub(count)));
    }

    /// The oldest of a queue pair's.
    pub fn oldest(&self, queue_pair: u32) -> Option<ReceiveRequest> {
        self.posted.get(&queue_pair)?.front().copied()
    }

    /// One is over, be it in error: whoever polls has it. False if it was taken back before.
    pub fn complete(&mut self, queue_pair: u32, request: u64) -> bool {
        let is_it = |oldest: ReceiveRequest| oldest.request == request;
        let is_known = self.oldest(queue_pair).is_some_and(is_it);
        if is_known && let Some(posted) = self.posted.get_mut(&queue_pair) {
            posted.pop_front();
        }
        is_known
    }

    /// A queue pair uses none any more, of those that were not polled either.
    pub fn reclaim(&mut self, queue_pair: u32) {
        self.reclaims = self.reclaims.wrapping_add(1);
        self.free.extend(self.posted.remove(&queue_pair).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Segment;

    fn of(names: std::ops::Range<u64>) -> OwnReceives {
        let segment = Segment { address: 0, length: 0, local_key: 0 };
        let mut all = OwnReceives::default();
        let requests: Vec<_> = names.map(|request| ReceiveRequest { request, segment }).collect();
        all.put(&requests);
        all
    }

    #[test]
    fn what_a_queue_pair_does_not_use_is_others() {
        let mut all = of(0..6);
        let first = all.lend(7, 4);
        assert_eq!(first.len(), 4);
        assert_eq!(all.lend(8, 4).len(), 2, "as many as there are");
        assert!(!all.complete(7, first[1].request), "they complete in order");
        assert!(all.complete(7, first[0].request));
        all.take_back(7, 1);
        assert_eq!(all.lend(8, 4).len(), 1, "which was not posted");
        all.reclaim(7);
        assert!(all.oldest(7).is_none());
        assert_eq!(all.lend(8, u32::MAX).len(), 2, "all but the one that was polled");
    }

    #[test]
    fn what_is_said_late_of_earlier_receives_is_not_believed() {
        let mut all = of(5..6);
        let earlier = all.lend(7, 1)[0].request;
        all.reclaim(7);
        assert!(!all.complete(7, earlier), "nothing is posted");
        let later = all.lend(7, 1)[0].request;
        assert_eq!((earlier as u32, later as u32), (5, 5));
        assert!(!all.complete(7, earlier) && all.complete(7, later));
    }
}
