//! Loom models of leases: a receiver takes back what a sender is using.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_leases`
#![cfg(loom)]

mod models;

use kestrel_core::ring::leases::{LeaseName, Leases};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use models::explore;

/// Leases, and memory that is lent by them. Loom fails if two touch it at once, or if what one did
/// is not behind what the other does.
#[derive(Default)]
struct Lent {
    leases: Leases,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is reached under the protocol that is modelled, which loom checks.
unsafe impl Sync for Lent {}
// SAFETY: as above.
unsafe impl Send for Lent {}

impl Lent {
    /// The borrower's access, if the lease is still lent.
    fn reach(&self, lease: LeaseName) {
        if self.leases.take(lease) {
            // SAFETY: a lease was taken.
            self.memory.with_mut(|value| unsafe { *value += 1 });
            self.leases.give_back(lease);
        }
    }

    /// What is there, once nobody else runs.
    fn value(&self) -> u32 {
        // SAFETY: the borrower has ended.
        self.memory.with(|value| unsafe { *value })
    }

    /// The lender's own use, once the lease is back.
    fn reuse(&self) -> u32 {
        // SAFETY: nothing is lent.
        self.memory.with_mut(|value| unsafe {
            *value += 100;
            *value
        })
    }
}

#[test]
fn who_took_a_lease_back_has_the_memory_to_himself() {
    explore("leases", 3, || {
        let lent = Arc::new(Lent::default());
        let lease = LeaseName::new(3, 1);
        lent.leases.lend(lease);
        let borrower = {
            let lent = lent.clone();
            thread::spawn(move || {
                lent.reach(lease);
                lent.reach(lease);
            })
        };
        if lent.leases.take_back(lease) {
            while lent.leases.is_in_use(lease) {
                thread::yield_now();
            }
        }
        let then = lent.reuse();
        borrower.join().unwrap();
        assert!((100..=102).contains(&then));
        assert_eq!(lent.value(), then, "nothing landed later");
    });
}

/// A place that is lent anew, without waiting for who used it before, is free at that moment.
#[test]
fn an_old_lease_reaches_nothing_of_the_next() {
    explore("leases", 3, || {
        let lent = Arc::new(Lent::default());
        let (old, new) = (LeaseName::new(0, 1), LeaseName::new(0, 2));
        lent.leases.lend(old);
        let borrower = {
            let lent = lent.clone();
            thread::spawn(move || {
                lent.reach(old);
                lent.reach(old);
            })
        };
        lent.leases.take_back(old);
        if lent.leases.is_free(0) {
            let then = lent.reuse();
            lent.leases.lend(new);
            borrower.join().unwrap();
            assert_eq!(lent.value(), then, "nothing landed later");
            assert!(lent.leases.is_lent(new) && !lent.leases.is_in_use(old));
        } else {
            borrower.join().unwrap();
            assert!(lent.leases.is_free(0));
        }
    });
}
