//! Whom of many a poll drives.
//!
//! A queue drives what is bound to it at each read. Of a few that is all of them. Of many most are silent, and one
//! that is busy would pay for all: to look at one that is out of the caches takes some 250 ns, and more over a device.
//! So of those each read drives the ones that moved of late, and some of the others in turn: as many as could have
//! been driven since the last turn. So half of the time goes to either while somebody is busy, and neither waits
//! more than twice as long as it would without the other. Who reads seldom drives all of them each time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Up to so many are all driven by each poll.
const FEW: usize = 16;
/// Who has not moved for as long as this, or twice as long, is one of the others. Units: nanoseconds.
const SWEEP_TIME: u64 = 1_000_000;
/// How many of the others have their turn at least while nobody is busy.
const TURNS: u64 = 8;
/// What a turn is taken for at first, and the least that it is. Units: nanoseconds.
const TURN_TIME: u64 = 256;
const TURN_TIME_MIN: u64 = 32;

/// What a queue drives, in the order of its coming.
#[derive(Debug)]
pub(crate) struct Roster<T: ?Sized> {
    members: Vec<Arc<T>>,
    /// Of many.
    rota: Option<Box<Rota>>,
}

impl<T: ?Sized> Roster<T> {
    /// All are taken for busy at first.
    fn of(members: Vec<Arc<T>>) -> Self {
        let count = members.len();
        Roster { members, rota: (count > FEW).then(|| Box::new(Rota::new(count))) }
    }

    /// The same with members that have gone, or have come behind the others. Who stays is as busy as it was.
    pub(crate) fn changed(&self, change: impl FnOnce(&mut Vec<Arc<T>>)) -> Self {
        let mut members = self.members.clone();
        change(&mut members);
        let mut changed = Roster::of(members);
        if let (Some(before), Some(rota)) = (&self.rota, &mut changed.rota) {
            rota.go_on_from(before);
            let mut left = 0..self.members.len();
            for (place, member) in changed.members.iter().enumerate() {
                let former = left.find(|&former| Arc::ptr_eq(&self.members[former], member));
                let Some(former) = former else { break };
                rota.follow(place, before, former);
            }
        }
        changed
    }

    pub(crate) fn members(&self) -> &[Arc<T>] {
        &self.members
    }

    /// Whether it is not always all of them that are driven.
    #[inline(always)]
    pub(crate) fn are_many(&self) -> bool {
        self.rota.is_some()
    }

    /// Has each member driven that it is time for. Whether anything moved.
    #[inline(always)]
    pub(crate) fn drive(&self, mut drive: impl FnMut(&Arc<T>) -> bool) -> bool {
        match &self.rota {
            None => self.members.iter().fold(false, |moved, member| moved | drive(member)),
            Some(rota) => rota.poll(|place| drive(&self.members[place])),
        }
    }
}

impl<T: ?Sized> Default for Roster<T> {
    fn default() -> Self {
        Roster::of(Vec::new())
    }
}

/// Whose turn it is. Threads that poll at once may lose each other's marks, and then drive somebody later.
#[derive(Debug)]
struct Rota {
    count: usize,
    /// A bit each: whom every poll drives, and who has moved since the last sweep.
    busy: Box<[AtomicU64]>,
    moved: Box<[AtomicU64]>,
    /// Who of the others is next.
    turn: AtomicUsize,
    begun: Instant,
    /// When the last turn ended, and when the last sweep was, since then. Units: nanoseconds.
    turned: AtomicU64,
    swept: AtomicU64,
    /// What a turn takes. Units: nanoseconds.
    turn_time: AtomicU64,
}

impl Rota {
    fn new(count: usize) -> Rota {
        let words = count.div_ceil(64);
        let mut busy: Box<[_]> = (0..words).map(|_| AtomicU64::new(u64::MAX)).collect();
        if let Some(last) = busy.last_mut().filter(|_| !count.is_multiple_of(64)) {
            *last = AtomicU64::new((1 << (count % 64)) - 1);
        }
        Rota {
            count,
            busy,
            moved: (0..words).map(|_| AtomicU64::new(0)).collect(),
            turn: AtomicUsize::new(0),
            begun: Instant::now(),
            turned: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            turn_time: AtomicU64::new(TURN_TIME),
        }
    }

    /// Keeps time as another one did, and knows what that has learned.
    fn go_on_from(&mut self, before: &Rota) {
        self.begun = before.begun;
        for (ours, theirs) in [
            (&self.turned, &before.turned),
            (&self.swept, &before.swept),
            (&self.turn_time, &before.turn_time),
        ] {
            ours.store(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let turn = before.turn.load(Ordering::Relaxed) % self.count;
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Who is at `place` was at `former` there.
    fn follow(&self, place: usize, before: &Rota, former: usize) {
        if !is_marked(&before.busy, former) {
            self.busy[place / 64].fetch_and(!(1 << (place % 64)), Ordering::Relaxed);
        }
        if is_marked(&before.moved, former) {
            mark(&self.moved, place);
        }
    }

    #[inline(never)]
    fn poll(&self, drive: impl FnMut(usize) -> bool) -> bool {
        // For five centuries.
        self.poll_by(|| self.begun.elapsed().as_nanos() as u64, drive)
    }

    fn poll_by(&self, clock: impl Fn() -> u64, mut drive: impl FnMut(usize) -> bool) -> bool {
        let (mut busy, mut moved) = (false, false);
        for (index, word) in self.busy.iter().enumerate() {
            let mut left = word.load(Ordering::Relaxed);
            busy |= left != 0;
            while left != 0 {
                let place = index * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if drive(place) {
                    mark(&self.moved, place);
                    moved = true;
                }
            }
        }
        let now = clock();
        let past = now.saturating_sub(self.turned.load(Ordering::Relaxed));
        let turns = past / self.turn_time.load(Ordering::Relaxed);
        let turns = turns.max(if busy { 0 } else { TURNS }).min(self.count as u64);
        if turns > 0 {
            let mut driven = 0;
            moved |= self.take_turns(turns, |place| {
                driven += 1;
                drive(place)
            });
            // What turns take themselves is worth no further ones.
            let end = clock();
            self.turned.store(end, Ordering::Relaxed);
            if let Some(took) = end.saturating_sub(now).checked_div(driven) {
                self.learn(took);
            }
        }
        if now.saturating_sub(self.swept.load(Ordering::Relaxed)) > SWEEP_TIME {
            self.swept.store(now, Ordering::Relaxed);
            self.sweep();
        }
        moved
    }

    /// What a turn took, on average. What a thread loses that the kernel stops counts for little.
    fn learn(&self, took: u64) {
        let known = self.turn_time.load(Ordering::Relaxed);
        let took = took.clamp(TURN_TIME_MIN, 4 * known);
        self.turn_time.store((7 * known + took).div_ceil(8), Ordering::Relaxed);
    }

    fn take_turns(&self, turns: u64, mut drive: impl FnMut(usize) -> bool) -> bool {
        let mut moved = false;
        for _ in 0..turns {
            let place = self.turn.load(Ordering::Relaxed);
            self.turn.store(if place + 1 < self.count { place + 1 } else { 0 }, Ordering::Relaxed);
            if !is_marked(&self.busy, place) && drive(place) {
                mark(&self.busy, place);
                mark(&self.moved, place);
                moved = true;
            }
        }
        moved
    }

    /// Those are busy from now on that moved since the last time.
    #[cold]
    fn sweep(&self) {
        for (busy, moved) in self.busy.iter().zip(&self.moved) {
            busy.store(moved.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

fn is_marked(bits: &[AtomicU64], place: usize) -> bool {
    bits[place / 64].load(Ordering::Relaxed) & 1 << (place % 64) != 0
}

fn mark(bits: &[AtomicU64], place: usize) {
    if !is_marked(bits, place) {
        bits[place / 64].fetch_or(1 << (place % 64), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MANY: usize = 200;

    /// Polls in which nobody moves but those of `moves`, `gap` nanoseconds apart, with turns that each take
    /// `takes`; whom each drove.
    fn polls_with(
        rota: &Rota,
        count: u64,
        (gap, takes): (u64, u64),
        moves: &[usize],
    ) -> Vec<Vec<usize>> {
        let now = Cell::new(rota.turned.load(Ordering::Relaxed));
        let poll = |_| {
            let mut driven = Vec::new();
            now.set(now.get() + gap);
            let drive = |place| {
                driven.push(place);
                let takes = if is_marked(&rota.busy, place) { 0 } else { takes };
                now.set(now.get() + takes);
                moves.contains(&place)
            };
            let moved = rota.poll_by(|| now.get(), drive);
            assert_eq!(moved, driven.iter().any(|place| moves.contains(place)));
            driven
        };
        (0..count).map(poll).collect()
    }

    /// The same with turns that take what they are taken for.
    fn polls(rota: &Rota, count: u64, gap: u64, moves: &[usize]) -> Vec<Vec<usize>> {
        polls_with(rota, count, (gap, TURN_TIME), moves)
    }

    /// One of many in which only those of `busy` are.
    fn settled(busy: &[usize]) -> Rota {
        let rota = Rota::new(MANY);
        polls(&rota, 4, SWEEP_TIME, busy);
        rota
    }

    #[test]
    fn of_a_few_all_are_driven() {
        let roster = |count| Roster::of((0..count).map(Arc::new).collect());
        let few = roster(FEW);
        for _ in 0..3 {
            let mut driven = Vec::new();
            few.drive(|member| {
                driven.push(**member);
                false
            });
            assert!(driven.into_iter().eq(0..FEW));
        }
        assert!(!few.are_many() && roster(FEW + 1).are_many());
    }

    #[test]
    fn who_stays_is_as_busy_as_it_was() {
        let mut roster = Roster::of((0..MANY).map(Arc::new).collect());
        roster.rota = Some(Box::new(settled(&[3, 64, 199])));
        let changed = roster.changed(|members| {
            members.retain(|member| **member % 5 != 2 && **member != 64);
            members.extend([1000, 1001].map(Arc::new));
        });
        let rota = changed.rota.as_ref().unwrap();
        let is_busy = |place: &usize| is_marked(&rota.busy, *place);
        let busy = (0..changed.members.len()).filter(is_busy).map(|place| *changed.members[place]);
        assert!(busy.eq([3, 199, 1000, 1001]));
        let few = changed.changed(|members| members.truncate(FEW));
        assert!(
            few.rota.is_none()
                && few.members.iter().map(|member| **member).eq((0..20).filter(|n| n % 5 != 2))
        );
    }

    #[test]
    fn all_are_driven_at_first() {
        for count in [FEW + 1, 63, 64, 65, 128, MANY] {
            let driven = polls(&Rota::new(count), 1, 0, &[]).remove(0);
            assert!(driven.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn who_is_busy_is_always_driven_and_the_others_in_turn() {
        let busy = [3, 64, 199];
        let rota = settled(&busy);
        assert!(polls(&rota, 1, TURN_TIME - 1, &busy).concat().into_iter().eq(busy));
        let driven = polls(&rota, MANY as u64, TURN_TIME, &busy);
        assert!(driven.iter().all(|driven| driven.starts_with(&busy)));
        assert!(driven.iter().all(|driven| driven.len() <= busy.len() + 1));
        let is_driven = |place: usize| driven.iter().any(|driven| driven.contains(&place));
        assert!((0..MANY).all(is_driven));
    }

    #[test]
    fn where_nobody_is_busy_more_have_their_turn() {
        let rota = settled(&[]);
        let driven = polls(&rota, (MANY as u64).div_ceil(TURNS), 0, &[]);
        let mut all: Vec<_> = driven.concat();
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..MANY));
    }

    #[test]
    fn who_polls_seldom_drives_all() {
        let rota = settled(&[7]);
        let away = MANY as u64 * TURN_TIME;
        for mut driven in polls(&rota, 3, away, &[7]) {
            driven.sort_unstable();
            assert!(driven.into_iter().eq(0..MANY));
        }
        let half = polls(&rota, 1, away / 2, &[7]).remove(0);
        assert!((MANY / 2 - 1..=MANY / 2 + 1).contains(&half.len()), "{}", half.len());
    }

    /// Whatever looks take.
    #[test]
    fn turns_take_as_long_as_what_is_between_them() {
        for takes in [40, 300, 5_000, 100_000] {
            let rota = settled(&[7]);
            polls_with(&rota, 1_000, (takes, takes), &[7]);
            let driven = polls_with(&rota, 1_000, (3 * takes, takes), &[7]).concat();
            let turns = driven.into_iter().filter(|place| *place != 7).count();
            assert!((1_900..3_500).contains(&turns), "{takes}: {turns}");
        }
    }

    #[test]
    fn who_moves_is_busy_until_it_has_not_for_long() {
        // Until the next poll, with the turn that each has.
        const EACH: u64 = 2 * TURN_TIME;
        let rota = settled(&[]);
        polls(&rota, MANY as u64, TURN_TIME, &[9]);
        let is_driven = |driven: &Vec<usize>| driven.contains(&9);
        let after = polls(&rota, 3 * SWEEP_TIME / EACH, TURN_TIME, &[]);
        let polled = after.iter().take_while(|driven| is_driven(driven)).count() as u64;
        let time = polled * EACH;
        assert!((SWEEP_TIME..=2 * SWEEP_TIME + 2 * EACH).contains(&time), "{time} ns");
    }
}
