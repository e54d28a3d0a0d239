//! What an end of a connection says came to it, when it goes: the device that would acknowledge it, if
//! one of its acknowledgements was lost, does not any more.

/// How many packets came, and of which connection: the two ends may have got hold of different ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Wrapping.
    pub received: u32,
    /// The remote key of the memory that the sender has its credit in. 0 if nothing came.
    pub credit_key: u32,
}

impl Receipt {
    pub fn to_word(self) -> u64 {
        u64::from(self.received) | u64::from(self.credit_key) << 32
    }

    pub fn from_word(word: u64) -> Receipt {
        Receipt { received: word as u32, credit_key: (word >> 32) as u32 }
    }
}
