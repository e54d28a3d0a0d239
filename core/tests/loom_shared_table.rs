//! Loom models of an address vector in shared memory: two vectors on one table stand for two
//! processes that map it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_shared_table`
#![cfg(loom)]

mod models;

use kestrel_core::{
    address::Address,
    address_vector::{
        AddressVector, AddressVectorAttributes, SharedLock, SharedMemory, shared_bytes,
    },
    primitive::AtomicU64,
};
use loom::{
    sync::{Mutex, MutexGuard},
    thread,
};
use models::explore;
use std::sync::Arc;

/// What is mapped, and the kernel's lock on it.
struct Mapped {
    words: Box<[AtomicU64]>,
    lock: Mutex<()>,
}

/// Dropping it gives the lock back.
struct Held<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

impl SharedLock for Held<'_> {}

impl SharedMemory for Mapped {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn lock(&self) -> Result<Box<dyn SharedLock + '_>, String> {
        Ok(Box::new(Held(self.lock.lock().unwrap())))
    }
}

/// Two processes that share an empty table of so many addresses.
fn open(count: usize) -> [Arc<AddressVector>; 2] {
    let words = (0..shared_bytes(count) / size_of::<u64>()).map(|_| AtomicU64::new(0)).collect();
    let memory: Arc<dyn SharedMemory> = Arc::new(Mapped { words, lock: Mutex::new(()) });
    [(); 2].map(|()| {
        let attributes = AddressVectorAttributes::default();
        Arc::new(AddressVector::open_shared(attributes, memory.clone()).unwrap())
    })
}

/// An address whose two halves and port all tell `n`, so that a torn one shows.
fn tagged(n: u16) -> Address {
    let bits = u128::from(n) << 64 | u128::from(n);
    Address::new(std::net::Ipv6Addr::from_bits(bits).into(), n)
}

#[test]
fn what_another_process_inserts_is_seen_whole_or_not_at_all() {
    explore("insert in another process", 2, || {
        let [here, there] = open(1);
        let inserting = thread::spawn(move || there.insert_one(tagged(1)).unwrap());
        let epoch = here.insertions();
        let seen = here.get(0);
        assert!(seen.is_none() || seen == Some(tagged(1)), "torn: {seen:?}");
        assert!(epoch == 0 || seen.is_some(), "the epoch ran ahead of the entry");
        inserting.join().unwrap();
        assert_eq!((here.get(0), here.insertions()), (Some(tagged(1)), 1));
        assert_eq!(here.find(&tagged(1)), Some(0));
    });
}

#[test]
fn what_another_process_reuses_is_never_a_mixture() {
    explore("remove and insert in another process", 2, || {
        let [here, there] = open(1);
        there.insert_one(tagged(1)).unwrap();
        let reusing = thread::spawn(move || {
            there.remove(&[0]).unwrap();
            there.insert_one(tagged(2)).unwrap();
        });
        let removals = here.removals_everywhere();
        let seen = here.get(0);
        let whole = [None, Some(tagged(1)), Some(tagged(2))].contains(&seen);
        assert!(whole, "torn: {seen:?}");
        assert!(removals == 0 || seen != Some(tagged(1)), "a removal that was counted is not seen");
        reusing.join().unwrap();
        // What has the number is another one, and it was used before.
        assert_eq!((here.get(0), here.removals_everywhere()), (Some(tagged(2)), 2));
    });
}

#[test]
fn two_processes_that_insert_get_two_entries() {
    explore("two processes insert", 2, || {
        let [here, there] = open(2);
        let inserting = thread::spawn(move || there.insert_one(tagged(1)).unwrap());
        let mine = here.insert_one(tagged(2)).unwrap();
        let theirs = inserting.join().unwrap();
        assert_eq!(mine + theirs, 1);
        assert_eq!((here.get(mine), here.get(theirs)), (Some(tagged(2)), Some(tagged(1))));
        assert_eq!(here.find(&tagged(1)), Some(theirs));
    });
}
