//! Which way the next attempt takes: through the connection manager, or over TCP.
//!
//! The one that leads to nobody gives way to the other, where there are two.

use std::time::{Duration, Instant};

/// How long each step may take until TCP is tried, and TCP until the manager is again: that repeats a
/// message that was lost after seconds.
pub(super) const STEP_WAIT: Duration = Duration::from_secs(1);

/// After so many attempts through the manager that end without a word TCP is tried, and then after so many
/// each time. The first take a quarter of a second.
const SILENT_FIRST: u32 = 8;
const SILENT_EACH: u32 = 4;

/// The way of the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    has_manager: bool,
    by_manager: bool,
    /// The last attempt through the manager found nobody, maybe since the peer was just being opened.
    was_early: bool,
    /// How often whoever is met through the manager has let go of us without a word.
    silent: u32,
}

impl Way {
    /// The first: through the manager, if there is one.
    pub fn first(has_manager: bool) -> Way {
        Way { has_manager, by_manager: has_manager, was_early: false, silent: 0 }
    }

    pub fn is_by_manager(self) -> bool {
        self.by_manager
    }

    /// Until when TCP is tried: it may not pass between the hosts.
    pub fn tcp_until(self, deadline: Instant, now: Instant) -> Instant {
        if self.has_manager { deadline.min(now + STEP_WAIT) } else { deadline }
    }

    /// TCP finds no host, or a silent one.
    pub fn tcp_led_nowhere(&mut self) {
        self.by_manager = self.has_manager;
    }

    /// The manager cannot help.
    pub fn manager_failed(&mut self) {
        self.by_manager = false;
    }

    /// Whoever is met through the manager lets go of us without a word. An endpoint that is being opened does,
    /// and is soon asked again; a program that is none of ours does always, so TCP has a turn by and by.
    pub fn let_go(&mut self) {
        self.silent += 1;
        self.by_manager = self.silent < SILENT_FIRST || !self.silent.is_multiple_of(SILENT_EACH);
    }

    /// An endpoint lets go of us over TCP: it is asked through the manager again, if it was met there.
    pub fn tcp_let_go(&mut self) {
        self.by_manager |= self.silent > 0;
    }

    /// Nobody listens there.
    pub fn nobody_there(&mut self) {
        self.was_early = self.by_manager;
        self.by_manager = self.has_manager && !self.by_manager;
    }

    /// The peer has no path to us, over TCP. Whether the manager is asked once more, which may know one.
    pub fn no_path_there(&mut self) -> bool {
        let again = std::mem::take(&mut self.was_early);
        self.by_manager |= again;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_manager_it_is_tcp_always() {
        let (mut way, now) = (Way::first(false), Instant::now());
        let deadline = now + 5 * STEP_WAIT;
        assert_eq!(way.tcp_until(deadline, now), deadline);
        way.nobody_there();
        way.tcp_led_nowhere();
        assert!(!way.no_path_there());
        assert_eq!(way, Way::first(false));
    }

    #[test]
    fn one_way_gives_way_to_the_other() {
        let (mut way, now) = (Way::first(true), Instant::now());
        assert!(way.is_by_manager());
        way.nobody_there();
        assert!(!way.is_by_manager());
        assert_eq!(way.tcp_until(now + 5 * STEP_WAIT, now), now + STEP_WAIT);
        assert_eq!(way.tcp_until(now, now), now);
        way.nobody_there();
        assert!(way.is_by_manager());
        way.manager_failed();
        assert!(!way.is_by_manager());
        way.tcp_led_nowhere();
        assert!(way.is_by_manager());
    }

    #[test]
    fn tcp_has_a_turn_where_the_manager_leads_to_somebody_else() {
        let mut way = Way::first(true);
        for _ in 1..SILENT_FIRST {
            way.let_go();
            assert!(way.is_by_manager());
        }
        for _ in 0..3 {
            way.let_go();
            assert!(!way.is_by_manager());
            way.tcp_let_go();
            for _ in 1..SILENT_EACH {
                assert!(way.is_by_manager());
                way.let_go();
            }
        }
        way.manager_failed();
        assert!(!way.is_by_manager());
    }

    #[test]
    fn a_manager_that_came_too_early_is_asked_once_more() {
        let mut way = Way::first(true);
        way.nobody_there();
        assert!(way.no_path_there() && way.is_by_manager());
        way.manager_failed();
        assert!(!way.no_path_there() && !way.is_by_manager(), "once");
    }
}
