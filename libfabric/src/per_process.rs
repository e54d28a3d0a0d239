//! What a process keeps of its own in a static.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicPtr, Ordering},
};

use kestrel_core::fork_guard;

/// A value that a forked child has none of: it begins with an empty one. Another thread of its parent
/// may have held the lock of what it has inherited, and would hold it for ever.
pub struct PerProcess<T>(AtomicPtr<Kept<T>>);

struct Kept<T> {
    generation: u32,
    value: Mutex<T>,
}

impl<T: Default + Send + 'static> PerProcess<T> {
    pub const fn new() -> Self {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub fn lock(&self) -> MutexGuard<'static, T> {
        // Nothing that is done under these locks panics half-way.
        self.kept().value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> &'static Kept<T> {
        let generation = fork_guard::generation();
        // K1: pairs with K2.
        let mut place = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that is never freed: what a parent left is for who looks at it still.
            if let Some(kept) = unsafe { place.as_ref() }
                && kept.generation == generation
            {
                return kept;
            }
            let new = Box::into_raw(Box::new(Kept { generation, value: Mutex::default() }));
            // K2: pairs with K1, there and here.
            match self.0.compare_exchange(place, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => place = new,
                Err(seen) => {
                    // SAFETY: the box from above, which nobody else knows.
                    drop(unsafe { Box::from_raw(new) });
                    place = seen;
                }
            }
        }
    }
}
