//! What can be wrong with what a peer writes into a lane.

use kestrel_core::ring::lane::LaneCorrupt;

use crate::lane::SPILL_MAX;

/// What is wrong with a packet or an index that a peer wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// An index.
    #[error(transparent)]
    Index(#[from] LaneCorrupt),
    /// More inline content than fits a line.
    #[error("a packet of {words} words and {length} bytes does not fit its line")]
    InlineTooLong {
        /// Words in front of the payload.
        words: usize,
        /// Bytes of payload.
        length: usize,
    },
    /// A spilled payload longer than ever sent.
    #[error("a spilled payload of {length} bytes is longer than {SPILL_MAX}")]
    SpillTooLong {
        /// Bytes of payload.
        length: usize,
    },
    /// A chunk outside the sender's pool.
    #[error("a payload of {length} bytes at {offset} is outside a pool of {pool} bytes")]
    OutsidePool {
        /// Where it is said to start.
        offset: usize,
        /// Bytes of payload.
        length: usize,
        /// Bytes of the pool.
        pool: usize,
    },
    /// A chunk more than may be given.
    #[error("a chunk at {offset} is given, and none of those given before has come back")]
    TooManyGiven {
        /// Where the chunk is said to start.
        offset: usize,
    },
    /// A payload where no chunk was given.
    #[error(
        "a payload of {length} bytes is said to come back at {offset}, where nothing was given"
    )]
    NotGiven {
        /// Where it is said to start.
        offset: usize,
        /// Bytes of payload.
        length: usize,
    },
}
