//! The mapping itself: words that other processes write at any time, so atomics and no others.

use std::os::fd::{AsFd, OwnedFd};
use std::slice;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

use super::TABLE_BYTES_MAX;
use crate::region::{PAGE_BYTES, RegionError, map_error, verify};

/// Sealed memory of whole pages, mapped.
pub(super) struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps memory for loads and stores, if its size is sealed and sensible.
    pub(super) fn writable(memory: &OwnedFd) -> Result<Mapping, RegionError> {
        let bytes = sealed_size(memory)?;
        let map = MmapOptions::new().len(bytes).map_raw(memory).map_err(map_error(bytes))?;
        Ok(Mapping { map })
    }

    /// The same for loads alone: a store would be a fault.
    pub(super) fn read_only(memory: &OwnedFd) -> Result<Mapping, RegionError> {
        let bytes = sealed_size(memory)?;
        let map =
            MmapOptions::new().len(bytes).map_raw_read_only(memory).map_err(map_error(bytes))?;
        Ok(Mapping { map })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        let count = self.map.len() / size_of::<AtomicU64>();
        // SAFETY: the mapping begins on a page, has that many words, cannot shrink since its size
        // is sealed, and lives as long as `self`. Atomics may change behind the reference, also by
        // other processes' hands. Whoever maps it for loads alone stores nothing: core does not
        // write to a vector that was opened for reading.
        unsafe { slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), count) }
    }
}

/// Bytes of memory that we or another process made.
fn sealed_size(memory: &OwnedFd) -> Result<usize, RegionError> {
    let have = verify(memory.as_fd())?;
    let bytes = usize::try_from(have).unwrap_or(0);
    if !(PAGE_BYTES..=TABLE_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(RegionError::TableSize { have, most: TABLE_BYTES_MAX });
    }
    Ok(bytes)
}
