//! The tag matcher: which message goes to which receive.
//!
//! A message of source `s` and tag `t` matches a receive of source `r`, tag `g` and ignored bits
//! `i` if and only if `(r == ANY_SOURCE || r == s) && (t & !i) == (g & !i)`. Among several the
//! earliest posted receive, or the earliest message, wins.
//!
//! MPI libraries never post with `ignore` 0: they mask protocol bits on every receive, and a mask
//! defeats one hash over source and tag. But they use few masks. So receives fall into
//! **classes** (which bits are ignored, whether the source is given), and each class has one hash
//! table over what is left of source and tag:
//!
//! - a posted receive sits in the table of its class; a message probes the table of every class
//!   that holds receives, and the lowest sequence number wins (`expected.rs`);
//! - a parked message sits in the table of every class that receives searched for lately; a
//!   receive probes the table of its own class (`unexpected.rs`).
//!
//! Cancels and the ends of peers ask for what no message asks for. Nothing is kept for them: where they
//! are many, what is posted is sorted as they want it (`by_key.rs`).
//!
//! Sixteen classes on each side have tables (`class.rs`); more are correct but slow. Tables are
//! chains of nodes, linked by the indices that the caller names its receives and messages by
//! (`table.rs`, `nodes.rs`). All of it grows by doubling and never shrinks, so the steady state
//! allocates nothing.
//!
//! # Reference  fi_tagged(3)

mod bits;
mod by_key;
mod class;
mod expected;
mod live;
mod nodes;
mod recent;
mod table;
mod unexpected;

use expected::Expected;
use unexpected::Unexpected;

/// Dense index of a peer inside one engine.
pub type SourceIndex = u32;

/// Instead of a source: a receive that takes messages from everyone.
pub const ANY_SOURCE: SourceIndex = u32::MAX;

/// How many bits of a source say who it is; those above, which group it is in.
const SOURCE_BITS: u32 = 24;
/// The bits that say who it is.
const WHO: SourceIndex = (1 << SOURCE_BITS) - 1;

/// The source `index` of a group, so that [`group_source`] takes its messages as well. Group 0 is
/// that of all who are in none. No more than 2^24 - 1 sources can be told apart.
#[inline(always)]
pub const fn source_in(group: u32, index: SourceIndex) -> SourceIndex {
    group << SOURCE_BITS | index
}

/// Who a source is, without the group: of [`ANY_SOURCE`] and of a whole group nobody.
pub(crate) const fn who(source: SourceIndex) -> SourceIndex {
    if source & WHO == WHO { ANY_SOURCE } else { source & WHO }
}

/// How many groups there can be beside group 0: everyone in one more would be [`ANY_SOURCE`].
pub(crate) const GROUPS_MAX: usize = (ANY_SOURCE >> SOURCE_BITS) as usize - 1;

/// Instead of a source: a receive that takes messages from everyone in a group, of
/// [`GROUPS_MAX`] at most.
pub const fn group_source(group: u32) -> SourceIndex {
    group << SOURCE_BITS | WHO
}

/// Set in `receive` by a caller whose receive stays posted when it is matched
/// (multi-receive).
pub const STICKY: u32 = 1 << 31;

/// Matches messages with receives.
///
/// The two sides do not know each other: a caller that receives looks for a parked message and
/// posts if there is none; one that delivers looks for a posted receive and parks if there is
/// none. One owner at a time, hence no atomics.
#[derive(Debug)]
pub struct Matcher {
    expected: Expected,
    unexpected: Unexpected,
}

impl Default for Matcher {
    fn default() -> Self {
        Self::new()
    }
}

impl Matcher {
    /// Creates a matcher that grows from nothing.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// Creates a matcher that need not grow before `capacity` receives or messages wait in it.
    ///
    /// Units: entries, on each side. Cost: the tables of a class are allocated when it is first
    /// seen.
    pub fn with_capacity(capacity: usize) -> Self {
        Matcher {
            expected: Expected::with_capacity(capacity),
            unexpected: Unexpected::with_capacity(capacity),
        }
    }

    /// Posts the receive `receive` for messages from `source`, or from everyone with
    /// [`ANY_SOURCE`], whose tag equals `tag` in all bits that are not in `ignore`.
    ///
    /// Ownership: `receive` is the caller's: the index of its record, which no other posted receive
    /// has; memory grows with the largest. It may have [`STICKY`] beside it. Cost: constant;
    /// allocates only to grow.
    #[inline(always)]
    pub fn post(&mut self, source: SourceIndex, tag: u64, ignore: u64, receive: u32) {
        self.expected.post(source, tag, ignore, receive)
    }

    /// Finds the earliest posted receive that matches a message, and leaves it posted.
    ///
    /// Cost: constant for each class that holds receives.
    #[inline]
    pub fn find_posted(&self, source: SourceIndex, tag: u64) -> Option<u32> {
        self.expected.find(source, tag)
    }

    /// The earliest posted receive that matches, taken off unless it is [`STICKY`].
    ///
    /// Cost: constant for each class that holds receives; no allocation.
    #[inline(always)]
    pub fn take_posted(&mut self, source: SourceIndex, tag: u64) -> Option<u32> {
        self.expected.take(source, tag)
    }

    /// Removes the receive `receive`, with [`STICKY`] or without.
    ///
    /// Cost: constant. Panics if it is not posted.
    #[inline]
    pub fn remove_posted(&mut self, receive: u32) {
        self.expected.remove(receive);
    }

    /// All posted receives in posting order, each with its source.
    ///
    /// Cost: allocates, and sorts.
    pub fn posted(&self) -> impl Iterator<Item = (u32, SourceIndex)> + use<> {
        self.expected.iter()
    }

    /// All receives that are posted for messages from `source` alone, in posting order.
    ///
    /// Cost: constant where none is from anybody alone; else a look at every posted receive the first
    /// times, and in the long run only at those. Allocates. Meant for the death of a peer.
    pub fn posted_from(&mut self, source: SourceIndex) -> Vec<u32> {
        self.expected.from(source)
    }

    /// The earliest posted receive whose name is `name`. A receive has the same name, that is what
    /// `name_of` says, as long as it is posted.
    ///
    /// Cost: a look at every posted receive, the first times; then, until others are posted, that of a
    /// search among what is sorted. So to take all of them off one by one, in any order, takes about as
    /// long as to sort them. Meant for cancelling.
    pub fn earliest_posted(&mut self, name: u64, name_of: impl Fn(u32) -> u64) -> Option<u32> {
        self.expected.earliest(name, name_of)
    }

    /// The tag that a posted receive asks for, in the bits that it does not ignore.
    pub fn posted_tag(&self, receive: u32) -> u64 {
        self.expected.tag(receive)
    }

    /// Whether the receive `receive` is posted, with [`STICKY`] or without. Cost: constant.
    pub fn is_posted(&self, receive: u32) -> bool {
        self.expected.holds(receive)
    }

    /// How many receives are posted.
    #[inline]
    pub fn posted_len(&self) -> usize {
        self.expected.len()
    }

    /// Parks a message that no posted receive matched.
    ///
    /// Ownership: `message` is the caller's: the index of its record, which no other parked message
    /// has; memory grows with the largest. Cost: constant for each class that was searched for
    /// lately; allocates only to grow.
    #[inline]
    pub fn park(&mut self, source: SourceIndex, tag: u64, message: u32) {
        self.unexpected.park(source, tag, message);
    }

    /// What parking `message` makes the matcher grow by: mostly nothing. Units: bytes.
    #[inline]
    pub fn growth_to_park(&self, message: u32) -> usize {
        self.unexpected.growth(message)
    }

    /// Finds the earliest parked message that a receive matches, and leaves it parked.
    ///
    /// Cost: constant, except that the first search for a class visits every message.
    #[inline]
    pub fn find_unexpected(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<u32> {
        self.unexpected.find(source, tag, ignore)
    }

    /// Removes the parked message `message`.
    ///
    /// Cost: constant for each class that was searched for lately. Panics if it is not parked.
    #[inline]
    pub fn remove_unexpected(&mut self, message: u32) {
        self.unexpected.remove(message);
    }

    /// Finds the earliest parked message that a receive matches, and removes it.
    ///
    /// Cost: as `find_unexpected` and `remove_unexpected`; no allocation once the class is known.
    #[inline]
    pub fn take_unexpected(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<u32> {
        self.unexpected.take(source, tag, ignore)
    }

    /// All parked messages in order of arrival, each with its source.
    ///
    /// Cost: allocates, and sorts; meant for discarding and for the death of a peer.
    pub fn unexpected(&self) -> impl Iterator<Item = (u32, SourceIndex)> + use<> {
        self.unexpected.iter()
    }

    /// Whether the message `message` is parked. Cost: constant.
    pub fn is_parked(&self, message: u32) -> bool {
        self.unexpected.holds(message)
    }

    /// How many messages are parked.
    #[inline(always)]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }
}
