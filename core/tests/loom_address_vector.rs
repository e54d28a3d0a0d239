//! Loom models of address vectors: readers beside the writer.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_address_vector`
//!
//! Each model says how many executions it explored.
#![cfg(loom)]

mod models;

use kestrel_core::address::Address;
use kestrel_core::address_vector::{AddressVector, AddressVectorAttributes, AddressVectorFlags};
use loom::sync::Arc;
use loom::thread;
use models::explore;

/// An address whose two halves and port all tell `n`, so that a torn one shows.
fn tagged(n: u16) -> Address {
    let bits = u128::from(n) << 64 | u128::from(n);
    Address::new(std::net::Ipv6Addr::from_bits(bits).into(), n)
}

fn open() -> Arc<AddressVector> {
    Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap())
}

#[test]
fn an_insert_is_seen_whole_or_not_at_all() {
    explore("insert beside a reader", 3, || {
        let av = open();
        let writer = av.clone();
        let inserting = thread::spawn(move || writer.insert_one(tagged(1)).unwrap());
        let epoch = av.insertions();
        let seen = av.get(0);
        assert!(seen.is_none() || seen == Some(tagged(1)), "torn: {seen:?}");
        assert!(epoch == 0 || seen.is_some(), "the epoch ran ahead of the entry");
        inserting.join().unwrap();
        assert_eq!((av.get(0), av.insertions()), (Some(tagged(1)), 1));
    });
}

#[test]
fn a_reused_entry_is_never_a_mixture() {
    explore("remove and insert beside a reader", 2, || {
        let av = open();
        av.insert_one(tagged(1)).unwrap();
        let writer = av.clone();
        let reusing = thread::spawn(move || {
            writer.remove(&[0]).unwrap();
            writer.insert_one(tagged(2)).unwrap();
        });
        let removals = av.removals();
        let seen = av.get(0);
        let whole = [None, Some(tagged(1)), Some(tagged(2))].contains(&seen);
        assert!(whole, "torn: {seen:?}");
        assert!(removals == 0 || seen != Some(tagged(1)), "a removal that was counted is not seen");
        reusing.join().unwrap();
        assert_eq!((av.get(0), av.removals()), (Some(tagged(2)), 1));
    });
}

#[test]
fn two_writers_get_two_entries() {
    explore("two writers", 2, || {
        let av = open();
        let other = av.clone();
        let inserting = thread::spawn(move || other.insert_one(tagged(1)).unwrap());
        let mine = av.insert_one(tagged(2)).unwrap();
        let theirs = inserting.join().unwrap();
        assert_eq!(mine + theirs, 1);
        assert_eq!((av.get(mine), av.get(theirs)), (Some(tagged(2)), Some(tagged(1))));
        assert_eq!(av.find(&tagged(1)), Some(theirs));
    });
}

#[test]
fn a_run_is_seen_whole_or_not_at_all() {
    explore("runs beside a reader", 3, || {
        let flags = AddressVectorFlags::SYMMETRIC;
        let attributes = AddressVectorAttributes { flags, ..Default::default() };
        let av = Arc::new(AddressVector::open(attributes).unwrap());
        let writer = av.clone();
        // Two nodes, so two runs; the third goes on where the second ends.
        let addresses = [tagged(1), tagged(2), tagged(2).with_port(3)];
        let inserting = thread::spawn(move || {
            for address in addresses {
                writer.insert_one(address).unwrap();
            }
        });
        let epoch = av.insertions();
        for (at, address) in (0..).zip(addresses) {
            let seen = av.get(at);
            assert!(seen.is_none() || seen == Some(address), "another one's: {seen:?}");
            assert!(epoch <= at || seen.is_some(), "the epoch ran ahead of the run");
        }
        inserting.join().unwrap();
        assert_eq!(av.get(2), Some(addresses[2]));
    });
}

#[test]
fn a_gap_in_a_run_is_never_a_mixture() {
    explore("removal from a run beside a reader", 2, || {
        let flags = AddressVectorFlags::SYMMETRIC;
        let attributes = AddressVectorAttributes { flags, ..Default::default() };
        let av = Arc::new(AddressVector::open(attributes).unwrap());
        av.insert_one(tagged(1)).unwrap();
        let writer = av.clone();
        let reusing = thread::spawn(move || {
            writer.remove(&[0]).unwrap();
            writer.insert_one(tagged(9)).unwrap();
        });
        let removals = av.removals();
        let seen = av.get(0);
        let whole = [None, Some(tagged(1)), Some(tagged(9))].contains(&seen);
        assert!(whole, "torn: {seen:?}");
        assert!(removals == 0 || seen != Some(tagged(1)), "a removal that was counted is not seen");
        reusing.join().unwrap();
        assert_eq!(av.get(0), Some(tagged(9)));
    });
}
