//! FI_COMMIT_COMPLETE, seen from the storage: what a peer wrote to the mapping of a file is in the
//! file's own pages no more, but written back, when the operation completes.

use std::{fs::OpenOptions, path::PathBuf, sync::Arc};

use kestrel_core::{
    completion_counter::CompletionCounter,
    config::CmaPolicy,
    domain::Sharing,
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, pattern, same},
    figures::smaps_kib,
    one_sided::{BOTH, Rma, expose_as, options, segment},
    process::forbid_call,
    scale::skip,
};
use memmap2::MmapMut;

const BYTES: usize = 1 << 20;

/// A file on a disk, mapped, that goes with this.
struct Storage {
    path: PathBuf,
    map: MmapMut,
}

impl Storage {
    fn new(name: &str) -> Storage {
        let name = format!("persistence-{name}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        // SAFETY: nobody else knows the file.
        let map = unsafe { MmapMut::map_mut(&file) }.unwrap();
        Storage { path, map }
    }

    fn piece(&mut self) -> Piece {
        // SAFETY: the mapping outlives the worlds of these tests, which are dropped first.
        unsafe { Piece::new(self.map.as_mut_ptr(), BYTES) }
    }

    /// What was written through the mapping and not to the storage. Units: KiB.
    fn dirty(&self) -> u64 {
        let name = self.path.file_name().unwrap().to_str().unwrap();
        ["Shared_Dirty", "Private_Dirty"].iter().map(|field| smaps_kib(name, field)).sum()
    }

    /// Whether there is a storage: memory file systems have none.
    fn is_on_disk(&mut self) -> bool {
        self.map[0] = 1;
        assert!(self.dirty() > 0, "what was written counts as written back");
        self.map.flush().unwrap();
        self.dirty() == 0
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bed(cma: CmaPolicy) -> Bed<ShmProvider> {
    let provider = ShmProvider::new(ShmOptions { cma, ..ShmOptions::default() }).unwrap();
    Bed { provider: Arc::new(provider), sharing: Sharing::Exclusive }
}

/// Whether packets carry it, or an initiator that could copy by itself.
#[test]
fn what_is_committed_is_on_the_storage() {
    for cma in [CmaPolicy::Off, CmaPolicy::On] {
        let mut storage = Storage::new("committed");
        if !storage.is_on_disk() {
            return skip("what_is_committed_is_on_the_storage", "the target folder is in memory");
        }
        let target = storage.piece();
        let world = bed(cma).world_with(2, &options(MemoryRegionMode::VIRT_ADDR));
        let region = expose_as(&world.nodes[1], &[target], BOTH, 0, Flags::RMA_PMEM).unwrap();
        for length in [1, 5_000, 70_000, BYTES - 8] {
            let from = Memory::from(pattern(length as u64, length));
            let segments = [segment(&region, 8, length)];
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            for round in 0..3 {
                world.nodes[0].post_write(1, &write).unwrap();
                world.sent(0).good();
                assert!(storage.dirty() > 0, "a plain write of {length} bytes was written back");
                let flags = Flags::COMMIT_COMPLETE;
                world.nodes[0].post_write(1, &Rma { flags, ..write }).unwrap();
                world.sent(0).good();
                assert_eq!(storage.dirty(), 0, "{length} bytes, round {round}");
            }
            let file = std::fs::read(&storage.path).unwrap();
            same(&file[8..8 + length], &from.bytes(), "in the file");
        }
        world.nodes[1].domain.close_memory(&region).unwrap();
    }
}

/// The initiator is told, and the endpoints go on. What was written is counted: the region has changed.
#[test]
fn a_storage_that_fails_fails_the_operation() {
    let mut storage = Storage::new("fails");
    let target = storage.piece();
    let ones = Memory::from(vec![1; 8]);
    let world = bed(CmaPolicy::Off).world(2);
    world.warm_up();
    let region = expose_as(&world.nodes[1], &[target], BOTH, 0, Flags::RMA_PMEM).unwrap();
    let domain = &world.nodes[1].domain;
    let counter = CompletionCounter::open(domain);
    domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
    let segments = [segment(&region, 8, 8)];
    // Of this thread, which has both engines.
    forbid_call(libc::SYS_msync);
    let write = Rma { pieces: ones.all(), segments: &segments, ..Rma::default() };
    for _ in 0..2 {
        let commit = Rma { flags: Flags::COMMIT_COMPLETE, data: Some(3), ..write };
        world.nodes[0].post_write(1, &commit).unwrap();
        let error = world.sent(0).bad(Errno::IO);
        assert!(error.reason.contains("storage"), "{}", error.reason);
        world.nodes[0].post_write(1, &write).unwrap();
        world.sent(0).good();
    }
    assert_eq!(counter.read(), 4);
    let into = Memory::zeroed(8);
    let pieces = Pieces::One(into.piece());
    world.nodes[0].post_read(1, &Rma { pieces, ..write }).unwrap();
    world.sent(0).good();
    same(&into.bytes(), &[1; 8], "read back");
    world.nothing_more();
    world.nodes[1].domain.close_memory(&region).unwrap();
}
