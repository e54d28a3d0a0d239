//! Registrations that are kept, by what they are for and where they lie; what ends them, and what is not
//! worth it.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::yield_now,
};

use kestrel_core::{
    memory::Piece,
    window::{Access, Loan},
};

use super::{
    Registered,
    guess::Guess,
    invalidations::Caught,
    monitor::{Watch, Watcher, holds, overlap},
};
use crate::verbs::Verbs;

/// Registrations that an endpoint keeps at most: each is looked at where room has to be made.
const COUNT_MAX: usize = 1024;
/// Those that begin before a buffer, which a search looks at. One that lies within another is only there
/// if something goes on in it.
const LOOKED_AT: usize = 8;
/// Looks at what changes just now, until it is known: registering takes longer.
const LOOKS_MAX: u32 = 16;
/// Memory that could not be watched, which is remembered for so many uses.
const UNWATCHED_MAX: usize = 8;
const UNWATCHED_USES: u64 = 4096;

/// What all endpoints of the process keep. Units: bytes.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// What a registration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Our device reads it.
    Send,
    /// Our device writes to it, and reads it.
    Receive,
    /// Devices of peers read it.
    Lend,
}

/// A registration that an operation has.
pub struct Holding<V: Verbs> {
    /// The registration.
    pub registration: Arc<Registered<V>>,
    /// Whether it stays for others.
    pub kept: bool,
}

struct Kept<V: Verbs> {
    range: Range<usize>,
    /// Of those that are lent we have the only one: loans are weak.
    registration: Arc<Registered<V>>,
    /// When it was used last.
    used: u64,
    /// It was used again.
    proved: bool,
}

/// How much may be kept. Units: bytes.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// By this endpoint.
    pub own: usize,
    /// By all of the process.
    pub all: usize,
}

/// The registrations that an endpoint keeps.
pub struct KeptRegistrations<V: Verbs> {
    room: Room,
    bytes: usize,
    /// How far the watcher's news are known.
    position: u64,
    /// By purpose, and by their starts.
    lists: [Vec<Kept<V>>; 3],
    guesses: [Guess; 3],
    /// What was invalidated while something went on in it, and is no longer found: the part that is used
    /// is not what was unmapped.
    ending: Vec<Kept<V>>,
    unwatched: VecDeque<(Range<usize>, u64)>,
    clock: u64,
}

impl<V: Verbs> KeptRegistrations<V> {
    /// None yet; what is invalidated before that position is nothing to them.
    pub fn new(room: Room, position: u64) -> Self {
        KeptRegistrations {
            room,
            bytes: 0,
            position,
            lists: [const { Vec::new() }; 3],
            guesses: [(); 3].map(|()| Guess::new()),
            ending: Vec::new(),
            unwatched: VecDeque::new(),
            clock: 0,
        }
    }

    /// A registration that holds `memory`: one that is kept, or a new one, which is worth more where the
    /// caller would register the memory `anyway`. None: it is not worth it, or not sure.
    pub fn look_for(
        &mut self,
        device: &Arc<V>,
        watcher: &dyn Watcher,
        (memory, purpose, anyway): (Piece, Purpose, bool),
    ) -> Option<Holding<V>> {
        let start = memory.as_ptr().addr();
        let range = start..start.checked_add(memory.len())?;
        self.clock += 1;
        if self.search(&range, purpose).is_some() && self.catch_up(watcher, start) == Caught::NotYet
        {
            return None;
        }
        // It may be gone now, or be elsewhere in the list.
        if let Some((list, at)) = self.search(&range, purpose) {
            self.guesses[list].came_again();
            let kept = &mut self.lists[list][at];
            (kept.proved, kept.used) = (true, self.clock);
            return Some(Holding { registration: kept.registration.clone(), kept: true });
        }
        let is_worth_it = range.len() <= self.room.own
            && self.guesses[purpose as usize].tries(anyway, self.clock);
        if !is_worth_it || !self.is_watched(watcher, &range) || !self.make_room(range.len()) {
            return None;
        }
        let access = Access { read: purpose == Purpose::Lend, ..Access::default() };
        let registered = self.register(device, memory, access, purpose == Purpose::Receive)?;
        let registration = Arc::new(registered);
        let kept = self.keep(watcher, range, purpose, &registration);
        Some(Holding { registration, kept })
    }

    /// Where the one is that holds the range and is good for that: which list, and where in it.
    fn search(&self, range: &Range<usize>, purpose: Purpose) -> Option<(usize, usize)> {
        let within = |list: usize| {
            let kept = &self.lists[list];
            let behind = kept.partition_point(|kept| kept.range.start <= range.start);
            let first = behind.saturating_sub(LOOKED_AT);
            let at = (first..behind).rev().find(|&at| holds(&kept[at].range, range))?;
            Some((list, at))
        };
        let other = (purpose == Purpose::Send).then_some(Purpose::Receive);
        within(purpose as usize).or_else(|| within(other? as usize))
    }

    /// Whether memory is watched from now on, and all is known that was invalidated before.
    fn is_watched(&mut self, watcher: &dyn Watcher, range: &Range<usize>) -> bool {
        let clock = self.clock;
        self.unwatched.retain(|(_, since)| clock - since < UNWATCHED_USES);
        if self.unwatched.iter().any(|(unwatched, _)| overlap(unwatched, range))
            || self.read(|position, tell| watcher.read(position, tell)) == Caught::NotYet
        {
            return false;
        }
        let watch = watcher.watch(range);
        if watch == Watch::Never {
            self.unwatched.truncate(UNWATCHED_MAX - 1);
            self.unwatched.push_front((range.clone(), clock));
        }
        watch == Watch::Yes
    }

    /// Registers memory, which is not kept by that. What is kept and idle may be what there is no room for
    /// another beside.
    pub fn register(
        &mut self,
        device: &Arc<V>,
        memory: Piece,
        access: Access,
        local_write: bool,
    ) -> Option<Registered<V>> {
        let register = || Registered::new(device, memory, access, local_write);
        register().or_else(|| self.release_idle().then(register).flatten())
    }

    /// Keeps a registration that was made just now, unless that is not sure. Returns whether it does.
    fn keep(
        &mut self,
        watcher: &dyn Watcher,
        range: Range<usize>,
        purpose: Purpose,
        registration: &Arc<Registered<V>>,
    ) -> bool {
        let list = purpose as usize;
        // What lies in the new one is as good by that.
        self.remove_all(|in_list, kept| {
            in_list == list && holds(&range, &kept.range) && kept.is_idle()
        });
        let start = range.start;
        let at = self.lists[list].partition_point(|kept| kept.range.start <= start);
        self.count(range.len());
        let (ours, used) = (registration.clone(), self.clock);
        self.lists[list].insert(at, Kept { range, registration: ours, used, proved: false });
        // Nobody unmaps the memory now. But what is told may be of before, and what is not told, too.
        let caught = self.catch_up(watcher, start);
        let is_it = |kept: &Kept<V>| Arc::ptr_eq(&kept.registration, registration);
        if caught == Caught::Up && self.lists[list].iter().any(is_it) {
            return true;
        }
        self.remove_all(|_, kept| is_it(kept));
        self.ending.retain(|kept| !is_it(kept));
        false
    }

    /// Ends the registration that a loan is by.
    pub fn take_back(&mut self, loan: &Loan) {
        let is_lent = |kept: &Kept<V>| loan.is_by(&kept.registration);
        self.remove_all(|list, kept| list == Purpose::Lend as usize && is_lent(kept));
        self.ending.retain(|kept| !is_lent(kept));
    }

    /// Deregisters what was unmapped since.
    #[inline]
    pub fn sweep(&mut self, watcher: &dyn Watcher) {
        if watcher.is_behind(self.position) {
            self.read(|position, tell| watcher.read(position, tell));
        }
        if !self.ending.is_empty() {
            self.ending.retain(|kept| !kept.is_idle());
        }
    }

    /// Deregisters all that nothing goes on in. Returns whether there was any.
    fn release_idle(&mut self) -> bool {
        let before = self.bytes;
        self.remove_all(|_, kept| kept.is_idle());
        self.bytes < before
    }

    /// Drops what was invalidated, when that is known.
    fn catch_up(&mut self, watcher: &dyn Watcher, at: usize) -> Caught {
        for _ in 0..LOOKS_MAX {
            let caught = self.read(|position, tell| watcher.caught_up(at, position, tell));
            if caught != Caught::NotYet {
                return caught;
            }
            yield_now();
        }
        Caught::NotYet
    }

    /// Where some was missed, nothing that is kept is sure.
    fn read(
        &mut self,
        read: impl FnOnce(&mut u64, &mut dyn FnMut(Range<usize>)) -> Caught,
    ) -> Caught {
        let mut position = self.position;
        let caught = read(&mut position, &mut |gone| self.invalidate(&gone));
        self.position = position;
        if caught == Caught::Missed {
            self.invalidate(&(0..usize::MAX));
        }
        caught
    }

    #[cold]
    fn invalidate(&mut self, gone: &Range<usize>) {
        let mut bytes = 0;
        for (list, guess) in self.lists.iter_mut().zip(&mut self.guesses) {
            for kept in list.extract_if(.., |kept| overlap(&kept.range, gone)) {
                bytes += kept.range.len();
                if !kept.proved {
                    guess.was_in_vain();
                }
                if !kept.is_idle() {
                    self.ending.push(kept);
                }
            }
        }
        self.uncount(bytes);
    }

    /// Makes room for one of so many bytes.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.is_full(bytes) {
            let all = self.lists.iter().enumerate();
            let all = all.flat_map(|(list, all)| all.iter().enumerate().map(move |it| (list, it)));
            let idle = all.filter(|(_, (_, kept))| kept.is_idle());
            let Some((list, (at, _))) = idle.min_by_key(|(_, (_, kept))| kept.used) else {
                return false;
            };
            let gone = self.lists[list].remove(at);
            self.uncount(gone.range.len());
        }
        true
    }

    fn is_full(&self, bytes: usize) -> bool {
        let count: usize = self.lists.iter().map(Vec::len).sum();
        count >= COUNT_MAX
            || self.bytes + bytes > self.room.own
            || ALL.load(Ordering::Relaxed).saturating_add(bytes) > self.room.all
    }

    fn remove_all(&mut self, is_meant: impl Fn(usize, &Kept<V>) -> bool) {
        let mut gone = 0;
        for (nth, list) in self.lists.iter_mut().enumerate() {
            let meant = list.extract_if(.., |kept| is_meant(nth, kept));
            gone += meant.map(|kept| kept.range.len()).sum::<usize>();
        }
        self.uncount(gone);
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        ALL.fetch_add(bytes, Ordering::Relaxed);
    }

    fn uncount(&mut self, bytes: usize) {
        self.bytes -= bytes;
        ALL.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<V: Verbs> Drop for KeptRegistrations<V> {
    fn drop(&mut self) {
        self.uncount(self.bytes);
    }
}

impl<V: Verbs> Kept<V> {
    /// Nothing goes on in it: no operation of ours, and no loan.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.registration) == 1 && Arc::weak_count(&self.registration) == 0
    }
}

#[cfg(test)]
mod tests;
