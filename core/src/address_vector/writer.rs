//! What changes an address vector: one writer at a time, on the control path.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

use super::auth_keys::AuthKeys;
use super::entries::{ENTRY_COUNT_MAX, Entries};
use super::reverse_index::ReverseIndex;
use super::runs::{RunIndex, Runs};
use super::shared::{Indexed, SharedLock};
use super::user_ids::UserIds;
use super::{Address, AddressVector, AddressVectorError, FiAddr, SymmetricRange, Table};
use crate::primitive::Ordering;

/// What only writers need.
#[derive(Default)]
pub(super) struct Writer {
    /// Indices from here on were never used.
    next: u64,
    /// Indices below `next` that were removed.
    free: BinaryHeap<Reverse<u32>>,
    index: ReverseIndex,
    runs: RunIndex,
    /// What stands for `index` where the table is shared.
    indexed: Indexed,
    pub(super) user_ids: UserIds,
    pub(super) auth_keys: AuthKeys,
}

impl AddressVector {
    /// Removes addresses. All that can be removed are, also after a bad one.
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`] with the first that was not there, and what keeps a
    /// shared vector from being written.
    pub fn remove(&self, fi_addrs: &[FiAddr]) -> Result<(), AddressVectorError> {
        let _held = self.hold()?;
        let mut writer = self.lock();
        let mut result = Ok(());
        for &fi_addr in fi_addrs {
            let removed = self.remove_locked(&mut writer, fi_addr);
            result = result.and(removed);
        }
        result
    }

    /// The lowest index that holds `address`.
    pub(super) fn find_locked(&self, writer: &mut Writer, address: &Address) -> Option<u32> {
        match &self.table {
            Table::Own(entries) => {
                let stored = writer.index.find(address, |index| stored(entries, index));
                let deferred = entries.runs().and_then(|runs| {
                    let in_runs = runs.find(address, &writer.runs).into_iter();
                    in_runs.filter(|&index| entries.is_deferred(index)).min()
                });
                stored.into_iter().chain(deferred).min()
            }
            Table::Shared(table) => table.find(address, &mut writer.indexed),
        }
    }

    /// Every index that holds `address`, in a vector of this process.
    pub(super) fn find_all_locked(&self, writer: &Writer, address: &Address) -> Vec<u32> {
        let Table::Own(entries) = &self.table else { return Vec::new() };
        let mut all = writer.index.find_all(address, |index| stored(entries, index));
        if let Some(runs) = entries.runs() {
            let in_runs = runs.find(address, &writer.runs).into_iter();
            all.extend(in_runs.filter(|&index| entries.is_deferred(index)));
        }
        all
    }

    pub(super) fn insert_locked(
        &self,
        writer: &mut Writer,
        address: Address,
    ) -> Result<FiAddr, AddressVectorError> {
        if !address.names_a_host() {
            return Err(AddressVectorError::Wildcard { address });
        }
        let index = match &self.table {
            Table::Own(entries) => self.insert_own(entries, writer, address)?,
            Table::Shared(table) => return table.insert(address).map(FiAddr::from),
        };
        self.live.fetch_add(1, Ordering::Relaxed);
        self.insertions.fetch_add(1, Ordering::Release); // E2: pairs with E1
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Ok(FiAddr::from(index))
    }

    fn insert_own(
        &self,
        entries: &Entries,
        writer: &mut Writer,
        address: Address,
    ) -> Result<u32, AddressVectorError> {
        let at = |index| stored(entries, index);
        let no_memory = || AddressVectorError::OutOfMemory { count: self.len() };
        let index = match writer.free.peek() {
            Some(&Reverse(lowest)) => lowest,
            None if writer.next == ENTRY_COUNT_MAX => {
                return Err(AddressVectorError::Full { count: ENTRY_COUNT_MAX });
            }
            None => writer.next as u32,
        };
        if let (Some(runs), true) = (entries.runs(), writer.free.is_empty()) {
            if !runs.append(address, &mut writer.runs) {
                return Err(no_memory());
            }
            writer.next += 1;
            return Ok(index);
        }
        if !entries.reserve(index) || !writer.index.reserve(1, at) {
            return Err(no_memory());
        }
        if writer.free.pop().is_none() {
            writer.next += 1;
        }
        entries.publish(index, address);
        writer.index.add(address, index, at);
        Ok(index)
    }

    /// Makes room for so many addresses that are about to be inserted, at once rather than by and
    /// by. Without that much memory each insertion says so for itself.
    pub(super) fn expect(&self, writer: &mut Writer, count: usize) {
        if let Table::Own(entries) = &self.table
            && entries.runs().is_none()
        {
            writer.index.reserve(count, |index| stored(entries, index));
        }
    }

    /// How many addresses there is room for on the way back from an address to its number.
    #[cfg(all(test, not(loom)))]
    pub(super) fn expected(&self) -> usize {
        self.lock().index.capacity()
    }

    /// Inserts a range as one run, where the vector is symmetric and has no gap; answers the
    /// first of its numbers.
    pub(super) fn insert_run(&self, writer: &mut Writer, range: SymmetricRange) -> Option<FiAddr> {
        let (runs, first) = (self.appendable_runs(writer)?, writer.next);
        let fits = first + range.len() as u64 <= ENTRY_COUNT_MAX;
        if range.is_empty() || !range.base().names_a_host() || !fits {
            return None;
        }
        if !runs.append_range(range, &mut writer.runs) {
            return None;
        }
        writer.next += range.len() as u64;
        self.live.fetch_add(range.len(), Ordering::Relaxed);
        self.insertions.fetch_add(range.len() as u64, Ordering::Release); // E2: pairs with E1
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Some(first)
    }

    fn appendable_runs(&self, writer: &Writer) -> Option<&Runs> {
        match &self.table {
            Table::Own(entries) if writer.free.is_empty() => entries.runs(),
            _ => None,
        }
    }

    fn remove_locked(
        &self,
        writer: &mut Writer,
        fi_addr: FiAddr,
    ) -> Result<(), AddressVectorError> {
        let index = self.index_of(fi_addr).ok_or(AddressVectorError::NotInserted { fi_addr })?;
        match &self.table {
            Table::Own(entries) => self.remove_own(entries, writer, index)?,
            Table::Shared(table) => table.remove(index)?,
        }
        writer.user_ids.forget(index);
        writer.auth_keys.forget(index);
        Ok(())
    }

    fn remove_own(
        &self,
        entries: &Entries,
        writer: &mut Writer,
        index: u32,
    ) -> Result<(), AddressVectorError> {
        let missing = AddressVectorError::NotInserted { fi_addr: index.into() };
        let address = entries.read_exclusive(index).ok_or(missing)?;
        let deferred = entries.is_deferred(index);
        if !entries.reserve(index) {
            return Err(AddressVectorError::OutOfMemory { count: self.len() });
        }
        entries.vacate(index);
        if !deferred {
            writer.index.remove(&address, index, |other| stored(entries, other));
        }
        writer.free.push(Reverse(index));
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.removals.fetch_add(1, Ordering::Release); // E4: pairs with E3
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Ok(())
    }

    /// Has the lowest unused number taken by what is nobody's address, for the `nth` entry of a call
    /// that failed; until [`Self::free_places`].
    pub(super) fn hold_place(&self, writer: &mut Writer, nth: usize) -> Option<FiAddr> {
        if matches!(self.table, Table::Shared(_)) {
            return None;
        }
        // "This host on this network": no endpoint is there, and none has port 0.
        let ip = Ipv4Addr::from_bits(1 + nth as u32 % 0x00ff_ffff);
        self.insert_locked(writer, Address::new(ip.into(), 0)).ok()
    }

    /// Has these numbers be unused again.
    pub(super) fn free_places(&self, writer: &mut Writer, places: &[FiAddr]) {
        for &fi_addr in places {
            // It was inserted under the lock that is still held.
            let _ = self.remove_locked(writer, fi_addr);
        }
    }

    /// Keeps others from changing a shared table, until what it answers is dropped. Before the writer
    /// mutex, since other processes may keep it for long.
    pub(super) fn hold(&self) -> Result<Option<Box<dyn SharedLock + '_>>, AddressVectorError> {
        match &self.table {
            Table::Own(_) => Ok(None),
            Table::Shared(table) => table.hold().map(Some),
        }
    }
}

/// The address at an index that is in use, for the holder of the writer mutex.
fn stored(entries: &Entries, index: u32) -> Address {
    entries.read_exclusive(index).expect("the reverse index holds inserted addresses only")
}
