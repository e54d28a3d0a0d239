//! The memory that the two sides of the floor share: one memfd, no name.

use super::FloorError;
use crate::cores;
use memmap2::{MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// Bytes of a cache line, and of a slot of the slot ring.
pub const LINE_BYTES: usize = 64;
/// Slots of the slot ring.
pub const SLOT_COUNT: usize = 4096;
/// The most chunks, and the largest, that a plan may ask for.
pub const CHUNK_COUNT_MAX: usize = 128;
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

const SLOTS_AT: usize = 4096;
const FLAGS_AT: usize = SLOTS_AT + SLOT_COUNT * LINE_BYTES;
const FLAGS_BYTES: usize = CHUNK_COUNT_MAX * LINE_BYTES;
const CHUNKS_AT: usize = FLAGS_AT + 2 * FLAGS_BYTES;
const CHUNKS_BYTES: usize = CHUNK_COUNT_MAX * CHUNK_BYTES_MAX;
const REGION_BYTES: usize = CHUNKS_AT + 2 * CHUNKS_BYTES;

/// How the other side finds the region: the creator's descriptor, reached
/// through `/proc`, so that ranks with any parent can share it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegionToken {
    /// The creator's host since it was booted: another one has a process of that number as well.
    pub boot: String,
    pub process_id: u32,
    pub descriptor: i32,
    /// The creator's, if it may run on one alone: whoever shares that takes turns with it, and neither has
    /// a floor.
    pub core: Option<usize>,
}

/// What the kernel calls this boot of this host; nothing where it does not say.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

pub struct Region {
    map: MmapRaw,
    file: File,
}

impl Region {
    pub fn create() -> Result<Region, FloorError> {
        // SAFETY: the name is a C string, and the flags take no further argument.
        let descriptor =
            unsafe { libc::memfd_create(c"kestrel-perf-floor".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(FloorError::Region(std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        file.set_len(REGION_BYTES as u64).map_err(FloorError::Region)?;
        Region::map(file)
    }

    pub fn join(token: &RegionToken) -> Result<Region, FloorError> {
        if token.boot != boot() {
            return Err(FloorError::OtherHost);
        }
        let path = format!("/proc/{}/fd/{}", token.process_id, token.descriptor);
        let file = File::options().read(true).write(true).open(path).map_err(FloorError::Region)?;
        let bytes = file.metadata().map_err(FloorError::Region)?.len();
        if bytes != REGION_BYTES as u64 {
            return Err(FloorError::NotTheRegion { bytes, expected: REGION_BYTES as u64 });
        }
        Region::map(file)
    }

    fn map(file: File) -> Result<Region, FloorError> {
        let map = MmapOptions::new()
            .len(REGION_BYTES)
            .populate()
            .map_raw(&file)
            .map_err(FloorError::Region)?;
        Ok(Region { map, file })
    }

    pub fn token(&self) -> RegionToken {
        let (process_id, descriptor) = (std::process::id(), self.file.as_raw_fd());
        RegionToken { boot: boot(), process_id, descriptor, core: cores::only() }
    }

    /// The 64-bit word at the start of the line at `offset`.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(LINE_BYTES) && offset + LINE_BYTES <= REGION_BYTES);
        // SAFETY: within the map (asserted), aligned, and only ever accessed
        // atomically, by both sides. The map lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// Where side `side` says which phase it reached.
    pub fn arrival(&self, side: usize) -> &AtomicU64 {
        self.word(side * 128)
    }

    /// The line that bounces.
    pub fn bounce(&self) -> &AtomicU64 {
        self.word(256)
    }

    /// How many slots or chunks the consumer of `direction` has emptied.
    pub fn consumed(&self, direction: usize) -> &AtomicU64 {
        self.word(512 + direction * 128)
    }

    /// The sequence word of a slot; its payload follows in the same line.
    pub fn slot(&self, index: usize) -> &AtomicU64 {
        self.word(SLOTS_AT + (index % SLOT_COUNT) * LINE_BYTES)
    }

    /// The flag line of a chunk.
    pub fn flag(&self, direction: usize, index: usize) -> &AtomicU64 {
        self.word(FLAGS_AT + direction * FLAGS_BYTES + (index % CHUNK_COUNT_MAX) * LINE_BYTES)
    }

    /// The first byte of a direction's chunks: `CHUNK_COUNT_MAX * CHUNK_BYTES_MAX` bytes.
    pub fn chunks(&self, direction: usize) -> *mut u8 {
        assert!(direction < 2);
        // SAFETY: within the map, by the constants above.
        unsafe { self.map.as_mut_ptr().add(CHUNKS_AT + direction * CHUNKS_BYTES) }
    }
}
