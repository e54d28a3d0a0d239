//! How many lanes each process has to a station: bounded, since each may bring payload that
//! nobody asked for.

use std::collections::HashMap;
use std::sync::Arc;

use crate::process::ProcessId;

/// Lanes that one process may have to one station. Each has 64 KiB of credit that nobody can
/// refuse, and each comes from an endpoint of that process: no program has so many.
pub(crate) const LANES_PER_PROCESS_MAX: usize = 1024;

/// Kept with a lane as long as there is something of it: however many copies, they are one lane. It
/// counts by references, not by a lock: a forked child drops its copies, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    _lane: Arc<Counted>,
}

/// One lane among those of its process.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    _of_process: Arc<()>,
}

/// The lanes of each process.
#[derive(Default)]
pub(crate) struct Shares(HashMap<ProcessId, Arc<()>>);

impl Shares {
    /// A share for one more lane of that process, if it has not too many.
    pub(crate) fn take(&mut self, process: ProcessId) -> Option<Share> {
        if !self.0.contains_key(&process) {
            // Whoever has no lane left is forgotten here, so that processes which come and go
            // leave nothing. One copy is the table's own.
            self.0.retain(|_, lanes| Arc::strong_count(lanes) > 1);
        }
        let lanes = self.0.entry(process).or_default();
        let free = Arc::strong_count(lanes) <= LANES_PER_PROCESS_MAX;
        free.then(|| Share { _lane: Arc::new(Counted { _of_process: lanes.clone() }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: u64) -> ProcessId {
        ProcessId::from_u64(number).unwrap()
    }

    #[test]
    fn each_process_has_so_many_lanes_and_one_more_when_one_is_gone() {
        let mut shares = Shares::default();
        let mut held: Vec<_> =
            (0..LANES_PER_PROCESS_MAX).map(|_| shares.take(process(1)).unwrap()).collect();
        assert!(shares.take(process(1)).is_none());
        assert!(shares.take(process(2)).is_some(), "another process");
        held.pop();
        held.push(shares.take(process(1)).unwrap());
        assert!(shares.take(process(1)).is_none());
        let copy = held.pop();
        let other = copy.clone();
        drop(copy);
        assert!(shares.take(process(1)).is_none(), "something of it is left");
        drop(other);
        assert!(shares.take(process(1)).is_some());
    }

    #[test]
    fn processes_that_come_and_go_leave_nothing() {
        let mut shares = Shares::default();
        let stays = shares.take(process(1)).unwrap();
        for number in 2..100 {
            shares.take(process(number)).unwrap();
        }
        assert_eq!(shares.0.len(), 2, "the one that stays, and the last");
        drop(stays);
    }
}
