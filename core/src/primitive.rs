//! The atomics that the lock-free structures use: the standard library's, or
//! loom's when the models run (`RUSTFLAGS="--cfg loom"`).

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};
