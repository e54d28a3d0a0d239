//! The table of a vector that several processes share: in memory that each of them maps.
//!
//! "The name field allows the underlying provider to identify a shared AV" (fi_av(3)); finding
//! it and mapping it is a transport's business ([`SharedMemory`]). An address has the same
//! number in all processes, since a number is a place in the table.
//!
//! Words, of 64 bits: 0 says what this is; 1 is the count of numbers that were ever used; 2, 3
//! and 4 count insertions, removals, and both; 5 is the lowest number that may be vacant; 6 counts
//! insertions at numbers that were used before, since a writer may die between a removal and its count; from
//! 16 on follow the entries ([`slot`]), four words each, and behind them the numbers: a list of what
//! each insertion answered, [`FI_ADDR_NOTAVAIL`] once it is removed. One writer at a time, in all
//! processes, holds the memory's lock; readers are wait-free. What a writer that dies leaves
//! behind is an entry that is there or is not, and at worst a count that is one off.
//!
//! Other processes may write anything into the memory at any time. Every word is read once and
//! held against the memory's size before it is used; whatever an entry holds is an address or
//! none.

use std::collections::HashMap;
use std::sync::Arc;

use super::slot::{self, Content, SLOT_WORDS, Slot};
use super::{Address, AddressVectorError, FI_ADDR_NOTAVAIL};
use crate::primitive::{AtomicU64, Ordering};

/// `KSTLAV`, and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"KSTLAV\0\x02");

const WHAT: usize = 0;
const USED: usize = 1;
const INSERTIONS: usize = 2;
const REMOVALS: usize = 3;
const CHANGES: usize = 4;
const GAP: usize = 5;
const REUSES: usize = 6;
const HEAD_WORDS: usize = 16;
/// Of an entry, with its number.
const EACH_WORDS: usize = SLOT_WORDS + 1;

/// How many bytes a table of `count` addresses takes.
pub const fn shared_bytes(count: usize) -> usize {
    (HEAD_WORDS + count * EACH_WORDS) * size_of::<u64>()
}

/// Memory that several processes map.
pub trait SharedMemory: Send + Sync {
    /// All of it: zeroes at first.
    fn words(&self) -> &[AtomicU64];

    /// Keeps everybody else from changing it, in this process and in others, until what it
    /// answers is dropped, or its process dies.
    ///
    /// # Errors
    /// The reason in words why it cannot be had.
    fn lock(&self) -> Result<Box<dyn SharedLock + '_>, String>;
}

/// The right to change shared memory; dropping it gives it back.
pub trait SharedLock {}

/// A table in shared memory.
pub(super) struct SharedTable {
    memory: Arc<dyn SharedMemory>,
    writable: bool,
}

/// What this process found in the table: the way from an address to its lowest number.
#[derive(Default)]
pub(super) struct Indexed {
    lowest: HashMap<Address, u32>,
    used: u32,
    removals: u64,
    changes: u64,
}

impl SharedTable {
    pub(super) fn open(
        memory: Arc<dyn SharedMemory>,
        writable: bool,
    ) -> Result<Self, AddressVectorError> {
        let table = SharedTable { memory, writable };
        let words = table.memory.words().len();
        // Zeroes are an empty table, which its maker is about to name.
        let what = if words > HEAD_WORDS { table.word(WHAT).load(Ordering::Acquire) } else { !0 };
        if what != MAGIC && what != 0 {
            return Err(AddressVectorError::ForeignMemory { words });
        }
        if writable {
            let _held = table.hold()?;
            table.word(WHAT).store(MAGIC, Ordering::Release);
        }
        Ok(table)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    /// The right to change the table.
    pub(super) fn hold(&self) -> Result<Box<dyn SharedLock + '_>, AddressVectorError> {
        if !self.writable {
            return Err(AddressVectorError::ReadOnly);
        }
        self.memory.lock().map_err(|reason| AddressVectorError::Locked { reason })
    }

    pub(super) fn capacity(&self) -> usize {
        ((self.memory.words().len() - HEAD_WORDS) / EACH_WORDS).min(u32::MAX as usize)
    }

    /// The words of the entries, and the numbers behind them.
    fn parts(&self) -> (&[AtomicU64], &[AtomicU64]) {
        let (count, words) = (self.capacity(), &self.memory.words()[HEAD_WORDS..]);
        let (entries, numbers) = words.split_at(count * SLOT_WORDS);
        (entries, &numbers[..count])
    }

    /// The numbers, in order.
    pub(super) fn numbers(&self) -> &[AtomicU64] {
        self.parts().1
    }

    /// A count that others wrote, no higher than what there is.
    fn bounded(&self, at: usize) -> u32 {
        let most = self.capacity() as u64;
        self.word(at).load(Ordering::Acquire).min(most) as u32 // W1: pairs with W2 in insert() and remove()
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        let at = index as usize * SLOT_WORDS;
        self.parts().0.get(at..at + SLOT_WORDS)?.try_into().ok()
    }

    pub(super) fn read(&self, index: u32) -> Option<Address> {
        match slot::read(self.slot(index)?) {
            Content::Address(address) if address.names_a_host() => Some(address),
            _ => None,
        }
    }

    pub(super) fn version(&self, index: u32) -> Option<u64> {
        slot::version(self.slot(index)?)
    }

    pub(super) fn insertions(&self) -> u64 {
        self.word(INSERTIONS).load(Ordering::Acquire) // W1
    }

    /// Differs where a number may stand for another address than before.
    pub(super) fn removals(&self) -> u64 {
        let [removals, reuses] = [REMOVALS, REUSES].map(|at| self.word(at).load(Ordering::Acquire)); // W1
        removals.wrapping_add(reuses)
    }

    pub(super) fn changes(&self) -> u64 {
        self.word(CHANGES).load(Ordering::Acquire) // W1
    }

    pub(super) fn len(&self) -> usize {
        let removals = self.word(REMOVALS).load(Ordering::Acquire); // W1
        self.insertions().saturating_sub(removals).min(self.capacity() as u64) as usize
    }

    /// Inserts at the lowest number that is vacant. The caller holds the table.
    pub(super) fn insert(&self, address: Address) -> Result<u32, AddressVectorError> {
        let (gap, used) = (self.bounded(GAP), self.bounded(USED));
        let vacant = |&index: &u32| {
            self.slot(index).is_some_and(|slot| slot::read_exclusive(slot) == Content::Vacant)
        };
        let index = (gap..used).find(vacant).unwrap_or(used);
        let full = AddressVectorError::Full { count: self.capacity() as u64 };
        let slot = self.slot(index).ok_or(full)?;
        // A writer that died may have got this far, and others have seen it.
        let is_reused = index < used || slot::was_used(slot);
        slot::vacate(slot);
        if is_reused {
            self.word(REUSES).fetch_add(1, Ordering::Release); // W2: pairs with W1
        }
        slot::publish(slot, address);
        self.numbers()[index as usize].store(index.into(), Ordering::Release);
        self.word(GAP).store(u64::from(index) + 1, Ordering::Relaxed);
        self.word(USED).store(u64::from(used.max(index + 1)), Ordering::Release); // W2: pairs with W1
        self.count(INSERTIONS);
        Ok(index)
    }

    /// Removes what is at `index`. The caller holds the table.
    pub(super) fn remove(&self, index: u32) -> Result<(), AddressVectorError> {
        let missing = AddressVectorError::NotInserted { fi_addr: index.into() };
        if self.read(index).is_none() {
            return Err(missing);
        }
        let slot = self.slot(index).ok_or(missing)?;
        let gap = self.bounded(GAP).min(index);
        self.word(GAP).store(gap.into(), Ordering::Relaxed);
        slot::vacate(slot);
        self.numbers()[index as usize].store(FI_ADDR_NOTAVAIL, Ordering::Release);
        self.count(REMOVALS);
        Ok(())
    }

    fn count(&self, what: usize) {
        self.word(what).fetch_add(1, Ordering::Release); // W2: pairs with W1
        self.word(CHANGES).fetch_add(1, Ordering::Release); // W2: pairs with W1
    }

    /// The lowest number of `address`, by what `indexed` remembers and what is new.
    pub(super) fn find(&self, address: &Address, indexed: &mut Indexed) -> Option<u32> {
        let (changes, removals) = (self.changes(), self.removals());
        // Where nothing was removed, nothing lies before what is known.
        if indexed.changes != changes && (removals > 0 || indexed.removals != removals) {
            *indexed = Indexed::default();
        }
        let used = self.bounded(USED);
        // A number is used once its entry was: whoever says otherwise has us read no page that nobody has
        // written, for which we would be charged.
        let was_used = |&index: &u32| self.slot(index).is_some_and(slot::was_used);
        indexed.used = indexed.used.min(used);
        for index in (indexed.used..used).take_while(was_used) {
            if let Some(address) = self.read(index) {
                indexed.lowest.entry(address).or_insert(index);
            }
            indexed.used = index + 1;
        }
        (indexed.changes, indexed.removals) = (changes, removals);
        let index = *indexed.lowest.get(address)?;
        (self.read(index) == Some(*address)).then_some(index)
    }
}
