//! What an application calls the addresses in its completions.
//!
//! "The FI_AV_USER_ID capability bit and flag provide a mechanism by which the fi_addr_t value
//! reported by a completion success or error event is replaced with a user-specified value
//! instead" (fi_av(3)). Engines ask for it where they learn what a peer is called, so messages
//! pay nothing.

use std::collections::HashMap;

use super::writer::Writer;
use super::{
    Address, AddressVector, AddressVectorError, AddressVectorFlags, FI_ADDR_NOTAVAIL, FiAddr,
    MutexGuard, Table,
};
use crate::auth_key::{KeyNumber, ONLY_KEY};
use crate::primitive::Ordering;

/// The ids that were given, by index, with the version of the address that it was given to:
/// another process may have removed that address since.
#[derive(Default)]
pub(super) struct UserIds(HashMap<u32, (Option<u64>, FiAddr)>);

impl UserIds {
    pub(super) fn forget(&mut self, index: u32) {
        self.0.remove(&index);
    }
}

impl AddressVector {
    /// Whether it was opened with `USER_ID`: addresses have no name until they are given one.
    pub fn has_user_ids(&self) -> bool {
        self.attributes.flags.contains(AddressVectorFlags::USER_ID)
    }

    /// What completions call the address at `fi_addr` from now on. "By default, all fi_addr_t's
    /// will be assigned the user ID FI_ADDR_NOTAVAIL."
    ///
    /// # Errors
    /// [`AddressVectorError::NoUserIds`] if the vector was not opened with `USER_ID`,
    /// [`AddressVectorError::NotInserted`].
    pub fn set_user_id(&self, fi_addr: FiAddr, id: FiAddr) -> Result<(), AddressVectorError> {
        if !self.has_user_ids() {
            return Err(AddressVectorError::NoUserIds);
        }
        let mut writer = self.lock();
        let missing = AddressVectorError::NotInserted { fi_addr };
        let index =
            self.index_of(fi_addr).filter(|_| self.get(fi_addr).is_some()).ok_or(missing)?;
        self.name_locked(&mut writer, index.into(), id);
        Ok(())
    }

    /// Remembers what completions call the address at `fi_addr`, which is there, and tells
    /// engines of it.
    pub(super) fn name_locked(&self, writer: &mut Writer, fi_addr: FiAddr, id: FiAddr) {
        let version = self.version(fi_addr);
        if let Some(index) = self.index_of(fi_addr) {
            writer.user_ids.0.insert(index, (version, id));
        }
        match &self.table {
            Table::Own(_) => &self.changes,
            Table::Shared(_) => &self.names,
        }
        .fetch_add(1, Ordering::Release); // E6: pairs with E5
    }

    /// What completions call `address`: its user id, or its `fi_addr`. Cold: takes the writer
    /// mutex.
    pub fn reported(&self, address: &Address) -> FiAddr {
        self.names().reported_by(address, ONLY_KEY)
    }

    /// What addresses are called, until what it answers is dropped. Takes the writer mutex, for which
    /// it waits as long as an insertion lasts.
    pub(crate) fn names(&self) -> Names<'_> {
        Names { vector: self, writer: self.lock() }
    }

    /// The same for who waits for nobody: none while addresses are inserted, removed or looked for.
    pub(crate) fn names_at_once(&self) -> Option<Names<'_>> {
        Some(Names { vector: self, writer: self.try_lock()? })
    }
}

/// What an address vector calls addresses: it does not change meanwhile.
pub(crate) struct Names<'a> {
    vector: &'a AddressVector,
    writer: MutexGuard<'a, Writer>,
}

impl Names<'_> {
    /// What completions call whoever is at `address` and has proved that key.
    pub(crate) fn reported_by(&mut self, address: &Address, key: KeyNumber) -> FiAddr {
        self.known_by(address, key).unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// The same; none if it is not there. One that is may have no name.
    pub(crate) fn known_by(&mut self, address: &Address, key: KeyNumber) -> Option<FiAddr> {
        let (vector, writer) = (self.vector, &mut *self.writer);
        let index = vector.find_keyed(writer, address, key)?;
        let unnamed = if vector.has_user_ids() { FI_ADDR_NOTAVAIL } else { FiAddr::from(index) };
        Some(match writer.user_ids.0.get(&index) {
            Some(&(version, id)) if version == vector.version(index.into()) => id,
            _ => unnamed,
        })
    }
}
