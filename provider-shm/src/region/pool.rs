//! Chunk pools: memory of one endpoint that all of its peers map, and only it writes.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, Once},
};

use kestrel_core::ring::catalogue::Catalogue;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};

use super::{
    PAGE_BYTES, RegionError, map_error, populate, size_seals, start_of, unsealed_memfd, verify,
};

/// The smallest pool that is accepted from a peer.
pub const POOL_BYTES_MIN: usize = 4 << 10;
/// The largest pool that is accepted from a peer.
pub const POOL_BYTES_MAX: usize = kestrel_core::config::CHUNKS_BYTES_MAX + size_of::<Catalogue>();

/// How much of a pool gets its pages at once. Units: bytes.
const MADE_BYTES_MAX: usize = 8 << 20;

/// The sender's chunk pool: writable here, read-only for every peer that it is passed to. Behind the chunks
/// there may be a [catalogue](crate::catalogue).
///
/// Clones share one mapping and the one descriptor that is kept to pass on.
#[derive(Clone)]
pub struct PoolMemory {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    map: MmapRaw,
    fd: OwnedFd,
    chunk_bytes: usize,
    pages: Once,
}

impl PoolMemory {
    /// Makes a pool of `bytes`, rounded up to whole pages.
    pub fn create(bytes: usize) -> Result<PoolMemory, RegionError> {
        PoolMemory::with_chunks(bytes, 0)
    }

    /// Makes a pool with `bytes` for chunks, rounded up to whole pages, and `more` behind them.
    pub(crate) fn with_chunks(bytes: usize, more: usize) -> Result<PoolMemory, RegionError> {
        let chunk_bytes = bytes.next_multiple_of(PAGE_BYTES).max(POOL_BYTES_MIN);
        let bytes = chunk_bytes + more;
        if bytes > POOL_BYTES_MAX {
            return Err(RegionError::PoolSize { have: bytes as i64, claimed: bytes as u64 });
        }
        let fd = unsealed_memfd("kestrel-pool", bytes)?;
        let map = MmapOptions::new().len(bytes).map_raw(&fd).map_err(map_error(bytes))?;
        // Our own mapping stays writable: F_SEAL_FUTURE_WRITE forbids only those made after it.
        // Linux before 5.1 does not know it; peers could then write what we send, and harm only
        // the messages that we send them.
        let sealed = match fcntl_add_seals(&fd, size_seals() | SealFlags::FUTURE_WRITE) {
            Err(rustix::io::Errno::INVAL) => fcntl_add_seals(&fd, size_seals()),
            other => other,
        };
        sealed.map_err(|e| RegionError::Create { bytes, source: e.into() })?;
        Ok(PoolMemory { inner: Arc::new(PoolInner { map, fd, chunk_bytes, pages: Once::new() }) })
    }

    pub fn as_ptr(&self) -> NonNull<u8> {
        start_of(&self.inner.map)
    }

    #[allow(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> usize {
        self.inner.map.len()
    }

    /// Where chunks end. Units: bytes.
    pub fn chunk_bytes(&self) -> usize {
        self.inner.chunk_bytes
    }

    /// Whether the kernel keeps peers from writing to it.
    pub(crate) fn is_ours_alone(&self) -> bool {
        fcntl_get_seals(self.fd()).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE))
    }

    /// Makes its pages, but for those of a very large pool, the first time that it is called.
    /// Chunks are used in turn, so that a short run would meet the first touch again and again,
    /// at 2 to 4 µs a page with its reader's; all of the default pool takes a millisecond.
    ///
    /// # Errors
    /// There is no memory for them; the next call tries again.
    pub(crate) fn make_pages(&self) -> Result<(), RegionError> {
        let PoolInner { map, pages, chunk_bytes, .. } = &*self.inner;
        if !pages.is_completed() {
            populate(start_of(map), (*chunk_bytes).min(MADE_BYTES_MAX))?;
            self.leave_pages();
        }
        Ok(())
    }

    /// Its pages come one by one, as they are touched: there are other chunks, and few will be.
    pub(crate) fn leave_pages(&self) {
        self.inner.pages.call_once(|| {});
    }

    /// The read-only view that a peer gets, made in this process.
    pub fn view(&self) -> Result<PoolView, RegionError> {
        PoolView::map(self.fd(), self.len() as u64)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for PoolMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolMemory({:p}, {} bytes)", self.inner.map.as_ptr(), self.len())
    }
}

/// A peer's chunk pool, mapped read-only, unmapped on drop.
///
/// The peer writes to it at any time: no reference into it may ever be made, and writing through
/// the pointer is a fault.
pub struct PoolView {
    map: MmapRaw,
}

impl PoolView {
    /// Maps the pool that a peer passed, if its size is sealed and as announced.
    pub fn from_peer(fd: OwnedFd, claimed: u64) -> Result<PoolView, RegionError> {
        Self::map(fd.as_fd(), claimed)
    }

    fn map(fd: BorrowedFd<'_>, claimed: u64) -> Result<PoolView, RegionError> {
        let have = verify(fd)?;
        let bytes = usize::try_from(have).unwrap_or(0);
        let allowed = (POOL_BYTES_MIN..=POOL_BYTES_MAX).contains(&bytes);
        if bytes as u64 != claimed || !allowed || bytes % PAGE_BYTES != 0 {
            return Err(RegionError::PoolSize { have, claimed });
        }
        let map = MmapOptions::new().len(bytes).map_raw_read_only(&fd).map_err(map_error(bytes))?;
        Ok(PoolView { map })
    }

    pub fn as_ptr(&self) -> NonNull<u8> {
        start_of(&self.map)
    }

    #[allow(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }
}

impl fmt::Debug for PoolView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolView({:p}, {} bytes)", self.map.as_ptr(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use kestrel_tests::fork::{fork, wait};
    use rustix::process::{Resource, Rlimit};

    use super::{super::tests::blocks, *};

    #[test]
    fn memory_beyond_the_limit_on_files_is_an_error() {
        let made = fork(|| {
            let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
            rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
            let least = PoolMemory::create(1 << 20).is_ok();
            let error = PoolMemory::create((1 << 20) + 1).err().map(|error| error.to_string());
            i32::from(!(least && error.is_some_and(|error| error.contains("ulimit -f"))))
        });
        assert_eq!(wait(made), 0);
    }

    #[test]
    fn pages_are_made_at_once_or_left() {
        let [made, left] = std::array::from_fn(|_| PoolMemory::create(1 << 20).unwrap());
        assert_eq!((blocks(made.fd()), blocks(left.fd())), (0, 0));
        left.leave_pages();
        [&made, &left].into_iter().for_each(|pool| pool.make_pages().unwrap());
        assert_eq!((blocks(made.fd()), blocks(left.fd())), ((1 << 20) / 512, 0));
    }
}
