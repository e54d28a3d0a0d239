//! What the workloads need of an endpoint, whoever stands behind it: kestrel
//! itself ([`crate::fabric`]), or any provider of libfabric ([`crate::door`]).
//!
//! The loops are generic over it, so that all who are compared run the same code.

use crate::door::DoorError;
use crate::fabric::FabricError;
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Door(#[from] DoorError),
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// No room: poll, then post again.
    Again,
}

/// What is done to the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    Write,
    Read,
    /// A 64-bit sum that fetches.
    FetchAdd,
    /// A 64-bit compare and swap.
    CompareSwap,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::FetchAdd => "fetch-add",
            Verb::CompareSwap => "compare-swap",
        }
    }
}

/// Local memory of an operation: what is sent, and where what comes back goes.
#[derive(Clone, Copy)]
pub struct Local {
    pub source: *const u8,
    pub results: *mut u8,
    pub size: usize,
}

/// What the others must know to reach exposed memory: where it starts for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub address: u64,
    pub key: u64,
}

impl Grant {
    pub const BYTES: usize = 16;

    /// As it travels in a message.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Grant {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Grant { address: word(0), key: word(8) }
    }
}

/// An endpoint with its completion queue and address vector.
pub trait Port {
    /// A completion as the queue writes it.
    type Entry: Default;
    /// Memory that the others may reach.
    type Region;

    /// The context that an operation was posted with.
    fn context(entry: &Self::Entry) -> u64;

    /// Messages up to this many bytes are injected.
    fn inject_bytes_max(&self) -> usize;

    /// Sends a tagged message that leaves no completion.
    ///
    /// # Safety
    /// `bytes` is readable for `len` bytes.
    unsafe fn inject(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
    ) -> Result<Outcome, PortError>;

    /// Sends a tagged message.
    ///
    /// # Safety
    /// `bytes` is readable for `len` bytes until the completion.
    unsafe fn send(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
        context: u64,
    ) -> Result<Outcome, PortError>;

    /// Posts a tagged receive.
    ///
    /// # Safety
    /// `bytes` is writable for `len` bytes until the completion.
    unsafe fn receive(
        &mut self,
        bytes: *mut u8,
        len: usize,
        from: Option<u64>,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<Outcome, PortError>;

    /// Makes progress and reads completions; how many.
    fn poll(&mut self, entries: &mut [Self::Entry]) -> Result<usize, PortError>;

    /// Lets the others reach `len` bytes.
    ///
    /// # Safety
    /// They are valid for reads and writes until [`Self::hide`].
    unsafe fn expose(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<(Self::Region, Grant), PortError>;

    /// The counterpart of [`Self::expose`].
    fn hide(&mut self, region: Self::Region) -> Result<(), PortError>;

    /// Registers the buffers that messages are sent from and received into, where that is of use, so that
    /// an adapter need not for each of them.
    ///
    /// # Safety
    /// Both are valid for their lengths until [`Self::deregister`].
    unsafe fn register(
        &mut self,
        _sent: (*mut u8, usize),
        _received: (*mut u8, usize),
    ) -> Result<(), PortError> {
        Ok(())
    }

    /// The counterpart of [`Self::register`].
    fn deregister(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Does `verb` to the start of the memory that `to` granted.
    ///
    /// # Safety
    /// `local.source` is readable for its size, 16 bytes for an atomic, and
    /// `local.results` writable for its size, until the completion.
    unsafe fn reach(
        &mut self,
        verb: Verb,
        local: Local,
        grant: Grant,
        to: u64,
        context: u64,
    ) -> Result<Outcome, PortError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_survives_its_journey() {
        let grant = Grant { address: 0x0123_4567_89ab_cdef, key: u64::MAX - 1 };
        assert_eq!(Grant::from_bytes(grant.to_bytes()), grant);
    }
}
