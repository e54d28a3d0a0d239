//! What the lock-free structures are made of: the standard library's atomics, or
//! loom's when the models run (`RUSTFLAGS="--cfg loom"`).

pub use std::sync::atomic::{Ordering, compiler_fence};

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, fence},
    thread::yield_now,
};

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, fence},
    thread::yield_now,
};

#[cfg(loom)]
pub use modelled::SegQueue;

#[cfg(not(loom))]
pub use crossbeam_queue::SegQueue;

/// The standard library's cell with the interface of loom's, which sees races.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell with `value` in it.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Hands the content to `look`, which only reads.
    #[inline(always)]
    pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Hands the content to `change`, which may write.
    #[inline(always)]
    pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Structures of others that loom cannot see into.
#[cfg(loom)]
mod modelled {
    use super::{AtomicUsize, Ordering};

    /// `crossbeam_queue::SegQueue` behind a counter that stands for its atomics:
    /// each call is a point where threads may switch, and a push happens before
    /// the pop and the look that find it.
    #[derive(Default)]
    pub struct SegQueue<T> {
        length: AtomicUsize,
        queue: crossbeam_queue::SegQueue<T>,
    }

    impl<T> SegQueue<T> {
        pub fn new() -> Self {
            SegQueue { length: AtomicUsize::new(0), queue: crossbeam_queue::SegQueue::new() }
        }

        pub fn push(&self, value: T) {
            self.length.fetch_add(1, Ordering::Release);
            self.queue.push(value);
        }

        pub fn pop(&self) -> Option<T> {
            if self.is_empty() {
                return None;
            }
            let less = |length: usize| length.checked_sub(1);
            self.length.fetch_update(Ordering::Acquire, Ordering::Acquire, less).ok()?;
            self.queue.pop()
        }

        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        pub fn len(&self) -> usize {
            self.length.load(Ordering::Acquire)
        }
    }
}
