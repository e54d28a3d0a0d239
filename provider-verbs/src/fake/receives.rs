//! Receives that take bytes: shared by the queue pairs of an endpoint, or each queue pair's own.

use super::{
    fabric::{DONE, State},
    objects::QueueState,
};
use crate::verbs::{Completion, ReceiveRequest, Status};

impl State {
    fn queues_of(&mut self, number: u32) -> Option<&mut QueueState> {
        let queues = self.pairs.get(&number)?.queues;
        self.queues.get_mut(&queues)
    }

    /// Whether nothing is posted for what comes to a queue pair.
    pub(super) fn lacks_receive(&self, number: u32) -> bool {
        let queues = self.pairs.get(&number).and_then(|pair| self.queues.get(&pair.queues));
        queues.is_none_or(|queues| match &queues.own {
            Some(own) => own.oldest(number).is_none(),
            None => queues.posted.is_empty(),
        })
    }

    pub(super) fn take_receive(&mut self, number: u32) -> Option<ReceiveRequest> {
        let queues = self.queues_of(number)?;
        match &mut queues.own {
            Some(own) => {
                let oldest = own.oldest(number)?;
                own.complete(number, oldest.request).then_some(oldest)
            }
            None => queues.posted.pop_front(),
        }
    }

    /// Posts so many of those that wait, if they are not shared.
    pub(super) fn provide(&mut self, number: u32, count: u32) {
        if let Some(own) = self.queues_of(number).and_then(|queues| queues.own.as_mut()) {
            own.lend(number, count);
            if self.pairs.get(&number).is_some_and(|pair| pair.failed) {
                self.flush_own(number);
            }
            self.shared_posted();
        }
    }

    /// A queue pair in error hands back what is posted to it alone.
    pub(super) fn flush_own(&mut self, number: u32) {
        while self.queues_of(number).is_some_and(|queues| queues.own.is_some())
            && let Some(ReceiveRequest { request, .. }) = self.take_receive(number)
        {
            let status = Status::FLUSHED;
            self.complete_receive(Completion { request, status, queue_pair: number, ..DONE });
        }
    }

    /// A queue pair that goes, or begins anew, has no receives.
    pub(super) fn reclaim(&mut self, number: u32) {
        if let Some(own) = self.queues_of(number).and_then(|queues| queues.own.as_mut()) {
            own.reclaim(number);
        }
    }
}
