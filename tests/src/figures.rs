//! What a process holds: descriptors, mappings, memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeSet,
    fs, ptr,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::arena::Arena;

/// Descriptors that are open.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Lines of /proc/self/maps with `word`.
pub fn mappings(word: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    maps.lines().filter(|line| line.contains(word)).count()
}

/// A field of /proc/self/status. Units: KiB.
pub fn status_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect("a field of the status")
}

/// Memory of mappings whose name has `word`, of one field of smaps. Units: KiB.
pub fn smaps_kib(word: &str, field: &str) -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if !first.ends_with(':') {
            inside = line.contains(word);
        } else if inside && first.trim_end_matches(':') == field {
            let number = line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
            sum += number.unwrap_or(0);
        }
    }
    sum
}

/// Files of kestrel that were where files could be left behind, before what is tested.
///
/// Only what came since counts: what a user put there with such a name is none of ours.
pub struct FilesBefore(BTreeSet<String>);

impl FilesBefore {
    /// Those there are now.
    pub fn now() -> FilesBefore {
        FilesBefore(files())
    }

    /// Those that have come since.
    pub fn left(&self) -> Vec<String> {
        files().difference(&self.0).cloned().collect()
    }
}

fn files() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["/dev/shm", "/tmp", "/run"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains("kestrel") {
                found.insert(format!("{folder}/{name}"));
            }
        }
    }
    found
}

thread_local! {
    /// What is as long as this, or longer, is not there for the thread. Units: bytes.
    static SCARCE_FROM: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `body` while this thread gets no `bytes`, nor more, at once from [`Counting`]. To panic takes
/// memory: what is asserted is asserted after it.
pub fn without_memory<R>(bytes: usize, body: impl FnOnce() -> R) -> R {
    SCARCE_FROM.set(bytes);
    let result = body();
    SCARCE_FROM.set(usize::MAX);
    result
}

fn is_scarce(layout: Layout) -> bool {
    layout.size() >= SCARCE_FROM.get()
}

/// The system's allocator, counting. A test binary makes it its global one.
pub struct Counting {
    calls: AtomicU64,
    bytes: AtomicI64,
    arena: Arena,
}

impl Counting {
    /// Nothing counted yet.
    #[allow(clippy::new_without_default, reason = "a static wants a const fn")]
    pub const fn new() -> Counting {
        Counting { calls: AtomicU64::new(0), bytes: AtomicI64::new(0), arena: Arena::new() }
    }

    /// From here on memory comes from an arena that takes no lock, as the system's allocator
    /// does where threads collide: a lock that is seen is not the allocator's.
    pub fn take_no_locks(&self) {
        self.arena.open();
    }

    /// Allocations so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Bytes that are allocated now.
    pub fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: i64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: everything is done by the system's allocator or by the arena, which own the memory
// that they handed out; we only count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_scarce(layout) {
            return ptr::null_mut();
        }
        self.count(layout.size() as i64);
        if self.arena.is_open() {
            return self.arena.alloc(layout);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_scarce(layout) {
            return ptr::null_mut();
        }
        self.count(layout.size() as i64);
        if self.arena.is_open() {
            return self.arena.alloc(layout);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        if !self.arena.owns(start) {
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(start, layout) }
        }
    }
}
