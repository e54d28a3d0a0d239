//! Loom models of catalogues: an owner strikes out what a guest is at.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_catalogue`
#![cfg(loom)]

mod models;

use kestrel_core::{
    ring::catalogue::{Catalogue, EntryName, Visit},
    window::{Access, Direction, Lease},
};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use models::{Turns, explore};

/// A catalogue with a guest, and memory that is listed. Loom fails if two touch it at once, or if what one
/// did is not behind what the other does.
#[derive(Default)]
struct House {
    catalogue: Catalogue,
    visit: Visit,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is reached under the protocol that is modelled, which loom checks.
unsafe impl Sync for House {}
// SAFETY: as above.
unsafe impl Send for House {}

/// What is listed, from a target's address that says what it is.
fn lease(address: u64) -> Lease {
    let access = Access { read: true, write: true, atomic: false };
    Lease { base: address, length: address, address, remote_key: 0, access }
}

impl House {
    fn list(&self, address: u64) -> EntryName {
        self.catalogue.list(1, &lease(address)).expect("nothing else is listed")
    }

    /// The guest's copy by that name, if something is listed there.
    fn reach(&self, name: EntryName, address: u64) {
        if self.catalogue.visit(&self.visit, name, (address, 1), Direction::Write) {
            // SAFETY: the visit has begun.
            self.memory.with_mut(|value| unsafe { *value += 1 });
            self.catalogue.leave(&self.visit, name);
        }
    }

    /// The same twice.
    fn reach_twice(&self, name: EntryName, address: u64) {
        self.reach(name, address);
        self.reach(name, address);
    }

    /// The owner waits for the guest.
    fn see_off(&self, name: EntryName) {
        while self.visit.is_at(name) {
            thread::yield_now();
        }
    }

    /// The guest's copy of what it finds, which is whole.
    fn reach_found(&self) {
        if let Some(found) = self.catalogue.find(1) {
            let name = EntryName::from_key(found.remote_key).expect("the name of what is listed");
            assert_eq!(found, Lease { remote_key: name.to_key(), ..lease(found.address) });
            self.reach(name, found.address);
        }
    }

    /// The owner's own use, once nobody is at the memory.
    fn reuse(&self) -> u32 {
        // SAFETY: nothing is listed, and no visit is under way.
        self.memory.with_mut(|value| unsafe {
            *value += 100;
            *value
        })
    }

    /// What is there, once nobody else runs.
    fn value(&self) -> u32 {
        // SAFETY: the guest has ended.
        self.memory.with(|value| unsafe { *value })
    }
}

fn visitor(house: &Arc<House>, visit: impl FnOnce(&House) + 'static) -> thread::JoinHandle<()> {
    let house = house.clone();
    thread::spawn(move || visit(&house))
}

#[test]
fn who_struck_an_entry_out_has_the_memory_to_himself() {
    explore("catalogue", 3, || {
        let house = Arc::new(House::default());
        let name = house.list(8);
        let guest = visitor(&house, move |house| house.reach_twice(name, 8));
        house.catalogue.strike(name);
        house.see_off(name);
        let then = house.reuse();
        guest.join().unwrap();
        assert!((100..=102).contains(&then));
        assert_eq!(house.value(), then, "nothing landed later");
    });
}

/// What is found is whole, and reached as long as it is listed, though another takes its place.
#[test]
fn what_is_found_is_one_or_the_other() {
    explore("catalogue", 3, || {
        let house = Arc::new(House::default());
        let first = house.list(8);
        let guest = visitor(&house, House::reach_found);
        house.catalogue.strike(first);
        house.see_off(first);
        let second = house.list(16);
        house.catalogue.strike(second);
        house.see_off(second);
        let then = house.reuse();
        guest.join().unwrap();
        assert_eq!(house.value(), then, "nothing landed later");
    });
}

/// A place is taken by one thread as soon as another has struck out what was there.
#[test]
fn who_lists_need_not_be_who_struck_out() {
    explore("catalogue", 3, || {
        let (house, turns) = (Arc::new(House::default()), Arc::new(Turns::new()));
        let first = house.list(8);
        let guest = visitor(&house, House::reach_found);
        let striker = {
            let turns = turns.clone();
            visitor(&house, move |house| {
                turns.take();
                house.catalogue.strike(first);
            })
        };
        turns.take();
        let second = house.catalogue.list(1, &lease(16));
        guest.join().unwrap();
        striker.join().unwrap();
        let found = house.catalogue.find(1).map(|lease| lease.address);
        assert_eq!(found, second.map(|_| 16));
    });
}

#[test]
fn who_is_barred_reaches_nothing_more() {
    explore("catalogue", 3, || {
        let house = Arc::new(House::default());
        let name = house.list(8);
        let guest = visitor(&house, move |house| house.reach_twice(name, 8));
        if house.visit.bar() {
            house.see_off(name);
        }
        let then = house.reuse();
        guest.join().unwrap();
        assert_eq!(house.value(), then, "nothing landed later");
    });
}
