//! The few calls of kestrel that the workloads make, behind one type.
//!
//! The engine is built beside this crate and is not part of it yet: until then
//! opening a side says so, and `floor`, `doctor` and `report` work alone.

use serde::{Deserialize, Serialize};

/// How to open a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FabricOptions {
    /// `auto`, `shm` or `verbs`.
    pub provider: String,
    pub automatic_progress: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error("this build has no engine yet; `floor` and `doctor` work without")]
    NoEngine,
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// No room: poll, then post again.
    Again,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    pub context: u64,
}

/// An endpoint with its completion queue and address vector.
pub enum Side {}

impl Side {
    pub fn open(_options: &FabricOptions) -> Result<Side, FabricError> {
        Err(FabricError::NoEngine)
    }

    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        match *self {}
    }

    pub fn insert(&mut self, _address: &[u8]) -> Result<u64, FabricError> {
        match *self {}
    }

    pub fn inject_bytes_max(&self) -> usize {
        match *self {}
    }

    /// # Safety
    /// `bytes` is readable for `len` bytes.
    pub unsafe fn inject(
        &mut self,
        _bytes: *const u8,
        _len: usize,
        _to: u64,
        _tag: u64,
    ) -> Result<Outcome, FabricError> {
        match *self {}
    }

    /// # Safety
    /// `bytes` is readable for `len` bytes until the completion.
    pub unsafe fn send(
        &mut self,
        _bytes: *const u8,
        _len: usize,
        _to: u64,
        _tag: u64,
        _context: u64,
    ) -> Result<Outcome, FabricError> {
        match *self {}
    }

    /// # Safety
    /// `bytes` is writable for `len` bytes until the completion.
    pub unsafe fn receive(
        &mut self,
        _bytes: *mut u8,
        _len: usize,
        _from: Option<u64>,
        _tag: u64,
        _ignore: u64,
        _context: u64,
    ) -> Result<Outcome, FabricError> {
        match *self {}
    }

    pub fn poll(&mut self, _entries: &mut [Entry]) -> Result<usize, FabricError> {
        match *self {}
    }
}
