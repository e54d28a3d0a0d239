//! Permits: what a peer's writes to our memory carry with them, so that they can be ended.
//!
//! A permit is a nonce on a page of its own. Each write that a peer makes by itself begins with the
//! nonce, at its place, in the same system call (see [`crate::cma`]). Without the page it does
//! nothing: so a peer that was stopped before the call, and goes on after we took the page away,
//! harms nothing. A forked child of ours does not have the page either, so that nobody takes the
//! child's memory for ours.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::{cma::NONCE_BYTES, control, region::PAGE_BYTES};
use kestrel_core::fork_guard;

/// A leave to write: one peer's by a window, or that of all whose messages we receive together with them.
pub(crate) struct Permit {
    /// Taken away by `drop` alone, and not in a forked child, where something else lies there.
    page: std::mem::ManuallyDrop<MmapRaw>,
    nonce: [u8; NONCE_BYTES],
    generation: u32,
    is_withdrawn: AtomicBool,
}

impl Permit {
    /// A permit with a random nonce.
    pub fn new() -> io::Result<Permit> {
        let mut page = MmapOptions::new().len(PAGE_BYTES).map_anon()?;
        let mut nonce = [0; NONCE_BYTES];
        control::fill_random(&mut nonce).map_err(io::Error::other)?;
        page[..NONCE_BYTES].copy_from_slice(&nonce);
        page.advise(Advice::DontFork)?;
        let page = std::mem::ManuallyDrop::new(MmapRaw::from(page));
        let (generation, is_withdrawn) = (fork_guard::generation(), AtomicBool::new(false));
        Ok(Permit { page, nonce, generation, is_withdrawn })
    }

    /// Where the nonce lies.
    pub fn address(&self) -> u64 {
        self.page.as_ptr().addr() as u64
    }

    /// Whether this is a forked child of the process that made it, and has no such page.
    pub fn is_forked(&self) -> bool {
        fork_guard::forked(self.generation)
    }

    /// The nonce.
    pub fn nonce(&self) -> [u8; NONCE_BYTES] {
        self.nonce
    }

    /// Takes the page away for ever: no write that begins from now on does anything.
    pub fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Relaxed);
        // SAFETY: the page is ours, and nothing here reads or writes it any more.
        let failed = unsafe {
            libc::mprotect(self.page.as_mut_ptr().cast(), PAGE_BYTES, libc::PROT_NONE) != 0
        };
        if failed {
            let error = io::Error::last_os_error();
            tracing::error!(%error, "a permit could not be taken back: mprotect");
        }
        // SAFETY: as above. What stays taken is its place alone.
        unsafe { libc::madvise(self.page.as_mut_ptr().cast(), PAGE_BYTES, libc::MADV_DONTNEED) };
    }
}

impl Drop for Permit {
    /// The place of one that was taken back stays taken. Whoever was stopped with it may go on much later,
    /// and would write to what came there.
    fn drop(&mut self) {
        if !self.is_forked() && !self.is_withdrawn.load(Ordering::Relaxed) {
            // SAFETY: dropped once, here.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.page) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cma::PeerMemory;
    use std::sync::atomic::AtomicU64;

    /// Whether eight bytes go to a place in process `pid`, with that permit.
    fn writes(permit: &Permit, pid: i32, place: &AtomicU64, value: u64) -> bool {
        writes_by(permit.address(), permit.nonce(), pid, place, value)
    }

    /// The same with any nonce.
    fn writes_by(
        address: u64,
        nonce: [u8; NONCE_BYTES],
        pid: i32,
        place: &AtomicU64,
        value: u64,
    ) -> bool {
        let memory = PeerMemory::of(pid, address, nonce);
        let value = value.to_ne_bytes();
        // SAFETY: the value is 8 bytes long, and so is the place, whose content is no reference.
        unsafe { memory.write(place.as_ptr() as u64, value.as_ptr(), 8) }.is_ok()
    }

    #[test]
    fn nothing_is_written_once_a_permit_is_taken_back() {
        let (permit, other) = (Permit::new().unwrap(), Permit::new().unwrap());
        let (place, own) = (AtomicU64::new(0), std::process::id() as i32);
        assert!(writes(&permit, own, &place, 5));
        permit.withdraw();
        assert!(!writes(&permit, own, &place, 6));
        assert_eq!(place.load(Ordering::SeqCst), 5);
        assert!(writes(&other, own, &place, 7));
        assert_eq!(place.load(Ordering::SeqCst), 7);
    }

    /// Whoever is stopped may go on at any time: nothing else may lie there then.
    #[test]
    fn nothing_takes_the_place_of_a_permit_that_was_taken_back() {
        let permit = Permit::new().unwrap();
        let (address, nonce) = (permit.address(), permit.nonce());
        permit.withdraw();
        drop(permit);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: it replaces nothing, and nobody uses what comes there.
        let other = unsafe { libc::mmap(address as *mut _, PAGE_BYTES, rights, flags, -1, 0) };
        assert_eq!(other, libc::MAP_FAILED);
        let (place, own) = (AtomicU64::new(0), std::process::id() as i32);
        assert!(!writes_by(address, nonce, own, &place, 5));
        assert_eq!(place.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_forked_child_has_no_permit() {
        let (permit, place) = (Permit::new().unwrap(), AtomicU64::new(0));
        let (inherited, nonce) = ([0; 2].map(AtomicU64::new), [7; NONCE_BYTES]);
        // SAFETY: the child calls only what a signal handler may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: no arguments.
                unsafe { libc::pause() };
            }
        }
        assert!(!writes(&permit, child, &place, 1));
        assert!(
            writes_by(inherited[0].as_ptr() as u64, nonce, child, &place, 1),
            "it can be reached"
        );
        assert!(writes(&permit, std::process::id() as i32, &place, 1));
        // SAFETY: the child is ours, and has not been waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
}
