//! Places for handshakes that others begin, and which process has how many of them.
//!
//! Whoever is served at once has its place for a moment, so a process may have as many as there are: a job
//! that starts hundreds of endpoints is not held up. One that is late with its next word keeps no more than a
//! share of them. Once they are all taken, the rest of its own end; and while it is late with so many it gets
//! no further ones, so that whoever waits behind it has its turn. It tries again.
//!
//! Processes are told from each other by their PIDs. Those that have none here count as one.

use std::time::{Duration, Instant};

use super::accept::{CONFIRM_WAIT, HELLO_WAIT};
use super::handshake::{Handshake, Stage};
use super::thread::{ControlThread, Timer};

/// Handshakes that others began and that are under way with one station, and with all of this process. Others
/// wait in the listener's queue.
pub(super) const ACCEPTING_MAX_STATION: usize = 64;
pub(super) const ACCEPTING_MAX: usize = 256;
/// One such part of the time that it has for its next word, and a peer is late.
const LATE_PART: u32 = 5;
/// How often it is looked who is late, while all places are taken.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Which places are meant: those of a station, or all.
#[derive(Clone, Copy)]
enum Places {
    Station(u64),
    All,
}

/// A handshake that has a place.
struct Held {
    id: u64,
    pid: Option<i32>,
    /// When its time is over, and whether its peer is late.
    ends: Instant,
    is_late: bool,
}

impl Handshake {
    fn held(&self, id: u64, now: Instant) -> Option<Held> {
        let wait = match self.stage {
            Stage::Connecting(_) => return None,
            Stage::AwaitHello => HELLO_WAIT,
            Stage::AwaitConfirm(_) => CONFIRM_WAIT,
        };
        let ends = self.timer?;
        let is_late = ends.saturating_duration_since(now) < wait - wait / LATE_PART;
        Some(Held { id, pid: self.credentials.and_then(|peer| peer.pid), ends, is_late })
    }
}

/// How many of `most` places each of so many processes may keep while it is late: with all that are there half
/// of them are left, and the next process has a share, too.
fn share(most: usize, processes: usize) -> usize {
    (most / 2 / (processes + 1)).max(1)
}

/// What those have that are under way: by process, the oldest first.
fn by_process(mut held: Vec<Held>) -> Vec<Vec<Held>> {
    held.sort_by_key(|held| (held.pid, held.ends, held.id));
    let mut processes: Vec<Vec<Held>> = Vec::new();
    for held in held {
        match processes.last_mut().filter(|process| process[0].pid == held.pid) {
            Some(process) => process.push(held),
            None => processes.push(vec![held]),
        }
    }
    processes
}

impl ControlThread {
    /// Whether a station has no place left for one more handshake.
    pub(super) fn is_crowded(&self, station: u64) -> bool {
        self.taken(Places::Station(station)) >= ACCEPTING_MAX_STATION
            || self.taken(Places::All) >= ACCEPTING_MAX
    }

    /// Whether so few places are taken that a station that did not listen does so again.
    pub(super) fn has_room_again(&self, station: u64) -> bool {
        self.taken(Places::Station(station)) < ACCEPTING_MAX_STATION / 2
            && self.taken(Places::All) < ACCEPTING_MAX / 2
    }

    fn taken(&self, places: Places) -> usize {
        match places {
            Places::All => self.accepting.len(),
            Places::Station(station) => {
                self.stations.get(&station).map_or(0, |record| record.accepting)
            }
        }
    }

    /// Who has these places, and how many each may keep.
    fn crowd(&self, places: Places) -> (Vec<Vec<Held>>, usize) {
        let now = Instant::now();
        let held = self.accepting.iter().filter_map(|&id| {
            let handshake = self.handshakes.get(&id)?;
            let meant = match places {
                Places::All => true,
                Places::Station(station) => handshake.station == station,
            };
            handshake.held(id, now).filter(|_| meant)
        });
        let processes = by_process(held.collect());
        let most = match places {
            Places::All => ACCEPTING_MAX,
            Places::Station(_) => ACCEPTING_MAX_STATION,
        };
        let share = share(most, processes.len());
        (processes, share)
    }

    /// Whether a process is late with as many handshakes as its share is, and so gets no further one.
    pub(super) fn is_late_with_its_share(&self, station: u64, pid: Option<i32>) -> bool {
        let few = self.taken(Places::Station(station)) < ACCEPTING_MAX_STATION / 4
            && self.taken(Places::All) < ACCEPTING_MAX / 4;
        // Looked at for each that is accepted, so not where there is no crowd.
        !few && [Places::Station(station), Places::All].into_iter().any(|places| {
            let (processes, share) = self.crowd(places);
            let own = processes.iter().find(|process| process[0].pid == pid);
            own.is_some_and(|own| own.iter().filter(|held| held.is_late).count() >= share)
        })
    }

    /// All places are taken: looks after a while whether somebody is late with too many.
    pub(super) fn look_who_is_late_soon(&mut self) {
        if !std::mem::replace(&mut self.crowd_watched, true) {
            self.timers.insert((Instant::now() + LOOK_PAUSE, Timer::Crowd));
        }
    }

    /// Ends what processes have beyond their share and are late with, the oldest first, where somebody may
    /// wait for a place.
    pub(super) fn end_late(&mut self) {
        self.crowd_watched = false;
        let waits =
            |record: &&super::StationRecord| !record.listening && !self.has_room_again(record.id);
        let stations: Vec<u64> = self.stations.values().filter(waits).map(|r| r.id).collect();
        if stations.is_empty() {
            return;
        }
        for places in stations.into_iter().map(Places::Station).chain([Places::All]) {
            let (processes, share) = self.crowd(places);
            for process in processes {
                let excess = process.len().saturating_sub(share);
                let late = process.iter().filter(|held| held.is_late).take(excess);
                for Held { id, .. } in late {
                    tracing::debug!(pid = process[0].pid, "a handshake was too slow, others wait");
                    self.finish_accept(*id);
                }
            }
        }
        self.look_who_is_late_soon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_room_for_another_process() {
        for most in [ACCEPTING_MAX_STATION, ACCEPTING_MAX] {
            assert_eq!(share(most, 1), most / 4);
            for processes in 1..most / 2 {
                assert!(processes * share(most, processes) < most / 2, "{processes}");
            }
            assert_eq!(share(most, most), 1);
        }
    }

    #[test]
    fn each_process_is_one_and_its_oldest_come_first() {
        let start = Instant::now();
        let held = |id: u64, pid, ms| {
            let ends = start + Duration::from_millis(ms);
            Held { id, pid, ends, is_late: false }
        };
        let held =
            vec![held(1, Some(7), 9), held(2, None, 3), held(3, Some(7), 5), held(4, None, 4)];
        let ids = |process: Vec<Held>| process.iter().map(|held| held.id).collect::<Vec<_>>();
        let processes: Vec<_> = by_process(held).into_iter().map(ids).collect();
        assert_eq!(processes, [vec![2, 4], vec![3, 1]]);
    }
}
