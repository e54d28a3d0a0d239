//! Descriptors that forked children do not keep.
//!
//! The kernel ends a connection when nobody has its socket any more, and tells a peer of a process
//! that was killed by that alone. A child that was forked and goes on without `exec` has a copy of
//! each. So they are marked here, and the handler that runs in the child puts a descriptor of
//! nothing in their place: the child's objects are told apart by their generation, but may be dropped,
//! and what they close then has to be there.
//!
//! A descriptor is marked right after it was made. A fork in between leaves it to the child.

use std::{
    ops::{Deref, DerefMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

const WORDS: usize = 512;
/// Descriptors in a block of the table, a bit each.
const IN_BLOCK: usize = WORDS * u64::BITS as usize;
/// Twice as many descriptors as a process may have by default (fs.nr_open). Those beyond are kept.
const BLOCKS: usize = (2 << 20) / IN_BLOCK;

struct Block([AtomicU64; WORDS]);

/// Which descriptors are marked. Blocks are made when they are needed, and stay: the handler takes no
/// lock, and finds whole blocks.
static TABLE: [AtomicPtr<Block>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// The block of that number, made if it is new.
fn block(number: usize) -> Option<&'static Block> {
    let place = TABLE.get(number)?;
    // U1: pairs with U2.
    let mut found = place.load(Ordering::Acquire);
    if found.is_null() {
        let fresh = Box::into_raw(Box::new(Block([const { AtomicU64::new(0) }; WORDS])));
        // U2: pairs with U1. Where two are made at a time the other one is seen whole, too.
        let put =
            place.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        found = fresh;
        if let Err(other) = put {
            // SAFETY: it was made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            found = other;
        }
    }
    // SAFETY: blocks in the table were made as boxes, and are never freed.
    Some(unsafe { &*found })
}

/// The word and the bit of a descriptor.
fn place_of(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(descriptor).ok()?;
    let word = &block(at / IN_BLOCK)?.0[at % IN_BLOCK / u64::BITS as usize];
    Some((word, 1 << (at % u64::BITS as usize)))
}

/// Marks a descriptor as long as it is there, which is no longer than the descriptor is open.
#[derive(Debug)]
pub struct Mark(RawFd);

impl Mark {
    /// Marks an open descriptor that nobody else marks.
    pub fn new(descriptor: RawFd) -> Mark {
        super::generation();
        if let Some((word, bit)) = place_of(descriptor) {
            // A child sees what the thread that forked has seen: relaxed.
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Mark(descriptor)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some((word, bit)) = place_of(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Something with a descriptor that forked children do not keep.
#[derive(Debug)]
pub struct Unshared<T> {
    // Dropped first: the number may be another's once it is closed.
    mark: Mark,
    inner: T,
}

impl<T: AsRawFd> Unshared<T> {
    /// Marks what has just been opened.
    pub fn new(inner: T) -> Unshared<T> {
        Unshared { mark: Mark::new(inner.as_raw_fd()), inner }
    }

    /// The same descriptor as something else.
    pub fn map<U: AsRawFd>(self, into: impl FnOnce(T) -> U) -> Unshared<U> {
        let Unshared { mark, inner } = self;
        let inner = into(inner);
        debug_assert_eq!(mark.0, inner.as_raw_fd());
        Unshared { mark, inner }
    }
}

impl<T> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Unshared<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsFd> AsFd for Unshared<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// For the handler of forks, in the child: puts a descriptor of nothing in the place of all that are
/// marked, and marks them no more. Async-signal-safe: atomic operations and system calls, no lock.
pub(super) fn replace_in_child() {
    let mut nothing = None;
    for (number, place) in TABLE.iter().enumerate() {
        // U1: pairs with U2.
        let block = place.load(Ordering::Acquire);
        if block.is_null() {
            continue;
        }
        // SAFETY: as in `block`.
        for (nth, word) in unsafe { &*block }.0.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let descriptor = number * IN_BLOCK + nth * u64::BITS as usize + bit;
                replace(descriptor as RawFd, &mut nothing);
            }
        }
    }
    if let Some(nothing) = nothing {
        // SAFETY: it was opened by `replace`, and nobody else knows of it.
        unsafe { libc::close(nothing) };
    }
}

/// Puts `nothing`, which is opened if it is not yet, in the place of a descriptor.
fn replace(descriptor: RawFd, nothing: &mut Option<RawFd>) {
    // SAFETY: system calls on numbers. The descriptor is a copy that only objects of the parent name:
    // those are not used in the child.
    unsafe {
        if nothing.is_none() {
            let opened = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            *nothing = Some(opened).filter(|&opened| opened >= 0);
        }
        let put = nothing.map_or(-1, |nothing| libc::dup3(nothing, descriptor, libc::O_CLOEXEC));
        if put < 0 {
            // There are no more to be had: at the risk that an object which is dropped closes another's.
            libc::close(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn a_child_that_goes_on_keeps_nothing_open() {
        let (mut kept, inherited) = UnixStream::pair().unwrap();
        let (ends, mut waits) = UnixStream::pair().unwrap();
        let inherited = Unshared::new(inherited);
        // SAFETY: the child reads from a socket, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            drop(ends);
            // SAFETY: it asks for a flag of a number.
            let closed = unsafe { libc::fcntl(inherited.as_raw_fd(), libc::F_GETFD) } < 0;
            drop(inherited);
            let _ = waits.read(&mut [0]);
            // SAFETY: ends the child, and nothing of the parent's.
            unsafe { libc::_exit(i32::from(closed)) }
        }
        drop(inherited);
        kept.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!(kept.read(&mut [0]).unwrap(), 0, "the child keeps it open");
        drop(ends);
        let mut status = 0;
        // SAFETY: waits for our child, and writes to our own integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the number is not there to be closed");
    }
}
