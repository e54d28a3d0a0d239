//! Address vectors: from the addresses that an application inserts to the
//! dense numbers that it sends to. Reference: fi_av(3).
//!
//! Inserting checks an address's form and nothing else. Route, incarnation
//! and liveness belong to the connection, made at first use.
//!
//! On the data path [`AddressVector::get`], [`version`](AddressVector::version),
//! [`insertions`](AddressVector::insertions) and [`removals`](AddressVector::removals)
//! are wait-free, while the vector grows and while others insert and remove.
//! Everything else is the control path: writers serialise on one mutex.
//!
//! `MAP` and `TABLE` are the same inside: a dense index, lowest unused first.
//! Generations are not part of it, nor of any `fi_addr_t`.

mod entries;
mod error;
mod insertion;
mod reverse_index;
mod symmetric;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, OnceLock, PoisonError};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use crate::address::{Address, AddressError};
use crate::bind_count::BindCount;
use crate::event_queue::EventQueue;
use crate::info::AddressVectorKind;
use crate::primitive::{AtomicU64, AtomicUsize, Ordering};

use entries::{ENTRY_COUNT_MAX, Entries};
pub use error::AddressVectorError;
pub use insertion::Insertion;
use reverse_index::ReverseIndex;
pub use symmetric::{SymmetricRange, symmetric_host_name};

/// What libfabric calls `fi_addr_t`.
pub type FiAddr = u64;

/// No particular address: a receive from anybody.
pub const FI_ADDR_UNSPEC: FiAddr = u64::MAX;

/// No address known: the same value, as an answer.
pub const FI_ADDR_NOTAVAIL: FiAddr = u64::MAX;

/// Receive-context bits beyond this would leave too few for the addresses.
const RX_CTX_BITS_MAX: u32 = 32;

bitflags::bitflags! {
    /// Flags of opening and inserting, with libfabric's values. Reference: fi_av(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AddressVectorFlags: u64 {
        /// Insert: more insertions follow. Nothing is gained by it here.
        const MORE = 1 << 18;
        /// Open: insertions report through an event queue.
        const EVENT = 1 << 24;
        /// Insert: report each address's error.
        const SYNC_ERR = 1 << 58;
        /// Open: every node has the same services. Nothing is gained by it here.
        const SYMMETRIC = 1 << 59;
    }
}

/// How to open an address vector. Reference: `struct fi_av_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressVectorAttributes {
    pub kind: AddressVectorKind,
    /// How many top bits of an address name a receive context: see [`fi_rx_addr`].
    pub rx_ctx_bits: u32,
    /// How many addresses to expect; 0 is unknown. Memory grows as needed, whatever it says.
    pub count: usize,
    /// How many endpoints each node has; 0 is unknown.
    pub ep_per_node: usize,
    pub flags: AddressVectorFlags,
}

/// The address of receive context `rx_index` at `fi_addr`. Reference: `fi_rx_addr` of fi_av(3).
pub const fn fi_rx_addr(fi_addr: FiAddr, rx_index: u64, rx_ctx_bits: u32) -> FiAddr {
    if rx_ctx_bits == 0 { fi_addr } else { rx_index << (u64::BITS - rx_ctx_bits) | fi_addr }
}

/// A table of addresses that endpoints share.
pub struct AddressVector {
    attributes: AddressVectorAttributes,
    entries: Entries,
    insertions: AtomicU64,
    removals: AtomicU64,
    changes: AtomicU64,
    live: AtomicUsize,
    binds: BindCount,
    events: OnceLock<(Arc<EventQueue>, u64)>,
    /// Writers only: the control path. No reader of the data path takes it.
    writer: Mutex<Writer>,
}

/// What only writers need.
#[derive(Default)]
struct Writer {
    /// Indices from here on were never used.
    next: u64,
    /// Indices below `next` that were removed.
    free: BinaryHeap<Reverse<u32>>,
    index: ReverseIndex,
}

impl AddressVector {
    /// Opens an address vector.
    ///
    /// # Errors
    /// [`AddressVectorError::UnsupportedFlags`], [`AddressVectorError::TooManyRxCtxBits`].
    pub fn open(mut attributes: AddressVectorAttributes) -> Result<Self, AddressVectorError> {
        let supported = AddressVectorFlags::EVENT | AddressVectorFlags::SYMMETRIC;
        if !supported.contains(attributes.flags) {
            let flags = attributes.flags.difference(supported).bits();
            return Err(AddressVectorError::UnsupportedFlags { flags });
        }
        if attributes.rx_ctx_bits > RX_CTX_BITS_MAX {
            let bits = attributes.rx_ctx_bits;
            return Err(AddressVectorError::TooManyRxCtxBits { bits, bits_max: RX_CTX_BITS_MAX });
        }
        if attributes.kind == AddressVectorKind::Unspec {
            attributes.kind = AddressVectorKind::Table;
        }
        Ok(AddressVector {
            attributes,
            entries: Entries::new(),
            insertions: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            binds: BindCount::default(),
            events: OnceLock::new(),
            writer: Mutex::new(Writer::default()),
        })
    }

    /// What it was opened with; the kind is never `Unspec`.
    pub fn attributes(&self) -> &AddressVectorAttributes {
        &self.attributes
    }

    /// The address behind `fi_addr`; its receive-context bits are ignored.
    ///
    /// Cost: wait-free, eight loads; no lock, no retry. Never a mixture of
    /// two addresses; `None` if it was not inserted, or was removed by now.
    pub fn get(&self, fi_addr: FiAddr) -> Option<Address> {
        self.entries.read(self.index_of(fi_addr)?)
    }

    /// A number that differs for every insertion at the same `fi_addr`.
    ///
    /// Cost: wait-free. An engine that finds [`removals`](Self::removals)
    /// changed compares this for each route that it keeps, and so notices a
    /// `fi_addr` that was removed and given away again.
    pub fn version(&self, fi_addr: FiAddr) -> Option<u64> {
        self.entries.version(self.index_of(fi_addr)?)
    }

    /// How many addresses were ever inserted. Cost: one atomic load.
    pub fn insertions(&self) -> u64 {
        self.insertions.load(Ordering::Acquire) // E1: pairs with E2 in insert_locked()
    }

    /// How many addresses were ever removed. Cost: one atomic load.
    ///
    /// Load it before reading the entries that a cached route stands for:
    /// whoever sees a number here sees all those removals in the entries.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire) // E3: pairs with E4 in remove_locked()
    }

    /// How many insertions and removals there were. Cost: one atomic load, so
    /// that an engine notices on every poll what its peers are called.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire) // E5: pairs with E6 in insert_locked() and remove_locked()
    }

    /// The bits of an address that say whose it is: all but those of its receive context.
    pub fn source_mask(&self) -> FiAddr {
        // rx_ctx_bits is at most 32, so the shift is in range.
        u64::MAX >> self.attributes.rx_ctx_bits
    }

    /// The receive context that `fi_addr` names.
    pub fn rx_index(&self, fi_addr: FiAddr) -> u64 {
        match self.attributes.rx_ctx_bits {
            0 => 0,
            bits => fi_addr >> (u64::BITS - bits),
        }
    }

    /// The lowest `fi_addr` that holds `address`. Cold: takes the writer mutex.
    pub fn find(&self, address: &Address) -> Option<FiAddr> {
        let writer = self.lock();
        writer.index.find(address, |index| self.stored(index)).map(FiAddr::from)
    }

    /// The address behind `fi_addr`, for `fi_av_lookup`.
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`].
    pub fn lookup(&self, fi_addr: FiAddr) -> Result<Address, AddressVectorError> {
        self.get(fi_addr).ok_or(AddressVectorError::NotInserted { fi_addr })
    }

    /// An address in words, inserted or not, for `fi_av_straddr`.
    pub fn straddr(&self, address: &Address) -> String {
        address.to_string()
    }

    /// Removes addresses. All that can be removed are, also after a bad one.
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`] with the first that was not there.
    pub fn remove(&self, fi_addrs: &[FiAddr]) -> Result<(), AddressVectorError> {
        let mut writer = self.lock();
        let mut result = Ok(());
        for &fi_addr in fi_addrs {
            let removed = self.remove_locked(&mut writer, fi_addr);
            result = result.and(removed);
        }
        result
    }

    /// How many addresses are in it now.
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many addresses fit before more memory is asked for.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The objects bound to it: endpoints count themselves in and out here.
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// Binds the queue that asynchronous insertions report to, as object `fid`.
    ///
    /// # Errors
    /// [`AddressVectorError::EventQueueBound`] the second time; whatever the queue's own count says.
    pub fn bind_event_queue(
        &self,
        queue: Arc<EventQueue>,
        fid: u64,
    ) -> Result<(), AddressVectorError> {
        queue.binds().bind()?;
        self.events.set((queue, fid)).map_err(|(queue, _)| {
            // The count was taken a moment ago, so it can be given back.
            let _ = queue.binds().unbind();
            AddressVectorError::EventQueueBound
        })
    }

    /// Closes it. The endpoints bound to it must be gone.
    ///
    /// # Errors
    /// [`AddressVectorError::Bind`] while something is bound.
    pub fn close(&self) -> Result<(), AddressVectorError> {
        self.binds.close()?;
        if let Some((queue, _)) = self.events.get() {
            queue.binds().unbind()?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A writer that panicked (out of memory) left whole entries behind.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index that `fi_addr` names, its receive-context bits taken off.
    fn index_of(&self, fi_addr: FiAddr) -> Option<u32> {
        u32::try_from(fi_addr & self.source_mask()).ok()
    }

    /// The address at an index that is in use, for the holder of the writer mutex.
    fn stored(&self, index: u32) -> Address {
        self.entries.read_exclusive(index).expect("the reverse index holds inserted addresses only")
    }

    fn insert_locked(
        &self,
        writer: &mut Writer,
        address: Address,
    ) -> Result<FiAddr, AddressVectorError> {
        if !address.names_a_host() {
            return Err(AddressVectorError::Wildcard { address });
        }
        let index = match writer.free.peek() {
            Some(&Reverse(lowest)) => lowest,
            None if writer.next < ENTRY_COUNT_MAX => writer.next as u32,
            None => {
                return Err(AddressVectorError::Full { count: ENTRY_COUNT_MAX });
            }
        };
        let at = |index| self.stored(index);
        if !self.entries.reserve(index) || !writer.index.reserve(at) {
            return Err(AddressVectorError::OutOfMemory { count: self.len() });
        }
        if writer.free.pop().is_none() {
            writer.next += 1;
        }
        self.entries.publish(index, address);
        writer.index.add(address, index, at);
        self.live.fetch_add(1, Ordering::Relaxed);
        self.insertions.fetch_add(1, Ordering::Release); // E2: pairs with E1
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Ok(FiAddr::from(index))
    }

    fn remove_locked(
        &self,
        writer: &mut Writer,
        fi_addr: FiAddr,
    ) -> Result<(), AddressVectorError> {
        let missing = AddressVectorError::NotInserted { fi_addr };
        let Some(index) = self.index_of(fi_addr) else {
            return Err(missing);
        };
        let Some(address) = self.entries.vacate(index) else {
            return Err(missing);
        };
        writer.index.remove(&address, index, |other| self.stored(other));
        writer.free.push(Reverse(index));
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.removals.fetch_add(1, Ordering::Release); // E4: pairs with E3
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Ok(())
    }
}
