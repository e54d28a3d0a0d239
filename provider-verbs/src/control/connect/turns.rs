//! Whose turn it is to connect.
//!
//! A process that connects to many has few handshakes under way at a time. A peer that is silent does not
//! hold a turn for long: its connect goes on beside those whose turn it is.

use std::time::{Duration, Instant};

use super::Step;
use crate::{control::thread::ControlThread, verbs::Verbs};

/// Connects that have a turn at a time; the others wait.
const CONNECTING_MAX: usize = 32;
/// How long a turn lasts without an answer.
const SLOW_ANSWER: Duration = Duration::from_millis(200);

impl<V: Verbs> ControlThread<V> {
    /// A connect waits for its turn, behind the others. For its first turn it waits as long as that takes, which
    /// is bounded by those in front of it.
    pub(super) fn line_up(&mut self, id: u64) {
        if let Some(outgoing) = self.outgoing.get_mut(&id) {
            outgoing.step = Step::Waiting;
            let (has_begun, deadline) = (outgoing.attempts > 0, outgoing.deadline);
            if has_begun {
                self.wait_until(id, deadline);
            }
            self.waiting.push_back(id);
        }
    }

    /// Lets connects begin whose turn has come.
    pub(in crate::control) fn begin_waiting(&mut self) {
        while self.connecting < CONNECTING_MAX
            && let Some(id) = self.waiting.pop_front()
        {
            if let Some(outgoing) = self.outgoing.get_mut(&id) {
                if outgoing.attempts == 0 {
                    let (now, record) = (Instant::now(), self.stations.get(&outgoing.station));
                    let timeout = record.map_or(Duration::ZERO, |record| record.connect_timeout);
                    (outgoing.since, outgoing.deadline) = (now, now + timeout);
                }
                // It may be over at once, and is counted then.
                outgoing.step = Step::Pausing;
                outgoing.has_turn = true;
                self.connecting += 1;
                // Should a bug of ours end the attempt, its turn ends all the same.
                self.wait_until(id, Instant::now() + SLOW_ANSWER);
                self.attempt(id);
            }
        }
    }

    /// The turn of a connect is over, if it has one.
    pub(super) fn end_turn(&mut self, id: u64) {
        if let Some(outgoing) = self.outgoing.get_mut(&id)
            && std::mem::take(&mut outgoing.has_turn)
        {
            self.connecting -= 1;
        }
    }

    /// What a connect has begun may take until then, and its turn less.
    pub(super) fn wait_until(&mut self, id: u64, until: Instant) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        outgoing.until = until;
        let turn_ends = Instant::now() + SLOW_ANSWER;
        let at = if outgoing.has_turn { until.min(turn_ends) } else { until };
        self.set_timer(id, Some(at));
    }
}
