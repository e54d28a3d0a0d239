//! The grid of plans whose best is the floor: routines × chunk sizes × chunk counts.

use super::region::{CHUNK_BYTES_MAX, CHUNK_COUNT_MAX};
use kestrel_shm::copy::{Copier, CopyError, Routine, may_gain_by_lines_back};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One way to move a message through shared chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The names of the copy routines, `IN/OUT`.
    pub routines: String,
    /// Whoever empties a chunk writes to each of its lines, what is there.
    pub hands_back: bool,
    pub chunk_bytes: usize,
    pub chunk_count: usize,
}

impl Plan {
    pub fn copier(&self) -> Result<Copier, CopyError> {
        Copier::choose(&self.routines)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{} {} × {}",
            self.routines,
            if self.hands_back { ", lines back," } else { "" },
            self.chunk_count,
            crate::units::bytes(self.chunk_bytes as u64)
        )
    }
}

/// The smallest chunk of the grid.
const CHUNK_BYTES_MIN: usize = 1024;

/// Every plan worth trying for messages of `size` bytes on this CPU.
///
/// Chunks larger than the message add nothing, nor do chunks so small that a
/// message needs more than two hundred.
pub fn plans(size: usize) -> Vec<Plan> {
    let largest = size.next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    let smallest = (size / 256).next_power_of_two().max(CHUNK_BYTES_MIN);
    let powers = |from: usize, to: usize| {
        std::iter::successors(Some(from), |value| Some(value * 2))
            .take_while(move |value| *value <= to)
    };
    let mut plans = Vec::new();
    for routine_in in Routine::available() {
        for (routine_out, hands_back) in emptying() {
            for chunk_bytes in powers(smallest, largest) {
                for chunk_count in powers(2, CHUNK_COUNT_MAX) {
                    plans.push(Plan {
                        routines: format!("{routine_in}/{routine_out}"),
                        hands_back,
                        chunk_bytes,
                        chunk_count,
                    });
                }
            }
        }
    }
    mixed(plans)
}

/// The routines that empty chunks, and whether they hand lines back: where that may be faster.
fn emptying() -> Vec<(Routine, bool)> {
    let plain = Routine::available().into_iter().map(|routine| (routine, false));
    let back = Routine::available().into_iter().filter(|routine| routine.hands_back());
    plain.chain(back.filter(|_| may_gain_by_lines_back()).map(|routine| (routine, true))).collect()
}

/// The same plans in an order in which every beginning is a fair sample.
fn mixed(plans: Vec<Plan>) -> Vec<Plan> {
    /// A prime that is longer than any grid, so that it visits every index.
    const STRIDE: usize = 7919;
    let count = plans.len();
    (0..count).map(|index| plans[index * STRIDE % count].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_holds_every_plan_once_and_each_can_run() {
        for size in [1, 4096, 65_536, 4 << 20] {
            let plans = plans(size);
            assert!(!plans.is_empty());
            for (index, plan) in plans.iter().enumerate() {
                assert!(!plans[..index].contains(plan), "{plan} stands twice");
                assert!(plan.copier().is_ok() && plan.chunk_bytes <= CHUNK_BYTES_MAX);
            }
        }
    }
}
