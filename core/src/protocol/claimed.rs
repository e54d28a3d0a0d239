//! What peeks have claimed: messages that are nobody else's until they are retrieved or discarded.
//! Reference: fi_tagged(3), `FI_CLAIM`.

use std::collections::{HashMap, HashSet};

use crate::{
    error::Cause,
    tag_match::{Matcher, SourceIndex},
};

/// A matcher asks for a source; a context has none.
const NO_SOURCE: SourceIndex = 0;

/// Claimed messages by the contexts that name them.
///
/// A matcher finds what has one tag among a hundred thousand in a line that neighbouring tags share,
/// and names are as good as tags: a hash table of the library took four times a plain receive there.
#[derive(Debug, Default)]
pub(crate) struct ClaimedMessages {
    here: Matcher,
    /// Those whose senders have gone with what was missing.
    lost: HashMap<u64, Cause>,
}

/// A message that a context names.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// A parked message.
    Here(u32),
    /// Its sender has gone with what was missing.
    Lost(Cause),
}

impl ClaimedMessages {
    /// Whether `context` names a message.
    pub fn contains(&self, context: u64) -> bool {
        self.here.find_posted(NO_SOURCE, context).is_some() || self.is_lost(context)
    }

    /// Whether it names one that its sender has gone with.
    pub fn is_lost(&self, context: u64) -> bool {
        !self.lost.is_empty() && self.lost.contains_key(&context)
    }

    /// Has `context`, which names no message, name a parked one.
    pub fn insert(&mut self, context: u64, parked: u32) {
        self.here.post(NO_SOURCE, context, 0, parked);
    }

    /// Takes the message that `context` names.
    pub fn take(&mut self, context: u64) -> Option<Claimed> {
        match self.here.take_posted(NO_SOURCE, context) {
            Some(parked) => Some(Claimed::Here(parked)),
            None => self.lost.remove(&context).map(Claimed::Lost),
        }
    }

    /// The parked messages that are claimed. Cost: as [`Matcher::posted`].
    pub fn messages(&self) -> impl Iterator<Item = u32> {
        self.here.posted().map(|(parked, _)| parked)
    }

    /// Those of `parked` that are claimed are lost, and why.
    pub fn lose(&mut self, parked: &HashSet<u32>, why: &Cause) {
        for &message in parked {
            if self.here.is_posted(message) {
                self.lost.insert(self.here.posted_tag(message), why.clone());
                self.here.remove_posted(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn a_context_names_its_message_until_it_is_taken() {
        let mut claimed = ClaimedMessages::default();
        for context in [u64::MAX, 0, 7] {
            claimed.insert(context, context as u32 & 0xff);
        }
        assert!(claimed.contains(7) && !claimed.contains(8));
        assert!(matches!(claimed.take(7), Some(Claimed::Here(7))));
        assert!(claimed.take(7).is_none() && !claimed.contains(7));
        let mut left: Vec<_> = claimed.messages().collect();
        left.sort_unstable();
        assert_eq!(left, [0, 0xff]);
    }

    #[test]
    fn what_is_lost_is_told_once() {
        let mut claimed = ClaimedMessages::default();
        (0..10).for_each(|context| claimed.insert(context, 100 + context as u32));
        let why = Cause { errno: Errno::CONNRESET, reason: "it went".into() };
        claimed.lose(&HashSet::from([103, 109, 200]), &why);
        assert!(claimed.contains(3) && claimed.is_lost(3) && !claimed.is_lost(4));
        assert_eq!(claimed.messages().count(), 8);
        assert!(matches!(claimed.take(9), Some(Claimed::Lost(told)) if told == why));
        assert!(claimed.take(9).is_none());
    }
}
