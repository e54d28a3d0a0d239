//! Who sent to the groups that are heard.

use std::collections::{HashMap, VecDeque};

use kestrel_core::transport::PeerIndex;

/// Senders that are remembered.
const SOURCES_MAX: usize = 4096;

/// Senders by incarnation, with the peer that each is; none until the engine has recognized it. The
/// oldest gives way to a new one: should it send again, it is recognized anew.
#[derive(Default)]
pub(super) struct Sources {
    known: HashMap<u64, Option<PeerIndex>>,
    /// All of them, in the order in which they came.
    order: VecDeque<u64>,
}

impl Sources {
    pub(super) fn get(&self, incarnation: u64) -> Option<Option<PeerIndex>> {
        self.known.get(&incarnation).copied()
    }

    pub(super) fn insert(&mut self, incarnation: u64, peer: Option<PeerIndex>) {
        if self.known.insert(incarnation, peer).is_some() {
            return;
        }
        self.order.push_back(incarnation);
        if self.order.len() > SOURCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// A peer was let go of.
    pub(super) fn forget(&mut self, peer: PeerIndex) {
        self.known.retain(|_, known| *known != Some(peer));
        self.order.retain(|incarnation| self.known.contains_key(incarnation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_sender_gives_way() {
        let mut sources = Sources::default();
        let senders = 0..SOURCES_MAX as u64 + 3;
        for incarnation in senders.clone() {
            sources.insert(incarnation, None);
            sources.insert(incarnation, Some(incarnation as PeerIndex));
        }
        let known: Vec<u64> = senders.filter(|&it| sources.get(it).is_some()).collect();
        assert_eq!((known.len(), known[0]), (SOURCES_MAX, 3));
        sources.forget(5);
        assert_eq!((sources.get(4), sources.get(5)), (Some(Some(4)), None));
        assert_eq!(sources.order.len(), sources.known.len());
    }
}
