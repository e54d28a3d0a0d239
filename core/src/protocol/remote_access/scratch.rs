//! Room for the operands and results of one atomic.

use crate::{memory::Piece, protocol::atomic::ATOMIC_BYTES_MAX};

const WORDS: usize = ATOMIC_BYTES_MAX / 8;

/// Two stretches of words, made when they are first needed and kept.
#[derive(Default)]
pub struct Scratch {
    operands: Vec<u64>,
    results: Vec<u64>,
}

impl Scratch {
    fn make(&mut self) {
        if self.operands.is_empty() {
            self.operands.resize(WORDS, 0);
            self.results.resize(WORDS, 0);
        }
    }

    /// Room for what is about to be sent, or has just come.
    pub(crate) fn operands(&mut self) -> Piece {
        self.make();
        Piece::of_words(&mut self.operands)
    }

    /// The operands, and room for the results.
    pub fn parts(&mut self) -> (&[u64], &mut [u64]) {
        self.make();
        (&self.operands, &mut self.results)
    }

    /// The first `length` bytes of the results.
    pub(crate) fn results(&mut self, length: usize) -> Piece {
        Piece::of_words(&mut self.results).part(0, length)
    }
}
