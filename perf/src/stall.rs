//! When a loop that polls gives up: nothing has moved for long.

use std::time::{Duration, Instant};

/// With nothing moved for this long, whoever should have moved it is taken for dead.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// Polls between two looks at the clock.
const POLLS_A_LOOK: u32 = 100_000;

/// The empty polls since something moved.
pub struct Stall {
    polls: u32,
    since: Option<Instant>,
    limit: Duration,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall::of(STALL_MAX)
    }
}

impl Stall {
    /// Of something that moves now and then, at least that often.
    pub fn of(limit: Duration) -> Stall {
        Stall { polls: 0, since: None, limit }
    }

    /// How long nothing may move.
    pub fn limit(&self) -> Duration {
        self.limit
    }

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
        self.since.get_or_insert_with(Instant::now).elapsed() > self.limit
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
