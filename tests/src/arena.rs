//! An allocator without a lock: memory of one piece, handed out once and never taken back.

use std::{
    alloc::Layout,
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Untouched pages cost nothing.
const BYTES: usize = 64 << 20;

/// The memory, and how much of it is used.
pub struct Arena {
    open: AtomicBool,
    used: AtomicUsize,
    memory: UnsafeCell<MaybeUninit<[u8; BYTES]>>,
}

// SAFETY: each byte is handed out once.
unsafe impl Sync for Arena {}

impl Arena {
    /// Nothing used; closed.
    #[allow(clippy::new_without_default, reason = "a static wants a const fn")]
    pub const fn new() -> Arena {
        Arena {
            open: AtomicBool::new(false),
            used: AtomicUsize::new(0),
            memory: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    /// Memory is taken from here from now on.
    pub fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn start(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// Whether these bytes were handed out here.
    pub fn owns(&self, bytes: *const u8) -> bool {
        (bytes as usize).wrapping_sub(self.start() as usize) < BYTES
    }

    /// A new piece, all zero; null when nothing is left.
    pub fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.start();
        let piece = layout.size() + layout.align();
        let end = self.used.fetch_add(piece, Ordering::Relaxed) + piece;
        if end > BYTES {
            return ptr::null_mut();
        }
        let bytes = start.wrapping_add(end - piece);
        bytes.wrapping_add(bytes.align_offset(layout.align()))
    }
}
