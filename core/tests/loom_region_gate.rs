//! Loom model of a region's gate: accesses beside the one who closes it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_region_gate`
#![cfg(loom)]

mod models;

use kestrel_core::memory_region::access::Gate;
use kestrel_core::primitive::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use models::explore;

/// A gate and the memory behind it, in which loom sees races.
struct Region {
    gate: Gate,
    memory: UnsafeCell<u64>,
}

// SAFETY: what the model is to show: the gate keeps the memory's users apart.
unsafe impl Sync for Region {}

impl Region {
    /// One access; whether it was let in.
    fn access(&self) -> bool {
        let entered = self.gate.enter();
        if entered {
            // SAFETY: loom reports it if somebody else uses the memory meanwhile.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
            self.gate.leave();
        }
        entered
    }
}

#[test]
fn closing_waits_for_what_is_under_way_and_stops_the_rest() {
    explore("two accesses in a row beside a close", 3, || {
        let region = Arc::new(Region { gate: Gate::default(), memory: UnsafeCell::new(0) });
        let engine = region.clone();
        let accesses = thread::spawn(move || [engine.access(), engine.access()]);
        region.gate.close();
        // SAFETY: after the close the memory is the application's again.
        let written = region.memory.with_mut(|memory| unsafe { *memory });
        let entered = accesses.join().unwrap();
        let count = entered.iter().filter(|entered| **entered).count() as u64;
        assert_eq!(count, written, "an access was let in after the close");
        assert!(!entered[1] || entered[0], "let in again after a refusal");
        assert!(region.gate.is_closed() && !region.access());
    });
}
