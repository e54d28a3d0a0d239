//! What the matchers of a shared context call those whom messages come from: one number, to
//! whichever endpoint they come. Who is in no matcher any more is forgotten in time, and its number
//! is given to others: so nobody keeps one but the matchers.

use std::collections::{HashMap, HashSet};

use crate::{
    address::Address,
    auth_key::KeyNumber,
    tag_match::{SourceIndex, source_in, who},
};

/// Nobody is called so whom a receive is for.
pub(super) const NOBODY: SourceIndex = 0;

/// So many are kept without a look at who is in use.
const FEW: usize = 64;

/// Whom a message is from, or a receive is for.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// It came over a connection, or where no receive is for anybody in particular.
    Nobody,
    /// Whoever it is.
    Anybody,
    /// All who have proved a key that an endpoint has.
    Key(KeyNumber),
    /// An address, by the key that was proved.
    Peer(Address, KeyNumber),
}

/// The peers that have a number.
#[derive(Default)]
pub(super) struct Sources {
    known: HashMap<(Address, KeyNumber), SourceIndex>,
    /// How many numbers there are, those that are free included.
    made: u32,
    free: Vec<SourceIndex>,
    /// It is time for a look when there are so many.
    look_at: usize,
}

impl Sources {
    pub(super) fn get(&self, address: Address, key: KeyNumber) -> Option<SourceIndex> {
        self.known.get(&(address, key)).copied()
    }

    /// Gives a new one its number, in the group that its key makes it one of.
    pub(super) fn insert(&mut self, address: Address, key: KeyNumber, group: u32) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            NOBODY + self.made
        });
        self.known.insert((address, key), source_in(group, number));
    }

    /// Whether it is time to forget some.
    pub(super) fn is_full(&self) -> bool {
        self.known.len() >= self.look_at.max(FEW)
    }

    /// Forgets all others than those with these numbers.
    pub(super) fn keep_only(&mut self, in_use: &HashSet<SourceIndex>) {
        let Sources { known, free, .. } = self;
        known.retain(|_, source| {
            let kept = in_use.contains(&who(*source));
            free.extend(Some(who(*source)).filter(|_| !kept));
            kept
        });
        self.look_at = 2 * self.known.len();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
