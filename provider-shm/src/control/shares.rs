//! How many lanes each process has to a station, and how much of its memory is mapped for them: bounded,
//! since each may bring payload that nobody asked for, and whoever first touches a page of a pool is
//! charged for it, also who only reads there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::process::ProcessId;

/// Lanes that one process may have to one station. Each has 64 KiB of credit that nobody can
/// refuse, and each comes from an endpoint of that process: no program has so many.
pub(crate) const LANES_PER_PROCESS_MAX: usize = 1024;

/// Bytes of pools that one process may pass with them, unless as many lanes with pools like our own have
/// more.
const POOL_BYTES_MAX: usize = 4 << 30;

/// Bytes of pools that a process may pass to a station whose own pool has so many.
pub(crate) fn pool_bytes_max(own: usize) -> usize {
    POOL_BYTES_MAX.max(own.saturating_mul(LANES_PER_PROCESS_MAX))
}

/// Why a process has no share of one more lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It has all the lanes that it may have.
    Lanes,
    /// The pools of its lanes have more bytes than they may.
    Pools,
}

/// Kept with a lane as long as there is something of it: however many copies, they are one lane. It
/// counts by references, not by a lock: a forked child drops its copies, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    _lane: Arc<Counted>,
}

/// One lane among those of its process.
#[derive(Debug)]
struct Counted {
    pool_bytes: usize,
    /// The sum of all.
    of_process: Arc<AtomicUsize>,
}

impl PartialEq for Counted {
    fn eq(&self, other: &Counted) -> bool {
        Arc::ptr_eq(&self.of_process, &other.of_process)
    }
}

impl Eq for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of_process.fetch_sub(self.pool_bytes, Relaxed);
    }
}

/// The lanes of each process: bytes of their pools, of which there are as many references.
#[derive(Default)]
pub(crate) struct Shares(HashMap<ProcessId, Arc<AtomicUsize>>);

impl Shares {
    /// A share for one more lane of that process, with so large a pool, if it has not too much of either.
    pub(crate) fn take(
        &mut self,
        process: ProcessId,
        pool_bytes: usize,
        most: usize,
    ) -> Result<Share, Excess> {
        if !self.0.contains_key(&process) {
            // Whoever has no lane left is forgotten here, so that processes which come and go
            // leave nothing. One copy is the table's own.
            self.0.retain(|_, lanes| Arc::strong_count(lanes) > 1);
        }
        let lanes = self.0.entry(process).or_default();
        if Arc::strong_count(lanes) > LANES_PER_PROCESS_MAX {
            return Err(Excess::Lanes);
        }
        if lanes.load(Relaxed).saturating_add(pool_bytes) > most {
            return Err(Excess::Pools);
        }
        lanes.fetch_add(pool_bytes, Relaxed);
        Ok(Share { _lane: Arc::new(Counted { pool_bytes, of_process: lanes.clone() }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: u64) -> ProcessId {
        ProcessId::from_u64(number).unwrap()
    }

    fn take(shares: &mut Shares, number: u64) -> Option<Share> {
        shares.take(process(number), 1, POOL_BYTES_MAX).ok()
    }

    #[test]
    fn each_process_passes_so_many_bytes_of_pools() {
        let mut shares = Shares::default();
        let first = shares.take(process(1), 60, 100).unwrap();
        let _second = shares.take(process(1), 40, 100).unwrap();
        assert_eq!(shares.take(process(1), 1, 100), Err(Excess::Pools));
        assert!(shares.take(process(2), 100, 100).is_ok(), "another process");
        let copy = first.clone();
        drop(first);
        assert_eq!(shares.take(process(1), 60, 100), Err(Excess::Pools), "something of it is left");
        drop(copy);
        assert!(shares.take(process(1), 60, 100).is_ok());
        assert_eq!(shares.take(process(1), usize::MAX, 100), Err(Excess::Pools));
        assert_eq!((pool_bytes_max(4096), pool_bytes_max(8 << 20)), (4 << 30, 8 << 30));
    }

    #[test]
    fn each_process_has_so_many_lanes_and_one_more_when_one_is_gone() {
        let mut shares = Shares::default();
        let mut held: Vec<_> =
            (0..LANES_PER_PROCESS_MAX).map(|_| take(&mut shares, 1).unwrap()).collect();
        assert!(take(&mut shares, 1).is_none());
        assert!(take(&mut shares, 2).is_some(), "another process");
        held.pop();
        held.push(take(&mut shares, 1).unwrap());
        assert!(take(&mut shares, 1).is_none());
        let copy = held.pop();
        let other = copy.clone();
        drop(copy);
        assert!(take(&mut shares, 1).is_none(), "something of it is left");
        drop(other);
        assert!(take(&mut shares, 1).is_some());
    }

    #[test]
    fn processes_that_come_and_go_leave_nothing() {
        let mut shares = Shares::default();
        let stays = take(&mut shares, 1).unwrap();
        for number in 2..100 {
            take(&mut shares, number).unwrap();
        }
        assert_eq!(shares.0.len(), 2, "the one that stays, and the last");
        drop(stays);
    }
}
