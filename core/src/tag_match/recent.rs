//! The bucket that was looked up last.
//!
//! Most applications match the same key again and again. Where its bucket is remembered a processor guesses
//! that it is the same, and reads what lies there before the message has told its tag: half a round trip of
//! 8 bytes waits for neither multiplication of the hash (docs/performance.md).

use super::table::{Key, Table};

/// A key and its bucket in one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    key: Key,
    bucket: usize,
}

impl Recent {
    /// Of a table without memory. [`Self::renew`] comes before anything else.
    pub(super) const NONE: Recent = Recent { key: Key { tag: 0, source: 0 }, bucket: 0 };

    /// The bucket of `key` in that table.
    #[inline(always)]
    pub(super) fn bucket(&mut self, table: &Table, key: Key) -> usize {
        if !self.key.matches(key) {
            *self = Recent { key, bucket: table.bucket(key) };
        }
        self.bucket
    }

    /// The table may have grown.
    pub(super) fn renew(&mut self, table: &Table) {
        self.bucket = table.bucket(self.key);
    }
}
