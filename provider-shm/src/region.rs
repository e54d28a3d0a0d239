//! Memory that passes between processes: sealed memfds, mapped and then known by mapping alone.
//!
//! A file that can shrink kills whoever maps it: a peer that truncates it makes our next load a
//! SIGBUS. So the maker seals the size, and whoever receives a descriptor checks, before mapping:
//!
//! 1. seals SHRINK, GROW and SEAL (fcntl(2), F_SEAL_SHRINK: "If this seal is set, the file in
//!    question cannot be reduced in size"; F_SEAL_SEAL: no seal can be changed any more). Only
//!    memfds answer this question, so any other kind of file stops here, before a call that could
//!    block on it;
//! 2. that it is tmpfs: a memfd of huge pages can still raise SIGBUS, when the pool of huge pages
//!    is exhausted;
//! 3. the size: what it has to be, or was announced to be; of a table, whether it can be one.
//!
//! A lane's first pages are made with it, those of its chunks as the data path uses them; a pool's come all at
//! once, with the first lane that its owner offers ([`PoolMemory::make_pages`]), unless lanes have chunks of
//! their own, or there is one peer alone. Where the kernel has no memory for what is made so (with
//! `vm.overcommit_memory=2` it says so), that fails a connect, and is no SIGBUS at the first touch.

mod pool;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::AtomicU64;

use kestrel_core::error::{Errno, HasErrno};
use kestrel_core::ring::leases::LEASES;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use crate::limits;
pub use pool::{POOL_BYTES_MAX, POOL_BYTES_MIN, PoolMemory, PoolView};

/// Bytes that every lane uses: a page of control lines, written by the receiver, then 128 slots of
/// 64 bytes, written by the sender.
pub const LANE_HEAD_BYTES: usize = 12 << 10;
/// Bytes for chunks of the lane's own, behind them. They have pages when they are used at last.
pub const LANE_CHUNK_BYTES: usize = 256 << 10;
/// As many of them as two chunks that go to and fro take. Units: bytes.
pub(crate) const LANE_CHUNK_BYTES_FIRST: usize = 64 << 10;
/// Bytes of one lane.
pub const LANE_BYTES: usize = LANE_HEAD_BYTES + LANE_CHUNK_BYTES;

/// No page is smaller, and what passes between processes has a multiple of it. Units: bytes.
pub(crate) const PAGE_BYTES: usize = 4 << 10;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why a region could not be made, or was not accepted from a peer.
#[derive(Debug, Error)]
pub enum RegionError {
    #[error("cannot make a memfd of {bytes} bytes: {source}")]
    Create { bytes: usize, source: io::Error },
    #[error("cannot map {bytes} bytes: {source}")]
    Map { bytes: usize, source: io::Error },
    #[error(
        "{bytes} bytes of shared memory are more than the limit on files (RLIMIT_FSIZE): it is {limit}; raise \
         it with ulimit -f"
    )]
    FileSize { bytes: usize, limit: u64 },
    #[error("no memory for {bytes} bytes: {source}")]
    Pages { bytes: usize, source: io::Error },
    #[error("the descriptor is no memfd: {source}")]
    NotMemfd { source: io::Error },
    #[error("the memfd lacks seals: it has {have:?}, and needs {need:?}")]
    MissingSeals { have: SealFlags, need: SealFlags },
    #[error("the memfd is on file system {magic:#x}, not tmpfs (huge pages?)")]
    NotTmpfs { magic: i64 },
    #[error("a shared table of {have} bytes: {PAGE_BYTES} to {most} are allowed, in whole pages")]
    TableSize { have: i64, most: usize },
    #[error("the lane has {have} bytes instead of {LANE_BYTES}")]
    LaneSize { have: i64 },
    #[error(
        "the pool has {have} bytes; {claimed} were announced, {POOL_BYTES_MIN} to {POOL_BYTES_MAX} in whole pages are allowed"
    )]
    PoolSize { have: i64, claimed: u64 },
}

impl RegionError {
    /// Whether the cause is that this process, or the system, has no descriptor left.
    pub(crate) fn out_of_descriptors(&self) -> bool {
        let (RegionError::Create { source, .. } | RegionError::Map { source, .. }) = self else {
            return false;
        };
        limits::is_out_of_descriptors(source)
    }
}

impl HasErrno for RegionError {
    fn errno(&self) -> Errno {
        if self.out_of_descriptors() { Errno::MFILE } else { Errno::NOMEM }
    }
}

pub(crate) fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Makes a memfd of `bytes`, whose size can still change.
pub(crate) fn unsealed_memfd(name: &str, bytes: usize) -> Result<OwnedFd, RegionError> {
    // Beyond it ftruncate(2) raises SIGXFSZ, which ends the process.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < bytes as u64) {
        return Err(RegionError::FileSize { bytes, limit });
    }
    let create = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3 the flag is unknown, and the memory is executable by chmod only.
            Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
            other => other?,
        };
        ftruncate(&fd, bytes as u64)?;
        Ok(fd)
    };
    create().map_err(|errno: rustix::io::Errno| RegionError::Create { bytes, source: errno.into() })
}

/// Checks what no peer may leave to chance, and returns the size.
pub(crate) fn verify(fd: BorrowedFd<'_>) -> Result<i64, RegionError> {
    let have = fcntl_get_seals(fd).map_err(|e| RegionError::NotMemfd { source: e.into() })?;
    if !have.contains(size_seals()) {
        return Err(RegionError::MissingSeals { have, need: size_seals() });
    }
    let magic = fstatfs(fd).map_err(|e| RegionError::NotMemfd { source: e.into() })?.f_type as i64;
    if magic != TMPFS_MAGIC {
        return Err(RegionError::NotTmpfs { magic });
    }
    Ok(fstat(fd).map_err(|e| RegionError::NotMemfd { source: e.into() })?.st_size)
}

pub(crate) fn map_error(bytes: usize) -> impl FnOnce(io::Error) -> RegionError {
    move |source| RegionError::Map { bytes, source }
}

fn start_of(map: &MmapRaw) -> NonNull<u8> {
    NonNull::new(map.as_mut_ptr()).expect("mmap never places a mapping at address zero")
}

/// Makes the pages of a mapping. What they hold does not change.
pub(crate) fn populate(start: NonNull<u8>, bytes: usize) -> Result<(), RegionError> {
    // SAFETY: this changes nothing that is in memory, and what is not mapped is refused.
    let failed =
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) != 0 };
    if !failed {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        // An older kernel's: there each page is made when it is first written.
        Some(libc::EINVAL) => Ok(()),
        // madvise(2), MADV_POPULATE_WRITE: "EFAULT ... populating (prefaulting) page tables failed because
        // a SIGBUS would have been generated".
        Some(libc::EFAULT) => {
            Err(RegionError::Pages { bytes, source: io::Error::from_raw_os_error(libc::ENOMEM) })
        }
        _ => Err(RegionError::Pages { bytes, source }),
    }
}

/// The system's.
fn page_bytes() -> usize {
    // SAFETY: it takes a number, and answers one.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// What of some bytes of memory that begins at `start` is whole pages.
fn whole_pages(start: usize, bytes: Range<usize>, page: usize) -> Range<usize> {
    let first = (start + bytes.start).next_multiple_of(page) - start;
    let end = (start + bytes.end) / page * page;
    first..end.saturating_sub(start)
}

/// One lane, mapped readable and writable, unmapped on drop.
///
/// The other side writes to it at any time: no reference into it may ever be made.
pub struct LaneMemory {
    map: MmapRaw,
    /// The pages of the chunks that are used first, and of all.
    first_pages: Once,
    chunk_pages: Once,
    /// The key of the lease that the receiver lends next on it, unless its place is taken.
    pub(crate) next_lease: AtomicU64,
}

impl LaneMemory {
    /// Makes a lane, and the descriptor to pass to the receiver. Close it once it is passed.
    pub fn create() -> Result<(LaneMemory, OwnedFd), RegionError> {
        let fd = unsealed_memfd("kestrel-lane", LANE_BYTES)?;
        fcntl_add_seals(&fd, size_seals())
            .map_err(|e| RegionError::Create { bytes: LANE_BYTES, source: e.into() })?;
        let map = MmapOptions::new().len(LANE_BYTES).map_raw(&fd).map_err(map_error(LANE_BYTES))?;
        populate(start_of(&map), LANE_HEAD_BYTES)?;
        Ok((LaneMemory::over(map), fd))
    }

    /// Maps the lane that a peer passed, if its size is sealed and exact.
    pub fn from_peer(fd: OwnedFd) -> Result<LaneMemory, RegionError> {
        let have = verify(fd.as_fd())?;
        if have != LANE_BYTES as i64 {
            return Err(RegionError::LaneSize { have });
        }
        let map = MmapOptions::new().len(LANE_BYTES).map_raw(&fd).map_err(map_error(LANE_BYTES))?;
        Ok(LaneMemory::over(map))
    }

    fn over(map: MmapRaw) -> LaneMemory {
        let (first_pages, chunk_pages) = (Once::new(), Once::new());
        LaneMemory { map, first_pages, chunk_pages, next_lease: AtomicU64::new(LEASES as u64) }
    }

    /// The first byte of `LANE_BYTES`, on a page boundary.
    pub fn as_ptr(&self) -> NonNull<u8> {
        start_of(&self.map)
    }

    #[allow(clippy::len_without_is_empty, reason = "a lane is never empty")]
    pub fn len(&self) -> usize {
        LANE_BYTES
    }

    /// The first byte of `LANE_CHUNK_BYTES`, on a page boundary.
    pub fn chunks(&self) -> NonNull<u8> {
        // SAFETY: the mapping is that much longer.
        unsafe { self.as_ptr().add(LANE_HEAD_BYTES) }
    }

    /// Makes the pages of its chunks, as far as `end` at least, and this side's way to them, when it is
    /// called first: as [`PoolMemory::make_pages`].
    #[inline(always)]
    pub(crate) fn make_chunk_pages(&self, end: usize) {
        // It is too late for an error: where there is no memory the first touch finds out.
        let populate = |bytes| drop(populate(self.chunks(), bytes));
        if end <= LANE_CHUNK_BYTES_FIRST {
            self.first_pages.call_once(|| populate(LANE_CHUNK_BYTES_FIRST));
        } else {
            self.chunk_pages.call_once(|| populate(LANE_CHUNK_BYTES));
        }
    }

    /// Pages that there are of its chunks, whoever made them.
    #[cfg(test)]
    pub(crate) fn chunk_pages(&self) -> usize {
        let mut there = [0; LANE_CHUNK_BYTES / PAGE_BYTES];
        // SAFETY: the range is the mapping's, and the answer has a byte for each page of it.
        let failed = unsafe {
            libc::mincore(self.chunks().as_ptr().cast(), LANE_CHUNK_BYTES, there.as_mut_ptr())
        };
        assert_eq!(failed, 0);
        there.iter().filter(|&&page| page & 1 != 0).count()
    }

    /// Gives the pages of some of its chunks' bytes back, if there are any. What lay there is gone: zeros, and
    /// pages that come one by one, for both sides, as they are touched.
    ///
    /// Cost: a system call, which has other cores forget the pages.
    pub(crate) fn give_chunk_pages_back(&self, bytes: Range<usize>) {
        let bytes = bytes.start..bytes.end.min(LANE_CHUNK_BYTES);
        let pages = whole_pages(self.chunks().addr().get(), bytes, page_bytes());
        let any = self.first_pages.is_completed() || self.chunk_pages.is_completed();
        if any && !pages.is_empty() {
            // SAFETY: within the mapping, in which no reference points.
            unsafe {
                let from = self.chunks().add(pages.start).as_ptr();
                libc::madvise(from.cast(), pages.len(), libc::MADV_REMOVE)
            };
        }
    }
}

impl fmt::Debug for LaneMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaneMemory({:p})", self.map.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units: 512 bytes.
    pub(super) fn blocks(memory: BorrowedFd<'_>) -> u64 {
        fstat(memory).unwrap().st_blocks as u64
    }

    #[test]
    fn a_lane_that_is_spoken_on_in_turn_has_few_pages() {
        let (lane, fd) = LaneMemory::create().unwrap();
        let held = || blocks(fd.as_fd()) as usize * 512 - LANE_HEAD_BYTES;
        assert_eq!(held(), 0);
        lane.make_chunk_pages(LANE_CHUNK_BYTES_FIRST);
        assert_eq!(held(), LANE_CHUNK_BYTES_FIRST);
        lane.make_chunk_pages(LANE_CHUNK_BYTES_FIRST + 1);
        assert_eq!(held(), LANE_CHUNK_BYTES);
    }

    #[test]
    fn pages_of_chunks_are_given_back_whole() {
        let (lane, fd) = LaneMemory::create().unwrap();
        let held = || blocks(fd.as_fd()) as usize * 512 - LANE_HEAD_BYTES;
        lane.give_chunk_pages_back(0..LANE_CHUNK_BYTES);
        lane.make_chunk_pages(LANE_CHUNK_BYTES_FIRST);
        lane.give_chunk_pages_back(100..3 * PAGE_BYTES + 100);
        assert_eq!(held(), LANE_CHUNK_BYTES_FIRST - 2 * PAGE_BYTES);
        lane.give_chunk_pages_back(PAGE_BYTES..usize::MAX);
        assert_eq!(held(), PAGE_BYTES);
    }

    /// The kernel would take the rest of the last page as well.
    #[test]
    fn no_page_is_given_back_in_part() {
        let (small, large) = (4 << 10, 16 << 10);
        let start = 7 * large + LANE_HEAD_BYTES;
        assert_eq!(whole_pages(start, 0..2 * small, small), 0..2 * small);
        assert_eq!(whole_pages(start, 100..3 * small, small), small..3 * small);
        // The first of these begins 4 KiB behind the head.
        let given = 32 << 10;
        assert_eq!(whole_pages(start, 0..given, large), small..small + large);
        assert_eq!(
            whole_pages(start, given..2 * given, large),
            small + given..small + given + large
        );
        assert!(whole_pages(start, 2 * small..4 * small, large).is_empty());
    }

    #[test]
    fn pages_for_which_there_is_no_memory_are_an_error() {
        let (lane, _) = LaneMemory::create().unwrap();
        // What is not mapped cannot be made either; what is not aligned is refused as by a kernel that does
        // not know the question.
        let beyond = NonNull::new(lane.as_ptr().as_ptr().wrapping_sub(1 << 46)).unwrap();
        let error = populate(beyond, PAGE_BYTES).unwrap_err();
        assert_eq!(error.errno(), Errno::NOMEM, "{error}");
        let odd = NonNull::new(lane.as_ptr().as_ptr().wrapping_add(1)).unwrap();
        populate(odd, PAGE_BYTES).unwrap();
    }
}
