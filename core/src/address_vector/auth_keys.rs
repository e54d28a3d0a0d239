//! The authorization keys of an address vector, and which addresses are meant by which.
//!
//! "The output of fi_av_insert_auth_key is an authorization key fi_addr_t handle representing all
//! endpoint addresses against this specific authorization key" (fi_av(3)). Handles count down from
//! the top of the numbers, where no address is, so that neither is ever taken for the other. A key
//! is found in the writer's part: engines ask where they make a route, and messages pay nothing.

use std::{collections::HashMap, sync::Arc};

use super::writer::Writer;
use super::{
    Address, AddressVector, AddressVectorError, AddressVectorFlags, FI_ADDR_NOTAVAIL,
    FI_ADDR_UNSPEC, FiAddr, Table,
};
use crate::auth_key::{AuthKey, KEYS_MAX, KeyNumber, Keyring, ONLY_KEY};
use crate::info::AUTH_KEY_SIZE_MAX;
use crate::memory_region::audience::Audience;
use crate::primitive::Ordering;

/// How many keys a vector ever takes. Their handles are the numbers from here below the last.
const KEYS_EVER_MAX: u64 = 1 << 24;

/// The handle of a key.
fn handle_of(number: KeyNumber) -> FiAddr {
    FI_ADDR_NOTAVAIL - FiAddr::from(number)
}

/// The key whose handle `fi_addr` is, if it can be one.
pub(crate) fn number_of(fi_addr: FiAddr) -> Option<KeyNumber> {
    let number = FI_ADDR_NOTAVAIL - fi_addr;
    (1..=KEYS_EVER_MAX).contains(&number).then_some(number as KeyNumber)
}

/// One key of a vector.
struct Held {
    key: AuthKey,
    /// The endpoints that are enabled with it.
    users: usize,
    /// What error events call it, where names are the user's.
    user_id: FiAddr,
}

/// What only writers need.
#[derive(Default)]
pub(super) struct AuthKeys {
    keys: Vec<Held>,
    /// The number that was given last.
    last: KeyNumber,
    /// By index: the key that the address was inserted with.
    of: HashMap<u32, KeyNumber>,
}

impl AuthKeys {
    fn get(&self, number: KeyNumber) -> Option<&Held> {
        self.keys.iter().find(|held| held.key.number == number)
    }

    fn get_mut(&mut self, number: KeyNumber) -> Option<&mut Held> {
        self.keys.iter_mut().find(|held| held.key.number == number)
    }

    pub(super) fn forget(&mut self, index: u32) {
        self.of.remove(&index);
    }

    pub(super) fn mark(&mut self, index: u32, number: KeyNumber) {
        self.of.insert(index, number);
    }

    /// The key of the address at `index`; [`ONLY_KEY`] if it was inserted without one.
    pub(super) fn of(&self, index: u32) -> KeyNumber {
        self.of.get(&index).copied().unwrap_or(ONLY_KEY)
    }
}

/// The keys that an endpoint was enabled with: they are not removed before this is dropped.
pub struct HeldKeys {
    vector: Arc<AddressVector>,
    pub(crate) ring: Keyring,
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        let mut writer = self.vector.lock();
        for key in self.ring.keys() {
            if let Some(held) = writer.auth_keys.get_mut(key.number) {
                held.users -= 1;
            }
        }
    }
}

impl AddressVector {
    /// Whether endpoints have their keys from it: the domain was opened with FI_AV_AUTH_KEY.
    pub fn has_auth_keys(&self) -> bool {
        self.attributes.auth_keys
    }

    /// Inserts a key and answers its handle. A key that is there already has the handle that it
    /// has. Endpoints and regions that are enabled do not get it.
    ///
    /// # Errors
    /// [`AddressVectorError::NoAuthKeys`], [`AddressVectorError::AuthKeySize`],
    /// [`AddressVectorError::Full`].
    pub fn insert_auth_key(&self, bytes: &[u8]) -> Result<FiAddr, AddressVectorError> {
        if !self.has_auth_keys() {
            return Err(AddressVectorError::NoAuthKeys);
        }
        if bytes.is_empty() || bytes.len() > AUTH_KEY_SIZE_MAX {
            let (size, size_max) = (bytes.len(), AUTH_KEY_SIZE_MAX);
            return Err(AddressVectorError::AuthKeySize { size, size_max });
        }
        let keys = &mut self.lock().auth_keys;
        if let Some(held) = keys.keys.iter().find(|held| held.key.bytes() == bytes) {
            return Ok(handle_of(held.key.number));
        }
        if u64::from(keys.last) == KEYS_EVER_MAX {
            return Err(AddressVectorError::Full { count: KEYS_EVER_MAX });
        }
        keys.last += 1;
        let key = AuthKey::new(keys.last, bytes);
        keys.keys.push(Held { key, users: 0, user_id: FI_ADDR_NOTAVAIL });
        Ok(handle_of(keys.last))
    }

    /// The key behind `fi_addr`, a key's handle or an address that was inserted with a key.
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`].
    pub fn lookup_auth_key(&self, fi_addr: FiAddr) -> Result<AuthKey, AddressVectorError> {
        let missing = AddressVectorError::NotInserted { fi_addr };
        let number = match number_of(fi_addr) {
            Some(number) => Some(number),
            None => self.key_of(fi_addr),
        };
        let writer = self.lock();
        let held = number.and_then(|number| writer.auth_keys.get(number));
        held.map(|held| held.key.clone()).ok_or(missing)
    }

    /// What error events of FI_SOURCE_ERR call a key from now on: "error events will return
    /// FI_ADDR_NOTAVAIL until the user defines a user ID for this authorization key fi_addr_t".
    ///
    /// # Errors
    /// [`AddressVectorError::NoUserIds`] if the vector was not opened with `USER_ID`,
    /// [`AddressVectorError::NotInserted`].
    pub fn set_auth_key_id(&self, handle: FiAddr, id: FiAddr) -> Result<(), AddressVectorError> {
        if !self.has_user_ids() {
            return Err(AddressVectorError::NoUserIds);
        }
        let mut writer = self.lock();
        let held = number_of(handle).and_then(|number| writer.auth_keys.get_mut(number));
        held.ok_or(AddressVectorError::NotInserted { fi_addr: handle })?.user_id = id;
        Ok(())
    }

    /// What an error event calls a key: its handle, or its user id. Cold: takes the writer mutex.
    pub(crate) fn reported_key(&self, number: KeyNumber) -> FiAddr {
        match self.lock().auth_keys.get(number) {
            Some(held) if self.has_user_ids() => held.user_id,
            Some(_) => handle_of(number),
            None => FI_ADDR_NOTAVAIL,
        }
    }

    /// Removes keys, by their handles. All that can be removed are, also after a bad one.
    ///
    /// # Errors
    /// With the first that was not: [`AddressVectorError::NotInserted`], or
    /// [`AddressVectorError::AuthKeyInUse`]: "the address will only be removed if all endpoints,
    /// which have been enabled against the corresponding authorization key, have been closed".
    pub fn remove_auth_keys(&self, handles: &[FiAddr]) -> Result<(), AddressVectorError> {
        let keys = &mut self.lock().auth_keys.keys;
        let mut result = Ok(());
        for &fi_addr in handles {
            let found = number_of(fi_addr)
                .and_then(|number| keys.iter().position(|held| held.key.number == number));
            let removed = match found {
                None => Err(AddressVectorError::NotInserted { fi_addr }),
                Some(at) if keys[at].users > 0 => {
                    let endpoints = keys[at].users;
                    Err(AddressVectorError::AuthKeyInUse { fi_addr, endpoints })
                }
                Some(at) => {
                    keys.remove(at);
                    Ok(())
                }
            };
            result = result.and(removed);
        }
        result
    }

    /// The number of a key by its handle.
    ///
    /// # Errors
    /// [`AddressVectorError::NotInserted`]: it is no handle, or the key was removed.
    pub(super) fn key_behind(
        &self,
        writer: &Writer,
        handle: FiAddr,
    ) -> Result<KeyNumber, AddressVectorError> {
        let found = number_of(handle).filter(|&number| writer.auth_keys.get(number).is_some());
        found.ok_or(AddressVectorError::NotInserted { fi_addr: handle })
    }

    /// The key that the address at `fi_addr` was inserted with, or [`ONLY_KEY`]; none if there is
    /// no such address. Cold where there are keys: takes the writer mutex.
    pub(crate) fn key_of(&self, fi_addr: FiAddr) -> Option<KeyNumber> {
        let index = self.index_of(fi_addr).filter(|_| self.get(fi_addr).is_some())?;
        if !self.has_auth_keys() {
            return Some(ONLY_KEY);
        }
        Some(self.lock().auth_keys.of(index))
    }

    /// Whom a region is for: whoever proves a key that is there now, or with `FI_ADDR_UNSPEC`
    /// elsewhere, the key of a handle (`AUTH_KEY`), or one address and its key. Reference: fi_mr(3),
    /// `struct fi_mr_auth_key`.
    ///
    /// # Errors
    /// [`AddressVectorError::AuthKeyCount`], [`AddressVectorError::NotInserted`].
    pub fn audience(
        self: &Arc<Self>,
        source: FiAddr,
        flags: AddressVectorFlags,
    ) -> Result<Audience, AddressVectorError> {
        let vector = self.clone();
        if source == FI_ADDR_UNSPEC {
            let keys = Keyring::new(self.lock().auth_keys.keys.iter().map(|held| held.key.clone()));
            let (count, count_max) = (keys.keys().len(), KEYS_MAX);
            return match count {
                0 => Err(AddressVectorError::AuthKeyCount { count, count_max }),
                _ => Ok(Audience { keys, address: None, vector }),
            };
        }
        let is_handle = number_of(source).is_some();
        if is_handle != flags.contains(AddressVectorFlags::AUTH_KEY) {
            return Err(AddressVectorError::NotInserted { fi_addr: source });
        }
        let keys = Keyring::new([self.lookup_auth_key(source)?]);
        let address = if is_handle { None } else { Some(self.lookup(source)?) };
        Ok(Audience { keys, address, vector })
    }

    /// The keys that are there now, for an endpoint that is enabled with them: "Later
    /// authorization key insertions will not propagate to already enabled endpoints".
    ///
    /// # Errors
    /// [`AddressVectorError::AuthKeyCount`]: there is none, or there are too many for an endpoint.
    pub(crate) fn hold_auth_keys(self: &Arc<Self>) -> Result<HeldKeys, AddressVectorError> {
        let mut writer = self.lock();
        let keys = &mut writer.auth_keys.keys;
        let count = keys.len();
        if !(1..=KEYS_MAX).contains(&count) {
            return Err(AddressVectorError::AuthKeyCount { count, count_max: KEYS_MAX });
        }
        keys.iter_mut().for_each(|held| held.users += 1);
        let ring = Keyring::new(keys.iter().map(|held| held.key.clone()));
        drop(writer);
        Ok(HeldKeys { vector: self.clone(), ring })
    }

    /// Inserts an address that is meant by a key.
    pub(super) fn insert_for_key(
        &self,
        writer: &mut Writer,
        address: Address,
        handle: FiAddr,
    ) -> Result<FiAddr, AddressVectorError> {
        let key = self.key_behind(writer, handle)?;
        let fi_addr = self.insert_locked(writer, address)?;
        if let Some(index) = self.index_of(fi_addr) {
            writer.auth_keys.mark(index, key);
        }
        // Engines that met the address before have seen it without its key.
        self.changes.fetch_add(1, Ordering::Release); // E6: pairs with E5
        Ok(fi_addr)
    }

    /// The lowest index that holds `address` for that key.
    pub(super) fn find_keyed(
        &self,
        writer: &mut Writer,
        address: &Address,
        key: KeyNumber,
    ) -> Option<u32> {
        match &self.table {
            Table::Own(_) if self.has_auth_keys() => {
                let all = self.find_all_locked(writer, address);
                all.into_iter().filter(|&index| writer.auth_keys.of(index) == key).min()
            }
            _ => self.find_locked(writer, address),
        }
    }
}
