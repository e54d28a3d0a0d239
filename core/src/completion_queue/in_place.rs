//! Reads that hand completions over where they were written, for callers that copy them elsewhere.

use std::time::Duration;

use super::{BURST_MIN, CompletionQueue, Entry, ReadError, store::CompletionStore};
use crate::transport::Provider;

impl<P: Provider> CompletionQueue<P> {
    /// Reads as [`Self::read_with`], but in a domain for one thread at a time no entry is copied first.
    ///
    /// # Errors
    /// As there.
    /// # Safety
    /// `take` makes no call on any object of the queue's domain, and drops none.
    #[inline]
    pub unsafe fn read_in_place(
        &self,
        count: usize,
        mut take: impl FnMut(usize, &Entry),
    ) -> Result<usize, ReadError> {
        // SAFETY: the store's entries come and go by calls on the domain's objects alone.
        self.read_by(count, count.max(BURST_MIN), |store| unsafe {
            store.pop_each_in_place(count, &mut take)
        })
    }

    /// Reads as [`Self::read_with_blocking`], likewise.
    ///
    /// # Errors
    /// As there.
    /// # Safety
    /// As [`Self::read_in_place`].
    pub unsafe fn read_in_place_blocking(
        &self,
        count: usize,
        timeout: Option<Duration>,
        mut take: impl FnMut(usize, &Entry),
    ) -> Result<usize, ReadError> {
        // SAFETY: as above.
        let pop =
            |store: &_| unsafe { CompletionStore::pop_each_in_place(store, count, &mut take) };
        self.read_blocking_by(count, pop, timeout)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        domain::{Domain, DomainOptions, Sharing},
        mock::{MockOptions, MockProvider},
    };

    /// What is done with an entry may read the next ones, and leaves the one at hand alone.
    #[test]
    fn who_is_handed_an_entry_may_read_on() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let domain = Domain::open(provider, DomainOptions::default()).unwrap();
        for sharing in [Sharing::Exclusive, Sharing::Shared] {
            let queue = CompletionQueue::open_for(&domain, 4, sharing).unwrap();
            let push = |context| queue.store().push(Entry { context, ..Entry::default() });
            (0..3).for_each(push);
            let mut seen = Vec::new();
            let read = queue.read_with(1, |_, entry| {
                let mut next = [Entry::default()];
                assert_eq!(queue.read(&mut next), Ok(1));
                // It grows meanwhile.
                (3..100).for_each(push);
                seen.extend([next[0].context, entry.context]);
            });
            assert_eq!((read, &seen[..]), (Ok(1), &[1, 0][..]));
            let rest = queue.read_with(200, |_, entry| seen.push(entry.context));
            assert_eq!((rest, seen.len(), seen[2]), (Ok(98), 100, 2));
        }
    }
}
