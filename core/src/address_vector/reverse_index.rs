//! From an address back to the lowest index that holds it: the cold half of
//! an address vector, owned by its writer mutex.
//!
//! The table stores four-byte indices and reads the addresses in the entries
//! themselves, which keeps an inserted address under 64 bytes in all.
//! "An AV should only store a single instance of an address" (fi_av(3)), so
//! further instances live beside the table, in sets that cost more memory
//! but keep every operation logarithmic.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::address::Address;

/// Hashing needs no secret here (only the application inserts addresses),
/// and a fixed one keeps loom's schedules reproducible.
type Hasher = BuildHasherDefault<DefaultHasher>;

#[derive(Default)]
pub(super) struct ReverseIndex {
    /// The lowest index of each address.
    lowest: HashTable<u32>,
    /// The other indices of addresses that were inserted more than once.
    further: HashMap<Address, BTreeSet<u32>, Hasher>,
}

/// A folded multiplication of what tells addresses apart: a million of them are hashed more than
/// once while the table grows, and each costs some nanoseconds.
fn hash(address: &Address) -> u64 {
    const SCRAMBLE: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
    let host = match address.canonical().ip() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let high = (host >> 64) as u64 ^ u64::from(address.port()) << 40 ^ SCRAMBLE[0];
    let product = u128::from(host as u64 ^ SCRAMBLE[1]) * u128::from(high);
    let folded = (product >> 64) as u64 ^ product as u64;
    folded.wrapping_mul(SCRAMBLE[0]) ^ folded >> 32
}

impl ReverseIndex {
    /// Makes room for `count` more indices; false if there is no memory.
    ///
    /// `at` answers the address at an index that the table holds; here and below.
    pub(super) fn reserve(&mut self, count: usize, at: impl Fn(u32) -> Address) -> bool {
        self.lowest.try_reserve(count, |&index| hash(&at(index))).is_ok()
    }

    /// How many indices there is room for.
    #[cfg(all(test, not(loom)))]
    pub(super) fn capacity(&self) -> usize {
        self.lowest.capacity()
    }

    /// The lowest index that holds `address`.
    pub(super) fn find(&self, address: &Address, at: impl Fn(u32) -> Address) -> Option<u32> {
        self.lowest.find(hash(address), |&index| at(index) == *address).copied()
    }

    /// Every index that holds `address`.
    pub(super) fn find_all(&self, address: &Address, at: impl Fn(u32) -> Address) -> Vec<u32> {
        let further = self.further.get(address).into_iter().flatten().copied();
        self.find(address, at).into_iter().chain(further).collect()
    }

    /// Adds `index`, which holds `address`.
    pub(super) fn add(&mut self, address: Address, index: u32, at: impl Fn(u32) -> Address) {
        let slot = self.lowest.entry(
            hash(&address),
            |&other| at(other) == address,
            |&other| hash(&at(other)),
        );
        match slot {
            Entry::Vacant(vacant) => {
                vacant.insert(index);
            }
            Entry::Occupied(mut occupied) => {
                let lowest = occupied.get_mut();
                let higher = index.max(*lowest);
                *lowest = index.min(*lowest);
                self.further.entry(address).or_default().insert(higher);
            }
        }
    }

    /// Removes `index`, which holds `address`, or just held it; `at` is not asked about it.
    pub(super) fn remove(&mut self, address: &Address, index: u32, at: impl Fn(u32) -> Address) {
        let found =
            self.lowest.find_entry(hash(address), |&other| other == index || at(other) == *address);
        let Ok(mut occupied) = found else { return };
        if let Some(others) = self.further.get_mut(address) {
            if *occupied.get() != index {
                others.remove(&index);
            } else if let Some(next) = others.pop_first() {
                *occupied.get_mut() = next;
            }
            if others.is_empty() {
                self.further.remove(address);
            }
        } else {
            debug_assert_eq!(*occupied.get(), index);
            occupied.remove();
        }
    }
}
