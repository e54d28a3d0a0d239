//! Two manners of moving the same bytes: which is faster here, found by trying both.
//!
//! Between two processes of one host a long message can be copied by the kernel, from one buffer to
//! the other, or go as packets, copied in by its sender and out by its receiver. Which takes less
//! depends on what the kernel asks for a page and on what two cores ask for a line: there are
//! machines where the first is twice as fast, and others where the second is four times as fast.
//! So the operations of each length go either manner in turns, in rounds of up to eight, and
//! the manner whose middle round took less is taken from then on. After a while they are compared
//! again: an application has phases, and a virtual machine moves.
//!
//! What counts is the time of service: from the start of an operation, or from the end of the one
//! before it to the same peer, whichever is later, until the peer has all of it. So what a message
//! of a stream waits behind others is not counted.

use std::time::Instant;

/// Operations of a round, at least: so many, or fewer that have so many bytes, since what takes
/// long varies less.
const ROUND: u64 = 8;
/// Units: bytes.
const ROUND_BYTES: u64 = 2 << 20;
/// Rounds of either manner.
const ROUNDS: usize = 3;
/// For how many operations the first decision holds, and how many at most: each that is the same
/// as the one before holds twice as long, until the slower manner takes one in a thousand.
const VALID_MIN: u32 = 512;
const VALID_MAX: u32 = 32_768;
/// The shortest operations that are told apart by length: the logarithm of their bytes.
const SHORTEST: u32 = 11;
/// Lengths that are told apart, each twice the one before. The last has all that are longer.
const LENGTHS: usize = 13;

/// How bytes get to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// From one buffer to the other, without a place between.
    Direct,
    /// As packets.
    Packets,
}

impl Manner {
    fn other(self) -> Manner {
        match self {
            Manner::Direct => Manner::Packets,
            Manner::Packets => Manner::Direct,
        }
    }
}

/// An operation that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    manner: Manner,
    started: Instant,
    streams: bool,
}

/// What has been found out about operations of one kind.
#[derive(Debug)]
pub(crate) struct Contest {
    /// What they are, for the log.
    kind: &'static str,
    /// Of those that go alone, and of those of a stream.
    lengths: [[Trial; LENGTHS]; 2],
}

/// What has been found out about all kinds.
#[derive(Debug)]
pub(crate) struct Contests {
    pub(crate) messages: Contest,
    pub(crate) writes: Contest,
    pub(crate) reads: Contest,
}

impl Contests {
    /// That of reads, or of writes.
    #[inline(always)]
    pub(crate) fn of(&mut self, reads: bool) -> &mut Contest {
        if reads { &mut self.reads } else { &mut self.writes }
    }
}

impl Default for Contests {
    fn default() -> Contests {
        let [messages, writes, reads] = ["messages", "writes", "reads"].map(Contest::new);
        Contests { messages, writes, reads }
    }
}

/// What has been found out about one length.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// What an operation took in each round, direct and as packets. Units: picoseconds a byte.
    rounds: [[u64; ROUNDS]; 2],
    /// Rounds that are over.
    over: usize,
    /// Operations of the present round that were timed, and what all took together.
    count: u64,
    sum: u64,
    /// The manner of the present round, or the one that has won.
    next: Manner,
    /// For how many operations that holds; none: a trial is under way.
    left: u32,
    /// The last decision, and for how many operations it held.
    last: (Manner, u32),
}

impl Trial {
    const NEW: Trial = Trial {
        rounds: [[0; ROUNDS]; 2],
        over: 0,
        count: 0,
        sum: 0,
        next: Manner::Direct,
        left: 0,
        last: (Manner::Direct, VALID_MIN / 2),
    };

    /// Adds a time. Answers what either manner takes if that is known by now.
    ///
    /// Several may end at once, and the time of all of them is that of the first, so a round is
    /// not over in the middle of them.
    fn note(&mut self, manner: Manner, each: u64, round: u64) -> Option<[u64; 2]> {
        // What was started in the round before is behind us.
        if manner != self.next {
            return None;
        }
        if self.count < round || each < self.sum / self.count / 2 {
            self.count += 1;
            self.sum += each;
            return None;
        }
        self.rounds[manner as usize][self.over / 2] = self.sum / self.count;
        self.over += 1;
        (self.count, self.sum) = (0, 0);
        self.next = manner.other();
        (self.over == 2 * ROUNDS).then(|| self.decide())
    }

    fn decide(&mut self) -> [u64; 2] {
        let [direct, packets] = self.rounds.map(|mut rounds| {
            rounds.sort_unstable();
            rounds[ROUNDS / 2]
        });
        // Packets keep both processors busy: a draw is not theirs.
        let better = packets + packets / 10 < direct;
        let winner = if better { Manner::Packets } else { Manner::Direct };
        let (before, held) = self.last;
        let left = if before == winner { VALID_MAX.min(held * 2) } else { VALID_MIN };
        *self = Trial { next: winner, left, last: (winner, left), ..Trial::NEW };
        [direct, packets]
    }
}

impl Contest {
    fn new(kind: &'static str) -> Contest {
        Contest { kind, lengths: [[Trial::NEW; LENGTHS]; 2] }
    }

    /// How an operation of `total` bytes should go; and its time, if that is wanted at its end.
    #[inline]
    pub(crate) fn choose(&mut self, total: usize, streams: bool) -> (Manner, Option<Run>) {
        let trial = &mut self.lengths[usize::from(streams)][length_of(total)];
        if trial.left > 0 {
            trial.left -= 1;
            return (trial.next, None);
        }
        (trial.next, Some(Run { manner: trial.next, started: Instant::now(), streams }))
    }

    /// A timed operation is over. `before` is when the one before it to the same peer was.
    #[cold]
    pub(crate) fn finish(&mut self, total: usize, run: Run, before: &mut Option<Instant>) {
        let end = Instant::now();
        let start = before.replace(end).map_or(run.started, |before| before.max(run.started));
        self.note(total, run, end.duration_since(start).as_nanos() as u64);
    }

    fn note(&mut self, total: usize, run: Run, nanoseconds: u64) {
        let Run { manner, streams, .. } = run;
        let trial = &mut self.lengths[usize::from(streams)][length_of(total)];
        if trial.left > 0 {
            return;
        }
        let round = (ROUND_BYTES / total as u64).clamp(1, ROUND);
        let each = nanoseconds.saturating_mul(1000) / total as u64;
        if let Some([direct, packets]) = trial.note(manner, each, round) {
            let (kind, choice) = (self.kind, trial.next);
            tracing::debug!(kind, bytes = total, streams, direct, packets, ?choice, "ps a byte");
        }
    }
}

/// Which of the lengths `total` bytes are.
#[inline(always)]
fn length_of(total: usize) -> usize {
    let doublings = (total | 1).ilog2().saturating_sub(SHORTEST);
    (doublings as usize).min(LENGTHS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: usize = 1000;

    /// What each manner takes. Units: picoseconds a byte.
    type Costs = [u64; 2];

    /// Plays `count` operations, of which `batch` end at once; how many went as packets.
    fn play(contest: &mut Contest, count: usize, batch: usize, costs: Costs) -> usize {
        let mut packets = 0;
        let mut left = count;
        while left > 0 {
            let started: Vec<_> = (0..batch).map(|_| contest.choose(TOTAL, false)).collect();
            left = left.saturating_sub(batch);
            packets += started.iter().filter(|(manner, _)| *manner == Manner::Packets).count();
            // They are served one after the other, and all of them are heard of with the last.
            let mut took = started.iter().map(|(manner, _)| costs[*manner as usize]).sum();
            for run in started.into_iter().filter_map(|(_, run)| run) {
                contest.note(TOTAL, run, std::mem::take(&mut took));
            }
        }
        packets
    }

    fn new() -> Contest {
        Contest::new("tests")
    }

    #[test]
    fn the_faster_manner_is_taken() {
        for batch in [1, 3, 16, 64] {
            let packets = play(&mut new(), 100_000, batch, [100, 50]);
            assert!((95_000..100_000).contains(&packets), "batches of {batch}: {packets}");
            let packets = play(&mut new(), 100_000, batch, [50, 100]);
            assert!((1..5000).contains(&packets), "batches of {batch}: {packets}");
        }
    }

    #[test]
    fn a_draw_is_direct() {
        assert!(play(&mut new(), 100_000, 1, [100, 95]) < 1000);
    }

    #[test]
    fn what_changes_is_noticed() {
        let mut contest = new();
        play(&mut contest, 100_000, 1, [100, 50]);
        play(&mut contest, 2 * VALID_MAX as usize, 1, [50, 100]);
        assert_eq!(play(&mut contest, 100, 1, [50, 100]), 0);
    }

    #[test]
    fn one_that_waited_does_not_decide() {
        let mut trial = Trial::NEW;
        let decided = (0..100).find_map(|at| {
            // The first two rounds have one each.
            let each = if at == 5 || at == 12 { 1_000_000 } else { [100, 50][trial.next as usize] };
            trial.note(trial.next, each, ROUND)
        });
        assert_eq!(decided, Some([100, 50]));
    }

    #[test]
    fn those_that_are_lost_are_not_waited_for() {
        let mut contest = new();
        for _ in 0..1000 {
            contest.choose(TOTAL, false);
        }
        assert!(play(&mut contest, 10_000, 1, [100, 50]) > 9000);
    }

    #[test]
    fn lengths_do_not_touch_each_other() {
        let mut contest = new();
        play(&mut contest, 10_000, 1, [100, 50]);
        assert_eq!(contest.choose(TOTAL, false).0, Manner::Packets);
        assert_eq!(contest.choose(TOTAL * 16, false).0, Manner::Direct);
        assert_eq!(contest.choose(TOTAL, true).0, Manner::Direct);
        let all = [1, 2047, 2048, 4096, 5000, 8 << 20, 1 << 40].map(length_of);
        assert_eq!(all, [0, 0, 0, 1, 1, 12, 12]);
    }
}
