//! Requests that wait for their receiver. Its device says that it is not ready (RNR), and theirs tries
//! again, for as long as that lasts.

use super::fabric::{Pair, State};
use crate::verbs::{Role, Verb};

/// What a request takes at its receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// A receive of nothing, of the queue pair's own.
    Empty,
    /// One of the receives that are shared, or could be.
    Shared,
}

fn takes(verb: Verb, receiver: Role) -> Takes {
    let takes_packets = receiver == Role::Receives;
    match verb {
        Verb::Send | Verb::WriteImmediate(..) if takes_packets => Takes::Shared,
        Verb::WriteImmediate(..) => Takes::Empty,
        _ => Takes::Nothing,
    }
}

impl State {
    /// Whether what comes next needs a receive that the peer has yet to post.
    pub(super) fn must_wait(&mut self, number: u32) -> bool {
        let waits = self.pairs.get(&number).and_then(|pair| self.next_lacks(pair));
        if waits == Some(Takes::Shared) {
            self.note_not_ready(number);
        }
        waits.is_some()
    }

    fn next_lacks(&self, pair: &Pair) -> Option<Takes> {
        let peer = self.pairs.get(&pair.joined?.peer)?;
        let takes = takes(pair.waiting.front()?.request.verb, peer.role);
        let lacks = match takes {
            Takes::Nothing => false,
            Takes::Empty => peer.empty == 0,
            Takes::Shared => !peer.gone && self.lacks_receive(pair.joined?.peer),
        };
        (lacks && !peer.failed).then_some(takes)
    }

    fn note_not_ready(&mut self, number: u32) {
        self.not_ready.insert(number);
        let next = self.pairs.get_mut(&number).and_then(|pair| pair.waiting.front_mut());
        if let Some(next) = next {
            self.tally.not_ready += u64::from(!std::mem::replace(&mut next.not_ready, true));
        }
    }

    /// More receives of nothing: who waits for them goes on.
    pub(super) fn post_empty(&mut self, number: u32, count: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.empty += count;
        assert!(pair.empty <= pair.role.immediates(), "more receives than the queue has room for");
        if let Some(joined) = pair.joined {
            self.carry(joined.peer);
        }
    }

    /// More of the shared ones.
    pub(super) fn shared_posted(&mut self) {
        std::mem::take(&mut self.not_ready).into_iter().for_each(|number| self.carry(number));
    }
}
