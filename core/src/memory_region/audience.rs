//! Whom a region is for, where that depends on the authorization key that a peer has proved.
//! Reference: fi_mr(3), `auth_key`: "Only peer endpoints that are programmed to use the same
//! authorization key may access the memory region."

use std::{fmt, sync::Arc};

use super::{MemoryRegion, access::Refusal};
use crate::{
    address::Address,
    address_vector::AddressVector,
    auth_key::{AuthKey, Keyring},
};

/// Whoever proves one of these keys, or of them whoever is at one address.
#[derive(Clone)]
pub struct Audience {
    pub(crate) keys: Keyring,
    pub(crate) address: Option<Address>,
    /// Where the keys are from: it is not closed before the region is.
    pub(crate) vector: Arc<AddressVector>,
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Audience { keys, address, vector: _ } = self;
        f.debug_struct("Audience").field("keys", keys).field("address", address).finish()
    }
}

impl Audience {
    fn has(&self, key: &AuthKey, address: Address) -> bool {
        let by_key = self.keys.keys().iter().any(|known| known.is_same(key));
        by_key && self.address.is_none_or(|only| only == address)
    }
}

impl MemoryRegion {
    /// Whether it is for whoever proves any of an endpoint's `keys`.
    pub(crate) fn is_for_all(&self, keys: Option<&Keyring>) -> bool {
        let Some(audience) = &self.audience else {
            return true;
        };
        let has = |key: &AuthKey| audience.keys.keys().iter().any(|known| known.is_same(key));
        audience.address.is_none() && keys.is_some_and(|keys| keys.keys().iter().all(has))
    }

    /// Refuses a peer that the region is not for; `who` is asked only where it counts.
    #[inline(always)]
    pub(crate) fn admit<'a>(
        &self,
        who: impl FnOnce() -> (Option<&'a AuthKey>, Address),
    ) -> Result<(), Refusal> {
        match &self.audience {
            None => Ok(()),
            Some(audience) => match who() {
                (Some(key), address) if audience.has(key, address) => Ok(()),
                _ => Err(Refusal::Access),
            },
        }
    }
}
