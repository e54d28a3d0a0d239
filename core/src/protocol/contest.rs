//! Several manners of moving the same bytes: which is fastest here, found by trying each.
//!
//! Between two hosts a message can be read by the receiver's adapter, or go as packets, which are copied at
//! both ends. Which takes less depends on the link, the adapter and the processors.
//!
//! Between two processes of one host a long message can be copied by the kernel, from one buffer to
//! the other, or go as packets, copied in by its sender and out by its receiver. Which takes less
//! depends on what the kernel asks for a page and on what two cores ask for a line: there are
//! machines where the first is twice as fast, and others where the second is four times as fast.
//!
//! So the operations of each length go each manner in turns, in rounds of up to eight, and
//! the manner whose middle round took least is taken from then on. After a while they are compared
//! again: an application has phases, and a virtual machine moves. A manner that took far more the
//! last time, or for another length, is an outsider: a single operation, the second of two, shows
//! whether that is still so. Programs that send a few hundred messages of a length would pay for
//! every trial otherwise.
//!
//! A target that computes serves packets late, at any moment, and it may be long until the next
//! comparison. So where packets won, single one-sided operations are watched meanwhile: several in a row
//! that take many times as long as they did have the manners compared at once. Where that is in vain,
//! as among processes that share a core, it is done less and less.
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
/// For how many operations a decision holds, and how many at most: each that is the same as the one
/// before holds twice as long, until the slower manner takes one in a thousand.
const VALID_MIN: u32 = 512;
const VALID_MAX: u32 = 32_768;
/// For how many operations the first decision holds, which is made while buffers have no pages yet and
/// caches are cold: it is often wrong.
const VALID_FIRST: u32 = 64;
/// Of those that go as packets by a decision one of so many is watched: a prime, since programs go round
/// their peers.
const WATCHED: u32 = 17;
/// So many that were watched, one after the other, have taken so many times as long as the decision says:
/// it holds no more.
const SURPRISES: u32 = 3;
const SURPRISING: u64 = 8;
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

const MANNERS: [Manner; 2] = [Manner::Direct, Manner::Packets];

/// What is moved, and how if directly: each has a contest of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discipline {
    /// Messages that the kernel copies.
    CopiedMessages,
    /// Messages that the receiver's adapter reads. Of these only those that go alone are compared: packets
    /// overtake what an adapter reads, so in a stream times tell of both manners. And packets of a message that
    /// nobody has asked for yet are over when the receiver's engine has them: receivers that are late make them win.
    FetchedMessages,
    Writes,
    Reads,
}

impl Discipline {
    const COUNT: usize = Discipline::Reads as usize + 1;

    /// That of one-sided operations.
    pub(crate) fn of_one_sided(reads: bool) -> Discipline {
        if reads { Discipline::Reads } else { Discipline::Writes }
    }
}

/// An operation that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    discipline: Discipline,
    manner: Manner,
    started: Instant,
    streams: bool,
    /// Whether it goes by a decision.
    watched: bool,
}

/// What has been found out about one discipline.
#[derive(Debug)]
pub(crate) struct Contest {
    discipline: Discipline,
    /// Of those that go alone, and of those of a stream.
    lengths: [[Trial; LENGTHS]; 2],
}

/// What has been found out about all disciplines.
#[derive(Debug)]
pub(crate) struct Contests([Contest; Discipline::COUNT]);

impl Contests {
    #[inline(always)]
    pub(crate) fn of(&mut self, discipline: Discipline) -> &mut Contest {
        &mut self.0[discipline as usize]
    }

    /// A timed operation is over. `before` is when the one before it to the same peer was.
    #[cold]
    pub(crate) fn finish(&mut self, total: usize, run: Run, before: &mut Option<Instant>) {
        let end = Instant::now();
        let start = before.replace(end).map_or(run.started, |before| before.max(run.started));
        self.of(run.discipline).note(total, run, end.duration_since(start).as_nanos() as u64);
    }
}

impl Default for Contests {
    fn default() -> Contests {
        use Discipline::*;
        Contests([CopiedMessages, FetchedMessages, Writes, Reads].map(Contest::new))
    }
}

/// What has been found out about one length.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// What an operation took in each round of each manner. Units: picoseconds a byte.
    rounds: [[u64; ROUNDS]; MANNERS.len()],
    /// Rounds of all manners that are over.
    over: usize,
    /// Operations of the present round that were timed, what all took together, and what the fastest
    /// did.
    count: u64,
    sum: u64,
    least: u64,
    /// The manner of the present round.
    next: Manner,
    /// For how many operations the last decision holds; none: a trial is under way.
    left: u32,
    /// The last decision, and for how many operations it held.
    last: (Manner, u32),
    /// Whether the present operation of an outsider counts.
    warm: bool,
    /// Which manners take part by one operation, unless that shows that they do not belong here.
    outsiders: [bool; MANNERS.len()],
    watch: Watch,
}

/// What is seen of operations by a decision.
#[derive(Clone, Copy, Debug)]
struct Watch {
    /// What one took when it was decided. Units: picoseconds a byte.
    took: u64,
    /// How many have surprised, one after the other.
    surprises: u32,
    /// Whether they have ended the last decision.
    ended: bool,
    /// For how many operations they cannot end one.
    patience: u32,
}

impl Trial {
    const NEW: Trial = Trial {
        rounds: [[0; ROUNDS]; MANNERS.len()],
        over: 0,
        count: 0,
        sum: 0,
        least: u64::MAX,
        next: Manner::Direct,
        left: 0,
        last: (Manner::Direct, 0),
        warm: false,
        outsiders: [false; MANNERS.len()],
        watch: Watch { took: 0, surprises: 0, ended: false, patience: WATCHED },
    };

    /// Whether nothing is known, and nothing was begun.
    fn is_new(&self) -> bool {
        self.last.1 == 0 && self.over == 0 && self.count == 0 && self.next == MANNERS[0]
    }

    /// Adds a time, in rounds of `round` operations at least. Answers what each manner takes if that is
    /// known by now.
    ///
    /// Several of a stream may end at once, and the time of all of them is that of the first, so a
    /// round is not over in the middle of them, and counts as what they take on average. One that
    /// goes alone takes what the fastest does, and as much more as its peer was not at it: where
    /// processes share a core, many times as much.
    fn note(
        &mut self,
        manner: Manner,
        each: u64,
        round: u64,
        streams: bool,
    ) -> Option<[u64; MANNERS.len()]> {
        // What was started in the round before is behind us.
        if manner != self.next {
            return None;
        }
        let round = if self.is_outside(manner) { 1 } else { round };
        if self.count < round || each < self.sum / self.count / 2 {
            self.count += 1;
            self.sum += each;
            self.least = self.least.min(each);
            return None;
        }
        if self.is_outside(manner) && !self.warm {
            // Nothing was ready for the first. This is the next.
            (self.warm, self.count, self.sum, self.least) = (true, 1, each, each);
            return None;
        }
        let took = if streams { self.sum / self.count } else { self.least };
        self.rounds[manner as usize][self.over] = took;
        (self.warm, self.count, self.sum, self.least) = (false, 0, 0, u64::MAX);
        let mut later = MANNERS[manner as usize + 1..].iter();
        if let Some(&next) = later.find(|&&manner| self.over == 0 || !self.is_outside(manner)) {
            self.next = next;
            return None;
        }
        if self.over == 0 {
            self.let_in();
        }
        self.over += 1;
        let mut inside = MANNERS.iter().filter(|&&manner| !self.is_outside(manner));
        let (first, second) = (inside.next(), inside.next());
        if self.over == ROUNDS || second.is_none() {
            return Some(self.decide());
        }
        self.next = *first.expect("whoever took least is inside");
        None
    }

    fn is_outside(&self, manner: Manner) -> bool {
        self.outsiders[manner as usize]
    }

    /// Lets outsiders in whose operation took no more than the others'.
    fn let_in(&mut self) {
        let took = self.rounds.map(|rounds| rounds[0]);
        let least = *took.iter().min().expect("there are some");
        for (outside, took) in self.outsiders.iter_mut().zip(took) {
            *outside &= is_far(took, least);
        }
    }

    fn decide(&mut self) -> [u64; MANNERS.len()] {
        let took = std::array::from_fn(|manner| {
            let over = if self.outsiders[manner] { 1 } else { self.over };
            let rounds = &mut self.rounds[manner][..over];
            rounds.sort_unstable();
            rounds[over / 2]
        });
        // Packets keep both processors busy: a draw is not theirs.
        let cost = |manner: &&Manner| match manner {
            Manner::Direct => took[0],
            &&packets => took[packets as usize].saturating_mul(103) / 100,
        };
        let winner = *MANNERS.iter().min_by_key(cost).expect("there are some");
        let (before, held) = self.last;
        let left = match held {
            0 => VALID_FIRST,
            _ if before == winner => (held * 2).clamp(VALID_MIN, VALID_MAX),
            _ => VALID_MIN,
        };
        let outsiders = took.map(|each| is_far(each, took[winner as usize]));
        let patience = match self.watch.ended {
            _ if before != winner => WATCHED,
            true => (2 * self.watch.patience).min(VALID_MAX / 2),
            false => (self.watch.patience / 2).max(WATCHED),
        };
        let watch = Watch { took: took[winner as usize], patience, ..Trial::NEW.watch };
        *self = Trial { left, last: (winner, left), outsiders, watch, ..Trial::NEW };
        took
    }

    /// An operation by the last decision took so long.
    fn see(&mut self, each: u64) {
        let surprises = each > self.watch.took.saturating_mul(SURPRISING);
        self.watch.surprises = if surprises { self.watch.surprises + 1 } else { 0 };
        let held = self.last.1 - self.left;
        if self.watch.surprises >= SURPRISES && held >= self.watch.patience {
            (self.left, self.watch.ended) = (0, true);
            self.outsiders = [false; MANNERS.len()];
        }
    }
}

/// Whether who takes so long is an outsider beside one that takes `least`.
fn is_far(took: u64, least: u64) -> bool {
    2 * took > 3 * least
}

impl Contest {
    fn new(discipline: Discipline) -> Contest {
        Contest { discipline, lengths: [[Trial::NEW; LENGTHS]; 2] }
    }

    /// How an operation of `total` bytes should go; and its time, if that is wanted at its end.
    #[inline]
    pub(crate) fn choose(&mut self, total: usize, streams: bool) -> (Manner, Option<Run>) {
        self.choose_or_watch(total, streams, false)
    }

    /// The same of one whose end says that its peer has it, whichever way it goes.
    #[inline]
    pub(crate) fn choose_watched(&mut self, total: usize, streams: bool) -> (Manner, Option<Run>) {
        // What one of a stream waits behind is known if all are timed.
        self.choose_or_watch(total, streams, !streams)
    }

    #[inline(always)]
    fn choose_or_watch(
        &mut self,
        total: usize,
        streams: bool,
        watches: bool,
    ) -> (Manner, Option<Run>) {
        let discipline = self.discipline;
        let trial = &mut self.lengths[usize::from(streams)][length_of(total)];
        let run =
            |manner, watched| Run { discipline, manner, started: Instant::now(), streams, watched };
        if trial.left == 0 {
            return (trial.next, Some(run(trial.next, false)));
        }
        trial.left -= 1;
        let manner = trial.last.0;
        let watched = watches && manner == Manner::Packets && trial.left.is_multiple_of(WATCHED);
        (manner, watched.then(|| run(manner, true)))
    }

    /// Whether how an operation of `total` bytes goes is settled, and `suits`. If so, it goes.
    #[inline]
    pub(crate) fn take_settled(
        &mut self,
        total: usize,
        streams: bool,
        suits: impl FnOnce(Manner) -> bool,
    ) -> bool {
        let trial = &mut self.lengths[usize::from(streams)][length_of(total)];
        let goes = trial.left > 0 && suits(trial.last.0);
        trial.left -= u32::from(goes);
        goes
    }

    fn note(&mut self, total: usize, run: Run, nanoseconds: u64) {
        let Run { discipline, manner, streams, watched, .. } = run;
        let lengths = &mut self.lengths[usize::from(streams)];
        let trial = &mut lengths[length_of(total)];
        let each = nanoseconds.saturating_mul(1000) / total as u64;
        if watched != (trial.left > 0) {
            // It began before the decision, or by the one before this trial.
            return;
        }
        if watched {
            return trial.see(each);
        }
        let round = (ROUND_BYTES / total as u64).clamp(1, ROUND);
        if let Some(took) = trial.note(manner, each, round, streams) {
            let (choice, outsiders) = (trial.last.0, trial.outsiders);
            tracing::debug!(?discipline, bytes = total, streams, ?took, ?choice, "ps a byte");
            for other in lengths.iter_mut().filter(|other| other.is_new()) {
                other.outsiders = outsiders;
            }
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
mod tests;
