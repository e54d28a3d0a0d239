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
//!
//! Addresses lie in this process ([`entries`], [`runs`]), or, if the vector has a name, in
//! memory that all processes map which opened it ([`shared`]).

mod auth_keys;
mod entries;
mod error;
mod insertion;
mod reverse_index;
mod runs;
mod shared;
mod slot;
mod symmetric;
#[cfg(all(test, not(loom)))]
mod tests;
mod user_ids;
mod writer;

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use crate::address::{Address, AddressError};
use crate::bind_count::BindCount;
use crate::event_queue::EventQueue;
use crate::info::AddressVectorKind;
use crate::primitive::{AtomicU64, AtomicUsize, Ordering};

pub use auth_keys::HeldKeys;
pub(crate) use auth_keys::number_of as auth_key_number;
use entries::Entries;
pub use error::AddressVectorError;
pub use insertion::{Candidate, Insertion, Marks};
use runs::Runs;
use shared::SharedTable;
pub use shared::{SharedLock, SharedMemory, shared_bytes};
pub use symmetric::{SymmetricRange, symmetric_host_name};
use writer::Writer;

/// What libfabric calls `fi_addr_t`.
pub type FiAddr = u64;

/// No particular address: a receive from anybody.
pub const FI_ADDR_UNSPEC: FiAddr = u64::MAX;

/// No address known: the same value, as an answer.
pub const FI_ADDR_NOTAVAIL: FiAddr = u64::MAX;

/// Receive-context bits beyond this would leave too few for the addresses.
const RX_CTX_BITS_MAX: u32 = 32;

/// The most addresses that room is made for before they are inserted.
const EXPECTED_MAX: usize = 1 << 20;

bitflags::bitflags! {
    /// Flags of opening and inserting, with libfabric's values. Reference: fi_av(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AddressVectorFlags: u64 {
        /// Open: a vector with a name, for reading alone.
        const READ = 1 << 8;
        /// Insert: more insertions follow. Nothing is gained by it here.
        const MORE = 1 << 18;
        /// Open: insertions report through an event queue.
        const EVENT = 1 << 24;
        /// Open: completions name addresses as `set_user_id` says. Insert: as the call says.
        const USER_ID = 1 << 41;
        /// Insert: for an authorization key. Remove, name: of an authorization key.
        const AUTH_KEY = 1 << 57;
        /// Insert: report each address's error.
        const SYNC_ERR = 1 << 58;
        /// Open: every node has the same services. Each takes constant space then.
        const SYMMETRIC = 1 << 59;
    }
}

/// How to open an address vector. Reference: `struct fi_av_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressVectorAttributes {
    /// How its numbers are used. Both kinds have the same here; unspecified is a table.
    pub kind: AddressVectorKind,
    /// How many top bits of an address name a receive context: see [`fi_rx_addr`].
    pub rx_ctx_bits: u32,
    /// How many addresses to expect; 0 is unknown. Memory grows as needed, whatever it says.
    pub count: usize,
    /// How many endpoints each node has; 0 is unknown.
    pub ep_per_node: usize,
    /// Whether insertions end with events, and what else was asked for.
    pub flags: AddressVectorFlags,
    /// Whether endpoints have their authorization keys from it (FI_AV_AUTH_KEY).
    pub auth_keys: bool,
}

/// The address of receive context `rx_index` at `fi_addr`, in a vector whose attributes say
/// `rx_ctx_bits`: 0 to 32. Reference: `fi_rx_addr` of fi_av(3).
///
/// # Panics
/// There are more bits than a vector may have, or the index does not fit them.
pub const fn fi_rx_addr(fi_addr: FiAddr, rx_index: u64, rx_ctx_bits: u32) -> FiAddr {
    assert!(rx_ctx_bits <= RX_CTX_BITS_MAX, "an address vector has at most 32 rx_ctx_bits");
    assert!(rx_ctx_bits == 0 || rx_index >> rx_ctx_bits == 0, "the index does not fit rx_ctx_bits");
    if rx_ctx_bits == 0 { fi_addr } else { rx_index << (u64::BITS - rx_ctx_bits) | fi_addr }
}

/// A table of addresses that endpoints share.
pub struct AddressVector {
    attributes: AddressVectorAttributes,
    table: Table,
    insertions: AtomicU64,
    removals: AtomicU64,
    changes: AtomicU64,
    /// User ids that were given, where `changes` does not count them.
    names: AtomicU64,
    live: AtomicUsize,
    binds: BindCount,
    events: OnceLock<(Arc<EventQueue>, u64)>,
    /// What stands for it until one is bound: its domain's.
    default_events: OnceLock<(Arc<EventQueue>, u64)>,
    /// The control path. No reader of the data path waits for it: a poll that has to learn what peers
    /// are called tries.
    writer: Mutex<Writer>,
}

/// Where the addresses are.
enum Table {
    Own(Box<Entries>),
    Shared(SharedTable),
}

/// What [`AddressVector::changes`] and [`AddressVector::removals`] tell where only the shared
/// memory knows.
pub(crate) const LOOK_EACH_TIME: u64 = u64::MAX;

impl fmt::Debug for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressVector")
            .field("attributes", &self.attributes)
            .field("len", &self.len())
            .field("bound", &self.binds.count())
            .finish_non_exhaustive()
    }
}

impl AddressVector {
    /// Opens an address vector of this process.
    ///
    /// # Errors
    /// [`AddressVectorError::UnsupportedFlags`], [`AddressVectorError::TooManyRxCtxBits`],
    /// [`AddressVectorError::ReadOnlyWithoutName`].
    pub fn open(attributes: AddressVectorAttributes) -> Result<Self, AddressVectorError> {
        // "An AV opened for read-only access must be named."
        if attributes.flags.contains(AddressVectorFlags::READ) {
            return Err(AddressVectorError::ReadOnlyWithoutName);
        }
        let symmetric = attributes.flags.contains(AddressVectorFlags::SYMMETRIC);
        let entries = Entries::new(symmetric.then(Runs::new));
        Self::open_with(attributes, Table::Own(Box::new(entries)), 0)
    }

    /// Opens an address vector that lies in `memory`, which other processes may have opened
    /// too: an address that one of them inserts has the same number in all of them.
    ///
    /// User ids are this process's own.
    /// # Errors
    /// As [`Self::open`], and [`AddressVectorError::ForeignMemory`].
    pub fn open_shared(
        attributes: AddressVectorAttributes,
        memory: Arc<dyn SharedMemory>,
    ) -> Result<Self, AddressVectorError> {
        let writable = !attributes.flags.contains(AddressVectorFlags::READ);
        let table = SharedTable::open(memory, writable)?;
        Self::open_with(attributes, Table::Shared(table), LOOK_EACH_TIME)
    }

    /// The numbers of a vector that is shared, in the memory that it lies in: the first is what
    /// the first insertion answered. Where nothing was inserted yet there are zeroes.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn shared_numbers(&self) -> Option<&[AtomicU64]> {
        match &self.table {
            Table::Own(_) => None,
            Table::Shared(table) => Some(table.numbers()),
        }
    }

    fn open_with(
        mut attributes: AddressVectorAttributes,
        table: Table,
        epoch: u64,
    ) -> Result<Self, AddressVectorError> {
        let supported = AddressVectorFlags::EVENT
            | AddressVectorFlags::SYMMETRIC
            | AddressVectorFlags::USER_ID
            | AddressVectorFlags::READ;
        if !supported.contains(attributes.flags) {
            let flags = attributes.flags.difference(supported).bits();
            return Err(AddressVectorError::UnsupportedFlags { flags });
        }
        if attributes.rx_ctx_bits > RX_CTX_BITS_MAX {
            let bits = attributes.rx_ctx_bits;
            return Err(AddressVectorError::TooManyRxCtxBits { bits, bits_max: RX_CTX_BITS_MAX });
        }
        if attributes.auth_keys && matches!(table, Table::Shared(_)) {
            return Err(AddressVectorError::AuthKeysWithName);
        }
        if attributes.kind == AddressVectorKind::Unspec {
            attributes.kind = AddressVectorKind::Table;
        }
        let vector = AddressVector {
            attributes,
            table,
            insertions: AtomicU64::new(0),
            removals: AtomicU64::new(epoch),
            changes: AtomicU64::new(epoch),
            names: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            binds: BindCount::default(),
            events: OnceLock::new(),
            default_events: OnceLock::new(),
            writer: Mutex::new(Writer::default()),
        };
        // "The provider uses this to optimize resource allocations." It may be far off.
        let count = vector.attributes.count.min(EXPECTED_MAX);
        if count > 0 {
            vector.expect(&mut vector.lock(), count);
        }
        Ok(vector)
    }

    /// What it was opened with; the kind is never `Unspec`.
    pub fn attributes(&self) -> &AddressVectorAttributes {
        &self.attributes
    }

    /// The address behind `fi_addr`; its receive-context bits are ignored.
    ///
    /// Cost: wait-free, nine loads (in a symmetric vector a search of its runs); no lock, no
    /// retry. Never a mixture of two addresses; `None` if it was not inserted, or was removed by now.
    pub fn get(&self, fi_addr: FiAddr) -> Option<Address> {
        let index = self.index_of(fi_addr)?;
        match &self.table {
            Table::Own(entries) => entries.read(index),
            Table::Shared(table) => table.read(index),
        }
    }

    /// A number that differs for every insertion at the same `fi_addr`.
    ///
    /// Cost: wait-free. An engine that finds [`removals`](Self::removals)
    /// changed compares this for each route that it keeps, and so notices a
    /// `fi_addr` that was removed and given away again.
    pub fn version(&self, fi_addr: FiAddr) -> Option<u64> {
        let index = self.index_of(fi_addr)?;
        match &self.table {
            Table::Own(entries) => entries.version(index),
            Table::Shared(table) => table.version(index),
        }
    }

    /// How many addresses were ever inserted. Cost: one atomic load.
    pub fn insertions(&self) -> u64 {
        match &self.table {
            Table::Own(_) => self.insertions.load(Ordering::Acquire), // E1: pairs with E2 in insert_locked()
            Table::Shared(table) => table.insertions(),
        }
    }

    /// How many addresses were ever removed, or [`LOOK_EACH_TIME`]. Cost: one atomic load.
    ///
    /// Load it before reading the entries that a cached route stands for:
    /// whoever sees a number here sees all those removals in the entries.
    ///
    /// For engines.
    #[doc(hidden)]
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire) // E3: pairs with E4 in remove_locked()
    }

    /// How many insertions, removals and new names there were, or [`LOOK_EACH_TIME`]. Cost: one
    /// atomic load, so that an engine notices on every poll what its peers are called.
    ///
    /// For engines.
    #[doc(hidden)]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire) // E5: pairs with E6 in insert_locked() and remove_locked()
    }

    /// As [`Self::removals`], wherever the addresses are.
    ///
    /// For engines.
    #[doc(hidden)]
    pub fn removals_everywhere(&self) -> u64 {
        match &self.table {
            Table::Own(_) => self.removals(),
            Table::Shared(table) => table.removals(),
        }
    }

    /// As [`Self::changes`], wherever the addresses are.
    pub(crate) fn changes_everywhere(&self) -> u64 {
        match &self.table {
            Table::Own(_) => self.changes(),
            Table::Shared(table) => {
                let names = self.names.load(Ordering::Acquire); // E5
                table.changes().wrapping_add(names)
            }
        }
    }

    /// The bits of an address that say whose it is: all but those of its receive context.
    ///
    /// For engines.
    #[doc(hidden)]
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
        self.find_locked(&mut self.lock(), address).map(FiAddr::from)
    }

    /// The address behind `fi_addr`. Cost: as [`Self::get`].
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`].
    /// # Reference
    /// fi_av(3), `fi_av_lookup`
    pub fn lookup(&self, fi_addr: FiAddr) -> Result<Address, AddressVectorError> {
        self.get(fi_addr).ok_or(AddressVectorError::NotInserted { fi_addr })
    }

    /// An address in words, inserted or not, for `fi_av_straddr`.
    pub fn straddr(&self, address: &Address) -> String {
        address.to_string()
    }

    /// How many addresses are in it now.
    pub fn len(&self) -> usize {
        match &self.table {
            Table::Own(_) => self.live.load(Ordering::Relaxed),
            Table::Shared(table) => table.len(),
        }
    }

    /// Whether it holds no address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many addresses fit before more memory is asked for.
    pub fn capacity(&self) -> usize {
        match &self.table {
            Table::Own(entries) => entries.capacity(),
            Table::Shared(table) => table.capacity(),
        }
    }

    /// The objects bound to it: endpoints count themselves in and out here.
    ///
    /// For the C door.
    #[doc(hidden)]
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

    /// Has asynchronous insertions report to `queue`, as object `fid`, until one is bound. It has to
    /// be open as long as the vector is, and is not counted.
    pub fn default_event_queue(&self, queue: &Arc<EventQueue>, fid: u64) {
        // Of a domain there is one.
        let _ = self.default_events.set((queue.clone(), fid));
    }

    /// Where asynchronous insertions report.
    fn reporter(&self) -> Option<&(Arc<EventQueue>, u64)> {
        self.events.get().or(self.default_events.get())
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

    fn try_lock(&self) -> Option<MutexGuard<'_, Writer>> {
        match self.writer.try_lock() {
            Ok(writer) => Some(writer),
            // As above.
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The index that `fi_addr` names, its receive-context bits taken off.
    fn index_of(&self, fi_addr: FiAddr) -> Option<u32> {
        u32::try_from(fi_addr & self.source_mask()).ok()
    }
}
