//! Whether a buffer will come again: keeping its registration is a guess, and this is how it went.

/// How it went with the buffers of one purpose.
#[derive(Debug)]
pub struct Guess {
    /// Buffers that may be registered only because they may come again. Spent by each, and earned twice by
    /// each that came again.
    trust: u32,
    /// How much was in vain lately: unmapped before it was used again.
    in_vain: u32,
}

impl Guess {
    /// As many as benchmarks have messages under way.
    pub const TRUST_FIRST: u32 = 64;
    const TRUST_MAX: u32 = 128;
    /// One in vain outweighs one that came again.
    const IN_VAIN: u32 = 2;
    /// From there on one of [`Self::RETRY`] uses is tried.
    const IN_VAIN_MAX: u32 = 16;
    const RETRY: u64 = 64;

    /// Before the first.
    pub fn new() -> Guess {
        Guess { trust: Self::TRUST_FIRST, in_vain: 0 }
    }

    /// A registration was used again.
    pub fn came_again(&mut self) {
        self.trust = (self.trust + 2).min(Self::TRUST_MAX);
        self.in_vain = self.in_vain.saturating_sub(1);
    }

    /// One was unmapped before it was used again.
    pub fn was_in_vain(&mut self) {
        self.in_vain = (self.in_vain + Self::IN_VAIN).min(2 * Self::IN_VAIN_MAX);
    }

    /// Whether to keep a registration, at the use of that number, which is made `anyway` or for that alone.
    pub fn tries(&mut self, anyway: bool, clock: u64) -> bool {
        if self.in_vain >= Self::IN_VAIN_MAX && !clock.is_multiple_of(Self::RETRY) {
            return false;
        }
        if anyway {
            return true;
        }
        let left = self.trust.checked_sub(1);
        self.trust = left.unwrap_or(0);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_tried_and_each_that_comes_again_earns_two() {
        let mut guess = Guess::new();
        let tried = |guess: &mut Guess| (0..1_000).filter(|&at| guess.tries(false, at)).count();
        assert_eq!(tried(&mut guess), 64);
        assert_eq!(tried(&mut guess), 0);
        assert!(guess.tries(true, 0), "what is registered anyway is another matter");
        guess.came_again();
        assert_eq!(tried(&mut guess), 2);
        (0..1_000).for_each(|_| guess.came_again());
        assert_eq!(tried(&mut guess), 128);
    }

    #[test]
    fn after_enough_in_vain_one_of_many_is_tried() {
        let mut guess = Guess::new();
        let tried = |guess: &mut Guess| (1..=640).filter(|&at| guess.tries(true, at)).count();
        (0..7).for_each(|_| guess.was_in_vain());
        assert_eq!(tried(&mut guess), 640);
        guess.was_in_vain();
        assert_eq!(tried(&mut guess), 10);
        // One that comes again is not enough for one that does not.
        for _ in 0..100 {
            guess.came_again();
            guess.was_in_vain();
        }
        assert_eq!(tried(&mut guess), 10);
        (0..17).for_each(|_| guess.came_again());
        assert_eq!(tried(&mut guess), 640);
    }
}
