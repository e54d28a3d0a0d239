//! Authorization keys. Reference: fi_endpoint(3): "Only peer endpoints that are programmed to use
//! the same authorization key may communicate."
//!
//! An endpoint has one key, given when it is opened, or those of its address vector
//! (FI_AV_AUTH_KEY). Its transport proves one of them with each connection and tells which one a
//! peer has proved; from there on a key is a number.

use std::{fmt, sync::Arc};

/// What an address vector calls a key. No number is given twice.
pub type KeyNumber = u32;

/// The key of an endpoint that has one alone.
pub const ONLY_KEY: KeyNumber = 0;

/// The most keys of one endpoint (`max_ep_auth_key`).
pub const KEYS_MAX: usize = 64;

/// A key and its number.
#[derive(Clone)]
pub struct AuthKey {
    /// What it is called.
    pub number: KeyNumber,
    bytes: Arc<[u8]>,
}

/// Not the key itself, which goes into no log.
impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthKey({})", self.number)
    }
}

impl AuthKey {
    /// A key that is called `number`.
    pub fn new(number: KeyNumber, bytes: &[u8]) -> AuthKey {
        AuthKey { number, bytes: bytes.into() }
    }

    /// What is to be proved.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is the same key, whatever it is called.
    pub fn is_same(&self, other: &AuthKey) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes
    }
}

/// The keys of one endpoint: settled when it is enabled, and the same from then on.
#[derive(Clone, Debug)]
pub struct Keyring(Arc<[AuthKey]>);

impl Keyring {
    /// These keys, each with a number of its own.
    pub fn new(keys: impl IntoIterator<Item = AuthKey>) -> Keyring {
        Keyring(keys.into_iter().collect())
    }

    /// The key of an endpoint that has no other.
    pub fn only(bytes: &[u8]) -> Keyring {
        Keyring::new([AuthKey::new(ONLY_KEY, bytes)])
    }

    /// All of them.
    pub fn keys(&self) -> &[AuthKey] {
        &self.0
    }

    /// The key that is called `number`.
    pub fn get(&self, number: KeyNumber) -> Option<&AuthKey> {
        self.0.iter().find(|key| key.number == number)
    }

    /// At which place the key is that is called `number`.
    pub fn place_of(&self, number: KeyNumber) -> Option<usize> {
        self.0.iter().position(|key| key.number == number)
    }

    /// What the key is called that a peer has proved, as `proves` finds out.
    pub fn proved(&self, mut proves: impl FnMut(&[u8]) -> bool) -> Option<KeyNumber> {
        self.0.iter().find(|key| proves(key.bytes())).map(|key| key.number)
    }
}

/// The keys that a transport's peers prove: the one that it was opened with, or those that it is told.
#[derive(Debug)]
pub struct ProvedKeys {
    own: Keyring,
    told: Option<Keyring>,
}

impl ProvedKeys {
    /// Of a transport that is opened with the key `own`, which is not proved yet if its keys `follow`
    /// ([`Opening::keys_follow`](crate::transport::Opening::keys_follow)).
    pub fn new(own: &[u8], follow: bool) -> ProvedKeys {
        let own = Keyring::only(own);
        ProvedKeys { told: (!follow).then(|| own.clone()), own }
    }

    /// From now on these are proved, or its own, if there are none.
    pub fn take(&mut self, keys: Option<Keyring>) {
        self.told = Some(keys.unwrap_or_else(|| self.own.clone()));
    }

    /// None until they are told.
    pub fn told(&self) -> Option<&Keyring> {
        self.told.as_ref()
    }
}
