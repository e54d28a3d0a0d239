//! A word that the kernel changes when a process ends, or executes another program.
//!
//! Who reads a process's memory by its PID must know afterwards that it was this process's: a PID
//! outlives its process, and a program that executes another keeps it. To ask the kernel costs a
//! system call each time. A robust futex costs a load: "the kernel will mark it" when the thread
//! that holds one ends (set_robust_list(2)), which it does before the thread's memory goes and
//! before its PID can be another's, and all threads but one end before a program executes another.
//!
//! So the control thread holds a robust mutex as long as it runs, in a page that peers map and
//! cannot write. A peer notes the mutex's state when it connects: while it is the same, the
//! process is.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::region::{PAGE_BYTES, PoolMemory, PoolView, RegionError};

/// Our own mark. It belongs to the thread that made it, and must be dropped there.
pub(crate) struct EndMark {
    page: PoolMemory,
}

impl EndMark {
    /// Makes the mark of the calling thread.
    pub(crate) fn of_this_thread() -> io::Result<EndMark> {
        let mark = EndMark::of_nobody()?;
        // SAFETY: the mutex is initialised, and nobody holds it.
        check(unsafe { libc::pthread_mutex_lock(mark.mutex()) })?;
        Ok(mark)
    }

    fn of_nobody() -> io::Result<EndMark> {
        let page = PoolMemory::create(PAGE_BYTES).map_err(io::Error::other)?;
        let mark = EndMark { page };
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialised by the first call; the mutex lies in a page of
        // our own, aligned, of zeroes, that is mapped until the mutex is unlocked.
        unsafe {
            check(libc::pthread_mutexattr_init(attributes))?;
            check(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            check(libc::pthread_mutex_init(mark.mutex(), attributes))?;
            check(libc::pthread_mutexattr_destroy(attributes))?;
        }
        Ok(mark)
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        self.page.as_ptr().as_ptr().cast()
    }

    /// What a peer is passed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.page.fd()
    }
}

impl Drop for EndMark {
    fn drop(&mut self) {
        // SAFETY: locked by this thread, which must take it from its list before the page goes.
        unsafe { libc::pthread_mutex_unlock(self.mutex()) };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// A peer's mark.
#[derive(Clone, Debug)]
pub(crate) struct PeerEndMark {
    page: Arc<PoolView>,
    noted: u64,
}

impl PeerEndMark {
    /// Maps the mark that a peer passed, and notes its state.
    pub(crate) fn from_peer(fd: OwnedFd) -> Result<PeerEndMark, RegionError> {
        let page = Arc::new(PoolView::from_peer(fd, PAGE_BYTES as u64)?);
        let mut mark = PeerEndMark { page, noted: 0 };
        mark.noted = mark.state();
        Ok(mark)
    }

    /// The state of the mutex, and its neighbour: with every C library in the first eight bytes.
    fn state(&self) -> u64 {
        let word: NonNull<AtomicU64> = self.page.as_ptr().cast();
        // SAFETY: the view is a page, mapped as long as we live; a word of it is only loaded.
        unsafe { word.as_ref() }.load(Ordering::Relaxed)
    }

    /// Whether the process is what it was when we met it. What was read of its memory before was
    /// its own, then. Cost: a load.
    #[inline]
    pub(crate) fn is_unchanged(&self) -> bool {
        // What was read comes before this look.
        fence(Ordering::Acquire);
        self.state() == self.noted
    }
}

impl PartialEq for PeerEndMark {
    fn eq(&self, other: &PeerEndMark) -> bool {
        Arc::ptr_eq(&self.page, &other.page)
    }
}

impl Eq for PeerEndMark {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    fn seen(mark: &EndMark) -> PeerEndMark {
        PeerEndMark::from_peer(mark.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn a_thread_that_ends_is_marked() {
        let (send, receive) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let mark = EndMark::of_this_thread().unwrap();
            send.send(seen(&mark)).unwrap();
            ended.recv().unwrap();
            // As if it was killed.
            std::mem::forget(mark);
        });
        let view = receive.recv().unwrap();
        assert!(view.is_unchanged());
        end.send(()).unwrap();
        thread.join().unwrap();
        assert!(!view.is_unchanged());
    }

    #[test]
    fn a_mark_that_is_dropped_counts_as_an_end() {
        let mark = EndMark::of_this_thread().unwrap();
        let view = seen(&mark);
        assert!(view.is_unchanged());
        drop(mark);
        assert!(!view.is_unchanged());
    }

    #[test]
    fn a_process_that_executes_another_program_is_marked() {
        let mark = EndMark::of_nobody().unwrap();
        let (go, come) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        let program = c"/bin/cat";
        // SAFETY: the child makes system calls alone, and locks a mutex that nobody holds.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut byte = 0u8;
                libc::pthread_mutex_lock(mark.mutex());
                libc::write(come.1.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::read(go.0.as_raw_fd(), (&raw mut byte).cast(), 1);
                // It waits for the end of its input.
                libc::dup2(go.0.as_raw_fd(), 0);
                libc::close(go.1.as_raw_fd());
                libc::execl(program.as_ptr(), program.as_ptr(), std::ptr::null::<u8>());
                libc::_exit(1);
            }
            child
        };
        assert!(child > 0);
        rustix::io::read(&come.0, &mut [0; 1]).unwrap();
        let view = seen(&mark);
        assert!(view.is_unchanged());
        rustix::io::write(&go.1, b"x").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while view.is_unchanged() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!view.is_unchanged());
        let mut status = 0;
        // SAFETY: our own child: it still runs, with the same number, and ends with its input.
        unsafe {
            assert_eq!(libc::waitpid(child, &mut status, libc::WNOHANG), 0);
            drop(go.1);
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        // Not ours to unlock.
        std::mem::forget(mark);
    }

    #[test]
    fn a_forked_child_that_ends_leaves_the_mark() {
        let mark = EndMark::of_this_thread().unwrap();
        let view = seen(&mark);
        // SAFETY: the child does nothing but end.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child at once.
            0 => unsafe { libc::_exit(0) },
            child => {
                assert!(child > 0);
                let mut status = 0;
                // SAFETY: our own child, waited for once.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            }
        }
        assert!(view.is_unchanged());
    }
}
