//! One element in memory: read, changed and written back as one step.

use crate::memory::Piece;
use crate::primitive::yield_now;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::combine::Complex;
#[cfg(target_arch = "x86_64")]
use super::long_double::LongDouble;

/// A type whose elements in memory can be changed in one step.
///
/// # Safety
/// Any bytes of this size are a value.
pub unsafe trait Cell: Copy {
    /// Replaces what is at `at` by what `change` makes of it, or leaves it;
    /// answers what was there. Panics unless `at` has this type's size.
    fn update(at: Piece, change: impl Fn(Self) -> Option<Self>) -> Self;

    /// The element at byte `offset` of `words`. Panics if it is not in there.
    #[inline(always)]
    fn load(words: &[u64], offset: usize) -> Self {
        assert!(offset + size_of::<Self>() <= size_of_val(words));
        // SAFETY: within the slice, as just checked; any bytes are a value.
        unsafe { words.as_ptr().cast::<u8>().add(offset).cast::<Self>().read_unaligned() }
    }

    /// Writes the element to byte `offset` of `words`. Panics if it does not fit there.
    #[inline(always)]
    fn store(self, words: &mut [u64], offset: usize) {
        assert!(offset + size_of::<Self>() <= size_of_val(words));
        // SAFETY: within the slice, as just checked.
        unsafe {
            words.as_mut_ptr().cast::<u8>().add(offset).cast::<Self>().write_unaligned(self);
        }
    }
}

/// Types as wide as an atomic instruction; a misaligned element goes under the lock.
macro_rules! by_instruction {
    ($($kind:ty: $bits:ty, $atomic:ty;)*) => {
        // SAFETY: integers and floats have no invalid bytes.
        $(unsafe impl Cell for $kind {
            #[inline(always)]
            fn update(at: Piece, change: impl Fn(Self) -> Option<Self>) -> Self {
                assert!(at.len() == size_of::<Self>());
                if !at.as_ptr().cast::<$atomic>().is_aligned() {
                    return update_locked(at, change);
                }
                // SAFETY: the piece is valid for its size while the access that gave it
                // lasts, and aligned; other engines use this same atomic type.
                let cell = unsafe { <$atomic>::from_ptr(at.as_ptr().cast::<$bits>()) };
                let mut bits = cell.load(Acquire);
                loop {
                    let current = <$kind>::from_ne_bytes(bits.to_ne_bytes());
                    let Some(next) = change(current) else { return current };
                    let next = <$bits>::from_ne_bytes(next.to_ne_bytes());
                    match cell.compare_exchange_weak(bits, next, AcqRel, Acquire) {
                        Ok(_) => return current,
                        Err(seen) => bits = seen,
                    }
                }
            }
        })*
    };
}

by_instruction! {
    i8: u8, AtomicU8;
    u8: u8, AtomicU8;
    i16: u16, AtomicU16;
    u16: u16, AtomicU16;
    i32: u32, AtomicU32;
    u32: u32, AtomicU32;
    i64: u64, AtomicU64;
    u64: u64, AtomicU64;
    f32: u32, AtomicU32;
    f64: u64, AtomicU64;
}

/// Types wider than an atomic instruction.
macro_rules! by_lock {
    ($($kind:ty),*) => {
        // SAFETY: integers and pairs of floats have no invalid bytes.
        $(unsafe impl Cell for $kind {
            #[inline(always)]
            fn update(at: Piece, change: impl Fn(Self) -> Option<Self>) -> Self {
                update_locked(at, change)
            }
        })*
    };
}

by_lock!(i128, u128, Complex<f32>, Complex<f64>);
#[cfg(target_arch = "x86_64")]
by_lock!(LongDouble, Complex<LongDouble>);

/// Locks by address: a region may be registered twice, so none is a region's own.
const LOCKS: usize = 64;
static HELD: Locks = Locks([const { AtomicBool::new(false) }; LOCKS]);

struct Locks([AtomicBool; LOCKS]);

impl Locks {
    fn hold(&self, address: usize) -> &AtomicBool {
        let lock = &self.0[(address / 16) % LOCKS];
        // L1: pairs with L2 in `update_locked`. Held for a few instructions, by engines alone.
        while lock.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            yield_now();
        }
        lock
    }

    fn release_all(&self) {
        // A forked child has one thread, which sees what it writes itself.
        self.0.iter().for_each(|lock| lock.store(false, Relaxed));
    }
}

/// For the handler of forks, in the child: whichever threads of its parent held a lock are not there to
/// release it. Async-signal-safe: a few stores.
pub(crate) fn release_in_child() {
    HELD.release_all();
}

#[cold]
#[inline(never)]
fn update_locked<V: Cell>(at: Piece, change: impl Fn(V) -> Option<V>) -> V {
    assert!(at.len() == size_of::<V>());
    let lock = HELD.hold(at.as_ptr() as usize);
    // SAFETY: the piece is valid for its size, and only the lock's holder updates it so.
    let current = unsafe { at.as_ptr().cast::<V>().read_unaligned() };
    if let Some(mut next) = change(current) {
        // SAFETY: it is ours, and outlives the copy.
        let next = unsafe { Piece::new((&raw mut next).cast(), size_of::<V>()) };
        // Who looks without the lock, in the order of data, finds no byte before those in front.
        next.copy_in_order_to(at);
    }
    // L2: pairs with L1 in `hold`.
    lock.store(false, Release);
    current
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_parent_held_is_free_in_its_child() {
        let locks = Locks([const { AtomicBool::new(false) }; LOCKS]);
        let all = || (0..LOCKS).map(|at| locks.hold(at * 16).load(Relaxed)).filter(|held| *held);
        assert_eq!(all().count(), LOCKS);
        locks.release_all();
        assert_eq!(all().count(), LOCKS, "each is held again, and nobody waited");
    }
}
