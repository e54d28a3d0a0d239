//! Making durable what peers wrote to persistent memory. Reference: fi_cq(3), FI_COMMIT_COMPLETE;
//! fi_mr(3), FI_RMA_PMEM.

use rustix::{
    mm::{MsyncFlags, msync},
    param::page_size,
};

use super::access::{Access, Refusal};
use crate::{flags::Flags, memory::Piece};

impl Access<'_> {
    /// Waits until `length` bytes from byte `offset` on are on the storage that they are a mapping
    /// of: the kernel writes back the page cache, or on a file system without one the processor's
    /// caches. What the registration promises is believed: of memory that no file is behind, the
    /// kernel says that it is stored.
    ///
    /// Cost: a system call for each range, and as long as the storage takes.
    #[cold]
    #[inline(never)]
    pub(crate) fn commit(&self, offset: u64, length: u64) -> Result<(), Refusal> {
        if !self.region().flags().contains(Flags::RMA_PMEM) {
            return Err(Refusal::Volatile);
        }
        let mut stored = Ok(());
        self.for_each_part(offset, length, |_, part| stored = stored.and(write_back(part)));
        stored
    }
}

fn write_back(part: Piece) -> Result<(), Refusal> {
    let start = part.as_ptr();
    // Whole pages: all of a page is mapped that any byte of ours is in.
    let before = start.addr() % page_size();
    // SAFETY: nothing is read or written through the pointer, and pages are only written back.
    let done =
        unsafe { msync(start.wrapping_sub(before).cast(), part.len() + before, MsyncFlags::SYNC) };
    done.map_err(|errno| {
        tracing::warn!(%errno, address = start.addr(), bytes = part.len(), "what was written to persistent memory could not be stored");
        Refusal::Storage
    })
}
