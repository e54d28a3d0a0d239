//! When a loop that polls gives up: nothing has moved for long.

use std::time::{Duration, Instant};

/// With nothing moved for this long, whoever should have moved it is taken for dead.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// Polls between two looks at the clock.
const POLLS_A_LOOK: u32 = 100_000;

/// The empty polls since something moved.
#[derive(Default)]
pub struct Stall {
    polls: u32,
    since: Option<Instant>,
}

impl Stall {
    /// Something has moved.
    #[inline(always)]
    pub fn end(&mut self) {
        self.polls = 0;
        self.since = None;
    }

    /// Counts an empty poll, and says whether there were too many.
    #[inline(always)]
    pub fn is_too_long(&mut self) -> bool {
        self.polls += 1;
        self.polls >= POLLS_A_LOOK && self.look()
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> bool {
        self.polls = 0;
        self.since.get_or_insert_with(Instant::now).elapsed() > STALL_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_moved_meanwhile_is_no_stall() {
        let mut stall = Stall::default();
        assert!((0..3 * POLLS_A_LOOK).all(|_| !stall.is_too_long()));
        stall.since = stall.since.and_then(|since| since.checked_sub(2 * STALL_MAX));
        assert!((1..POLLS_A_LOOK).all(|_| !stall.is_too_long()) && stall.is_too_long());
        stall.end();
        assert!((0..POLLS_A_LOOK).all(|_| !stall.is_too_long()));
    }
}
